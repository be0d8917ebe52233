#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# try.sh [--sim] [--limit SECONDS] [--out DIR] [--work DIR] [--driver-dir DIR]: hpsd of this bundle, end
# to end over gRPC on this machine, in steps with a limit each, 100 s in all:
#
#     verified   every row of the answers is compared with what hps-gen wrote
#     orders     each order of the tiers (lookup_path), by keys per table and request
#     claims     1 to 65,536 keys per table, from the host map on 16 and on 1 threads, from RocksDB alone
#     hit_rate   50 to 100 % of the rows cached, hit_rate_threshold 0 and 1.1
#
# RocksDB is loaded once. The cases that read from it come first, because their starts load nothing.
#
# Each result is a line of DIR/results.jsonl (default ./out) as soon as it is known. DIR/notes.txt lists
# what a limit left out ("not run") and what failed; DIR/hpsd.log has the ends of the logs. All are
# appended to. Exit code 1: a row was wrong, or a step failed. Without a GPU the rows come from the host.
#
# --sim         on the simulated device (hpsd-sim), with a small model
# --limit       of the whole run (default 100)
# --work        where the work folder is made (default /tmp), which is removed at the end
# --driver-dir  where libcuda.so.1 lies, if not in the usual places
#
# When this script or its parent is killed, a guard ends hpsd and removes the work folder. Needs a POSIX
# shell, sed, grep, mktemp, tail and sleep; bash to read the number of insertions.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
bin=$here/bin
program=hpsd slack=1 limit=100 out=out parent=/tmp driver=
tables=26 rows=200000 seconds=0.6 sizes="1 64 2048 8192" claims="1 32 1024 8192 65536" keys=1024

# ---- ends --------------------------------------------------------------------------------------------

# The end of what the programs have logged.
keep_log() {
    if [ -s "$work/log" ]; then
        tail -c 262144 "$work/log" >>"$out/hpsd.log"
        : >"$work/log"
    fi
}

# runs PID: whether it does; $stat: its state, its parent and what else /proc says of it.
runs() {
    { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 1
    stat=${stat##*) }
    case $stat in Z*) return 1 ;; esac
}

# Without the work folder launch starts no program; once those that run have ended, nothing writes there.
clean() {
    keep_log
    mv "$work" "$work.ended"
    for file in "$work.ended"/*.pid; do
        if read -r pid <"$file"; then
            kill -KILL "$pid" || true
            while runs "$pid"; do sleep 0.05; done
        fi
    done 2>/dev/null
    rm -rf "$work.ended"
}

# guard PID PARENT: cleans when process PID asks for it, has ended, or is no longer PARENT's child.
guard() {
    trap '' HUP INT TERM
    while [ ! -e "$work/over" ] && runs "$1"; do
        case $stat in
        ?" $2 "*) sleep 0.1 ;;
        *) kill -KILL "$1" ;;
        esac
    done
    clean
}

# shellcheck disable=SC2317 # by the trap
finish() {
    trap '' HUP INT TERM
    : >"$work/over"
    wait
}

if [ "${1:-}" = --guard ]; then
    work=$2 out=$3
    guard "$4" "$5"
    exit
fi

# ---- arguments ---------------------------------------------------------------------------------------

usage() {
    sed -n 's/^# \(try\.sh .*DIR\]\):.*/usage: \1/p' "$0" >&2
    exit 2
}

while [ $# -gt 0 ]; do
    if [ "$1" = --sim ]; then
        program=hpsd-sim slack=10 # any machine, whatever else it does
        tables=4 rows=3000 seconds=0.05 sizes="1 64" claims="1 256" keys=64
        shift
        continue
    fi
    [ $# -ge 2 ] || usage
    case $1 in
    --limit) limit=$2 ;;
    --out) out=$2 ;;
    --work) parent=$2 ;;
    --driver-dir) driver=$2 ;;
    *) usage ;;
    esac
    shift 2
done
case $limit in '' | *[!0-9]*) usage ;; esac

mkdir -p "$out"
out=$(cd "$out" && pwd -P)
parent=$(cd "$parent" && pwd -P)
work=$(mktemp -d "$parent/hpsd-try.XXXXXX")
json=$out/results.jsonl
log=$work/log
failed=0
daemon=
bench=
case $work/ in "$out"/*)
    rmdir "$work"
    echo "try: the work folder $work is in $out; give another --work" >&2
    exit 2
    ;;
esac

: >"$log"
# In a process group of its own: it outlives what ends this one.
$(command -v setsid || true) sh "$0" --guard "$work" "$out" $$ "$PPID" >/dev/null 2>&1 &
trap 'finish' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# ---- steps and results -------------------------------------------------------------------------------

clock() { read -r now _ </proc/uptime && now=${now%.*}; }
in_time() { clock && left=$((due - now)) && [ "$left" -gt 0 ]; }
note() { echo "$*" | tee -a "$out/notes.txt"; }
not_run() { note "not run: $bench: $*"; }
fail() { note "failed: $bench: $*" && failed=1; }
# ended CASE: its program did not do its work, for want of time or by a failure.
ended() {
    if in_time; then fail "$1: $(sed '$!d' "$log")"; else not_run "$1"; fi
}

clock
end=$((now + limit))
planned=$now

# step NAME SECONDS CASES: false if no time is left for it. It may use what the steps before it have left.
step() {
    stop
    bench=hpsd_$1
    clock
    planned=$((planned + $2 * slack))
    due=$planned
    [ "$due" -le "$end" ] || due=$end
    [ "$now" -lt "$end" ] || { not_run "$3: no time was left" && return 1; }
}

report() { # CASE METRIC VALUE UNIT [,"target":...,"met":...]
    printf '{"bench":"%s","case":"%s","metric":"%s","value":%s,"unit":"%s"%s}\n' \
        "$bench" "$1" "$2" "$3" "$4" "${5:-}" >>"$json"
    echo "$bench: $1: $2 $3 $4"
}

# ratio A B: A / B with three decimals.
ratio() {
    if [ "$2" -gt 0 ]; then
        printf '%d.%03d' $(($1 / $2)) $(($1 % $2 * 1000 / $2))
    else
        echo 0
    fi
}

# ---- programs ----------------------------------------------------------------------------------------

# launch NAME ARGUMENT...: in the background. Its pid is in a file before it runs, for clean; its output, too.
launch() {
    name=$1
    shift
    : >"$work/$name.out"
    # shellcheck disable=SC2016 # of that shell
    sh -c 'echo $$ >"$0" && exec "$@"' "$work/$name.pid" "$@" >"$work/$name.out" 2>>"$log" &
    pid=$!
}

# await NAME PID: its exit code; it is killed when the step has no time left.
await() {
    while runs "$2"; do
        in_time || kill -KILL "$2" 2>/dev/null || true
        sleep 0.05
    done
    code=0
    wait "$2" 2>/dev/null || code=$? # a shell reports a program that was killed
    rm -f "$work/$1.pid"
    return $code
}

stop() {
    if [ -n "$daemon" ]; then
        kill -TERM "$daemon" 2>/dev/null || true
        clock
        due=$((now + 5))
        [ "$due" -le "$end" ] || due=$((end + 1))
        await daemon "$daemon" || true
        case $code in 0 | 137 | 143) ;; *) fail "hpsd ended with exit code $code" ;; esac
        daemon=
        keep_log
    fi
}

# start LOOKUP_PATH VOLATILE GPUCACHE GPUCACHEPER THRESHOLD THREADS: hpsd, ready. THREADS 0: as many as it
# takes by itself. $device: its device, or none. A host map is the only store: it gets all rows by a load
# alone, and RocksDB would double the time of that. RocksDB keeps its rows for the next start.
start() {
    state=$work/state store='s/^//' # none to delete
    if [ "$2" != disabled ]; then
        state=$work/map store='/"persistent_db"/d'
    fi
    mkdir -p "$state"
    server="\"listen\": [\"127.0.0.1:0\"], \"http_listen\": \"127.0.0.1:0\", \"state_dir\": \"$state\","
    server="$server \"admin_listen\": \"unix:$work/admin\", \"drain_delay_ms\": 0, \"drain_timeout_ms\": 1000,"
    server="$server \"lookup_path\": \"$1\", \"loop_threads\": $6, \"worker_threads\": $6, \"hot_keys_bytes\": 0"
    sed -e "$store" -e "s|\"volatile_db\": {[^}]*}|\"volatile_db\": {\"type\": \"$2\"}|" \
        -e "s|\"gpucache\": true|\"gpucache\": $3|" -e "s|\"gpucacheper\": [0-9.]*|\"gpucacheper\": $4|" \
        -e "s|\"hit_rate_threshold\": [0-9.]*|\"hit_rate_threshold\": $5|" \
        -e "s|\"supportlonglong\": true,|\"supportlonglong\": true, \"server\": {$server},|" \
        "$work/model/ps.json" >"$work/config.json"
    launch daemon "$bin/$program" ${driver:+--driver-dir "$driver"} --config "$work/config.json"
    daemon=$pid
    until grep -q '^ready' "$work/daemon.out"; do
        if ! runs "$daemon" || ! in_time; then
            ended "the start of hpsd"
            return 1
        fi
        sleep 0.05
    done
    grpc=$(sed -nE 's/^ready .*grpc=([^ ,]+).*/\1/p' "$work/daemon.out")
    http=$(sed -nE 's/^ready .*http=([^ ,]+).*/\1/p' "$work/daemon.out")
    [ "$3" = true ] || return 0
    device=$("$bin/hpsctl" --addr "unix:$work/admin" status | sed -n 's/^gpu  *yes .*  device/device/p')
    device=${device:-none}
    [ -n "$reported" ] || (bench=hpsd_device && report "$device" devices $((${#device} > 4)) "")
    reported=yes
}
device='' reported=''

# with_device CASE LOOKUP_PATH VOLATILE...: start for a case of the device. False: it cannot be measured.
with_device() {
    needs=$1
    shift
    if [ "$device" != none ]; then
        start "$@" || return 1
    fi
    [ "$device" != none ] || { not_run "$needs: no device" && return 1; }
}

# ask CASE ARGUMENT...: a load of $seconds; what hps-bench found is in $said, in JSON.
ask() {
    asked=$1
    shift
    in_time || { not_run "$asked" && return 1; }
    launch load "$bin/hps-bench" --addr "$grpc" --admin "unix:$work/admin" --model m --quiet -o json \
        --timeout "$left" --duration $seconds "$@"
    await load "$pid" || [ $code = 5 ] || { ended "$asked" && return 1; }
    said=$(cat "$work/load.out")
}
number() { echo "$said" | sed -nE "s/.*\"$1\":([0-9]+).*/\1/p"; }

# verify CASE ARGUMENT...: as ask; all rows are compared.
verify() {
    ask "$@" --verify || return 1
    wrong=$(number rows_wrong)
    met=true
    [ "$wrong" = 0 ] || { met=false && fail "$1: $wrong rows were wrong"; }
    (bench=hpsd_verified && report "$1" "rows compared" "$(number rows_checked)" rows &&
        report "$1" "wrong rows" "$wrong" rows ",\"target\":0,\"met\":$met")
}

# Clock ticks that hpsd has had of all CPUs.
ticks() {
    runs "$daemon" || true
    # shellcheck disable=SC2086 # words
    set -- $stat
    echo $((${12} + ${13}))
}

# measure CASE ARGUMENT...
measure() {
    before=$(ticks)
    ask "$@" || return 1
    used=$(($(ticks) - before))
    report "$1" p50 "$(number p50)" us
    report "$1" p99 "$(number p99)" us
    report "$1" "keys/s" "$(number keys_per_s)" /s
    report "$1" "CPU of hpsd per million keys" "$(ratio $((used * 1000000 / hz)) "$(number keys)")" s
    found=$(number gpu)
    if [ -n "$found" ]; then
        report "$1" "unique keys from the GPU" "$(ratio $((100 * found)) "$(number unique_keys)")" %
    fi
}

# sizes CASE SIZE...: one caller, who sees latency, and many, who see throughput. More than 8,192 keys are
# for one caller alone: such a request takes all workers by itself.
sizes() {
    served=$1
    shift
    for size; do
        measure "$served, $tables x $size keys, 1 caller" --keys "$size" --concurrency 1 || return 1
        [ "$size" -le 8192 ] || continue
        measure "$served, $tables x $size keys, $callers callers" --keys "$size" --concurrency 1 \
            --connections "$callers" --threads "$callers" || return 1
    done
}

# ---- the run -----------------------------------------------------------------------------------------

hz=$(getconf CLK_TCK 2>/dev/null || echo 100)
callers=$(($(grep -c '^processor' /proc/cpuinfo) / 2))
[ "$callers" -ge 2 ] || callers=2
"$bin/$program" --version
note "$tables tables of $rows rows, dim 32, fp32"

if step model 15 all; then
    launch gen "$bin/hps-gen" --tables $tables --rows $rows --dim 32 --format npy --model m \
        --out "$work/model" --state-dir "$work/state"
    if await gen "$pid"; then
        start auto disabled true 1.0 1.1 0 || true
    else
        ended "hps-gen"
    fi
fi
[ -e "$work/model/ps.json" ] || exit $failed

# orders CASE: of the hpsd that runs.
orders() {
    for size in $sizes; do
        verify "$1, $tables x $size keys" --keys "$size" --zipf 1.05 --concurrency 4 &&
            sizes "$1" "$size" || return 0
    done
}
if step orders 11 gpu && with_device gpu gpu disabled true 1.0 1.1 0; then orders gpu; fi

insertions() {
    # shellcheck disable=SC2016 # of that shell
    bash -c 'exec 3<>"/dev/tcp/${0%:*}/${0##*:}" &&
        printf "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" >&3 && cat <&3' "$http" |
        sed -nE 's/^hpsd_insertion_rows_total\{tier="gpu",mode="async"\} ([0-9]+).*/\1/p'
}

# hit_rate SHARE THRESHOLD POLICY: keys of which the cache has room for SHARE %.
hit_rate() {
    asked="room for $1 % of the keys, threshold $2"
    before_rows=$(insertions)
    measure "$asked" --tables "$names" --rows $((room * 100 / $1)) --keys $keys --seed "1$1" \
        --concurrency 1 --miss-policy "$3" || return 1
    report "$asked" defaulted "$(ratio $((100 * $(number defaulted_keys))) "$(number keys)")" %
    us=$(echo "$said" | sed -nE 's/.*"seconds":([0-9]+)\.([0-9]{6}).*/\1\2/p' | sed 's/^0*//')
    if [ -n "$before_rows" ]; then
        report "$asked" insertions $((($(insertions) - before_rows) * 1000000 / us)) /s
    fi
}

# Rows 0 to N-1 are asked for alike, N ever larger, so that what is cached stays among them.
hit_rates() {
    with_device all gpu disabled true 0.1 0 0 || return 0
    room=$((rows / 10))
    names=$(sed -n 's/.*"embedding_table_names": \[\(.*\)\].*/\1/p' "$work/model/ps.json" | sed 's/[" ]//g')
    for seed in 1 2 3 4; do
        verify "while the cache fills, $seed" --tables "$names" --rows $room --keys $keys \
            --seed $seed --miss-policy exact --concurrency 4 || return 0
    done
    for share in 125 100 90 80 70 60 50; do
        hit_rate $share 0 table && hit_rate $share 1.1 exact || return 0
    done
}
if step hit_rate 14 all; then hit_rates; fi

claims() { # CASE VOLATILE THREADS
    start host "$2" false 0 1.1 "$3" || return 0
    verify "$1" --keys $keys --concurrency 4 || return 0
    # shellcheck disable=SC2086 # words
    sizes "$1" $claims || true
}
if step claims 9 "RocksDB alone"; then claims "RocksDB alone" disabled 0; fi

if step orders 14 auto && start auto parallel_hash_map true 1.0 1.1 0; then
    case $device in none) orders "host, no device" ;; *) orders auto ;; esac
fi
if step claims 12 "host map, 16 threads"; then claims "host map, 16 threads" parallel_hash_map 16; fi
if step orders 13 host && with_device host host parallel_hash_map true 1.0 1.1 0; then orders host; fi
if step claims 12 "host map, 1 threads"; then claims "host map, 1 threads" parallel_hash_map 1; fi
stop
exit $failed
