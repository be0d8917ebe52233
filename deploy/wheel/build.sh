#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# build.sh VERSION PROGRAMS OUT: make the wheel hpsd-server of the programs in a folder. The libraries come from this
# machine; for users of Debian 12 and newer distributions of that age it must be Debian 12. Needs auditwheel, patchelf, wheel.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
version=$1 programs=$2 out=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

wheel=$work/wheel info=$work/wheel/hpsd_server-$version.dist-info libs=$work/wheel/hpsd_server.libs
mkdir -p "$wheel" "$info" "$libs" "$work/packed" "$out"
cp -a "$here/hpsd_server" "$wheel/"
mkdir "$wheel/hpsd_server/bin" "$wheel/hpsd_server/licences"
printf '[console_scripts]\n' >"$info/entry_points.txt"
for name in hpsd hpsctl hps-bench hps-gen hps-publish; do
    install -m 0755 "$(find "$programs" -name "$name" -type f -perm -u+x | head -n 1)" "$wheel/hpsd_server/bin/"
    strip "$wheel/hpsd_server/bin/$name"
    # DT_RPATH, which also holds for the libraries of libraries.
    patchelf --force-rpath --set-rpath "\$ORIGIN/../../hpsd_server.libs" "$wheel/hpsd_server/bin/$name"
    printf '%s = hpsd_server:main\n' "$name" >>"$info/entry_points.txt"
done
# auditwheel expects these on every system. They are in the wheel too, so that it needs only libc.
ldd "$wheel"/hpsd_server/bin/* | sed -nE 's/.* => (\S+) .*/\1/p' | sort -u >"$work/linked"
while read -r library; do
    case $library in
        */libstdc++.so.* | */libgcc_s.so.* | */libz.so.*) install -m 0755 "$library" "$libs/" ;;
        */libc.so.* | */libm.so.* | */libdl.so.* | */libresolv.so.* | */libpthread.so.* | */librt.so.* | */ld-linux*) continue ;;
    esac
    # dpkg knows files of a merged /usr by one of two names.
    package=$(dpkg-query -S "$library" 2>/dev/null || dpkg-query -S "/usr$library" 2>/dev/null || dpkg-query -S "${library#/usr}")
    package=${package%%:*}
    cp "/usr/share/doc/$package/copyright" "$wheel/hpsd_server/licences/$package"
done <"$work/linked"
sed "s/@VERSION@/$version/" "$here/METADATA" | cat - "$here/README.md" >"$info/METADATA"
cp "$here/../../LICENSE" "$info/"
printf 'Wheel-Version: 1.0\nGenerator: hpsd\nRoot-Is-Purelib: false\nTag: py3-none-linux_x86_64\n' >"$info/WHEEL"
find "$wheel" -name __pycache__ -exec rm -r {} +
python3 -m wheel pack -d "$work/packed" "$wheel"
auditwheel repair -w "$out" "$work"/packed/*.whl
auditwheel show "$out"/hpsd_server-"$version"-*.whl
