# SPDX-License-Identifier: Apache-2.0
"""Choice of the server for each attempt. Servers are used in turn. After a failure a server is skipped for a short time,
and until it has a connection again, so that few calls meet a dead host, and those have time for another server."""
from __future__ import annotations

import ctypes
import os
import random
import threading
import time
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import grpc

from .errors import Error, error

DOWN_S_MIN, DOWN_S_MAX = 0.1, 2.0  # how long a server is skipped, after one failure and after many
UNPROVEN_S = 1.0  # limit for the first reply of a server, if there are others
LEFT_S_MIN = 0.01  # for a pause and an attempt
PAUSE_S_MIN, PAUSE_S_MAX = 0.02, 0.5  # between two rounds without a reply

_first_pid = 0  # the process that made the first connection of all clients


class Server:
    """One address. The lock of its Servers protects the fields."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.channel: Any = None
        self.methods: Dict[str, Callable[..., Any]] = {}
        self.forget()

    def forget(self) -> None:
        """Reset to the state of a new server."""
        self.channel, self.methods = None, {}
        self.proven = False  # it has answered since it last failed
        self.failures = 0  # in a row
        self.down_until = 0.0
        self.unreachable = False  # it has no connection, and a watch waits for one
        self.unwatch: Optional[Callable[[], None]] = None


class Servers:
    """The addresses of a client. Thread-safe.

    watch(channel, connected): connect the channel if it has no connection, call `connected` once when it has one, and
    return a function that cancels the watch. grpc without asyncio connects only while a call waits, so it needs this.
    """

    def __init__(self, targets: List[str], open_channel: Callable[[str], Any],
                 watch: Optional[Callable[[Any, Callable[[], None]], Callable[[], None]]] = None) -> None:
        self._pid = os.getpid()
        _alive.add(self)
        self._open = open_channel
        self._watch = watch if len(targets) > 1 else None
        self._all = [Server(target) for target in targets]
        self._lock = threading.Lock()
        self._next = random.randrange(len(targets))  # clients that start together begin with different servers

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Server]:
        return iter(self._all)

    def pick(self, tried: Tuple[Server, ...] = ()) -> Server:
        """The next server in turn that is not down and not tried; else the one that failed longest ago."""
        now = time.monotonic()
        with self._lock:
            n = len(self._all)
            for i in range(n):
                server = self._all[(self._next + i) % n]
                if server.down_until <= now and not server.unreachable and server not in tried:
                    self._next = (self._next + i + 1) % n
                    return server
            return min((server for server in self._all if server not in tried), default=self._all[0],
                       key=lambda server: server.down_until)

    def method(self, server: Server, kind: str, path: str) -> Callable[..., Any]:
        """A callable of grpc from bytes to bytes. kind: "unary_unary" or "unary_stream". Raises Error in a forked child,
        which lacks the threads of gRPC and shares its epoll set with the parent."""
        global _first_pid  # pylint: disable=global-statement
        if os.getpid() != self._pid or _first_pid not in (0, self._pid):
            raise Error("gRPC does not survive a fork: create the client after the fork, in a child of a process that has made "
                        "no lookup yet, or start processes by spawn", grpc.StatusCode.FAILED_PRECONDITION)
        made = server.methods.get(path)
        if made is None:
            with self._lock:
                if server.channel is None:
                    _first_pid = self._pid
                    server.channel = self._open(server.target)
                made = server.methods[path] = getattr(server.channel, kind)(path)
        return made

    def limit(self, server: Server, left_s: float, n_rounds: int = 0) -> float:
        """Time limit of an attempt, in seconds. A server without a recent reply leaves time for one that has replied. If all
        servers have failed n_rounds times, the call itself may be slow."""
        if server.proven or len(self._all) == 1:
            return left_s
        limit_s = left_s / 2 if any(other.proven for other in self._all) else left_s
        return min(limit_s, UNPROVEN_S * 2.0 ** min(n_rounds, 10))

    def worked(self, server: Server) -> None:
        if not server.proven:
            with self._lock:
                server.proven, server.unreachable, server.failures, server.down_until = True, False, 0, 0.0

    def failed(self, server: Server) -> None:
        with self._lock:
            wait_s = min(DOWN_S_MIN * 2.0 ** min(server.failures, 10), DOWN_S_MAX)
            server.proven = False
            server.failures += 1
            server.down_until = time.monotonic() + wait_s * random.uniform(0.5, 1)
            channel = server.channel
            watches = self._watch is not None and channel is not None and not server.unreachable
            server.unreachable = server.unreachable or watches
        if self._watch is not None and watches:
            server.unwatch = self._watch(channel, lambda: self._connected(server, channel))

    def _connected(self, server: Server, channel: Any) -> None:
        with self._lock:
            if server.channel is channel:
                server.unreachable = False

    def take_channels(self) -> List[Any]:
        """Forget all connections; the next calls make new ones. Returns the channels to close. Watched channels are not
        among them: closing them would fail in the thread of grpcio, which ends them itself."""
        channels: List[Any] = []
        if os.getpid() != self._pid:
            return channels
        with self._lock:
            for server in self._all:
                if server.unwatch is not None and server.unreachable:
                    server.unwatch()
                elif server.channel is not None:
                    channels.append(server.channel)
                server.forget()
        return channels


_alive: "weakref.WeakSet[Servers]" = weakref.WeakSet()


def _in_child() -> None:
    """After a fork: keep the connections of the parent until the child has ended. Their destructors would wait for threads
    of gRPC, which only the parent has."""
    for servers in list(_alive):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(servers))


os.register_at_fork(after_in_child=_in_child)


# ---- attempts ----------------------------------------------------------------------------------------

class Attempts:
    """The attempts of one call, and its remaining time."""

    def __init__(self, servers: Servers, timeout_s: float) -> None:
        self.servers = servers
        self.timeout_s = timeout_s
        self.deadline = time.monotonic() + timeout_s
        self.n = 0
        self._tried: Tuple[Server, ...] = ()  # in this round
        self._n_rounds = 0
        self._refusal: Optional[Tuple[grpc.StatusCode, str]] = None  # the last UNAVAILABLE or ABORTED: server and why
        self._was_proven = False  # the server of the last failure, before it

    def left_s(self) -> float:
        return self.deadline - time.monotonic()

    def next(self) -> Server:
        self.n += 1
        return self.servers.pick(self._tried)

    def how(self, server: Server) -> Dict[str, Any]:
        """Arguments of a call to `server`. In the first round, calls to unreachable servers fail at once; later rounds wait
        for connections."""
        return {"timeout": self.servers.limit(server, self.left_s(), self._n_rounds), "wait_for_ready": self._n_rounds > 0}

    def may_retry(self, server: Server, code: grpc.StatusCode, details: str) -> bool:
        """After a failure: whether to make another attempt."""
        self._was_proven = server.proven
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED):
            self._refusal = code, f"{server.target}: {details}"
        elif code is not grpc.StatusCode.DEADLINE_EXCEEDED:
            return False
        if code is not grpc.StatusCode.ABORTED:  # an update arrived between the rows of a unit; the server is healthy
            self.servers.failed(server)
        self._tried += (server,)
        return self.left_s() > (0.0 if len(self._tried) < len(self.servers) else LEFT_S_MIN)

    def pause_s(self) -> float:
        """Pause before the next attempt: 0 while some servers are untried."""
        if len(self._tried) < len(self.servers):
            return 0.0
        self._tried = ()
        pause_s = min(PAUSE_S_MIN * 2.0 ** min(self._n_rounds, 10), PAUSE_S_MAX) * random.uniform(0.5, 1)
        self._n_rounds += 1
        return max(0.0, min(pause_s, self.left_s() / 2))

    def verdict(self, server: Server, code: grpc.StatusCode, details: str) -> Error:
        """The error of the call, from its last failure. If the deadline passed at a server that may be unreachable, the
        failure before it says more. So does ABORTED: the last attempt may have had little time."""
        timed_out = code is grpc.StatusCode.DEADLINE_EXCEEDED
        if self._refusal is not None and (
                code is self._refusal[0]
                or timed_out and (not self._was_proven or self._refusal[0] is grpc.StatusCode.ABORTED)):
            before, why = self._refusal
            return error(before, f"{why} (the last of {self.n} attempts within {self.timeout_s:g} s)")
        if timed_out:
            details = f"{server.target}: no reply within {self.timeout_s:g} s"
        return error(code, details)
