#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# ./dev demo: a model of DLRM-DCNv2's shape from nothing to verified look-ups, and a restart without its
# files. Everything lives in build/demo and on free ports of 127.0.0.1, and is gone at the end.
# `--keep` leaves the daemon running until Ctrl-C.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."

bin=$PWD/build/bin
python=/usr/bin/python3 # the one that Debian's packages are for
demo=$PWD/build/demo
model=$demo/models/dlrm/1
state=$demo/state
log=$demo/hpsd.log
pid=
keep=${1:-}

cleanup() {
    local status=$?
    trap - EXIT INT TERM
    if [[ -n $pid ]] && kill -0 "$pid" 2>/dev/null; then
        kill -QUIT "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    fi
    if ((status != 0)) && [[ -s $log ]]; then
        printf '\ndemo: stopped (%d); the end of the log of hpsd:\n' "$status" >&2
        tail -n 20 "$log" >&2
    fi
    rm -rf "$demo"
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

step() { printf '\n\033[1m%s\033[0m\n' "$*"; }
shown() {
    printf '\033[2m$ %s\033[0m\n' "$1"
    shift
    "$@"
}
now_ms() { date +%s%3N; }

# Share of the load that is done, in percent, as Prometheus would read it.
progress() {
    local reply
    {
        printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
        reply=$(sed -nE 's/^hpsd_model_load_progress_ratio\{.*\} ([0-9.]+).*/\1/p' <&3)
    } 3<>"/dev/tcp/${http%:*}/${http##*:}"
    awk -v ratio="${reply:-0}" 'BEGIN { printf "%d", 100 * ratio }'
}

# Start hpsd, wait for its one line on stdout, and for every model.
start() {
    local line began
    began=$(now_ms)
    mkfifo "$demo/stdout"
    "$bin/hpsd" --config "$demo/hpsd.json" >"$demo/stdout" 2>>"$log" &
    pid=$!
    if ! IFS= read -r line <"$demo/stdout"; then
        echo "demo: hpsd ended before it was ready to listen" >&2
        exit 1
    fi
    rm "$demo/stdout"
    grpc=$(sed -E 's/.* grpc=([^ ,]+).*/\1/' <<<" $line")
    http=$(sed -E 's/.* http=([^ ]+).*/\1/' <<<" $line")
    admin=$(sed -E 's/.* admin=([^ ]+).*/\1/' <<<" $line")
    export HPSD_ADDR=$admin
    until "$bin/hpsctl" ping >/dev/null 2>&1; do
        if ! kill -0 "$pid" 2>/dev/null; then
            echo "demo: hpsd ended while it loaded" >&2
            exit 1
        fi
        if [[ -t 2 ]]; then
            printf '\r   loading: %3d %% ' "$(progress)" >&2
        fi
        sleep 0.05
    done
    took_ms=$(($(now_ms) - began))
    if [[ -t 2 ]]; then
        printf '\r' >&2
    fi
    if ((took_ms < 1000)); then
        took="$took_ms ms"
    else
        took="$((took_ms / 1000)).$((took_ms % 1000 / 100)) s"
    fi
}

rm -rf "$demo"
mkdir -p "$state" "$demo/models/dlrm"

step "1. A model of DLRM-DCNv2's shape: 26 tables of width 128, a hundredth of the rows"
shown "hps-gen --preset dlrm-dcnv2 --scale 0.01 --out build/demo/models/dlrm/1" true
if ! "$bin/hps-gen" --preset dlrm-dcnv2 --scale 0.01 --out "$model" --state-dir "$state" >"$demo/gen.log" 2>&1; then
    cat "$demo/gen.log" >&2
    exit 1
fi
echo "   $(du -sh --si "$model" | cut -f1) of files that HugeCTR would have written, and a ps.json"

# The ps.json of the generator as it is, plus one object that is ours: where to listen.
"$python" - "$model/ps.json" "$demo/hpsd.json" "$state" <<'PYTHON'
import json
import sys

source, target, state = sys.argv[1:]
with open(source, encoding="utf-8") as f:
    config = json.load(f)
config["server"] = {"listen": ["127.0.0.1:0"], "http_listen": "127.0.0.1:0", "state_dir": state,
                    "admin_listen": f"unix:{state}/admin.sock", "drain_delay_ms": 0}
config["persistent_db"] = {"type": "rocks_db", "path": state}
config["volatile_db"] = {"type": "parallel_hash_map"}
with open(target, "w", encoding="utf-8") as f:
    json.dump(config, f, indent=2)
PYTHON

step "2. hpsd loads it into RocksDB (kept) and into memory (fast)"
start
echo "   ready after $took: gRPC on $grpc, metrics on http://$http/metrics"
shown "hpsctl models" "$bin/hpsctl" models

step "3. Look-ups over gRPC, every row checked against the generator's formula"
shown "hps-bench --model dlrm --keys 64 --zipf 1.05 --duration 3 --verify" \
    "$bin/hps-bench" --addr "$grpc" --admin "$admin" --model dlrm --keys 64 --zipf 1.05 --duration 3 \
    --verify --quiet
protoc -I proto --python_out="$demo" proto/hps/v1/lookup.proto
shown "python3 docs/examples/verify.py $grpc dlrm ...     # stock grpcio, no code of hpsd" \
    env PYTHONPATH="$demo" "$python" docs/examples/verify.py "$grpc" dlrm "$model"

step "4. Who answered: keys and hits per tier"
shown "hpsctl stats dlrm | head -4" true
"$bin/hpsctl" stats dlrm >"$demo/stats.txt"
head -n 4 "$demo/stats.txt"

step "5. A restart without the model's files: RocksDB has every row"
kill -TERM "$pid" # drains
wait "$pid" || true
mv "$demo/models" "$demo/models-gone"
start
echo "   ready again $took after it was started; rows come from RocksDB until memory is filled behind it"
PYTHONPATH="$demo" "$python" docs/examples/verify.py "$grpc" dlrm "$demo/models-gone/dlrm/1"
"$bin/hpsctl" stats dlrm >"$demo/stats.txt"
head -n 3 "$demo/stats.txt"

step "What next"
cat <<'TEXT'
   ./dev demo --keep                   the same, and the daemon stays up for you to try:
   hpsctl top                          traffic and hit rates, live
   hpsctl load dlrm --from DIR         a new version beside the active one, then: activate, rollback
   hpsctl explain dlrm feature_0 42    what each tier says about one key
   README.md                           your own tables: hpsd --table NAME=FILE.npy --state-dir DIR
TEXT
if [[ $keep == --keep ]]; then
    printf '\nhpsd runs until Ctrl-C; in another terminal:\n  export HPSD_ADDR=%s PATH=%s\n' "$admin" "$bin:\$PATH"
    wait "$pid"
fi
