# SPDX-License-Identifier: Apache-2.0
"""Ports for test servers that stay reserved while the server is down.

The kernel may give a port that it chose for a server to another program after the server has ended. The ports from
`take` are outside the range from which the kernel chooses, and no two processes get the same one.
"""
import contextlib
import fcntl
import itertools
import os
import random
import socket
import tempfile

FIRST, LAST = 10_000, 65_535
EPHEMERAL = 32_768, 60_999  # used if Linux does not report its range
FEW = 1_000
LOCKS = os.path.join(tempfile.gettempdir(), f"hps-test-ports-{os.getuid()}")
taken = {}  # by process, because of forks: (locked file, reserved ports)


def ephemeral():
    """The first and the last port of the range from which the kernel chooses."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as f:
            first, last = map(int, f.read().split())
            return first, last
    except (OSError, ValueError):
        return EPHEMERAL


def candidates():
    """Ports outside the kernel's range. If almost none are left, all ports; then only other tests respect a
    reservation."""
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
    """Lock byte N of a file to reserve port N. The lock ends with the process."""
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


def take(*above):
    """Reserve a port until this process ends, and the ports that are `above` it by these distances."""
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
    """An address that refuses connections: its port is bound, but no socket listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"
