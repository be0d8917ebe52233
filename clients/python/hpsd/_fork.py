# SPDX-License-Identifier: Apache-2.0
"""Forks. Of gRPC a child inherits no thread, and locks that nobody will give back; so all connections are ended before a
fork, and with them gRPC's threads: what is used later connects anew. What stays is an epoll set that parent and child
share, where each has events of the other; by GRPC_POLL_STRATEGY=poll there is none. Without that a child of a process that
has used a client makes no calls, and is told why."""
from __future__ import annotations

import os
import time
import weakref
from typing import Any, List

import grpc

from .errors import Error

_GRPC_THREADS = ("grpc_", "default-execut", "resolver-execut", "event_engine", "timer_manager")
_THREADS_END_S = 0.5

_is_child = False  # of a process that had used gRPC when it forked
_servers: "weakref.WeakSet[Any]" = weakref.WeakSet()
_of_parents: List[Any] = []  # channels, neither used nor closed here
_survives = True  # gRPC does: the fork that is under way, or those that led to this process


def register(servers: Any) -> bool:
    """Whether they can be used here."""
    _servers.add(servers)
    return _survives


def keep(channel: Any) -> None:
    """To close it would wait for threads that are in the parent."""
    _of_parents.append(channel)


def error() -> Error:
    return Error("this process was forked from one that had used this client, and gRPC does not survive that; make the "
                 "first call after the fork, start processes by spawn, or set GRPC_POLL_STRATEGY=poll in the environment",
                 grpc.StatusCode.FAILED_PRECONDITION)


def _has_grpc_threads() -> bool:
    try:
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/comm", encoding="utf-8") as file:
                if file.read().startswith(_GRPC_THREADS):
                    return True
    except FileNotFoundError:  # one has just ended, or this is no Linux
        return os.path.isdir("/proc/self/task")
    return False


def _before() -> None:
    global _survives
    used = [servers for servers in list(_servers) if servers.is_open()]
    without_threads = all(servers.of_threads for servers in used)
    _survives = _survives and (not used or (without_threads and os.environ.get("GRPC_POLL_STRATEGY") == "poll"))
    for servers in used:
        if servers.of_threads:
            servers.before_fork()
    end = time.monotonic() + _THREADS_END_S
    while used and without_threads and _has_grpc_threads() and time.monotonic() < end:
        time.sleep(0.001)


def _in_parent() -> None:
    global _survives
    _survives = not _is_child


def _in_child() -> None:
    global _is_child
    _is_child = not _survives
    for servers in list(_servers):
        servers.after_fork(_survives)


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
