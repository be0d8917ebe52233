# SPDX-License-Identifier: Apache-2.0
"""Messages that are small on the wire, but expensive to process: gzip bombs, unknown fields, keys in single fields,
equal keys. Calls of other connections on the same event loop must not be delayed."""
import contextlib
import struct

import pytest
import wire
from target import ATTACKER, SANITIZER, many
from wire import Client, Gone, gzip_call, squeezed

MIB = 1 << 20
REQUEST_MAX = 32 * MIB - 64


def pieces_of_keys(n):
    """1,024 queries. Each key is a field of its own instead of one packed field."""
    one = text_query(b"".join(b"\x19" + struct.pack("<q", i % 3) for i in range(n // 1024)))
    return wire.text(1, "m") + one * 1023 + wire.query("none", [1])


def text_query(keys):
    return wire.text(3, wire.text(1, "b") + keys)


MESSAGES = {  # messages that are large after inflation or decoding
    "zeros": lambda: b"\0" * REQUEST_MAX,
    "unknown fields": lambda: wire.number(99, 0) * (REQUEST_MAX // 3),
    "unknown fields of a query": lambda: wire.lookup("m", wire.text(3, wire.text(1, "b") +
                                                                    wire.number(99, 0) * (REQUEST_MAX // 3 - 20))),
    "empty queries": lambda: wire.text(3, b"") * (REQUEST_MAX // 2),
    "keys in pieces": lambda: pieces_of_keys(2 << 20),
    "equal keys": lambda: wire.lookup("m", wire.query("b", b"\0" * (16 * MIB))),
    "equal keys of many tables": lambda: wire.lookup("m", *[wire.query("b", b"\0" * 8 * 2048)] * 1024),
    "a name of 32 MiB": lambda: wire.text(1, b"m" * (REQUEST_MAX - 16)),
    "groups in groups": lambda: b"\x83\x06" * (REQUEST_MAX // 2),
}


def all_ended(n):
    return lambda client: len(client.trailers) + len(client.resets) >= n


@pytest.mark.parametrize("name", MESSAGES)
def test_bomb_when_sent_repeatedly_then_other_connections_are_not_delayed(target, name):
    one = squeezed(MESSAGES[name]())
    n = many(10 if SANITIZER else 40, 200)  # a sanitizer needs few of them
    if "equal" in name:  # each call gets a reply of 32 MiB
        n = many(10, 50)
    with Client(target.address, source=ATTACKER, hello=wire.OPEN) as client, contextlib.suppress(Gone):
        client.send(b"".join(gzip_call(1 + 2 * i, one) for i in range(n)))
        client.read_until(all_ended(n), "an end of each call")


def test_bomb_when_sent_by_many_connections_then_other_connections_are_not_delayed(target):
    one = squeezed(MESSAGES["unknown fields"]())
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(target.address, source=ATTACKER)) for _ in range(many(16, 64))]
        for client in clients:
            with contextlib.suppress(Gone):
                client.send(b"".join(gzip_call(1 + 2 * i, one) for i in range(6)))
        for client in clients:
            with contextlib.suppress(Gone):
                client.read_until(all_ended(6), "an end of each call")


@pytest.mark.parametrize("name", ["unknown fields", "keys in pieces", "equal keys"])
def test_message_when_large_and_not_compressed_then_other_connections_are_not_delayed(target, name):
    message = MESSAGES[name]()
    with Client(target.address, source=ATTACKER, hello=wire.OPEN) as client, contextlib.suppress(Gone):
        for i in range(many(4, 40)):
            client.upload(1 + 2 * i, wire.LOOKUP, message)
        client.read_until(all_ended(many(4, 40)), "an end of each call")


REFUSED = {"zeros", "unknown fields", "unknown fields of a query", "empty queries", "groups in groups"}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_bomb_when_sent_once_then_refused(target, name):
    with Client(target.address) as client:
        client.send(gzip_call(1, squeezed(MESSAGES[name]())))
        assert client.code(1) in (wire.INVALID_ARGUMENT, wire.RESOURCE_EXHAUSTED)
