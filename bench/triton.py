#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Triton's backend "hps": compared with the C library alone, with a backend that returns zeroes of the same size in the same
genuine Triton, and with docs/examples/triton in Triton's Python backend. The sides of a comparison take turns; medians of the ratios
of rounds.

usage: triton.py BIN JSONL   (BIN has hpsd, ../triton the backend; PATH has perf_analyzer; runs in the environment of tests/interop)
"""
import asyncio
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading

import numpy as np

from python_client import DIM, KEYS, NAMES, ROOT, ROWS, TABLES, Daemon, Report

sys.path[:0] = [os.path.join(ROOT, "tests", name) for name in ("e2e", "lib", "interop")]
import genuine  # noqa: E402

SMALL, ROUNDS, STEPS, WINDOW_MS = 64, 5, 50, "600"
DELAY_S = 0.1
CONFIG = """
backend: "BACKEND"
max_batch_size: 64
input [ { name: "KEYS" data_type: TYPE_INT64 dims: [ -1 ] }, { name: "NUMKEYS" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""


def perf_analyzer(work, model, address, callers):
    """(calls/s, p50 in us)"""
    done = subprocess.run(["perf_analyzer", "-m", model, "-i", "grpc", "-u", address, "--input-data", f"{work}/requests-{model}.json",
                           "--measurement-interval", WINDOW_MS, "--stability-percentage", "999", "--max-trials", "3", "--concurrency-range", str(callers), "-f", f"{work}/out.csv", "--verbose-csv"],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"triton: perf_analyzer failed: {done.stdout}{done.stderr}")
    with open(f"{work}/out.csv", encoding="utf-8") as f:
        found, = csv.DictReader(f)
    return float(found["Inferences/Second"]), float(found["p50 latency"])


def requests(work, model, batched):
    """The file of STEPS requests; hpsd's own models have a batch dimension in their shapes."""
    keys = np.random.default_rng(3).integers(0, ROWS, (STEPS, TABLES * SMALL))
    shape = [] if batched else [1]
    steps = [{"KEYS": {"content": row.tolist(), "shape": [*shape, TABLES * SMALL]},
              "NUMKEYS": {"content": [SMALL] * TABLES, "shape": [*shape, TABLES]}} for row in keys]
    with open(f"{work}/requests-{model}.json", "w", encoding="utf-8") as f:
        json.dump({"data": steps}, f)


def add_model(where, name, backend, more=""):
    os.makedirs(f"{where}/{name}/1")
    with open(f"{where}/{name}/config.pbtxt", "w", encoding="utf-8") as f:
        f.write(CONFIG.replace("BACKEND", backend) + more)
    return f"{where}/{name}/1"


def repositories(work, daemon):
    """Models of the C backends, and the same of the example for the Python backend."""
    add_model(f"{work}/repository", "default", "hps")
    add_model(f"{work}/repository", "zeros", "peer")
    place = add_model(f"{work}/python", "default", "python", 'parameters: { key: "addr" value: { string_value: "%s" } }\n' % daemon.unix)
    shutil.copy(f"{ROOT}/docs/examples/triton/model.py", place)
    shutil.copytree(f"{ROOT}/clients/python/hpsd", f"{place}/hpsd")
    return f"{work}/repository", f"{work}/python"


def median_ratio(above, below):
    return statistics.median(a / b for a, b in zip(above, below))


# ---- in a host of our own ----------------------------------------------------------------------------

def host(build, address, lines):
    """Answers of tests/e2e/triton_host.c."""
    done = subprocess.run([f"{build}/tests/triton_host", f"{build}/triton/hps/libtriton_hps.so", "default", str(ROWS),
                           ",".join([str(DIM)] * TABLES), f"addr={address}"], capture_output=True,
                          input="".join(f"{line}\n" for line in ("unchecked", "load 1", *lines)), text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"triton: triton_host failed: {done.stdout}{done.stderr}")
    return done.stdout.splitlines()[3:-1]


class DelayedReplies:
    """A relay from `address` to `to`. Its thread delivers each piece of a reply DELAY_S later."""

    def __init__(self, to):
        self.host, self.port = to.rsplit(":", 1)
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        server = asyncio.run_coroutine_threadsafe(asyncio.start_server(self.serve, "127.0.0.1", 0), self.loop).result()
        self.address = "127.0.0.1:%d" % server.sockets[0].getsockname()[1]

    async def serve(self, reader, writer):
        up = await asyncio.open_connection(self.host, int(self.port))

        async def forward():
            while data := await reader.read(1 << 16):
                up[1].write(data)
            up[1].close()

        async def back():
            while data := await up[0].read(1 << 16):
                self.loop.call_later(DELAY_S, writer.write, data)
        await asyncio.gather(forward(), back())


def measure_host(report, build, daemon):
    case = f"{TABLES} x {KEYS} keys, dim {DIM}"
    lines = [f"measure {daemon.unix} {TABLES} {KEYS} {in_flight} {n}" for in_flight, n in ((1, 60), (4, 60))]
    for in_flight, said in zip((1, 4), host(build, daemon.unix, lines)):
        backend, alone = (int(word) for word in said.split())
        report(f"{case}, {in_flight} in flight", "C library / backend", alone / backend, "ratio", at_least=0.95)
    said = host(build, DelayedReplies(daemon.tcp).address, ["many 16 0", "many 16 0"])[-1]
    n_right, took_us = map(int, said.split())
    if n_right != 16:
        raise SystemExit("triton: a request through the relay failed")
    report("16 requests, replies after 100 ms", "all answered", took_us / 1e3, "ms", at_most=250)


# ---- in the genuine server ---------------------------------------------------------------------------

def measure_servers(report, work, daemon, server, slow):
    """`slow` has the Python backend."""
    case = f"{TABLES} x {SMALL} keys, dim {DIM}"
    ways = {"backend": ("default", server.rpc), "zeros": ("zeros", server.rpc), "hpsd": ("default", daemon.tcp),
            "model.py": ("default", slow.rpc)}
    for callers in (4, 1):
        found = {name: [] for name in ways}
        for number in range(ROUNDS + 1):
            for name, (model, address) in ways.items():
                requests(work, model, name != "hpsd")
                one = perf_analyzer(work, model, address, callers)
                if number > 0:
                    found[name].append(one)
        rates, latencies = ({name: [one[i] for one in of] for name, of in found.items()} for i in (0, 1))
        where = f"{case}, {callers} caller{'s' if callers > 1 else ''}"
        for name in ways:
            report(where, f"{name}, calls", statistics.median(rates[name]), "1/s")
            report(where, f"{name}, p50", statistics.median(latencies[name]), "us")
        report(where, "backend / model.py, calls", median_ratio(rates["backend"], rates["model.py"]), "ratio")
        if callers > 1:
            report(where, "backend / zeros, calls", median_ratio(rates["backend"], rates["zeros"]), "ratio", at_least=0.7)
        else:
            both = [a + b for a, b in zip(latencies["zeros"], latencies["hpsd"])]
            report(where, "backend / (zeros + hpsd), p50", median_ratio(latencies["backend"], both), "ratio", at_most=1.1)


def main():
    bin_dir, path = sys.argv[1:]
    build = os.path.dirname(os.path.abspath(bin_dir))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    report = Report(path, "triton")
    with tempfile.TemporaryDirectory(prefix="hps-bench-") as work:
        daemon = Daemon(bin_dir, work)
        try:
            measure_host(report, build, daemon)
            why = genuine.missing_python() or (None if shutil.which("perf_analyzer") else "perf_analyzer is not in PATH")
            if why:
                report.left_out("the genuine Triton", why)
                return report.exit_code
            ours, python = repositories(work, daemon)
            backends = {name: f"{build}/triton/{name}/libtriton_{name}.so" for name in ("hps", "peer")}
            os.makedirs(f"{work}/slow")
            with genuine.Genuine(work, ours, f"--backend-config=hps,addr={daemon.unix}", backends=backends) as server, \
                    genuine.Genuine(f"{work}/slow", python) as slow:
                measure_servers(report, work, daemon, server, slow)
        finally:
            daemon.close()
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
