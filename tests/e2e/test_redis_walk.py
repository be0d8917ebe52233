# SPDX-License-Identifier: Apache-2.0
"""Lookups with Redis between host map and disk: which tier returns the rows, which rows are inserted into Redis later,
and the effect of a slow or hanging Redis."""
import os

import numpy as np
import pytest

import redis
from rig import SLOW, Table, ask, default_config, floats, model_config, pb, statuses, until

pytestmark = pytest.mark.skipif(redis.missing() is not None, reason=redis.missing() or "")

N_ROWS, DIM = 3000, 8
ASYNC = 'hpsd_insertion_rows_total{tier="redis",mode="async"}'


def config_of(work, server, tables, **volatile):
    paths = [table.save(work + "/m") for table in tables]
    model = model_config("m", paths, [DIM] * len(tables), [table.name for table in tables], gpucache=False)
    volatile = {"type": "redis_cluster", "address": server.address, "num_partitions": 8,
                "redis_command_timeout_ms": int(1000 * SLOW), "cache_missed_embeddings": True, **volatile}
    return default_config([model], durable=True, server={"model_roots": [work], "slow_request_ms": 0},
                          volatile_db=volatile)


@pytest.fixture(name="server")
def server_fixture(work):
    with redis.Redis(os.path.join(work, "redis")) as server:
        yield server


@pytest.fixture(name="tables")
def tables_fixture():
    return [Table.random(name, N_ROWS, DIM, number=i) for i, name in enumerate("abc")]


def check(daemon, tables, keys=None, **fields):
    """Check every row; {tier: number of keys found in it}."""
    queries = {table.name: table.keys if keys is None else keys for table in tables}
    counts = {}
    for table, result in zip(tables, ask(daemon.stub(), "m", queries, **fields).results):
        np.testing.assert_array_equal(floats(result), table.expect(queries[table.name]))
        for count in result.tier_counts:
            counts[count.tier] = counts.get(count.tier, 0) + count.found_keys
    return {tier: n for tier, n in counts.items() if n > 0}


def n_calls(server, command):
    for line in server.ask("INFO", "commandstats").splitlines():
        if line.startswith(f"cmdstat_{command}:"):
            return int(line.split("calls=")[1].split(",")[0])
    return 0


def test_lookup_when_redis_has_lost_the_rows_then_they_are_inserted_after_the_reply(daemon, work, server, tables):
    one = daemon(config_of(work, server, tables))
    n = N_ROWS * len(tables)
    until(lambda: check(one, tables) == {"redis": n}, "redis to have the rows of the load")
    before = one.metrics().get(ASYNC, 0)
    server.ask("FLUSHALL")
    assert check(one, tables) == {"rocksdb": n}
    # Rows of an insertion that timed out but was executed are not counted. Rows of an insertion that was not executed
    # are looked up again.
    until(lambda: check(one, tables) == {"redis": n}, "the rows to be in redis again")
    until(lambda: one.metrics()[ASYNC] > before, "rows to be counted")
    assert one.metrics()[ASYNC] <= before + n
    unknown = np.arange(10**9, 10**9 + 50)
    assert not check(one, tables, unknown)
    slow = one.ctl("slowlog", "get", "-o", "json")[0]["requests"]
    assert any(int(request.get("redis_us", 0)) > 0 for request in slow)


def test_lookup_when_cache_missed_embeddings_is_false_then_missing_rows_are_not_inserted(daemon, work, server, tables):
    one = daemon(config_of(work, server, tables, cache_missed_embeddings=False))
    n = N_ROWS * len(tables)
    until(lambda: check(one, tables) == {"redis": n}, "redis to have the rows of the load")
    server.ask("FLUSHALL")
    for _ in range(3):
        assert check(one, tables) == {"rocksdb": n}
    assert one.metrics().get(ASYNC, 0) == 0


def test_lookup_when_a_host_map_is_above_redis_then_rows_from_redis_are_inserted_into_it(daemon, work, server, tables):
    room = 64 * 1024 * 1024
    config = config_of(work, server, tables[:1], local_cache_bytes=room)
    one = daemon(config)
    until(lambda: check(one, tables[:1]) == {"host": N_ROWS}, "the host map to have the rows")
    before = n_calls(server, "hmget")
    assert check(one, tables[:1]) == {"host": N_ROWS}
    assert n_calls(server, "hmget") == before


def test_lookup_when_miss_policy_is_memory_only_then_redis_is_not_queried(daemon, work, server, tables):
    one = daemon(config_of(work, server, tables))
    before = n_calls(server, "hmget")
    result = ask(one.stub(), "m", {"a": tables[0].keys}, miss_policy=pb.MISS_POLICY_MEMORY_ONLY).results[0]
    assert set(statuses(result)) == {pb.KEY_STATUS_DEFAULTED}
    assert n_calls(server, "hmget") == before


def test_lookup_when_redis_hangs_then_rocksdb_serves_until_redis_responds(daemon, work, server, tables):
    one = daemon(config_of(work, server, tables, redis_command_timeout_ms=20))
    n = N_ROWS * len(tables)
    until(lambda: check(one, tables) == {"redis": n}, "redis to have the rows of the load")
    server.pause()
    try:
        for _ in range(10):
            assert check(one, tables) == {"rocksdb": n}
    finally:
        server.resume()
    assert one.metrics()['hpsd_tier_errors_total{tier="redis",reason="unavailable"}'] >= 10
    until(lambda: check(one, tables) == {"redis": n}, "redis to answer again")
