# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# shellcheck disable=SC2016 # the commands are of an inner shell
#
# Bare roots of Debian releases, for tools/package.sh and tests/package. To be sourced. Root, overlayfs and the mirror of
# Debian are required. A root is kept in ~/.cache/hpsd/roots; what a command changes is in a layer above it.
roots=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/hpsd/roots

# need_root SUITE: make the root of a release
need_root() {
    [[ -e $roots/$1/.complete ]] && return
    command -v mmdebstrap >/dev/null || apt-get install -y -q --no-install-recommends mmdebstrap
    rm -rf "${roots:?}/$1"
    mkdir -p "$roots/$1"
    mmdebstrap --quiet --variant=minbase --include=ca-certificates "$1" "$roots/$1" \
        "$(sed -n 's/^URIs: //p' /etc/apt/sources.list.d/debian.sources 2>/dev/null | grep . | head -n 1 || echo http://deb.debian.org/debian)"
    touch "$roots/$1/.complete"
}

# in_root SUITE LAYER DIR COMMAND: run it in a release, with DIR as /mnt and this tree as /tree. The layer keeps what it
# changes, for the next command with the same layer; "-": nothing is kept. All of its processes and mounts end with it.
in_root() {
    need_root "$1"
    mounted "$roots/$1.$2" "" "$@" '
        mount -t proc proc $root/proc
        mount --rbind /dev $root/dev
        mount --bind /sys $root/sys
        mount --bind "$dir" $root/mnt
        mount --bind . $root/tree
        if [[ -d ${HPS_PYTHON39:-} ]]; then
            mkdir -p "$root$HPS_PYTHON39"
            mount --bind "$HPS_PYTHON39" "$root$HPS_PYTHON39"
        fi
        exec chroot $root env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
            PIP_CERT=/etc/ssl/certs/ca-certificates.crt DEBIAN_FRONTEND=noninteractive \
            SOURCE_DATE_EPOCH="$SOURCE_DATE_EPOCH" bash -euo pipefail -c "$command"'
}

# boot_root SUITE LAYER DIR COMMAND: boot systemd above a layer, without a network, and run the command there as a unit. Its
# output goes to DIR/log. Nothing is kept.
boot_root() {
    mounted "" "$roots/$1.$2/changes:" "$@" '
        cat >$root/etc/systemd/system/hpsd-test.service <<END
[Unit]
After=network.target dbus.service
[Service]
Type=oneshot
TimeoutStartSec=600
ExecStart=$command
ExecStopPost=/bin/sh -c "systemctl exit \$\$EXIT_STATUS"
StandardOutput=append:/mnt/log
StandardError=append:/mnt/log
[Install]
WantedBy=multi-user.target
END
        mkdir -p $root/etc/systemd/system/multi-user.target.wants
        ln -s ../hpsd-test.service $root/etc/systemd/system/multi-user.target.wants/
        SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 exec systemd-nspawn --quiet --boot --register=no --keep-unit --private-network \
            --resolv-conf=off --console=pipe --directory=$root --bind="$dir:/mnt" --bind-ro="$PWD:/mnt/tree" \
            --bind="$roots/apt/$suite:/var/cache/apt/archives" </dev/null >"$dir/console" 2>&1'
}

# mounted UPPER LOWER SUITE LAYER DIR COMMAND SCRIPT: run the script with $root, and $command for it
mounted() {
    mkdir -p "$roots/apt/$3/partial"
    # shellcheck disable=SC2016 # of the inner shell
    unshare --mount --pid --fork --kill-child --mount-proc bash -euc '
        roots=$1 upper=$2 lower=$3 suite=$4 layer=$5 dir=$6 command=$7
        exec {lock}>>"$roots/apt/$suite/used"
        flock "$lock" # apt fails if another one uses its cache
        mount -t tmpfs tmpfs /media
        if [[ -z $upper || $layer == - ]]; then
            upper=/media
        fi
        root=/media/root
        mkdir -p "$upper/changes" "$upper/work" $root
        mount -t overlay overlay -o "lowerdir=$lower$roots/$suite,upperdir=$upper/changes,workdir=$upper/work" $root
        mkdir -p $root/tree
        mount --bind "$roots/apt/$suite" $root/var/cache/apt/archives
        cp /etc/resolv.conf /etc/hosts $root/etc/
        echo "Binary::apt::APT::Keep-Downloaded-Packages \"true\";" >$root/etc/apt/apt.conf.d/90keep
        # The certificate authorities of this machine, for downloads through its proxy.
        if compgen -G "/usr/local/share/ca-certificates/*.crt" >/dev/null; then
            cp /usr/local/share/ca-certificates/*.crt $root/usr/local/share/ca-certificates/
            chroot $root update-ca-certificates >/dev/null 2>&1
        fi
        eval "$8"' mounted "$roots" "$@"
}
