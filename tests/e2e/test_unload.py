# SPDX-License-Identifier: Apache-2.0
"""Unloading a version while a request uses it. Other operations do not wait, and the version is removed completely.

The request that uses version 1 waits in the queue for reply memory, which a reply that its client does not read
occupies.
"""
import os
import re
import signal

import grpc
import numpy as np
import pytest

from rig import (PATIENCE_S, Daemon, admin_pb, ask, default_config, floats, generate, hpsgen, key_bytes, pb,
                 refused, until)

ROWS, DIM = 20000, 128


class InUse:
    """A daemon with versions 1 and 2 (active) of "m", and a call that pins version 1."""

    def __init__(self, work):
        for seed in (1, 2, 3):
            generate(f"{work}/v{seed}", "--tables", 1, "--rows", ROWS, "--dim", DIM, "--seed", seed)
        self.work = work
        self.daemon = Daemon(work, default_config(server={
            "model_roots": [work], "reply_bytes_in_flight": "1MiB", "queue_ms_max": 60000,
            "reply_stall_timeout_ms": 3600000, "drain_timeout_ms": 100}))
        self.daemon.load("m", f"{work}/v1")
        self.daemon.load("m", f"{work}/v2", activate=True)
        stub = self.daemon.stub()
        self.unread = stub.LookupStream(self.request(np.arange(ROWS), 2), timeout=PATIENCE_S * 4)
        until(lambda: self.daemon.metrics()["hpsd_reply_bytes_in_flight"] > 0, "an unread reply")
        self.keys = np.arange(5000)
        self.waiting = self.daemon.stub().Lookup.future(self.request(self.keys, 1), timeout=PATIENCE_S * 4)
        until(lambda: self.daemon.metrics()["hpsd_requests_in_flight"] == 2, "a request that waits")
        assert not self.waiting.done()

    @staticmethod
    def request(keys, version):
        return pb.LookupRequest(model="m", version=version,
                                queries=[pb.TableQuery(table="feature_0", keys=key_bytes(keys))])

    def unload(self, version, timeout=PATIENCE_S * 4):
        return self.daemon.admin_stub().UnloadVersion.future(
            admin_pb.UnloadVersionRequest(model="m", version=version), timeout=timeout)

    def begin_unload(self):
        call = self.unload(1)
        until(lambda: self.daemon.versions("m") == {1: "unloading", 2: "active"}, "version 1 unloading")
        assert not call.done()
        return call

    def let_go(self):
        """The waiting request gets memory, and returns its rows."""
        self.unread.cancel()
        result = self.waiting.result().results[0]
        np.testing.assert_array_equal(floats(result), hpsgen.rows(1, 0, self.keys, DIM))


@pytest.fixture(name="in_use")
def version_in_use(work):
    made = InUse(work)
    yield made
    made.daemon.kill()


def test_unload_when_in_use_then_loads_switches_and_other_unloads_succeed(in_use):
    one = in_use.daemon
    unload = in_use.begin_unload()
    with refused(grpc.StatusCode.NOT_FOUND, "version 1"):
        ask(one.stub(), "m", {"feature_0": [1]}, version=1)
    with refused(grpc.StatusCode.FAILED_PRECONDITION, "version 1", "is unloading"):
        in_use.unload(1).result()
    with refused(grpc.StatusCode.ALREADY_EXISTS, "still unloading"):
        one.load("m", f"{in_use.work}/v1", version=1)
    assert one.load("m", f"{in_use.work}/v3", activate=True).activated
    one.ctl("activate", "m", 2)
    one.ctl("unload", "m", 3)
    assert "unloading" in one.ctl("models")
    assert one.versions("m") == {1: "unloading", 2: "active"}
    assert not unload.done()
    in_use.let_go()
    assert unload.result() == admin_pb.UnloadVersionResponse()
    assert one.versions("m") == {2: "active"}
    assert not [name for name in one.metrics() if re.search(r'version="[13]"', name)]
    one.stop()


@pytest.mark.parametrize("end", ["cancel", "deadline"])
def test_unload_when_its_caller_gives_up_then_it_continues(in_use, end):
    one = in_use.daemon
    if end == "cancel":
        in_use.begin_unload().cancel()
    else:
        told = one.ctl_out_of_time("unload", "m", 1, has_begun=lambda: one.versions("m")[1] == "unloading")
        assert "continues in the server" in told
    until(lambda: one.versions("m") == {1: "unloading", 2: "active"}, "version 1 unloading")
    in_use.let_go()
    until(lambda: one.versions("m") == {2: "active"}, "the unload's end")
    one.stop()


@pytest.mark.parametrize("number, code", [(signal.SIGKILL, -9), (signal.SIGTERM, 0), (signal.SIGQUIT, 0)])
def test_unload_when_hpsd_ends_during_it_then_the_version_is_removed(in_use, number, code):
    one = in_use.daemon
    unload = in_use.begin_unload()
    one.send(number)
    assert one.wait_end() == code, one.log()
    with pytest.raises(grpc.RpcError) as caught:
        unload.result()
    assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    one.stop(code=code)
    one.restart()
    assert one.versions("m") == {2: "active"}
    assert ("unfinished version removed" in one.log()) == (number == signal.SIGKILL)
    with refused(grpc.StatusCode.NOT_FOUND, "version 1"):
        ask(one.stub(), "m", {"feature_0": [1]}, version=1)
    assert one.load("m", f"{in_use.work}/v3", version=1).version == 1
    result = ask(one.stub(), "m", {"feature_0": [7]}, version=1).results[0]
    np.testing.assert_array_equal(floats(result), hpsgen.rows(3, 0, [7], DIM))
    one.stop()


# ---- the audit log -----------------------------------------------------------------------------------

def audit_lines(daemon):
    """[(method, model, version, code, peer, error)] of the log."""
    pattern = re.compile(r'level=info msg="admin call" component=audit method=(\w+) model=(\S*) '
                         r'version=(\d+) who=\S* peer="?([^" ]*)"? result=(?:done|failed) code=(\d+) error=("(?:[^"\\]|\\.)*"|\S*)')
    found = [pattern.search(line) for line in daemon.log().splitlines() if "component=audit" in line]
    return [(m[1], m[2].strip('"'), int(m[3]), int(m[5]), m[4], m[6].strip('"')) for m in found]


def test_audit_log_when_an_admin_call_changes_something_then_it_is_logged_at_every_level(daemon, work):
    for seed in (1, 2):
        generate(f"{work}/v{seed}", "--tables", 1, "--rows", 100, "--dim", 4, "--seed", seed)
    one = daemon(default_config(server={"model_roots": [work], "log_level": "error"}))
    me = f"unix:pid={os.getpid()},uid={os.getuid()},gid={os.getgid()}"
    one.versions("m")
    one.ctl("status")
    assert audit_lines(one) == []  # status changes nothing
    admin = one.admin_stub()
    one.load("m", f"{work}/v1", dry_run=True)  # changes nothing, but reports which files exist
    one.load("m", f"{work}/v1")
    one.load("m", f"{work}/v2")
    admin.ActivateVersion(admin_pb.ActivateVersionRequest(model="m", version=2), timeout=PATIENCE_S)
    admin.RollbackModel(admin_pb.RollbackModelRequest(model="m"), timeout=PATIENCE_S)
    with refused(grpc.StatusCode.FAILED_PRECONDITION):
        admin.UnloadVersion(admin_pb.UnloadVersionRequest(model="m", version=1), timeout=PATIENCE_S)
    admin.UnloadVersion(admin_pb.UnloadVersionRequest(model="m", version=2), timeout=PATIENCE_S)
    with refused(grpc.StatusCode.NOT_FOUND):
        one.load("m", f"{work}/v9")
    admin.SetLogLevel(admin_pb.SetLogLevelRequest(level="error"), timeout=PATIENCE_S)
    admin.ResetSlowLog(admin_pb.ResetSlowLogRequest(), timeout=PATIENCE_S)
    lines = audit_lines(one)
    assert [line[:4] for line in lines] == [
        ("LoadModel", "m", 0, 0), ("LoadModel", "m", 1, 0), ("LoadModel", "m", 2, 0), ("ActivateVersion", "m", 2, 0),
        ("RollbackModel", "m", 1, 0), ("UnloadVersion", "m", 1, 9), ("UnloadVersion", "m", 2, 0),
        ("LoadModel", "m", 0, 5), ("SetLogLevel", "", 0, 0), ("ResetSlowLog", "", 0, 0)]
    assert {line[4] for line in lines} == {me}
    assert "activate another first" in lines[5][5] and lines[6][5] == ""
    # Audit lines of a burst are not rate-limited, unlike other log lines.
    for _ in range(30):
        admin.ResetSlowLog(admin_pb.ResetSlowLogRequest(), timeout=PATIENCE_S)
    assert len(audit_lines(one)) == len(lines) + 30
