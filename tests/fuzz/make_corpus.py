#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the first corpora of the fuzz targets whose inputs are scripts or texts: one file for each kind of thing,
good and bad, named by what it is. Files that fuzzing found, named by their hash, stay beside them."""
import gzip
import pathlib
import struct
import sys
import zlib


def run(data):
    data = data if isinstance(data, bytes) else data.encode()
    assert len(data) < 256
    return bytes([len(data)]) + data


def varint(value):
    out = bytearray()
    value &= (1 << 64) - 1
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def num(field, value):
    return varint(field << 3) + varint(value)


def blob(field, data):
    data = data if isinstance(data, bytes) else data.encode()
    return varint(field << 3 | 2) + varint(len(data)) + data


def frame(kind, flags, stream, data=b""):
    return struct.pack(">I", len(data))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + data


def npy(descr, shape, data):
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    head += b" " * (-(len(head) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + data


def addr():
    for name, text in {"port": "127.0.0.1:8500", "name": "localhost:0", "v6": "[::1]:80", "unix": "unix:/run/hpsd/a.sock",
                       "v6_scope": "[fe80::1%eth0]:1", "no_port": "host", "port_huge": "h:65536", "empty_host": ":1",
                       "bare_v6": "::1:80", "unix_empty": "unix:", "unix_long": "unix:/" + "x" * 120,
                       "mapped": "[::ffff:127.0.0.1]:1", "host_long": "h" * 260 + ":1"}.items():
        yield name, text.encode()
    yield "sockaddr_v4", struct.pack("<H", 2) + bytes(14)
    yield "sockaddr_unix", struct.pack("<H", 1) + b"/run/x\0"


def access():
    sha = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    rule = '{"who": ["%s"], "may": ["lookup", "read"], "models": ["dlrm", "ads-*"], "requests_per_s": 5, "reply_bytes": 9}'
    for name, who in {"any": "any", "cert": "cert:spiffe://a/b", "user": "user:root", "group": "group:root",
                      "uid": "user:0", "nobody": "user:nosuchuser", "kind": "card:x", "blank": "cert:"}.items():
        yield name, ('{"rules": [' + rule % who + "]}").encode()
    yield "token", ('{"rules": [' + rule % "token:ci" + '], "tokens": [{"name": "ci", "sha256": "' + sha +
                    '", "expires": "2027-01-31T00:00:00Z"}]}').encode()
    yield "token_unknown", ('{"rules": [' + rule % "token:ci" + '], "tokens": []}').encode()
    yield "tokens_twice", ('{"rules": [], "tokens": [' + ", ".join(['{"name": "ci", "sha256": "' + sha + '"}'] * 2) +
                           "]}").encode()
    yield "expires_bad", b'{"rules": [], "tokens": [{"name": "a", "sha256": "00", "expires": "2027-02-30"}]}'
    yield "may_bad", b'{"rules": [{"who": ["any"], "may": ["root"]}]}'
    yield "empty", b"{}"
    yield "comment", b'{/* none */ "rules": [] // yet\n}'


def topic_filter():
    topics = {"ours": "hps_et.m.items", "whole": "hps_et.m", "other": "hps_et.n.items", "none": "x"}
    filters = {"all": "^hps_.+$", "name": "m", "class": "[a-z_]+", "group": "(m|n)", "open": "(m", "back": "(m)\\1",
               "empty": "", "set": "[[:alpha:]]"}
    for f, text in filters.items():
        for t, topic in topics.items():
            yield f"{f}_{t}", run(text) + run(topic)


def gzip_():
    small = gzip.compress(b"hello " * 10, mtime=0)
    yield "small", b"\x11" + small
    yield "two_members", b"\x11" + small + small
    yield "too_large", b"\x02" + small
    yield "tail", b"\x11" + small + b"x"
    yield "cut", b"\x11" + small[:-3]
    yield "bad_crc", b"\x11" + small[:-8] + b"\0\0\0\0" + small[-4:]
    yield "name", b"\x11" + small[:3] + b"\x08" + small[4:10] + b"name\0" + small[10:]
    yield "zeros", b"\x11" + gzip.compress(bytes(100000), mtime=0)
    yield "empty", b"\x11" + gzip.compress(b"", mtime=0)
    yield "round", b"\xf0" + b"what goes in comes out " * 4


def http2_filter():
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    reset = frame(3, 0, 5, b"\0\0\0\x08")
    yield "never_begun", b"\xff" + preface + reset
    yield "begun", b"\x03" + preface + frame(1, 4, 5, b"\x82") + reset
    yield "even", b"\x01" + preface + frame(3, 0, 4, b"\0\0\0\x08")
    yield "wrong_size", b"\x10" + preface + frame(3, 0, 5, b"\0\0\0\0\x08")
    yield "many", b"\x00" + preface + reset * 5 + frame(0, 1, 1, b"x" * 20)
    yield "cut", b"\x05" + preface + reset[:-2]


def position():
    fixed = struct.pack("<BBHHH", 3, 7, 3, 2, 0) + struct.pack("<4qq7qQqq", 10, 9, 8, 7, 6, 5, 0, -1, 3, 2, 1, 1, 0, -1, 0)[:104]
    yield "format_3", b"\0" + fixed + b"abc" + b"id"
    yield "format_2", b"\0" + b"\2" + fixed[1:2] + b"\3\0\0\0\0\0" + fixed[8:72] + b"abc"
    yield "format_1", b"\0" + b"\1" + fixed[1:2] + b"\3\0\0\0\0\0" + fixed[8:56] + b"abc"
    yield "newer", b"\0\4"
    yield "cut", b"\0" + fixed[:50]
    yield "key", b"\1hps_et.m.items/17"
    yield "key_huge", b"\1hps_et.m.items/99999999999999999999"
    yield "key_none", b"\1frozen"
    yield "frozen", b"\2\1" + struct.pack("<Q", 5)
    yield "shard", b"\3" + struct.pack("<Q", 77) + struct.pack(">q", 10)
    yield "shard_negative", b"\3" + struct.pack("<Q", 77) + struct.pack(">q", -10)


def catalog():
    def record(kind, value):
        return bytes([kind, len(value) & 255, len(value) >> 8]) + value
    table = blob(1, "items") + num(2, 2) + num(3, 1) + num(4, 9) + blob(5, bytes(8))
    version = (blob(1, "m") + num(2, 7) + blob(3, "label") + blob(4, "run") + blob(5, "/m") + blob(6, "00") +
               blob(7, "0123456789abcdef") + num(8, 1000) + num(9, 1) + blob(10, table))
    model = blob(1, "m") + num(2, 7) + num(3, 6) + num(4, 2) + blob(5, "items") + blob(6, b"\7\6")
    yield "version", record(0, version)
    yield "model", record(1, model)
    yield "unused", record(2, version)
    yield "all", record(0, version) + record(1, model) + record(2, version)
    yield "row_cut", record(0, version[:-2])
    yield "row_short", record(0, blob(1, "m") + blob(10, num(2, 4) + num(3, 1) + blob(5, bytes(8))))
    yield "dtype", record(0, blob(1, "m") + blob(10, num(2, 4) + num(3, 9) + blob(5, bytes(16))))
    yield "int8", record(0, blob(1, "m") + blob(10, num(2, 3) + num(3, 5) + blob(5, bytes(7))))
    yield "int8_short", record(0, blob(1, "m") + blob(10, num(2, 3) + num(3, 4) + blob(5, bytes(7))))
    yield "raw", record(0, blob(1, "m") + blob(10, num(2, 4) + num(3, 15)))
    yield "name_long", record(0, blob(1, "m" * 200))
    yield "dim_huge", record(0, blob(1, "m") + blob(10, num(2, 0x80000000) + num(3, 1)))


# Kinds of tests/fuzz/frames.c, and what comes behind them in the two targets.
HEADERS, RAW, DATA, SETTINGS, STRANGE, CONTINUATION, FLOOD, BYTES, SMALL = 0, 2, 3, 5, 6, 7, 8, 9, 10
SEND, OTHER, CLOCK, FOURTH, FIFTH = 12, 13, 14, 15, 16


def http1_server():
    """Bytes of a client of the server of calls: in what pieces, what happens at the end, the bytes."""
    def head(line, *fields):
        return "\r\n".join([line + " HTTP/1.1", "Host: a", *fields, "", ""]).encode()

    def post(path, body, *fields):
        return head("POST " + path, f"Content-Length: {len(body)}", *fields) + body

    def chunked(path, *chunks):
        body = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
        return head("POST " + path, "Transfer-Encoding: chunked") + body

    shutdown, late, rules, answer, unread = 1, 2, 4, 8, 16
    packed = gzip.compress(b"a" * 3000, mtime=0)
    yield "get", bytes([0, 0]) + head("GET /v2/models/m?x=1") + head("HEAD /big") + head("GET /nothing")
    yield "decoded", bytes([0, 0]) + head("GET /v2/models/a%20%2e/versions/%C3%A9")
    yield "paths", bytes([0, 0]) + b"".join(head("GET /v2/models/" + x) for x in ("..", "%2e.", "a%2fb", "%00", "%"))
    yield "pipelined", bytes([0, 0]) + post("/echo", b"one") + post("/echo", b"") + post("/tiny", b"0123456789")
    yield "bytewise", bytes([1, 0]) + post("/echo", b"hello") + chunked("/echo", b"a", b"bc", b"")
    yield "chunked", bytes([7, 0]) + chunked("/echo", b"a" * 100, b"b" * 5000) + b"0;x=y\r\nX: 1\r\n\r\n" + head("GET /big")
    yield "bad_chunk", bytes([0, 0]) + chunked("/echo", b"a") + b"1 \r\n"
    yield "large", bytes([0, 0]) + post("/echo", b"l" * 40000) + post("/tiny", b"l" * 11)
    yield "too_large", bytes([0, shutdown]) + post("/echo", b"l" * 70000)
    yield "gzip", bytes([0, 0]) + post("/echo", packed, "Content-Encoding: gzip") + post("/packed", packed, "Content-Encoding: gzip")
    yield "deflate", bytes([0, 0]) + post("/echo", zlib.compress(b"b" * 3000), "Content-Encoding: deflate")
    yield "packed", bytes([0, late]) + post("/packed", b"p" * 600) + post("/packed", b"p" * 600) + post("/packed", b"")
    yield "continue", bytes([0, 0]) + head("POST /echo", "Content-Length: 4", "Expect: 100-continue") + b"late"
    yield "parked", bytes([0, answer]) + post("/park", b"") + head("GET /big")
    yield "parked_left", bytes([0, shutdown]) + post("/park", b"\xff")
    yield "parked_late", bytes([0, late]) + post("/park", b"\x01")
    yield "rules", bytes([0, rules]) + post("/park", b"") + head("GET /big")
    yield "unread", bytes([0, unread | late]) + head("GET /big") * 3
    yield "stalled", bytes([0, late]) + head("POST /echo", "Content-Length: 100") + b"some"
    yield "slow_head", bytes([3, late]) + b"GET /big HTTP/1.1\r\nHost"
    yield "token", bytes([0, 0]) + head("GET /big", "Authorization: Bearer guess") * 17
    yield "old", bytes([0, 0]) + b"GET /big HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /big HTTP/1.0\r\n\r\n"
    yield "both", bytes([0, 0]) + post("/echo", b"x", "Transfer-Encoding: chunked")
    yield "preface", bytes([0, 0]) + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def op(kind, *rest):
    return bytes([kind]) + b"".join(bytes([r]) if isinstance(r, int) else r for r in rest)


def grpc_server():
    def headers(path, end=False):
        return op(HEADERS, 1 if end else 0, path, 0)

    def data(text, end=True):
        return op(DATA, 1 if end else 0, 0, 0, run(text))
    yield "echo", b"\0" + headers(0) + data("hello") + op(OTHER)
    yield "chat", b"\0" + headers(3) + data("a", False) + data("b", False) + op(OTHER) + data("c") + op(OTHER)
    yield "pour", b"\0" + headers(2) + data("x") + op(OTHER) + op(SMALL, 3, 3, 0, b"\0\1\0\0") + op(OTHER)
    yield "park", b"\0" + headers(1) + data("x") + op(OTHER) + op(FOURTH, 1, run("answer")) + op(OTHER)
    yield "cancel", b"\0" + headers(1) + data("x") + op(OTHER) + op(SMALL, 0, 8, 0, b"\0\0\0\0") + op(OTHER)
    yield "reset_first", b"\0" + op(SMALL, 0, 8, 192, b"\0\0\0\0") + headers(0) + data("x") + op(OTHER)
    yield "rapid_reset", b"\0" + (headers(0) + op(SMALL, 0, 8, 0, b"\0\0\0\0")) * 20 + op(OTHER)
    yield "pings", b"\0" + op(FLOOD, 255, 1, 0, 0, b"\0\0\0\0") + op(OTHER)
    yield "settings", b"\0" + op(SETTINGS, 1, 3, b"\0\0\0\0") + headers(2) + data("x") + op(OTHER)
    yield "goaway", b"\0" + headers(1) + data("x") + op(SMALL, 2, 0, 0, b"\0\0\0\0") + op(OTHER)
    yield "continuation", b"\0" + op(HEADERS, 0x70, 0, 0) + op(CONTINUATION, 4, run(b"\x82")) + op(OTHER)
    yield "hpack", b"\0" + op(RAW, 0, run(b"\x82\x86\x84\x3f\xff\xff\xff\xff\x0f")) + op(OTHER)
    yield "trailers", b"\0" + headers(3) + data("a", False) + op(RAW, 0x81, 0, run(b"\x10\x01a\x01b")) + op(OTHER)
    yield "timeout", b"\0" + op(HEADERS, 0, 1, 1, 0) + data("x") + op(OTHER) + op(CLOCK, 24) + op(OTHER)
    yield "time", b"\0" + headers(1) + data("x") + op(OTHER) + op(CLOCK, 27) + op(OTHER) + op(CLOCK, 27) + op(OTHER)
    yield "half_closed", b"\0" + headers(2) + data("x") + op(FIFTH) + op(OTHER)
    yield "compressed", b"\0" + op(HEADERS, 0, 0, 1, 3) + op(DATA, 5, 0, 0, run(gzip.compress(b"hi", mtime=0))) + op(OTHER)
    yield "length_lies", b"\0" + headers(0) + op(DATA, 1, 0, 0xf0, run("abc"), b"\0\0\0\xff") + op(OTHER)
    yield "too_large", b"\0" + headers(4) + data("more than ten bytes") + op(OTHER)
    yield "no_preface", b"\xff" + op(BYTES, run("GET / HTTP/1.1\r\n\r\n")) + op(OTHER)
    yield "strange", b"\0" + op(STRANGE, 11, 0, 0, 0, run("x")) + op(OTHER)


def grpc_client():
    def call(i):
        return op(OTHER, i, 0, run("ask"))

    def headers(*rest, end=False):
        return op(HEADERS, 1 if end else 0, 224, *rest)

    begin = b"\0" + run("ask")
    ok = headers(0, 0, 0)
    yield "answer", begin + ok + op(DATA, 0, 224, 0, run("reply")) + headers(1, 1, 2, end=True) + op(SEND)
    yield "refused", begin + op(SMALL, 0, 7, 224, b"\0\0\0\0") + op(SEND)
    yield "goaway", begin + op(SMALL, 2, 0, 0, b"\0\0\0\0") + op(SEND) + call(1) + op(SEND)
    yield "not_200", begin + headers(0, 5, 0, end=True) + op(SEND)
    yield "message_large", begin + ok + op(DATA, 0, 224, 0xf0, run("x"), b"\0\1\0\0") + op(SEND)
    yield "two", begin + call(1) + op(SEND) + ok + op(SEND)
    yield "cancel", begin + op(SEND) + op(FOURTH, 0) + op(SEND)
    yield "deadline", b"\x13" + run("ask") + op(CLOCK, 25) + op(SEND)
    yield "hang_up", begin + ok + op(FIFTH) + call(2) + op(SEND)
    yield "not_http2", begin + op(BYTES, run("HTTP/1.1 400 Bad Request\r\n\r\n")) + op(SEND)
    yield "push", begin + op(STRANGE, 5, 4, 0, 224, run(b"\0\0\0\2\x82")) + op(SEND)
    yield "status_lies", begin + headers(1, 1, 4, end=True) + op(SEND)


def update_decode():
    def record(topic, value, key=None, version=None, row_version=None, follows=True):
        what = (key is not None) | (version is not None) << 1 | (row_version is not None) << 2 | (value is None) << 3
        out = bytes([topic, what | (0 if follows else 16)])
        for part in (key, version, row_version):
            out += run(part) if part is not None else b""
        return out + (b"" if value is None else bytes([len(value) & 255, len(value) >> 8]) + value)
    key = struct.pack("<q", 5)
    row = struct.pack("<2f", 1, 2)
    items = blob(1, "items") + blob(2, key) + num(3, 1) + num(4, 2) + blob(5, struct.pack("<q", 6)) + blob(15, row)
    batch = num(1, 7) + num(2, 1000) + blob(3, items)
    users = blob(3, blob(1, "users") + blob(2, key * 2) + num(3, 2) + blob(15, bytes(16)))
    packed = b"HPS1\1\0\0\0"
    yield "keyed", b"\0" + record(0, row, key)
    yield "delete", b"\0" + record(0, None, key)
    yield "hctr", b"\0" + record(0, b"HCTR" + struct.pack("<I", 8) + key + row + key + row)
    yield "hctr_narrow", b"\4" + record(0, b"HCTR" + struct.pack("<I", 4) + key[:4] + row)
    yield "hctr_users", b"\0" + record(1, b"HCTR" + struct.pack("<I", 8) + key + row + row)
    yield "packed", b"\0" + record(3, packed + batch)
    yield "packed_two", b"\0" + record(3, packed + batch + users)
    yield "packed_of_table", b"\0" + record(0, packed + blob(3, blob(2, key) + blob(15, row)))
    yield "packed_other_table", b"\0" + record(1, packed + batch)
    yield "packed_rows_short", b"\0" + record(3, packed + blob(3, blob(1, "items") + blob(2, key) + blob(15, row[:4])))
    yield "packed_keys_odd", b"\0" + record(3, packed + blob(3, blob(1, "items") + blob(2, key[:5]) + blob(15, row)))
    yield "packed_bf16", b"\2" + record(3, packed + blob(3, blob(1, "tags") + blob(2, key) + num(3, 3) + blob(15, b"\0\1")))
    yield "packed_bad", b"\0" + record(3, packed + batch[:-3])
    yield "nan", b"\0" + record(0, struct.pack("<2f", float("nan"), 1), key)
    yield "nan_allowed", b"\1" + record(0, struct.pack("<2f", float("nan"), 1), key)
    yield "fp16_too_large", b"\0" + record(1, struct.pack("<4f", 1e9, 1, 1, 1), key)
    yield "version", b"\0" + record(0, row, key, struct.pack("<q", 7))
    yield "version_other", b"\0" + record(0, row, key, struct.pack("<q", 8))
    yield "version_bad", b"\0" + record(0, row, key, b"123")
    yield "row_version", b"\2" + record(0, row, key, None, struct.pack("<Q", 9))
    for topic, table, type_, stored, bad in (
            (6, "shops", 4, b"\0\7\xff" + struct.pack("<2f", 0.5, -1), b"\0\7\xff" + struct.pack("<2f", float("nan"), 0)),
            (7, "cities", 5, b"\7" + struct.pack("<2e", 0.5, -1), b"\7" + struct.pack("<2e", 1, float("inf")))):
        wide = struct.pack(f"<{3 if type_ == 4 else 1}f", *(1, -2, 3)[:3 if type_ == 4 else 1])
        batch = lambda number, rows: packed + blob(3, blob(1, table) + blob(2, key) + num(3, number) + blob(15, rows))
        yield table + "_wide", b"\0" + record(topic, wide, key)
        yield table + "_stored", b"\0" + record(topic, stored, key)
        yield table + "_not_finite", b"\0" + record(topic, bad, key)
        yield table + "_nan_allowed", b"\1" + record(topic, bad, key)
        yield table + "_width", b"\0" + record(topic, stored + b"\0", key)
        yield table + "_inf", b"\1" + record(topic, wide[:-4] + struct.pack("<f", float("inf")), key)
        yield table + "_hctr", b"\0" + record(topic, b"HCTR" + struct.pack("<I", len(wide)) + key + wide)
        yield table + "_packed", b"\0" + record(3, batch(type_, stored))
        yield table + "_packed_wide", b"\0" + record(3, batch(1, wide))
        yield table + "_packed_other", b"\0" + record(3, batch(9 - type_, stored))
    yield "none", b"\0" + record(4, row, key)
    yield "many", b"\0" + record(0, row, key) * 3 + record(2, row[:4], key) + record(0, row[:3], key) + record(0, row, key)


def publish():
    lines = "items 1 0.5 1.5\n# note\nitems 2 null\nusers 3 1,2\n"
    for form, bits in {"keyed": 0x00, "hctr": 0x40, "packed": 0x80}.items():
        yield form, bytes([bits]) + lines.encode()
        yield form + "_table", bytes([bits | 4]) + b"1 0.5 1.5\n2 1 1\n"
    yield "hctr_narrow", b"\x50items 4294967296 1\n"
    for form, bits in {"keyed": 0x00, "hctr": 0x40, "packed": 0x80}.items():
        for sent, more in {"int8_f32": 0x10, "fp16": 0x20, "int8_f16": 0x30}.items():
            yield f"{form}_as_{sent}", bytes([bits | more]) + b"items 1 0.5 1.5 -2\nitems 2 7 7 7\nitems 3 1e30 0 0\n"
    yield "units", b"\x82items 1 2\ncommit\nitems 2 3\n"
    yield "nan", b"\0items 1 nan\n"
    yield "nan_allowed", b"\1items 1 nan inf\n"
    yield "keys", b"\x08items 1\nitems -1\n"
    yield "keys_values", b"\x08items 1 2\n"
    yield "npy", b"\x28" + npy("<i8", "(2,)", struct.pack("<2q", 1, 2))
    yield "npy_lies", b"\x28" + npy("<i8", "(99999,)", struct.pack("<2q", 1, 2))
    yield "npy_floats", b"\x28" + npy("<f4", "(2,)", bytes(8))
    yield "key_bad", b"\0items x 1\n"
    yield "nul", b"\0items 1 1\0 2\n"
    yield "no_newline", b"\0items 1 1"
    yield "dim_changes", b"\0items 1 1\nitems 2 1 2\n"
    yield "table_bad", b"\0a/b 1 1\n"


def manifest():
    yield "whole", (b'\0{"format": "hpsd-manifest", "version": 1, "lineage": "run7", "tables": [{"name": "feature_0", '
                    b'"dim": 2, "rows": 3, "dtype": "fp32", "files": [{"name": "feature_0.npy", "bytes": 152, '
                    b'"crc32c": "1a2b3c4d"}]}], "start_positions": [{"cluster": "x", "topic": "hps_et.m.items", '
                    b'"partition": 0, "offset": 17}]}')
    yield "least", b'\0{"format": "hpsd-manifest", "version": 1, "tables": [{"name": "a"}]}'
    for name, file in {"above": "../x", "absolute": "/etc/passwd", "inner": "a/../../x", "dot": "."}.items():
        yield "file_" + name, (b'\0{"format": "hpsd-manifest", "version": 1, "tables": [{"name": "feature_0", "files": '
                               b'[{"name": "' + file.encode() + b'", "crc32c": "00000000"}]}]}')
    yield "twice", b'\0{"format": "hpsd-manifest", "version": 1, "tables": [{"name": "a"}, {"name": "a"}]}'
    yield "numbers", (b'\0{"format": "hpsd-manifest", "version": 1, "tables": [{"name": "a", "dim": -1, '
                      b'"rows": 18446744073709551616}]}')
    for dtype in ("bf16", "int8_rowwise_f32", "int8_rowwise_f16", "raw"):
        yield dtype, (b'\0{"tables": [{"name": "feature_0", "dtype": "' + dtype.encode() + b'"}, '
                      b'{"name": "feature_1", "dtype": "fp16"}]}')
    yield "newer", b'\0{"format": "hpsd-manifest", "version": 2}'
    yield "deep", b"\0" + b"[" * 3000
    yield "dle", b'\1{"categorical_cardinalities": [3, 3], "embedding_dim": 2}'
    yield "dle_dims", b'\1{"categorical_cardinalities": [3, 3], "embedding_dim": [2, 2]}'
    yield "dle_nothing", b"\1{}"
    yield "dle_negative", b'\1{"categorical_cardinalities": [-3], "embedding_dim": 0}'


def snapshot():
    head = b"hpsd-snapshot 2\nhpsd 0.1.0\ncreated 1700000000000\n"
    file = b"file 11 %08x CURRENT\n"
    crc = crc32c(b"MANIFEST-1\n")
    yield "whole", b"\0" + head + b"file 15 %08x 000001.sst\n" % crc32c(b"rows of a table") + file % crc + b"file 0 00000000 empty\n"
    yield "one", b"\0" + head + file % crc
    yield "format_1", b"\xff" + head.replace(b" 2\n", b" 1\n") + b"file 11 CURRENT\n"
    yield "other_crc", b"\0" + head + file % (crc ^ 1)
    yield "other_size", b"\0" + head + b"file 12 %08x CURRENT\n" % crc
    yield "above", b"\0" + head + b"file 19 00000000 ../../secret\n"
    yield "absolute", b"\0" + head + b"file 19 00000000 /etc/passwd\n"
    yield "twice", b"\0" + head + file % crc * 2
    yield "missing", b"\0" + head + b"file 1 00000000 none\n"
    yield "no_end", b"\xff" + head + file % crc
    yield "newer", b"\0" + head.replace(b" 2\n", b" 3\n")
    yield "nul", b"\0" + head + b"file 11 00000000 CUR\0RENT\n"


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def rowfile():
    rows = npy("<f4", "(3, 2)", struct.pack("<6f", 1, 2, 3, 4, 5, 6))
    keys = npy("<i8", "(3,)", struct.pack("<3q", 7, -1, 7))

    def two(mode, first, second):
        return bytes([mode, len(second) & 255, len(second) >> 8]) + second + first
    yield "npy", b"\0" + rows
    yield "npy_dim", b"\x08" + rows
    yield "fp16", b"\0" + npy("<f2", "(3, 2)", bytes(12))
    codes = npy("|u1", "(3, 2)", b"\0\x7f\xff\1\2\3")
    scales = npy("<f4", "(3, 2)", struct.pack("<6f", *(0.5, -1) * 3))
    half_scales = npy("<f2", "(3, 2)", bytes(12))

    def typed(mode, row_dtype, dtype, first, second=b"", beside=b""):
        data = bytes([mode | 4, row_dtype | dtype << 3 | (64 if beside else 0)])
        for part in (beside, second):
            data += struct.pack("<H", len(part)) + part if part else b""
        return data + first
    yield "int8", typed(0, 0, 0, codes, beside=scales)
    yield "int8_said", typed(0, 4, 4, codes, beside=scales)
    yield "int8_f16", typed(0, 0, 0, codes, beside=half_scales)
    yield "int8_pair", typed(1, 0, 0, keys, codes, scales)
    yield "int8_alone", b"\0" + codes
    yield "int8_scales_lie", typed(0, 0, 0, codes, beside=npy("<f4", "(2, 2)", bytes(16)))
    yield "int8_scales_wide", typed(0, 0, 0, codes, beside=npy("<f4", "(3, 3)", bytes(36)))
    yield "int8_nan", typed(0, 0, 0, codes, beside=npy("<f4", "(3, 2)", struct.pack("<6f", *(float("nan"), 1) * 3)))
    yield "int8_again", typed(0, 2, 0, codes, beside=scales)
    yield "bf16", typed(0, 0, 3, npy("<u2", "(3, 2)", bytes(12)))
    yield "bf16_of_ml_dtypes", typed(0, 0, 3, npy("<V2", "(3, 2)", bytes(12)))
    yield "pair_narrow_keys", two(1, npy("<i4", "(3,)", struct.pack("<3i", 7, -1, 7)), rows)
    yield "bf16_unsaid", b"\0" + npy("<u2", "(3, 2)", bytes(12))
    yield "to_fp16", typed(0, 2, 0, rows)
    yield "to_fp16_large", typed(0, 2, 0, npy("<f4", "(1, 2)", struct.pack("<2f", 1e6, 1)))
    yield "to_int8", typed(0, 4, 0, rows)
    yield "half_to_int8", typed(0x20, 5, 0, npy("<f2", "(3, 2)", struct.pack("<6e", *range(5), float("inf"))))
    yield "pair_to_bf16", typed(1, 3, 0, keys, rows)
    yield "hugectr_to_int8", typed(2, 4, 0, struct.pack("<3q", 7, -1, 7), struct.pack("<6f", *range(6)))
    yield "nan", b"\0" + npy("<f4", "(1, 2)", struct.pack("<2f", float("nan"), 1))
    yield "nan_allowed", b"\x20" + npy("<f4", "(1, 2)", struct.pack("<2f", float("nan"), 1))
    yield "pair", two(1, keys, rows)
    yield "pair_narrow", two(0x11, keys, rows)
    yield "pair_lies", two(1, npy("<i8", "(4,)", bytes(32)), rows)
    yield "hugectr", two(2, struct.pack("<3q", 3, 2, 1), struct.pack("<6f", 1, 2, 3, 4, 5, 6))
    yield "hugectr_odd", two(2, struct.pack("<3q", 3, 2, 1)[:-1], struct.pack("<6f", 1, 2, 3, 4, 5, 6))
    yield "two", two(3, rows, rows)
    yield "one_by_one", b"\x40" + rows
    yield "rows_lie", b"\0" + npy("<f4", "(99999999999, 2)", bytes(8))
    yield "dim_0", b"\0" + npy("<f4", "(3, 0)", b"")


def rowsort():
    yield "ascending", b"\0" + b"\x0f\1" * 4
    yield "descending", b"\0" + b"\x4f\xf0\x4f\x80"
    yield "equal", b"\0" + b"\x2f\5\x2f\5"
    yield "mixed", b"\x20" + b"\x8f\0\0\0\1" + b"\x0f\7" + b"\x4f\x20" + b"\x8f\0\0\0\1"
    for i in range(40):  # some of them spill
        yield f"large_{i}", b"\xff" + b"\x8f" + struct.pack(">I", i) + b"\x4f\x80" + b"\x0f\x05" * 3


def rpc():
    m = blob(1, "m")
    yield "ping", b"\0" + run("")
    for i, name in enumerate(("ping status models tables load activate rollback unload stats explain slowlog reset updates "
                              "control config log drain check watch reflect reflect_alpha").split()):
        yield "empty_" + name, bytes([i]) + run("")
        yield "m_" + name, bytes([i]) + run(m + num(2, 1))
    yield "explain", b"\x09" + run(m + blob(2, "items") + num(3, 1))
    yield "explain_version", b"\x09" + run(m + blob(2, "items") + num(3, 9) + num(4, 1))
    yield "load", b"\x04" + run(m + blob(2, "/nowhere"))
    yield "load_dry", b"\x04" + run(m + blob(2, "/nowhere") + num(3, 2) + num(7, 1))
    yield "load_tables", b"\x04" + run(m + blob(9, blob(1, "items") + blob(2, "/nowhere/items.npy")) * 2)
    yield "load_row_dtype", b"\x04" + run(m + blob(2, "/nowhere") + blob(12, "int8_rowwise_f32"))
    yield "load_row_dtype_bad", b"\x04" + run(m + blob(9, blob(1, "t") + blob(2, "/nowhere/t.npy") + blob(3, "int4")))
    yield "log_level", b"\x0f" + run(blob(1, "debug"))
    yield "health", b"\x11" + run(blob(1, "hps.v1.Admin"))
    yield "reflect_list", b"\x13" + run(blob(7, ""))
    yield "reflect_file", b"\x13" + run(blob(3, "hps/v1/admin.proto"))
    yield "reflect_symbol", b"\x14" + run(blob(4, "hps.v1.Admin"))
    yield "cut", b"\x03" + run(b"\x0a\x05ab")
    yield "slowlog_max", b"\x0a" + run(num(1, (1 << 32) - 1))


def redis_tier():
    ok, error, row, raw, script, value = 0, 1, 2, 3, 4, 5
    get, exact, many = b"\0\0\3\0", b"\0\1\3\0", b"\0\2\3\0"
    bulk = b"\2" + struct.pack("<2f", 1, 2)
    yield "rows", run(get) + bytes([ok, row]) + b"\x42" + b"d" * 20 + bulk * 4
    yield "exact", run(exact) + bytes([script]) + b"d" * 20 + run(bytes(16)) + b"\4" + bytes([row]) + bulk * 5
    yield "many", run(many) + bytes([ok, row]) + b"\x42" + b"d" * 20 + bulk * 4
    yield "insert", run(b"\2\3\0") + (bytes([script]) + b"d" * 20 + run(bytes(16)) + b"\4") * 2
    yield "apply", run(b"\3\3\0\0\1") + (bytes([script | 0x40]) + b"d" * 20 + run(bytes(16)) + b"\4") * 2
    yield "behind", run(b"\4\0\2\4\0\3") + (bytes([script]) + b"d" * 20 + run(bytes(16)) + b"\4") * 4
    yield "errors", run(get * 3) + b"".join(bytes([error | i << 5]) for i in range(8))
    yield "halves", run(get * 2) + (bytes([raw]) + run("$100\r\nab") + bytes([raw]) + run("*3\r\n:1\r\n")) * 2
    yield "nested", run(get) + bytes([value]) + b"\4\4" * 3 + b"\0\1" * 8
    yield "nothing", run(get)


def kserve_http():
    def body(json, raw=b"", head=None):
        head = 0xffff if head is None and not raw else len(json) if head is None else head
        return struct.pack("<H", head) + json.encode() + raw

    def tensor(name, datatype, shape, rest):
        return '{"name":"%s","datatype":"%s","shape":%s,%s}' % (name, datatype, shape, rest)

    def inputs(*tensors, more=""):
        return '{"inputs":[%s]%s}' % (",".join(tensors), more)

    def raw(size):
        return '"parameters":{"binary_data_size":%d}' % size

    keys, counts = tensor("KEYS", "INT64", "[1,4]", raw(32)), tensor("NUMKEYS", "INT32", "[1,2]", raw(8))
    flat = tensor("KEYS", "INT64", "[3]", '"data":[1, -9223372036854775808,9223372036854775807]')
    output = ',"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}},{"name":"STATUS"}]'
    yield "raw", body(inputs(keys, counts, more=output), struct.pack("<4q2i", 1, 2, -1, 4, 1, 3))
    yield "json", body(inputs(flat, tensor("NUMKEYS", "INT32", "[1,2]", '"data":[[2,1]]'), more=output))
    yield "mixed", body(inputs(flat, counts, more=',"parameters":{"binary_data_output":true}'), bytes(8))
    yield "floats", body(inputs(tensor("t.weights", "FP32", "[5]", '"data":[1,-0.5,1e-3,1E+38,16777217]')))
    yield "float_large", body(inputs(tensor("w", "FP32", "[1]", '"data":[100000000000000000000]')))
    yield "bytes", body(inputs(tensor("b", "UINT8", "[2,2]", '"data":[[0,255],[1,2]]')))
    yield "escaped", body('{"\\u0069nputs":[{"d\\u0061ta":[1],"name":"\\u00e4\\n","datatype":"INT64","shape":[1]}]}')
    yield "parameters", body(inputs(more=',"id":"r","parameters":{"timeout":5,"hps_miss_policy":"wait",'
                                    '"hps_max_wait_us":1,"hps_output_type":"FP16","hps_pooling":"sum","priority":1,'
                                    '"sequence_id":"s","mine":null,"triton_enable_empty_final_response":true}'))
    yield "unknown", body(inputs(more=',"x":[1,{"data":[1]},[[]],"]",1.5e3,false]'))
    yield "empty_tensor", body(inputs(tensor("a", "INT64", "[0]", '"data":[]'), tensor("b", "INT64", "[2,0]", '"data":[[],[]]')))
    yield "shared_memory", body(inputs(tensor("a", "INT64", "[1]", '"parameters":{"shared_memory_region":"r"}')))
    yield "classification", body(inputs(more=',"outputs":[{"name":"a","parameters":{"classification":3}}]'))
    yield "both", body(inputs(tensor("a", "INT64", "[1]", '"data":[1],' + raw(8))), bytes(8))
    yield "size_large", body(inputs(tensor("a", "INT64", "[1]", raw(2**63 - 1))), bytes(8))
    yield "shape_large", body(inputs(tensor("a", "INT64", "[2305843009213693952,8]", raw(0))), bytes(1))
    yield "shape_negative", body(inputs(tensor("a", "INT64", "[-1]", '"data":[1]')))
    yield "ragged", body(inputs(tensor("a", "INT64", "[2,2]", '"data":[[1],[2,3,4]]')))
    yield "exponent", body(inputs(tensor("a", "INT64", "[1]", '"data":[1e3]')))
    yield "string", body(inputs(tensor("a", "INT64", "[1]", '"data":["]1"]')))
    yield "twice", body(inputs(flat, flat))
    yield "twice_key", body('{"inputs":[],"inputs":[]}')
    yield "many_outputs", body(inputs(more=',"outputs":[%s]' % ",".join('{"name":"o%d"}' % i for i in range(40))))
    yield "deep", body("[" * 40 + "]" * 40)
    yield "not_closed", body('{"inputs":[{"data":[[1]')
    yield "behind", body(inputs() + " x")
    yield "header_beyond", body(inputs(), head=1000)
    yield "header_zero", body("", bytes(8), head=0)
    yield "empty", body("")


def kserve_grpc():
    def tensor(name, datatype, shape, *more):
        return blob(5, blob(1, name) + blob(2, datatype) + blob(3, b"".join(map(varint, shape))) + b"".join(more))

    def raw(form, *values):
        return blob(7, struct.pack(f"<{len(values)}{form}", *values))

    def parameter(field, name, value):
        return blob(field, blob(1, name) + blob(2, value))

    def typed(field, *values):
        return blob(5, blob(field, b"".join(map(varint, values))))

    model = blob(1, "m")
    keys, counts = tensor("KEYS", "INT64", [1, 4]), tensor("NUMKEYS", "INT32", [1, 2])
    values = raw("q", 1, 2, -1, 4) + raw("i", 1, 3)
    items, offsets = tensor("items", "INT64", [3]), tensor("items.offsets", "INT64", [3])
    weights = tensor("items.weights", "FP32", [3])
    bags = blob(1, "m.tables") + items + offsets + weights
    pooled = parameter(4, "hps_pooling", blob(3, "mean"))
    raws = raw("q", 5, 6, 7) + raw("q", 0, 1, 3) + raw("f", 1, -0.5, 2)
    yield "hps", model + blob(2, "7") + keys + counts + blob(6, blob(1, "OUTPUT0")) + values
    yield "samples", (model + tensor("KEYS", "INT32", [2, 3]) + tensor("NUMKEYS", "INT32", [2, 2]) + raw("i", 1, 2, 3, -4, 5, 6) +
                      raw("i", 1, 2, 3, 0))
    yield "raw_first", values + counts + keys + model
    yield "typed", (model + tensor("KEYS", "INT64", [2], typed(3, 1, -5)) +
                    tensor("NUMKEYS", "INT32", [2], typed(2, 1, 1)))
    yield "typed_one_by_one", model + tensor("KEYS", "INT64", [2], blob(5, num(3, 1) + blob(3, b"\2") + blob(3, b"")))
    yield "typed_floats", (blob(1, "m.tables") + tensor("items", "INT64", [1], typed(3, 9)) +
                           tensor("items.offsets", "INT32", [2], typed(2, 0, 1)) + pooled +
                           tensor("items.weights", "FP32", [1], blob(5, blob(6, struct.pack("<f", 0.5)))))
    yield "typed_twice", model + tensor("KEYS", "INT64", [2], typed(3, 1), typed(3, 2))
    yield "typed_bytes", model + tensor("x", "UINT8", [3], typed(4, 0, 255, 256))
    yield "typed_other", model + tensor("KEYS", "INT64", [2], typed(2, 1, 2))
    yield "typed_short", model + tensor("KEYS", "INT64", [1 << 30], typed(3, 1, 2))
    yield "both", model + tensor("KEYS", "INT64", [1], typed(3, 1)) + raw("q", 1)
    yield "bags", bags + pooled + raws
    yield "bags_int32", blob(1, "m.tables") + items + tensor("items.offsets", "INT32", [3]) + pooled + raw("q", 5, 6, 7) + raw("i", 0, 1, 3)
    yield "bags_falling", bags + pooled + raw("q", 5, 6, 7) + raw("q", 0, 4, 3) + raw("f", 1, 2, 3)
    yield "bags_without_pooling", bags + raws
    yield "beside_what_is_beside", (blob(1, "m.tables") + items + offsets + tensor("items.offsets.offsets", "INT64", [0]) +
                                    pooled + raw("q", 5, 6, 7) + raw("q", 0, 1, 3) + raw("q"))
    yield "outputs", model + keys + counts + b"".join(blob(6, blob(1, name)) for name in ("STATUS", "OUTPUT0")) + values
    yield "output_twice", model + keys + counts + blob(6, blob(1, "OUTPUT0")) * 2 + values
    yield "many_outputs", model + keys + counts + b"".join(blob(6, blob(1, f"o{i}")) for i in range(80)) + values
    yield "input_twice", model + keys + keys + raw("q", 1, 2, 3, 4) * 2
    yield "parameters", (model + keys + counts + values + blob(3, "id") + parameter(4, "timeout", num(2, 5)) +
                         parameter(4, "hps_miss_policy", blob(3, "wait")) + parameter(4, "hps_max_wait_us", num(2, 9)) +
                         parameter(4, "hps_output_type", blob(3, "FP16")) + parameter(4, "priority", num(5, 1)) +
                         parameter(4, "x", num(1, 1)) + parameter(4, "y", varint(4 << 3 | 1) + bytes(8)))
    yield "parameter_twice", (model + parameter(4, "timeout", num(2, 5)) + parameter(4, "timeout", num(5, 6)) +
                              parameter(4, "timeout", blob(3, "x") + num(2, 7)))
    yield "parameter_in_halves", model + blob(4, blob(1, "timeout") + blob(2, num(2, 5)) + blob(2, b""))
    yield "parameter_without_value", model + blob(4, blob(1, "timeout"))
    yield "parameter_negative", model + parameter(4, "timeout", num(2, -1))
    yield "reserved", model + parameter(4, "triton_x", num(2, 1))
    yield "shared_memory", model + tensor("KEYS", "INT64", [1], parameter(4, "shared_memory_region", blob(3, "r")))
    yield "shape_overflow", model + tensor("KEYS", "INT64", [1 << 62, 8]) + raw("q")
    yield "shape_negative", model + tensor("KEYS", "INT64", [-1]) + raw("q", 1)
    yield "shape_long", model + tensor("KEYS", "INT64", [1] * 9) + raw("q", 1)
    yield "shape_one_by_one", model + blob(5, blob(1, "KEYS") + blob(2, "INT64") + num(3, 1) + num(3, 1)) + raw("q", 1)
    yield "shape_none", model + tensor("KEYS", "INT64", []) + raw("q", 1)
    yield "raw_short", model + keys + counts + raw("q", 1)
    yield "raw_one", model + keys + counts + raw("q", 1, 2, -1, 4)
    yield "datatype", model + tensor("KEYS", "BYTES", [1]) + raw("q", 1)
    yield "name_with_nul", blob(1, "m\0x") + blob(3, "\0") + keys + counts + values
    yield "last_wins", blob(1, "a") + blob(1, "m") + blob(2, "1") + blob(2, "next") + keys + counts + values
    yield "unknown", model + keys + counts + values + num(90, 1) + blob(91, b"x") + varint(92 << 3 | 5) + bytes(4)
    yield "wire", num(1, 1) + varint(5 << 3 | 5) + bytes(4)
    yield "cut", (model + keys)[:-3]
    yield "empty", b""


TARGETS = {"access": access, "addr": addr, "topic_filter": topic_filter, "gzip": gzip_, "http2_filter": http2_filter, "position": position,
           "catalog": catalog, "http1_server": http1_server, "kserve_http": kserve_http,
           "kserve_grpc": kserve_grpc,
           "grpc_server": grpc_server, "grpc_client": grpc_client,
           "update_decode": update_decode, "publish": publish, "manifest": manifest, "snapshot": snapshot,
           "rowfile": rowfile, "rowsort": rowsort, "rpc": rpc, "redis_tier": redis_tier}


def main():
    default = pathlib.Path(__file__).parent / "corpus"
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    for target, make in TARGETS.items():
        (root / target).mkdir(parents=True, exist_ok=True)
        for name, data in make():
            (root / target / name).write_bytes(data)


if __name__ == "__main__":
    main()
