#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# try.sh [--small] [OUT]: hpsd of this bundle, end to end on this machine. Generates a model, serves it
# with an embedding cache, checks every row that comes back over gRPC, and measures:
#
#     orders      p50, p99 and keys/s by tier order (lookup_path) and keys per table and request
#     threshold   answers below the hit rate's threshold (exact, waited for) and above it (defaulted)
#
# into OUT/results.md and OUT/results.jsonl (OUT: ./out). Exit code 1 if a row was wrong. On a machine
# without a GPU it is served from the host, or with HPS_DEVICE=sim from a simulated device, by hpsd-sim, as a
# trial.
# --small: a tiny model, seconds in all. Needs a POSIX shell, sed, grep and sleep.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
bin=$here/bin
tables=26 rows=200000 seconds=3 sizes="1 64 2048 8192"
if [ "${1:-}" = --small ]; then
    tables=4 rows=3000 seconds=0.5 sizes="1 64 512"
    shift
fi
out=${1:-$here/out}
case $out in /*) ;; *) out=$PWD/$out ;; esac
rm -rf "$out/work"
mkdir -p "$out/work"
out=$(cd "$out" && pwd)
work=$out/work
log=$out/hpsd.log
table=$out/results.md
json=$out/results.jsonl
: >"$json"
: >"$log"
pid=
program=hpsd${HPS_DEVICE:+-sim}
trap 'stop' EXIT
trap 'exit 130' INT TERM

stop() {
    if [ -n "$pid" ]; then
        kill -TERM "$pid" 2>/dev/null || true
        wait "$pid" || true
        pid=
    fi
}

die() {
    echo "try: $*" >&2
    sed -n '$!{h;d;};p' "$log" >&2
    exit 1
}

# start LOOKUP_PATH THRESHOLD VOLATILE: hpsd with an empty embedding cache and all rows below it.
start() {
    sed -e "s|\"gpucacheper\": [0-9.]*|\"gpucacheper\": 1.0|" \
        -e "s|\"gpucache\": true,|\"gpucache\": true, \"init_ec\": false,|" \
        -e "s|\"hit_rate_threshold\": [0-9.]*|\"hit_rate_threshold\": $2|" \
        -e "s|\"volatile_db\": {[^}]*}|\"volatile_db\": {\"type\": \"$3\"}|" \
        -e "s|\"supportlonglong\": true,|\"supportlonglong\": true, \"server\": {\"listen\": [\"127.0.0.1:0\"], \"http_listen\": \"127.0.0.1:0\", \"state_dir\": \"$work/state\", \"admin_listen\": \"unix:$work/admin\", \"drain_delay_ms\": 0, \"lookup_path\": \"$1\"},|" \
        "$work/model/ps.json" >"$work/config.json"
    : >"$work/ready"
    "$bin/$program" --config "$work/config.json" >"$work/ready" 2>>"$log" &
    pid=$!
    until grep -q '^ready' "$work/ready" && "$bin/hpsctl" --addr "unix:$work/admin" ping >/dev/null 2>&1; do
        kill -0 "$pid" 2>/dev/null || { pid= && die "hpsd ended, see $log"; }
        sleep 0.2
    done
    grpc=$(sed -nE 's/^ready .*grpc=([^ ,]+).*/\1/p' "$work/ready")
}

# ask ARGUMENT...: a load; what it found is in $said, in JSON.
ask() {
    said=$("$bin/hps-bench" --addr "$grpc" --admin "unix:$work/admin" --model m --quiet -o json "$@") ||
        { echo "$said" >&2 && die "a look-up failed, or a row was wrong"; }
}
number() { echo "$said" | sed -nE "s/.*\"$1\":([0-9]+).*/\1/p"; }
report() { # CASE METRIC VALUE UNIT
    printf '{"bench":"%s","case":"%s","metric":"%s","value":%s,"unit":"%s"}\n' "$bench" "$1" "$2" "$3" "$4" >>"$json"
}
say() { echo "$@" | tee -a "$table"; }
tiers() { echo "$said" | sed -nE 's/.*"tiers":\{([^}]*)\}.*/\1/p' | sed 's/"//g; s/,/, /g'; }

"$bin/hps-gen" --tables $tables --rows $rows --dim 32 --model m --out "$work/model" \
    --state-dir "$work/state"
: >"$table"
say "# hpsd end to end"
say ""
"$bin/hpsd" --version | sed 's/^/- /' | tee -a "$table"
say "- $tables tables of $rows rows, dim 32, fp32; every row of the verified runs was compared"

# Each order begins with a load, so that all rows are in the host map, and is warmed as it is asked.
bench=orders
for path in host gpu auto; do
    rm -rf "$work/state"
    mkdir "$work/state"
    start $path 1.0 parallel_hash_map
    if [ $path = host ]; then
        "$bin/hpsctl" --addr "unix:$work/admin" status | grep '^gpu' | sed 's/^/- tier /' |
            tee -a "$table" || say "- no device: served from the host map"
        say ""
        say "| order | keys | unique keys by tier | p50 us | p99 us | keys/s |"
        say "|---|---:|---|---:|---:|---:|"
    fi
    ask --keys 512 --zipf 1.05 --requests $((rows * 2 / 512)) --concurrency 4 --verify
    for size in $sizes; do
        ask --keys "$size" --zipf 1.05 --duration $seconds --concurrency 4 --verify
        ask --keys "$size" --zipf 1.05 --duration $seconds --concurrency 4
        say "| $path | $tables x $size | $(tiers) | $(number p50) | $(number p99) | $(number keys_per_s) |"
        report "$path, $tables x $size keys" p50 "$(number p50)" us
        report "$path, $tables x $size keys" p99 "$(number p99)" us
        report "$path, $tables x $size keys" "keys" "$(number keys_per_s)" "per s"
    done
    stop
done

# Each step asks for half as many keys as there are rows, so all become hot in a while.
bench=threshold
start auto 0.9 disabled
say ""
say "Threshold 0.9, rows on disk, none in the host map; cold to warm:"
say ""
say "| step | keys | defaulted | unique keys by tier | p50 us | p99 us |"
say "|---:|---:|---:|---|---:|---:|"
step=0
requests=$((rows / 2 / 512 + 1))
while [ $step -lt 16 ]; do
    step=$((step + 1))
    ask --keys 512 --requests $requests --seed $step --concurrency 1 --verify
    say "| $step | $(number keys) | $(number defaulted_keys) | $(tiers) | $(number p50) | $(number p99) |"
    report "step $step" defaulted "$(number defaulted_keys)" keys
    report "step $step" p50 "$(number p50)" us
    report "step $step" p99 "$(number p99)" us
done
stop
rm -rf "$work"
say ""
say "All rows were right."
