# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 that no regular client sends: floods, malformed frames, header bombs, other protocols on the port."""
import contextlib
import struct

import pytest
import wire
from target import ATTACKER, SANITIZER, many
from wire import END_HEADERS, END_STREAM, Client, Gone, call, frame, head, literal

# The memory in bytes that an attack may use or leave behind. Sanitizers delay freeing (256 MiB), and use memory of
# their own.
GROWS_MAX = (64 << 20) + (320 << 20 if SANITIZER else 0)


def odd(n):
    return range(1, 2 * n, 2)


def headers(stream, *fields, flags=END_HEADERS, path=wire.LOOKUP):
    return frame(wire.HEADERS, stream, head(path, *fields), flags)


def bomb(size):
    """A field that is stored in the header table, and then referenced by one byte each."""
    return literal("x-bomb", "b" * size, indexed=True) + b"\xbe" * 12000


FLOODS = {  # bytes for n frames, written at once
    "rapid reset": lambda n: b"".join(headers(i) + wire.reset(i) for i in odd(n)),
    "resets of streams that never were": lambda n: b"".join(wire.reset(i) for i in odd(n)),
    "errors that make the server reset": lambda n: b"".join(headers(i) + wire.window(i, 0) for i in odd(n)),
    "SETTINGS": lambda n: wire.settings(window=70000) * n,
    "SETTINGS that change the table": lambda n: (wire.settings(table=0) + wire.settings(table=4096)) * (n // 2),
    "PING": lambda n: frame(wire.PING, payload=b"12345678") * n,
    "WINDOW_UPDATE": lambda n: wire.window(0, 1) * n,
    "PRIORITY": lambda n: b"".join(frame(wire.PRIORITY, i, struct.pack(">IB", 0, 16)) for i in odd(n)),
    "unknown frames": lambda n: frame(0xfa, 0, b"x") * n,
    "empty DATA": lambda n: headers(1) + frame(wire.DATA, 1) * n,
    "padded DATA": lambda n: headers(1) + frame(wire.DATA, 1, b"\x01\x00", wire.PADDED) * n,
    "empty CONTINUATION": lambda n: headers(1, flags=0) + frame(wire.CONTINUATION, 1) * n,
    "streams that go back": lambda n: headers(9) + headers(3) * n,
    "calls without bodies": lambda n: b"".join(headers(i, flags=END_HEADERS | END_STREAM) for i in odd(n)),
    "calls of methods that are not": lambda n: b"".join(
        headers(i, flags=END_HEADERS | END_STREAM, path=f"/no.Such/{i}") for i in odd(n)),
}


@pytest.mark.parametrize("name", FLOODS)
@pytest.mark.parametrize("reads", [True, False], ids=["read", "unread"])
def test_flood_when_of_one_kind_of_frame_then_memory_is_bounded(target, name, reads):
    before = target.resident_bytes()
    flood = FLOODS[name](many(20000, 100000))
    with Client(target.address, source=ATTACKER) as client, contextlib.suppress(Gone, AssertionError):
        client.send(flood, reads)
    assert target.resident_bytes() - before < GROWS_MAX


@pytest.mark.parametrize("name", ["PING", "SETTINGS", "empty DATA", "rapid reset", "resets of streams that never were",
                                  "errors that make the server reset"])
def test_flood_when_endless_then_connection_is_closed(target, name):
    """Otherwise the server would have to process frames without end. The client may lose the GOAWAY frame that says
    why."""
    flood = FLOODS[name](60000)  # before the connection, which ends if its first request is late
    with Client(target.address) as client:
        with contextlib.suppress(Gone):
            client.send(flood)
        assert client.ended()
        assert client.goaway is None or client.goaway[0] in (wire.ENHANCE_YOUR_CALM, 1, 2), client.goaway


BAD_FRAMES = {
    "longer than allowed": frame(wire.DATA, 1, b"x" * 20000),
    "a length that lies": frame(wire.PING, payload=b"x" * 8, size=7) + frame(wire.PING, payload=b"x" * 8),
    "16 MiB announced": frame(wire.HEADERS, 1, b"", END_HEADERS, size=2**24 - 1) + b"x" * 30000,
    "DATA without a call": frame(wire.DATA, 0, b"x"),
    "DATA on a stream that never was": frame(wire.DATA, 99, b"x"),
    "an even stream": headers(2),
    "PUSH_PROMISE of a client": frame(wire.PUSH_PROMISE, 1, struct.pack(">I", 2), END_HEADERS),
    "SETTINGS of 5 bytes": frame(wire.SETTINGS, payload=b"12345"),
    "SETTINGS of a stream": frame(wire.SETTINGS, 1),
    "a window beyond 2 GiB": wire.window(0, 2**31 - 1) * 2,
    "a window of 0": wire.window(0, 0),
    "padding longer than its frame": headers(1) + frame(wire.DATA, 1, b"\xff\x00", wire.PADDED),
    "another frame within headers": headers(1, flags=0) + frame(wire.PING, payload=b"x" * 8),
    "headers of no field that is": frame(wire.HEADERS, 1, b"\xff\xff\xff\xff\xff\x0f", END_HEADERS),
    "a Huffman code that ends early": frame(wire.HEADERS, 1, b"\x00\x81\xff\x81\x00", END_HEADERS),
    "a table larger than allowed": frame(wire.HEADERS, 1, b"\x3f\xff\xff\xff\x7f", END_HEADERS),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_frame_when_malformed_then_connection_is_closed(target, name):
    with Client(target.address) as client:
        with contextlib.suppress(Gone):
            client.send(BAD_FRAMES[name])
        assert client.ended()


BAD_HEADS = {
    "no path": literal(":method", "POST") + literal(":scheme", "http"),
    "a method twice": head(wire.LOOKUP) + literal(":method", "POST"),
    "an upper-case name": head(wire.LOOKUP, ("X-Upper", "x")),
    "a line break in a value": head(wire.LOOKUP, ("x-break", "a\r\nb: c")),
    "a NUL in a name": head(wire.LOOKUP, ("x-\0", "a")),
    "connection-specific": head(wire.LOOKUP, ("connection", "close")),
    "GET": head(wire.LOOKUP, method="GET"),
    "CONNECT": head(wire.LOOKUP, method="CONNECT"),
    "a path of 15,000 bytes": head("/" + "x" * 15000),
    "1,000 fields": head(wire.LOOKUP) + literal("x", "y") * 1000,
    "a bomb of 48 MB": head(wire.LOOKUP) + bomb(3000),
    "a content type that is not gRPC": literal(":method", "POST") + literal(":scheme", "http") +
    literal(":path", wire.LOOKUP) + literal("content-type", "text/html"),
    "a length that is another": head(wire.LOOKUP, ("content-length", "5")),
    "a deadline that is none": head(wire.LOOKUP, timeout="99999999999999999999H"),
}


@pytest.mark.parametrize("name", BAD_HEADS)
def test_head_when_malformed_then_only_this_call_fails(target, name):
    message = wire.lookup("m", wire.query("a", [1]))
    block = BAD_HEADS[name]
    with Client(target.address) as client:
        client.send(call(1, wire.LOOKUP, message))
        assert client.code(1) == wire.OK
        client.send(frame(wire.HEADERS, 3, block[:16384], END_HEADERS if len(block) <= 16384 else 0) +
                    (frame(wire.CONTINUATION, 3, block[16384:], END_HEADERS) if len(block) > 16384 else b"") +
                    wire.data(3, wire.grpc_frame(message)))
        client.read_until(lambda c: "grpc-status" in c.trailers.get(3, {}) or 3 in c.resets or
                          c.trailers.get(3, {}).get(":status", "200") != "200" or "static" in str(c.trailers.get(3)),
                          "the end of the call")
        assert client.trailers.get(3, {}).get("grpc-status") != "0"
        client.send(call(5, wire.LOOKUP, message))
        assert client.code(5) == wire.OK


def test_header_bombs_when_on_many_streams_then_memory_is_bounded(target):
    before = target.resident_bytes()
    with Client(target.address) as client, contextlib.suppress(Gone):
        client.send(frame(wire.HEADERS, 1, head(wire.LOOKUP) + literal("x-bomb", "b" * 3000, indexed=True),
                          END_HEADERS | END_STREAM))
        for i in odd(many(300))[1:]:
            client.send(frame(wire.HEADERS, i, head(wire.LOOKUP) + b"\xbe" * 16000, END_HEADERS | END_STREAM))
    assert target.resident_bytes() - before < GROWS_MAX


def test_continuation_when_endless_then_connection_is_closed(target):
    before = target.resident_bytes()
    with Client(target.address) as client:
        with contextlib.suppress(Gone):
            client.send(headers(1, flags=0))
            for _ in range(many(1000)):
                client.send(frame(wire.CONTINUATION, 1, literal("x-more", "y" * 16000)))
        assert client.ended()
    assert target.resident_bytes() - before < GROWS_MAX


OTHERS = {
    "HTTP/1.1": b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303") + b"x" * 200,
    "SSH": b"SSH-2.0-OpenSSH_9.2\r\n",
    "Redis": b"*1\r\n$4\r\nINFO\r\n",
    "nothing but zeros": b"\0" * 4096,
    "a preface cut short": wire.PREFACE[:20] + b"xxxx" + wire.settings(),
    "a preface without SETTINGS": wire.PREFACE + call(1, wire.LOOKUP, b""),
}


@pytest.mark.parametrize("name", OTHERS)
def test_port_when_another_protocol_is_spoken_then_connection_is_closed(target, name):
    with Client(target.address, preface=b"", hello=OTHERS[name]) as client:
        assert client.ended()


def test_windows_when_changed_during_many_calls_then_other_clients_are_served(target):
    """Each SETTINGS frame changes the windows of all open streams."""
    with Client(target.address, hello=wire.settings(window=0)) as client, contextlib.suppress(Gone):
        client.send(b"".join(headers(i) for i in odd(256)))
        client.send(b"".join(wire.settings(window=size % 2) for size in range(many(4000, 20000))), reads=False)


def test_calls_when_messages_are_incomplete_then_memory_is_bounded(target):
    """256 messages of 32 MiB, each without its last byte."""
    before = target.resident_bytes()
    with Client(target.address, source=ATTACKER) as client:
        with contextlib.suppress(Gone):
            for i in odd(256):
                client.send(headers(i) + frame(wire.DATA, i, wire.grpc_frame(b"x" * 10000, size=(32 << 20) - 1)))
        assert target.resident_bytes() - before < 4 * GROWS_MAX
    assert target.daemon.alive()


LYING = {
    "4 GiB": (b"\0\xff\xff\xff\xff", wire.RESOURCE_EXHAUSTED),
    "a byte more than may be": (wire.grpc_frame(b"", size=(32 << 20) + 1), wire.RESOURCE_EXHAUSTED),
    "more than comes": (wire.grpc_frame(b"x" * 10, size=11), wire.INVALID_ARGUMENT),
    "less than comes": (wire.grpc_frame(b"\x08\x01" * 10, size=2), wire.UNIMPLEMENTED),
    "a head that is cut": (b"\0\0\0", wire.INVALID_ARGUMENT),
    "nothing": (b"", wire.UNIMPLEMENTED),
    "flags that are not": (b"\x7f" + b"\0\0\0\x02\x08\x01", wire.INTERNAL),
    "compressed, and nobody says how": (wire.grpc_frame(b"xx", compressed=1), wire.INTERNAL),
}


@pytest.mark.parametrize("name", LYING)
def test_message_when_its_length_is_wrong_then_only_this_call_fails(target, name):
    bytes_, code = LYING[name]
    with Client(target.address) as client:
        client.send(headers(1) + wire.data(1, bytes_))
        assert client.code(1) in (code, None, wire.INVALID_ARGUMENT, wire.INTERNAL)
        client.send(call(3, wire.LOOKUP, wire.lookup("m", wire.query("a", [1]))))
        assert client.code(3) == wire.OK
