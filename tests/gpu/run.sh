#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh [--sim] [--part 1|2|3] [--limit SECONDS] [--out DIR]: check and measure on this machine's GPU.
#
# Without --part all three parts run, each into a folder of its own below DIR (build/gpu). A part
# needs bash and coreutils, part 3 also sed and grep; what else it needs is carried in build/gpu-bundle
# or built here. DIR gets
#
#     results.md      the table, with the commit and what was not run; replaced while a step runs
#     results.jsonl   a line for each result, written by the programs at once
#     notes.txt       what happened, a line each; log.txt: all output
#     code.sass, clocks.csv (part 1), profile.txt (part 2), hpsd.log (part 3)
#
# Each step has a limit; the next ones may use what it leaves of its time. A step runs in a process
# group of its own, which ends with the script, even if that is killed. Exit code 1: a build, a
# check or a verified row failed, or there is no device. --sim: on the simulated device, with four
# times the limits; every failure counts and the figures mean nothing.
set -uo pipefail
from=$PWD
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." || exit 2

bundle=$PWD/build/gpu-bundle
built=$PWD/build/gpu/build
part_limits=([1]=100 [2]=150 [3]=100)
# name, limit in seconds, command; in the order of value
tables=(
    [1]='probe        4  probe
    build       36  build
    device       4  bench probe
    conformance 30  with_clocks conformance
    gather      12  with_clocks bench gather
    fused        8  with_clocks bench fused
    code         6  code'
    [2]='build       27  build
    device       3  bench probe
    ceilings     4  bench ceilings
    delivery     4  bench delivery
    misses       6  bench misses
    updates      7  bench updates
    apply        5  bench apply
    pooled       5  bench pooled
    converted    4  bench converted
    observe      3  bench observe
    gather_small 3  bench gather_small
    variants    48  variant
    claims       5  bench claims
    hit_rate     5  bench hit_rate
    widths       3  bench widths
    profile      7  profile
    memcheck     5  sanitize memcheck
    initcheck    3  sanitize initcheck
    torch        3  torch'
    [3]='daemon     100  daemon'
)
must_pass=' build device conformance daemon '
check_limit=8
profile_limit=6
# What a variant is measured with, if it is not gather_small.
declare -A variant_benches=([convert]=converted [ticket]=fused [apply]=apply [sketch]=observe
    [all]='gather_small converted apply')
profiles=(lookup:lookup apply:apply pool:pool observe:observe convert:lookup gather:gather)
variant_checks=(widths_when_gathered widths_when_mapped widths_on_the_device changes_in_order
    crowded_sets shapes_on_the_device shapes_when_mapped bags_of_all_sizes)
variant_race=updates_race_lookups # takes a second or two, so it comes behind the measurement
sanitized_checks=(widths_when_gathered widths_when_mapped crowded_sets changes_in_order
    bags_of_all_sizes)
file_kib_max=16384
files_max=8
NO_TIME=99

usage() {
    echo "usage: run.sh [--sim] [--part 1|2|3] [--limit SECONDS] [--out DIR]" >&2
    exit 2
}

have() { command -v "$1" >/dev/null; }
# Of the GPU: 9.0. Empty where it is not known.
capability() { nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1; }
note() { printf '%s\n' "$*" | tee -p -a "$out/notes.txt"; }
not_run() { note "not run: $name: $*"; }
# Seconds that the step has.
left() { echo $((deadline - SECONDS)); }
# within SECONDS COMMAND...: part of a step; 137: it was stopped; NO_TIME: it was not begun.
within() {
    local limit=$1 rest
    rest=$(left)
    shift
    if ((limit < 1 || rest < 1)); then
        return "$NO_TIME"
    fi
    timeout --foreground -s KILL $((limit < rest ? limit : rest)) "$@"
}
# Append standard input to a file of DIR, up to the size that a file may have.
keep() { (ulimit -f "$file_kib_max" && exec cat >>"$out/$1"); }
# A result as the programs write them.
report() { # BENCH CASE METRIC VALUE TARGET
    printf '{"bench":"%s","case":"%s","metric":"%s","value":%s,"unit":"","target":%s,"met":%s}\n' "$@" \
        "$([[ $4 == "$5" ]] && echo true || echo false)" >>"$out/results.jsonl"
}

# ---- process groups --------------------------------------------------------------------------------

# limited SECONDS COMMAND...: the command in a process group of its own. A watcher in the group ends
# all of it after the limit, or when the script is gone and with it the only writer of the pipe.
group=
limited() {
    local status=0 limit=$1
    shift
    set -m
    (
        set +m
        exec {life}>&-
        trap 'exit 143' TERM
        (
            trap '' TERM
            read -r -t "$limit" -u "$alive"
            kill -TERM 0
            sleep 0.5
            kill -KILL 0
        ) >/dev/null 2>&1 &
        "$@" </dev/null
    ) &
    group=$!
    set +m
    wait "$group" 2>/dev/null || status=$?
    kill -KILL -- "-$group" 2>/dev/null # the watcher, and what the command left behind
    group=
    return "$status"
}

stop() { # EXIT CODE: the script was told to end
    trap '' INT TERM HUP
    if [[ -n $group ]]; then
        kill -TERM -- "-$group" 2>/dev/null
        sleep 0.5
        kill -KILL -- "-$group" 2>/dev/null
    fi
    bound_files
    write_table
    exit "$1"
}

# ---- steps -----------------------------------------------------------------------------------------

probe() {
    local tool lines
    for tool in nvidia-smi nvcc cmake ninja gcc compute-sanitizer ncu cuobjdump python3; do
        lines=$(have "$tool" && "$tool" --version 2>&1 || echo missing)
        printf '%s: %s\n' "$tool" "${lines//$'\n'/ | }"
    done
    uname -srm
    nvidia-smi --format=csv --query-gpu=name,driver_version,compute_cap,memory.total,pcie.link.gen.max ||
        note "no nvidia-smi"
}

# For the GPU at hand alone, as that is quicker; without one for all that are supported. Warnings of
# another compiler are no errors.
build() {
    local options=(-DHPS_CUDA=ON) processor
    processor=$(capability)
    if ((${#sim[@]})); then
        options=(-DHPS_CUDA=OFF)
    elif [[ -n $processor ]]; then
        options+=("-DCMAKE_CUDA_ARCHITECTURES=${processor/./}-real")
    fi
    if [[ -e $built/CMakeCache.txt && $(<"$built/CMakeCache.txt") != *"
CMAKE_HOME_DIRECTORY:INTERNAL=$PWD/tests/gpu
"* ]]; then
        rm -rf "$built" # it was copied or moved
    fi
    cmake -G Ninja -S tests/gpu -B "$built" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DHPS_WERROR=OFF \
        "${options[@]}" && ninja -C "$built" gpu_bench
}

bench() { # NAME...
    local status=0
    "$programs/gpu_bench$variant" "${sim[@]}" --json "$out/results.jsonl" "$@" || status=$?
    if ((status == 2)); then
        not_run "gpu_bench$variant does not know $*"
        return 0
    fi
    return "$status"
}

# Each check in a process of its own, because an error of CUDA stays with the process.
conformance() {
    local check names status failed=0
    mapfile -t names < <("$programs/gpu_bench" checks --list)
    for check in "${names[@]}"; do
        status=0
        within $((check_limit * slow)) "$programs/gpu_bench" checks "${sim[@]}" \
            --json "$out/results.jsonl" "$check" || status=$?
        case $status in
            0) continue ;;
            "$NO_TIME") note "not run: conformance: $check: no time was left" && continue ;;
            1) note "conformance: $check: failed, see log.txt" ;;
            *) # it could not report that itself
                report conformance "$check" holds 0 1
                note "conformance: $check: exit code $status"
                ;;
        esac
        failed=1
    done
    return "$failed"
}

# It keeps the driver loaded, too, which else takes seconds to open a device again.
with_clocks() {
    if have nvidia-smi; then
        {
            nvidia-smi --format=csv -lms 250 \
                --query-gpu=timestamp,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,temperature.gpu,power.draw |
                keep clocks.csv
        } >/dev/null 2>&1 &
    fi
    "$@"
}

# As text where there is a disassembler; else the text that came with the programs, for all GPUs if it
# is not known which one this is; else the program that holds it, if it was made here.
code() {
    local processor carried
    processor=$(capability)
    carried=("$programs"/code_sm_"${processor/./}"*.sass)
    if have cuobjdump; then
        cuobjdump --dump-sass ${processor:+-arch "sm_${processor/./}"} "$programs/gpu_bench" | keep code.sass
    elif [[ -e ${carried[0]} ]]; then
        cat "${carried[@]}" | keep code.sass
    elif [[ $programs == "$built" && ${#sim[@]} -eq 0 ]]; then
        keep gpu_bench <"$programs/gpu_bench"
    else
        not_run "no cuobjdump"
    fi
}

variant() { # NAME
    local variant=_${1:-}
    if [[ ! -x $programs/gpu_bench$variant ]]; then
        not_run "there is no such program"
    elif variant_holds $((($(left) + 1) / 2)) "${variant_checks[@]}"; then
        # shellcheck disable=SC2086 # names
        bench ${variant_benches[$1]:-gather_small} && variant_holds "$(left)" "$variant_race"
    else
        note "not measured: $name: its checks did not pass"
        return 1
    fi
}

variant_holds() { # SECONDS CHECK...: false: one of them fails
    local status=0
    within "$1" "$programs/gpu_bench$variant" checks "${sim[@]}" "${@:2}" || status=$?
    if ((status == 137 || status == NO_TIME)); then
        note "$name: no time for all of its checks: ${*:2}"
    elif ((status != 0)); then
        note "$name: failed: one of ${*:2}"
        return 1
    fi
}

profile() {
    local one status
    if ! have ncu; then
        not_run "no ncu"
        return
    fi
    for one in "${profiles[@]}"; do
        status=0
        within "$profile_limit" ncu --clock-control none -k "regex:${one#*:}" --launch-skip 1 \
            --launch-count 1 --section SpeedOfLight --section MemoryWorkloadAnalysis --section Occupancy \
            --section LaunchStats "$programs/gpu_bench" "profile_${one%:*}" 2>&1 | keep profile.txt ||
            status=${PIPESTATUS[0]}
        if ((status == NO_TIME)); then
            not_run "profile_${one%:*}: no time was left"
        elif ((status != 0)); then
            note "profile_${one%:*}: exit code $status, see profile.txt"
        fi
    done
}

sanitize() { # TOOL: one check after the other, small ones
    local check line rest seen
    if ! have compute-sanitizer; then
        not_run "no compute-sanitizer"
        return
    fi
    for check in "${sanitized_checks[@]}"; do
        seen=
        if (($(left) < 1)); then
            not_run "$check: no time was left"
            continue
        fi
        while rest=$(left) && ((rest > 0)) && IFS= read -r -t "$rest" line; do
            printf '%s\n' "$line"
            if [[ $line =~ ERROR\ SUMMARY:\ ([0-9]+)\ error ]]; then
                seen=1
                report "$1" "$check" errors "${BASH_REMATCH[1]}" 0
            fi
        done < <(compute-sanitizer --tool "$1" "$programs/gpu_bench" checks "$check" 2>&1)
        if [[ -z $seen ]]; then
            note "$name: $check: no result, see log.txt"
        fi
    done
}

torch() {
    bench --torch bench/gpu/torch_gather.py torch || return
    if [[ $(<"$out/results.jsonl") != *'"metric":"torch / lookup'* ]]; then
        not_run "python3 has no torch, or not one that sees the device; only hpsd was measured"
    fi
}

daemon() {
    local limit
    limit=$(left)
    if [[ ! -x $bundle/try.sh ]]; then
        not_run "there is no $bundle/try.sh; ./dev gpu-bundle makes it"
        return
    fi
    "$bundle/try.sh" "${sim[@]}" --limit $((limit > 2 ? limit - 2 : 1)) --out "$out"
}

# ---- a part ----------------------------------------------------------------------------------------

# The programs that are carried if they start, else those that were built here.
find_programs() {
    local folder
    for folder in "$@"; do
        if limited 5 "$folder/gpu_bench" checks --list >/dev/null 2>&1; then
            programs=$folder
            return 0
        fi
    done
    return 1
}

find_commit() {
    commit=unknown
    if [[ (-n $programs || $part == 3) && -r $bundle/commit.txt ]]; then
        commit=$(<"$bundle/commit.txt")
    elif have git; then
        commit=$(git -c safe.directory="$PWD" describe --always --exclude="*" --abbrev=40 --dirty=", changed" 2>/dev/null ||
            echo unknown)
    fi
}

# The table anew: all results so far, and the steps that will not run if the script ends now.
write_table() {
    local line one met
    local result='^\{"bench":"([^"]*)","case":"([^"]*)","metric":"([^"]*)","value":([^,]*),"unit":"([^"]*)"'
    result+='(,"target":([^,]*),"met":(true|false))?\}$'
    {
        printf '# GPU run, part %s\n\n- commit: %s\n- programs: %s\n- date: %s\n' "$part" "$commit" \
            "${programs#"$PWD"/}" "$(date -u +%Y-%m-%d)"
        if ((${#sim[@]})); then
            echo "- **on the simulated device: these figures mean nothing**"
        fi
        while IFS= read -r line; do
            printf -- '- %s\n' "$line"
        done <"$out/notes.txt"
        if ((at < ${#names[@]})); then
            printf -- '- %s: the run was stopped in it\n' "${names[at]}"
        fi
        for one in "${names[@]:at+1}"; do
            printf -- '- not run: %s: the run was stopped before it\n' "$one"
        done
        printf '\n| bench | case | metric | value | unit | target | met |\n|---|---|---|---:|---|---:|---|\n'
        while IFS= read -r line; do
            if [[ $line =~ $result ]]; then
                met=${BASH_REMATCH[8]/true/yes}
                printf '| %s | %s | %s | %s | %s | %s | %s |\n' "${BASH_REMATCH[@]:1:5}" \
                    "${BASH_REMATCH[7]}" "${met/false/**no**}"
            fi
        done <"$out/results.jsonl"
    } >"$out/results.md.new" && mv -f "$out/results.md.new" "$out/results.md"
}

# For a kill that cannot be handled: the table as it is while the step runs, as part of its group.
keep_table() {
    while sleep 1; do
        if [[ $out/results.jsonl -nt $out/results.md || $out/notes.txt -nt $out/results.md ]]; then
            write_table
        fi
    done
}

# Cut files of this run that are too large, and remove those that are too many. Files that were in
# DIR before are not touched.
declare -A foreign
bound_files() {
    local file n=5 # with the next results.md
    for file in "$out"/*; do
        if [[ -n ${foreign[$file]:-} ]]; then
            continue
        fi
        if [[ -f $file ]]; then
            truncate -c -s "<${file_kib_max}K" "$file"
        fi
        case ${file##*/} in results.md | results.jsonl | notes.txt | log.txt) continue ;; esac
        if ((++n > files_max)); then
            note "removed: ${file##*/}: more than $files_max files"
            rm -rf "$file"
        fi
    done
}

# tee goes on when the file is full, as it ignores the signal. The status is the command's.
logged() {
    keep_table &
    "$@" 2>&1 | (trap '' XFSZ && ulimit -f "$file_kib_max" && exec tee -p -a "$out/log.txt")
    return "${PIPESTATUS[0]}"
}

step() { # SECONDS COMMAND...: run the step `name`
    local status=0 limit=$1 began=$SECONDS
    shift
    printf '\n==> %s (at most %s s)\n' "$name" "$limit" | tee -p -a "$out/log.txt"
    write_table
    deadline=$((SECONDS + limit - 1)) # before it is stopped
    limited "$limit" logged "$@" || status=$?
    if ((status == 143 || status == 137)); then
        note "$name: stopped after $limit s; what it had found by then is in the table"
    elif ((status != 0)); then
        note "$name: exit code $status, see log.txt"
    fi
    if ((status != 0)) && [[ ${#sim[@]} -gt 0 || $must_pass == *" $name "* ]]; then
        failed+=("$part/$name")
    fi
    printf '    %s took %d s\n' "$name" $((SECONDS - began)) | tee -p -a "$out/log.txt"
    return "$status"
}

# The steps of the part: names, limits, commands; one for each variant.
read_steps() {
    local one limit command variants=() sum=0
    names=() limits=() commands=()
    while read -r one limit command; do
        ((sum += limit))
        if [[ $one == variants && -r $programs/variants.txt ]]; then
            mapfile -t variants <"$programs/variants.txt"
            for one in "${variants[@]#gpu_bench_}"; do
                names+=("variant $one") limits+=($((limit * slow / ${#variants[@]}))) commands+=("variant $one")
            done
        elif [[ $one != build || -z $programs ]]; then # they are carried
            names+=("$one") limits+=($((limit * slow))) commands+=("$command")
        fi
    done <<<"${tables[part]}"
    if ((sum > part_limits[part])); then
        echo "run.sh: the limits of part $part sum to $sum s" >&2
        exit 2
    fi
}

# Seconds for the next step: its own, up to three times that if steps before it have left some of
# theirs, and no more than the part has.
next_limit() {
    local own=${limits[at]} rest=$((part_limit - 2 - SECONDS)) later=0 one limit
    for one in "${limits[@]:at+1}"; do
        ((later += one))
    done
    limit=$((rest - later < 3 * own ? rest - later : 3 * own))
    limit=$((limit > own ? limit : own))
    echo $((limit < rest ? limit : rest))
}

run_part() { # NUMBER DIR
    local one limit status why=
    part=$1 out=$2 SECONDS=0 name='' at=0 commit='' programs='' names=()
    part_limit=${limit_given:-$((part_limits[part] * slow))}
    mkdir -p "$out" || exit 2
    rm -f "$out"/{results.md,results.jsonl,notes.txt,log.txt,code.sass,gpu_bench,clocks.csv,profile.txt,hpsd.log}
    for one in "$out"/*; do
        foreign[$one]=1
    done
    : >"$out/results.jsonl" && : >"$out/notes.txt" || exit 2
    trap 'stop 130' INT
    trap 'stop 143' TERM
    trap 'stop 129' HUP
    find_programs "$bundle/bin"
    find_commit
    read_steps
    for ((at = 0; at < ${#names[@]}; at++)); do
        name=${names[at]}
        limit=$(next_limit)
        if [[ -z $why ]] && ((limit < 1)); then
            why="no time was left"
        fi
        if [[ -n $why ]]; then
            not_run "$why"
            continue
        fi
        status=0
        # shellcheck disable=SC2086 # a command of the table
        step "$limit" ${commands[at]} || status=$?
        if [[ $name == build ]] && { ((status != 0)) || ! find_programs "$built"; }; then
            why="there are no programs for it"
        elif [[ $name == device ]] && ((status != 0 && status != 143 && status != 137)); then
            why="no device that can be used"
        fi
        bound_files
    done
    note "took $SECONDS s"
    write_table
    printf '\n%s\n' "$out/results.md"
}

sim=() part='' limit_given='' folder='' slow=1 failed=() variant=''
while (($#)); do
    case $1 in
        --sim) sim=(--sim) slow=4 ;;
        --part) [[ ${2:-} == [123] ]] || usage && part=$2 && shift ;;
        --limit) [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || usage && limit_given=$2 && shift ;;
        --out) [[ -n ${2:-} ]] || usage && folder=$2 && shift && [[ $folder == /* ]] || folder=$from/$folder ;;
        *) usage ;;
    esac
    shift
done
pipe=$(mktemp -d) && mkfifo "$pipe/alive" || exit 2
exec {life}<>"$pipe/alive"
exec {alive}<"$pipe/alive"
rm -r "$pipe"
folder=${folder:-build/gpu}
if [[ -n $part ]]; then
    run_part "$part" "$folder"
else
    for one in 1 2 3; do
        run_part "$one" "$folder/part$one"
    done
fi
if ((${#failed[@]})); then
    printf 'gpu: FAILED: %s\n' "${failed[*]}" >&2
    exit 1
fi
