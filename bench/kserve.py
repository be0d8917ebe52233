#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same look-ups by hps.v1, by KServe v2 over gRPC and by KServe v2 over HTTP/1.1: CPU time of hpsd for a call. All of
them take turns, so that each meets what the machine does beside; medians of the ratios of rounds. Beside them latencies of
a session of 2,000 keys, as HPS's profiler has published its own.

usage: kserve.py BIN JSONL   (hpsd and hps-bench are in BIN; results are written to JSONL, as those of ./dev bench)
"""
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import grpc
import numpy as np

from python_client import DIM, KEYS, LOOKUP, NAMES, ROWS, TABLES, Daemon, Report, message

INFER = "/inference.GRPCInferenceService/ModelInfer"
LENGTH = b"inference-header-content-length:"
ROUNDS = 15
SESSION_KEYS = 2000
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


def infer_message(model, inputs):
    """ModelInferRequest: model_name 1, inputs 5 (name 1, datatype 2, shape 3), raw_input_contents 7."""
    out = field(1, model.encode())
    for name, values in inputs:
        out += field(5, field(1, name.encode()) + field(2, type_of(values).encode()) + field(3, varint(len(values))))
    return out + b"".join(field(7, values.tobytes()) for _, values in inputs)


def type_of(values):
    return {"<i8": "INT64", "<i4": "INT32"}[values.dtype.str]


def http_message(model, inputs):
    """Head and body of POST …/infer, tensors behind the JSON, rows as well."""
    listed = [{"name": name, "datatype": type_of(values), "shape": [len(values)],
               "parameters": {"binary_data_size": values.nbytes}} for name, values in inputs]
    about = json.dumps({"inputs": listed, "parameters": {"binary_data_output": True}}).encode()
    body = b"".join([about, *(values.tobytes() for _, values in inputs)])
    head = (f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: hpsd\r\nInference-Header-Content-Length: {len(about)}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n")
    return head.encode() + body


class Http:
    """One connection that is kept; answers land in one piece of memory."""

    def __init__(self, address):
        if address.startswith("unix:"):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(address[5:])
        else:
            host, port = address.rsplit(":", 1)
            self.socket = socket.create_connection((host, int(port)))
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.memory = memoryview(bytearray(16 << 20))

    def ask(self, request):
        """The tensors of the answer, until the next call."""
        self.socket.sendall(request)
        got, end = 0, -1
        while end < 0:
            n = self.socket.recv_into(self.memory[got:])
            if n == 0:
                raise SystemExit("kserve: hpsd closed the connection")
            got += n
            end = bytes(self.memory[:min(got, 4096)]).find(b"\r\n\r\n")
        head = bytes(self.memory[:end]).lower()
        if not head.startswith(b"http/1.1 200 "):
            raise SystemExit(f"kserve: hpsd answered {bytes(self.memory[:got])!r}")
        size, about = (int(head.split(name)[1].split(b"\r\n")[0]) for name in (b"\r\ncontent-length:", LENGTH))
        while got < end + 4 + size:
            n = self.socket.recv_into(self.memory[got:])
            if n == 0:
                raise SystemExit("kserve: hpsd closed the connection")
            got += n
        return self.memory[end + 4 + about:end + 4 + size]


def stub(address, path):
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    return grpc.insecure_channel(address, options=options).unary_unary(path)


def hps_inputs(keys):
    """KEYS and NUMKEYS of {table: keys}."""
    return [("KEYS", np.concatenate([keys[name] for name in NAMES]).astype("<i8")),
            ("NUMKEYS", np.array([len(keys[name]) for name in NAMES], "<i4"))]


# ---- CPU time ----------------------------------------------------------------------------------------

def cpu_s(pid):
    """That all threads of a process have had."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as f:
            total += int(f.read().split()[0])
    return total / 1e9


def in_turn(pid, calls, *functions):
    """Of each function the CPU time of the server for a call, round by round."""
    of = [[] for _ in functions]
    for number in range(ROUNDS + 2):
        for function, times in zip(functions, of):
            begin = cpu_s(pid)
            for _ in range(calls):
                function()
            if number >= 2:  # before, buffers and windows are opened
                times.append((cpu_s(pid) - begin) / calls)
    return of


def compare(report, daemon, case, calls, keys, tables, model, inputs):
    """hps.v1, KServe over gRPC and over HTTP, for the same keys."""
    lookup, infer, http = stub(daemon.tcp, LOOKUP), stub(daemon.tcp, INFER), Http(daemon.kserve_tcp)
    asked = message(tables, keys).SerializeToString()
    by_grpc, by_http = infer_message(model, inputs), http_message(model, inputs)
    rows = np.concatenate([daemon.rows[keys[name]].ravel() for name in tables]).tobytes()
    if bytes(http.ask(by_http)) != rows or not infer(by_grpc, timeout=30).endswith(rows):
        raise SystemExit(f"kserve: {case}: a row is wrong")
    v1, ours, web = in_turn(daemon.process.pid, calls, lambda: lookup(asked, timeout=30),
                            lambda: infer(by_grpc, timeout=30), lambda: http.ask(by_http))
    for name, times in (("Lookup", v1), ("ModelInfer", ours), ("HTTP", web)):
        report(case, f"{name}, CPU of hpsd", statistics.median(times) * 1e6, "us")
    return v1, ours, web


def ratio(above, below):
    return statistics.median(a / b for a, b in zip(above, below))


def measure(report, daemon):
    rng = np.random.default_rng(3)
    keys = {name: rng.integers(0, ROWS, KEYS) for name in NAMES}
    case = f"{TABLES} x {KEYS} keys, dim {DIM}"
    v1, ours, web = compare(report, daemon, case, 5, keys, NAMES, "default", hps_inputs(keys))
    report(case, "Lookup / ModelInfer", ratio(v1, ours), "ratio", at_least=0.95)
    report(case, "ModelInfer / HTTP", ratio(ours, web), "ratio", at_least=0.9)
    one = {name: keys[name][:1] for name in NAMES}
    of_one = [(NAMES[0], one[NAMES[0]].astype("<i8"))]
    for case, tables, model, inputs in ((f"{TABLES} x 1 key", NAMES, "default", hps_inputs(one)),
                                        ("1 key, default.tables", NAMES[:1], "default.tables", of_one)):
        v1, ours, web = compare(report, daemon, case, 300, one, tables, model, inputs)
        report(case, "Lookup / ModelInfer", ratio(v1, ours), "ratio", at_least=0.9)
        report(case, "ModelInfer / HTTP", ratio(ours, web), "ratio", at_least=0.9)


# ---- a session of 2,000 keys -------------------------------------------------------------------------

def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        names = [line.split(":", 1)[1].strip() for line in f if line.startswith("model name")]
    return f"{len(os.sched_getaffinity(0))} CPUs of {names[0] if names else platform.machine()}"


def session_by_http(address, n_calls=3000):
    """(mean, p99) in ms: other keys each time, one call under way."""
    http, rng = Http(address), np.random.default_rng(4)
    took = []
    for number in range(n_calls + 200):
        keys = rng.integers(0, ROWS, SESSION_KEYS).astype("<i8")
        request = http_message("default.tables", [(NAMES[0], keys)])
        begin = time.perf_counter()
        http.ask(request)
        if number >= 200:
            took.append((time.perf_counter() - begin) * 1e3)
    return statistics.mean(took), sorted(took)[len(took) * 99 // 100]


def session_by_lookup(bin_dir, address):
    """The same by hps-bench."""
    out = subprocess.run([f"{bin_dir}/hps-bench", "--addr", address, "--tables", NAMES[0], "--rows", str(ROWS), "--keys",
                          str(SESSION_KEYS), "--concurrency", "1", "--requests", "3000", "--quiet", "-o", "json"],
                         check=True, capture_output=True, text=True).stdout
    latency = json.loads(out)["latency_us"]
    return latency["mean"] / 1e3, latency["p99"] / 1e3


def measure_session(report, daemon, bin_dir):
    print(f"kserve      one table, {SESSION_KEYS} keys a call, one call under way, dim {DIM}, host map; {machine()}")
    print(f"kserve      HPS published of a look-up session of as many keys, dim 16, within its process: mean {PUBLISHED['mean']} ms, p99 {PUBLISHED['p99']} ms")
    for way, function, addresses in (("Lookup", lambda address: session_by_lookup(bin_dir, address), (daemon.tcp, daemon.unix)),
                                     ("HTTP", session_by_http, (daemon.kserve_tcp, daemon.kserve_unix))):
        for kind, address in zip(("TCP", "Unix socket"), addresses):
            mean, p99 = function(address)
            report(f"{SESSION_KEYS} keys, {way}, {kind}", "mean", mean, "ms")
            report(f"{SESSION_KEYS} keys, {way}, {kind}", "p99", p99, "ms")


def main():
    bin_dir, path = sys.argv[1:]
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hps-bench-") as work:
        daemon = Daemon(bin_dir, work)
        try:
            report = Report(path, "kserve")
            measure(report, daemon)
            measure_session(report, daemon, bin_dir)
        finally:
            daemon.close()


if __name__ == "__main__":
    main()
