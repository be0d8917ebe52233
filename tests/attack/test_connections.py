# SPDX-License-Identifier: Apache-2.0
"""Connections that use a place but send no requests, connections that are opened and closed, and one address that opens
too many of them."""
import contextlib
import socket
import struct

import numpy as np
import pytest
import wire
from http1 import answers, get, request
from kserve_body import compose
from target import ATTACKER, many, until
from wire import Client, Gone, call

SERVER = {"connections_max": 64, "handshake_timeout_ms": 60000, "reply_bytes_in_flight": "1GiB",
          "kserve_listen": ["127.0.0.1:0"]}
FRESH = 2  # the healthy client opens a connection for every second call

SMALL = wire.lookup("m", wire.query("a", [1]))
WIDE = wire.lookup("m", wire.query("a", b"\0" * 8 * 4096))


def idle(target):
    """Makes one call, and stays open."""
    client = Client(target.address, source=ATTACKER)
    with contextlib.suppress(Gone):
        client.send(call(1, wire.LOOKUP, SMALL))
    return client


def mute(target):
    return wire.connect(target.address, source=ATTACKER)


def half_a_hello(target):
    sock = wire.connect(target.address, source=ATTACKER)
    with contextlib.suppress(OSError):
        sock.sendall(wire.PREFACE[:10])
    return sock


def half_closed(target):
    client = Client(target.address, source=ATTACKER)
    with contextlib.suppress(Gone, OSError):
        client.sock.shutdown(socket.SHUT_WR)
    return client


def busy(target):
    """Has a call in flight, and does not read the reply."""
    client = Client(target.address, source=ATTACKER, hello=wire.settings(window=0))
    with contextlib.suppress(Gone):
        client.upload(1, wire.LOOKUP, WIDE)
    return client


KINDS = {"idle": idle, "mute": mute, "half a hello": half_a_hello, "half-closed": half_closed, "busy": busy}


@pytest.mark.parametrize("kind", KINDS)
def test_connections_when_one_address_fills_all_places_then_other_addresses_connect(target, kind):
    with contextlib.ExitStack() as stack:
        for _ in range(64):
            with contextlib.suppress(ConnectionError):
                stack.enter_context(contextlib.closing(KINDS[kind](target)))
        for _ in range(many(5, 50)):
            target.is_served()


# ---- the same over HTTP/1.1, on the listener of KServe -------------------------------------------------

MODEST = "127.0.0.77"  # a client with one connection
LIVE = get("/v2/health/live")


def http_mute(target, sends=b"", source=ATTACKER):
    sock = wire.connect(target.daemon.kserve[0], source=source)
    with contextlib.suppress(OSError):
        sock.sendall(sends)
    return sock


def http_idle(target):
    sock = http_mute(target)
    answers(sock, 1, LIVE)
    return sock


def http_half_a_body(target):
    return http_mute(target, request(b"x" * 1000)[:-1])


def http_half_closed(target):
    sock = http_idle(target)
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
    return sock


def http_busy(target):
    """Has requests in flight, and does not read the replies."""
    keys = np.zeros(4096, "<i8")
    wide = request(*compose([("KEYS", keys), ("NUMKEYS", np.array([4096, 0], "<i4"))], binary_output=True))
    return http_mute(target, wide * 4)


HTTP_KINDS = {"idle": http_idle, "mute": http_mute, "half a head": lambda target: http_mute(target, LIVE[:20]),
              "half a body": http_half_a_body, "half-closed": http_half_closed, "busy": http_busy}


@pytest.mark.parametrize("kind", HTTP_KINDS)
def test_http_connections_when_one_address_fills_all_places_then_other_addresses_connect(target, kind):
    """gRPC and HTTP/1.1 connections share one table of places."""
    # While connections of an earlier test are open, the server refuses new ones, and displaces none later.
    until(lambda: target.metric("connections") < 8, "the connections of earlier tests are closed")
    before = target.metric("connections_displaced_total")

    def displaces():
        with http_mute(target, source=MODEST) as sock:
            assert [status for status, _ in answers(sock, 1, LIVE)] == [200]
        return target.metric("connections_displaced_total") > before

    with contextlib.ExitStack() as stack:
        for _ in range(64):
            with contextlib.suppress(ConnectionError):
                stack.enter_context(HTTP_KINDS[kind](target))
        for _ in range(many(5, 50)):
            displaces()
            target.is_served()
        if kind != "half-closed":  # the server closes these itself
            until(displaces, "the loops have accepted all connections, so that a place is taken from one")


def test_connections_when_one_address_opens_them_continuously_then_other_addresses_connect(target):
    with contextlib.ExitStack() as stack:
        for _ in range(many(400, 4000)):
            with contextlib.suppress(ConnectionError):
                stack.enter_context(contextlib.closing(mute(target)))
        target.is_served()


@pytest.mark.parametrize("how", ["closed", "reset", "in the middle of a frame"])
def test_connections_when_opened_and_closed_then_other_clients_are_served(target, how):
    for _ in range(many(300, 5000)):
        sock = wire.connect(target.address, source=ATTACKER)
        with contextlib.suppress(OSError):
            if how == "reset":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if how == "in the middle of a frame":
                sock.sendall(wire.PREFACE + wire.settings() + call(1, wire.LOOKUP, SMALL)[:60])
        sock.close()


def test_connection_when_it_sends_no_preface_then_closed(other):
    target = other(server={"handshake_timeout_ms": 300})
    with target.beside():
        for kind in (mute, half_a_hello):
            with kind(target) as sock, contextlib.suppress(ConnectionError):
                while sock.recv(4096):
                    pass


def test_address_when_its_connections_fail_repeatedly_then_only_this_address_is_slowed(other):
    target = other(server={"handshake_failures_max": 20}, client={"fresh": 2})
    with target.beside():
        for _ in range(many(100, 1000)):
            with contextlib.suppress(OSError), wire.connect(target.address, source=ATTACKER) as sock:
                sock.sendall(b"GET / HTTP/1.1\r\n\r\n" * 3)
                while sock.recv(4096):
                    pass
        failed, refused = target.metric("connections_failed_total"), target.metric("connections_refused_total")
        assert failed >= 20 and refused > 0 and failed + refused >= many(100, 1000), (failed, refused)
        assert target.daemon.log().count('msg="connection failed') < many(20, 200)
