# SPDX-License-Identifier: Apache-2.0
"""A malicious Redis server, or an attacker between it and hpsd: replies that violate the protocol, or have wrong
lengths, counts and types. The rows then come from the next store. Calls end in time, and memory for declared sizes is
not allocated."""
import contextlib
import re
import socket
import threading

import pytest
import redis
import wire
from target import DEADLINE_S, Target, many, scratch, until

pytestmark = pytest.mark.skipif(redis.missing() is not None, reason=redis.missing() or "")

GROWS_MAX = 256 << 20


class Between:
    """A proxy between the daemon and a real server. If `mangle` is set, it changes the next bytes of the server, but only
    once, because hpsd pauses a server that fails repeatedly."""

    def __init__(self, server):
        self.server, self.mangle, self.n_mangled = server, None, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.socks, self.threads = [], []
        self.start(self.accept)

    def start(self, run, *args):
        thread = threading.Thread(target=run, args=args)
        thread.start()
        self.threads.append(thread)

    def accept(self):
        while True:
            try:
                near = self.listener.accept()[0]
                far = wire.connect(self.server.address)
            except OSError:
                return
            self.socks += [near, far]
            self.start(self.carry, near, far, False)
            self.start(self.carry, far, near, True)

    def carry(self, source, to, is_reply):
        with contextlib.suppress(OSError):
            source.settimeout(None)
            while piece := source.recv(1 << 16):
                mangle = None
                if is_reply:
                    mangle, self.mangle = self.mangle, None
                to.sendall(piece if mangle is None else mangle(piece))
                if mangle is not None:
                    self.n_mangled += 1
                if mangle in CUT:
                    break
        for sock in (source, to):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for sock in list(self.socks):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()
        for sock in self.socks:
            sock.close()


def numbers(kind, value):
    return lambda piece: re.sub(kind + rb"-?\d+\r\n", kind[-1:] + value + b"\r\n", piece)


MANGLES = {
    "strings of a TiB": numbers(rb"\$", b"1099511627776"),
    "strings of 2^63": numbers(rb"\$", b"9223372036854775807"),
    "strings of -2 bytes": numbers(rb"\$", b"-2"),
    "arrays of 2^31": numbers(rb"\*", b"2147483647"),
    "arrays of 2^63": numbers(rb"\*", b"9223372036854775807"),
    "arrays of -7": numbers(rb"\*", b"-7"),
    "integers of 100 digits": lambda piece: re.sub(rb":-?\d+\r\n", b":" + b"9" * 100 + b"\r\n", piece),
    "null for everything": lambda piece: b"$-1\r\n",
    "null arrays": lambda piece: b"*-1\r\n",
    "empty arrays": lambda piece: b"*0\r\n",
    "integers for everything": lambda piece: b":1\r\n",
    "words for everything": lambda piece: b"+OK\r\n",
    "arrays 100,000 deep": lambda piece: b"*1\r\n" * 100000,
    "an error of 1 MiB": lambda piece: b"-ERR " + "\u202e\x1b[2J\n".encode().replace(b"\n", b"\v") * 100000 + b"\r\n",
    "an error that sends elsewhere": lambda piece: b"-MOVED 0 169.254.169.254:80\r\n",
    "an error that sends to itself": lambda piece: b"-ASK 99999999 :0\r\n",
    "a line that does not end": lambda piece: b"+" + b"x" * 500000,
    "types that are none": lambda piece: b"\x00\xff!~=(%" + piece,
    "a push of RESP3": lambda piece: b">3\r\n+message\r\n+a\r\n+b\r\n",
    "what was cut": lambda piece: piece[:len(piece) // 2],
    "HTTP": lambda piece: b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
    "nothing": lambda piece: b"",
}
CUT = {MANGLES["what was cut"], MANGLES["HTTP"]}  # the connection is closed after these


@pytest.fixture(name="shared", scope="module")
def target_with_redis():
    with scratch() as work, redis.Redis(work) as server:
        between, slow = Between(server), DEADLINE_S / 2  # shorter timeouts would make hpsd pause the server
        target = Target(work, volatile_db={"type": "redis_cluster", "address": between.address, "num_partitions": 4,
                                           "cache_missed_embeddings": True,
                                           "redis_command_timeout_ms": int(100 * slow),
                                           "redis_connect_timeout_ms": int(200 * slow)})
        target.between = between
        yield target
        between.mangle = None
        target.close()
        between.close()


@pytest.mark.parametrize("name", MANGLES)
def test_redis_when_replies_are_malformed_then_rows_come_from_next_store(target, name):
    before, between = target.resident_bytes(), target.between
    for _ in range(many(2, 20)):
        already = between.n_mangled
        between.mangle = MANGLES[name]
        until(lambda already=already: target.is_served() or between.n_mangled > already, "the daemon to ask its Redis")
        target.is_served()
    assert target.resident_bytes() - before < GROWS_MAX
    assert "\u202e" not in target.daemon.log() and "\x1b" not in target.daemon.log()


def test_redis_when_replies_are_valid_again_then_used(target):
    def hits():
        return sum(value for name, value in target.daemon.metrics().items()
                   if name.startswith("hpsd_tier_server_keys_total") and 'result="hit"' in name)

    before = hits()
    until(lambda: target.is_served() or hits() > before, "rows of its Redis")
