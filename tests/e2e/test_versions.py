# SPDX-License-Identifier: Apache-2.0
"""Loading, switching, rolling back and unloading versions, refused calls, and the verbs of hpsctl for this."""
import os
import signal
import subprocess
import threading

import grpc
import numpy as np
import pytest

from rig import (BIN, LONG_LOAD_ROWS, PATIENCE_S, Daemon, Table, admin_pb, ask, default_config, floats, generate, hpsgen,
                 model_config, pb_grpc, refused, scratch, until)

ROWS, DIM, TABLES = 3000, 16, 3


@pytest.fixture(name="loaded")
def one_version_loaded(work, daemon):
    """A daemon that has version 1 (seed 1) of "m"; directories v1 to v3 differ by seed."""
    for seed in (1, 2, 3):
        generate(f"{work}/v{seed}", "--tables", TABLES, "--rows", ROWS, "--dim", DIM, "--seed", seed)
    one = daemon(default_config(server={"model_roots": [work], "keep_versions": 2}))
    one.load("m", f"{work}/v1", label="first")
    return one


def check(reply, seeds, keys):
    """Check that every row of the reply is from the version that it names."""
    for number, result in enumerate(reply.results):
        expected = hpsgen.rows(seeds[reply.version], number, keys, DIM)
        np.testing.assert_array_equal(floats(result), expected)


def all_tables(keys):
    return {f"feature_{i}": keys for i in range(TABLES)}


def test_versions_when_loaded_activated_and_rolled_back_then_replies_name_the_version(loaded, work):
    stub, keys, seeds = loaded.stub(), np.arange(50), {1: 1, 2: 2, 3: 3}
    reply = ask(stub, "m", all_tables(keys))
    assert (reply.version, reply.label) == (1, "first")
    check(reply, seeds, keys)
    last = loaded.load("m", f"{work}/v2", label="second")
    assert last.done and not last.activated and last.version == 2
    assert ask(stub, "m", all_tables(keys)).version == 1
    check(ask(stub, "m", all_tables(keys), version=2), seeds, keys)
    loaded.ctl("activate", "m", 2)
    reply = ask(stub, "m", all_tables(keys))
    assert (reply.version, reply.label) == (2, "second")
    check(reply, seeds, keys)
    check(ask(stub, "m", all_tables(keys), version=1), seeds, keys)
    for label, version in (("first", 1), ("second", 2)):
        reply = ask(stub, "m", all_tables(keys), label=label)
        assert (reply.version, reply.label) == (version, label)
        check(reply, seeds, keys)
    loaded.ctl("rollback", "m")
    assert ask(stub, "m", all_tables(keys)).version == 1
    loaded.ctl("unload", "m", 1, code=1)  # refused: it is active
    loaded.ctl("unload", "m", 2)
    with refused(grpc.StatusCode.NOT_FOUND, "2"):
        ask(stub, "m", all_tables(keys), version=2)


def test_versions_when_more_than_keep_versions_then_the_oldest_is_unloaded(loaded, work):
    for seed in (2, 3):
        assert loaded.load("m", f"{work}/v{seed}", activate=True).activated
    until(lambda: loaded.versions("m") == {2: "resident", 3: "active"}, "versions 2 and 3")


def test_load_when_a_dry_run_then_returns_the_plan_and_loads_nothing(loaded, work):
    plan = loaded.load("m", f"{work}/v2", dry_run=True).plan
    assert [table.row_count for table in plan.tables] == [ROWS] * TABLES
    assert 0 < plan.disk_bytes_needed < plan.disk_bytes_available
    assert loaded.versions("m") == {1: "active"}
    assert "host memory" in loaded.ctl("load", "m", "--from", f"{work}/v2", "--dry-run")
    lines = [line for line in loaded.log().splitlines() if "component=audit" in line and "dry_run=true" in line]
    assert len(lines) == 2, lines  # a dry run reports which files exist and their content
    assert all("method=LoadModel model=m" in line and f"request.directory={work}/v2" in line for line in lines), lines


def test_load_when_the_number_is_used_or_the_path_is_forbidden_then_refused(loaded, work):
    with refused(grpc.StatusCode.ALREADY_EXISTS, "1"):
        loaded.load("m", f"{work}/v2", version=1)
    with refused(grpc.StatusCode.NOT_FOUND, "nowhere"):
        loaded.load("m", f"{work}/nowhere")
    with scratch() as elsewhere:
        Table.random("a", 9, 4).save(elsewhere)
        with refused(grpc.StatusCode.PERMISSION_DENIED, "model_roots"):
            loaded.load("m", elsewhere)
        os.symlink(elsewhere, f"{work}/link")
        with refused(grpc.StatusCode.PERMISSION_DENIED, "model_roots"):
            loaded.load("m", f"{work}/link")
    assert loaded.versions("m") == {1: "active"}


def test_load_when_model_roots_is_not_set_then_sibling_directories_are_allowed(work, daemon):
    path = Table.random("a", 9, 4).save(f"{work}/m/1")
    Table.random("a", 9, 4, seed=2).save(f"{work}/m/2")
    Table.random("a", 9, 4, seed=3).save(f"{work}/other/3")
    one = daemon(default_config([model_config("m", [path], [4], ["a"])]))
    one.load("m", f"{work}/m/2")
    assert set(one.versions("m")) == {1, 2}
    with refused(grpc.StatusCode.PERMISSION_DENIED, "model_roots", "SIGHUP"):
        one.load("m", f"{work}/other/3")


def truncate(path, n_bytes):
    os.truncate(path, os.path.getsize(path) - n_bytes)


def poison(path):
    values = np.fromfile(path, "<f4")
    values[7] = np.nan
    values.tofile(path)


@pytest.mark.parametrize("file, damage", [
    ("emb_vector", lambda path: truncate(path, 4)),
    ("emb_vector", lambda path: truncate(path, 4 * 16)),
    ("key", lambda path: truncate(path, 3)),
    ("emb_vector", poison),
    ("emb_vector", os.unlink),
])
def test_load_when_a_file_is_damaged_then_the_error_names_it_and_the_active_version_serves(loaded, work, file,
                                                                                    damage):
    Table.random("good", 100, 16).save_hugectr(f"{work}/bad")
    path = os.path.join(Table.random("t", 101, 16).save_hugectr(f"{work}/bad"), file)
    damage(path)
    with pytest.raises(grpc.RpcError) as caught:
        loaded.load("m", f"{work}/bad")
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "bad/t" in caught.value.details() and file in caught.value.details()
    until(lambda: loaded.versions("m") == {1: "active"}, "only version 1")
    progress = {name: value for name, value in loaded.metrics().items() if "load_progress" in name}
    assert progress == {'hpsd_model_load_progress_ratio{model="m",version="1"}': 1}
    check(ask(loaded.stub(), "m", all_tables([1, 2])), {1: 1}, [1, 2])


def test_load_when_the_directory_is_empty_then_the_error_says_so(loaded, work):
    os.mkdir(f"{work}/empty")
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "empty", "no tables"):
        loaded.load("m", f"{work}/empty")


def test_load_when_keys_repeat_then_the_last_row_is_kept_and_they_are_counted(loaded, work):
    keys = np.array([5, 6, 5, 7, 5, 6])
    rows = hpsgen.rows(1, 0, np.arange(6), 4)
    Table("t", keys, rows).save_hugectr(f"{work}/twice")
    assert loaded.load("twice", f"{work}/twice").duplicate_key_count == 3
    result = ask(loaded.stub(), "twice", {"t": [5, 6, 7]}).results[0]
    np.testing.assert_array_equal(floats(result), rows[[4, 5, 3]])


def test_switch_when_made_every_50_ms_under_load_then_no_reply_mixes_versions(loaded, work):
    loaded.load("m", f"{work}/v2")
    seeds, ended, failures, seen = {1: 1, 2: 2}, threading.Event(), [], set()

    def reader(number):
        stub, rng = pb_grpc.ParameterServerStub(loaded.channel()), np.random.default_rng(number)
        try:
            while not ended.is_set():
                keys = rng.integers(0, ROWS, 200)
                reply = ask(stub, "m", all_tables(keys))
                check(reply, seeds, keys)
                seen.add(reply.version)
        except (AssertionError, grpc.RpcError) as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=reader, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    admin = loaded.admin_stub()
    for turn in range(40):
        admin.ActivateVersion(admin_pb.ActivateVersionRequest(model="m", version=2 - turn % 2),
                              timeout=PATIENCE_S)
        ended.wait(0.05)
    ended.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert seen == {1, 2}


def test_hpsctl_when_output_is_json_then_it_parses(loaded):
    for verb in (["ping"], ["status"], ["models"], ["tables"], ["tables", "m"], ["stats"],
                 ["lookup", "m", "feature_0", "1", "2"], ["explain", "m", "feature_0", "1"],
                 ["slowlog", "get"], ["config", "get"]):
        assert loaded.ctl("-o", "json", *verb), verb
        loaded.ctl(*verb)
    answer, = loaded.ctl("-o", "json", "lookup", "m", "feature_1", 7)
    row = np.array(answer["rows"][0]["row"], np.float32)
    np.testing.assert_array_equal(row, hpsgen.rows(1, 1, [7], DIM)[0])


def test_hpsctl_when_a_call_fails_then_the_exit_code_depends_on_the_cause(loaded, work):
    loaded.ctl("activate", "m", 99, code=1)
    loaded.ctl("activate", "m", code=2)
    loaded.ctl("nonsense", code=2)
    loaded.ctl("lookup", "m", "feature_0", "x", code=2)
    loaded.ctl("--addr", f"unix:{work}/none.sock", "ping", code=3)
    loaded.ctl("lookup", "m", "feature_0", 10**12, code=5)


@pytest.mark.one_thread
def test_hpsctl_when_interrupted_in_a_load_then_the_load_continues(loaded, work):
    generate(f"{work}/big", "--tables", 4, "--rows", LONG_LOAD_ROWS, "--dim", 32)
    load = subprocess.Popen([os.path.join(BIN, "hpsctl"), "--addr", loaded.admin, "load", "big", "--from",
                             f"{work}/big"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert load.stderr.readline()
    load.send_signal(signal.SIGINT)
    _, rest = load.communicate(timeout=PATIENCE_S)
    until(lambda: loaded.versions("big") == {1: "active"}, "the load's end")
    if load.returncode != 0:  # the load had not ended before the interrupt
        assert "continues in the server" in rest


def test_hpsctl_when_the_daemon_hangs_then_it_times_out(loaded):
    loaded.send(signal.SIGSTOP)
    try:
        done = subprocess.run([os.path.join(BIN, "hpsctl"), "--addr", loaded.admin, "--timeout", "0.2",
                               "status"], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode in (3, 4)  # the time expired before or after the connection was made
        assert "in time" in done.stderr
    finally:
        loaded.send(signal.SIGCONT)


@pytest.mark.one_thread
def test_hpsctl_when_a_load_outlasts_its_deadline_then_exit_code_4(loaded, work):
    generate(f"{work}/big", "--tables", 4, "--rows", 400000, "--dim", 32)
    loaded.ctl_out_of_time("load", "big", "--from", f"{work}/big", has_begun=lambda: loaded.versions("big"))
    until(lambda: loaded.versions("big").get(1) == "active", "the load's end")
