# SPDX-License-Identifier: Apache-2.0
"""Bags that lie, and such as cost the server most for the fewest bytes of the client; each call must end alone."""
import struct

import pytest
import wire
from target import ATTACKER, many
from wire import Client, call

SUM, CONCAT = 2, wire.number(12, 2)
KEYS_MAX = 2 << 20


def values(kind, *numbers):
    return struct.pack(f"<{len(numbers)}{kind}", *numbers)


def bags(table, keys, offsets, weights=b"", pooling=SUM):
    """A pooled query; `keys` numbers or bytes, `offsets` and `weights` bytes."""
    keys = keys if isinstance(keys, bytes) else wire.keys_of(keys)
    return wire.text(3, wire.text(1, table) + wire.text(2, keys) + wire.text(4, offsets) + wire.number(5, pooling) +
                     wire.text(6, weights))


LIES = {
    "2^32 bytes of offsets, of which none comes": wire.text(3, wire.text(1, "a") + b"\x22\xfc\xff\xff\xff\x0f"),
    "offsets of 7 bytes": bags("a", [1], b"\0" * 7),
    "one offset for a key": bags("a", [1], b"\0" * 4),
    "a bag that begins behind the keys": bags("a", [1], values("I", 2**32 - 1, 1)),
    "a bag that ends behind the keys": bags("a", [1], values("I", 0, 2**32 - 1)),
    "bags of keys that wrap around": bags("a", [1, 2], values("I", 0, 2**32 - 1, 2)),
    "bags that fall": bags("a", [1, 2], values("I", 0, 2, 1, 2)),
    "more bags than may be": bags("b", [], b"\0" * 4 * (KEYS_MAX + 2)),
    "more bags than may be, in many queries": bags("b", [], b"\0" * 4 * (KEYS_MAX // 2 + 2)) * 2,
    "weights of 3 bytes": bags("a", [1], values("I", 0, 1), b"123"),
    "a weight more than keys": bags("a", [1], values("I", 0, 1), b"\0" * 8),
    "weights without keys": bags("a", [], values("I", 0, 0), b"\0" * 4),
    "a pooling of 2^32 + 77": bags("a", [1], values("I", 0, 1), pooling=2**32 + 77),
    "a matrix of uneven queries": bags("a", [1], values("I", 0, 1)) + wire.query("b", [1, 2]) + CONCAT,
    "a matrix of raw rows": wire.query("a", [1]) + CONCAT + wire.number(7, 15),
    "sums of raw rows": bags("a", [1], values("I", 0, 1)) + wire.number(7, 15),
}


@pytest.mark.parametrize("name", LIES)
def test_bags_when_they_lie_then_the_call_alone_fails(target, name):
    with Client(target.address, source=ATTACKER) as client:
        client.upload(1, wire.LOOKUP, wire.lookup("m", LIES[name]))
        client.upload(3, wire.STREAM, wire.lookup("m", LIES[name]))
        assert client.code(1) == wire.INVALID_ARGUMENT
        assert client.code(3) == wire.INVALID_ARGUMENT
        client.send(call(5, wire.LOOKUP, wire.lookup("m", bags("a", [1], values("I", 0, 1)))))
        assert client.code(5) == wire.OK


@pytest.mark.parametrize("path", [wire.LOOKUP, wire.STREAM])
def test_bags_when_as_many_as_may_be_are_empty_then_others_do_not_wait(target, path):
    """4 bytes of the client are a row each; of the wide table they are more than a reply may have."""
    offsets = b"\0" * 4 * (KEYS_MAX + 1)
    with Client(target.address, source=ATTACKER, hello=wire.OPEN) as client:
        client.upload(1, path, wire.lookup("m", bags("b", [], offsets)))
        assert client.code(1) == wire.OK
        client.upload(3, path, wire.lookup("m", bags("a", [], offsets)))
        assert client.code(3) == wire.RESOURCE_EXHAUSTED
    target.settles("reply_bytes_in_flight")


def test_bag_when_it_has_as_many_keys_as_may_be_then_it_is_refused_for_the_rows_that_it_takes(target):
    """Their rows are 2 GiB, their sum is one: each of these calls would be the largest of all."""
    keys = wire.keys_of(range(1000)) * 2097
    n = len(keys) // 8
    with Client(target.address, source=ATTACKER, hello=wire.OPEN) as client:
        client.upload(1, wire.LOOKUP, wire.lookup("m", bags("a", keys, values("I", 0, n))))
        assert client.code(1) == wire.RESOURCE_EXHAUSTED
        for i in range(many(4, 40)):
            client.upload(3 + 2 * i, wire.LOOKUP, wire.lookup("m", bags("a", keys[:800000], values("I", 0, 100000))))
            assert client.code(3 + 2 * i) == wire.OK
    target.settles("reply_bytes_in_flight")


@pytest.mark.parametrize("path", [wire.LOOKUP, wire.STREAM])
def test_matrix_when_of_as_many_tables_as_may_be_then_others_do_not_wait(target, path):
    """A row of it is a MiB: a message of a stream each."""
    wide = wire.lookup("m", wire.query("a", range(16)) * 1024, more=CONCAT)
    narrow = wire.lookup("m", bags("b", range(100), values("I", *range(0, 101, 10))) * 1024, more=CONCAT)
    with Client(target.address, source=ATTACKER, hello=wire.OPEN) as client:
        for i in range(many(3, 30)):
            client.upload(1 + 4 * i, path, wide)
            assert client.code(1 + 4 * i) == wire.OK
            client.upload(3 + 4 * i, path, narrow)
            assert client.code(3 + 4 * i) == wire.OK
    target.settles("reply_bytes_in_flight")
