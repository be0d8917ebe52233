#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long calls of a healthy client wait while another address sends requests that cost the server much. A wait is
the CPU time that an event loop of hpsd, or for a large lookup also a worker, uses between request and reply (class
Clock of tests/attack/neighbour.py). As if clients ran on other machines, hostile ones have low priority, and the
healthy one has real-time priority if permitted. Each round is a burst on all connections, after closed ones were
opened again. The healthy client calls until the burst ends; the result of the round is its longest wait.

usage: attack.py BIN JSONL [N...]   (BIN has hpsd; JSONL receives the results in the format of ./dev bench;
                                     N: numbers of hostile connections)
"""
import contextlib
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time

import numpy as np

from python_client import DIM, LOOKUP, NAMES, ROWS, TABLES, Daemon, Report

sys.path[:0] = [os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests", folder)
                for folder in ("attack", "lib")]
import wire  # noqa: E402
from costs import HEALTH, HELLO, STREAMS, Crowd, checks, gzip_lookups, json_infer  # noqa: E402
from neighbour import Clock  # noqa: E402

CONNECTIONS = (256, 1024, 4096)
KEYS = 64 << 20  # of all hostile lookups of a burst
ROUNDS, CASE_S = 5, 20
WAIT_MS_MAX = 20
ATTACKER = "127.0.0.66"
wire.PATIENCE_S = 300


ATTACKS = {  # member of Daemon, bytes with which a connection begins; bytes of a burst, by its number, of n connections
    "JSON": ("kserve_tcp", b"", lambda n: lambda burst: json_infer("default", np.arange(ROWS), DIM, TABLES)),
    "checks": ("tcp", HELLO, lambda n: lambda burst: checks(1 + 2 * STREAMS * burst)),
    "large lookups": ("tcp", HELLO,
                      lambda n: lambda burst: gzip_lookups(1, "default", NAMES[0], KEYS // n, first=1 + 2 * burst)),
}


def attack(pipe, n, address, hello, sends):
    """A process: a burst for each message."""
    os.nice(19)
    crowd = Crowd(address, ATTACKER, n, hello)
    for burst in range(1 << 20):
        if not pipe.recv():
            return
        crowd.burst(sends(burst))
        pipe.send(True)


class Healthy:
    def __init__(self, daemon):
        loops = Clock(daemon.process.pid, workers=None)
        self.address, self.client, self.stream, self.n_failed = daemon.tcp, None, -1, 0
        self.requests = {"check": (HEALTH, b"", loops)}
        for n, clock in ((64, loops), (16384, Clock(daemon.process.pid, workers=min))):
            keys = np.random.default_rng(n).integers(0, ROWS, n).astype("<i8").tobytes()
            self.requests[f"{n} keys"] = LOOKUP, wire.lookup("default", wire.query(NAMES[0], keys)), clock
        for kind in self.requests:
            self.wait_s(kind)

    def wait_s(self, kind):
        """A call, over a new connection after one that failed."""
        if self.client is None:
            self.client = wire.Client(self.address, hello=wire.OPEN)
        self.stream += 2
        path, message, clock = self.requests[kind]
        request = wire.call(self.stream, path, message)
        before, code = clock.read(), None
        with contextlib.suppress(wire.Gone):
            self.client.send(request)
            code = self.client.code(self.stream)
        waited_s = clock.since(before)
        if code != wire.OK:
            self.client = self.client.close()
            self.n_failed += 1
        return waited_s


def measure(report, healthy, kind, case, pipe):
    """pipe None: without an attack."""
    longest, end, healthy.n_failed = [], time.monotonic() + CASE_S, 0
    while len(longest) < ROUNDS and (not longest or time.monotonic() < end):
        waits, until = [], time.monotonic() + 0.5
        if pipe is not None:
            pipe.send(True)
        while not pipe.poll() if pipe is not None else time.monotonic() < until:
            waits.append(healthy.wait_s(kind))
        if pipe is not None:
            pipe.recv()
        longest.append(max(waits) * 1e3)
    report(case, f"{kind}, median", statistics.median(longest), "ms")
    report(case, f"{kind}, longest", max(longest), "ms", at_most=WAIT_MS_MAX)
    report(case, f"{kind}, failed", healthy.n_failed, "calls", at_most=0)


def main():
    bin_dir, path, *numbers = sys.argv[1:]
    os.makedirs(os.path.dirname(path), exist_ok=True)
    files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    report, context = Report(path, "attack"), multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="hps-bench-") as work:
        daemon = Daemon(bin_dir, work)
        try:
            healthy = Healthy(daemon)
            for kind in healthy.requests:
                measure(report, healthy, kind, "no attack", None)
            for name, (address, hello, make) in ATTACKS.items():
                for n in map(int, numbers or CONNECTIONS):
                    ours, theirs = context.Pipe()
                    hostile = context.Process(target=attack, daemon=True,
                                              args=(theirs, n, getattr(daemon, address), hello, make(n)))
                    hostile.start()
                    for kind in healthy.requests:
                        measure(report, healthy, kind, f"{name}, {n} connections", ours)
                    ours.send(False)
                    hostile.join()
        finally:
            daemon.close()
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
