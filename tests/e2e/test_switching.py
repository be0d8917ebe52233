# SPDX-License-Identifier: Apache-2.0
"""Lookups of all tables of a model with DLRM-DCNv2's shape during version switches, by clients that use only
reflection.

The clients are those of tests/soak/switching.py, which does the same with more keys for a longer time. Here the number
of switches is fixed, and the clients are threads. The last tests check that the clients detect wrong replies.
"""
import copy
import json
import os
import sys
import threading

import pytest

from rig import PATIENCE_S, ROOT, Daemon, admin_pb, default_config, generate, scratch, until

sys.path.insert(0, os.path.join(ROOT, "tests", "soak"))
import switching  # noqa: E402

SEEDS = {1: 11, 2: 22}
SWITCHES, CLIENTS, KEYS = 20, 2, 300


class Served:
    """A daemon with two versions of the model. Every table has another default row."""

    def __init__(self, work):
        for version, seed in SEEDS.items():
            generate(f"{work}/v{version}", "--preset", "dlrm-dcnv2", "--scale", 0.00005, "--seed", seed,
                     "--keys", "hashed")
        with open(f"{work}/v1/ps.json", encoding="utf-8") as f:
            entry, = json.load(f)["models"]
        defaults = [0.25 + i for i in range(len(entry["embedding_table_names"]))]
        entry |= {"default_value_for_each_table": defaults, "gpucache": False}
        self.model = switching.Model("dlrm", f"{work}/v1", SEEDS, hashed=True, defaults=defaults)
        self.daemon = Daemon(work, default_config([entry], server={"model_roots": [work]}))
        self.daemon.load("dlrm", f"{work}/v2", version=2)

    def client(self, number=0, n_clients=1, model=None):
        return switching.Client(self.daemon.grpc[0], model or self.model, number, n_clients, KEYS, batch=40)

    def activate(self, version):
        self.daemon.admin_stub().ActivateVersion(
            admin_pb.ActivateVersionRequest(model="dlrm", version=version), timeout=PATIENCE_S)


@pytest.fixture(name="served", scope="module")
def two_versions_served():
    with scratch() as work:
        served = Served(work)
        with served.daemon:
            yield served


def test_switches_when_lookups_of_all_tables_run_then_every_byte_is_correct(served):
    assert len(served.model.tables) == 26
    served.activate(1)
    clients = [served.client(number, CLIENTS) for number in range(CLIENTS)]
    ended, failures = threading.Event(), []

    def work(client):
        try:
            while not ended.is_set():
                client.call()
        except Exception as error:  # reported by the test
            failures.append(repr(error))

    threads = [threading.Thread(target=work, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()

    def called(since):
        return failures or all(len(client.calls) > n + 1 for client, n in zip(clients, since))

    try:
        for turn in range(SWITCHES):
            until(lambda since=[len(client.calls) for client in clients]: called(since), "two calls each")
            served.activate(2 - turn % 2)
        until(lambda: failures or all(client.covered() == 1 for client in clients), "all keys looked up")
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert failures == []
    for client in clients:
        assert {version for _, _, version in client.calls} == {1, 2}
        assert all(walk.checks.sum(axis=0).min() > 0 for walk in client.walks)
        assert client.n_unknown > 0 and client.n_streams > 0
        client.close()


# ---- errors that the clients must detect -------------------------------------------------------------

def told_by(client, calls=20):
    """The error that the client reports within this number of calls."""
    with pytest.raises(switching.Wrong) as caught:
        for _ in range(calls):
            client.call()
    client.close()
    return str(caught.value)


def test_client_when_rows_are_from_the_other_version_then_it_reports_them(served):
    served.activate(1)
    model = copy.copy(served.model)
    model.seeds = {1: SEEDS[2], 2: SEEDS[1]}
    text = told_by(served.client(model=model))
    assert "version 1" in text and "what came is the row of version 2" in text


def largest(reply):
    return max(reply.results, key=lambda result: result.row_count)


def one_bit(reply):
    rows = bytearray(largest(reply).rows)
    rows[-1] ^= 0x80
    largest(reply).rows = bytes(rows)


def two_rows_exchanged(reply):
    rows, n = largest(reply).rows, 4 * largest(reply).dim
    largest(reply).rows = rows[n:2 * n] + rows[:n] + rows[2 * n:]


def two_states_exchanged(reply):
    for result in reply.results:
        if result.key_status:
            result.key_status = result.key_status[1:] + result.key_status[:1]


def two_tables_exchanged(reply):
    if len(reply.results) > 1:
        reply.results[0].table, reply.results[1].table = reply.results[1].table, reply.results[0].table


def a_count(reply):
    reply.results[0].unique_key_count += 1


def the_version(reply):
    reply.version = 7


@pytest.mark.parametrize("spoil, expected", [
    (one_bit, "value 127 of 128"), (two_rows_exchanged, "what came is the"),
    (two_states_exchanged, "expected status"), (two_tables_exchanged, "expected tables"),
    (a_count, "unique keys: expected"), (the_version, "answered from versions [7]")])
def test_client_when_a_reply_is_modified_then_it_reports_the_field(served, spoil, expected):
    client = served.client()
    lookup = client.lookup

    def spoilt(request, timeout):
        reply = lookup(request, timeout=timeout)
        spoil(reply)
        return reply

    client.lookup = spoilt
    assert expected in told_by(client)


def test_client_when_a_stream_mixes_versions_then_it_reports_them(served):
    client = served.client()
    lookup_stream = client.lookup_stream

    def mixed(request, timeout):
        replies = list(lookup_stream(request, timeout=timeout))
        return [*replies, type(replies[0])(version=3 - replies[0].version)]

    client.lookup_stream = mixed
    assert "versions [1, 2]" in told_by(client)


def test_switches_when_a_call_used_a_version_that_was_not_active_then_check_raises():
    switches = switching.Switches(1)
    switches.add(10, 11, 2)
    switches.add(20, 21, 1)
    switches.check([(0, 1, 1), (9, 10.5, 1), (10.2, 10.4, 2), (10.5, 12, 1), (9, 30, 2), (12, 13, 2)])
    for call in ((0, 1, 2), (12, 13, 1), (22, 23, 2)):
        with pytest.raises(switching.Wrong, match="was answered from version"):
            switches.check([call])
