# SPDX-License-Identifier: Apache-2.0
"""Requests that cost a server much and their client little, made once, and a crowd of connections that send them. For
test_costs.py and bench/attack.py."""
import contextlib
import functools
import select
import struct

import numpy as np
import wire
from http1 import request
from kserve_body import compose

HEALTH = "/grpc.health.v1.Health/Check"
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
METADATA = "/inference.GRPCInferenceService/ModelMetadata"
HELLO = wire.PREFACE + wire.OPEN + wire.frame(wire.SETTINGS, flags=wire.ACK)  # without it, streams take only 64 KiB
SHUT = wire.PREFACE + wire.settings(window=0)  # the server may send no reply
STREAMS = 256  # of a connection
JSON_VALUES = 65536  # of a reply; hpsd refuses more


# ---- requests ----------------------------------------------------------------------------------------

def heads(path):
    """Calls that never end; each has 14 KB of headers."""
    return HELLO + wire.repeated(path, STREAMS, ("x-large", "v" * 3400), times=4)


def checks(first=1):
    return wire.repeated(HEALTH, STREAMS, body=wire.grpc_frame(b""), first=first)


def reflections(n=4):
    """Each stream requests n files with all their imports."""
    return SHUT + wire.repeated(REFLECTION, STREAMS, body=wire.grpc_frame(wire.text(4, "hps.v1.Admin")) * n)


def metadata(model):
    return SHUT + wire.repeated(METADATA, STREAMS, body=wire.grpc_frame(wire.text(1, model)))


def small_lookups(model, table):
    message = wire.lookup(model, wire.query(table, range(8)))
    return SHUT + wire.repeated(wire.LOOKUP, STREAMS, body=wire.grpc_frame(message))


def json_infer(model, keys, dim, n_tables):
    """The reply has as many numbers as possible, of the first table."""
    n = JSON_VALUES // dim
    counts = np.array([n] + [0] * (n_tables - 1), "<i4")
    body, headers = compose([("KEYS", keys[:n]), ("NUMKEYS", counts)], binary=False, binary_output=False)
    return request(body, headers, f"/v2/models/{model}/infer")


@functools.cache
def summed(model, table, n_keys):
    """A lookup as gzip. The reply is the sum of the rows. With up to 512 Ki keys it fits the window of a stream."""
    query = (wire.text(1, table) + wire.text(2, np.arange(n_keys, dtype="<i8").tobytes()) +
             wire.text(4, struct.pack("<2I", 0, n_keys)) + wire.number(5, 2))
    return wire.squeezed(wire.lookup(model, wire.text(3, query)), 1)


def gzip_lookups(n, model, table, n_keys, first=1):
    body = wire.grpc_frame(summed(model, table, n_keys), compressed=1)
    return wire.repeated(wire.LOOKUP, n, ("grpc-encoding", "gzip"), body=body, first=first)


# ---- connections -------------------------------------------------------------------------------------

def flood(stack, n, address, source, sends):
    """n connections; then each sends the same bytes and reads nothing."""
    socks = []
    for _ in range(n):
        with contextlib.suppress(OSError):
            socks.append(stack.enter_context(contextlib.closing(wire.connect(address, source))))
        yield
    for sock in socks:
        with contextlib.suppress(OSError):
            sock.sendall(sends)
        yield


class Crowd:
    """n connections of one address, opened again by the next burst if the server closed them."""

    def __init__(self, address, source, n, hello=b""):
        self.address, self.source, self.n, self.hello = address, source, n, hello
        self.poll, self.socks, self.left = select.epoll(), {}, {}

    def open(self):
        with contextlib.suppress(OSError):
            sock = wire.connect(self.address, self.source)
            sock.setblocking(False)
            self.socks[sock.fileno()] = sock
            self.left[sock.fileno()] = self.hello
            self.poll.register(sock, select.EPOLLIN | select.EPOLLOUT)

    def step(self, fd, events):
        """Write the rest, and drop the bytes that arrive. False: the server has closed."""
        try:
            if events & select.EPOLLOUT:
                self.left[fd] = self.left[fd][self.socks[fd].send(self.left[fd]):]
                if not self.left[fd]:
                    self.poll.modify(fd, select.EPOLLIN)
            return not events & ~select.EPOLLOUT or len(self.socks[fd].recv(1 << 20)) > 0
        except BlockingIOError:
            return True
        except OSError:
            return False

    def burst(self, sends, quiet_s=0.3):
        """All send `sends`, and read until no byte arrives for `quiet_s`."""
        for fd in self.socks:
            self.left[fd] = self.left[fd] + sends
            self.poll.modify(fd, select.EPOLLIN | select.EPOLLOUT)
        while len(self.socks) < self.n:
            before = len(self.socks)
            self.open()
            if len(self.socks) == before:
                break
            last = next(reversed(self.left))
            self.left[last] += sends
            self.step(last, select.EPOLLOUT)
        while events := self.poll.poll(quiet_s):
            for fd, what in events:
                if not self.step(fd, what):
                    self.poll.unregister(fd)
                    self.socks.pop(fd).close()
                    del self.left[fd]

    def close(self):
        for sock in self.socks.values():
            sock.close()
        self.poll.close()
