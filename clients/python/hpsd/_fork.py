# SPDX-License-Identifier: Apache-2.0
"""Forks. Of gRPC a child inherits no thread, and locks that nobody will give back. So before a fork all connections are
ended, and with them gRPC's threads; calls wait until it is over, and those that were under way are made again. What stays is
an epoll set (_events.py): the child gets one of its own. Where gRPC's threads do not end, as somebody else in the process
uses gRPC, or hpsd.aio does, the child makes no calls, and is told why."""
from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Any, List

import grpc

from . import _events
from .errors import Error

_GRPC_THREADS = ("grpc_", "default-execut", "resolver-execut", "event_engine", "timer_manager")
_GRPCIO_THREADS = ("(channel_spin)", "(managed_target)", "(_poll_connectivity)", "(_poll_wrapper)")  # as Python calls them
_THREADS_END_S = 0.5

_servers: "weakref.WeakSet[Any]" = weakref.WeakSet()
_of_parents: List[Any] = []  # channels, neither used nor closed here
_was_used = False  # gRPC, by us, in this process or one before it
_survives = True  # gRPC does: those that led to this process


class _Fork(threading.local):
    """That which is under way in this thread."""

    def __init__(self) -> None:
        self.held: List[Any] = []  # servers whose calls wait
        self.is_quiet = True  # gRPC has no threads


_fork = _Fork()


def register(servers: Any) -> bool:
    """Whether they can be used here."""
    _servers.add(servers)
    return _survives


def used() -> None:
    """A connection is about to be made."""
    global _was_used
    _was_used = True


def keep(channel: Any) -> None:
    """To close it would wait for threads that are in the parent."""
    _of_parents.append(channel)


def error() -> Error:
    return Error("this process was forked while gRPC was in use beside this client, or by hpsd.aio, and gRPC does not survive "
                 "that; make the first call after the fork, or start processes by spawn", grpc.StatusCode.FAILED_PRECONDITION)


def _has_grpc_threads() -> bool:
    if any(thread.name.endswith(_GRPCIO_THREADS) for thread in threading.enumerate()):
        return True
    try:
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/comm", encoding="utf-8") as file:
                if file.read().startswith(_GRPC_THREADS):
                    return True
    except OSError:  # one has just ended, or this is no Linux
        return os.path.isdir("/proc/self/task")
    return False


def _is_busy() -> bool:
    return any(servers.is_busy() for servers in list(_servers)) or _has_grpc_threads()


def _before() -> None:
    _fork.held = [servers for servers in list(_servers) if servers.hold()]
    end = time.monotonic() + (_THREADS_END_S if _was_used else 0)
    _fork.is_quiet = not _is_busy()
    while not _fork.is_quiet and time.monotonic() < end:
        time.sleep(0.001)
        _fork.is_quiet = not _is_busy()


def _in_parent() -> None:
    for servers in _fork.held:
        servers.let_go()
    _fork.held = []


def _in_child() -> None:
    global _survives
    _fork.held = []
    if _fork.is_quiet:
        _survives = _survives and _events.renew()
    elif _was_used:
        _survives = False
    for servers in list(_servers):
        servers.begin_anew(_survives)


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
