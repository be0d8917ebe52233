# SPDX-License-Identifier: Apache-2.0
"""Concurrent lookups and several versions: number of queries of RocksDB and of evictions, from the metrics."""
import threading

import numpy as np
import pytest

from rig import (PATIENCE_S, Daemon, Table, ask, default_config, generate, model_config, pb, scratch, statuses,
                 until)

N_ROWS, DIM = 40_000, 64
UNKNOWN, FOUND, DEFAULTED = pb.KEY_STATUS_UNKNOWN, pb.KEY_STATUS_FOUND, pb.KEY_STATUS_DEFAULTED


@pytest.fixture(name="table", scope="module")
def table_of_all_tests():
    return Table.random("t", N_ROWS, DIM)


@pytest.fixture(name="one", params=["small host map", "no host map"])
def daemon_whose_memory_does_not_hold_all(request, table):
    """Rows of 10 MB over a host map of 4 MiB, or without host map, so that a miss in memory does not prove absence."""
    host = {"type": "parallel_hash_map", "memory_bytes": "4MiB"}
    if request.param == "no host map":
        host = {"type": "disabled"}
    with scratch() as work:
        path = table.save(work + "/m")
        config = default_config([model_config("m", [path], [DIM], ["t"], hit_rate_threshold=1.0)], volatile_db=host)
        with Daemon(work, config) as one:
            yield one


def counts(one):
    metrics = one.metrics()

    def sample(name, *words):
        return sum(value for full, value in metrics.items()
                   if full.split("{")[0] == f"hpsd_{name}" and all(word in full for word in words))

    return {
        "hit": sample("tier_keys_total", 'tier="rocksdb"', 'result="hit"'),
        "miss": sample("tier_keys_total", 'tier="rocksdb"', 'result="miss"'),
        "memory_hit": sum(sample("tier_keys_total", f'tier="{tier}"', 'result="hit"') for tier in ("gpu", "host")),
        "absent": sample("lookup_absent_keys_total"),
        "shared": sample("lookup_shared_keys_total"),
        "unique": sample("lookup_unique_keys_total"),
        "asked": sample("tier_duration_seconds_count", 'tier="rocksdb"'),
        "up": sample("tier_up", 'tier="rocksdb"'),
    }


def grown(one, before):
    return {name: value - before[name] for name, value in counts(one).items()}


def test_absent_keys_when_looked_up_repeatedly_then_rocksdb_is_queried_once(one, table):
    stub = one.stub()
    keys = np.arange(2**50, 2**50 + 100)
    assert statuses(ask(stub, "m", {"t": keys}).results[0]) == [UNKNOWN] * 100
    before = counts(one)
    assert before["miss"] == 100
    for _ in range(50):
        result = ask(stub, "m", {"t": keys}).results[0]
        assert statuses(result) == [UNKNOWN] * 100
        assert result.rows == table.expect(keys).astype("<f4").tobytes()
    result = ask(stub, "m", {"t": np.append(keys[:3], 2**51)},
                 miss_policy=pb.MISS_POLICY_MEMORY_ONLY).results[0]
    assert statuses(result) == [UNKNOWN] * 3 + [DEFAULTED]
    now = grown(one, before)
    assert (now["miss"], now["hit"], now["asked"]) == (0, 0, 0)
    assert now["absent"] == 50 * 100 + 3


def test_counters_when_concurrent_lookups_share_keys_then_they_add_up(one, table):
    before = counts(one)
    failures = []

    def caller(number):
        rng = np.random.default_rng(number % 2)  # half of the threads use the same keys
        stub = one.stub()
        for _ in range(10):
            keys = np.concatenate([rng.choice(table.keys, 1500), rng.integers(2**50, 2**50 + 500, 300)])
            result = ask(stub, "m", {"t": keys}, timeout=PATIENCE_S).results[0]
            if result.rows != table.expect(keys).astype("<f4").tobytes():
                failures.append("rows")
            if statuses(result) != [FOUND] * 1500 + [UNKNOWN] * 300:
                failures.append("statuses")

    threads = [threading.Thread(target=caller, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    now = grown(one, before)
    assert now["unique"] == now["memory_hit"] + now["hit"] + now["miss"] + now["absent"] + now["shared"]
    assert now["absent"] > 0
    assert now["up"] == 0 and before["up"] == 1


def test_evictions_when_a_version_is_evicted_for_another_then_all_its_rows_are_counted(daemon, work):
    n_rows = 40000
    for seed in (1, 2):
        generate(f"{work}/v{seed}", "--tables", 1, "--rows", n_rows, "--dim", 64, "--seed", seed)
    config = default_config(server={"model_roots": [work]})
    config["volatile_db"]["memory_bytes"] = "16MiB"  # memory for one version
    one = daemon(config)
    name = 'hpsd_tier_evictions_total{model="m",table="feature_0",tier="host"}'
    one.load("m", f"{work}/v1")
    one.load("m", f"{work}/v2")
    assert one.metrics()[name] == 0
    one.ctl("activate", "m", 2)
    until(lambda: ask(one.stub(), "m", {"feature_0": np.arange(n_rows)}) and
          one.metrics()['hpsd_tier_rows{model="m",version="1",tier="host"}'] == 0, "no row of version 1")
    assert one.metrics()[name] >= n_rows
