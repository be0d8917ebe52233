# SPDX-License-Identifier: Apache-2.0
"""Changes between versions: the order of tables, lost tables and rows, and the removal of versions. Also stores that
earlier builds have written."""
import os
import shutil
import signal
import subprocess
import tarfile

import grpc
import numpy as np
import pytest

from rig import (BIN, PATIENCE_S, Daemon, Killpoint, Table, admin_pb, ask, default_config, floats, key_bytes,
                 model_config, pb, refused, scratch, until)

DIM = 4
N = 40


def table(name, base, n=N, dim=DIM):
    """All values of key k's row are base + k."""
    keys = np.arange(n, dtype="<i8")
    return Table(name, keys, np.repeat((base + keys).astype("<f4")[:, None], dim, axis=1), default=-1.0)


def save(directory, **bases):
    return [table(name, base).save(directory) for name, base in bases.items()]


def by_place(daemon, n_tables, model="m", **fields):
    """(name, value of key 0) of each table, looked up by position."""
    queries = [pb.TableQuery(keys=key_bytes([0])) for _ in range(n_tables)]
    reply = daemon.stub().Lookup(pb.LookupRequest(model=model, queries=queries, **fields))
    return [(result.table, floats(result)[0][0]) for result in reply.results]


def again(daemon):
    daemon.stop()
    daemon.restart()


def configured(work, names=("users", "items"), **server):
    paths = [f"{work}/m/1/{name}.rows.npy" for name in names]
    return default_config([model_config("m", paths, [DIM] * len(names), list(names), defaults=[-1.0] * len(names))],
                          server={"model_roots": [work], **server})


@pytest.fixture(name="served")
def two_tables_served(work, daemon):
    """Serve version 1 of "m" with tables users (1000) and items (2000), in this order."""
    save(f"{work}/m/1", users=1000, items=2000)
    return daemon(configured(work))


# ---- the order of tables -------------------------------------------------------------------------------

def test_order_when_later_versions_have_other_tables_then_positions_stay_the_same(served, work):
    save(f"{work}/m/2", extra=21000, items=22000, users=23000)
    save(f"{work}/m/3", items=32000, users=33000)
    save(f"{work}/m/4", items=42000)
    for number in (2, 3, 4):
        served.load("m", f"{work}/m/{number}")

    def check():
        assert by_place(served, 2) == [("users", 1000), ("items", 2000)]
        assert by_place(served, 3, version=2) == [("users", 23000), ("items", 22000), ("extra", 21000)]
        assert by_place(served, 2, version=3) == [("users", 33000), ("items", 32000)]
        with refused(grpc.StatusCode.NOT_FOUND, "queries[0]: table 'users'", "version 4"):
            by_place(served, 2, version=4)
        queries = [pb.TableQuery(table="items", keys=key_bytes([0])), pb.TableQuery(keys=key_bytes([0]))]
        reply = served.stub().Lookup(pb.LookupRequest(model="m", queries=queries, version=4))
        assert [result.table for result in reply.results] == ["items", "items"]
        with pytest.raises(grpc.RpcError):  # the position of a table that only other versions have
            by_place(served, 3)
        tables = served.ctl("tables", "m", "--version", 2, "-o", "json")[0]["tables"]
        assert [(int(one.get("place", 0)), one["table"]) for one in tables] == [
            (0, "users"), (1, "items"), (2, "extra")]
        assert "items" in served.ctl("tables", "m", "--version", 4)

    check()
    again(served)
    check()
    served.ctl("activate", "m", 2, "--force")
    again(served)
    assert by_place(served, 3) == [("users", 23000), ("items", 22000), ("extra", 21000)]


def test_order_when_the_first_version_is_from_a_directory_then_the_configuration_sets_it(work, daemon):
    save(f"{work}/m/2", items=2000, users=1000)
    one = daemon(configured(work), ready=False)
    one.load("m", f"{work}/m/2")
    assert by_place(one, 2) == [("users", 1000), ("items", 2000)]


def test_order_when_all_versions_are_unloaded_then_it_is_removed(daemon, work):
    save(f"{work}/a", b=1)
    save(f"{work}/b", a=2, b=3)
    one = daemon(default_config(server={"model_roots": [work]}))
    one.load("n", f"{work}/a")
    one.load("n", f"{work}/b")
    assert by_place(one, 2, "n", version=2) == [("b", 3), ("a", 2)]
    one.ctl("unload", "n", 2)
    one.ctl("unload", "n", 1)
    one.load("n", f"{work}/b")
    assert by_place(one, 2, "n") == [("a", 2), ("b", 3)]


# ---- large differences ---------------------------------------------------------------------------------

def test_activate_when_a_table_or_most_rows_are_missing_then_refused_unless_forced(served, work):
    save(f"{work}/m/2", users=1)
    for name in ("users", "items"):
        table(name, 1, n=5).save(f"{work}/m/3")
    for number in (2, 3):
        shown = served.ctl("load", "m", "--from", f"{work}/m/{number}")
        assert "compared with version 1" in shown
    assert "items" in shown and "40 -> 5" in shown and "-87.5 %" in shown
    with refused(grpc.StatusCode.FAILED_PRECONDITION, '"items" is gone', "--force"):
        served.admin_stub().ActivateVersion(admin_pb.ActivateVersionRequest(model="m", version=2))
    refusal = served.ctl("activate", "m", 3, code=1)
    assert "5 rows, were 40" in refusal and "activate_rows_loss_max" in refusal
    assert by_place(served, 2) == [("users", 1000), ("items", 2000)]
    assert "gone" in served.ctl("activate", "m", 2, "--force")
    served.ctl("rollback", "m")
    assert by_place(served, 2) == [("users", 1000), ("items", 2000)]


def test_load_when_activate_is_set_and_a_table_is_missing_then_no_version_is_loaded(served, work):
    save(f"{work}/m/2", users=1)
    assert '"items" is gone' in served.ctl("load", "m", "--from", f"{work}/m/2", "--activate", code=1)
    assert served.versions("m") == {1: "active"}
    plan = served.ctl("load", "m", "--from", f"{work}/m/2", "--dry-run")
    assert "gone" in plan and "compared with version 1" in plan
    served.ctl("load", "m", "--from", f"{work}/m/2", "--activate", "--force")
    assert served.versions("m") == {1: "resident", 2: "active"}


def test_activate_when_activate_rows_loss_max_is_reloaded_then_it_applies(served, work):
    for name in ("users", "items"):
        table(name, 1, n=5).save(f"{work}/m/2")
    served.load("m", f"{work}/m/2")
    served.ctl("activate", "m", 2, code=1)
    served.write_config(configured(work, activate_rows_loss_max=0.9))
    served.send(signal.SIGHUP)

    def activated():
        try:
            return served.admin_stub().ActivateVersion(admin_pb.ActivateVersionRequest(model="m", version=2)).version == 2
        except grpc.RpcError:
            return False

    until(activated, "an activation")


def test_load_when_keys_repeat_then_reports_the_number_of_stored_rows(served, work):
    Table("t", np.array([5, 6, 5]), np.ones((3, DIM), "<f4")).save_hugectr(f"{work}/twice")
    assert "loaded, 2 rows" in served.ctl("load", "twice", "--from", f"{work}/twice")


# ---- removed versions ----------------------------------------------------------------------------------

def test_keep_versions_when_versions_were_never_active_then_they_are_not_unloaded(served, work):
    for number in (2, 3, 4, 5, 6):
        save(f"{work}/m/{number}", users=number, items=number)
    for number in (2, 3, 4):
        assert not list(served.load("m", f"{work}/m/{number}").unload_versions)
    assert served.versions("m") == {1: "active", 2: "resident", 3: "resident", 4: "resident"}
    served.ctl("activate", "m", 3)
    again(served)
    assert "unloaded: version 1\n" in served.ctl("activate", "m", 2)
    assert served.versions("m") == {2: "active", 3: "resident", 4: "resident"}
    plan = served.ctl("load", "m", "--from", f"{work}/m/5", "--activate", "--dry-run")
    assert "would be unloaded: version 3\n" in plan
    again(served)
    assert list(served.load("m", f"{work}/m/5", activate=True).unload_versions) == [3]
    assert served.versions("m") == {2: "resident", 4: "resident", 5: "active"}
    assert list(served.load("m", f"{work}/m/6", replace=True).unload_versions) == [4]
    assert served.versions("m") == {2: "resident", 5: "active", 6: "resident"}
    assert by_place(served, 2) == [("users", 5), ("items", 5)]


# ---- a store of an earlier build -----------------------------------------------------------------------

STORES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "stores")
# The type of the rows of the active version of "n". In 1.tar.gz versions have no row_dtype; in 3.tar.gz INT8 rows are
# in a database of format 1.
TYPES = {"1.tar.gz": "fp32", "2.tar.gz": "fp16", "3.tar.gz": "int8_rowwise_f32"}


@pytest.mark.parametrize("archive", sorted(os.listdir(STORES)))
def test_store_when_an_earlier_build_has_written_it_then_upgraded_and_served(work, daemon, archive):
    """"m" has versions 1 (active: users, items; users has had updates), 2 (extra, items, users; active before) and 3
    (items, users; never active). "n" has two versions with one table; the later one is active. Their files no longer
    exist."""
    with tarfile.open(f"{STORES}/{archive}") as packed:
        packed.extractall(f"{work}/state")
    one = daemon(configured(work, keep_versions=2))
    assert by_place(one, 2) == [("users", 1000), ("items", 2000)]
    assert by_place(one, 3, version=2) == [("users", 22000), ("items", 21000), ("extra", 20000)]
    assert by_place(one, 2, version=3) == [("users", 31000), ("items", 30000)]
    assert by_place(one, 1, "n") == [("only", 200)]
    kinds = {(table["model"], table["data_type"]) for table in one.ctl("tables", "-o", "json")[0]["tables"]}
    assert kinds == {("m", "fp32"), ("n", TYPES[archive])}
    reply = ask(one.stub(), "m", {"users": [6, 7, 8, 900]})
    assert floats(reply.results[0])[:, 0].tolist() == [1006, 7777, -1, 9000]
    assert reply.update_sequence > 0
    one.ctl("activate", "m", 3)  # the first change of the store
    assert by_place(one, 2) == [("users", 31000), ("items", 30000)]
    assert one.versions("m") == {1: "resident", 3: "active"}
    again(one)
    assert by_place(one, 2) == [("users", 31000), ("items", 30000)]
    one.ctl("rollback", "m")
    assert by_place(one, 2) == [("users", 1000), ("items", 2000)]


# ---- crashes in the middle -----------------------------------------------------------------------------

def killed_at(work, n, operation, **server):
    """Run `operation` on a daemon without models[] that is killed before write number n to the store's log, and restart
    it. Returns it, and whether it was killed: the operation may make fewer writes."""
    point = Killpoint(f"{work}/point", f"{work}/state")
    one = Daemon(work, default_config(server={"model_roots": [work], "hot_keys_save_s": 0, **server}),
                 wrapper=point.wrapper)
    prepare, verb = operation
    prepare(one)
    point.arm("write *.log", n, 0)
    subprocess.run([os.path.join(BIN, "hpsctl"), "--addr", one.admin, *map(str, verb)], capture_output=True,
                   check=False, timeout=PATIENCE_S)
    killed = point.holds()  # the killpoint has been reached
    point.disarm()
    if killed:
        one.wait_end()
    one.kill()
    one.restart()
    return one, killed


def test_kill_when_activate_unloads_a_version_then_later_loads_unload_only_expected_versions(work):
    for number in range(1, 5):
        save(f"{work}/m/{number}", a=number)
    for n in range(1, 9):
        with scratch() as place:
            shutil.copytree(f"{work}/m", f"{place}/m")

            def prepare(one, place=place):
                one.load("m", f"{place}/m/1")
                one.load("m", f"{place}/m/2")

            one, killed = killed_at(place, n, (prepare, ("activate", "m", 2)), keep_versions=1)
            one.load("m", f"{place}/m/3", activate=True)
            one.load("m", f"{place}/m/4", activate=True)
            until(lambda: set(one.versions("m")) in ({4}, {2, 4}), f"a kill at write {n}")
            one.stop()
        if not killed:
            return
    raise AssertionError("an activation that makes more than 8 writes")


def test_kill_when_the_last_version_is_unloaded_then_the_order_is_unchanged_or_removed(work):
    save(f"{work}/m/1", a=1, b=2, c=3)
    save(f"{work}/m/2", a=11, c=13)
    for n in range(1, 9):
        with scratch() as place:
            def prepare(one, place=place):
                for number in (1, 2):
                    shutil.copytree(f"{work}/m/{number}", f"{place}/m/{number}")
                one.load("m", f"{place}/m/1")
                one.load("m", f"{place}/m/2", activate=True, force=True)
                one.ctl("unload", "m", 1)
                until(lambda: one.versions("m") == {2: "active"}, "one version")

            one, killed = killed_at(place, n, (prepare, ("unload", "m", 2)))
            if one.versions("m"):
                assert one.versions("m") == {2: "active"}
                tables = one.ctl("tables", "m", "-o", "json")[0]["tables"]
                assert [(int(t.get("place", 0)), t["table"]) for t in tables] == [(0, "a"), (2, "c")]
            else:  # the version was removed
                save(f"{place}/next", c=1, a=2)
                one.load("m", f"{place}/next")
                assert by_place(one, 2) == [("a", 2), ("c", 1)]
            one.stop()
        if not killed:
            return
    raise AssertionError("an unload that makes more than 8 writes")


def test_activate_when_its_write_hangs_then_other_requests_succeed(work):
    for number in (1, 2):
        save(f"{work}/m/{number}", a=number)
    point = Killpoint(f"{work}/point", f"{work}/state")
    with Daemon(work, default_config(server={"model_roots": [work], "hot_keys_save_s": 0}),
                wrapper=point.wrapper) as one:
        one.load("m", f"{work}/m/1")
        one.load("m", f"{work}/m/2")
        point.hold("fdatasync *.log")
        with subprocess.Popen([os.path.join(BIN, "hpsctl"), "--addr", one.admin, "activate", "m", "2"],
                              stdout=subprocess.DEVNULL) as activate:
            until(point.holds, "a write")
            for path in ("/healthz", "/readyz", "/metrics"):
                assert one.get(path)[0] == 200, path
            assert by_place(one, 1) == [("a", 1)]
            point.let_go()
            assert activate.wait(PATIENCE_S) == 0
        assert by_place(one, 1) == [("a", 2)]
