# SPDX-License-Identifier: Apache-2.0
"""The relays that stand before brokers are as bad as they are told to be."""
import contextlib
import select
import socket
import threading

import pytest

import ports
import relay
from rig import PATIENCE_S, SANITIZER, until

pytestmark = pytest.mark.skipif(SANITIZER != "", reason="nothing of ours runs in it")

SHORT_S = 0.3  # in which nothing comes where nothing may


class Echo(threading.Thread):
    """A server that answers each piece it gets with the same; `heard` is all of them."""

    def __init__(self):
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.heard = b""
        self.start()

    def run(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self.serve, args=self.listener.accept()[:1], daemon=True).start()

    def serve(self, connection):
        with contextlib.suppress(OSError), connection:
            while data := connection.recv(4096):
                self.heard += data
                connection.sendall(data)


@pytest.fixture(name="front")
def relay_before_an_echo():
    echo = Echo()
    with relay.Relays() as relays:
        yield relays.add(ports.take(), echo.port), echo
    echo.listener.close()


def connect(front):
    return socket.create_connection(("127.0.0.1", front.port), PATIENCE_S)


def told(connection, data):
    connection.sendall(data)
    return heard(connection, len(data))


def heard(connection, n):
    found = b""
    while len(found) < n and (data := connection.recv(4096)):
        found += data
    return found


def is_silent(connection):
    return not select.select([connection], [], [], SHORT_S)[0]


def is_reset(connection):
    with contextlib.suppress(ConnectionError):
        return connection.recv(1) == b""
    return True


def test_relay_when_nothing_is_done_then_bytes_go_both_ways(front):
    with connect(front[0]) as one, connect(front[0]) as other:
        big = bytes(range(256)) * 4096
        assert told(one, b"one") == b"one" and told(other, b"other") == b"other"
        threading.Thread(target=one.sendall, args=(big,), daemon=True).start()
        assert heard(one, len(big)) == big


def test_relay_when_cut_then_connections_end_and_none_begins_until_it_is_healed(front):
    with connect(front[0]) as one:
        assert told(one, b"x") == b"x"
        front[0].set(relay.CUT)
        assert is_reset(one)
    with pytest.raises(ConnectionRefusedError):
        connect(front[0])
    front[0].set(relay.PASS)
    with connect(front[0]) as one:
        assert told(one, b"x") == b"x"


def test_relay_when_it_hangs_then_nothing_goes_through_and_all_of_it_later(front):
    with connect(front[0]) as one:
        assert told(one, b"x") == b"x"
        front[0].set(relay.HANG)
        one.sendall(b"late")
        with connect(front[0]) as other:  # it is taken
            other.sendall(b"too")
            assert is_silent(one) and is_silent(other) and front[1].heard == b"x"
            front[0].set(relay.PASS)
            assert heard(one, 4) == b"late" and heard(other, 3) == b"too"


@pytest.mark.parametrize("state, arrives", ((relay.DEAF, b"xlost"), (relay.MUTE, b"x")))
def test_relay_when_one_way_is_lost_then_the_other_goes_on_and_the_connection_ends_with_it(front, state, arrives):
    with connect(front[0]) as one:
        assert told(one, b"x") == b"x"
        front[0].set(state)
        one.sendall(b"lost")
        assert is_silent(one)
        until(lambda: front[1].heard == arrives, "what goes through")
        front[0].set(relay.PASS)
        assert is_reset(one)
    with connect(front[0]) as one:
        assert told(one, b"y") == b"y"


def test_relay_when_slow_then_all_arrives(front):
    front[0].set(relay.SLOW)
    with connect(front[0]) as one:
        big = bytes(4 * relay.SLOW_CHUNK)
        one.sendall(big)
        assert heard(one, len(big)) == big
