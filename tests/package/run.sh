#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh OLD NEW [SUITE...]: install, upgrade and remove the packages of build/package in bare roots of Debian 12 and 13. systemd is
# booted there by systemd-nspawn. OLD and NEW are folders with a folder of packages for each release. Prints the time of
# each step. Root is required.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
old=$(realpath "$1") new=$(realpath "$2")
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-0}
# shellcheck source=tools/roots.sh
. tools/roots.sh
command -v systemd-nspawn >/dev/null || apt-get install -y -q --no-install-recommends systemd-container

status=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# readme BEGIN: the lines of README's block that begins with this text
readme() { sed -n "/^    $1/,/^\$/s/^    //p" README.md; }

step() { printf '%-9s %-62s %6d s  %s\n' "$1" "$2" $((SECONDS - begun)) "$3"; }

# apt SUITE
apt() {
    local suite=$1 ended=ok
    mkdir -p "$work/$suite"/{old,new,tree}
    cp "$old/$suite"/*.deb "$work/$suite/old/"
    cp "$new/$suite"/*.deb "$work/$suite/new/"
    rm -f "$work/$suite"/*/*-dbgsym_*
    cp tests/package/booted.sh "$work/$suite/"
    readme 'sudo apt install' | sed "s/bookworm/$suite/g" >"$work/$suite/first"
    begun=$SECONDS
    in_root "$suite" test "$work/$suite" '
        echo "APT::Get::Assume-Yes \"true\";" >/etc/apt/apt.conf.d/90yes
        apt-get update -qq
        apt-get install -qq --no-install-recommends dbus gcc iproute2 libc6-dev pkg-config python3 systemd systemd-sysv
        apt-get install -qq --download-only /mnt/old/*.deb' >"$work/$suite/prepare" 2>&1 || {
        tail -n 20 "$work/$suite/prepare"
        ended=FAILED status=1
    }
    step "$suite" "a bare root with systemd, and the downloads" $ended
    begun=$SECONDS
    boot_root "$suite" test "$work/$suite" "bash /mnt/booted.sh" || ended=FAILED status=1
    sed -n "s/^STEP /$(printf '%-9s' "$suite")  /p; s/^NOTE /$(printf '%-9s' "$suite")  /p" "$work/$suite/log"
    if [[ $ended == FAILED ]]; then
        tail -n 40 "$work/$suite/log"
    fi
    step "$suite" "apt: install, upgrade under load, remove, purge" $ended
}

# pip SUITE PYTHON: install the wheels, then the source distribution, with a Python that is Debian's, or in a folder
pip() {
    local suite=$1 python=$2 ended=ok
    mkdir -p "$work/pip"
    [[ $(readme 'pip install build' | wc -l) == 2 ]]
    readme 'pip install build' >"$work/pip/first"
    begun=$SECONDS
    in_root "$suite" - "$work/pip" "
        apt-get update -qq
        if [ -d $python ]; then
            apt-get install -y -qq --no-install-recommends libssl3 libffi8 zlib1g
            $python/bin/python3 -m venv /venv
        else
            apt-get install -y -qq --no-install-recommends $python-venv
            $python -m venv /venv
        fi
        . /venv/bin/activate
        cd /tree
        . /mnt/first | tee /tmp/said
        grep -q '^\[\[' /tmp/said
        for name in hpsd hpsctl hps-gen hps-bench hps-publish; do \$name --version; done
        cd /
        pip uninstall -q -y hpsd
        pip install /tree/build/package/python/hpsd-*.tar.gz
        tail -n 1 /mnt/first | bash | grep '^\[\['
        ! ldd /venv/lib/python3*/site-packages/hpsd_server/bin/hpsd | grep -vE 'site-packages|linux-vdso|ld-linux|lib(c|m|dl|resolv|pthread|rt)\\.so'
    " >"$work/pip/log" 2>&1 || {
        tail -n 30 "$work/pip/log"
        ended=FAILED status=1
    }
    step "$suite" "pip, $python: two commands of README, and the sdist" $ended
}

if (($# == 2)); then
    set -- "$@" bookworm trixie
fi
for suite in "${@:3}"; do
    apt "$suite"
done
pip bookworm python3.11
pip trixie python3.13
if [[ -d ${HPS_PYTHON39:-/nonexistent} ]]; then
    pip bookworm "$HPS_PYTHON39"
else
    echo "SKIPPED: Python 3.9: HPS_PYTHON39 names no folder with it"
fi
exit "$status"
