# SPDX-License-Identifier: Apache-2.0
"""Signals, reloads and a drain while lookups and attacks are under way."""
import contextlib
import json
import signal
import threading

import pytest
import wire
from target import ATTACKER, SANITIZER, many
from wire import Client, Gone, call

SMALL = wire.lookup("m", wire.query("a", [1]))


@contextlib.contextmanager
def attacked(target):
    """Calls begun and reset, connections opened and closed, until the end of the block."""
    stop = threading.Event()

    def attack():
        while not stop.is_set():
            with contextlib.suppress(Gone, OSError), Client(target.address, source=ATTACKER) as client:
                for i in range(200):
                    client.send(call(1 + 2 * i, wire.LOOKUP, SMALL) + (wire.reset(1 + 2 * i) if i % 2 else b""))

    thread = threading.Thread(target=attack)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def reloads(target):
    return target.daemon.log().count("msg=reloaded") + target.daemon.log().count("configuration not reloaded")


@pytest.mark.skipif(bool(SANITIZER), reason="as many reloads as a sanitizer's build can make leave little else: NOT CHECKED")
def test_signals_when_sent_all_the_time_then_calls_go_on(target):
    with attacked(target):
        for _ in range(many(200, 2000)):
            for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGPIPE, signal.SIGHUP):
                target.daemon.send(number)
            target.is_served()


@pytest.mark.skipif(SANITIZER == "thread", reason="the loop is busy for longer than deadlines: NOT CHECKED")
def test_reload_when_the_file_is_broken_or_gone_or_changes_every_time_then_calls_go_on(target):
    with open(target.daemon.config_file, encoding="utf-8") as f:
        good = json.load(f)
    with attacked(target):
        for turn in range(many(8, 40) if SANITIZER else many(20, 200)):  # of 4 kinds; all take turns in one event loop
            text = [json.dumps(good)[:-turn - 1], "[" * 100000, '{"server": {"streams_per_connection": -1}}',
                    json.dumps({**good, "server": {**good["server"], "streams_per_connection": 100 + turn,
                                                   "reply_bytes_in_flight": f"{256 + turn}MiB"}})][turn % 4]
            with open(target.daemon.config_file, "w", encoding="utf-8") as f:
                f.write(text)
            target.daemon.send(signal.SIGHUP)
            target.is_served()
    target.daemon.write_config(good)


def test_drain_when_attacked_then_it_ends_in_time(other):
    target = other(server={"drain_timeout_ms": 2000})
    with Client(target.address, hello=wire.settings(window=0)) as stalled, attacked(target):
        for i in range(64):
            stalled.send(call(1 + 2 * i, wire.LOOKUP, SMALL))
        target.daemon.stop()
