#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# `./dev gpu [--sim]`: build the embedding cache on its own, check and measure it on the GPU of this
# machine, in steps with a time limit each that write what they find at once; under 9 minutes in all.
# Needs nvcc, cmake, ninja and gcc. Only a build or a check that fails fails the run.
#
#     build/gpu/results.md      the table, with the commit; in $OUT where that is set
#     build/gpu/results.jsonl   the same, a line each: bench case metric value unit (target met)
#     build/gpu/log.txt         all that was said
#     build/gpu/profile.txt     of the look-up kernel, where ncu is
#
# --sim: on the simulated device, tiny: shows that it runs, and fails where any step does. Its figures
# mean nothing.
# HPS_COMMIT: the commit, where there is no git to ask. HPS_GPU_BUILD: where to build.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."

export gpu_sim=${1:-} gpu_build=${HPS_GPU_BUILD:-$PWD/build/gpu/build} gpu_out=${OUT:-$PWD/build/gpu}
if (($# > 1)) || [[ -n $gpu_sim && $gpu_sim != --sim ]]; then
    echo "usage: ./dev gpu [--sim]" >&2
    exit 2
fi
json=$gpu_out/results.jsonl
table=$gpu_out/results.md
log=$gpu_out/log.txt
mkdir -p "$gpu_out" "$gpu_build"
rm -f "$table" "$log" "$gpu_out/profile.txt"
: >"$json"
failed=()
notes=()

have() { command -v "$1" >/dev/null; }
note() {
    notes+=("$*")
    printf 'gpu: %s\n' "$*" | tee -a "$log"
}

commit=${HPS_COMMIT:-$(git -c safe.directory="$PWD" rev-parse HEAD 2>/dev/null || echo unknown)}
if [[ -n $(git -c safe.directory="$PWD" status --porcelain 2>/dev/null) ]]; then
    commit+=", and changes that are not committed"
fi

# The table anew, of all lines so far.
write_table() {
    {
        printf '# Device run\n\n- commit: %s\n- date: %s\n' "$commit" "$(date -u +%Y-%m-%d)"
        if [[ -n $gpu_sim ]]; then
            echo "- **on the simulated device: these figures mean nothing**"
        fi
        printf -- '- %s\n' "${notes[@]}"
        printf '\n| bench | case | metric | value | unit | target | met |\n'
        printf '|---|---|---|---:|---|---:|---|\n'
        sed -E -e 's/^\{"bench":"([^"]*)","case":"([^"]*)","metric":"([^"]*)","value":/| \1 | \2 | \3 | /' \
            -e 's/,"unit":"([^"]*)"/ | \1 |/' -e 's/,"target":([^,]*),"met":true\}$/ \1 | yes |/' \
            -e 's/,"target":([^,]*),"met":false\}$/ \1 | **no** |/' -e 's/\}$/ | |/' "$json"
    } >"$table"
}

# step NAME SECONDS ARGUMENT...: what it found is in the table when it returns.
step() {
    local name=$1 limit=$2 status=0 began=$SECONDS
    shift 2
    if [[ -n $gpu_sim ]]; then
        limit=$((4 * limit)) # any machine, whatever else it does
    fi
    printf '\n==> %s (at most %s s)\n' "$name" "$limit" | tee -a "$log"
    timeout -k 5 "$limit" tests/gpu/step.sh "$@" 2>&1 | tee -a "$log" || status=${PIPESTATUS[0]}
    if ((status == 124 || status == 137)); then
        note "$name: stopped after $limit s; what it had found until then is in the table"
    elif ((status != 0)); then
        note "$name: exit code $status, see log.txt"
    fi
    if [[ -n $gpu_sim ]] && ((status != 0)); then
        failed+=("$name")
    fi
    printf '    %s took %d s\n' "$name" $((SECONDS - began)) | tee -a "$log"
    write_table
    return "$status"
}

finish() {
    note "took $SECONDS s"
    write_table
    printf '\n%s\n%s\n' "$table" "$json"
    if ((${#failed[@]})); then
        printf 'gpu: FAILED: %s\n' "${failed[*]}" >&2
        exit 1
    fi
    exit 0
}

note "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1 ||
    echo no nvidia-smi)"
step probe 15 probe || true
if ! have cmake || ! have ninja || ! have gcc || { [[ -z $gpu_sim ]] && ! have nvcc; }; then
    note "cmake, ninja, gcc and nvcc are needed"
    failed=(build)
    finish
fi
step build 90 build || failed=(build)
if ((${#failed[@]})); then
    finish
fi
if ! step device 15 bench probe; then
    note "no device that can be used; ./dev gpu --sim tries everything on the simulated one"
    failed=(device)
    finish
fi
step ceilings 50 bench ceilings || true
step conformance 90 checks || failed=(conformance)
if [[ -z $gpu_sim ]] && have compute-sanitizer; then
    step memcheck 35 sanitize memcheck || true
    step initcheck 35 sanitize initcheck || true
else
    note "compute-sanitizer was not run"
fi
torch=()
if [[ -z $gpu_sim ]] && have python3; then
    torch=(--torch bench/gpu/torch_gather.py)
fi
step gather 80 bench "${torch[@]}" widths || true
step fused 20 bench fused || true
step delivery 30 bench delivery || true
step misses 25 bench misses || true
step updates 20 bench updates || true
if [[ -z $gpu_sim ]] && have ncu; then
    step profile 20 profile || true
else
    note "ncu was not run"
fi
finish
