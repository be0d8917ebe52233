#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# bundle.sh BIN_DIR BUNDLE: hpsd, hpsd-sim and the tools with all their libraries, the C library included, in one
# directory that runs on another Linux x86-64 machine, whatever is installed there; only the GPU's
# driver is that machine's. bundle_try.sh goes along as try.sh.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
bin=$1
bundle=$2
programs=(hpsd hpsd-sim hpsctl hps-gen hps-bench)
size_kib_max=$((50 * 1024))

rm -rf "$bundle"
mkdir -p "$bundle"/{bin,lib,libexec}
for program in "${programs[@]}"; do
    strip -o "$bundle/libexec/$program" "$bin/$program"
    ldd "$bin/$program" | grep -oE '/[^ ]+ \(0x' | cut -d ' ' -f 1
done | sort -u >"$bundle/libraries"
# What a driver's library asks of the C library, beside what hpsd does.
folder=$(dirname "$(grep '/libc\.so\.6$' "$bundle/libraries")")
for name in libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1; do
    printf '%s/%s\n' "$folder" "$name"
done >>"$bundle/libraries"
while IFS= read -r library; do
    cp -L "$library" "$bundle/lib/"
done <"$bundle/libraries"
rm "$bundle/libraries"
chmod -R u+w "$bundle/lib"
strip --strip-unneeded "$bundle"/lib/*.so* 2>/dev/null || true

for program in "${programs[@]}"; do
    cat >"$bundle/bin/$program" <<'SH'
#!/bin/sh
# With the C library of the bundle; libcuda.so.1 is this machine's (HPS_DRIVER_DIR: where it lies).
here=$(dirname "$(readlink -f "$0")")/..
path=$here/lib
for folder in "${HPS_DRIVER_DIR:-}" /usr/local/nvidia/lib64 /usr/lib/x86_64-linux-gnu /usr/lib64 \
    /usr/lib /usr/lib/wsl/lib; do
    if [ -n "$folder" ] && [ -e "$folder/libcuda.so.1" ]; then
        path=$path:$folder
        break
    fi
done
exec "$here/lib/ld-linux-x86-64.so.2" --argv0 "$0" --library-path "$path" \
    "$here/libexec/$(basename "$0")" "$@"
SH
    chmod 755 "$bundle/bin/$program"
done
cp tests/gpu/bundle_try.sh "$bundle/try.sh"
cp LICENSE "$bundle/"
size_kib=$(du -sk "$bundle" | cut -f1)
if ((size_kib > size_kib_max)); then
    echo "bundle: $size_kib KiB, more than $size_kib_max" >&2
    exit 1
fi
"$bundle/bin/hpsd" --version
printf '%s: %d MiB; try it with %s/try.sh\n' "$bundle" $((size_kib / 1024)) "$bundle"
