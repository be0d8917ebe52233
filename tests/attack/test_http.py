# SPDX-License-Identifier: Apache-2.0
"""Attacks on the HTTP port with probes and metrics: slow and endless heads, bodies, pipelines, random bytes. Probes
must be answered during each attack."""
import contextlib
import random
import socket

import pytest
import wire
from target import ATTACKER, many, until

SERVER = {"http_head_timeout_ms": 300, "reply_stall_timeout_ms": 300}


def http(target, bytes_, patience_s=wire.PATIENCE_S):
    """Sends bytes, and returns everything that the server sends before it closes the connection."""
    with wire.connect(target.daemon.http, patience_s=patience_s) as sock:
        answer = b""
        with contextlib.suppress(ConnectionError):
            sock.sendall(bytes_)
        with contextlib.suppress(ConnectionError):
            while piece := sock.recv(65536):
                answer += piece
        return answer


BAD = {
    "a method that is none": b"BREW /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "POST with a body": b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello",
    "a body that never comes": b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n",
    "chunks": b"PUT /readyz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    "a head of 100 KB": b"GET /metrics HTTP/1.1\r\n" + b"X-More: " + b"x" * 100000 + b"\r\n\r\n",
    "10,000 fields": b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 10000 + b"\r\n",
    "no version": b"GET /metrics\r\n\r\n",
    "a version that is none": b"GET /metrics HTTP/9.9\r\nHost: localhost\r\n\r\n",
    "a NUL in the path": b"GET /met\0rics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a path of two words": b"GET /metrics /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a path outside": b"GET /../../../../etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "an encoded path outside": b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "an absolute address": b"GET http://169.254.169.254/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a tunnel": b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "HTTP/2": wire.PREFACE + wire.settings(),
    "TLS": bytes.fromhex("16030100c8010000c40303") + b"x" * 200,
    "noise": random.Random(5).randbytes(20000),
    "nothing but line breaks": b"\r\n" * 5000,
}


@pytest.mark.parametrize("name", BAD)
def test_request_when_malformed_then_refused_or_closed(target, name):
    answer = http(target, BAD[name])
    assert not answer.startswith((b"HTTP/1.1 2", b"HTTP/1.0 2")), answer[:200]


def test_requests_when_pipelined_then_each_is_answered(target):
    answer = http(target, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 999
                  + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200") == 1000


def test_request_when_smuggled_after_another_then_not_answered(target):
    answer = http(target, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 36\r\nTransfer-Encoding: chunked\r\n\r\n"
                          b"0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b"hpsd_build_info" not in answer


def test_heads_when_slow_or_incomplete_then_closed_and_probes_are_answered(target):
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(wire.connect(target.daemon.http)) for _ in range(many(200, 1000))]
        for i, sock in enumerate(slow):
            with contextlib.suppress(OSError):
                sock.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: "[:i % 30])
        assert target.daemon.get("/readyz") == (200, "ready\n")
        assert target.daemon.get("/metrics")[0] == 200
        for sock in slow:  # the server may accept some more bytes, but closes each of them
            with contextlib.suppress(ConnectionError):
                while sock.recv(4096):
                    pass


@pytest.mark.parametrize("body", [b"Content-Length: 1", b"Transfer-Encoding: chunked"])
def test_bodies_when_not_sent_then_refused_and_probes_are_answered(target, body):
    with contextlib.ExitStack() as stack:
        for _ in range(64):  # as many connections as places
            sock = stack.enter_context(wire.connect(target.daemon.http))
            sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + body + b"\r\n\r\n")
        assert sock.recv(4096).startswith(b"HTTP/1.1 413 ")
        assert target.daemon.get("/readyz") == (200, "ready\n")


UNREAD = {"/metrics": b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
          "/healthz pipelined": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000}


def unread(target, source, sends):
    """A client with small socket buffers, which does not read the reply."""
    sock = socket.socket()
    sock.settimeout(wire.PATIENCE_S)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 256)
    sock.bind((source, 0))
    host, port = target.daemon.http.rsplit(":", 1)
    sock.connect((host, int(port)))
    with contextlib.suppress(OSError):
        sock.sendall(sends)
    return sock


@pytest.mark.parametrize("sends", UNREAD)
@pytest.mark.parametrize("source", ["127.0.0.1", ATTACKER])
def test_pages_when_many_are_not_read_then_probes_and_metrics_are_answered(other, source, sends):
    """Also if the probes have the same address. Readers count as too slow only after 10 s."""
    target = other()
    with contextlib.ExitStack() as stack:
        for i in range(many(100, 1000)):
            stack.enter_context(unread(target, source, UNREAD[sends]))
            if i % 10 == 9:
                assert target.daemon.get("/readyz") == (200, "ready\n"), i
        assert target.daemon.get("/metrics")[0] == 200


def test_metrics_when_a_client_does_not_read_its_page_then_page_is_shared_until_it_is_old(other):
    target = other()

    def page():
        target.is_served()  # a lookup changes the metrics
        return target.daemon.get("/metrics")

    with target.beside(), unread(target, ATTACKER, UNREAD["/metrics"]):
        until(lambda: page() == page(), "a page that two clients get")
        first = page()
        until(lambda: page() != first, "a newer page")


def test_connections_when_opened_and_dropped_then_probes_are_answered(target):
    for _ in range(many(500, 5000)):
        wire.connect(target.daemon.http).close()
    assert target.daemon.get("/readyz") == (200, "ready\n")
