# SPDX-License-Identifier: Apache-2.0
"""hpsctl export: a served version, updates included, becomes model files again."""
import json
import os
import subprocess
import threading

import numpy as np
import pytest

from rig import BIN, PATIENCE_S, Table, default_config, model_config, until
from test_updates import KEYS, config_of, keyed, packed, row, updates, values, versioned, wait_now


def config(work, tables, **more):
    """A model "m"; exports may be written below work/exports."""
    os.makedirs(f"{work}/exports", exist_ok=True)
    paths = [table.save(f"{work}/files") for table in tables]
    model = model_config("m", paths, [table.dim for table in tables], [table.name for table in tables], gpucache=False)
    return default_config([model], durable=True, server={"export_roots": [f"{work}/exports"], "model_roots": [work]}, **more)


def contents(directory):
    """{path: bytes} of all files."""
    found = {}
    for parent, _, files in os.walk(directory):
        for name in files:
            with open(os.path.join(parent, name), "rb") as file:
                found[os.path.relpath(os.path.join(parent, name), directory)] = file.read()
    return found


@pytest.mark.parametrize("form, name", [("npy", "items.rows.npy"), ("hugectr", "items/emb_vector"),
                                        ("safetensors", "items.safetensors")])
def test_export_when_loaded_again_then_the_same_bytes(work, daemon, form, name):
    tables = [Table.random("items", 5000, 16), Table.random("users", 3, 4)]
    one = daemon(config(work, tables))
    said = one.ctl("export", "m", "--to", f"{work}/exports/one", "--format", form)
    assert "items" in said and str(len(tables[0].keys)) in said
    first = contents(f"{work}/exports/one")
    assert name in first and "manifest.json" in first and not any(path.startswith(".") for path in first)
    order = np.argsort(tables[0].keys.view("<u8"))
    assert tables[0].rows[order].tobytes() in first[name]
    one.ctl("load", "m", "--from", f"{work}/exports/one", "--activate")
    one.ctl("export", "m", "--version", "2", "--to", f"{work}/exports/two", "--format", form)
    assert contents(f"{work}/exports/two") == first


@pytest.mark.parametrize("form", ["npy", "safetensors"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "int8_rowwise_f32", "int8_rowwise_f16"])
def test_export_when_rows_have_another_type_then_the_same_bytes(work, daemon, dtype, form):
    one = daemon(config(work, [Table.random("items", 500, 8)]))
    one.ctl("load", "m", "--from", f"{work}/files", "--row-dtype", dtype, "--activate")
    one.ctl("export", "m", "--to", f"{work}/exports/one", "--format", form)
    one.ctl("load", "m", "--from", f"{work}/exports/one", "--activate")
    one.ctl("export", "m", "--to", f"{work}/exports/two", "--format", form)
    first = contents(f"{work}/exports/one")
    assert contents(f"{work}/exports/two") == first
    assert json.loads(first["manifest.json"])["tables"][0]["dtype"] == dtype
    said = one.ctl("export", "m", "--to", f"{work}/exports/three", "--format", "hugectr", code=1)
    assert f'table "items" has rows of {dtype}' in said and not os.path.exists(f"{work}/exports/three")


def test_export_when_not_allowed_then_it_says_why(work, daemon):
    one = daemon(config(work, [Table.random("items", 50, 4)]))
    os.makedirs(f"{work}/exports/full")
    with open(f"{work}/exports/full/x", "w", encoding="utf-8"):
        pass
    os.symlink(f"{work}/files", f"{work}/exports/link")
    for to, why in ((f"{work}/exports/full", 'has the entry "x"'), (f"{work}/elsewhere", "export_roots"),
                    (f"{work}/exports/../elsewhere", "export_roots"), (f"{work}/exports/link/x", "export_roots"),
                    (f"{work}/exports/link", "link"), (f"{work}/exports/..", "expected a name at its end")):
        assert why in one.ctl("export", "m", "--to", to, code=1), to
    assert "other" in one.ctl("export", "other", "--to", f"{work}/exports/one", code=1)
    assert os.listdir(f"{work}/exports/full") == ["x"] and not os.path.exists(f"{work}/elsewhere")
    without = daemon(default_config(durable=True), state="other")
    assert without.ctl("export", "m", "--to", f"{work}/exports/one", code=1)


def test_export_when_there_is_no_root_or_no_durable_store_then_refused(work, daemon):
    table = Table.random("items", 50, 4)
    model = model_config("m", [table.save(f"{work}/files")], [4], ["items"], gpucache=False)
    one = daemon(default_config([model], durable=True))
    assert "server.export_roots is empty" in one.ctl("export", "m", "--to", f"{work}/x", code=1)
    other = daemon(default_config([model], durable=False, server={"export_roots": [work]}), state="other")
    assert "needs persistent_db" in other.ctl("export", "m", "--to", f"{work}/x", code=1)


def test_export_when_the_disk_is_full_then_nothing_is_left(work, daemon):
    one = daemon(config(work, [Table.random("items", 5000, 16)]))
    os.makedirs(f"{work}/exports/small")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "none", f"{work}/exports/small"], check=False,
                      capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount")
    try:
        said = one.ctl("export", "m", "--to", f"{work}/exports/small/x", code=1)
        assert "No space left" in said and not os.listdir(f"{work}/exports/small/x")
    finally:
        subprocess.run(["umount", f"{work}/exports/small"], check=True)


def test_export_when_other_entries_appear_then_it_fails_and_they_stay(work, daemon):
    one = daemon(config(work, [Table.random("items", 200_000, 64)]))
    done, said = threading.Event(), ""

    def put(to):
        while not done.is_set():
            if os.path.exists(f"{to}/.export"):
                os.makedirs(f"{to}/items.rows.npy/mine")
                return

    for i in range(20):  # until the entry was there before the end of an export
        done.clear()
        other = threading.Thread(target=put, args=(f"{work}/exports/{i}",))
        other.start()
        said = subprocess.run([f"{BIN}/hpsctl", "--addr", one.admin, "export", "m", "--to", f"{work}/exports/{i}"],
                              capture_output=True, text=True, check=False).stderr
        done.set()
        other.join()
        if said:
            break
    assert 'has the entry "items.rows.npy"' in said
    assert os.listdir(f"{work}/exports/{i}") == ["items.rows.npy"] and os.listdir(f"{work}/exports/{i}/items.rows.npy") == ["mine"]


def test_export_when_the_store_is_read_only_then_exported(work, daemon):
    settings = config(work, [Table.random("items", 50, 4)])
    one = daemon(settings)
    one.ctl("export", "m", "--to", f"{work}/exports/one")
    one.stop()
    settings["persistent_db"]["read_only"] = True
    one.write_config(settings)
    one.start()
    one.ctl("export", "m", "--to", f"{work}/exports/two")
    assert contents(f"{work}/exports/two") == contents(f"{work}/exports/one")


def test_export_when_updates_go_on_then_it_is_of_one_position(broker, daemon, work):
    topic = broker.create("hps_et.moving", 1)
    os.makedirs(f"{work}/exports")
    one = daemon(config_of(work, broker, "moving", device=False,
                           server={"export_roots": [f"{work}/exports"], "model_roots": [work]}))
    broker.write(topic, [packed({"a": ({7: 1001}, []), "b": ({7: 1001}, [])})])
    wait_now(one, "moving")
    stop = threading.Event()

    def update():
        number = 1001
        while not stop.is_set():
            number += 1
            broker.write(topic, [packed({"a": ({7: number}, []), "b": ({7: number}, [])})])

    writer = threading.Thread(target=update)
    writer.start()
    try:
        for i in range(5):
            one.ctl("export", "moving", "--to", f"{work}/exports/{i}")
    finally:
        stop.set()
        writer.join()
    wait_now(one, "moving")
    for i in range(5):
        of_both = [np.load(f"{work}/exports/{i}/{table}.rows.npy")[7] for table in "ab"]
        np.testing.assert_array_equal(*of_both)
        with open(f"{work}/exports/{i}/manifest.json", encoding="utf-8") as file:
            position, = json.load(file)["start_positions"]
        expected = 1000 + position["offset"]  # records are numbered from 1001 on
        np.testing.assert_array_equal(of_both[0], row(expected))
    one.ctl("load", "moving", "--from", f"{work}/exports/0", "--activate")
    wait_now(one, "moving")
    for table in "ab":
        assert values(one.stub(), "moving", table) == values(one.stub(), "moving", table, range(KEYS), version=1)


def test_export_when_the_version_is_frozen_then_the_positions_are_after_what_it_skipped(broker, daemon, work):
    topic = broker.create("hps_et.ice.a", 1)
    os.makedirs(f"{work}/exports")
    one = daemon(config_of(work, broker, "ice", server={"export_roots": [f"{work}/exports"], "model_roots": [work]}))
    broker.write(topic, [keyed(1, 101)])
    wait_now(one, "ice")
    one.load("ice", f"{work}/files-ice", version=2, lineage="other", activate=True)
    broker.write(topic, [keyed(2, 102)])
    until(lambda: updates(one, "ice", 1)["partitions"][0]["offset"] == 2, "the record to be skipped")
    one.ctl("export", "ice", "--version", "1", "--to", f"{work}/exports/x")
    rows = np.load(f"{work}/exports/x/a.rows.npy")
    assert (rows[1, 0], rows[2, 0]) == (101, 2)
    with open(f"{work}/exports/x/manifest.json", encoding="utf-8") as file:
        position, = json.load(file)["start_positions"]
    assert position["offset"] == 2
    assert 'version 9 of model "ice" is not loaded' in one.ctl("export", "ice", "--version", "9", "--to", f"{work}/exports/y", code=1)


def test_export_when_the_model_has_row_versions_then_any_update_replaces_a_loaded_row(broker, daemon, work):
    topic = broker.create("hps_et.order.a", 1)
    os.makedirs(f"{work}/exports")
    config_ = config_of(work, broker, "order", server={"export_roots": [f"{work}/exports"], "model_roots": [work]})
    config_["models"][0]["row_versions"] = True
    one = daemon(config_)
    broker.write(topic, [versioned(keyed(1, 105), 5)])
    wait_now(one, "order")
    one.ctl("export", "order", "--to", f"{work}/exports/x")
    one.ctl("load", "order", "--from", f"{work}/exports/x", "--activate")
    broker.write(topic, [versioned(keyed(1, 104), 4)])
    for version in (1, 2):
        one.ctl("--timeout", PATIENCE_S, "wait-for", "now", "--version", version)
    assert [values(one.stub(), "order", "a", [1], version=version) for version in (1, 2)] == [{1: 105}, {1: 104}]
