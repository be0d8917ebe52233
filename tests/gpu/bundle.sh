#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# bundle.sh BIN_DIR BUNDLE [GPU_DIR]: everything that travels to a machine with a GPU, below 64 MiB
# together with the files of this tree:
#
#     try.sh      bundle_try.sh: hpsd end to end
#     bin/        hpsd, hpsd-sim and the tools. They run on any Linux x86-64: their libraries, the C
#                 library included, are in lib/. Only the GPU's driver is that machine's.
#     bin/        from GPU_DIR: gpu_bench and its variants, which variants.txt lists. They take that
#                 machine's C library, glibc 2.34 or later. If they were built there, also the machine
#                 code of the kernels as text, where nvcc and nvdisasm are.
#     commit.txt  of this tree
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
bin=$1
bundle=$2
gpu=${3:-}
programs=(hpsd hpsd-sim hpsctl hps-gen hps-bench)
gpu_programs=()
size_max=$((64 << 20))
glibc_max=GLIBC_2.34

die() {
    printf 'bundle: %s\n' "$*" >&2
    exit 1
}

if [[ -n $gpu ]]; then
    gpu_programs=(gpu_bench)
    if [[ -e $gpu/variants.txt ]]; then
        while IFS= read -r variant; do
            gpu_programs+=("gpu_bench_$variant")
        done <"$gpu/variants.txt"
    fi
fi
for program in "${gpu_programs[@]}"; do
    symbols=$(readelf -W --dyn-syms "$gpu/$program" | grep -oE '\w+@GLIBC_[0-9.]+')
    newest=$(grep -o 'GLIBC_.*' <<<"$symbols" | sort -V | tail -n 1)
    if [[ $(printf '%s\n' "$newest" $glibc_max | sort -V | tail -n 1) != "$glibc_max" ]]; then
        die "$program needs $(grep "@$newest$" <<<"$symbols" | tr '\n' ' ')and may need $glibc_max at most"
    fi
done

rm -rf "$bundle"
mkdir -p "$bundle"/{bin,lib,libexec}
for program in "${gpu_programs[@]}"; do
    strip -o "$bundle/bin/$program" "$gpu/$program"
done
if [[ -e $gpu/variants.txt ]]; then
    cp "$gpu/variants.txt" "$bundle/bin/"
fi
if [[ -e $gpu/CMakeCache.txt ]]; then
    python3 tests/gpu/budget.py --code "$bundle/bin" || (($? == 77))
fi
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
# [--driver-dir DIR] ARGUMENT...: with the C library of the bundle, and this machine's libcuda.so.1.
here=$(dirname "$(readlink -f "$0")")/..
path=$here/lib
driver=
if [ "${1:-}" = --driver-dir ]; then
    driver=$2
    shift 2
fi
for folder in "$driver" /usr/local/nvidia/lib64 /usr/lib/x86_64-linux-gnu /usr/lib64 /usr/lib \
    /usr/lib/wsl/lib; do
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
git -c safe.directory="$PWD" describe --always --abbrev=40 --dirty=", changed" >"$bundle/commit.txt" 2>/dev/null ||
    echo unknown >"$bundle/commit.txt"
size=$(du -sb "$bundle" | cut -f 1)
tree=$(git -c safe.directory="$PWD" ls-files -zco --exclude-standard 2>/dev/null |
    du -cb --files0-from=- 2>/dev/null | sed -n '$s/[^0-9].*//p' || true)
if ((size + tree >= size_max)); then
    (cd "$bundle" && du -ab . | sort -n) >&2
    die "$size bytes and $tree of the tree, must be below $size_max together"
fi
"$bundle/bin/hpsd" --version
printf '%s: %d MiB; try it with %s/try.sh\n' "$bundle" $((size >> 20)) "$bundle"
