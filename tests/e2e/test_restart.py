# SPDX-License-Identifier: Apache-2.0
"""Drains, kills, restarts, and starts that fail."""
import glob
import json
import os
import shutil
import signal
import socket
import subprocess
import threading

import grpc
import numpy as np
import pytest

import ports
from rig import (BIN, LONG_LOAD_ROWS, PATIENCE_S, Daemon, Table, admin_pb, ask, default_config, floats, generate, hpsgen,
                 model_config, pb, pb_grpc, refused, run_hpsd, until)


def mount_tmpfs(path, options):
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path],
                                           check=False, capture_output=True).returncode != 0:
        pytest.skip("no file system can be mounted here: NOT CHECKED")


def model(work, n_rows=2000, dim=16):
    table = Table.random("a", n_rows, dim)
    return table, default_config([model_of(table, work + "/m")], server={"model_roots": [work]})


def model_of(table, directory):
    return model_config("m", [table.save(directory)], [table.dim], [table.name])


def check(daemon, table, n=500):
    keys = table.keys[:n]
    result = ask(daemon.stub(), "m", {"a": keys}, miss_policy=pb.MISS_POLICY_EXACT).results[0]
    np.testing.assert_array_equal(floats(result), table.expect(keys))


def test_drain_when_under_load_then_no_call_fails_and_the_next_daemon_serves(work):
    table, config = model(work)
    address = f"127.0.0.1:{ports.take()}"
    config["server"]["drain_delay_ms"] = 100
    one = Daemon(work, config, listen=(address,))
    failures, n_calls, ended = [], [0], threading.Event()

    def caller():
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 20),
                   ("grpc.min_reconnect_backoff_ms", 20), ("grpc.max_reconnect_backoff_ms", 100)]
        with grpc.insecure_channel(address, options=options) as channel:
            stub = pb_grpc.ParameterServerStub(channel)
            keys = table.keys[:300]
            request = pb.LookupRequest(model="m", miss_policy=pb.MISS_POLICY_EXACT, queries=[
                pb.TableQuery(table="a", keys=keys.tobytes())])
            while not ended.is_set():
                try:
                    reply = stub.Lookup(request, timeout=PATIENCE_S, wait_for_ready=True)
                    np.testing.assert_array_equal(floats(reply.results[0]), table.expect(keys))
                    n_calls[0] += 1
                except (grpc.RpcError, AssertionError) as error:
                    failures.append(repr(error))

    threads = [threading.Thread(target=caller) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        before = n_calls[0]
        until(lambda before=before: n_calls[0] > before + 50 or failures, "calls")
        one.stop()
        one.start()
    before = n_calls[0]
    until(lambda: n_calls[0] > before + 50 or failures, "calls after the last start")
    ended.set()
    for thread in threads:
        thread.join()
    one.stop()
    assert failures == []


def test_restart_when_the_model_files_are_missing_then_rows_are_served_from_the_store(daemon, work):
    table, config = model(work)
    one = daemon(config)
    check(one, table)
    one.stop()
    shutil.rmtree(work + "/m")
    one.start()
    check(one, table, 2000)
    assert one.versions("m") == {1: "active"}


def test_restart_when_versions_were_switched_then_the_same_version_is_active(daemon, work):
    for seed in (1, 2):
        generate(f"{work}/v{seed}", "--tables", 1, "--rows", 100, "--dim", 4, "--seed", seed)
    one = daemon(default_config(server={"model_roots": [work]}))
    one.load("m", f"{work}/v1", label="one")
    one.load("m", f"{work}/v2", label="two", activate=True)
    one.kill()
    one.start()
    reply = ask(one.stub(), "m", {"feature_0": [1, 2]})
    assert (reply.version, reply.label) == (2, "two")
    np.testing.assert_array_equal(floats(reply.results[0]), hpsgen.rows(2, 0, [1, 2], 4))
    one.ctl("rollback", "m")
    assert ask(one.stub(), "m", {"feature_0": [1]}).version == 1


def test_kill_when_a_load_is_running_then_the_restart_removes_its_rows(daemon, work):
    table, config = model(work)
    one = daemon(config)
    generate(f"{work}/big", "--tables", 4, "--rows", LONG_LOAD_ROWS, "--dim", 32)
    progress = one.admin_stub().LoadModel(
        admin_pb.LoadModelRequest(model="m", directory=f"{work}/big"), timeout=PATIENCE_S)
    assert next(message for message in progress if message.rows_done > 0 or message.done)
    assert one.versions("m") in ({1: "active", 2: "loading"}, {1: "active", 2: "resident"})
    one.kill()
    one.start()
    check(one, table)
    versions = one.versions("m")
    if versions != {1: "active"}:  # the load had ended before the kill
        assert versions == {1: "active", 2: "resident"}
        keys = np.arange(0, LONG_LOAD_ROWS, 97)
        for number in range(4):
            result = ask(one.stub(), "m", {f"feature_{number}": keys}, version=2).results[0]
            np.testing.assert_array_equal(floats(result), hpsgen.rows(1, number, keys, 32))
    assert glob.glob(f"{one.state}/tmp/*") == []
    assert one.load("m", f"{work}/big", activate=True, force=True).version in (2, 3)


# ---- failing starts ----------------------------------------------------------------------------------

def refused_start(work, config, *args):
    path = os.path.join(work, "refused.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(config, f)
    return run_hpsd("--config", path, "--http-listen", "127.0.0.1:0", *args)


def test_start_when_the_state_directory_is_in_use_then_exit_3(daemon, work):
    _, config = model(work)
    one = daemon(config)
    code, out, err = refused_start(work, config, "--state-dir", one.state, "--listen", "127.0.0.1:0")
    assert (code, out) == (3, "")
    assert one.state in err and str(one.process.pid) in err


def test_start_when_the_port_is_taken_then_exit_3(work):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, out, err = refused_start(work, default_config(), "--state-dir", work + "/s", "--listen",
                                       address)
    assert (code, out) == (3, ""), err
    assert address in err


def test_start_when_a_test_uses_the_default_ports_then_exit_3(work):
    done = subprocess.run([os.path.join(BIN, "hpsd"), "--table", f"a={work}/a.npy", "--state-dir", work + "/s"],
                          capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 3 and "127.0.0.1:8601" in done.stderr, done.stderr


def test_start_when_the_state_directory_cannot_be_written_then_exit_1(work):
    with open(work + "/file", "wb"):
        pass
    code, _, err = refused_start(work, default_config(), "--state-dir", work + "/file/state", "--listen",
                                 "127.0.0.1:0")
    assert code == 1
    assert work + "/file" in err


def test_start_when_the_configuration_has_a_typo_then_exit_2_with_a_suggestion(work):
    code, _, err = refused_start(work, default_config(server={"drain_delay_mss": 1}), "--state-dir",
                                 work + "/s")
    assert code == 2
    assert "drain_delay_mss" in err and "drain_delay_ms" in err.replace("drain_delay_mss", "")


def test_load_when_the_disk_is_full_then_refused_and_the_active_version_serves(work):
    state = os.path.join(work, "state")
    os.mkdir(state)
    mount_tmpfs(state, "size=24m")
    try:
        table, config = model(work)
        with Daemon(work, config) as one:
            generate(f"{work}/big", "--tables", 1, "--rows", 300000, "--dim", 32)
            with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "disk"):
                one.load("m", f"{work}/big")
            check(one, table)
            until(lambda: one.versions("m") == {1: "active"}, "only version 1")
    finally:
        subprocess.run(["umount", "-l", state], check=True)


def test_start_when_the_file_system_is_read_only_then_exit_1(work):
    state = os.path.join(work, "state")
    os.mkdir(state)
    mount_tmpfs(state, "ro,size=1m")
    try:
        code, _, err = refused_start(work, default_config(), "--state-dir", state, "--listen",
                                     "127.0.0.1:0")
        assert code == 1
        assert state in err and "Read-only" in err
    finally:
        subprocess.run(["umount", "-l", state], check=True)


def test_start_when_the_store_cannot_be_opened_then_exit_4(work):
    _, config = model(work)
    one = Daemon(work, config)
    one.stop()
    with open(f"{one.state}/hpsd/CURRENT", "w", encoding="ascii") as f:
        f.write("MANIFEST-999999\n")
    code, out, err = run_hpsd(*one.args[1:])
    assert (code, out) == (4, "")
    assert f"{one.state}/hpsd" in err
