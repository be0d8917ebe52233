# SPDX-License-Identifier: Apache-2.0
"""Base files (persistent_db.base_file): their rows, damaged files, and logs and metrics about them."""
import glob
import os

import grpc
import numpy as np
import pytest

from rig import (PATIENCE_S, Daemon, Table, ask, default_config, floats, model_config, records, refused,
                 until)

N_ROWS = 20000


def dense(name, n_rows=N_ROWS, dim=32):
    rows = np.random.default_rng(dim).standard_normal((n_rows, dim)).astype(np.float32)
    return Table(name, np.arange(n_rows), rows)


def config_of(work, tables, **persistent_db):
    config = model_config("m", [table.save(work + "/m") for table in tables], [table.dim for table in tables],
                          [table.name for table in tables], gpucache=False)
    return default_config([config], volatile_db={"type": "disabled"},
                          persistent_db={"type": "rocks_db", "base_file": "auto", **persistent_db}, server={"model_roots": [work]})


def files(state):
    return sorted(glob.glob(f"{state}/hpsd/base-*"))


def check(daemon, tables, n_keys=3000):
    rng = np.random.default_rng(7)
    keys = {table.name: rng.choice(table.keys, n_keys) for table in tables}
    for table, result in zip(tables, ask(daemon.stub(), "m", keys).results):
        np.testing.assert_array_equal(floats(result), table.expect(keys[table.name]))


@pytest.mark.parametrize("read_mode", ["auto", "direct", "buffered"])
def test_tables_when_dense_then_served_from_base_files_also_after_a_restart_and_from_a_snapshot(work, read_mode):
    tables = [dense("a"), Table.random("b", 5000, 16), dense("c", dim=7)]
    config = config_of(work, tables, read_mode=read_mode)
    with Daemon(work, config) as one:
        check(one, tables)
        named = [os.path.basename(path) for path in files(one.state)]
        assert named == ["base-1", "base-2"]  # b is not dense
        assert os.path.getsize(files(one.state)[0]) < N_ROWS * 32 * 4 * 1.02
        assert one.metrics()['hpsd_tier_damaged_pages{model="m",version="1",tier="rocksdb"}'] == 0
        one.ctl("snapshot", "create", f"{work}/snapshot")
        one.kill()
        one.restart()
        check(one, tables)
        one.ctl("load", "m", "--from", f"{work}/m", "--activate")
        check(one, tables)
        one.ctl("unload", "m", "1")
        check(one, tables)
        assert [os.path.basename(path) for path in files(one.state)] == ["base-3", "base-4"]
        one.ctl("snapshot", "restore", f"{work}/snapshot", "--state-dir", f"{work}/replica")
    with Daemon(work, config, state="replica") as other:
        assert [os.path.basename(path) for path in files(other.state)] == named
        check(other, tables)


def test_page_when_damaged_then_its_keys_fail_and_a_new_load_repairs(work):
    table = dense("a")
    config = config_of(work, [table])
    one = Daemon(work, config)
    check(one, [table])
    one.stop()
    with open(files(one.state)[0], "r+b") as rows:
        rows.seek(3 * 4096 + 100)
        rows.write(b"\xff\x00\xff")
    one.restart()
    stub = one.stub()
    with refused(grpc.StatusCode.DATA_LOSS):
        ask(stub, "m", {"a": np.array([96])})  # on page 3
    for keys in (np.arange(96), np.arange(128, 5000)):
        np.testing.assert_array_equal(floats(ask(stub, "m", {"a": keys}).results[0]), table.expect(keys))
    assert one.metrics()['hpsd_tier_damaged_pages{model="m",version="1",tier="rocksdb"}'] == 1
    assert "page damaged" in one.log()
    one.ctl("load", "m", "--from", f"{work}/m", "--activate")
    check(one, [table])
    one.stop()


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_start_when_a_base_file_is_missing_or_cut_then_others_are_served_and_a_new_load_repairs(work, damage):
    tables = [dense("a", n_rows=2000), dense("b", n_rows=3000)]
    one = Daemon(work, config_of(work, tables))
    check(one, tables, 500)
    one.stop()
    path = files(one.state)[0]
    if damage == "missing":
        os.remove(path)
    else:
        os.truncate(path, os.path.getsize(path) - 1)
    one.restart()
    stub = one.stub()
    with refused(grpc.StatusCode.DATA_LOSS):
        ask(stub, "m", {"a": np.array([96])})
    keys = np.arange(3000)
    np.testing.assert_array_equal(floats(ask(stub, "m", {"b": keys}).results[0]), tables[1].expect(keys))
    assert one.metrics()['hpsd_tier_damaged_pages{model="m",version="1",tier="rocksdb"}'] > 0
    assert "base file lost" in one.log()
    one.ctl("load", "m", "--from", f"{work}/m", "--activate")
    check(one, tables, 500)
    one.stop()


def test_rows_when_updated_and_merged_then_exact_also_after_kills_and_from_an_export(broker, work):
    broker.create("hps_et.based.a", 1)
    table = dense("a", n_rows=8000, dim=256)
    config = config_of(work, [table])
    config["update_source"] = {"type": "kafka_message_queue", "brokers": broker.bootstrap, "start": "earliest"}
    config["models"][0]["model"] = "based"
    config["server"]["export_roots"] = [work]
    expected = table.rows.copy()
    one = Daemon(work, config)
    for turn in range(1, 5):
        merges = one.log().count("base file merged")
        keys = np.arange(turn * 100, turn * 100 + 1100)  # more than a tenth of the rows, and 1 MiB
        expected[keys] = turn + np.arange(1100)[:, None] % 7
        broker.write("hps_et.based.a", [records.keyed(int(key), expected[key]) for key in keys])
        one.ctl("--timeout", PATIENCE_S, "wait-for", "now", "--model", "based")
        reply = ask(one.stub(), "based", {"a": table.keys})
        np.testing.assert_array_equal(floats(reply.results[0]), expected)
        until(lambda merges=merges: one.log().count("base file merged") > merges, "a merge")
        if turn % 2 == 0:
            one.kill()
            one.restart()
    reply = ask(one.stub(), "based", {"a": table.keys})
    np.testing.assert_array_equal(floats(reply.results[0]), expected)
    one.ctl("export", "based", "--to", f"{work}/export")
    one.ctl("load", "based", "--from", f"{work}/export", "--activate")
    reply = ask(one.stub(), "based", {"a": table.keys})
    np.testing.assert_array_equal(floats(reply.results[0]), expected)
    until(lambda: len(files(one.state)) == 2, "one base file of each version")
    one.stop()
