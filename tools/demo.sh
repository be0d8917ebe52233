#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# ./dev demo: generates a model with the shape of DLRM-DCNv2, serves it and verifies lookups. Then it restarts hpsd without
# the model files, compares the tiers, cold and warm, compares row types, and streams rows through Kafka. It uses build/demo
# and free ports of 127.0.0.1, and cleans up at the end. `--keep` leaves the daemon running until Ctrl-C.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."

bin=${HPS_BIN_DIR:-$PWD/build/bin}
program=hpsd
python=/usr/bin/python3 # the Python of the Debian packages
demo=$PWD/build/demo
model=$demo/models/dlrm/1
state=$demo/state
log=$demo/hpsd.log
admin=unix:build/demo/admin.sock # relative: the path of a checkout may be too long for a socket
export HPSD_ADDR=$admin
pid=
broker_pid=
broker_in=
seed=1
keep=${1:-}

cleanup() {
    local status=$?
    trap - EXIT INT TERM
    if [[ -n $pid ]] && kill -0 "$pid" 2>/dev/null; then
        kill -QUIT "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    fi
    broker_stop
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

# The metrics, as Prometheus reads them.
scrape() {
    {
        printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
        cat <&3
    } 3<>"/dev/tcp/${http%:*}/${http##*:}"
}

# Progress of the load in percent.
progress() {
    local ratio
    ratio=$(scrape | sed -nE 's/^hpsd_model_load_progress_ratio\{.*\} ([0-9.]+).*/\1/p')
    awk -v ratio="${ratio:-0}" 'BEGIN { printf "%d", 100 * ratio }'
}

# start CONFIG: start hpsd, wait for its first line on stdout, which has its addresses, and for every model.
start() {
    local line began
    began=$(now_ms)
    mkfifo "$demo/stdout"
    "$bin/$program" --config "$demo/$1.json" >"$demo/stdout" 2>>"$log" &
    pid=$!
    if ! IFS= read -r line <"$demo/stdout"; then
        echo "demo: hpsd exited before it listened" >&2
        exit 1
    fi
    rm "$demo/stdout"
    grpc=$(sed -E 's/.* grpc=([^ ,]+).*/\1/' <<<" $line")
    http=$(sed -E 's/.* http=([^ ]+).*/\1/' <<<" $line")
    kserve=$(sed -E 's/.* kserve=([^ ,]+).*/\1/' <<<" $line")
    until "$bin/hpsctl" ping >/dev/null 2>&1; do
        if ! kill -0 "$pid" 2>/dev/null; then
            echo "demo: hpsd exited during the load" >&2
            exit 1
        fi
        if "$bin/hpsctl" -o json models 2>/dev/null | grep -q '"state":"failed"'; then
            echo "demo: a model failed to load:" >&2
            "$bin/hpsctl" status >&2 || true
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

# Run a broker of tests/lib/kafka.py in the background; it exits when its standard input is closed.
broker_start() {
    local line
    coproc BROKER { exec "$python" tests/lib/kafka.py run 2>"$demo/kafka.log"; }
    # shellcheck disable=SC2153 # bash sets it
    broker_pid=$BROKER_PID
    exec {broker_in}>&"${BROKER[1]}"- {broker_out}<&"${BROKER[0]}"-
    if ! IFS= read -r line <&"$broker_out"; then
        cat "$demo/kafka.log" >&2
        echo "demo: the Kafka broker exited before it was ready" >&2
        exit 1
    fi
    bootstrap=$(sed -E 's/.* bootstrap=([^ ]+).*/\1/' <<<"$line")
}

broker_do() {
    local line
    printf '%s\n' "$*" >&"$broker_in"
    if ! IFS= read -r line <&"$broker_out" || [[ $line != ok ]]; then
        echo "demo: the Kafka broker failed to $*: $line" >&2
        exit 1
    fi
}

broker_stop() {
    if [[ -n $broker_in ]]; then
        exec {broker_in}>&- {broker_out}<&-
        broker_in=
    fi
    if [[ -n $broker_pid ]]; then
        wait "$broker_pid" 2>/dev/null || true
        broker_pid=
    fi
}

stop() { # drains
    kill -TERM "$pid"
    wait "$pid" || true
    pid=
}

# Drop the files of the database from the page cache.
chill() {
    "$python" - "$state" <<'PYTHON'
import os
import sys

for folder, _, names in os.walk(sys.argv[1]):
    for name in names:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            fd = os.open(path, os.O_RDONLY)
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
PYTHON
}

# measure NAME: run skewed lookups for two seconds, with a new seed each time, and save the metrics.
measure() {
    seed=$((seed + 1))
    "$bin/hps-bench" --addr "$grpc" --admin "$admin" --model dlrm --keys 64 --zipf 1.05 --duration 2 \
        --seed "$seed" --quiet -o json >"$demo/$1.bench"
    scrape >"$demo/$1.metrics"
}

rm -rf "$demo"
mkdir -p "$state" "$demo/models/dlrm"

step "1. Generate a model with the shape of DLRM-DCNv2: 26 tables of width 128, with 1 % of the rows"
shown "hps-gen --preset dlrm-dcnv2 --scale 0.01 --out build/demo/models/dlrm/1" true
if ! "$bin/hps-gen" --preset dlrm-dcnv2 --scale 0.01 --out "$model" --state-dir "$state" >"$demo/gen.log" 2>&1; then
    cat "$demo/gen.log" >&2
    exit 1
fi
echo "   $(du -sh --si "$model" | cut -f1) of files in HugeCTR format, and a ps.json"

# The ps.json of the generator with a server object that sets the addresses. Two more have memory for a tenth of the rows,
# and only RocksDB.
"$python" - "$model/ps.json" "$demo" "$state" <<'PYTHON'
import json
import sys

source, target, state = sys.argv[1:]
with open(source, encoding="utf-8") as f:
    config = json.load(f)
for model in config["models"]:
    model["gpucache"] = False
config["server"] = {"listen": ["127.0.0.1:0"], "kserve_listen": ["127.0.0.1:0"], "http_listen": "127.0.0.1:0", "state_dir": state,
                    "admin_listen": "unix:build/demo/admin.sock", "drain_delay_ms": 0}
config["persistent_db"] = {"type": "rocks_db", "path": state}
for name, volatile in (("all", {"type": "parallel_hash_map"}),
                       ("tenth", {"type": "parallel_hash_map", "memory_bytes": "112MiB"}),
                       ("none", {"type": "disabled"})):
    with open(f"{target}/{name}.json", "w", encoding="utf-8") as f:
        json.dump({**config, "volatile_db": volatile}, f, indent=2)
for model in config["models"]:
    model.update(gpucache=True, gpucacheper=0.1, hit_rate_threshold=0.7)
with open(f"{target}/gpu.json", "w", encoding="utf-8") as f:
    json.dump({**config, "volatile_db": {"type": "disabled"}}, f, indent=2)
PYTHON

step "2. hpsd loads it into RocksDB (persistent) and into memory (fast)"
start all
echo "   ready after $took: gRPC on $grpc, metrics on http://$http/metrics"
shown "hpsctl models" "$bin/hpsctl" models

step "3. Lookups over gRPC; every row is checked against the formula of the generator"
shown "hps-bench --model dlrm --keys 64 --zipf 1.05 --duration 2 --verify" \
    "$bin/hps-bench" --addr "$grpc" --admin "$admin" --model dlrm --keys 64 --zipf 1.05 --duration 2 \
    --verify --quiet
protoc -I proto --python_out="$demo" proto/hps/v1/lookup.proto proto/inference/*.proto
shown "python3 docs/examples/verify.py $grpc dlrm ...     # stock grpcio, without the hpsd client" \
    env PYTHONPATH="$demo" "$python" docs/examples/verify.py "$grpc" dlrm "$model"
shown "python3     # the same with the hpsd client" \
    env PYTHONPATH=clients/python "$python" -c "import hpsd
client = hpsd.connect('$grpc', model='dlrm')
print('  ', client.lookup('feature_0', [0, 1, 2]).shape, len(client.model().tables), 'tables')"
shown "python3 docs/examples/kserve.py $grpc $kserve dlrm ...     # like a Triton client of HPS: KEYS, NUMKEYS, OUTPUT0" \
    env PYTHONPATH="$demo" "$python" docs/examples/kserve.py "$grpc" "$kserve" dlrm "$model"
measure all-warm

step "4. A restart without the model files: RocksDB has every row"
stop
mv "$demo/models" "$demo/models-gone"
start all
echo "   ready $took after the start; rows come from RocksDB until hpsd has filled the memory in the background"
measure all-cold
PYTHONPATH="$demo" "$python" docs/examples/verify.py "$grpc" dlrm "$demo/models-gone/dlrm/1"

step "5. The tiers compared: 26 x 64 keys per request, Zipf 1.05, two seconds each"
for budget in tenth none; do
    stop
    chill
    start "$budget"
    measure "$budget-cold"
    measure "$budget-warm"
done
"$python" - "$demo" <<'PYTHON'
import json
import re
import sys

demo = sys.argv[1]
print(f"{'rows in memory':<16}{'':<6}{'keys/s':>12}{'p50 ms':>9}{'p99 ms':>9}{'hits in memory':>16}"
      f"{'bytes/row host':>16}{'rocksdb':>9}")
for budget, text in (("all", "all"), ("tenth", "a tenth"), ("none", "none")):
    for state in ("cold", "warm"):
        with open(f"{demo}/{budget}-{state}.bench", encoding="utf-8") as f:
            run = json.load(f)
        with open(f"{demo}/{budget}-{state}.metrics", encoding="utf-8") as f:
            metrics = f.read()

        def total(name, tier):
            found = re.findall(rf'^hpsd_{name}{{.*tier="{tier}".*}} (\S+)$', metrics, re.MULTILINE)
            return sum(map(float, found))

        def bytes_per_row(tier):
            rows = total("tier_rows", tier)
            return f"{total('tier_used_bytes', tier) / rows:.0f}" if rows else "-"

        hits = run["tiers"].get("host", 0) / max(run["unique_keys"], 1)
        print(f"{text:<16}{state:<6}{run['keys_per_s']:>12,.0f}{run['latency_us']['p50'] / 1e3:>9.1f}"
              f"{run['latency_us']['p99'] / 1e3:>9.1f}{hits:>15.1%} {bytes_per_row('host'):>16}"
              f"{bytes_per_row('rocksdb'):>9}")
print("A row is 512 bytes. Cold: just started, with only those parts of the database in the page cache that\n"
      "the start reads (all: after the restart above, while hpsd fills the memory).")
PYTHON
stop

dtypes=(fp32 fp16 bf16 int8_rowwise_f32 int8_rowwise_f16)
# Load a version of each type from the same files, and look up its rows as float32 and as stored.
narrow() {
    local dtype output
    "$bin/hps-gen" --tables 1 --rows 200000 --dim 128 --format npy --out "$demo/narrow" >"$demo/gen.log" 2>&1
    "$python" - "$demo" <<'PYTHON'
import json
import os
import sys

demo = sys.argv[1]
with open(f"{demo}/all.json", encoding="utf-8") as f:
    config = json.load(f)
os.mkdir(f"{demo}/narrow-state")
config["models"] = []
config["persistent_db"]["path"] = f"{demo}/narrow-state"
config["server"].update(state_dir=f"{demo}/narrow-state", model_roots=[demo])
with open(f"{demo}/narrow.json", "w", encoding="utf-8") as f:
    json.dump(config, f, indent=2)
PYTHON
    start narrow
    for dtype in "${dtypes[@]}"; do
        "$bin/hpsctl" -o json load narrow --from "$demo/narrow" --row-dtype "$dtype" --activate >"$demo/$dtype.load"
        for output in fp32 raw; do
            "$bin/hps-bench" --addr "$grpc" --admin "$admin" --model narrow --keys 4096 --duration 1 --quiet -o json \
                --output-type "$output" >"$demo/$dtype.$output"
        done
        scrape >"$demo/$dtype.metrics"
    done
    stop
    "$python" - "$demo" "${dtypes[@]}" <<'PYTHON'
import json
import re
import sys

demo, dtypes = sys.argv[1], sys.argv[2:]
print(f"{'rows':<18}{'bytes/row: host':>16}{'rocksdb':>9}{'keys/s: float32':>17}{'stored':>12}{'largest error':>15}{'mean':>10}")
for version, dtype in enumerate(dtypes, 1):
    with open(f"{demo}/{dtype}.load", encoding="utf-8") as f:
        made = (json.loads(f.read().splitlines()[-1]).get("conversions") or [{}])[0]
    speeds = []
    for output in ("fp32", "raw"):
        with open(f"{demo}/{dtype}.{output}", encoding="utf-8") as f:
            speeds.append(json.load(f)["keys_per_s"])
    with open(f"{demo}/{dtype}.metrics", encoding="utf-8") as f:
        metrics = f.read()

    def of(name, tier):
        labels = f'model="narrow",version="{version}",tier="{tier}"'
        return float(re.search(rf"^hpsd_{name}{{{labels}}} (\S+)$", metrics, re.MULTILINE)[1])
    sizes = [of("tier_used_bytes", tier) / of("tier_rows", tier) for tier in ("host", "rocksdb")]
    print(f"{dtype:<18}{sizes[0]:>16.0f}{sizes[1]:>9.0f}{speeds[0]:>17,.0f}{speeds[1]:>12,.0f}{made.get('error_max', 0):>15.2g}"
          f"{made.get('error_mean', 0):>10.2g}")
print("200,000 rows of 128 values between -1 and 1, one version for each type. Replies have float32 rows, or rows as stored.")
PYTHON
}
step "6. One table with each row type: the same float32 files, loaded with --row-dtype"
narrow
if compgen -G '/dev/nvidia[0-9]*' >/dev/null; then
    device="the GPU of this machine"
else
    device="a simulated GPU"
    program=hpsd-sim
fi
step "7. An embedding cache in GPU memory ($device): below a hit rate of 0.7 lookups wait for the true rows"
start gpu
PYTHONPATH="$demo" "$python" docs/examples/threshold.py "$grpc" dlrm "$demo/models-gone/dlrm/1"
echo "   Below the threshold replies are exact and slow. Above it, a missing row is replaced by the default row, and hpsd"
echo "   fetches the true row in the background, until the cache has all rows. The status of each key says which row it is."
stop
program=hpsd
stream() {
    broker_start
    broker_do create hps_et.dlrm 2
    broker_do create hps_et.dlrm.feature_0 1
    "$python" - "$demo" "$bootstrap" <<'PYTHON'
import json
import sys

demo, bootstrap = sys.argv[1:]
with open(f"{demo}/all.json", encoding="utf-8") as f:
    config = json.load(f)
config["update_source"] = {"type": "kafka", "brokers": bootstrap}
with open(f"{demo}/stream.json", "w", encoding="utf-8") as f:
    json.dump(config, f, indent=2)
PYTHON
    "$bin/hps-gen" --preset dlrm-dcnv2 --scale 0.001 --seed 2 --out "$demo/changes" >"$demo/gen.log" 2>&1
    start stream
    "$bin/hpsctl" --timeout 300 wait-for now --model dlrm >/dev/null
    "$bin/hps-bench" --addr "$grpc" --admin "$admin" --model dlrm --keys 64 --zipf 1.05 --duration 8 --concurrency 1 --quiet \
        -o json >"$demo/stream.bench" &
    local bench_pid=$!
    PYTHONPATH="$demo" "$python" docs/examples/freshness.py "$bootstrap" "$grpc" dlrm feature_0 128 8 \
        >"$demo/freshness.txt" &
    local freshness_pid=$!
    printf '\033[2m$ %s\033[0m\n' "hps-publish -b $bootstrap -m dlrm --from build/demo/changes --format packed --rate 25000 --wait"
    "$bin/hps-publish" -b "$bootstrap" -m dlrm --from "$demo/changes" --format packed --batch-bytes 64KiB \
        --rate 25000 --wait --wait-timeout 300 --quiet -o json >"$demo/publish.json"
    wait "$bench_pid"
    wait "$freshness_pid"
    scrape >"$demo/stream.metrics"
    "$python" - "$demo" <<'PYTHON'
import json
import re
import sys

demo = sys.argv[1]
with open(f"{demo}/stream.bench", encoding="utf-8") as f:
    bench = json.load(f)
with open(f"{demo}/publish.json", encoding="utf-8") as f:
    publish = json.load(f)
with open(f"{demo}/stream.metrics", encoding="utf-8") as f:
    buckets = re.findall(r'^hpsd_update_freshness_seconds_bucket{.*le="(.*)".*} (\S+)$', f.read(), re.MULTILINE)
counts = [(bound, float(count)) for bound, count in buckets]


def within(share):
    return next(bound for bound, count in counts if count >= share * counts[-1][1])


print(f"   {publish['rows']:,} rows in {publish['records']:,} records, {publish['rows'] / publish['seconds']:,.0f} rows/s, during "
      f"lookups of {bench['keys_per_s']:,.0f} keys/s (p50 {bench['latency_us']['p50'] / 1e3:.1f} ms, "
      f"p99 {bench['latency_us']['p99'] / 1e3:.1f} ms)")
with open(f"{demo}/freshness.txt", encoding="utf-8") as f:
    print(f"   freshness, {f.read().strip()}")
print(f"   hpsd_update_freshness_seconds of all {counts[-1][1]:,.0f} records: p50 within {within(0.5)} s, p99 within {within(0.99)} s")
PYTHON
    shown "python3 docs/examples/verify.py ...     # the streamed rows" \
        env PYTHONPATH="$demo" "$python" docs/examples/verify.py "$grpc" dlrm "$demo/changes" 2
    stop
    broker_stop
}
step "8. Rows arrive through Kafka during lookups: broker, trainer, clients and hpsd on this machine"
if why=$("$python" tests/lib/kafka.py missing 2>&1); then
    stream
else
    echo "   skipped: $why"
fi
step "Next steps"
cat <<'TEXT'
   ./dev demo --keep                   run the demo and leave the daemon running; then try:
   hpsctl top                          live traffic and hit rates; hpsctl stats: per table and tier
   hpsctl load dlrm --from DIR         load a new version next to the active one; then: activate, rollback
   hpsctl explain dlrm feature_0 42    what each tier has for one key
   README.md                           serve your own tables: hpsd --table NAME=FILE.npy --state-dir DIR
TEXT
if [[ $keep == --keep ]]; then
    start all
    printf "\nhpsd runs until Ctrl-C; in another terminal:\n  cd %q\n  export HPSD_ADDR=%s PATH=%q:\$PATH\n" "$PWD" "$admin" "$bin"
    wait "$pid"
fi
