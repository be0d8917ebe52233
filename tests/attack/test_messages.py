# SPDX-License-Identifier: Apache-2.0
"""Malformed messages: invalid gzip, invalid protobuf, or messages of another service. Only the call with the message
may fail."""
import contextlib
import gzip
import random
import zlib

import pytest
import wire
from target import ATTACKER, many
from wire import END_HEADERS, Client, Gone, call, frame, gzip_call, head, squeezed

MIB = 1 << 20

NOT_GZIP = {
    "cut short": lambda good: good[:-9],
    "followed by other bytes": lambda good: good + b"more",
    "a checksum that is another": lambda good: good[:-8] + b"\0\0\0\0" + good[-4:],
    "deflate without a head": lambda good: zlib.compress(b"x"),
    "gzip in gzip": squeezed,
    "10,000 members": lambda good: squeezed(b"") * 10000 + good[:-1],
    "an extra field that does not end": lambda good: good[:3] + b"\x04" + good[4:10] + b"\xff\xff" + good[10:],
    "noise": lambda good: random.Random(1).randbytes(50000),
}


@pytest.mark.parametrize("name", NOT_GZIP)
def test_gzip_when_malformed_then_only_this_call_fails(target, name):
    message = wire.lookup("m", wire.query("a", [1]))
    good = gzip.compress(message)
    with Client(target.address) as client:
        client.upload(1, wire.LOOKUP, NOT_GZIP[name](good), ("grpc-encoding", "gzip"), compressed=1)
        assert client.code(1) not in (wire.OK, None)
        client.send(gzip_call(3, good))
        assert client.code(3) == wire.OK


MALFORMED = {
    "a varint of 11 bytes": b"\x08" + b"\xff" * 11,
    "a length beyond the end": b"\x1a\x7f\x0a",
    "a length of 2^64": b"\x1a" + b"\xff" * 9 + b"\x01",
    "field number 0": b"\x02\x01x",
    "a wire type that is none": b"\x0f",
    "a query in a query, 10,000 deep": b"\x1a\x7f" * 10000,
    "keys of 7 bytes": wire.lookup("m", wire.query("a", b"1234567")),
    "a name that is no UTF-8": wire.lookup(b"\xff\xfe\xfd"),
    "an end of a group": b"\x0c",
    "an enum of 2^32": wire.lookup("m", wire.query("a", [1]), more=wire.number(4, 2**32 + 7)),
    "10,001 tables": wire.lookup("m", *[wire.query("a", [1])] * 10001),
    "more keys than may be": wire.lookup("m", wire.query("b", b"\0" * 8 * ((2 << 20) + 1))),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_message_when_malformed_then_only_this_call_fails(target, name):
    with Client(target.address) as client:
        client.upload(1, wire.LOOKUP, MALFORMED[name])
        client.upload(3, wire.STREAM, MALFORMED[name])
        assert client.code(1) not in (wire.OK, None)
        assert client.code(3) not in (wire.OK, None)
        client.send(call(5, wire.LOOKUP, wire.lookup("m", wire.query("a", [1]))))
        assert client.code(5) == wire.OK


def test_messages_when_random_then_each_call_ends(target):
    """Bytes of a valid message, some of them changed."""
    chance = random.Random(7)
    good = wire.lookup("m", wire.query("a", range(20)), wire.query("b", range(20)), more=wire.number(8, 1))
    n = many(250, 5000)
    with Client(target.address, hello=wire.OPEN) as client:
        for i in range(n):
            bad = bytearray(good)
            for _ in range(chance.randint(1, 8)):
                bad[chance.randrange(len(bad))] = chance.randrange(256)
            client.send(call(1 + 2 * i, chance.choice((wire.LOOKUP, wire.STREAM)), bytes(bad[:chance.randint(1, len(bad))])))
            assert client.code(1 + 2 * i) is not None


OTHER_SERVICES = ["/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch",
                  "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
                  "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"]


@pytest.mark.parametrize("path", OTHER_SERVICES)
def test_service_when_it_gets_large_or_random_messages_then_other_clients_are_not_delayed(target, path):
    chance = random.Random(3)
    large = wire.text(4, b"hps.v1." * 100000) + wire.number(99, 0) * MIB
    with Client(target.address, source=ATTACKER) as client, contextlib.suppress(Gone):
        client.upload(1, path, large)
        for i in range(1, many(100, 2000)):
            client.send(call(1 + 2 * i, path, chance.randbytes(chance.randint(0, 60))))
        client.send(frame(wire.HEADERS, 99999, head(path), END_HEADERS) +
                    wire.data(99999, wire.grpc_frame(wire.text(7, b"")) * many(2000, 20000)), reads=False)


FEW_BYTES = {"request_bytes_max": "8MiB", "reply_bytes_in_flight": "64MiB"}  # 16 MiB for requests, 11.2 per address
LARGE = wire.lookup("m", wire.query("b", b"\1\0\0\0\0\0\0\0" * (128 * 1024)))  # 1 MiB, valid


def test_bodies_when_incomplete_ones_hold_all_memory_then_refused_and_others_accepted(other):
    """The attackers omit a few bytes of their requests, and send them one by one. Other clients must get this memory,
    also clients behind the same proxy."""
    target = other(server=FEW_BYTES)
    with target.beside(), contextlib.ExitStack() as stack:
        hogs = [stack.enter_context(Client(target.address)) for _ in range(2)]
        for hog in hogs:  # together they hold almost the limit of their address
            hog.upload(1, wire.LOOKUP, bytes(11 * MIB // 2 - 5), keep=100 * 1024)
        honest = stack.enter_context(Client(target.address, hello=wire.OPEN))
        stream, codes = 1, []
        while wire.OK not in codes:
            for hog in hogs:
                with contextlib.suppress(Gone):
                    hog.send(wire.data(1, b"x", end=False))
            honest.upload(stream, wire.LOOKUP, LARGE)
            codes.append(honest.code(stream))
            assert codes[-1] in (wire.OK, wire.RESOURCE_EXHAUSTED), codes
            stream += 2
            assert len(codes) < 9000, "the memory of requests is not given up"
        assert codes[0] == wire.RESOURCE_EXHAUSTED and target.metric("slow_requests_refused_total") >= 1
        for hog in hogs:
            hog.close()


def test_bodies_when_one_address_never_completes_them_then_other_addresses_are_accepted(other):
    """The attackers repeatedly send as much as fits into memory. No request of another address may be refused."""
    target = other(server={**FEW_BYTES, "request_bytes_per_s_min": 1024})
    refused = 0
    with target.beside(), contextlib.ExitStack() as stack:
        hogs = [stack.enter_context(Client(target.address, source=ATTACKER)) for _ in range(3)]
        streams = dict.fromkeys(hogs, -1)
        honest = stack.enter_context(Client(target.address, hello=wire.OPEN))
        for turn in range(many(20, 100)):
            for hog in hogs:
                if streams[hog] < 0 or streams[hog] in hog.trailers:
                    refused += streams[hog] in hog.trailers
                    streams[hog] += 2
                    hog.upload(streams[hog], wire.LOOKUP, bytes(8 * MIB - 5), keep=300 * 1024)
                else:
                    hog.send(wire.data(streams[hog], bytes(2048), end=False))
            honest.upload(1 + 2 * turn, wire.LOOKUP, LARGE)
            assert honest.code(1 + 2 * turn) == wire.OK, honest.message(1 + 2 * turn)
        assert refused > 0
