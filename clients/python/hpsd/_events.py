# SPDX-License-Identifier: Apache-2.0
"""The epoll set in which gRPC waits for all its sockets, and which it keeps for good. After a fork parent and child would
share it, each with events of the other."""
from __future__ import annotations

import ctypes
import os
import re
import select
from typing import List, Tuple

Member = Tuple[int, int, int]  # file descriptor, events, what epoll tells of it

_MEMBER = re.compile(r"^tfd:\s*(\d+) events:\s*([0-9a-f]+) data:\s*([0-9a-f]+)", re.MULTILINE)
_EPOLL_CTL_ADD = 1
_EFD_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK
_libc = ctypes.CDLL(None)


class _Event(ctypes.Structure):
    _pack_ = 1 if os.uname().machine == "x86_64" else 0
    _fields_ = [("events", ctypes.c_uint32), ("data", ctypes.c_uint64)]


class _Object(ctypes.Structure):
    """Dl_info"""

    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p), ("address", ctypes.c_void_p)]


def _is_of_grpc(address: int) -> bool:
    """Whether something is a static variable of gRPC."""
    found = _Object()
    if not _libc.dladdr(ctypes.c_void_p(address), ctypes.byref(found)) or not found.file:
        return False
    return "grpc" in os.path.basename(os.fsdecode(found.file))


def _is(fd: int, what: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}") == f"anon_inode:[{what}]"
    except OSError:
        return False


def _sets() -> List[Tuple[int, List[Member]]]:
    """gRPC's epoll sets: whose member that wakes them up is an eventfd in a static variable of gRPC."""
    found = []
    for fd in map(int, os.listdir("/proc/self/fd")):
        if not _is(fd, "eventpoll"):
            continue
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
            members = [(int(of), int(events, 16), int(data, 16)) for of, events, data in _MEMBER.findall(file.read())]
        members = [member for member in members if _is(member[0], "eventfd") and _is_of_grpc(member[2])]
        if members:
            found.append((fd, members))
    return found


def renew() -> bool:
    """In a child, before gRPC is used again: put sets and eventfds of its own in place of those that it has of its parent.
    False if that could not be done."""
    if not os.path.isdir("/proc/self/fdinfo"):  # no Linux: there gRPC polls
        return True
    try:
        for at, members in _sets():
            with select.epoll() as epoll:
                os.dup2(epoll.fileno(), at, inheritable=False)
            for fd, events, data in members:
                eventfd = _libc.eventfd(0, _EFD_FLAGS)
                os.dup2(eventfd, fd, inheritable=False)
                os.close(eventfd)
                event = _Event(events, data)
                if _libc.epoll_ctl(at, _EPOLL_CTL_ADD, fd, ctypes.byref(event)) != 0:
                    return False
    except (OSError, AttributeError):
        return False
    return True
