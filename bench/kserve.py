#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CPU time of hpsd for the same lookups: hps.v1 compared with KServe v2 over gRPC, each by a grpcio stub, and
KServe v2 over gRPC compared with HTTP/1.1, each by perf_analyzer. All take turns, so that each meets the same load of
the machine; medians of the ratios of rounds. Also latencies of a session of 2,000 keys, as published by HPS's profiler.

usage: kserve.py BIN JSONL   (BIN has hpsd and hps-bench, PATH has perf_analyzer, which ./dev bench installs; JSONL
                              receives the results in the format of ./dev bench)
"""
import csv
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile

import grpc
import numpy as np

from python_client import DIM, KEYS, LOOKUP, NAMES, ROWS, TABLES, Daemon, Report, message

INFER = "/inference.GRPCInferenceService/ModelInfer"
ROUNDS = 15
SESSION_KEYS, SESSION_CALLS = 2000, 3000
PUBLISHED = {"mean": 0.243, "p99": 0.346}  # ms; NVIDIA's hps_profiler, one table of 16 values a row, rows on a GPU


# ---- requests ----------------------------------------------------------------------------------------

def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes(out + bytes([number]))


def field(number, payload):
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def infer_message(keys, counts):
    """ModelInferRequest: model_name 1, inputs 5 (name 1, datatype 2, shape 3), raw_input_contents 7."""
    inputs = ((b"KEYS", b"INT64", keys.astype("<i8")), (b"NUMKEYS", b"INT32", np.array(counts, "<i4")))
    listed = [field(5, field(1, name) + field(2, kind) + field(3, varint(len(values)))) for name, kind, values in inputs]
    return field(1, b"default") + b"".join(listed) + b"".join(field(7, values.tobytes()) for _, _, values in inputs)


def stub(address, path):
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    return grpc.insecure_channel(address, options=options).unary_unary(path)


def run(*args):
    done = subprocess.run(list(map(str, args)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"kserve: {args[0]} failed: {done.stdout}{done.stderr}")
    return done.stdout


def perf_analyzer(work, protocol, address, keys, counts):
    """A request for each row of `keys`, one in flight; (mean, p99) of the latencies in ms."""
    inputs = {"NUMKEYS": {"content": counts, "shape": [1, len(counts)]}}
    with open(f"{work}/requests.json", "w", encoding="utf-8") as f:
        json.dump({"data": [{"KEYS": {"content": row.tolist(), "shape": [1, len(row)]}, **inputs} for row in keys]}, f)
    run("perf_analyzer", "-m", "default", "-i", protocol, "-u", address, "--input-data", f"{work}/requests.json",
        "--request-count", len(keys), "-f", f"{work}/latencies.csv", "--verbose-csv")
    with open(f"{work}/latencies.csv", encoding="utf-8") as f:
        latency, = csv.DictReader(f)
    return float(latency["Avg latency"]) / 1e3, float(latency["p99 latency"]) / 1e3


def hps_bench(bin_dir, address):
    """The same for Lookup, with one table."""
    said = run(f"{bin_dir}/hps-bench", "--addr", address, "--tables", NAMES[0], "--rows", ROWS, "--keys", SESSION_KEYS,
               "--concurrency", 1, "--requests", SESSION_CALLS, "--quiet", "-o", "json")
    latency = json.loads(said)["latency_us"]
    return latency["mean"] / 1e3, latency["p99"] / 1e3


# ---- CPU time ----------------------------------------------------------------------------------------

def cpu_s(pid):
    """CPU time of all threads of a process."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as f:
            total += int(f.read().split()[0])
    return total / 1e9


def ratio(above, below):
    return statistics.median(a / b for a, b in zip(above, below))


def measure(report, daemon, work, n_tables, n_keys, n_calls, at_least):
    """A turn makes n_calls[0] calls by grpcio, with the same keys, or n_calls[1] by perf_analyzer, with new keys each."""
    of_calls, counts = np.random.default_rng(3).integers(0, ROWS, (n_calls[1], n_tables * n_keys)), [n_keys] * n_tables
    by_table = dict(zip(NAMES, of_calls[0].reshape(n_tables, n_keys)))
    asked, infer_asked = message(by_table, by_table).SerializeToString(), infer_message(of_calls[0], counts)
    lookup, infer = stub(daemon.tcp, LOOKUP), stub(daemon.tcp, INFER)
    if not infer(infer_asked, timeout=30).endswith(daemon.rows[of_calls[0]].tobytes()):
        raise SystemExit(f"kserve: {n_tables} x {n_keys} keys: a row is wrong")
    ways = {"Lookup": (n_calls[0], lambda: [lookup(asked, timeout=30) for _ in range(n_calls[0])]),
            "ModelInfer": (n_calls[0], lambda: [infer(infer_asked, timeout=30) for _ in range(n_calls[0])]),
            "perf_analyzer, gRPC": (n_calls[1], lambda: perf_analyzer(work, "grpc", daemon.tcp, of_calls, counts)),
            "perf_analyzer, HTTP": (n_calls[1], lambda: perf_analyzer(work, "http", daemon.kserve_tcp, of_calls, counts))}
    times = {name: [] for name in ways}
    for number in range(ROUNDS + 2):
        for name, (n, turn) in ways.items():
            begin = cpu_s(daemon.process.pid)
            turn()
            if number >= 2:  # the first turns open buffers and windows
                times[name].append((cpu_s(daemon.process.pid) - begin) / n)
    case = f"{n_tables} x {n_keys} keys, dim {DIM}"
    for name, of in times.items():
        report(case, f"{name}, CPU", statistics.median(of) * 1e6, "us")
    report(case, "Lookup / ModelInfer", ratio(times["Lookup"], times["ModelInfer"]), "ratio", at_least=at_least)
    report(case, "gRPC / HTTP", ratio(times["perf_analyzer, gRPC"], times["perf_analyzer, HTTP"]), "ratio", at_least=0.9)


# ---- a session of 2,000 keys -------------------------------------------------------------------------

def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        names = [line.split(":", 1)[1].strip() for line in f if line.startswith("model name")]
    return f"{len(os.sched_getaffinity(0))} CPUs of {names[0] if names else platform.machine()}"


def measure_session(report, daemon, bin_dir, work):
    print(f"kserve      one table, {SESSION_KEYS} keys a call, one call in flight, dim {DIM}, host map; {machine()}")
    print(f"kserve      HPS published for a lookup session of {SESSION_KEYS} keys, dim 16, in its own process: mean {PUBLISHED['mean']} ms, p99 {PUBLISHED['p99']} ms")
    keys = np.random.default_rng(4).integers(0, ROWS, (SESSION_CALLS, SESSION_KEYS))
    for way, (mean, p99) in (
            ("Lookup, TCP", hps_bench(bin_dir, daemon.tcp)), ("Lookup, Unix socket", hps_bench(bin_dir, daemon.unix)),
            ("ModelInfer, TCP", perf_analyzer(work, "grpc", daemon.tcp, keys, [SESSION_KEYS])),
            ("ModelInfer, Unix socket", perf_analyzer(work, "grpc", daemon.unix, keys, [SESSION_KEYS])),
            ("HTTP, TCP", perf_analyzer(work, "http", daemon.kserve_tcp, keys, [SESSION_KEYS]))):
        report(f"{SESSION_KEYS} keys, {way}", "mean", mean, "ms")
        report(f"{SESSION_KEYS} keys, {way}", "p99", p99, "ms")


def main():
    bin_dir, path = sys.argv[1:]
    os.makedirs(os.path.dirname(path), exist_ok=True)
    report = Report(path, "kserve")
    if shutil.which("perf_analyzer") is None:
        report.left_out("all", "perf_analyzer is not in PATH; ./dev bench kserve installs it (x86-64, needs network)")
        return report.exit_code
    with tempfile.TemporaryDirectory(prefix="hps-bench-") as work:
        daemon = Daemon(bin_dir, work)
        try:
            measure(report, daemon, work, TABLES, KEYS, (5, 20), 0.95)
            measure(report, daemon, work, TABLES, 1, (300, 3000), 0.9)
            measure(report, daemon, work, 1, 1, (300, 3000), 0.9)
            measure_session(report, daemon, bin_dir, work)
        finally:
            daemon.close()
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
