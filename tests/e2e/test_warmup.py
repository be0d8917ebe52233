# SPDX-License-Identifier: Apache-2.0
"""Hot keys are stored across restarts. A host map with a part of a table is warm again after a restart, and a version
is warm when it becomes active."""
import glob

import numpy as np
import pytest

from rig import Daemon, Table, ask, default_config, floats, model_config, until
from test_store import Database, overwrite, write_behind_its_back

ROWS, DIM, KEYS = 100_000, 64, 20_000
BUDGET = "8MiB"  # less than a third of the rows
WARM = 'hpsd_insertion_rows_total{tier="host",mode="warmup"}'


class Traffic:
    """Keys with a Zipf distribution. Their ranks are spread over the table."""

    def __init__(self, table, seed=3):
        self.rng = np.random.default_rng(seed)
        self.keys = table.keys
        cdf = np.cumsum(1.0 / np.arange(1, ROWS + 1))
        self.cdf = cdf / cdf[-1]

    def batch(self, n_hottest=ROWS):
        ranks = np.searchsorted(self.cdf[:n_hottest] / self.cdf[n_hottest - 1], self.rng.random(KEYS))
        return self.keys[ranks]


def read(path):
    with open(path, "rb") as f:
        return f.read()


def host_keys(daemon):
    """Number of unique keys that the host map was queried for: (found, missing)."""
    metrics = daemon.metrics()
    return [metrics[f'hpsd_tier_keys_total{{model="m",table="a",tier="host",result="{result}"}}']
            for result in ("hit", "miss")]


def hit_rate(daemon, traffic, n, table, **how):
    """The hit rate of the next n requests."""
    stub = daemon.stub()
    hit, miss = host_keys(daemon)
    for _ in range(n):
        keys = traffic.batch(**how)
        result = ask(stub, "m", {"a": keys}).results[0]
        np.testing.assert_array_equal(floats(result)[::97], table.expect(keys[::97]))
    hit_now, miss_now = host_keys(daemon)
    return (hit_now - hit) / (hit_now - hit + miss_now - miss)


@pytest.fixture(name="served")
def served_table(work):
    """(daemon, table) of a daemon with a host map for a part of the table."""
    table = Table.random("a", ROWS, DIM)
    config = default_config([model_config("m", [table.save(work + "/m")], [DIM], ["a"], gpucache=False)],
                            server={"model_roots": [work], "log_level": "debug"})
    config["volatile_db"]["memory_bytes"] = BUDGET
    daemon = Daemon(work, config)
    yield daemon, table
    daemon.kill()


def wait_warm(daemon):
    until(lambda: "memory warmed up" in daemon.log(), "the warm-up")
    return daemon.metrics()[WARM]


def test_restart_when_the_table_exceeds_the_host_map_then_the_hit_rate_is_as_before(served):
    daemon, table = served
    traffic = Traffic(table)
    hit_rate(daemon, traffic, 130, table)
    before = hit_rate(daemon, traffic, 10, table)
    daemon.stop()
    daemon.restart()
    assert wait_warm(daemon) > 10_000
    (row,) = [row for row in daemon.ctl("models").splitlines() if row.startswith("m ")]
    assert "%" not in row  # the warm-up has ended
    assert " WARM " in daemon.ctl("models")
    after = hit_rate(daemon, traffic, 3, table)
    assert after > before - 0.05, (before, after)
    assert before > 0.3
    daemon.stop()


def test_kill_when_hot_keys_were_saved_then_memory_is_warm_after_the_restart(served):
    daemon, table = served
    daemon.stop()
    config = default_config(server={"hot_keys_save_s": 1, "log_level": "debug"})
    config["volatile_db"]["memory_bytes"] = BUDGET
    daemon.write_config(config)
    daemon.restart()
    traffic = Traffic(table)
    hit_rate(daemon, traffic, 12, table, n_hottest=1000)
    n_before = daemon.log().count("hot keys saved")

    def saved():  # the second save from now includes the requests above
        hit_rate(daemon, traffic, 1, table, n_hottest=1000)
        return daemon.log().count("hot keys saved") > n_before + 1

    until(saved, "a save")
    daemon.kill()
    daemon.restart()
    assert wait_warm(daemon) > 500
    assert hit_rate(daemon, traffic, 1, table, n_hottest=1000) > 0.5
    daemon.stop()


def test_start_when_a_record_of_hot_keys_is_damaged_then_warns_and_the_next_drain_replaces_it(served):
    daemon, table = served
    traffic = Traffic(table)
    hit_rate(daemon, traffic, 3, table)
    daemon.stop()
    write_behind_its_back(daemon, "catalog", b"hot/m/000000", b"HPSH\1\0\0\0" + bytes(100))
    daemon.restart()
    assert "hot-key record skipped" in daemon.log()
    hit_rate(daemon, traffic, 3, table)
    daemon.stop()
    daemon.restart()
    assert "hot-key record skipped" not in daemon.log()
    assert wait_warm(daemon) > 1000
    daemon.stop()


def test_start_when_hot_keys_are_unreadable_then_hpsd_serves(served):
    daemon, table = served
    hit_rate(daemon, Traffic(table), 10, table)
    daemon.stop()
    database = Database(f"{daemon.state}/hpsd")
    database.flush("catalog")
    database.close()
    (path,) = [path for path in glob.glob(f"{daemon.state}/hpsd/*.sst") if b"HPSH" in read(path)]
    overwrite(path, read(path).index(b"HPSH") + 5000)
    daemon.restart()
    assert "hot-key records unreadable" in daemon.log()
    result = ask(daemon.stub(), "m", {"a": table.keys[:999]}).results[0]
    np.testing.assert_array_equal(floats(result), table.expect(table.keys[:999]))
    daemon.stop()


@pytest.mark.parametrize("at_once", [True, False])
def test_switch_when_the_next_version_is_cold_then_it_is_warmed_before_it_becomes_active(
        served, work, at_once):
    daemon, table = served
    traffic = Traffic(table)
    hit_rate(daemon, traffic, 30, table, n_hottest=5000)
    newer = Table("a", table.keys, table.rows * np.float32(2))
    newer.save(work + "/m2")
    if at_once:
        daemon.load("m", work + "/m2", activate=True)
    else:
        daemon.load("m", work + "/m2")
        daemon.ctl("activate", "m", 2)
    assert daemon.versions("m")[2] == "active"
    log = daemon.log()
    assert 0 < log.index("memory warmed up") < log.index('msg="version activated" component=catalog '
                                                           'model=m version=2')
    assert daemon.metrics()[WARM] > 2000
    assert hit_rate(daemon, traffic, 1, newer, n_hottest=1000) > 0.9
    daemon.stop()
