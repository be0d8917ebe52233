# SPDX-License-Identifier: Apache-2.0
"""Attacks on KServe v2, over HTTP/1.1 with sockets and over gRPC with frames: wrong sizes, excessive outputs, duplicate
names, bodies that arrive byte by byte, gzip bombs, models named like files, smuggled requests."""
import contextlib
import gzip
import json
import struct
import threading
import zlib

import numpy as np
import pytest
import wire
from http1 import answers, request
from kserve_body import LENGTH, compose
from target import ATTACKER, many
from wire import Client, Gone, number, text, varint

SERVER = {"kserve_listen": ["127.0.0.1:0"], "handshake_timeout_ms": 1000, "reply_stall_timeout_ms": 1000}
MIB = 1 << 20
INFER = "/inference.GRPCInferenceService/ModelInfer"
KEYS, COUNTS = np.array([0, -1], "<i8"), np.array([1, 1], "<i4")
GOOD = [("KEYS", KEYS), ("NUMKEYS", COUNTS)]


# ---- HTTP/1.1 ----------------------------------------------------------------------------------------

def connect(target):
    return wire.connect(target.daemon.kserve[0], source=ATTACKER)


def ask(target, bytes_, n=1):
    with connect(target) as sock:
        return answers(sock, n, bytes_)


def good(change=None, header=None, inputs=tuple(GOOD), **how):
    body, headers = compose(list(inputs), **how)
    head = int(headers.get(LENGTH, len(body)))
    document = json.loads(body[:head])
    if change is not None:
        change(document)
    text_ = json.dumps(document).encode()
    headers = {LENGTH: str(len(text_)) if header is None else header} if headers else {}
    return request(text_ + body[head:], headers)


def first(**fields):
    return lambda document: document["inputs"][0].update(fields)


def raw_of(size):
    return {"binary_data_size": size}


LIES = {
    "a product that is 0 in 64 bits": lambda: good(first(shape=[2**32, 2**32])),
    "a product that is right in 64 bits": lambda: good(first(shape=[2, 2**61 + 1])),
    "bytes that are right in 64 bits": lambda: good(first(shape=[2**61 + 2])),
    "bytes that are right in 32 bits": lambda: good(first(shape=[2**29 + 2])),
    "a negative product of negatives": lambda: good(first(shape=[-1, -2])),
    "the least number": lambda: good(first(shape=[-2**63])),
    "2^31 values of JSON": lambda: good(first(shape=[2**31 - 1]), binary=False),
    "4 EiB behind the JSON": lambda: good(first(parameters=raw_of(2**62))),
    "a size that wraps to what is there": lambda: good(first(parameters=raw_of(2**64 + 16))),
    "a negative size": lambda: good(first(parameters=raw_of(-16))),
    "sizes that overlap": lambda: good(lambda d: [one.update(parameters=raw_of(24)) for one in d["inputs"]]),
    "a head longer than the body": lambda: good(header=str(10**9)),
    "a head of 2^64 bytes": lambda: good(header=str(2**64 - 1)),
    "a head of -1 bytes": lambda: good(header="-1"),
    "a head that ends in a tensor": lambda: good(header="100000"),
    "counts that wrap to the number of keys": lambda: good(
        inputs=[("KEYS", KEYS), ("NUMKEYS", np.array([2**31 - 1] * 2 + [4], "<i4"))]),
    "counts that go back": lambda: good(inputs=[("KEYS", KEYS), ("NUMKEYS", np.array([2**31 - 1, -2**31 + 3], "<i4"))]),
    "a count too many": lambda: good(inputs=[("KEYS", KEYS), ("NUMKEYS", np.array([3, -1], "<i4"))]),
    "10,000 tables": lambda: good(inputs=[("KEYS", KEYS), ("NUMKEYS", np.ones(10000, "<i4"))]),
    "10^6 outputs": lambda: good(outputs=["OUTPUT0"] * 10**6),
    "10^6 outputs that differ": lambda: good(outputs=[f"o{i}" for i in range(10**6)]),
    "10^5 inputs": lambda: good(inputs=[*GOOD, *[(f"x{i}", KEYS) for i in range(10**5)]]),
    "an input twice": lambda: good(inputs=[*GOOD, GOOD[0]]),
    "an output twice": lambda: good(outputs=["OUTPUT0", "OUTPUT0"]),
    "a member twice": lambda: request(b'{"inputs":[],"inputs":[{"name":"KEYS","shape":[1],"datatype":"INT64","data":[1]}]}'),
    "10^6 brackets": lambda: request(b'{"inputs":[{"name":"KEYS","datatype":"INT64","shape":[1],"data":' + b"[" * 10**6),
    "10^6 brackets beside": lambda: request(b'{"x":' + b"[" * 10**6 + b"]" * 10**6 + b"}"),
    "a number of 10^6 digits": lambda: request(b'{"inputs":[{"name":"KEYS","datatype":"INT64","shape":[1],"data":[' +
                                               b"9" * 10**6 + b"]}]}"),
    "a name of a MiB": lambda: good(first(name="K" * MIB)),
    "a name with a NUL": lambda: good(first(name="KEYS\0")),
    "half a surrogate": lambda: request(b'{"inputs":[{"name":"\\ud800"}]}'),
    "bytes that are no UTF-8": lambda: request(b'{"inputs":[{"name":"\xff\xfe"}]}'),
    "shared memory": lambda: good(first(parameters={"shared_memory_region": "/etc/passwd", "shared_memory_byte_size": 16})),
    "10^5 parameters": lambda: good(lambda d: d.update(parameters={f"p{i}": i for i in range(10**5)})),
}


@pytest.mark.parametrize("name", LIES)
def test_body_when_malformed_then_refused_and_connection_stays_usable(target, name):
    lie = LIES[name]()  # computed first, because the first request of a connection has a time limit
    with connect(target) as sock:
        (status, body), = answers(sock, 1, lie)
        assert 400 <= status < 502 and status != 500, (status, body[:300])
        assert list(json.loads(body)) == ["error"] and len(body) < 4096
        assert "/etc" not in json.loads(body)["error"]
        (status, body), = answers(sock, 1, good(binary_output=True))
        assert status == 200 and target.table.expect(KEYS[:1]).tobytes() in body


NAMES = {
    "dots": "../../../../etc/passwd", "encoded dots": "%2e%2e", "encoded dots and slashes": "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "encoded slash": "m%2Fversions", "NUL": "m%00", "a NUL as it is": "m\0", "half a code": "m%2", "no code": "m%zz",
    "twice encoded": "%252e%252e%252fetc", "backslashes": "..\\..\\etc", "overlong": "%c0%ae%c0%ae", "nothing": "",
    "a line end": "m%0d%0aX-Evil:%20yes", "8,000 bytes": "m" * 8000, "formats": "%25n%25s%25n", "a query": "m?x=/../y",
}


@pytest.mark.parametrize("rest", ["/infer", "/versions/1/infer", "", "/config", "/stats", "/ready"])
@pytest.mark.parametrize("name", NAMES)
def test_model_when_named_like_a_file_then_not_found(target, name, rest):
    method = "POST" if rest.endswith("infer") else "GET"
    body, headers = compose(GOOD) if method == "POST" else (b"", {})
    found = ask(target, request(body, headers, f"/v2/models/{NAMES[name]}{rest}", method))
    if found and name != "a query":  # the query is not a part of the path
        (status, answer), = found
        assert 400 <= status < 500, (status, answer)
        assert b"root:" not in answer and b"\nX-Evil" not in answer


@pytest.mark.parametrize("version", ["%2e%2e", "-1", "0", "9" * 30, "1%00", "1%2F..", "%25s", "x" * 2000])
def test_version_when_malformed_then_refused(target, version):
    (status, _), = ask(target, request(*compose(GOOD), f"/v2/models/m/versions/{version}/infer"))
    assert 400 <= status < 500


def chunked(body, size):
    pieces = [body[at:at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def test_chunks_when_of_one_byte_then_answered_and_other_clients_are_not_delayed(target):
    """Triton used stack memory for each chunk."""
    keys = np.zeros(many(20000, 200000), "<i8")
    body, headers = compose([("KEYS", keys), ("NUMKEYS", np.array([0, len(keys)], "<i4"))], binary_output=True)
    head = request(headers={**headers, "Transfer-Encoding": "chunked"}, length=False)
    (status, answer), = ask(target, head + chunked(body, 1))
    assert status == 200 and len(answer) > len(keys) * 16


def test_chunks_when_endless_then_refused_at_the_limit(target):
    head = request(headers={"Transfer-Encoding": "chunked"}, length=False)
    with connect(target) as sock, contextlib.suppress(ConnectionError):
        sock.sendall(head)
        piece = b"%x\r\n%s\r\n" % (MIB, b"x" * MIB)
        for _ in range(100):
            sock.sendall(piece)
        raise AssertionError("100 MiB were taken")


BAD_CHUNKS = {
    "a size of 16 digits": b"ffffffffffffffff\r\n", "a size of 9 digits": b"100000000\r\n", "a negative size": b"-1\r\n",
    "a size with 0x": b"0x10\r\n", "no size": b"\r\n", "a sign": b"+5\r\nhello\r\n", "a space": b" 5\r\nhello\r\n",
    "line feeds alone": b"5\nhello\n0\n\n", "more than it says": b"3\r\nhello\r\n0\r\n\r\n",
    "an extension of a MiB": b"5;" + b"x" * MIB + b"\r\nhello\r\n", "trailers of a MiB": b"0\r\n" + b"a: b\r\n" * 180000,
}


@pytest.mark.parametrize("name", BAD_CHUNKS)
def test_chunks_when_malformed_then_refused_and_closed(target, name):
    head = request(headers={"Transfer-Encoding": "chunked"}, length=False)
    found = ask(target, head + BAD_CHUNKS[name] + request(method="GET", path="/v2/health/live"), 2)
    assert len(found) < 2 and all(400 <= status < 500 for status, _ in found)


def bomb(pack, size):
    """Whitespace, which JSON allows, and then a valid request."""
    return pack(b" " * size + compose(GOOD, binary=False)[0])


@pytest.mark.parametrize("encoding, pack", [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_bomb_when_sent_repeatedly_then_refused_and_other_clients_are_not_delayed(target, encoding, pack):
    for size in (30 * MIB, 200 * MIB):
        packed = bomb(pack, size)
        with connect(target) as sock:
            for _ in range(many(5, 50)):
                found = answers(sock, 1, request(packed, {"Content-Encoding": encoding}))
                if not found:
                    break
                assert found[0][0] in (400, 413, 429), found
    assert ask(target, good())[0][0] == 200


def test_bombs_when_sent_by_many_connections_then_memory_is_bounded(target):
    before, packed = target.resident_bytes(), bomb(gzip.compress, 200 * MIB)
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(connect(target)) for _ in range(many(16, 64))]
        threads = [threading.Thread(target=answers, args=(sock, 1, request(packed, {"Content-Encoding": "gzip"})))
                   for sock in socks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert target.resident_bytes() - before < 512 * MIB


def test_encodings_when_nested_then_refused(target):
    body, headers = compose(GOOD)
    twice = gzip.compress(gzip.compress(body))
    (status, _), = ask(target, request(twice, {**headers, "Content-Encoding": "gzip, gzip"}))
    assert status == 415
    lines = request(twice, headers).replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\nContent-Encoding: gzip\r\n\r\n", 1)
    assert ask(target, lines)[0][0] == 415


HIDDEN = request(*compose(GOOD, ident="hidden"))
SMUGGLED = {
    "both lengths": request(b"0\r\n\r\n" + HIDDEN, {"Transfer-Encoding": "chunked"}),
    "two lengths": request(HIDDEN, {"Content-Length": "0", "content-length": str(len(HIDDEN))}, length=False),
    "a length with a sign": request(HIDDEN, {"Content-Length": "+0"}, length=False),
    "a length with a comma": request(HIDDEN, {"Content-Length": f"0, {len(HIDDEN)}"}, length=False),
    "a coding that is none": request(b"0\r\n\r\n" + HIDDEN, {"Transfer-Encoding": "xchunked"}, length=False),
    "a coding over another": request(b"0\r\n\r\n" + HIDDEN, {"Transfer-Encoding": "chunked, identity"}, length=False),
    "a coding with a tab before": request(b"0\r\n\r\n" + HIDDEN, {"Transfer-Encoding": "\x0bchunked"}, length=False),
    "a space before the colon": request(b"0\r\n\r\n" + HIDDEN, {"Transfer-Encoding ": "chunked"}),
    "a folded line": request(b"0\r\n\r\n" + HIDDEN, {"X": "y\r\n Transfer-Encoding: chunked"}),
    "a line feed in a value": request(b"0\r\n\r\n" + HIDDEN, {"X": "y\nTransfer-Encoding: chunked"}),
    "a carriage return in a value": request(b"0\r\n\r\n" + HIDDEN, {"X": "y\rTransfer-Encoding: chunked"}),
    "line feeds alone": request(HIDDEN, {"Content-Length": "0"}, length=False).replace(b"\r\n", b"\n", 4),
    "a header in the path": request(HIDDEN, path="/v2/models/m/infer HTTP/1.1\r\nContent-Length: 0\r\nX: y"),
    "HTTP/1.0 with chunks": request(b"0\r\n\r\n" + HIDDEN, {"Transfer-Encoding": "chunked"}).replace(b"1.1", b"1.0", 1),
}


@pytest.mark.parametrize("name", SMUGGLED)
def test_request_when_smuggled_within_another_then_not_answered(target, name):
    found = ask(target, SMUGGLED[name], 3)
    assert not any(b"hidden" in body for _, body in found), found
    assert all(400 <= status < 502 for status, _ in found), found


def test_heads_and_bodies_when_incomplete_then_closed_and_other_clients_are_served(target):
    whole = good()
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connect(target)) for _ in range(many(100, 1000))]
        for i, sock in enumerate(slow):
            with contextlib.suppress(OSError):
                sock.sendall(whole[:i * len(whole) // len(slow)])
        assert ask(target, whole)[0][0] == 200
        for sock in slow[:len(slow) // 4]:  # these have sent at most a head
            with contextlib.suppress(ConnectionError):
                while sock.recv(4096):
                    pass


def test_requests_when_pipelined_then_each_is_answered_in_order(target):
    n = many(300, 3000)
    with connect(target) as sock:
        sends = b"".join(request(*compose(GOOD, ident=str(i))) for i in range(n))
        sender = threading.Thread(target=sock.sendall, args=(sends,))
        sender.start()
        found = answers(sock, n)
        sender.join()
    assert [json.loads(body)["id"] for _, body in found] == [str(i) for i in range(n)]


def test_replies_when_not_read_then_other_clients_are_served(target):
    keys = np.zeros(2000, "<i8")  # rows of table "a" have 1 KiB
    big = request(*compose([("KEYS", keys), ("NUMKEYS", np.array([2000, 0], "<i4"))], binary_output=True))
    with contextlib.ExitStack() as stack:
        for _ in range(many(20, 200)):
            with contextlib.suppress(OSError):
                stack.enter_context(connect(target)).sendall(big * 4)
        assert ask(target, good())[0][0] == 200


# ---- gRPC --------------------------------------------------------------------------------------------

def tensor(name, datatype, shape, more=b""):
    return text(5, text(1, name) + text(2, datatype) + text(3, b"".join(varint(dim) for dim in shape)) + more)


def raw(values):
    return text(7, struct.pack(f"<{len(values)}q", *values))


COUNTED = tensor("NUMKEYS", "INT32", [2])
ONE_EACH = text(7, struct.pack("<2i", 1, 1))
MESSAGES = {
    "a product that is 0 in 64 bits": lambda: tensor("KEYS", "INT64", [2**32, 2**32]) + COUNTED + raw([]) + ONE_EACH,
    "a product that is right in 64 bits": lambda: tensor("KEYS", "INT64", [2, 2**61 + 1]) + COUNTED + raw([1, 2]) + ONE_EACH,
    "bytes that are right in 64 bits": lambda: tensor("KEYS", "INT64", [2**61 + 2]) + COUNTED + raw([1, 2]) + ONE_EACH,
    "negatives": lambda: tensor("KEYS", "INT64", [-1, -2]) + COUNTED + raw([1, 2]) + ONE_EACH,
    "values that do not come": lambda: tensor("KEYS", "INT64", [2**31 - 1], text(5, text(3, b"\1"))) + COUNTED,
    "10^6 dimensions": lambda: tensor("KEYS", "INT64", [1] * 10**6) + COUNTED + raw([1]) + ONE_EACH,
    "10^6 outputs": lambda: tensor("KEYS", "INT64", [2]) + COUNTED + raw([1, 2]) + ONE_EACH + text(6, b"") * 10**6,
    "10^6 inputs": lambda: text(5, b"") * 10**6,
    "10^6 raw buffers": lambda: tensor("KEYS", "INT64", [2]) + COUNTED + text(7, b"") * 10**6,
    "10^6 parameters": lambda: text(4, text(1, "x") + text(2, number(2, 1))) * 10**6,
    "10^6 versions": lambda: text(2, "1") * 10**6,
    "10^6 contents": lambda: tensor("KEYS", "INT64", [2], text(5, text(3, b"\1\1")) * 10**6) + COUNTED,
    "10^6 pieces of contents": lambda: tensor("KEYS", "INT64", [10**6], text(5, text(3, b"\1") * 10**6)) + COUNTED,
    "an input twice": lambda: tensor("KEYS", "INT64", [2]) * 2 + raw([1, 2]) * 2,
    "an output twice": lambda: tensor("KEYS", "INT64", [2]) + COUNTED + raw([1, 2]) + ONE_EACH + text(6, text(1, "OUTPUT0")) * 2,
    "groups in groups": lambda: b"\x83\x06" * 10**6,
    "shared memory": lambda: tensor("KEYS", "INT64", [2], text(4, text(1, "shared_memory_region") + text(
        2, text(3, "/etc/passwd")))) + COUNTED + raw([1, 2]) + ONE_EACH,
    "a name of 20 MiB": lambda: text(1, "x" * (20 * MIB)),
    "names that are sorted": lambda: text(1, "m.tables") + b"".join(
        tensor("t" * 9000 + "%06d" % i, "INT64", [0]) for i in range(3000)) + text(7, b"") * 3000,
    "names beside names": lambda: text(1, "m.tables") + b"".join(
        tensor("a" + ".offsets" * i, "INT64", [0]) for i in range(2000)) + text(7, b"") * 2000,
}


@pytest.mark.parametrize("name", MESSAGES)
def test_message_when_malformed_then_refused_and_other_clients_are_not_delayed(target, name):
    message = text(1, "m") + MESSAGES[name]()
    with Client(target.address, source=ATTACKER, hello=wire.OPEN) as client, contextlib.suppress(Gone):
        for i in range(many(2, 10)):
            client.upload(1 + 2 * i, INFER, message)
            assert client.code(1 + 2 * i) in (wire.INVALID_ARGUMENT, wire.UNIMPLEMENTED, wire.NOT_FOUND,
                                              wire.RESOURCE_EXHAUSTED, None), client.message(1 + 2 * i)
            assert "/etc" not in client.message(1 + 2 * i) and len(client.message(1 + 2 * i)) < 4096


@pytest.mark.parametrize("name", ["../../etc/passwd", "m\0", "%2e%2e", "m/../m", "m.tables.tables", "", ".tables"])
def test_model_when_named_like_a_file_over_grpc_then_not_found(target, name):
    message = text(1, name) + tensor("KEYS", "INT64", [2]) + COUNTED + raw([1, 2]) + ONE_EACH
    with Client(target.address, source=ATTACKER) as client:
        client.upload(1, INFER, message)
        assert client.code(1) in (wire.NOT_FOUND, wire.INVALID_ARGUMENT), client.message(1)
