# SPDX-License-Identifier: Apache-2.0
"""Policies of a model, and which options a reload applies, reports or rejects."""
import contextlib
import http.client as http_client
import json
import os
import re
import signal
import threading

import grpc
import numpy as np
import pytest

from rig import (PATIENCE_S, Daemon, Table, admin_grpc, admin_pb, ask, default_config, floats, generate, kserve_grpc,
                 kserve_pb, model_config, pb, refused, statuses, until)
from kserve_body import compose

FOUND, DEFAULTED, UNKNOWN = pb.KEY_STATUS_FOUND, pb.KEY_STATUS_DEFAULTED, pb.KEY_STATUS_UNKNOWN


class Stored:
    """Models with the same table in RocksDB only, so that a request that does not wait for RocksDB finds no row."""

    ABSENT = 12345

    def __init__(self, work):
        self.table = Table.random("a", 100, 8, default=3.0)
        self.table.save(work + "/m")
        assert self.ABSENT not in self.table.at
        self.work = work
        self.keys = [int(self.table.keys[5]), self.ABSENT]

    def config(self, models, server=()):
        """`models`: {name: its policies}."""
        path = self.work + "/m/a.rows.npy"
        entries = [model_config(name, [path], [8], ["a"], [3.0], **{"gpucache": False, **policies})
                   for name, policies in models.items()]
        return default_config(entries, server={"model_roots": [self.work], **dict(server)},
                              volatile_db={"type": "disabled"})

    def ask(self, stub, model, **policies):
        """(statuses, rows) of a lookup of the stored key and the absent key."""
        result = ask(stub, model, {"a": self.keys}, **policies).results[0]
        return statuses(result), floats(result)

    def check_rows(self, rows, *expected):
        for row, what in zip(rows, expected):
            np.testing.assert_array_equal(row, {"true": self.table.expect(self.keys[:1])[0],
                                                "default": np.full(8, 3.0, np.float32),
                                                "zero": np.zeros(8, np.float32)}[what])


def check_policies(stored, stub):
    both, rows = stored.ask(stub, "memory")
    assert both == [DEFAULTED, DEFAULTED]
    stored.check_rows(rows, "default", "default")
    both, rows = stored.ask(stub, "memory", miss_policy=pb.MISS_POLICY_EXACT)
    assert both == [FOUND, UNKNOWN]
    stored.check_rows(rows, "true", "zero")  # the model's other policy still applies
    both, rows = stored.ask(stub, "memory", miss_policy=pb.MISS_POLICY_THRESHOLD,
                            unknown_key_policy=pb.UNKNOWN_KEY_POLICY_DEFAULT_ROW)
    assert both == [FOUND, UNKNOWN]
    stored.check_rows(rows, "true", "default")
    assert stored.ask(stub, "waiting")[0] == [DEFAULTED, DEFAULTED]  # it waits for max_wait_us: 0
    with refused(grpc.StatusCode.NOT_FOUND, "'a'", str(stored.ABSENT)):
        stored.ask(stub, "waiting", max_wait_us=int(PATIENCE_S * 1e6))
    both, rows = stored.ask(stub, "waiting", max_wait_us=int(PATIENCE_S * 1e6),
                            unknown_key_policy=pb.UNKNOWN_KEY_POLICY_ZERO)
    assert both == [FOUND, UNKNOWN]
    stored.check_rows(rows, "true", "zero")
    for model in ("plain", "runtime"):
        both, rows = stored.ask(stub, model)
        assert both == [FOUND, UNKNOWN]
        stored.check_rows(rows, "true", "zero" if model == "runtime" else "default")


def test_policies_when_set_for_a_model_then_they_apply_unless_the_request_sets_others(daemon, work):
    stored = Stored(work)
    policies = {"memory": {"miss_policy": "memory_only", "unknown_key_policy": "zero"},
                "waiting": {"miss_policy": "wait", "unknown_key_policy": "error"},
                "plain": {}}
    one = daemon(stored.config(policies))
    one.load("runtime", work + "/m")
    stub = one.stub()
    # A model without entry in models[] has the default row zero.
    assert stored.ask(stub, "runtime", unknown_key_policy=pb.UNKNOWN_KEY_POLICY_DEFAULT_ROW)[0] == [
        FOUND, UNKNOWN]
    check_policies(stored, stub)
    one.stop()
    one.start()
    check_policies(stored, one.stub())
    one.load("memory", work + "/m", activate=True)  # also in the next version
    assert stored.ask(one.stub(), "memory")[0] == [DEFAULTED, DEFAULTED]


# ---- reload ------------------------------------------------------------------------------------------

def lines(daemon, message):
    return [line for line in daemon.log().splitlines() if f'msg="{message}"' in line or
            f"msg={message} " in line]


def reload(daemon, config=None, message="reloaded"):
    """Write `config`, if any, and send SIGHUP; the log line that reports the result."""
    if config is not None:
        daemon.write_config(config)
    before = len(lines(daemon, message))
    daemon.send(signal.SIGHUP)
    return until(lambda: lines(daemon, message)[before:], f"a line {message!r}")[0]


REFUSED = ("configuration not reloaded: the new one is invalid, and no part of it is applied; "
           "fix the file and reload again")
RESTART = "options not applied: they need a restart; see keys"


def test_reload_when_options_change_then_they_apply_and_the_log_has_old_and_new_values(daemon, work):
    stored = Stored(work)
    one = daemon(stored.config({"m": {}, "n": {}}))
    stub = one.stub()
    assert stored.ask(stub, "m")[0] == [FOUND, UNKNOWN]
    line = reload(one, stored.config(
        {"m": {"miss_policy": "memory_only"}, "n": {"unknown_key_policy": "error"}},
        server={"keys_max": 2, "tables_max": 1, "slow_request_ms": 0, "keep_versions": 3,
                "model_roots": [work + "/m"], "drain_delay_ms": 2, "log_level": "debug"}))
    for words in ('models[m].miss_policy: \\"threshold\\" -> \\"memory_only\\"',
                  'models[n].unknown_key_policy: \\"default_row\\" -> \\"error\\"',
                  "server.keys_max: 2097152 -> 2", "server.tables_max: 1024 -> 1",
                  "server.slow_request_ms: 10 -> 0", "server.keep_versions: 2 -> 3",
                  "server.drain_delay_ms: 1 -> 2", 'server.log_level: \\"info\\" -> \\"debug\\"'):
        assert words in line, line
    assert lines(one, RESTART) == []
    assert stored.ask(stub, "m")[0] == [DEFAULTED, UNKNOWN]  # remembered as absent since the last lookup
    with refused(grpc.StatusCode.NOT_FOUND, str(stored.ABSENT)):
        stored.ask(stub, "n")
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "3 keys", "limit is 2"):
        ask(stub, "m", {"a": [1, 2, 3]})
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "queries: 2, limit is 1", "set server.tables_max to 2"):
        ask(stub, "m", [pb.TableQuery(), pb.TableQuery()])
    assert one.ctl("slowlog", "get", "-o", "json")[0]
    generate(f"{work}/other", "--tables", 1, "--rows", 10, "--dim", 8)
    with refused(grpc.StatusCode.PERMISSION_DENIED, "model_roots"):
        one.load("other", f"{work}/other")
    for version in (2, 3):
        one.load("m", f"{work}/m", activate=True)
    assert one.versions("m") == {1: "resident", 2: "resident", 3: "active"}
    assert '"keys_max": {"value": 2,' in one.ctl("config", "get")
    assert "applied=nothing" in reload(one)
    line = reload(one, stored.config({"m": {}, "n": {}}))
    assert "server.keys_max: 2 -> 2097152" in line
    assert stored.ask(stub, "m")[0] == [FOUND, UNKNOWN]


def test_reload_when_connection_limits_change_then_they_apply(daemon, work):
    stored = Stored(work)
    one = daemon(stored.config({"m": {}}))
    stub = one.stub()
    many = np.arange(1000)
    assert len(ask(stub, "m", {"a": many}).results[0].key_status) == 1000
    reload(one, stored.config({"m": {}}, server={"request_bytes_max": 4096, "connections_max": 2}))
    with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "4096"):
        ask(one.stub(), "m", {"a": many})
    stored.ask(stub, "m")
    with refused(grpc.StatusCode.UNAVAILABLE):
        stored.ask(one.stub(), "m")  # the third connection
    reload(one, stored.config({"m": {}}, server={"reply_bytes_max": 2048}))
    with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "reply_bytes_max", "2048"):
        ask(one.stub(), "m", {"a": many})
    zipped = {"compression": grpc.Compression.Gzip}
    ask(one.stub(), "m", {"a": many[:2]}, **zipped)
    reload(one, stored.config({"m": {}}, server={"compression": False}))
    with refused(grpc.StatusCode.UNIMPLEMENTED, "compressed"):
        ask(one.stub(), "m", {"a": many}, **zipped)
    reload(one, stored.config({"m": {}}, server={"idle_timeout_ms": 500}))
    until(lambda: one.metrics()['hpsd_connections{listener="grpc"}'] == 0, "idle connections to end")


@pytest.mark.parametrize("n_tables, n_keys, wire_bytes", [(55, 65536, 0), (40, 131072, 41943040)])
def test_reload_when_limits_are_set_to_the_values_in_errors_then_large_batches_succeed(
        daemon, work, n_tables, n_keys, wire_bytes):
    """Batches as large as in papers about HPS. The second one also exceeds the limit of a message."""
    generate(f"{work}/m", "--tables", n_tables, "--rows", 10, "--dim", 1)
    config = default_config(server={"model_roots": [work]})
    one = daemon(config, flags=["--kserve-listen", "127.0.0.1:0"])
    one.load("m", f"{work}/m")
    keys, total = np.zeros(n_keys, "<i8"), n_tables * n_keys
    names = [f"feature_{i}" for i in range(n_tables)]
    tensors = kserve_pb.ModelInferRequest(model_name="m")
    tensors.inputs.add(name="KEYS", datatype="INT64", shape=[1, total])
    tensors.inputs.add(name="NUMKEYS", datatype="INT32", shape=[1, n_tables])
    tensors.raw_input_contents.extend([keys.tobytes() * n_tables, np.full(n_tables, n_keys, "<i4").tobytes()])
    by_table = kserve_pb.ModelInferRequest(model_name="m.tables")
    for name in names:
        by_table.inputs.add(name=name, datatype="INT64", shape=[n_keys])
        by_table.raw_input_contents.append(keys.tobytes())
    body, headers = compose([("KEYS", np.zeros((1, total), "<i8")), ("NUMKEYS", np.full((1, n_tables), n_keys, "<i4"))],
                            binary_output=True)

    def http(sent=None):
        connection = http_client.HTTPConnection(one.kserve[0], timeout=PATIENCE_S)
        with contextlib.closing(connection):
            connection.putrequest("POST", "/v2/models/m/infer")
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                connection.putheader(name, value)
            connection.endheaders(sent)
            reply = connection.getresponse()
            return reply.status, reply.read()

    kserve = kserve_grpc.GRPCInferenceServiceStub(one.channel())
    asked = ((lambda: ask(one.stub(), "m", dict.fromkeys(names, keys))),
             (lambda: kserve.ModelInfer(tensors, timeout=PATIENCE_S)),
             (lambda: kserve.ModelInfer(by_table, timeout=PATIENCE_S)))
    if wire_bytes:
        needed = 0
        for call in asked:
            with pytest.raises(grpc.RpcError) as caught:
                call()
            assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            said = re.fullmatch(r"message of (\d+) bytes, the limit is 33554432 bytes; send less in one request, or raise "
                                r"server\.request_bytes_max", caught.value.details())
            assert said and int(said[1]) > wire_bytes, caught.value.details()
            needed = max(needed, int(said[1]))
        status, said = http()  # rejected because of its Content-Length
        assert status == 413 and b"body of %d bytes" % len(body) in said and b"server.request_bytes_max" in said, said
        config["server"]["request_bytes_max"] = max(needed, len(body))
        reload(one, config)
    for call in asked:
        with refused(grpc.StatusCode.INVALID_ARGUMENT, f"{total} keys", "limit is 2097152",
                     f"set server.keys_max to {total}"):
            call()
    status, said = http(body)
    assert status == 400 and b"set server.keys_max to %d" % total in said, said
    config["server"]["keys_max"] = total
    reload(one, config)
    assert len(asked[0]().results) == n_tables
    assert asked[1]().outputs and asked[2]().outputs and http(body)[0] == 200


def test_reload_when_an_option_needs_a_restart_then_it_is_logged_and_other_options_apply(daemon, work):
    stored = Stored(work)
    one = daemon(stored.config({"m": {}}))
    config = stored.config({"m": {"label": "x"}, "new": {}},
                           server={"worker_threads": 3, "log_format": "json", "keys_max": 1})
    config["persistent_db"]["num_threads"] = 4
    for _ in range(2):  # after each reload, until the restart
        reload(one, config)
        line = lines(one, RESTART)[-1]
        assert "level=warn" in line
        keys = re.search('keys="([^"]*)"', line).group(1).split(", ")
        assert sorted(keys) == ["models[m].label", "models[new]", "persistent_db.num_threads",
                                "server.log_format", "server.worker_threads"]
    assert len(lines(one, RESTART)) == 2
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "limit is 1"):
        stored.ask(one.stub(), "m")
    assert sorted(m.model for m in one.admin_stub().ListModels(
        admin_pb.ListModelsRequest(), timeout=PATIENCE_S).models) == ["m"]


def test_reload_when_the_file_is_invalid_then_no_option_changes(daemon, work):
    stored = Stored(work)
    one = daemon(stored.config({"m": {"unknown_key_policy": "zero"}}))
    stub = one.stub()

    def unchanged(line, *words):
        assert "level=error" in line
        for word in words:
            assert word in line, line
        assert one.get("/readyz") == (200, "ready\n")
        both, rows = stored.ask(stub, "m")
        assert both == [FOUND, UNKNOWN]
        stored.check_rows(rows, "true", "zero")

    wrong = stored.config({"m": {}}, server={"keys_max": 1, "queue_ms_max": 60001})
    unchanged(reload(one, wrong, REFUSED), "server.queue_ms_max", "60001")
    wrong = stored.config({"m": {}}, server={"keys_max": 1, "keys_maxx": 1, "tables_max": 0})
    unchanged(reload(one, wrong, REFUSED), "keys_maxx")
    assert "server.tables_max: got 0" in lines(one, "configuration invalid: see error")[-1]
    with open(one.config_file, "w", encoding="utf-8") as f:
        f.write('{"models": [')
    unchanged(reload(one, None, REFUSED), os.path.basename(one.config_file))
    os.remove(one.config_file)
    unchanged(reload(one, None, REFUSED), os.path.basename(one.config_file))
    reload(one, stored.config({"m": {}}))
    stored.check_rows(stored.ask(stub, "m")[1], "true", "default")
    assert lines(one, "reloaded")[0].count("->") == 1


def test_reload_when_a_key_is_repeated_then_warns_and_uses_the_last_value(daemon, work):
    stored = Stored(work)
    one = daemon(stored.config({"m": {}}))
    text = json.dumps(stored.config({"m": {"unknown_key_policy": "zero"}}))
    with open(one.config_file, "w", encoding="utf-8") as f:
        f.write(text.replace('"unknown_key_policy"', '"unknown_key_policy": "error", "unknown_key_policy"'))
    reload(one)
    stored.check_rows(stored.ask(one.stub(), "m")[1], "true", "zero")
    [line] = [line for line in one.log().splitlines() if "duplicate key" in line]
    assert "level=warn" in line and "models[0].unknown_key_policy" in line


def test_reload_when_the_token_changes_then_new_connections_need_it_and_removing_it_is_refused(work):
    stored = Stored(work)
    for name in ("one", "two"):
        with open(f"{work}/{name}", "w", encoding="ascii") as f:
            f.write(f"secret-{name}\n")

    def pinged(daemon, token):
        with grpc.insecure_channel(daemon.admin, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            admin_grpc.AdminStub(channel).Ping(admin_pb.PingRequest(), timeout=PATIENCE_S, metadata=[
                ("authorization", f"Bearer secret-{token}")])

    config = stored.config({"m": {}}, server={"admin_token_file": f"{work}/one"})
    with Daemon(work, config, flags=["--admin-listen", "127.0.0.1:0"]) as one:
        pinged(one, "one")
        config["server"].update(admin_token_file=f"{work}/absent", keys_max=1)
        assert f"{work}/absent" in reload(one, config, REFUSED)
        stored.ask(one.stub(), "m")  # keys_max was not changed either
        pinged(one, "one")
        config["server"].update(admin_token_file=f"{work}/two")
        assert "server.admin_token_file" in reload(one, config)
        pinged(one, "two")
        with refused(grpc.StatusCode.UNAUTHENTICATED):
            pinged(one, "one")
        del config["server"]["admin_token_file"]
        assert "admin_token_file" in reload(one, config, REFUSED)
        with refused(grpc.StatusCode.UNAUTHENTICATED):
            pinged(one, "one")


def test_reload_when_the_log_level_was_set_by_hpsctl_then_the_file_overrides_it(daemon, work):
    one = daemon(Stored(work).config({"m": {}}))
    one.ctl("log-level", "debug")
    assert '\\"debug\\" -> \\"info\\"' in reload(one)
    assert "applied=nothing" in reload(one)


def test_reload_when_repeated_under_load_then_no_call_fails(daemon, work):
    stored = Stored(work)
    configs = [stored.config({"m": {"unknown_key_policy": policy}},
                             server={"keys_max": keys, "idle_timeout_ms": 60000 + keys,
                                     "model_roots": [work, f"{work}/{keys}"]})
               for policy, keys in (("zero", 1000), ("default_row", 1000000))]
    one = daemon(configs[0])
    failures, n_calls, ended = [], [0], threading.Event()

    def caller():
        stub, admin = one.stub(), one.admin_stub()
        while not ended.is_set():
            try:
                both, rows = stored.ask(stub, "m")
                assert both == [FOUND, UNKNOWN] and rows[1][0] in (0.0, 3.0), (both, rows)
                admin.GetConfig(admin_pb.GetConfigRequest(), timeout=PATIENCE_S)
                n_calls[0] += 1
            except (grpc.RpcError, AssertionError) as error:
                failures.append(repr(error))
                return

    threads = [threading.Thread(target=caller) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for i in range(20):
            before, keys = n_calls[0], (1000000, 1000)[i % 2]
            one.write_config(configs[(i + 1) % 2])
            one.send(signal.SIGHUP)
            wanted = f'"keys_max": {{"value": {keys},'
            until(lambda wanted=wanted: wanted in one.ctl("config", "get"), wanted)
            assert one.load("m", f"{work}/m", dry_run=True).plan.tables
            until(lambda before=before: n_calls[0] > before or failures, "calls")
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert failures == []


# ---- the audit log -----------------------------------------------------------------------------------

def test_audit_log_when_calls_end_then_has_identity_and_method_and_sighup_reopens_the_file(daemon, work):
    path = f"{work}/audit.log"

    def lines(of=path):
        with open(of, encoding="utf-8") as f:
            return [re.sub(r"^ts=\S+ ", "", line.rstrip("\n")) for line in f]

    generate(f"{work}/v1", "--tables", 1, "--rows", 10, "--dim", 4)
    one = daemon(default_config(server={"model_roots": [work], "audit_log": path, "log_level": "error"}))
    me = f'peer="unix:pid={os.getpid()},uid={os.getuid()},gid={os.getgid()}"'
    admin = one.admin_stub()
    one.load("m", f"{work}/v1", lineage="a\nb\u202e")
    admin.GetConfig(admin_pb.GetConfigRequest(), timeout=PATIENCE_S)
    admin.ListModels(admin_pb.ListModelsRequest(), timeout=PATIENCE_S)  # the audit log omits ListModels
    with refused(grpc.StatusCode.INVALID_ARGUMENT):
        admin.CreateSnapshot(admin_pb.CreateSnapshotRequest(directory="h" * 129), timeout=PATIENCE_S)
    start, load, config, snapshot = lines()
    assert start.startswith("method=start ")
    assert load.startswith(f'method=LoadModel model=m version=1 who=user:{os.getuid()} ') and me in load
    assert load.endswith(f' result=done code=0 error="" request.model=m request.directory={work}/v1 '
                         'request.lineage="a\\nb\\u202e"')
    assert config.startswith("method=GetConfig ") and "result=done code=0" in config and me in config
    assert "method=CreateSnapshot " in snapshot and "result=failed code=3" in snapshot
    assert snapshot.endswith(" request.directory=" + "h" * 125 + "...")
    assert os.stat(path).st_mode & 0o777 == 0o600
    os.rename(path, path + ".1")
    with open(one.config_file, "a", encoding="utf-8") as f:
        f.write("not JSON")
    one.send(signal.SIGHUP)
    until(lambda: os.path.exists(path) and len(lines()) == 1, "the next file, though the reload fails")
    assert "method=reload " in lines()[0] and "result=failed" in lines()[0]
    admin.ResetSlowLog(admin_pb.ResetSlowLogRequest(), timeout=PATIENCE_S)
    assert len(lines(path + ".1")) == 4 and "method=ResetSlowLog " in lines()[-1]
    one.stop()
    assert lines()[-1].startswith("method=stop ")
