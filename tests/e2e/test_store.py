# SPDX-License-Identifier: Apache-2.0
"""A persistent store with another format, of another program, or with damage: what hpsd reports and does."""
import ctypes
import glob
import hashlib
import json
import os
import resource

import grpc
import numpy as np
import pytest

from rig import (SANITIZER, Daemon, Table, admin_pb, as_somebody_else, ask, default_config, floats, model_config,
                 refused, rocksdb_families, rocksdb_library, run_hpsd)

pytestmark = pytest.mark.one_thread
EXIT_STORE = 4


def model(work, n_rows=2000, dim=16):
    table = Table.random("a", n_rows, dim)
    config = model_config("m", [table.save(work + "/m")], [dim], ["a"], gpucache=False)
    return table, default_config([config], server={"model_roots": [work]})


def refused_start(daemon):
    """Start hpsd on the same state directory, which it refuses; its stderr."""
    code, out, err = run_hpsd(*daemon.args[1:])
    assert (code, out) == (EXIT_STORE, ""), err
    return err


@pytest.fixture(name="stopped")
def stopped_daemon(work):
    """(daemon, table, config) of a daemon that has run and stopped."""
    table, config = model(work, n_rows=5000, dim=64)
    one = Daemon(work, config)
    one.stop()
    return one, table, config


@pytest.mark.skipif(bool(SANITIZER), reason="its runtime needs more threads than the limit allows")
@pytest.mark.skipif(bool(as_somebody_else()), reason=as_somebody_else())
def test_start_when_rocksdb_cannot_start_a_thread_then_exit_code_4_and_the_limit(work):
    user = 34567
    os.chown(work, user, user)
    with open(f"{work}/ps.json", "w", encoding="utf-8") as out:
        json.dump(default_config([]), out)
    code, out, err = run_hpsd(
        "--state-dir", f"{work}/state", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0",
        "--config", f"{work}/ps.json", user=user, group=user, extra_groups=[], cwd="/",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (3, 3)))
    assert (code, out) == (EXIT_STORE, ""), err
    assert "store failed: RocksDB could not start a thread" in err and "processes_max=3" in err, err


def test_files_when_the_umask_is_0_then_other_users_cannot_read_them(work):
    _, config = model(work)
    with Daemon(work, config, wrapper=["sh", "-c", 'umask 0; exec "$@"', "sh"]) as one:
        one.ctl("snapshot", "create", f"{work}/snapshot")
    for top in (one.state, f"{work}/snapshot"):
        for path, _, names in os.walk(top):
            for name in (path, *(os.path.join(path, name) for name in names)):
                assert os.lstat(name).st_mode & 0o027 == 0, name


# ---- other databases and formats ----------------------------------------------------------------------

class Database:
    """A RocksDB database with all its column families, written without hpsd."""

    def __init__(self, path):
        self.c = rocksdb_library()
        options = ctypes.c_void_p(self.c.rocksdb_options_create())
        self.error = ctypes.c_char_p()
        self.names = rocksdb_families(path)
        n = len(self.names)
        names = (ctypes.c_char_p * n)(*[name.encode() for name in self.names])
        self.handles = (ctypes.c_void_p * n)()
        each = (ctypes.c_void_p * n)(*[options] * n)
        self.db = ctypes.c_void_p(self.c.rocksdb_open_column_families(
            options, path.encode(), ctypes.c_int(n), names, each, self.handles,
            ctypes.byref(self.error)))
        assert not self.error, self.error.value

    def write(self, family, key, value):
        """Put a value, or delete the key if `value` is None."""
        handle = ctypes.c_void_p(self.handles[self.names.index(family)])
        options = ctypes.c_void_p(self.c.rocksdb_writeoptions_create())
        key_size = ctypes.c_size_t(len(key))
        if value is None:
            self.c.rocksdb_delete_cf(self.db, options, handle, key, key_size, ctypes.byref(self.error))
        else:
            self.c.rocksdb_put_cf(self.db, options, handle, key, key_size, value,
                                  ctypes.c_size_t(len(value)), ctypes.byref(self.error))
        assert not self.error, self.error.value

    def read(self, family, key):
        handle = ctypes.c_void_p(self.handles[self.names.index(family)])
        self.c.rocksdb_readoptions_create.restype = ctypes.c_void_p
        self.c.rocksdb_get_cf.restype = ctypes.c_void_p
        options = ctypes.c_void_p(self.c.rocksdb_readoptions_create())
        size = ctypes.c_size_t()
        value = self.c.rocksdb_get_cf(self.db, options, handle, key, ctypes.c_size_t(len(key)), ctypes.byref(size),
                                      ctypes.byref(self.error))
        assert not self.error, self.error.value
        return ctypes.string_at(value, size.value)

    def flush(self, family):
        """Flush the family's memtable into a new file."""
        self.c.rocksdb_flushoptions_create.restype = ctypes.c_void_p
        options = ctypes.c_void_p(self.c.rocksdb_flushoptions_create())
        handle = ctypes.c_void_p(self.handles[self.names.index(family)])
        self.c.rocksdb_flush_cf(self.db, options, handle, ctypes.byref(self.error))
        assert not self.error, self.error.value

    def close(self):
        for handle in self.handles:
            self.c.rocksdb_column_family_handle_destroy(ctypes.c_void_p(handle))
        self.c.rocksdb_close(self.db)


def write_behind_its_back(daemon, family, key, value):
    database = Database(f"{daemon.state}/hpsd")
    database.write(family, key, value)
    database.close()


def contents(directory):
    found = {}
    for path in glob.glob(f"{directory}/hpsd/*"):
        with open(path, "rb") as f:
            found[path] = hashlib.sha256(f.read()).hexdigest()
    return found


def test_start_when_the_store_has_a_newer_format_then_exit_4_with_path_and_both_formats(stopped):
    one, table, _ = stopped
    write_behind_its_back(one, "default", b"hpsd.format", b"7")
    before = contents(one.state)
    err = refused_start(one)
    assert f"{one.state}/hpsd has format 7, this build reads up to 3: start the build that wrote it, or a later one" in err
    assert contents(one.state) == before  # so that the newer hpsd can still use it
    write_behind_its_back(one, "default", b"hpsd.format", b"1")
    one.restart()
    result = ask(one.stub(), "m", {"a": table.keys[:9]}).results[0]
    np.testing.assert_array_equal(floats(result), table.expect(table.keys[:9]))
    one.stop()


def test_format_when_int8_rows_are_loaded_then_older_builds_refuse_the_store(stopped, work):
    """Until a version has INT8 rows, builds that know only format 1 can read the store."""
    one, table, _ = stopped

    def read_by_format_1_alone():
        """Whether a build that knows only format 1 accepts the store."""
        database = Database(f"{one.state}/hpsd")
        value = database.read("default", b"hpsd.format")
        database.close()
        return value == b"1"
    assert read_by_format_1_alone()
    for row_dtype, fits in (("fp16", True), ("bf16", True), ("int8_rowwise_f16", False), ("fp32", False)):
        one.restart()
        one.ctl("load", "m", "--from", f"{work}/m", "--row-dtype", row_dtype, "--activate")
        result = ask(one.stub(), "m", {"a": table.keys[:9]}).results[0]
        np.testing.assert_allclose(floats(result), table.expect(table.keys[:9]), atol=0.05)
        assert ("format raised" in one.log()) == (row_dtype == "int8_rowwise_f16")
        one.stop()
        assert read_by_format_1_alone() == fits, row_dtype


@pytest.mark.parametrize("family, key, value, word", [
    ("default", b"hpsd.format", b"seven", "unreadable format record"),
    ("default", b"hpsd.format", None, "is not a database of hpsd"),
    ("catalog", b"version/m/1", b"\xff\xff", 'catalog record "version/m/1"'),
    ("catalog", b"model/m", b"\x0a\x7f", 'catalog record "model/m"'),
    pytest.param("catalog", b"model/m", b"\x0a\xac\x02" + b"m" * 300, 'catalog record "model/m"', id="long model"),
    pytest.param("catalog", b"version/m/1", b"\x0a\x01m\x3a\xac\x02" + b"0" * 300, 'catalog record "version/m/1"',
                 id="long load id")])
def test_start_when_a_record_is_unreadable_then_exit_4_with_its_name(stopped, family, key, value, word):
    one = stopped[0]
    write_behind_its_back(one, family, key, value)
    assert word in refused_start(one).replace('\\"', '"')


# ---- damage -------------------------------------------------------------------------------------------

def largest_file(daemon):
    return max(glob.glob(f"{daemon.state}/hpsd/*.sst"), key=os.path.getsize)


def overwrite(path, at):
    with open(path, "r+b") as f:
        f.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
        f.write(bytes(byte ^ 0x5a for byte in range(48)))


@pytest.mark.parametrize("damage", [
    lambda path: overwrite(path, -48),  # the footer
    lambda path: os.truncate(path, os.path.getsize(path) - 1000),
    os.unlink])
def test_start_when_a_file_of_the_store_is_damaged_then_exit_4_with_the_path(stopped, damage):
    one = stopped[0]
    damage(largest_file(one))
    assert f"{one.state}/hpsd" in refused_start(one)  # followed by RocksDB's message


def test_lookup_when_rows_are_damaged_then_data_loss_until_a_new_load(stopped, work):
    one, table, _ = stopped
    path = largest_file(one)
    overwrite(path, os.path.getsize(path) // 3)  # rows are at the beginning of a file
    one.restart()
    stub, lost = one.stub(), []
    for key in table.keys:
        try:
            result = ask(stub, "m", {"a": [key]}).results[0]
            np.testing.assert_array_equal(floats(result), table.expect([key]))
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.DATA_LOSS, error
            lost.append(key)
    assert 0 < len(lost) <= 64  # one or two blocks of 4 KB
    with refused(grpc.StatusCode.DATA_LOSS):
        ask(stub, "m", {"a": table.keys})
    assert os.path.basename(path) in one.log()
    assert one.metrics()['hpsd_tier_errors_total{tier="rocksdb",reason="failed"}'] > 0
    # As docs/operations.md says.
    one.ctl("load", "m", "--from", f"{work}/m", "--activate")
    one.ctl("unload", "m", 1)
    result = ask(stub, "m", {"a": table.keys}).results[0]
    np.testing.assert_array_equal(floats(result), table.expect(table.keys))
    assert not os.path.exists(path)
    one.stop()


# ---- read-only ----------------------------------------------------------------------------------------

def test_store_when_read_only_then_serves_existing_rows_and_refuses_changes(stopped, work):
    one, table, config = stopped
    config["persistent_db"]["read_only"] = True
    one.write_config(config)
    before = contents(one.state)
    one.restart()
    result = ask(one.stub(), "m", {"a": table.keys}).results[0]
    np.testing.assert_array_equal(floats(result), table.expect(table.keys))
    assert one.metrics()["hpsd_store_read_only"] == 1
    with refused(grpc.StatusCode.FAILED_PRECONDITION, "read-only"):
        one.load("m", f"{work}/m")
    with refused(grpc.StatusCode.FAILED_PRECONDITION, "read-only"):
        one.admin_stub().ActivateVersion(admin_pb.ActivateVersionRequest(model="m", version=1))
    result = ask(one.stub(), "m", {"a": table.keys[:9]}).results[0]
    np.testing.assert_array_equal(floats(result), table.expect(table.keys[:9]))
    one.stop()
    assert contents(one.state) == before
    config["persistent_db"]["read_only"] = False
    one.write_config(config)
    one.restart()
    assert one.load("m", f"{work}/m").rows_total == len(table.keys)
    one.stop()
