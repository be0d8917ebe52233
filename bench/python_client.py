#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python client compared with a bare grpcio stub that returns bytes, lookup_flat with tritonclient, and
EmbeddingBagCollection with the same lookups by hand. The sides of a comparison take turns, so that each meets the same
load of the machine; medians of rounds.

usage: python_client.py BIN JSONL   (BIN has hpsd and hps-gen; JSONL receives the results in the format of ./dev bench)
"""
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time

import grpc
import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "clients", "python"))
import hpsd  # noqa: E402
from hpsd import _messages  # noqa: E402

LookupRequest, TableQuery = _messages.class_of("LookupRequest"), _messages.class_of("TableQuery")

TABLES, KEYS, DIM, ROWS = 26, 2048, 32, 100_000
BAGS, BAG_KEYS = 512, 4  # of each table
LOOKUP = "/hps.v1.ParameterServer/Lookup"
NAMES = [f"t{i}" for i in range(TABLES)]


class Report:
    """Writes the table and the file in the format of bench/report.c."""

    def __init__(self, path, bench="python"):
        self.file, self.bench, self.exit_code = open(path, "w", encoding="utf-8"), bench, 0
        print(f"{'BENCH':11} {'CASE':34} {'METRIC':24} {'VALUE':>12} {'UNIT':8} TARGET")

    def __call__(self, case, metric, value, unit, at_least=None, at_most=None):
        value = float(value)  # numpy's numbers would not be JSON
        line = {"bench": self.bench, "case": case, "metric": metric, "value": float(f"{value:.6g}"), "unit": unit}
        text = ""
        if at_least is not None or at_most is not None:
            target = at_least if at_most is None else at_most
            met = value >= target if at_most is None else value <= target
            line.update(target=target, met=met)
            text = f"{'>=' if at_most is None else '<='} {target:g} {'met' if met else 'MISSED'}"
        print(f"{self.bench:11} {case:34} {metric:24} {value:12.4g} {unit:8} {text}", flush=True)
        self.write(line)

    def left_out(self, what, why):
        """Report a missing peer; the benchmark then exits with 77."""
        self.exit_code = 77
        print(f"{self.bench:11} {what:34} LEFT OUT: {why}", flush=True)
        self.write({"bench": self.bench, "case": what, "left_out": why})

    def write(self, line):
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()


class Daemon:
    """hpsd with tables of random rows, the same in each, on TCP and on a Unix socket."""

    def __init__(self, bin_dir, work):
        flags = []
        self.rows = np.random.default_rng(1).random((ROWS, DIM), np.float32)
        for name in NAMES:
            np.save(f"{work}/{name}.npy", self.rows)
            flags += ["--table", f"{name}={work}/{name}.npy"]
        self.log = open(f"{work}/log", "wb")
        self.process = subprocess.Popen(
            [f"{bin_dir}/hpsd", "--listen", "127.0.0.1:0", "--listen", f"unix:{work}/hpsd.sock",
             "--kserve-listen", "127.0.0.1:0", "--kserve-listen", f"unix:{work}/kserve.sock", "--http-listen", "127.0.0.1:0",
             "--state-dir", f"{work}/state", *flags], stdout=subprocess.PIPE, stderr=self.log, text=True)
        said = dict(pair.split("=", 1) for pair in self.line("listening").split()[1:])
        self.tcp, self.unix = said["grpc"].split(",")
        self.kserve_tcp, self.kserve_unix = said["kserve"].split(",")
        self.line("ready")

    def line(self, word):
        if not select.select([self.process.stdout], [], [], 120)[0]:
            raise SystemExit(f"hpsd was not {word} within 120 s")
        line = self.process.stdout.readline()
        if not line.startswith(word):
            raise SystemExit(f"hpsd printed {line!r}, expected {word!r}; see {self.log.name}")
        return line

    def close(self):
        self.process.terminate()
        self.process.wait(60)


def stub(address):
    channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1),
                                                      ("grpc.max_send_message_length", -1)])
    return channel.unary_unary(LOOKUP, LookupRequest.SerializeToString)


def message(tables, keys):
    queries = [TableQuery(table=name, keys=keys[name].tobytes()) for name in tables]
    return LookupRequest(model="default", queries=queries)


def turns(rounds, calls, *functions, clock=time.perf_counter):
    """The median time of a call of each function, and the median of (first function's time / its time)."""
    times = [[] for _ in functions]
    for function in functions:
        function()
    for _ in range(rounds):
        for function, of in zip(functions, times):
            begin = clock()
            for _ in range(calls):
                function()
            of.append((clock() - begin) / calls)
    ratios = [statistics.median(a / b for a, b in zip(times[0], of)) for of in times]
    return [statistics.median(of) for of in times], ratios


def measure_client(report, daemon, keys):
    for kind, address in (("", daemon.tcp), (", unix socket", daemon.unix)):
        target = {"at_least": 0.9} if not kind else {}
        call, client = stub(address), hpsd.connect(address)
        request = message(NAMES, keys)
        (bare, ours), ratios = turns(30, 3, lambda: call(request, timeout=30), lambda: client.lookup(keys))
        case = f"{TABLES} x {KEYS} keys, dim {DIM}{kind}"
        report(case, "bare stub", bare * 1e3, "ms")
        report(case, "client", ours * 1e3, "ms")
        report(case, "stub / client", ratios[1], "ratio", **target)
        one = {NAMES[0]: keys[NAMES[0]][:1]}
        target = {"at_most": 1.3} if not kind else {}
        (bare, ours), ratios = turns(60, 100, lambda: call(message(one, one), timeout=30),
                                     lambda: client.lookup(NAMES[0], one[NAMES[0]]))
        report(f"1 key{kind}", "bare stub", bare * 1e6, "us")
        report(f"1 key{kind}", "client", ours * 1e6, "us")
        report(f"1 key{kind}", "client / stub", 1 / ratios[1], "ratio", **target)


def measure_flat(report, daemon):
    """The same keys by tritonclient, lookup_flat and lookup."""
    try:
        import tritonclient.grpc as triton
    except ImportError as error:
        report.left_out("lookup_flat, tritonclient", str(error))
        return
    theirs, ours = triton.InferenceServerClient(daemon.tcp), hpsd.connect(daemon.tcp)
    for n_keys in (1, 64):
        keys = np.random.default_rng(4).integers(0, ROWS, TABLES * n_keys)
        counts = np.full(TABLES, n_keys, np.int32)
        by_name = {name: keys[i * n_keys:(i + 1) * n_keys] for i, name in enumerate(NAMES)}

        def infer(keys=keys, counts=counts):
            inputs = [triton.InferInput("KEYS", [1, len(keys)], "INT64"), triton.InferInput("NUMKEYS", [1, TABLES], "INT32")]
            inputs[0].set_data_from_numpy(keys[None])
            inputs[1].set_data_from_numpy(counts[None])
            return theirs.infer("default", inputs).as_numpy("OUTPUT0")

        def flat(keys=keys, counts=counts):
            return ours.lookup_flat(keys, counts)

        assert np.array_equal(infer().reshape(-1, DIM), flat())
        case = f"{TABLES} x {n_keys} keys, dim {DIM}"
        for clock, kind, target in ((time.perf_counter, "", {}), (time.process_time, ", CPU", {"at_least": 1})):
            times, ratios = turns(60, 50, infer, flat, lambda by_name=by_name: ours.lookup(by_name), clock=clock)
            for name, time_s in zip(("tritonclient", "lookup_flat", "lookup"), times):
                report(case, name + kind, time_s * 1e6, "us")
            report(case, f"triton / flat{kind}", ratios[1], "ratio", **target)


def measure_layers(report, daemon):
    try:
        import torch
        from torchrec import KeyedJaggedTensor
    except ImportError as error:
        report.left_out("EmbeddingBagCollection", str(error))
        return
    import hpsd.torch
    torch.set_num_threads(1)
    client = hpsd.connect(daemon.tcp)
    ours = hpsd.torch.EmbeddingBagCollection(client, [
        hpsd.torch.EmbeddingBagConfig(name, DIM, [name]) for name in NAMES]).eval()
    for bags, bag_keys, calls in ((1, 1, 50), (BAGS, BAG_KEYS, 3)):
        n_keys = bags * bag_keys
        values = torch.from_numpy(np.random.default_rng(2).integers(0, ROWS, TABLES * n_keys))
        offsets, counts = torch.arange(TABLES * bags + 1) * bag_keys, np.full(TABLES, n_keys, np.int32)
        batch = KeyedJaggedTensor(NAMES, values, lengths=torch.full((TABLES * bags,), bag_keys))

        def by_hand(values=values, bags=bags, n_keys=n_keys, offsets=offsets):
            tables = {name: (values[i * n_keys:(i + 1) * n_keys],
                             offsets[i * bags:(i + 1) * bags + 1] - offsets[i * bags]) for i, name in enumerate(NAMES)}
            rows = client.lookup(tables, pooling="sum")
            return torch.cat([rows[name] for name in NAMES], 1)

        with torch.no_grad():
            assert torch.equal(by_hand(), ours(batch).values())
            (collection, hand, flat), ratios = turns(
                30, calls, lambda batch=batch: ours(batch), by_hand,
                lambda values=values, counts=counts: client.lookup_flat(values, counts), clock=time.process_time)
        case = f"{TABLES} features, {bags} bags of {bag_keys}"
        report(case, "by hand, CPU", hand * 1e3, "ms")
        report(case, "collection, CPU", collection * 1e3, "ms")
        report(case, "lookup_flat of the keys, CPU", flat * 1e3, "ms")
        report(case, "by hand / collection", 1 / ratios[1], "ratio", at_least=1.1)
        report(case, "collection / lookup_flat", ratios[2], "ratio", at_most=1.2)


def main():
    bin_dir, path = sys.argv[1:]
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != os.path.join(ROOT, "bench")]  # torch imports triton
    os.makedirs(os.path.dirname(path), exist_ok=True)
    rng = np.random.default_rng(3)
    keys = {name: rng.integers(0, ROWS, KEYS) for name in NAMES}
    with tempfile.TemporaryDirectory(prefix="hps-bench-") as work:
        daemon = Daemon(bin_dir, work)
        try:
            report = Report(path)
            measure_flat(report, daemon)  # first: large replies leave a heap that changes its times
            measure_client(report, daemon, keys)
            measure_layers(report, daemon)
        finally:
            daemon.close()
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
