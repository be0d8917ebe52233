#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The figures that NVIDIA and others publish for HPS, for hpsd: latency and hit rate of the cache, a whole DLRM, insertion
after replies, 26 calls and one, several daemons above one Redis. Writes tables and plots.

usage: dlrm.py BIN JSONL [--short] [--out DIR] [--parts cache,model,insertion,calls,scale,device] [--rows N] ...
       BIN has hpsd, hpsctl, hps-gen and hps-bench; JSONL receives the results in the format of ./dev bench; DIR receives
       dlrm-PART.md and dlrm-*.svg. --device PROGRAM: an hpsd with a GPU, or hpsd-sim.
"""
import argparse
import itertools
import json
import math
import mmap
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import urllib.request

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [f"{ROOT}/{path}" for path in ("clients/python", "docs/examples/dlrm", "tests/lib")]
import hpsd  # noqa: E402
import redis  # noqa: E402  tests/lib
from clicks import HOT_DRAWS, HOT_KEYS, Clicks  # noqa: E402
from kserve import machine  # noqa: E402
from plot import lines  # noqa: E402
from python_client import Report  # noqa: E402

sys.path.remove(f"{ROOT}/bench")  # torch must not find its triton.py

SKEWS = {"two levels": f"0,{HOT_DRAWS},{HOT_KEYS}", "Zipf 1.05": "1.05"}
ROW_BYTES = 18  # of the host map's index, for each row
EXPECTED_HITS = {1: 76.0, 10: 87.8}  # of the embedding cache, by the share cached: a simulation of its policy, 10 M keys


class Daemon:
    """An hpsd with a configuration; `ready`: it also has its configured model."""

    def __init__(self, work, config, program):
        with open(f"{work}/hpsd.json", "w", encoding="utf-8") as f:
            json.dump(config, f)
        self.log, self.socket = f"{work}/log", f"unix:{work}/grpc.sock"
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([program, "--config", f"{work}/hpsd.json", "--listen", "127.0.0.1:0", "--listen", self.socket,
                                             "--http-listen", "127.0.0.1:0", "--state-dir", f"{work}/state"],
                                            stdout=subprocess.PIPE, stderr=log, text=True)
        self.admin = f"unix:{work}/state/admin.sock"
        try:
            said = self.line("listening")
            self.tcp, self.http = re.search(r"grpc=([^, ]+)", said)[1], re.search(r"http=([^, ]+)", said)[1]
            self.line("ready")
        except BaseException:
            self.kill()
            raise

    def line(self, word):
        line = self.process.stdout.readline()
        if not line.startswith(word):
            with open(self.log, encoding="utf-8") as log:
                raise SystemExit(f"hpsd was not {word}: {line}{log.read()[-2000:]}")
        return line

    def metric(self, name, **labels):
        """The sum of the series of a metric that have these labels."""
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=60) as reply:
            found = re.findall(rf"^hpsd_{name}(?:{{(.*)}})? (\S+)$", reply.read().decode(), re.MULTILINE)
        return sum(float(value) for of, value in found if all(f'{k}="{v}"' in of for k, v in labels.items()))

    def hits(self, tier):
        return np.array([self.metric("tier_keys_total", tier=tier, result=result) for result in ("hit", "miss")])

    def close(self):
        self.process.terminate()
        self.process.wait(120)

    def kill(self):
        self.process.kill()
        self.process.wait(120)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Bench:
    def __init__(self, options, report, work):
        self.options, self.report, self.work, self.text = options, report, work, []

    def run(self, program, *args, codes=(0,)):
        done = subprocess.run([f"{self.options.bin}/{program}", *map(str, args)], capture_output=True, text=True, check=False)
        if done.returncode not in codes:
            raise SystemExit(f"{program} {args}: {done.stdout}{done.stderr}")
        return done.stdout

    def load(self, address, keys, skew, rows, *flags, **more):
        """The result of hps-bench."""
        flags += tuple(word for name, value in more.items() for word in (f"--{name}", value))
        return json.loads(self.run("hps-bench", "--addr", address, "--model", "model", "--tables", "feature_0", "--rows", rows, "--keys", keys,
                                   "--zipf", skew, "--timeout", 60, "--quiet", "-o", "json", *flags, codes=(0, 1)))  # 1: calls failed

    def config(self, tables, rows, width, **model):
        """The configuration for generated tables."""
        where = f"{self.work}/files-{tables}-{rows}-{width}"
        if not os.path.exists(where):
            self.run("hps-gen", "--tables", tables, "--rows", rows, "--dim", width, "--format", "npy", "--out", where)
        with open(f"{where}/ps.json", encoding="utf-8") as f:
            config = json.load(f)
        del config["persistent_db"]["path"]
        config["models"][0].update({"gpucache": False, **model})
        config["volatile_db"]["memory_bytes"] = "4GiB"
        config["server"] = {"disk_free_min_bytes": "64MiB", "warmup_timeout_s": 0}
        return config

    def directory(self, name):
        path = f"{self.work}/{name}"
        os.makedirs(path, exist_ok=True)
        return path

    def daemon(self, name, config, program=None):
        return Daemon(self.directory(name), config, program or f"{self.options.bin}/hpsd")

    def table(self, title, note, head, rows):
        """A table of the results; numbers of a row also go to the JSONL file."""
        self.text += [f"#{'#' * bool(self.text)} {title}", "", textwrap.fill(note, 100), "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        for row in rows:
            shown = [one if isinstance(one, str) else f"{one:,.0f}" if one >= 100 else f"{one:.3g}" for one in row]
            self.text.append(f"| {' | '.join(shown)} |")
            for name, value in zip(head[1:], row[1:]):
                if not isinstance(value, str):
                    self.report(f"{title}, {row[0]}"[:60], name, value, "")
        self.text.append("")

    def page(self, path, part, begin):
        """Write a page with the tables since the last one. `begin`: when their part began, by time.monotonic."""
        commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False).stdout.strip()
        spent = f"{time.monotonic() - begin:.0f} s"
        print(f"{self.report.bench:11} {part}: {spent}", flush=True)
        self.text.append(textwrap.fill(f"Machine: {machine()}. Commit: {commit or 'unknown'}. Time: {spent}. Command: "
                                       f"`{' '.join([f'bench/{os.path.basename(sys.argv[0])}', *sys.argv[1:]])}`", 100) + "\n")
        with open(path, "w", encoding="utf-8") as f:
            f.write("\n".join(self.text))
        self.text = []

    def plot(self, name, *args, **how):
        lines(f"{self.options.out}/dlrm-{name}.svg", *args, **how)
        self.text += [f"![{args[0]}](dlrm-{name}.svg)", ""]


def timed(ways, rounds):
    """{name: mean time of its call in ms}. The calls take turns; the first round is not counted."""
    spent = dict.fromkeys(ways, 0.0)
    for number in range(rounds + 1):
        for name, call in ways.items():
            begin = time.perf_counter()
            call()
            spent[name] += (number > 0) * (time.perf_counter() - begin) * 1e3 / rounds
    return spent


# ---- cache: latency and hit rate ---------------------------------------------------------------------

def probabilities(skew, rows):
    if skew == "Zipf 1.05":
        p = np.arange(1, rows + 1) ** -1.05
        return p / p.sum()
    p = np.full(rows, (1 - HOT_DRAWS) / rows)
    p[:int(HOT_KEYS * rows)] += HOT_DRAWS / int(HOT_KEYS * rows)
    return p


def expected(p, n_cached, batch):
    """Hit rates in % with the most popular keys cached, and of LRU (Che's approximation). Like hpsd, they count a key once
    for each call of `batch` keys; batch 0: each draw."""
    q = 1 - (1 - p) ** batch if batch else p
    low, high = 0.0, 1e15
    for _ in range(200):
        middle = math.sqrt(max(low, 1e-3) * high)
        low, high = (middle, high) if (1 - np.exp(-q * middle)).sum() < n_cached else (low, middle)
    return 100 * q[:n_cached].sum() / q.sum(), 100 * (q * (1 - np.exp(-q * low))).sum() / q.sum()


def settled(bench, one, tier, skew, n_cached, rows, batch):
    """Fill the cache, until the hit rate stays; then the hit rate in %. That of an embedding cache rises slowly, for long."""
    n_before, rates = -1, []
    while tier == "host" and one.metric("tier_rows", tier=tier) > n_before:
        n_before = one.metric("tier_rows", tier=tier)
        bench.load(one.socket, 16384, "0", rows, requests=max(4, n_cached // 32768), seed=1000 + int(n_before), concurrency=4)
    end = time.monotonic() + bench.options.settle_s
    while not rates or time.monotonic() < end and not (tier == "host" and len(rates) > 3 and np.ptp(rates[-3:]) < 0.1):
        before = one.hits(tier)
        bench.load(one.socket, batch, skew, rows, requests=max(bench.options.calls, n_cached // batch), seed=len(rates) + 1, concurrency=4)
        hit, miss = one.hits(tier) - before
        rates.append(100 * hit / (hit + miss))
    return rates[-1]


def measure_cache(bench):
    options = bench.options
    rows, width = options.rows, options.width
    config = bench.config(1, rows, width)
    by_size, by_share, latency, shares = [], [], {}, {}
    for skew, flag in SKEWS.items():
        p = probabilities(skew, rows)
        for share in options.shares:
            config["volatile_db"]["memory_bytes"] = int(share / 100 * rows * (4 * width + ROW_BYTES))
            with bench.daemon("cache", config) as one:
                rate = settled(bench, one, "host", flag, int(share / 100 * rows), rows, 1024)
                n_cached = int(one.metric("tier_rows", tier="host"))
                ideal, lru = expected(p, n_cached, 1024)
                by_share.append((f"{skew}, {share} %", 100 * n_cached / rows, rate, lru, ideal))
                bench.report(f"{skew}, {share} % cached", "hit rate - LRU's, points", round(rate - lru, 1), "%", at_least=0)
                for name, value in ((skew, rate), (f"{skew}, LRU", lru), (f"{skew}, ideal", ideal)):
                    shares.setdefault(name, []).append((share, value))
                for batch in options.batches if share == 10 else []:
                    before = one.hits("host")
                    done = bench.load(one.socket, batch, flag, rows, requests=max(1, min(2000, options.draws // batch)), seed=100 + batch, concurrency=1)
                    hit, miss = one.hits("host") - before
                    mean = done["latency_us"]["mean"] / 1e3
                    by_size.append((f"{skew}, {batch:,}", mean, done["latency_us"]["p99"] / 1e3, batch / mean / 1e3, 100 * hit / (hit + miss)))
                    latency.setdefault(skew, []).append((batch, mean))
    bench.table("Latency over batch size", f"One table of {rows:,} rows of {width} values, 10 % of them in the host map, 90 % in "
                "RocksDB, which maps its files. Replies are exact. hps-bench on a Unix socket, one call in flight. A hit is a unique key of a call.",
                ("keys, batch", "mean ms", "p99 ms", "M keys/s", "hit rate %"), by_size)
    bench.plot("latency", "Lookup latency, 10 % of the rows in memory", "keys of a call", "mean latency, ms", latency, log_x=True, log_y=True)
    bench.table("Hit rate over the share of rows cached", "Calls of 1,024 keys; each key counts once in a call. LRU is Che's "
                "approximation for the same calls; ideal has the most popular keys cached.",
                ("keys, share", "cached %", "hit rate %", "LRU %", "ideal %"), by_share)
    bench.plot("hits", "Hit rate of the host map", "rows cached, %", "hit rate, %", shares, log_x=True)


def measure_device(bench):
    """Hit rates of the embedding cache of a GPU, or of the simulated one."""
    options, out = bench.options, []
    program = options.device or f"{options.bin}/hpsd-sim"
    if not os.path.exists(program):
        bench.report.left_out("device", f"{program} is missing")
        return
    n_rows = options.device_rows
    for share in options.device_shares:
        config = bench.config(1, n_rows, 4, gpucache=True, gpucacheper=share / 100)
        config["server"]["lookup_path"] = "gpu"
        with bench.daemon(f"device-{share}", config, program) as one:
            rate = settled(bench, one, "gpu", "1.05", share * n_rows // 100, n_rows, 4096)
            drawn = one.hits("gpu").sum() / 1e6
            ideal, lru = expected(probabilities("Zipf 1.05", n_rows), share * n_rows // 100, 0)
            out.append((f"{share} %", drawn, 100 * one.metric("tier_rows", tier="gpu") / n_rows, rate, lru, ideal))
            if n_rows == 10_000_000 and share in EXPECTED_HITS:
                bench.report(f"embedding cache, {share} % of 10 M keys", "hit rate", rate, "%", at_least=EXPECTED_HITS[share] - 1)
    bench.table("Hit rate of the embedding cache", f"{n_rows:,} keys, Zipf 1.05, {os.path.basename(program)}. Each draw counts.",
                ("share", "M draws", "cached %", "hit rate %", "LRU %", "ideal %"), out)


# ---- the whole model ---------------------------------------------------------------------------------

def evicted(tables):
    """Drop the pages of mapped tables from memory."""
    for view, file in tables:
        view.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure_model(bench):
    try:
        import torch
        import hpsd.torch
        import model as dlrm
        from torchrec import KeyedJaggedTensor
    except ImportError as error:
        bench.report.left_out("model", str(error))
        return
    options = bench.options
    torch.manual_seed(1)
    sizes = {"rows": options.model_rows, "width": options.width, "bottom": options.bottom, "top": options.top}
    clicks, local = Clicks(options.model_rows), dlrm.new(sizes).eval()
    work, models, files = bench.directory("model"), {"local": local}, bench.directory("model/tables")
    for name, bag in dlrm.bags(local).items():
        np.save(f"{files}/{name}.npy", bag.weight.detach().numpy())
    hot_bytes = 3 * HOT_KEYS * 26 * options.model_rows * (4 * options.width + ROW_BYTES)
    config = {"supportlonglong": True, "models": [], "persistent_db": {"type": "rocks_db"},
              "volatile_db": {"type": "hash_map", "memory_bytes": "6GiB"}, "server": {"disk_free_min_bytes": "64MiB", "model_roots": [files]}}
    small = {**config, "persistent_db": {"type": "rocks_db", "read_mode": "direct", "block_cache_bytes": 0},
             "volatile_db": {"type": "hash_map", "memory_bytes": int(max(hot_bytes, 1 << 20))}}
    mapped, hot = [], torch.arange(max(1, round(HOT_KEYS * clicks.rows))) * 2654435761 % clicks.rows

    def with_rows_of(one, version, half):
        made = hpsd.torch.replace(dlrm.new(sizes, "meta"), hpsd.connect(one.socket, model="dlrm", timeout=60).version(version)).eval()
        made.dense_arch, made.over_arch = local.dense_arch, local.over_arch
        if half:
            made.sparse_arch.embedding_bag_collection.half()
        return made

    def features(n, bag_keys):
        keys = np.concatenate([clicks.keys(n) for _ in range(bag_keys)]).reshape(bag_keys, n, 26).transpose(2, 1, 0)
        return KeyedJaggedTensor(dlrm.TABLES, torch.from_numpy(np.ascontiguousarray(keys).reshape(-1)),
                                 lengths=torch.full((26 * n,), bag_keys, dtype=torch.int32))

    def dense_part(numbers, rows):
        return local.over_arch(local.inter_arch(local.dense_arch(numbers), rows))

    rows, series = [], {}
    with bench.daemon("model", config) as one, bench.daemon("model-small", small) as cold, torch.no_grad():
        for number, dtype in enumerate(("fp32", "fp16", "int8_rowwise_f16"), 1):
            bench.run("hpsctl", "--addr", one.admin, "--timeout", 600, "load", "dlrm", "--from", files, "--row-dtype", dtype)
            models[f"hpsd, {dtype}"] = with_rows_of(one, number, number > 1)
        bench.run("hpsctl", "--addr", cold.admin, "--timeout", 600, "load", "dlrm", "--from", files)
        models["hpsd, rows on disk"] = with_rows_of(cold, 1, False)
        models["local, rows on disk"] = dlrm.new(sizes, "meta").eval()
        models["local, rows on disk"].dense_arch, models["local, rows on disk"].over_arch = local.dense_arch, local.over_arch
        for name, bag in dlrm.bags(models["local, rows on disk"]).items():
            with open(f"{work}/{name}.f32", "w+b") as file:
                file.write(dlrm.bags(local)[name].weight.detach().numpy().tobytes())
                file.flush()
                os.fsync(file.fileno())
                view = mmap.mmap(file.fileno(), 0)
                mapped.append((view, open(file.name, "rb")))
            view.madvise(mmap.MADV_RANDOM)
            bag.weight = torch.nn.Parameter(torch.frombuffer(view, dtype=torch.float32).view(-1, options.width), requires_grad=False)
        for bag_keys, n in itertools.product((1, options.bag_keys), options.model_batches):
            rounds = max(3, min(options.rounds, options.rounds * 256 // n))
            numbers, spent = torch.rand(n, 13), {name: np.zeros(2) for name in models if bag_keys == 1 or not ("disk" in name or "16" in name)}
            for number in range(rounds + 1):  # the ways take turns; the first round is not counted
                batch = features(n, bag_keys)
                for name in spent:
                    made = models[name]
                    if name == "local, rows on disk":
                        evicted(mapped)
                        for bag in dlrm.bags(made).values():
                            bag.weight[hot].sum()
                    begin = time.perf_counter()
                    embedded = made.sparse_arch(batch)
                    between = time.perf_counter()
                    dense_part(numbers, embedded)
                    spent[name] += (number > 0) * np.array([time.perf_counter() - begin, between - begin])
            for name, (whole, lookup) in spent.items():
                case = f"{name}{f', {bag_keys} keys a bag' if bag_keys > 1 else ''}"
                rows.append((f"{n:,}: {case}", whole / rounds * 1e3, lookup / rounds * 1e3, n * rounds / whole, 100 * (1 - lookup / whole),
                             *np.array([whole, lookup]) / spent["local"]))
                if bag_keys == 1:
                    series.setdefault(case, []).append((n, whole / rounds * 1e3))
                if (n, case) == (1024, "hpsd, fp32"):
                    bench.report("whole DLRM, 1,024 clicks, hpsd ÷ local", "latency", whole / spent["local"][0], "x", at_most=1.5)
    for view, file in mapped:
        file.close()
    bench.table("The whole model", f"DLRM with 26 tables of {sizes['rows']:,} rows of {sizes['width']} values, bottom MLP {sizes['bottom']}, top MLP "
                f"{sizes['top']}, keys in two levels; PyTorch {torch.__version__} with {torch.get_num_threads()} threads. `hpsd`: over a Unix socket; "
                "fp16 and int8 rows are sent as fp16. `rows on disk` models tables much larger than memory: only the popular rows are in memory, "
                "each other row is read from disk, by hpsd (`direct`) or from a mapped file.",
                ("clicks: way", "ms", "lookup alone, ms", "clicks/s", "share of the dense part %", "÷ local", "lookup ÷ local"), rows)
    bench.plot("model", "Latency of the whole DLRM", "clicks of a call", "mean latency, ms", series, log_x=True, log_y=True)


# ---- insertion ---------------------------------------------------------------------------------------

def measure_insertion(bench):
    options, keys, rows = bench.options, 2000, []
    config = bench.config(1, options.rows, options.width, miss_policy="threshold", hit_rate_threshold=options.threshold)
    config["server"]["async_without_gpu"] = True
    config["volatile_db"]["memory_bytes"] = int(0.3 * options.rows * (4 * options.width + ROW_BYTES))
    random, n_hot, series = np.random.default_rng(5), options.rows // 20, {}
    cold = iter(random.permutation(np.arange(n_hot, options.rows)))
    with bench.daemon("insertion", config) as one, hpsd.connect(one.socket, model="model", timeout=60) as client:
        for rate in options.rates:
            latencies, defaulted, exact = [], [], []
            for _ in range(options.rounds // 2):
                n_hits = round(rate * keys)
                asked = np.concatenate((random.choice(n_hot, n_hits, False), np.fromiter(itertools.islice(cold, keys - n_hits), np.int64)))
                client.lookup("feature_0", asked[:n_hits], miss="exact")
                begin = time.perf_counter()
                answer = client.lookup("feature_0", asked, full=True)
                latencies.append(time.perf_counter() - begin)
                defaulted.append((answer.status == hpsd.Status.DEFAULTED).mean())
                while (answer.status == hpsd.Status.DEFAULTED).any():
                    answer = client.lookup("feature_0", asked, full=True, miss="memory_only")
                exact.append(time.perf_counter() - begin)
            rows.append((f"{rate:.2f}", "asynchronous" if rate >= options.threshold else "synchronous", 1e3 * np.mean(latencies),
                         1e3 * np.percentile(latencies, 99), 100 * np.mean(defaulted), 1e3 * np.mean(exact)))
            for name, value in (("reply", latencies), ("exact rows", exact)):
                series.setdefault(name, []).append((rate, 1e3 * np.mean(value)))
    bench.table("Insertion", f"Calls of {keys:,} keys by the Python client. The share *hit rate* of them is in the host map, and "
                f"`hit_rate_threshold` is {options.threshold}. The other rows are read from disk for the first time. *Exact after*: from the call until a lookup has all true rows from memory.",
                ("hit rate", "insertion", "mean ms", "p99 ms", "defaulted keys %", "exact after ms"), rows)
    bench.plot("insertion", f"Insertion, threshold {options.threshold}", "hit rate of the call", "mean time, ms", series)


# ---- 26 calls, one call ------------------------------------------------------------------------------

def measure_calls(bench):
    options, rows, names = bench.options, [], [f"feature_{i}" for i in range(26)]
    with bench.daemon("calls", bench.config(26, options.model_rows, options.width)) as one, \
            hpsd.connect(one.socket, model="model", timeout=60) as client:
        for n in options.call_keys:
            keys = {name: np.random.default_rng(i).integers(0, options.model_rows, n) for i, name in enumerate(names)}
            rounds = max(20, options.rounds * 64 // n)
            ways = {"26 calls": lambda: [client.lookup(name, of) for name, of in keys.items()], "one call": lambda: client.lookup(keys),
                    "one call, CONCAT": lambda: client.lookup(keys, concat=True)}
            found = timed(ways, rounds)
            rows += [(f"{n:,}: {name}", value, value / found["one call"]) for name, value in found.items()]
    bench.table("26 calls and one call", f"26 tables of {options.model_rows:,} rows of {options.width} values in the host map; the Python client on a "
                "Unix socket.", ("keys of a table: way", "mean ms", "÷ one call"), rows)


# ---- several daemons ---------------------------------------------------------------------------------

def measure_scale(bench):
    if redis.missing():
        bench.report.left_out("scale", redis.missing())
        return
    options, rows, cold = bench.options, [], []
    n_rows = options.rows // 5
    with redis.Redis(bench.directory("redis")) as server:
        def start(name, shared=True):
            config = bench.config(1, n_rows, options.width)
            config["persistent_db"].update(read_mode="direct", block_cache_bytes=0)
            config["volatile_db"] = {"type": "redis_cluster", "address": server.address, "local_cache_bytes": int(0.1 * n_rows * 4 * options.width),
                                     "cache_missed_embeddings": True} if shared else {
                                         "type": "hash_map", "memory_bytes": int(0.1 * n_rows * 4 * options.width)}
            return bench.daemon(name, config)

        def load(daemons, seconds):
            return bench.load(",".join(one.tcp for one in daemons), 256, "1.05", n_rows, "--retry", duration=seconds, connections=len(daemons))

        daemons = []
        for n in (1, 2, 4):
            daemons += [start(f"scale-{i}") for i in range(len(daemons), n)]
            load(daemons, options.seconds / 2)
            done = load(daemons, options.seconds)
            rows.append((f"{n}", done["keys_per_s"] / 1e6, done["latency_us"]["p50"] / 1e3, done["latency_us"]["p99"] / 1e3, float(sum(done["errors"].values()))))
        for n in (4, 2):
            for one in daemons[n:]:
                one.close()
            daemons = daemons[:n]
            timer = threading.Timer(options.seconds / 2, daemons[-1].kill)
            timer.start()
            done = load(daemons, options.seconds)
            timer.join()
            rows.append((f"{n}, one killed", done["keys_per_s"] / 1e6, done["latency_us"]["p50"] / 1e3, done["latency_us"]["p99"] / 1e3, float(sum(done["errors"].values()))))
            daemons.pop()
        for name, shared in (("Redis", True), ("without", False)):
            with start(f"cold-{name}", shared) as one:
                for calls in (50, 500):
                    before = [one.hits(tier) for tier in ("host", "redis", "rocksdb")]
                    done = bench.load(one.tcp, 256, "1.05", n_rows, requests=calls, concurrency=1, seed=calls)
                    (host, host_miss), (of_redis, _), (disk, _) = (one.hits(tier) - at for tier, at in zip(("host", "redis", "rocksdb"), before))
                    cold.append((f"{name}, next {calls} calls", 100 * host / (host + host_miss), 100 * of_redis / (host + host_miss),
                                 100 * disk / (host + host_miss), done["latency_us"]["mean"] / 1e3))
        for one in daemons:
            one.close()
    bench.table("Several daemons above one Redis", f"{n_rows:,} rows of {options.width} values, 10 % of them in each host map; calls of 256 keys, Zipf 1.05; "
                "hps-bench --retry with all addresses. RocksDB reads each row from disk (`direct`). All processes share the cores of the machine.",
                ("daemons", "M keys/s", "p50 ms", "p99 ms", "failed calls"), rows)
    bench.table("Cold start", "A new daemon with an empty host map, one call of 256 keys in flight.",
                ("way", "host map %", "Redis %", "RocksDB %", "mean ms"), cold)


PARTS = {"cache": measure_cache, "device": measure_device, "model": measure_model, "insertion": measure_insertion, "calls": measure_calls,
         "scale": measure_scale}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    short = "--short" in sys.argv
    numbers = {"nargs": "+", "type": int}
    parser.add_argument("bin")
    parser.add_argument("jsonl")
    parser.add_argument("--short", action="store_true", help="small sizes")
    parser.add_argument("--out", default=f"{ROOT}/build/bench")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--name", help="of the file dlrm-NAME.md; default: the part")
    parser.add_argument("--device", help="hpsd with a GPU; default: hpsd-sim")
    parser.add_argument("--rows", type=int, default=100_000 if short else 1_000_000)
    parser.add_argument("--device-rows", type=int, default=100_000 if short else 10_000_000)
    parser.add_argument("--device-shares", default=[1, 10], **numbers, help="rows cached, %%")
    parser.add_argument("--calls", type=int, default=200 if short else 1000, help="least calls for a hit rate")
    parser.add_argument("--settle-s", type=float, default=10 if short else 60, help="most seconds until a hit rate is taken as it is")
    parser.add_argument("--model-rows", type=int, default=2_000 if short else 20_000, help="of each of the 26 tables")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--bottom", default=[512, 256], **numbers)
    parser.add_argument("--top", default=[1024, 1024, 512, 256], **numbers)
    parser.add_argument("--shares", default=[1, 10, 50] if short else [1, 2, 5, 10, 20, 50], **numbers, help="rows cached, %%")
    parser.add_argument("--batches", default=[1, 1024, 65536] if short else [1, 16, 256, 1024, 4096, 16384, 65536], **numbers)
    parser.add_argument("--draws", type=int, default=500_000 if short else 3_000_000, help="keys for each batch size")
    parser.add_argument("--model-batches", default=[1, 1024] if short else [1, 16, 64, 256, 1024, 4096], **numbers)
    parser.add_argument("--bag-keys", type=int, default=10)
    parser.add_argument("--call-keys", default=[1, 64, 1024], **numbers)
    parser.add_argument("--rounds", type=int, default=6 if short else 40)
    parser.add_argument("--rates", nargs="+", type=float, default=[0.5, 0.7, 0.79, 0.81, 0.9, 0.99, 1.0])
    parser.add_argument("--threshold", type=float, default=0.8)
    parser.add_argument("--seconds", type=float, default=2 if short else 8, help="for each number of daemons")
    return parser.parse_args()


def main():
    options = arguments()
    os.makedirs(os.path.dirname(options.jsonl), exist_ok=True)
    os.makedirs(options.out, exist_ok=True)
    report = Report(options.jsonl, "dlrm")
    work = tempfile.mkdtemp(prefix="hps-dlrm-", dir=os.environ.get("TMPDIR", "/var/tmp"))
    bench = Bench(options, report, work)
    try:
        for name in options.parts.split(","):
            begin = time.monotonic()
            PARTS[name](bench)
            bench.page(f"{options.out}/dlrm-{options.name or name}.md", name, begin)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
