# SPDX-License-Identifier: Apache-2.0
"""What is attacked: a daemon with one event loop, so that whoever attacks shares it with the healthy client, which
looks rows up all the while (neighbour.py) and must not notice.
"""
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
# Of the neighbour's calls. The short form runs in CI, beside others and on machines that are anyhow slow: there it is
# so long that a call which fails was kept waiting, and not the whole machine.
DEADLINE_S = 2 * SLOW if WHOLE else max(20, 2 * SLOW)
ATTACKER = "127.0.0.66"  # where attacks come from, as far as it matters; the neighbour is 127.0.0.1
CALLS_MIN = 8            # of the neighbour beside each attack
DIM = 256                # a row is a KiB


def many(short, whole=None):
    """How often: the short form of the suite is for CI."""
    return (whole or 10 * short) if WHOLE else short


class Target:
    def __init__(self, work, server=(), client=(), **more):
        """`server`: options of that object. `client`: how the neighbour calls (neighbour.py)."""
        self.work = work
        self.table = Table.random("a", 4000, DIM)
        narrow = Table.random("b", 4000, 4, number=1)
        self.rows_file = os.path.join(work, "rows.npz")
        np.savez(self.rows_file, keys=self.table.keys, rows=self.table.rows)
        paths = [table.save(os.path.join(work, "models", "m")) for table in (self.table, narrow)]
        models = [model_config("m", paths, [DIM, 4], ["a", "b"])]
        # All attacks come from one address: if it were slowed, the next one would not be tried at all.
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
        """The neighbour, since it was asked last."""
        during = self.ask_neighbour()
        assert not during["n_failures"], during

    @contextlib.contextmanager
    def beside(self):
        """What is done inside must not be noticed by the neighbour."""
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
