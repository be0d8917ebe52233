# SPDX-License-Identifier: Apache-2.0
"""Replies that clients do not read, or read slowly, and very large replies. They must not use the memory that replies
of other clients need."""
import contextlib
import struct
import threading

import pytest
import wire
from target import ATTACKER, SANITIZER, many
from wire import Client, Gone, call

MIB = 1 << 20
SERVER = {"reply_bytes_in_flight": "128MiB", "connection_reply_bytes": "16MiB", "reply_stall_timeout_ms": 30000}


def wide(mib):
    """A lookup of rows of `mib` MiB."""
    return wire.lookup("m", wire.query("a", b"".join(struct.pack("<q", i) for i in range(int(mib * 1024)))))


def test_replies_when_a_connection_reads_none_then_bounded_by_its_limit(target):
    message = wide(4)
    with Client(target.address, source=ATTACKER, hello=wire.settings(window=0)) as client:
        for i in range(64):
            client.upload(1 + 2 * i, wire.LOOKUP, message)
        assert client.answers_ping()
        assert target.metric("reply_bytes_in_flight") <= (16 + 5) * MIB
    target.settles("reply_bytes_in_flight")


@pytest.mark.parametrize("source", [ATTACKER, None], ids=["another address", "the same proxy"])
def test_replies_when_a_large_one_waits_for_memory_then_small_ones_pass_it(other, source):
    """The client of a reply of 80 MiB does not read it. A second such reply waits for memory, while 48 MiB are free."""
    target = other(server={**SERVER, "connection_reply_bytes": "128MiB", "queue_ms_max": 60000})
    message = wide(80)
    with target.beside():
        with Client(target.address, source=source, hello=wire.settings(window=0)) as holder, \
                Client(target.address, source=source, hello=wire.settings(window=0)) as waiter:
            holder.upload(1, wire.LOOKUP, message)
            waiter.upload(1, wire.LOOKUP, message)
            assert waiter.answers_ping()
            for _ in range(many(3, 30)):
                target.is_served()
            assert waiter.answers_ping() and 1 not in waiter.trailers
    target.settles("reply_bytes_in_flight")


def test_replies_when_small_ones_are_endless_then_a_large_one_is_sent(other):
    """Small replies pass a large one that waits, but must not delay it forever. With a sanitizer replies are slower.
    All sizes are an eighth then, because no reply may wait for more than a minute."""
    share = 1 / 8 if SANITIZER else 1
    room = f"{int(128 * share)}MiB"
    target = other(server={**SERVER, "reply_bytes_in_flight": room, "connection_reply_bytes": room,
                           "queue_ms_max": 60000})
    small, large = wide(share), wide(120 * share)
    stop = threading.Event()

    def ask():
        with Client(target.address, source=ATTACKER, hello=wire.OPEN) as client, contextlib.suppress(Gone):
            for i in range(1 << 20):
                if stop.is_set():
                    return
                client.send(b"".join(call(1 + 2 * (8 * i + k), wire.LOOKUP, small) for k in range(8)))
                client.code(1 + 2 * (8 * i + 7))

    askers = [threading.Thread(target=ask) for _ in range(4)]
    with target.beside():
        for asker in askers:
            asker.start()
        try:
            with Client(target.address, hello=wire.OPEN) as client:
                for i in range(many(3, 10)):
                    client.upload(1 + 2 * i, wire.LOOKUP, large)
                    assert client.code(1 + 2 * i) == wire.OK
        finally:
            stop.set()
            for asker in askers:
                asker.join()
    target.settles("reply_bytes_in_flight")


@pytest.mark.parametrize("source", [ATTACKER], ids=["of another address"])
def test_replies_when_slow_readers_hold_all_memory_then_they_are_disconnected(target, source):
    """Replies of various sizes use all reply memory. Their clients read single bytes."""
    sizes = [wide(15)] * 12 + [wide(1)] * 20 + [wire.lookup("m", wire.query("a", range(n))) for n in (64, 8, 3)] * 20
    with contextlib.ExitStack() as stack:
        readers = []
        for size in sizes:
            reader = stack.enter_context(Client(target.address, source=source, hello=wire.settings(window=0)))
            with contextlib.suppress(Gone):
                reader.upload(1, wire.LOOKUP, size)
                reader.upload(3, wire.LOOKUP, size)
            readers.append(reader)
        for turn in range(many(20, 200)):
            for reader in readers:
                with contextlib.suppress(Gone):
                    reader.send(wire.window(1, 1))
            target.is_served()
    target.settles("reply_bytes_in_flight")


@pytest.mark.skipif(bool(SANITIZER), reason="a refusal is a matter of speed: NOT CHECKED")
@pytest.mark.parametrize("given", [0, 0x7fffffff], ids=["no window", "no recv"])
def test_replies_when_an_unread_one_exceeds_all_memory_then_others_are_not_refused(other, given):
    """One reply is larger than all reply memory. Other replies wait for memory, and must get it before queue_ms_max."""
    target = other(server={**SERVER, "reply_bytes_in_flight": "64MiB", "connection_reply_bytes": "128MiB",
                           "queue_ms_max": 4000}, client={"deadline_s": 30})
    with target.beside(), Client(target.address, source=ATTACKER, hello=wire.settings(window=given)) as reader:
        reader.send(wire.window(0, 0x3fffffff))
        reader.upload(1, wire.LOOKUP, wide(70))
        reader.read_until(lambda c: 1 in c.trailers, "the beginning of the reply")
        for _ in range(many(5, 50)):
            asked = target.ask_neighbour()
            assert not asked["n_failures"], asked
        assert target.metric("slow_readers_cut_total") == 1
    target.settles("reply_bytes_in_flight")


def test_stream_when_window_opens_byte_by_byte_then_other_clients_are_served(target):
    message = wire.lookup("m", wire.query("a", range(100)))
    with Client(target.address, source=ATTACKER, hello=wire.settings(window=1)) as client, contextlib.suppress(Gone):
        client.send(call(1, wire.STREAM, message))
        for _ in range(many(3000, 30000)):
            client.send(wire.window(1, 1))


def test_windows_when_closed_on_many_connections_then_other_clients_are_served(target):
    message = wire.lookup("m", wire.query("a", range(100)))
    with contextlib.ExitStack() as stack:
        for _ in range(many(8, 32)):
            client = stack.enter_context(Client(target.address, source=ATTACKER, hello=wire.settings(window=0)))
            with contextlib.suppress(Gone):
                client.send(b"".join(call(1 + 2 * i, wire.LOOKUP, message) for i in range(128)))
                assert client.answers_ping()
    target.settles("reply_bytes_in_flight")
