# SPDX-License-Identifier: Apache-2.0
"""Requests that cost a server much and their client little. One address sends them and reads no reply. Calls of the
neighbour, at another address, do not fail, and none waits for long in CPU time of the daemon. Resident memory stays
within the configured budgets and a margin, and counters return to their values. OPEN has the rows that still fail.

A trial watches the daemon and kills it when it exceeds the limit, so that it cannot take the memory of the machine.
"""
import contextlib
import json
import os
import socket
import time

import grpc
import numpy as np
import pytest
import wire
from costs import (HEALTH, HELLO, checks, flood, gzip_lookups, heads, json_infer, metadata, reflections, small_lookups)
from guarded import digest
from http1 import answers, get
from rig import admin_pb, generate
from target import ATTACKER, DIM, SANITIZER, SLOW, WHOLE, Table, Target, many, scratch, until

MIB = 1 << 20
REPLY_BYTES, REQUEST_BYTES, MARGIN = 256 * MIB, 64 * MIB, 128 * MIB
CGROUP_BYTES = 1 << 30
WAIT_MAX_S = 0.25 * SLOW  # of a call of the neighbour, in CPU time of the daemon
QUICK_S = 2 * SLOW        # deadline of an operator and of a probe
LOG_BYTES_MAX = MIB       # of log lines about calls of one identity, in the seconds of a trial
TOKENS = {"looker": "lookup", "reader": "read", "chief": "admin"}

OPEN = {}  # trials that still fail: the row, and why


def size(n, whole=None):
    """Connections or tables: of the short form of the suite, and of the whole one."""
    return (whole or n) if WHOLE else n // 4 if SANITIZER else n


def bearer(name):
    return "authorization", f"Bearer {name}"


# ---- daemons -----------------------------------------------------------------------------------------

def cgroup(pid):
    """Move a process into a cgroup of a gigabyte; its directory, or None if this is not allowed."""
    for base, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        path = f"{base}/hps-attack-{pid}"
        try:
            os.mkdir(path)
            for name, value in ((limit, CGROUP_BYTES), ("cgroup.procs", pid)):
                with open(f"{path}/{name}", "w", encoding="ascii") as f:
                    f.write(str(value))
            return path
        except OSError:
            with contextlib.suppress(OSError):
                os.rmdir(path)
    return None


def is_removed(path):
    with contextlib.suppress(OSError):  # the process in it has not quite ended
        os.rmdir(path)
    return not os.path.exists(path)


class Lab:
    """A target whose memory is watched."""
    reply_bytes = REPLY_BYTES

    def __init__(self, work, server=(), client=(), **more):
        self.target = Target(work, {"reply_bytes_in_flight": self.reply_bytes, "kserve_listen": ["127.0.0.1:0"],
                                    **dict(server)}, **more)
        self.daemon = self.target.daemon
        self.target.client = {"pid": self.daemon.process.pid, "wait_max_s": WAIT_MAX_S, **dict(client)}
        self.cgroup = cgroup(self.daemon.process.pid) if WHOLE else None
        self.prepare()
        self.target.start_neighbour()
        self.target.ask_neighbour()
        self.bytes_max = self.resident() + (self.reply_bytes + REQUEST_BYTES + MARGIN) * (4 if SANITIZER else 1)
        self.before = self.gauges()

    def prepare(self):
        pass

    def resident(self, name="VmRSS"):
        with open(f"/proc/{self.daemon.process.pid}/status", encoding="ascii") as f:
            return next(1024 * int(line.split()[1]) for line in f if line.startswith(name))

    def is_busy(self):
        """Whether a thread has work or waits for a CPU."""
        task = f"/proc/{self.daemon.process.pid}/task"
        for thread in os.listdir(task):
            with contextlib.suppress(FileNotFoundError), open(f"{task}/{thread}/stat", encoding="ascii") as f:
                if f.read().rsplit(")", 1)[1].split()[0] == "R":
                    return True
        return False

    def gauges(self):
        return {name: value for name, value in self.daemon.metrics().items()
                if name.startswith(("hpsd_reply_bytes_in_flight", "hpsd_connections{", "hpsd_limit_used"))}

    def check(self):
        assert self.daemon.alive(), "the daemon has ended"
        peak = self.resident("VmHWM")
        assert peak <= self.bytes_max, f"{peak / MIB:.0f} MiB are resident, expected at most {self.bytes_max / MIB:.0f}"

    def settles(self):
        """Until the daemon is idle now and then, as with calls of the neighbour alone, or for some seconds."""
        idle, end = [], time.monotonic() + 20 * SLOW
        while sum(idle[-10:]) < 3 and time.monotonic() < end:
            time.sleep(0.02)
            self.check()
            idle.append(not self.is_busy())

    def returns(self):
        """Everything is as before, except for calls of the neighbour."""
        def left():
            return {name: value for name, value in self.gauges().items()
                    if value > self.before.get(name, 0) + (MIB if "bytes" in name else 4)}
        try:
            until(lambda: not left(), "counters return", patience_s=15 * SLOW)
        except AssertionError:
            assert not left()  # says which
        assert self.resident() <= self.bytes_max - REQUEST_BYTES

    def close(self, kill=False):
        if kill:
            self.daemon.kill()
        self.target.close()
        if self.cgroup:
            until(lambda: is_removed(self.cgroup), "the cgroup is empty")


class Plain(Lab):
    """Default options, and a model of many tables."""

    def prepare(self):
        path = f"{self.target.work}/models/wide"
        generate(path, "--tables", size(150, 1000), "--rows", 1, "--dim", 1, "--format", "npy")
        self.daemon.load("wide", path)


class Large(Lab):
    """The neighbour looks up 16,384 keys at a time. There is memory for many large lookups."""
    reply_bytes = 2 * REPLY_BYTES

    def __init__(self, work):
        table = Table.random("b", 4000, 4, number=1)  # as that of a target
        np.savez(f"{work}/narrow.npz", keys=table.keys, rows=table.rows)
        super().__init__(work, client={"table": "b", "n_keys": 16384, "rows": f"{work}/narrow.npz"})


class Guarded(Lab):
    """With roles for tokens, and updates from a broker that never answers."""

    def __init__(self, work):
        path = f"{work}/access.json"
        with open(path, "w", encoding="utf-8") as f:
            json.dump({"rules": [{"who": [f"token:{name}"], "may": [role]} for name, role in TOKENS.items()],
                       "tokens": [{"name": name, "sha256": digest(name)} for name in TOKENS]}, f)
        os.chmod(path, 0o600)
        self.broker = socket.create_server(("127.0.0.1", 0))
        super().__init__(work, {"access": path, "admin_listen": "127.0.0.1:0", "audit_log": f"{work}/audit.log"},
                         {"token": "looker"}, update_source={
                             "type": "kafka_message_queue", "brokers": "127.0.0.1:%d" % self.broker.getsockname()[1]})

    def log_bytes(self):
        return sum(os.path.getsize(path) for path in (self.daemon.log_file, f"{self.target.work}/audit.log"))

    def close(self, kill=False):
        super().close(kill)
        self.broker.close()


@pytest.fixture(name="labs", scope="module")
def daemons_of_the_module():
    made = {}

    @contextlib.contextmanager
    def use(kind):
        """The daemon of this kind; killed if its trial fails."""
        if kind not in made:
            stack = contextlib.ExitStack()
            made[kind] = stack, kind(stack.enter_context(scratch()))
        stack, lab = made[kind]
        try:
            yield lab
        except BaseException:
            del made[kind]
            lab.close(kill=True)
            stack.close()
            raise

    yield use
    for stack, lab in made.values():
        lab.close()
        stack.close()


# ---- the rows ----------------------------------------------------------------------------------------

def sends(what, n):
    """n connections that send these bytes."""
    return lambda lab, stack: flood(stack, n, lab.target.address, ATTACKER, what())


def infers(lab, stack):
    request = json_infer("m", lab.target.table.keys, DIM, 2)
    return flood(stack, size(128, 1024), lab.daemon.kserve[0], ATTACKER, request)


def unread_pages(lab, stack):
    """Readers of /metrics that take nothing, at one address; probes of this address and of another one."""
    address = lab.daemon.http.rsplit(":", 1)
    for number in range(many(96, 420)):
        sock = stack.enter_context(socket.socket())
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)  # else the buffers of the daemon take a page
        sock.bind((ATTACKER, 0))
        with contextlib.suppress(OSError):
            sock.connect((address[0], int(address[1])))
            sock.sendall(get("/metrics"))
            sock.recv(1)  # the page begins
        yield
        if number % 8 == 7:
            source = ATTACKER if number % 16 == 7 else None  # in turn: one leaves its place free
            with wire.connect(lab.daemon.http, source, patience_s=QUICK_S) as probe:
                try:
                    found = [status for status, _ in answers(probe, 1, get("/readyz"))]
                except TimeoutError:
                    found = "late"
            assert found == [200], f"a probe of {source or 'another address'} behind {number + 1} pages: {found}"


def refreshes(lab, stack):
    """Each waits for a broker; an operator does not."""
    message = admin_pb.GetUpdatesRequest(refresh=True).SerializeToString()
    client = stack.enter_context(wire.Client(lab.daemon.admin, source=ATTACKER))
    client.send(b"".join(wire.call(1 + 2 * i, "/hps.v1.Admin/GetUpdates", message, bearer("reader"))
                         for i in range(200)))
    yield
    for _ in range(many(3, 20)):
        lab.daemon.admin_stub().Ping(admin_pb.PingRequest(), timeout=QUICK_S, metadata=[bearer("chief")])
        yield


def failing_calls(lab, stack):
    """Each names a model of a kilobyte of control characters."""
    message = admin_pb.ExplainKeyRequest(model="\x01" * 1024, table="\x02" * 1024, key=1).SerializeToString()
    client = stack.enter_context(wire.Client(lab.daemon.admin, source=ATTACKER))
    before, batch = lab.log_bytes(), 100
    for first in range(0, many(2000, 20000), batch):
        client.send(b"".join(wire.call(1 + 2 * i, "/hps.v1.Admin/ExplainKey", message, bearer("reader"))
                             for i in range(first, first + batch)))
        client.code(1 + 2 * (first + batch - 1))
        grown = lab.log_bytes() - before
        assert grown <= LOG_BYTES_MAX, f"{first + batch} failing calls wrote {grown} bytes of log"
        yield


ROWS = {
    "1 headers that never end": (Plain, sends(lambda: heads(wire.LOOKUP), size(450))),
    "2 headers without a token": (Guarded, sends(lambda: heads(HEALTH), size(450))),
    "3 reflection": (Plain, sends(reflections, size(120))),
    "3 metadata": (Plain, sends(lambda: metadata("wide.tables"), size(120))),
    "4 small lookups": (Plain, sends(lambda: small_lookups("m", "b"), size(500, 2000))),
    "5 JSON": (Plain, infers),
    "6 checks": (Guarded, sends(lambda: HELLO + checks(), size(1024))),
    "7 large lookups": (Large, sends(lambda: HELLO + gzip_lookups(4, "m", "b", 1 << 19), size(16, 32))),
    "8 metrics pages": (Plain, unread_pages),
    "9 refresh of updates": (Guarded, refreshes),
    "10 failing calls": (Guarded, failing_calls),
}


def rows():
    for row in ROWS:
        fails = pytest.mark.xfail(row in OPEN, strict=not SANITIZER, raises=(AssertionError, grpc.RpcError),
                                  reason=OPEN.get(row, "closed"))
        yield pytest.param(row, id=row, marks=fails)


@pytest.mark.parametrize("row", rows())
def test_costs_when_of_one_address_then_bounded_and_others_are_served(labs, row):
    kind, attack = ROWS[row]
    with labs(kind) as lab:
        with lab.target.beside(), contextlib.ExitStack() as stack:
            for _ in attack(lab, stack):
                lab.check()
            lab.settles()
        lab.returns()
