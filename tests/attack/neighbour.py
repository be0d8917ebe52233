# SPDX-License-Identifier: Apache-2.0
"""The healthy client that runs during attacks. It is a process with standard grpcio, which makes small lookups one
after another. Each lookup has a deadline and is not retried; every byte is compared. Every "fresh"-th lookup uses
another connection.

    python3 neighbour.py '{"address": "127.0.0.1:8601", "deadline_s": 2, "rows": "ROWS.npz"}'

Options: "ca" enables TLS, "certificate" and "key" add a client certificate, "token" adds a bearer token. "table" and
"n_keys" change the lookup. With "pid" of the daemon, a call fails if it waits for more than "wait_max_s" (see Clock).

For each line on stdin, it prints a line about the calls since the previous one: {"calls", "failures", "n_failures",
"ms": [p50, p99, max]}. It exits at the end of stdin.
"""
import json
import os
import select
import sys
import time

import grpc
import numpy as np
import wire

PAUSE_S = 0.002  # between calls, to cause little load


def contents(path):
    with open(path, "rb") as f:
        return f.read()


class Clock:
    """Measures for how long a call waits for threads of a daemon, in CPU time: the largest time of its event loops and,
    with `workers`, of its workers. `workers` is max, or min if the call is a quick lookup: it waits for a worker only
    while all of them are busy. The kernel updates the time of a running thread every 1 to 4 ms. Other programs change
    the result little."""

    def __init__(self, pid, workers=max):
        self.files, self.workers = {"loop": [], "worker": []}, workers
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/comm", encoding="ascii") as f:
                name = f.read().split("-")[0]
            if name in self.files:
                self.files[name].append(os.open(f"/proc/{pid}/task/{thread}/schedstat", os.O_RDONLY))

    def read(self):
        return [[int(os.pread(file, 64, 0).split()[0]) for file in files] for files in self.files.values()]

    def since(self, before):
        """In seconds."""
        loops, workers = [[now - then for now, then in zip(*times)] for times in zip(self.read(), before)]
        return max(*loops, self.workers(workers) if self.workers else 0) / 1e9


class Neighbour:
    def __init__(self, address, deadline_s, rows, fresh=32, ca=None, certificate=None, key=None, token=None, table="a",
                 n_keys=3, pid=None, wait_max_s=0):
        self.address, self.deadline_s, self.fresh = address, deadline_s, fresh
        saved = np.load(rows)
        self.keys, self.rows = saved["keys"], saved["rows"]
        self.random = np.random.default_rng(1)
        self.metadata = [("authorization", f"Bearer {token}")] if token else None
        self.tls = ca and grpc.ssl_channel_credentials(contents(ca), key and contents(key),
                                                       certificate and contents(certificate))
        self.table, self.n_keys, self.clock, self.wait_max_s = table, n_keys, pid and Clock(pid), wait_max_s
        self.calls, self.failures, self.took_ms = 0, [], []
        self.channel = self.open()

    def open(self):
        options = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
        if self.tls:
            return grpc.secure_channel(self.address, self.tls, options)
        return grpc.insecure_channel(self.address, options)

    def ask(self, channel):
        at = self.random.integers(0, len(self.keys), self.n_keys)
        request = wire.lookup("m", wire.query(self.table, self.keys[at].tobytes()))
        begun, worked = time.monotonic(), self.clock and self.clock.read()
        try:
            reply = channel.unary_unary(wire.LOOKUP)(request, timeout=self.deadline_s, metadata=self.metadata)
        except grpc.RpcError as error:
            self.failures.append(f"call {self.calls}: {error.code()}: {error.details()}")
            return
        self.took_ms.append(1000 * (time.monotonic() - begun))
        if self.clock and (waited_s := self.clock.since(worked)) > self.wait_max_s:
            self.failures.append(f"call {self.calls}: waited for {waited_s:.3f} s of CPU")
        if self.rows[at].tobytes() not in reply:
            self.failures.append(f"call {self.calls}: other rows than those of its keys")

    def turn(self):
        self.calls += 1
        if self.calls % self.fresh:
            self.ask(self.channel)
            return
        channel = self.open()
        self.ask(channel)
        channel.close()

    def report(self):
        took = sorted(self.took_ms) or [0.0]
        ms = [round(took[min(len(took) - 1, int(len(took) * share))], 2) for share in (0.5, 0.99, 1)]
        print(json.dumps({"calls": self.calls, "failures": self.failures[:5], "n_failures": len(self.failures),
                          "ms": ms}), flush=True)
        self.calls, self.failures, self.took_ms = 0, [], []


def main():
    neighbour = Neighbour(**json.loads(sys.argv[1]))
    while True:
        while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
            neighbour.turn()
        if not sys.stdin.readline():
            return
        neighbour.turn()
        neighbour.report()


if __name__ == "__main__":
    main()
