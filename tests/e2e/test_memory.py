# SPDX-License-Identifier: Apache-2.0
"""A load of five times as many rows as it may have memory sorts them on disk."""
import re
import shutil

import grpc
import numpy as np
import pytest

from rig import SANITIZER, Daemon, Table, ask, default_config, floats, generate, hpsgen, refused

LIMIT_BYTES = 120 << 20
ROWS, DIM = 1_200_000, 128  # 614 MB


@pytest.mark.skipif(SANITIZER != "", reason="sanitizers need memory of their own: NOT CHECKED")
def test_load_when_five_times_larger_than_memory_then_every_row_is_right(work):
    if shutil.disk_usage(work).free < 6 * ROWS * DIM * 4:
        pytest.skip("less than 4 GB of disk: NOT CHECKED")
    generate(f"{work}/big", "--tables", 1, "--rows", ROWS, "--dim", DIM)
    config = default_config(server={"model_roots": [work], "load_memory_bytes": "32MiB",
                                    "worker_threads": 2, "io_threads": 2})
    config["volatile_db"]["memory_bytes"] = "16MiB"
    config["persistent_db"]["block_cache_bytes"] = "16MiB"
    with Daemon(work, config) as one:
        assert one.load("m", f"{work}/big").rows_total == ROWS
        with open(f"/proc/{one.process.pid}/status", encoding="ascii") as f:
            most = re.search(r"^VmHWM:\s+(\d+) kB", f.read(), re.M)
        assert int(most[1]) << 10 <= LIMIT_BYTES
        keys = np.random.default_rng(1).integers(0, ROWS, 20000)
        for piece in np.split(keys, 10):
            result = ask(one.stub(), "m", {"feature_0": piece}).results[0]
            np.testing.assert_array_equal(floats(result), hpsgen.rows(1, 0, piece, DIM))
            assert result.unknown_key_count == 0


def only_in_memory(work, **volatile):
    """No persistent store: what the host map drops is lost."""
    config = default_config(durable=False, server={"model_roots": [work]})
    config["volatile_db"].update(num_partitions=1, **volatile)
    return config


def test_load_when_the_budget_is_too_small_then_refused_whatever_the_margin(work, daemon):
    Table.random("a", 200_000, 16).save(f"{work}/m")
    one = daemon(only_in_memory(work, memory_bytes="4MiB", overflow_margin=180_000))
    with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "bytes", "available"):
        one.load("m", f"{work}/m")
    assert one.versions("m") == {}


def test_load_when_the_margin_drops_rows_then_everybody_is_told(work, daemon):
    table = Table.random("a", 5000, 4)
    table.save(f"{work}/m")
    Table.random("a", 900, 4).save(f"{work}/fits")
    one = daemon(only_in_memory(work, overflow_margin=1000, overflow_resolution_target=1))
    assert "4000 rows exceed volatile_db.overflow_margin" in one.ctl("load", "m", "--from", f"{work}/m", "--dry-run")
    assert "volatile_db.overflow_margin dropped 4000 of its rows" in one.ctl("load", "m", "--from", f"{work}/m")
    assert "4000 rows dropped by overflow_margin" in one.ctl("status")
    assert one.metrics()['hpsd_tier_dropped_rows{model="m",version="1",tier="host"}'] == 4000
    assert "rows dropped" in one.log()
    assert one.ctl("models", "-o", "json")[0]["models"][0]["versions"][0]["row_count"] in (1000, "1000")
    assert "~5000" in one.ctl("tables", "m")  # whose rows they were is not known
    result = ask(one.stub(), "m", {"a": table.keys}).results[0]
    assert result.unknown_key_count == 4000
    assert "dropped" not in one.ctl("load", "fits", "--from", f"{work}/fits")
    assert one.metrics()['hpsd_tier_dropped_rows{model="fits",version="1",tier="host"}'] == 0
