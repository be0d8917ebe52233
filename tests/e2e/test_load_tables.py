# SPDX-License-Identifier: Apache-2.0
"""Loads that name their tables: HugeCTR's directories under the names that are configured."""
import json
import os
import shutil

import grpc
import numpy as np
import pytest

from rig import (PATIENCE_S, Table, admin_pb, ask, default_config, floats, model_config, pb, refused, scratch)

NAMES, DIMS = ["users", "items"], [4, 8]


def hugectr(work, number, seed):
    """The directories of the two tables as HugeCTR names them after `number` iterations, and the tables."""
    tables = [Table.random(name, 40, dim, seed=seed, number=i) for i, (name, dim) in enumerate(zip(NAMES, DIMS))]
    paths = []
    for i, table in enumerate(tables):
        path = f"{work}/m/dlrm{i}_sparse_{number}.model"
        os.makedirs(path)
        table.keys.tofile(path + "/key")
        table.rows.astype("<f4").tofile(path + "/emb_vector")
        paths.append(path)
    return paths, tables


def check(one, tables, version):
    """Rows by the names of tables, and by their place in the model."""
    stub = one.stub()
    for names in (NAMES, ["", ""]):
        queries = [pb.TableQuery(table=name, keys=table.keys[:5].tobytes()) for name, table in zip(names, tables)]
        reply = stub.Lookup(pb.LookupRequest(model="m", queries=queries), timeout=PATIENCE_S)
        assert reply.version == version
        for result, table in zip(reply.results, tables):
            np.testing.assert_array_equal(floats(result), table.rows[:5])


def named(paths):
    return [word for name, path in zip(NAMES, paths) for word in ("--table", f"{name}={path}")]


def drift(one):
    return list(one.admin_stub().GetStatus(admin_pb.GetStatusRequest(), timeout=PATIENCE_S).config_drift)


def write(path, config):
    with open(path, "w", encoding="utf-8") as out:
        json.dump(config, out)
    return path


def test_load_when_tables_are_named_then_directories_of_any_name_are_loaded_under_them(work, daemon):
    old, old_tables = hugectr(work, 1000, 1)
    new, new_tables = hugectr(work, 2000, 2)
    one = daemon(default_config([model_config("m", old, DIMS, NAMES, [1.0, 2.0])]))
    check(one, old_tables, 1)
    assert "users" in one.ctl("load", "m", *named(new), "--dry-run")
    assert set(one.versions("m")) == {1}
    one.ctl("load", "m", *named(new), "--activate")
    check(one, new_tables, 2)
    absent = ask(one.stub(), "m", {"items": [123456789]})
    np.testing.assert_array_equal(floats(absent.results[0]), np.full((1, 8), 2.0))  # as configured
    one.kill()
    one.start()
    check(one, new_tables, 2)


def test_load_when_a_directory_has_names_of_hugectr_then_it_is_told_what_takes_them(work, daemon):
    paths, _ = hugectr(work, 1000, 1)
    one = daemon(default_config(server={"model_roots": [work]}))
    said = one.ctl("load", "m", "--from", os.path.dirname(paths[0]), code=1)
    assert "--table" in said and "--config" in said, said


def test_load_when_a_model_is_new_then_its_tables_have_the_order_of_the_command_line(work, daemon):
    paths, tables = hugectr(work, 1000, 1)
    one = daemon(default_config(server={"model_roots": [work]}))
    assert "m version 1 loaded" in one.ctl("load", "m", *named(paths))
    check(one, tables, 1)  # "users" before "items"
    pair = Table.random("items", 30, 8, seed=3)
    rows = pair.save(work + "/pair")
    one.ctl("load", "m", "--table", f"users={paths[0]}", "--table", f"items={rows[:-len('.rows.npy')]}", "--activate")
    check(one, [tables[0], pair], 2)


def test_load_when_a_configuration_is_named_then_its_files_are_loaded_and_nothing_drifts(work, daemon):
    paths, old = hugectr(work, 1000, 1)
    os.symlink(work + "/m", work + "/link")  # files are the same, whatever way leads to them
    ways = [path.replace("/m/", "/link/") for path in paths]
    config = default_config([model_config("m", ways, DIMS, NAMES)])
    one = daemon(config)
    check(one, old, 1)
    for path in paths:
        shutil.rmtree(path)
    _, new = hugectr(work, 1000, 2)
    one.kill()
    one.start()
    check(one, old, 1)
    assert drift(one) == ["m"]
    one.ctl("load", "m", "--config", one.config_file, "--activate")
    check(one, new, 2)
    assert not drift(one)
    one.kill()
    one.start()
    check(one, new, 2)
    assert not drift(one)


def test_load_when_the_file_has_the_model_under_another_name_then_model_names_it(work, daemon):
    one = daemon(default_config(server={"model_roots": [work]}))
    paths, tables = hugectr(work, 1000, 1)
    file = write(work + "/ps.json", default_config([model_config("other", [work + "/no"], [4], ["t"]),
                                                    model_config("dlrm", paths, DIMS, NAMES, version=7, label="x")]))
    assert 'no "m"' in one.ctl("load", "m", "--config", file, code=2)
    [plan] = one.ctl("load", "m", "--config", file, "--model", "dlrm", "--dry-run", "-o", "json")
    assert (plan["model"], int(plan["version"])) == ("m", 7)
    one.ctl("load", "m", "--config", file, "--model", "dlrm")
    check(one, tables, 7)
    assert ask(one.stub(), "m", {"users": [1]}).label == "x"
    one.ctl("load", "m", "--config", file, "--model", "dlrm", "--version", 9, "--activate")
    check(one, tables, 9)


def test_load_when_tables_are_wrong_then_the_table_is_named(work, daemon):
    paths, _ = hugectr(work, 1000, 1)
    one = daemon(default_config([model_config("m", paths, DIMS, NAMES)]))

    def load(*tables, directory=""):
        sources = [admin_pb.TableSource(table=name, path=path) for name, path in tables]
        return one.load("m", directory, tables=sources)

    with refused(grpc.StatusCode.INVALID_ARGUMENT, "directory", "2 tables"):
        load(*zip(NAMES, paths), directory=work + "/m")
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "directory"):
        load()
    with refused(grpc.StatusCode.INVALID_ARGUMENT, '"users" twice'):
        load(("users", paths[0]), ("users", paths[1]))
    with refused(grpc.StatusCode.NOT_FOUND, 'table "items"', "nowhere"):
        load(("users", paths[0]), ("items", work + "/m/nowhere"))
    with refused(grpc.StatusCode.INVALID_ARGUMENT, 'table "items"', "emb_vector"):
        load(("users", paths[0]), ("items", paths[0]))  # 4 values are not 8
    with scratch() as elsewhere:
        path = Table.random("items", 9, 8).save(elsewhere)
        os.symlink(elsewhere, work + "/m/out")
        os.symlink(path, work + "/m/items.rows.npy")
        for out in (path, work + "/m/out/items.rows.npy", work + "/m/items.rows.npy", work + "/m/items"):
            with refused(grpc.StatusCode.PERMISSION_DENIED, 'table "items"', "model_roots"):
                load(("users", paths[0]), ("items", out))
    assert one.versions("m") == {1: "active"}


@pytest.mark.parametrize("words, told", [
    ((), "no files: expected one of --from DIR, "),
    (("--from", "/m", "--table", "a=b"), "more than one source of files: expected one of --from DIR, "),
    (("--table", "a"), "NAME=PATH"),
    (("--table", "a=b", "--model", "m"), "--model: expected --config FILE"),
    (("--config", "/nowhere/ps.json"), "/nowhere/ps.json"),
])
def test_load_when_the_command_line_is_wrong_then_it_says_so(work, daemon, words, told):
    one = daemon(default_config())
    assert told in one.ctl("load", "m", *words, code=2)
