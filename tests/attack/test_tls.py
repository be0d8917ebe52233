# SPDX-License-Identifier: Apache-2.0
"""TLS: other protocols on its port, records of one byte, incomplete handshakes, certificates of another authority."""
import contextlib
import random
import socket
import ssl
import struct

import pytest
import wire
from rig import Authority
from target import ATTACKER, Target, many, scratch
from wire import Client, Gone, call

SMALL = wire.lookup("m", wire.query("a", [1]))


@pytest.fixture(name="shared", scope="module")
def target_with_certificates():
    with scratch() as work:
        ours, theirs = Authority(work, "ours"), Authority(work, "theirs")
        certificate, key = ours.issue("server")
        mine = ours.issue("client")
        target = Target(work, server={"handshake_timeout_ms": 20000, "tls": {
            "certificate": certificate, "key": key, "client_ca": ours.path, "require_client_certificate": True}},
            client={"ca": ours.path, "certificate": mine[0], "key": mine[1]})
        target.address = target.address.replace("127.0.0.1", "localhost")
        target.mine, target.stranger, target.ca = mine, theirs.issue("stranger"), ours.path
        yield target
        target.close()


def context(target, pair=None, **how):
    """TLS context of a client. `pair`: certificate and key."""
    made = ssl.create_default_context(cafile=target.ca)
    made.set_alpn_protocols(how.get("alpn", ["h2"]))
    if pair:
        made.load_cert_chain(*pair)
    return made


def through(target, pair, **how):
    return Client(target.address, source=ATTACKER, tls=context(target, pair, **how))


def is_refused(target, pair, **how):
    try:
        with through(target, pair, **how) as client:
            client.send(call(1, wire.LOOKUP, SMALL))
            return client.code(1) not in (wire.OK, None)
    except (Gone, OSError):
        return True


def test_client_when_its_certificate_is_valid_then_served(target):
    assert not is_refused(target, target.mine)


@pytest.mark.parametrize("who", ["nobody", "a stranger"])
def test_client_when_its_certificate_is_missing_or_untrusted_then_refused(target, who):
    assert is_refused(target, None if who == "nobody" else target.stranger)


@pytest.mark.parametrize("alpn", [["http/1.1"], ["h3", "spdy/3"]])
def test_client_when_it_speaks_no_http2_then_refused(target, alpn):
    assert is_refused(target, target.mine, alpn=alpn)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_client_when_its_tls_is_old_then_refused(target, version):
    old = context(target, target.mine)
    old.minimum_version = old.maximum_version = version
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(OSError):
        Client(target.address, tls=old)


PLAIN = {
    "HTTP/2 without TLS": wire.PREFACE + wire.settings() + call(1, wire.LOOKUP, SMALL),
    "HTTP/1.1": b"GET /metrics HTTP/1.1\r\n\r\n",
    "a hello of 16 MB": b"\x16\x03\x01\x40\x00\x01\xff\xff\xff" + b"x" * 16379,
    "records of nothing": b"\x16\x03\x01\x00\x00" * 2000,
    "alerts": b"\x15\x03\x03\x00\x02\x01\x5a" * 2000,
    "data before the handshake": b"\x17\x03\x03\x40\x00" + b"x" * 16384,
    "noise": random.Random(11).randbytes(20000),
}


@pytest.mark.parametrize("name", PLAIN)
def test_port_when_no_tls_is_spoken_then_closed(target, name):
    with wire.connect(target.address, source=ATTACKER) as sock, contextlib.suppress(ConnectionError):
        sock.sendall(PLAIN[name])
        with contextlib.suppress(OSError):  # the server may have closed it
            sock.shutdown(socket.SHUT_WR)
        while sock.recv(4096):
            pass


def records_of_one_byte(bytes_, target):
    """A connection after its handshake, and encrypted bytes to send: each byte of `bytes_` in its own record."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context(target, target.mine).wrap_bio(incoming, outgoing, server_hostname="localhost")
    sock = wire.connect(target.address, source=ATTACKER)
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            sock.sendall(outgoing.read())
            incoming.write(sock.recv(65536))
    for at in range(len(bytes_)):
        tls.write(bytes_[at:at + 1])
    return sock, outgoing.read()


def test_records_when_of_one_byte_then_other_connections_are_not_delayed(target):
    """The loop must limit the time of a connection, not only the bytes: they take a million records."""
    one = wire.frame(wire.HEADERS, 1, wire.head(wire.LOOKUP), wire.END_HEADERS)
    bytes_ = wire.PREFACE + wire.settings() + one + wire.frame(wire.DATA, 1, wire.grpc_frame(b"x" * 16000)[:16384]) * \
        many(4, 20)
    with contextlib.ExitStack() as stack:
        ready = [records_of_one_byte(bytes_, target) for _ in range(4)]
        for sock, _ in ready:
            stack.enter_context(sock)
        for sock, sealed in ready:
            with contextlib.suppress(OSError):
                sock.sendall(sealed)


def test_handshakes_when_incomplete_then_other_clients_are_served(target):
    hello, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context(target).wrap_bio(hello, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    first = outgoing.read()
    with contextlib.ExitStack() as stack:
        for i in range(many(200, 2000)):
            with contextlib.suppress(OSError):
                sock = stack.enter_context(wire.connect(target.address, source=ATTACKER))
                sock.sendall(first if i % 2 else first[:i % len(first)])
                if i % 4 == 1:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    sock.close()


def test_handshakes_when_they_all_fail_then_other_clients_are_served(target):
    for _ in range(many(60, 600)):
        assert is_refused(target, target.stranger)


def test_connection_when_closed_within_a_record_then_call_ends(target):
    for _ in range(many(20, 200)):
        sock, sealed = records_of_one_byte(wire.PREFACE + wire.settings() + call(1, wire.LOOKUP, SMALL), target)
        with sock:
            sock.sendall(sealed[:-3])
    target.settles("requests_in_flight")
