#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# One step of the device run, for run.sh, which gives each a time limit: step.sh NAME [ARGUMENT...].
# gpu_sim (--sim or empty), gpu_build and gpu_out are in the environment.
set -uo pipefail
: "${gpu_sim?}" "${gpu_build?}" "${gpu_out?}"
json=$gpu_out/results.jsonl
sim=()
if [[ -n $gpu_sim ]]; then
    sim=("$gpu_sim")
fi

have() { command -v "$1" >/dev/null; }

probe() {
    local tool
    for tool in nvcc cmake ninja gcc g++ compute-sanitizer ncu python3 nvidia-smi; do
        if have "$tool"; then
            printf '%s: %s\n' "$tool" \
                "$("$tool" --version 2>/dev/null | grep -m 1 -E '[0-9]+\.[0-9]+' || echo there)"
        else
            printf '%s: missing\n' "$tool"
        fi
    done
    if have nvidia-smi; then
        nvidia-smi --format=csv --query-gpu=name,driver_version,compute_cap,memory.total
        nvidia-smi --format=csv --query-gpu=pcie.link.gen.max,pcie.link.width.max
        nvidia-smi --format=csv --query-compute-apps=pid,name,used_memory
    fi
    lscpu 2>/dev/null | grep -E '^(Model name|CPU\(s\)|NUMA node\(s\)):'
    uname -r
}

# For the GPU at hand alone, as that is quicker; without one for all that are supported.
build() {
    local options=(-DCMAKE_BUILD_TYPE=RelWithDebInfo) processor=
    if ((${#sim[@]})); then
        options+=(-DHPS_CUDA=AUTO)
    else
        options+=(-DHPS_CUDA=ON)
        processor=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
            head -n 1 | tr -cd 0-9)
    fi
    if [[ -n $processor ]]; then
        options+=("-DCMAKE_CUDA_ARCHITECTURES=$processor-real")
    fi
    cmake -G Ninja -S tests/gpu -B "$gpu_build" "${options[@]}" && ninja -C "$gpu_build"
}

# Small sets only, as each access costs a hundred. $1: memcheck or initcheck
sanitize() {
    local said status found
    said=$(compute-sanitizer --tool "$1" --error-exitcode 9 "$gpu_build/gpu_checks" \
        widths_when_gathered widths_when_mapped crowded_sets changes_in_order bags_of_all_sizes \
        2>&1)
    status=$?
    tail -n 40 <<<"$said"
    found=$(sed -nE 's/.*ERROR SUMMARY: ([0-9]+) error.*/\1/p' <<<"$said")
    if [[ -n $found ]]; then
        printf '{"bench":"sanitizer","case":"%s","metric":"errors","value":%s,"unit":"",' "$1" "$found"
        printf '"target":0,"met":%s}\n' "$( ((found == 0)) && echo true || echo false)"
    fi >>"$json"
    return "$status"
}

profile() {
    local status
    ncu --clock-control none -k regex:lookup --launch-skip 2 --launch-count 1 \
        --section SpeedOfLight --section MemoryWorkloadAnalysis --section Occupancy \
        --section LaunchStats "$gpu_build/gpu_bench" profile >"$gpu_out/profile.txt" 2>&1
    status=$?
    grep -E 'Throughput|Occupancy|Registers|Duration|==ERROR==' "$gpu_out/profile.txt"
    return "$status"
}

name=$1
shift
case $name in
probe) probe || true ;;
build) build ;;
bench) "$gpu_build/gpu_bench" "${sim[@]}" --json "$json" "$@" ;;
checks) "$gpu_build/gpu_checks" "${sim[@]}" --json "$json" ;;
sanitize) sanitize "$@" ;;
profile) profile ;;
*) exit 2 ;;
esac
