# SPDX-License-Identifier: Apache-2.0
"""The daemon that is attacked. It has one event loop, so attackers share it with the healthy client (neighbour.py).
That client makes lookups during each attack, and all of them must succeed."""
import contextlib
import json
import os
import subprocess
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), folder) for folder in ("e2e", "lib")]
from rig import (SANITIZER, SLOW, Daemon, Table, default_config, model_config, scratch,  # noqa: E402,F401
                 until)

WHOLE = os.environ.get("HPS_ATTACK") == "whole"
# Deadline of the healthy client's calls. The short form runs in CI on slow machines, where other jobs run at the same
# time. There the deadline is so long that only a call that the daemon delays can miss it.
DEADLINE_S = 2 * SLOW if WHOLE else max(20, 2 * SLOW)
ATTACKER = "127.0.0.66"  # source address of attacks that need one; the healthy client is 127.0.0.1
CALLS_MIN = 8  # calls of the healthy client during each attack
DIM = 256                # a row is a KiB


def many(short, whole=None):
    """A number of repetitions. `short` is for CI, `whole` for the complete suite."""
    return (whole or 10 * short) if WHOLE else short


class Target:
    def __init__(self, work, server=(), client=(), **more):
        """`server`: options of the server. `client`: options of the healthy client (neighbour.py)."""
        self.work = work
        self.table = Table.random("a", 4000, DIM)
        narrow = Table.random("b", 4000, 4, number=1)
        self.rows_file = os.path.join(work, "rows.npz")
        np.savez(self.rows_file, keys=self.table.keys, rows=self.table.rows)
        paths = [table.save(os.path.join(work, "models", "m")) for table in (self.table, narrow)]
        models = [model_config("m", paths, [DIM, 4], ["a", "b"])]
        # All attacks have the same address. If its connections were slowed, later attacks would not reach the server.
        options = {"loop_threads": 1, "worker_threads": 2, "handshake_failures_max": 0, **dict(server)}
        self.daemon = Daemon(work, default_config(models, server=options, **more))
        self.address = self.daemon.grpc[0]
        self.client = dict(client)
        self.neighbour = None

    def start_neighbour(self):
        say = {"address": self.address, "deadline_s": DEADLINE_S, "rows": self.rows_file, **self.client}
        self.neighbour = subprocess.Popen([sys.executable, os.path.join(HERE, "neighbour.py"), json.dumps(say)],
                                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask_neighbour(self):
        self.neighbour.stdin.write("\n")
        self.neighbour.stdin.flush()
        line = self.neighbour.stdout.readline()
        assert line, f"the neighbour ended with {self.neighbour.wait()}"
        return json.loads(line)

    def is_served(self):
        """Asserts that no call of the healthy client has failed since the last report."""
        during = self.ask_neighbour()
        assert not during["n_failures"], during

    @contextlib.contextmanager
    def beside(self):
        """Asserts that no call of the healthy client fails while the body of `with` runs."""
        if self.neighbour is None:
            self.start_neighbour()
        before = self.ask_neighbour()
        assert not before["n_failures"], f"before the attack: {before}"
        yield
        calls = 0
        while calls < CALLS_MIN:
            during = self.ask_neighbour()
            calls += during["calls"]
            assert not during["n_failures"], f"the neighbour noticed: {during}\n{self.daemon.log()[-3000:]}"
        assert self.daemon.alive(), self.daemon.log()[-6000:]
        assert self.daemon.get("/readyz")[0] == 200

    def resident_bytes(self):
        with open(f"/proc/{self.daemon.process.pid}/statm", encoding="ascii") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    def metric(self, name):
        """The sum of all series of this name."""
        return sum(value for series, value in self.daemon.metrics().items()
                   if series.split("{")[0] == f"hpsd_{name}")

    def settles(self, name, value=0):
        until(lambda: self.metric(name) == value, f"{name} = {value}")

    def close(self):
        if self.neighbour is not None:
            self.neighbour.stdin.close()
            self.neighbour.wait()
            self.neighbour.stdout.close()
        self.daemon.stop()
