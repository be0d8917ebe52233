# SPDX-License-Identifier: Apache-2.0
"""Ports for servers of tests that stay theirs while they are down.

A port that the kernel chose belongs to nobody once its server is gone: it may choose it again, for whoever asks. These
are none that it chooses, and no two processes that take them here have one of them in common.
"""
import contextlib
import fcntl
import itertools
import os
import random
import socket
import tempfile

FIRST, LAST = 10_000, 65_535
EPHEMERAL = 32_768, 60_999  # where Linux does not tell otherwise
FEW = 1_000
LOCKS = os.path.join(tempfile.gettempdir(), f"hps-test-ports-{os.getuid()}")
taken = {}  # by process, which a fork may be; of each the file that it locks and its ports


def ephemeral():
    """The first and the last port that the kernel chooses."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as f:
            first, last = map(int, f.read().split())
            return first, last
    except (OSError, ValueError):
        return EPHEMERAL


def candidates():
    """All ports where the kernel leaves but a few alone: to be nobody else's here is better than nothing."""
    first, last = ephemeral()
    found = [port for port in range(FIRST, LAST + 1) if not first <= port <= last]
    return found if len(found) >= FEW else list(range(FIRST, LAST + 1))


def is_free(port):
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def claim(lock, port):
    """Byte N of a file stands for port N. A process loses its locks when it ends, however it does."""
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


def take(*above):
    """A port that this process has, and nobody else, until it ends; as are those so far above it."""
    lock, mine = taken.get(os.getpid()) or taken.setdefault(os.getpid(), (
        os.open(LOCKS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), set()))
    ports = candidates()
    allowed, start = set(ports), random.SystemRandom().randrange(len(ports))
    for first in itertools.islice(itertools.cycle(ports), start, start + len(ports)):
        wanted = {first, *(first + n for n in above)}
        if wanted <= allowed and not wanted & mine and all(is_free(port) and claim(lock, port) for port in wanted):
            mine |= wanted
            return first
    raise OSError("no port is free")


@contextlib.contextmanager
def refusing():
    """An address at which nobody answers: its port is taken, and not listened on."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"
