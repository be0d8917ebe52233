#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The whole daemon with more rows than memory: the 26 tables of MLPerf's DLRM-DCNv2, also in its multi-hot form of 214 keys
per sample. Time to load, memory, disk; lookups alone, during a load, a switch, updates and merges; restarts. Sampled
answers are checked against the formula of hps-gen.

usage: size.py BIN JSONL [--runs int8,fp32] [--base-file auto,off] [--scale SHARE] [--parts lookups,restart,second,updates] ...
       BIN has hpsd, hpsctl, hps-gen, hps-bench and hps-publish; JSONL receives the results in the format of ./dev bench;
       --out DIR receives size.md. HPS_KAFKA_JARS or build/kafka/jars: a Kafka broker, for updates.

All files are below --dir and are removed at the end. A run or part is left out if it lacks disk or memory. If all files do
not fit next to the store, the five largest tables are loaded from one file, and only one of them is checked.
"""
import argparse
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time

import dlrm  # it also finds the modules of tests/lib

import kafka  # tests/lib

ROWS = [40000000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 40000000, 3067956, 405282, 10, 2209, 11938, 155, 4, 976, 14,
        40000000, 40000000, 40000000, 590152, 12973, 108, 36]
HOTNESS = [3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1]  # keys of a sample
LARGEST = [i for i, rows in enumerate(ROWS) if rows == max(ROWS)]
DIM, MODEL, GIB = 128, "dlrm", 1 << 30
RUNS = {"int8": ("int8_rowwise_f16", 132, 1), "fp32": ("fp32", 512, 26 * GIB / (512 * sum(ROWS)))}  # type, bytes of a row, share of the rows
SPARE_DISK, SPARE_MEMORY = 3 * GIB, 3 * GIB  # disk: disk_free_min_bytes, logs; memory: all but the host map
CHANGED = 0.12  # least share of a table that is updated, so that it is merged
TABLES = {
    "load": ("Load", "*Peak*: during the load.",
             ("run", "M rows", "GiB of rows", "load s", "M rows/s", "peak memory GiB", "memory GiB", "disk ÷ rows", "peak disk ÷ rows")),
    "lookups": ("Lookups", "Multi-hot: 214 keys per sample, pooled with SUM. The last number: calls in flight.",
                ("run", "p50 ms", "p99 ms", "k keys/s", "samples/s", "hit rate %")),
    "restart": ("Restart", "SIGTERM, then a start without the store in the page cache. Multi-hot, Zipf, at the rate of the next table.",
                ("run", "stop s", "ready s", "hit rate before %", "first second %", "s until 95 % of it", "p99 of the first second ms")),
    "busy": ("Other work", "Multi-hot, Zipf, at half the rate that one call in flight reaches. Latency counts from the time at which a call was due.",
             ("run", "p50 ms", "p99 ms", "max ms", "failed, unsent", "disk ÷ rows", "memory GiB", "took, or rate")),
    "updates": ("Updates", "Rows of the first table, in random order, through Kafka in the same machine.", ("run", "M rows", "rows/s", "s until visible", "merges")),
    "checked": ("Checked answers", "Multi-hot samples, compared with the formula of hps-gen.", ("run", "rows checked", "wrong"))}


def used(path):
    """Bytes on disk of a directory that others change."""
    sizes = {}
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                info = os.stat(os.path.join(folder, name))
                sizes[info.st_ino] = info.st_blocks * 512
            except FileNotFoundError:
                pass
    return sum(sizes.values())


def kib(path, name):
    with open(path, encoding="ascii") as f:
        return int(re.search(rf"{name}:\s+(\d+)", f.read())[1]) << 10


def rows_of(options, name):
    return [math.ceil(rows * RUNS[name][2] * options.scale) for rows in ROWS]


def estimate(rows, row_bytes, base_file):
    """Bytes of a store, as hpsd estimates them before a load (hps_disk_table_bytes, hps_disk_base_bytes)."""
    return sum(rows) * (row_bytes * 1025 / 1024 + 1 / 8 if base_file == "auto" else (row_bytes + 24) * 9 / 8)


class Watch(threading.Thread):
    """The largest disk use and memory of a daemon, and the largest value of `of`, while the block runs."""

    def __init__(self, run, of=lambda: 0):
        super().__init__(daemon=True)
        self.run_, self.of, self.done, self.disk, self.memory, self.most = run, of, threading.Event(), 0, 0, 0

    def sample(self):
        self.disk = max(self.disk, used(self.run_.store))
        self.memory = max(self.memory, kib(f"/proc/{self.run_.one.process.pid}/status", "RssAnon"))
        self.most = max(self.most, self.of())

    def run(self):
        while not self.done.wait(0.5):
            self.sample()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.join()


class Run:
    """A model in one store: a type of rows, with or without base files."""

    def __init__(self, bench, name, files, shared, base_file):
        self.bench, self.options, self.files, self.shared, self.base_file = bench, bench.options, files, shared, base_file
        self.title, (self.dtype, row_bytes, _) = f"{name}, {'base files' if base_file == 'auto' else 'RocksDB'}", RUNS[name]
        self.rows = rows_of(bench.options, name)
        self.bytes, self.largest, self.estimate = sum(self.rows) * row_bytes, max(self.rows) * row_bytes, estimate(self.rows, row_bytes, base_file)
        self.work, self.one, self.usual, self.seed = bench.directory("run"), None, None, 0
        self.store, self.rows_out = f"{self.work}/state", {name: [] for name in TABLES}

    def start(self, **more):
        self.one = dlrm.Daemon(self.work, {
            "supportlonglong": True, "models": [], "volatile_db": {"type": "hash_map", "memory_bytes": self.options.memory},
            "persistent_db": {"type": "rocks_db", "base_file": self.base_file, "read_mode": self.options.read_mode},
            "server": {"disk_free_min_bytes": "2GiB", "drain_delay_ms": 0, "model_roots": [self.files]}, **more}, f"{self.options.bin}/hpsd")

    def stop(self):
        if self.one is not None:
            self.one.close()
        self.one = None

    def ctl(self, *args):
        return self.bench.run("hpsctl", *args, "--addr", self.one.admin)

    def add(self, table, what, *values):
        self.rows_out[table].append((", ".join((self.title, *what)), *values))
        print(f"size        {table}: {self.rows_out[table][-1]}", flush=True)

    def room(self, part, needed):
        """Whether the disk has room; else the part is reported as left out."""
        free = shutil.disk_usage(self.work).free
        if free < needed + SPARE_DISK:
            self.bench.left_out(f"{self.title}: {part}", f"needs {(needed + SPARE_DISK) / GIB:.1f} GiB of disk; {free / GIB:.1f} GiB are free")
        return free >= needed + SPARE_DISK

    def words(self, skew, in_flight, hot, *flags, **more):
        """The command line of hps-bench. hot: multi-hot samples, else one key of each table per sample."""
        tables = [i for i in range(len(ROWS)) if not (flags and self.shared and i in LARGEST[1:])]
        words = ["--addr", self.one.socket, "--admin", self.one.admin, "--model", MODEL, "--tables", ",".join(f"feature_{i}" for i in tables),
                 "--keys", self.options.samples, "--zipf", skew, "--timeout", 60, "--quiet", "-o", "json", "--concurrency", in_flight, *flags]
        words += ["--hotness", ",".join(str(HOTNESS[i]) for i in tables), "--pooling", "sum"] if hot else []
        return list(map(str, words + [word for name, value in more.items() for word in (f"--{name}", value)]))

    def lookups(self, skew, in_flight, hot, *flags, **more):
        self.seed += 1
        hits = self.one.hits("host")
        done = json.loads(self.bench.run("hps-bench", *self.words(skew, in_flight, hot, *flags, seed=self.seed, **more), codes=(0, 1)))
        hit, miss = self.one.hits("host") - hits
        return {**done, "hit_rate": 100 * hit / max(1, hit + miss)}

    def usual_lookups(self, seconds):
        return self.lookups(self.options.zipf, 8, True, rate=self.calm()["rate"], duration=seconds)

    def check(self, skew, *what):
        done = self.lookups(skew, 4, True, "--verify", requests=self.options.checks)  # fails if one is wrong
        self.add("checked", what, float(done["rows_checked"]), float(done["rows_wrong"] + done["unknown_keys"]))

    def calm(self):
        """Skewed lookups until the hit rate stays. The usual rate is half of the rate with one call in flight."""
        end, rates = time.monotonic() + self.options.settle_s, []
        while self.usual is None:
            done = self.lookups(self.options.zipf, 1, True, duration=self.options.seconds / 2)
            rates.append(done["hit_rate"])
            if time.monotonic() > end or len(rates) > 3 and max(rates[-3:]) - min(rates[-3:]) < 0.2:
                self.usual = {"rate": round(done["requests_per_s"] / 2, 3), "hit_rate": rates[-1]}
        return self.usual

    def during(self, what, is_over, took, of=lambda: 0):
        """Lookups at the usual rate until `is_over` returns True; a row of the table with `took`, of the largest `of`."""
        words = self.words(self.options.zipf, 8, True, rate=self.calm()["rate"], duration=86400)
        with Watch(self, of) as watch, subprocess.Popen([f"{self.options.bin}/hps-bench", *words], stdout=subprocess.PIPE, text=True) as process:
            try:
                time.sleep(1)
                while process.poll() is None and not is_over():
                    time.sleep(0.2)
                process.send_signal(signal.SIGINT)
                done = json.loads(process.communicate()[0])
            finally:
                process.kill()
        times = (done["latency_us"][of] / 1e3 for of in ("p50", "p99", "max"))
        self.add("busy", (what,), *times, float(sum(done["errors"].values()) + done["unsent"]), watch.disk / self.bytes, watch.memory / GIB, took(watch.most))

    def alone(self):
        """The row with which those during other work are compared."""
        if not self.rows_out["busy"]:
            self.calm()
            end = time.monotonic() + self.options.seconds
            self.during("alone", lambda: time.monotonic() > end, lambda _: f"{self.usual['rate'] * self.options.samples:,.0f} samples/s")


# ---- parts -------------------------------------------------------------------------------------------

def load(run):
    with Watch(run) as watch:
        begin = time.monotonic()
        run.ctl("load", MODEL, "--from", run.files)
        spent = time.monotonic() - begin
    after = Watch(run)
    after.sample()
    run.add("load", (), sum(run.rows) / 1e6, run.bytes / GIB, spent, sum(run.rows) / spent / 1e6, watch.memory / GIB, after.memory / GIB,
            after.disk / run.bytes, max(watch.disk, after.disk) / run.bytes)
    run.stop()  # read_mode auto is chosen at a start
    run.start()


def measure_lookups(run):
    seconds, samples = run.options.seconds, run.options.samples
    for keys, skew in (("uniform", "0"), (f"Zipf {run.options.zipf}", run.options.zipf)):
        if skew != "0":
            run.calm()
        for form, hot in ((f"26 × {samples} keys", False), (f"{samples} samples multi-hot", True)):
            for in_flight in (1, 4):
                run.lookups(skew, in_flight, hot, duration=seconds / 4)
                done = run.lookups(skew, in_flight, hot, duration=seconds)
                run.add("lookups", (keys, form, str(in_flight)), done["latency_us"]["p50"] / 1e3, done["latency_us"]["p99"] / 1e3,
                        done["keys_per_s"] / 1e3, samples * done["requests_per_s"], done["hit_rate"])
        run.check(skew, keys)


def measure_restart(run):
    usual, begin = run.calm(), time.monotonic()
    run.stop()
    stopped = time.monotonic()
    for folder, _, names in os.walk(run.store):
        for name in names:
            with open(os.path.join(folder, name), "rb") as f:
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    evicted = time.monotonic()
    run.start()
    ready = time.monotonic()
    first = done = run.usual_lookups(1)
    while done["hit_rate"] < 0.95 * usual["hit_rate"] and time.monotonic() < ready + run.options.settle_s:
        done = run.usual_lookups(1)
    warm = time.monotonic() - ready
    run.add("restart", (), stopped - begin, ready - evicted, usual["hit_rate"], first["hit_rate"],
            warm if done["hit_rate"] >= 0.95 * usual["hit_rate"] else f"more than {warm:.0f}", first["latency_us"]["p99"] / 1e3)


def measure_second(run):
    if not run.room("a second version", run.estimate):
        return
    run.alone()

    def beside(what, seconds, *verb):
        """A verb of hpsctl during lookups, which begin before it and end at least `seconds` later."""
        took = []

        def call():
            begin = time.monotonic()
            run.ctl(*verb, "--timeout", 86400)
            took.append(time.monotonic() - begin)

        timer, end = threading.Timer(2, call), time.monotonic() + seconds
        timer.start()
        run.during(what, lambda: not timer.is_alive() and time.monotonic() > end, lambda _: f"{took[0]:.1f} s" if took else "failed")
        if not took:
            raise SystemExit(f"hpsctl {verb} failed")

    beside("load of version 2", 0, "load", MODEL, "--from", run.files)
    beside("switch, with warm-up", run.options.seconds, "activate", MODEL, 2)
    begin, both, run.usual = time.monotonic(), used(run.store), None
    run.ctl("unload", MODEL, 1)
    while used(run.store) > 0.7 * both and time.monotonic() < begin + 60:
        time.sleep(0.5)


def measure_updates(run):
    options, missing, begin = run.options, kafka.missing(), time.monotonic()
    n = min(run.rows[0], max(int(options.update_rate * options.update_s), math.ceil(CHANGED * run.rows[0])))
    if missing:
        run.bench.left_out(f"{run.title}: updates", missing)
        return
    if not run.room("updates", n * (600 + 2 * run.largest / run.rows[0]) + run.largest * (run.base_file == "auto")):
        return
    run.alone()
    run.stop()
    run.bench.run("hps-gen", "--tables", 1, "--rows", n, "--dim", DIM, "--out", f"{run.work}/updates")
    with kafka.Broker(f"{run.work}/kafka") as broker:
        broker.create(f"hps_et.{MODEL}.feature_0", 4)
        run.start(update_source={"type": "kafka", "brokers": broker.bootstrap, "start": "earliest"})
        run.usual_lookups(options.seconds)

        def lag():
            return max((int(ms) / 1e3 for ms in re.findall(r'"lag_ms": ?"?(\d+)', run.ctl("updates", "-o", "json"))), default=0)

        def merges(done=True):  # or that run
            if not done:
                return sum(name.startswith("base-") for name in os.listdir(f"{run.store}/hpsd")) - n_bases
            with open(run.one.log, encoding="utf-8") as log:
                return log.read().count("base file merged")

        n_merged, n_bases, took, begin = merges(), 0, [], time.monotonic()
        n_bases = merges(False)
        with subprocess.Popen([f"{options.bin}/hps-publish", "-b", broker.bootstrap, "-m", MODEL, "-t", "feature_0", "--from", f"{run.work}/updates/feature_0",
                               "-r", str(options.update_rate), "--row-dtype", run.dtype, "-q"], stdout=subprocess.DEVNULL) as publish:
            def published():
                if publish.poll() is not None and not took:
                    took.append(time.monotonic() - begin)
                return bool(took)

            try:
                run.during(f"{options.update_rate:,} updates/s", lambda: published() or merges(False), lambda most: f"{most:.2f} s of lag", lag)
                if run.base_file == "auto":
                    end = time.monotonic() + options.settle_s
                    run.during("updates and a merge", lambda: published() and merges() > n_merged or time.monotonic() > end,
                               lambda most: f"{most:.2f} s of lag", lag)
                publish.wait()
            finally:
                publish.kill()
        if publish.returncode != 0 or not published():
            raise SystemExit(f"hps-publish: exit code {publish.returncode}")
        begin = time.monotonic()
        run.ctl("wait-for", "now", "--timeout", 3600)
        run.add("updates", (), n / 1e6, n / took[0], time.monotonic() - begin, float(merges() - n_merged))
        run.check(options.zipf, "after updates")
        run.stop()
    for name in ("kafka", "updates"):
        shutil.rmtree(f"{run.work}/{name}")


PARTS = {"lookups": measure_lookups, "restart": measure_restart, "second": measure_second, "updates": measure_updates}


# ---- runs --------------------------------------------------------------------------------------------

class Bench(dlrm.Bench):
    notes = []

    def left_out(self, what, why):
        self.report.left_out(what, why)
        self.notes.append(f"Left out: {what}: {why}.")

    def plan(self, name):
        """(whether the run can be made, whether the largest tables must share a file)."""
        options, rows, row_bytes = self.options, rows_of(self.options, name), RUNS[name][1]
        total, largest, store = sum(rows) * row_bytes, max(rows) * row_bytes, max(estimate(rows, row_bytes, base_file) for base_file in options.base_file.split(","))
        free, memory = shutil.disk_usage(self.work).free, kib("/proc/meminfo", "MemAvailable")
        whole, shared = total + store + SPARE_DISK, max(total, total - (len(LARGEST) - 1) * largest + store) + SPARE_DISK
        needs = f"needs {whole / GIB:.1f} GiB of disk ({shared / GIB:.1f} with one file for the largest tables; {store / GIB:.1f} more for a " \
                f"second version) and {(options.memory + SPARE_MEMORY) / GIB:.1f} GiB of memory; free are {free / GIB:.1f} and {memory / GIB:.1f} GiB"
        print(f"size        {name}, {total / GIB:.1f} GiB of rows, {needs}", flush=True)
        if free < shared or memory < options.memory + SPARE_MEMORY:
            self.left_out(name, needs)
            return False, False
        return True, free < whole + store * ("second" in options.parts)

    def generate(self, name, shared):
        files, begin = f"{self.work}/files", time.monotonic()
        self.run("hps-gen", "--preset", "dlrm-dcnv2", "--scale", RUNS[name][2] * self.options.scale, "--dtype", RUNS[name][0], "--format", "npy",
                 "--out", files)
        self.notes.append(f"{name}: files written in {time.monotonic() - begin:.0f} s{', one file for the five largest tables' if shared else ''}.")
        if shared:
            os.unlink(f"{files}/manifest.json")  # it has checksums
            for file in os.listdir(files):
                if re.match(rf"feature_({'|'.join(map(str, LARGEST[1:]))})\.", file):
                    os.unlink(f"{files}/{file}")
                    os.link(f"{files}/feature_0.{file.split('.', 1)[1]}", f"{files}/{file}")
        return files

    def measure(self, name, tables):
        base_files = self.options.base_file.split(",")
        possible, shared = self.plan(name)
        files = self.generate(name, shared) if possible else None
        for base_file in base_files if possible else []:
            run = Run(self, name, files, shared, base_file)
            try:
                for part in [load] + [PARTS[part] for part in self.options.parts.split(",") if part]:
                    if run.one is None:
                        run.start()
                    part(run)
            finally:
                for table, rows in run.rows_out.items():
                    tables[table] += rows
                run.stop()
                shutil.rmtree(run.work, ignore_errors=True)
        shutil.rmtree(files or "", ignore_errors=True)


    def write(self, tables, begin):
        about = f"The 26 tables of DLRM-DCNv2, rows of {DIM} values, and a host map of {self.options.memory / GIB:.3g} GiB. {' '.join(self.notes)}"
        self.text = ["# More rows than memory", "", textwrap.fill(about, 100), ""]
        for name, (title, note, head) in TABLES.items():
            if tables[name]:
                self.table(title, note, head, tables[name])
        self.page(f"{self.options.out}/{self.options.name}.md", "all runs", begin)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin")
    parser.add_argument("jsonl")
    parser.add_argument("--out", default=f"{dlrm.ROOT}/build/bench")
    parser.add_argument("--name", default="size", help="of the page NAME.md")
    parser.add_argument("--runs", default=",".join(RUNS))
    parser.add_argument("--base-file", default="auto", help="auto, off, or auto,off")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the rows, above 0 and up to 1")
    parser.add_argument("--parts", default=",".join(PARTS), help="after the load")
    parser.add_argument("--dir", default=os.environ.get("TMPDIR", "/var/tmp"))
    parser.add_argument("--memory", type=float, default=4, help="of the host map, GiB")
    parser.add_argument("--read-mode", default="auto", help="direct: as if the store were larger than memory")
    parser.add_argument("--samples", type=int, default=64, help="of a call")
    parser.add_argument("--zipf", default="1.05")
    parser.add_argument("--seconds", type=float, default=20, help="of a measurement")
    parser.add_argument("--settle-s", type=float, default=600, help="most seconds until a hit rate is taken as it is")
    parser.add_argument("--checks", type=int, default=50, help="calls whose answers are checked")
    parser.add_argument("--update-rate", type=int, default=50_000)
    parser.add_argument("--update-s", type=float, default=60, help="least seconds of updates, if the first table has enough rows")
    options = parser.parse_args()
    options.memory = int(options.memory * GIB)
    return options


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options, begin = arguments(), time.monotonic()
    for path in (os.path.dirname(os.path.abspath(options.jsonl)), options.out, options.dir):
        os.makedirs(path, exist_ok=True)
    work = tempfile.mkdtemp(prefix="hps-size-", dir=options.dir)
    bench, tables = Bench(options, dlrm.Report(options.jsonl, "size"), work), {name: [] for name in TABLES}
    try:
        for name in options.runs.split(","):
            bench.measure(name, tables)
    except KeyboardInterrupt:
        bench.report.exit_code = 130
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if tables["load"]:
            bench.write(tables, begin)
    return bench.report.exit_code


if __name__ == "__main__":
    sys.exit(main())
