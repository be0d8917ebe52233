# SPDX-License-Identifier: Apache-2.0
"""Calls that are begun and not wanted: cancelled, out of time, or given up with their connection."""
import contextlib
import socket
import struct

import pytest
import wire
from target import ATTACKER, many
from wire import Client, Gone, call

SERVER = {"reply_bytes_in_flight": "256MiB"}
LARGE = wire.lookup("m", wire.query("b", b"".join(struct.pack("<q", i) for i in range(1 << 17))))
WIDE = wire.lookup("m", wire.query("a", b"".join(struct.pack("<q", i) for i in range(1 << 13))))
SMALL = wire.lookup("m", wire.query("a", [1]))
ODD = {"small": SMALL, "wide": WIDE, "large": LARGE}


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("path", [wire.LOOKUP, wire.STREAM])
def test_calls_when_all_are_cancelled_then_the_neighbour_is_served_and_nothing_stays(target, what, path):
    n = many(30 if what == "large" else 300)
    with Client(target.address, source=ATTACKER) as client, contextlib.suppress(Gone):
        for i in range(n):
            client.send(call(1 + 2 * i, path, ODD[what]) + wire.reset(1 + 2 * i))
    target.settles("requests_in_flight")
    target.settles("reply_bytes_in_flight")


@pytest.mark.parametrize("timeout", ["1n", "1u", "1m", "0S"])
def test_calls_when_all_are_out_of_time_then_the_neighbour_is_served_and_nothing_stays(target, timeout):
    n = many(100, 2000)
    with Client(target.address, source=ATTACKER) as client:
        for i in range(n):
            client.send(call(1 + 2 * i, wire.LOOKUP, WIDE if i % 3 else LARGE, timeout=timeout))
        with contextlib.suppress(Gone):
            client.read_until(lambda c: len(c.trailers) + len(c.resets) >= n, "an end of each call")
    target.settles("requests_in_flight")
    target.settles("reply_bytes_in_flight")


@pytest.mark.parametrize("how", ["closed", "reset", "half-closed"])
def test_connections_when_given_up_with_their_calls_then_nothing_stays(target, how):
    for _ in range(many(40, 400)):
        with Client(target.address, source=ATTACKER) as client, contextlib.suppress(Gone, OSError):
            client.send(b"".join(call(1 + 2 * i, wire.LOOKUP, WIDE) for i in range(8)))
            if how == "reset":
                client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if how == "half-closed":
                client.sock.shutdown(socket.SHUT_WR)
                client.ended()
    target.settles("requests_in_flight")
    target.settles("reply_bytes_in_flight")


def test_calls_when_thousands_wait_and_are_cancelled_then_the_neighbour_is_served(target):
    """Many connections of which each has as many calls as it may, all taken back at once, again and again."""
    clients = [Client(target.address, source=ATTACKER) for _ in range(many(8, 32))]
    with contextlib.ExitStack() as stack:
        for client in clients:
            stack.enter_context(client)
        for turn in range(many(3, 20)):
            ids = [1 + 2 * (turn * 256 + i) for i in range(256)]
            for client in clients:
                with contextlib.suppress(Gone):
                    client.send(b"".join(call(i, wire.LOOKUP, SMALL + wire.number(4, 1)) for i in ids))
                    client.send(b"".join(wire.reset(i) for i in ids))
    target.settles("requests_in_flight")


def test_headers_when_of_calls_that_never_send_then_calls_of_others_go_on(target):
    """As many streams as a connection may have, on many connections, and nothing more."""
    clients = [Client(target.address, source=ATTACKER) for _ in range(many(16, 128))]
    with contextlib.ExitStack() as stack:
        for client in clients:
            stack.enter_context(client)
            client.send(b"".join(wire.frame(wire.HEADERS, 1 + 2 * i, wire.head(wire.LOOKUP), wire.END_HEADERS)
                                 for i in range(256)))
        assert all(client.answers_ping() for client in clients)
