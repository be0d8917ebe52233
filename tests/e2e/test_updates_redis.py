# SPDX-License-Identifier: Apache-2.0
"""Updates of daemons that share a Redis cluster: each sees what the others brought there, whoever stops, starts or
falls behind, and nobody ever an older row than those that it has applied."""
import concurrent.futures
import os
import threading

import grpc
import pytest

import redis
from rig import PATIENCE_S, SLOW, until
from test_updates import KEYS, config_of, in_every_tier, keyed, tables_of, updates, values, wait_now

pytestmark = pytest.mark.skipif(redis.missing() is not None, reason=redis.missing() or "")

SHARDS = 8


def shared_config(work, broker, model, servers, durable=True, device=True, **volatile):
    address = servers.addresses if isinstance(servers, redis.Cluster) else servers.address
    return config_of(work, broker, model, names=("a",), durable=durable, device=device,
                     server={"model_roots": [work]},
                     volatile_db={"type": "redis_cluster", "address": address, "num_partitions": SHARDS,
                                  "redis_command_timeout_ms": int(1000 * SLOW), "cache_missed_embeddings": True, **volatile})


@pytest.fixture(name="cluster")
def cluster_fixture(work):
    with redis.Cluster(os.path.join(work, "redis"), masters=3, replicas=0) as nodes:
        yield nodes


def write(broker, model, first, keys=range(KEYS)):
    """Key k gets the value first + k."""
    broker.write(f"hps_et.{model}.a", [keyed(key, first + key) for key in keys])
    return {key: first + key for key in keys}


def check(daemon, model, expected):
    wait_now(daemon, model)
    assert values(daemon.stub(), model, "a", expected) == expected


def in_redis(daemon, model, expected):
    """The keys that the Redis tier has for this daemon; none with another row."""
    tiers = {key: in_every_tier(daemon, model, "a", key) for key in expected}
    found = {key: of["redis"] for key, of in tiers.items() if of["redis"] is not None}
    assert found == {key: expected[key] for key in found}
    return set(found)


def await_in_redis(daemon, model, expected):
    """A server that is late has none of them for now."""
    until(lambda: in_redis(daemon, model, expected) == set(expected), "all rows in Redis")


def metric(daemon, name, model):
    return daemon.metrics().get(f'hpsd_{name}{{model="{model}"}}', 0)


def test_updates_when_two_daemons_share_a_cluster_then_each_sees_the_others_rows(broker, daemon, work, cluster):
    broker.create("hps_et.pair.a", 2)
    config = shared_config(work, broker, "pair", cluster)
    one, two = daemon(config, state="one"), daemon(config, state="two")
    rows = write(broker, "pair", 100)
    for each in (one, two):
        check(each, "pair", rows)
        await_in_redis(each, "pair", rows)
    two.stop()
    rows.update(write(broker, "pair", 200, range(10, 40)))
    check(one, "pair", rows)
    await_in_redis(one, "pair", rows)
    two.start()
    check(two, "pair", rows)
    await_in_redis(two, "pair", rows)
    one.kill()
    rows.update(write(broker, "pair", 300, range(0, 20)))
    check(two, "pair", rows)
    one.start()
    check(one, "pair", rows)
    for each in (one, two):
        await_in_redis(each, "pair", rows)
        assert metric(each, "update_shared_resets_total", "pair") == 0


def test_updates_when_a_node_was_paused_then_its_shards_are_brought_on(broker, daemon, work, cluster):
    broker.create("hps_et.paused.a", 2)
    one = daemon(shared_config(work, broker, "paused", cluster, redis_command_timeout_ms=int(100 * SLOW)))
    rows = write(broker, "paused", 100)
    check(one, "paused", rows)
    cluster.nodes[1].pause()
    for first in range(200, 1000, 100):  # what is sent before it counts as down is carried out when it goes on
        rows.update(write(broker, "paused", first, range(20, 60)))
        check(one, "paused", rows)
    assert metric(one, "update_shared_behind", "paused") == 1
    assert "the shared tier is behind" in one.ctl("updates")
    cluster.nodes[1].resume()
    until(lambda: metric(one, "update_shared_behind", "paused") == 0, "all shards to be there")

    def are_there():
        if metric(one, "update_shared_resets_total", "paused") > 0:  # replays came too late again and again
            values(one.stub(), "paused", "a", rows)  # which brings rows back to shards that are emptied
        return in_redis(one, "paused", rows) == set(rows)
    until(are_there, "all rows in Redis")
    assert metric(one, "update_shared_replayed_records_total", "paused") > 0
    assert metric(one, "update_shared_resets_total", "paused") <= SHARDS
    check(one, "paused", rows)


def test_updates_when_one_daemon_seeks_forward_then_others_never_find_its_rows(broker, daemon, work, cluster):
    topic = broker.create("hps_et.apart.a", 1)
    config = shared_config(work, broker, "apart", cluster)
    one, two = daemon(config, state="one"), daemon(config, state="two")
    rows = write(broker, "apart", 100)
    for each in (one, two):
        check(each, "apart", rows)
    one.ctl("updates", "pause", "--model", "apart")
    new = dict(rows)
    new.update(write(broker, "apart", 200, range(0, 30)))
    check(two, "apart", new)
    assert "hpsctl updates resume" in one.seek("--model", "apart", "--to", "latest")
    one.ctl("updates", "resume", "--model", "apart")
    check(one, "apart", rows)
    assert "the shared tier is bypassed" in one.ctl("updates")
    for _ in range(3):
        assert values(one.stub(), "apart", "a", rows) == rows
        assert values(two.stub(), "apart", "a", new) == new
    assert in_redis(one, "apart", rows) == set()
    one.stop()
    one.start()
    check(one, "apart", rows)
    assert updates(one, "apart")["shared_tier"] == "apart"
    one.seek("--model", "apart", "--topic", topic, "--to", str(KEYS))
    check(one, "apart", new)
    until(lambda: updates(one, "apart").get("shared_tier", "") == "", "the seek to end that")
    await_in_redis(one, "apart", new)


def test_updates_when_redis_loses_everything_then_the_rows_come_back(broker, daemon, work, cluster):
    broker.create("hps_et.lost.a", 2)
    config = shared_config(work, broker, "lost", cluster, device=False)
    one, two = daemon(config, state="one"), daemon(config, state="two")
    rows = write(broker, "lost", 100)
    for each in (one, two):
        check(each, "lost", rows)
    for node in cluster.nodes:
        node.ask("FLUSHALL")
    rows.update(write(broker, "lost", 200, range(0, 30)))
    for each in (one, two):
        check(each, "lost", rows)

    def refilled():
        values(one.stub(), "lost", "a", rows)
        return in_redis(two, "lost", rows) == set(rows)
    until(refilled, "rows found below to be in Redis again")


def test_updates_when_a_daemon_comes_after_retention_then_the_others_keep_their_rows(broker, daemon, work, cluster):
    topic = broker.create("hps_et.late.a", 1)
    config = shared_config(work, broker, "late", cluster, device=False)
    one = daemon(config, state="one")
    rows = write(broker, "late", 100)
    check(one, "late", rows)
    broker.drop(topic, 0, KEYS)
    two = daemon(config, state="two")
    wait_now(two, "late")
    assert "the shared tier is bypassed" in two.ctl("updates")
    for node in cluster.nodes:
        node.ask("FLUSHALL")

    def refilled():
        values(two.stub(), "late", "a", rows)  # as the files have them: the log tells it nothing else
        assert values(one.stub(), "late", "a", rows) == rows
        return in_redis(one, "late", rows) == set(rows)
    until(refilled, "rows found below to be in Redis again")


def test_updates_when_redis_has_the_only_copy_then_a_start_goes_on_where_it_is(broker, daemon, work, cluster):
    broker.create("hps_et.alone.a", 2)
    config = shared_config(work, broker, "alone", cluster, durable=False)
    one = daemon(config, state="one")
    rows = {key: float(key) for key in tables_of("a")[0].keys.tolist()}
    rows.update(write(broker, "alone", 100, range(0, 40)))
    check(one, "alone", rows)
    one.kill()
    two = daemon(config, state="two")
    check(two, "alone", rows)
    assert updates(two, "alone").get("record_count", 0) == 0  # all of it was there
    rows.update(write(broker, "alone", 200, range(30, 60)))
    check(two, "alone", rows)
    one.start()
    check(one, "alone", rows)
    assert updates(one, "alone").get("record_count", 0) == 0


def test_ready_when_the_only_copy_falls_back_behind_the_log_then_not_until_it_is_back(broker, daemon, work, cluster):
    topic = broker.create("hps_et.older.a", 1)
    one = daemon(shared_config(work, broker, "older", cluster, durable=False))

    def copy(source, target):
        for node in cluster.nodes:
            for name in node.ask("KEYS", f"{source}hpsd:*[0-9]}}"):
                node.ask("COPY", name, target + name[len(source):], "REPLACE")

    check(one, "older", write(broker, "older", 100))
    copy("", "old:")
    rows = write(broker, "older", 200)
    check(one, "older", rows)
    copy("", "new:")
    broker.drop(topic, 0, 2 * KEYS)
    copy("old:", "")
    why = 'redis has lost updates that have left the log of model "older" version 1, of which it held the only copy'
    until(lambda: one.get("/readyz")[0] == 503 and why in one.get("/readyz")[1], "the loss to be told")
    copy("new:", "")
    one.wait_ready()
    check(one, "older", rows)


def samples(daemon, name, *labels):
    """The sum of what a metric has of these labels."""
    return sum(value for sample, value in daemon.metrics().items()
               if sample.startswith(f"hpsd_{name}{{") and all(label in sample for label in labels))


# A lookup of one key that asks for positions, too: HMGET, shard, g, p, field. No other question has as many words.
ONE_KEY_AND_POSITIONS = b"*5\r\n$5\r\nHMGET\r\n"


@pytest.mark.parametrize("durable", [False, True], ids=["only copy", "above rocksdb"])
def test_lookup_when_updates_are_published_before_redis_answers_it_then_its_rows(broker, daemon, work, durable):
    model = f"held{int(durable)}"
    broker.create(f"hps_et.{model}.a", 1)
    with redis.Redis(os.path.join(work, "redis")) as server, redis.Gate(server) as gate, \
            concurrent.futures.ThreadPoolExecutor(1) as pool:
        patient = {"durable": durable, "device": False, "redis_command_timeout_ms": 60000}
        one = daemon(shared_config(work, broker, model, gate, **patient), state="one")
        two = daemon(shared_config(work, broker, model, server, **patient), state="two")
        for each in (one, two):
            check(each, model, write(broker, model, 100))
        one.ctl("updates", "pause", "--model", model)
        rows = write(broker, model, 200)
        check(two, model, rows)  # and so there are positions in Redis that the other one does not know
        gate.shut(ONE_KEY_AND_POSITIONS)
        held = pool.submit(values, one.stub(), model, "a", [7])
        gate.wait_kept()
        one.ctl("updates", "resume", "--model", model)
        rows = write(broker, model, 300)
        for each in (one, two):
            check(each, model, rows)
        gate.open()
        assert held.result(PATIENCE_S) == {7: 207}
        assert values(one.stub(), model, "a", rows) == rows
        assert samples(one, "shared_rows_total", 'tier="redis"', 'result="behind"') == 0
        assert samples(one, "tier_errors_total", 'tier="redis"') == 0


def test_lookups_when_updates_come_fast_to_the_only_copy_then_none_is_unavailable(broker, daemon, work):
    threads, calls = 4, 1500
    topic = broker.create("hps_et.fast.a", 1)
    failures, ended = [], threading.Event()

    def do_lookup(stub):
        for _ in range(calls):
            try:
                values(stub, "fast", "a")
            except grpc.RpcError as error:
                failures.append((error.code(), error.details()))

    def write_on():
        """Record after record, so that each is a batch of its own to a daemon that waits for it."""
        producer, n = broker.kafka().Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0}), 0
        while not ended.is_set():
            producer.produce(topic, **keyed(n % KEYS, 1000 + n))
            assert producer.flush(PATIENCE_S) == 0
            n += 1
        return n

    with redis.Redis(os.path.join(work, "redis")) as server, concurrent.futures.ThreadPoolExecutor(1 + threads) as pool:
        one = daemon(shared_config(work, broker, "fast", server, durable=False))
        writer = pool.submit(write_on)
        readers = [pool.submit(do_lookup, one.stub()) for _ in range(threads)]
        try:
            for reader in readers:
                reader.result()
        finally:
            ended.set()
        n = writer.result()
        assert not failures, f"{len(failures)} of {threads * calls}, first: {failures[0]}"
        check(one, "fast", {k % KEYS: 1000 + k for k in range(max(n - KEYS, 0), n)})
        assert samples(one, "shared_rows_total", 'tier="redis"', 'result="behind"') == 0
