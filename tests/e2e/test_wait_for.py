# SPDX-License-Identifier: Apache-2.0
"""How the tools report update states of fake servers: exit codes, reasons and tables. How calls of WaitForUpdates end,
with stock grpcio. tests/unit/server/model/test_wait.c and the files test_updates*.py test which updates are visible."""
import hashlib
import json
import os
import re
import signal
import subprocess

import grpc
import numpy as np
import pytest

from made_up import Admin, now_ms, partition, refusal, version
from rig import BIN, PATIENCE_S, REPORT, Table, default_config, kafka, model_config, pb, refused

TOPIC = "hps_et.m.t"


def ctl(server, *args, code=0):
    """(stdout, stderr)"""
    done = subprocess.run([os.path.join(BIN, "hpsctl"), "--addr", server.address, *map(str, args)],
                          capture_output=True, text=True, timeout=PATIENCE_S * 2, check=False)
    assert done.returncode == code, f"exit {done.returncode}, expected {code}\n{done.stdout}{done.stderr}"
    assert not REPORT.search(done.stderr), done.stderr
    return done.stdout, done.stderr


# ---- wait-for ------------------------------------------------------------------------------------------

def visible(outcome, text=""):
    return lambda request: (outcome, text)


def test_wait_for_when_called_then_its_requests_match_its_arguments():
    with Admin(waits=visible("VISIBLE", "t:0:4 was refused")) as server:
        out, error = ctl(server, "--timeout", 7, "wait-for", "now", "--model", "m", "--version", 3, "--allow-refused",
                         "--refused-within", 5)
        assert (out, error) == ("visible\n", "hpsctl: allowed: t:0:4 was refused\n")
        ctl(server, "wait-for", f"{TOPIC}:2:10")
        for args in ((), ("--version", 2), ("--version", 9)):
            ctl(server, "wait-for", "now", *args, code=5 if 9 in args else 0)
        for wrong in (("other:0:1",), (f"{TOPIC}:0:1", "--model", "n"), (f"{TOPIC}:0",), ("m:0:1",)):
            ctl(server, "wait-for", *wrong, code=2)
    first, second, *rest = server.waited
    assert 6000 < first.max_wait_ms <= 7000
    first.max_wait_ms = second.max_wait_ms = 0
    assert first == pb.WaitForUpdatesRequest(model="m", version=3, goal=pb.WAIT_GOAL_NOW, rejected_within_ms=5000,
                                             rejected_allowed=True)
    assert second == pb.WaitForUpdatesRequest(
        model="m", goal=pb.WAIT_GOAL_RECORDS, rejected_within_ms=60000,
        records=[pb.UpdateRecords(topic=TOPIC, partition=2, first=[10], last=[10])])
    assert [(request.model, request.version) for request in rest] == [("m", 0), ("n", 0), ("n", 2), ("none", 2)]


@pytest.mark.parametrize("said, code", (
    (("NOT_YET", "it waits for partition 3"), 4), (("REJECTED", "it was refused"), 5), (("PASSED_OVER", "passed over"), 5),
    (("FROZEN", "frozen"), 5), (("PAUSED", "paused"), 5), (("GAP", "gap"), 5), (("FAILED", "failed"), 5),
    (("NO_TOPIC", "no topic"), 5), (("UNKNOWN", "restarted"), 5), (("VERSION_ENDED", "unloaded"), 5),
    (grpc.StatusCode.NOT_FOUND, 5), (grpc.StatusCode.FAILED_PRECONDITION, 5), (grpc.StatusCode.DEADLINE_EXCEEDED, 4),
    (grpc.StatusCode.UNAVAILABLE, 1), (grpc.StatusCode.RESOURCE_EXHAUSTED, 1), (grpc.StatusCode.PERMISSION_DENIED, 1),
))
def test_wait_for_when_updates_are_not_visible_then_exit_code_and_reason(said, code):
    with Admin(waits=lambda request: said) as server:
        out, error = ctl(server, "wait-for", "now", "--model", "m", "-o", "json", code=code)
    assert (said[1] if isinstance(said, tuple) else "made up") in error
    if code > 1:
        told = json.loads(out)
        assert told["visible"] is False and told["reason"] in error


# ---- WaitForUpdates, of a server that follows a broker --------------------------------------------------

FOLLOWED = "hps_et.followed.t"
FAR = 10**6  # an offset that is never written


def wait(stub, timeout=PATIENCE_S, metadata=None, **fields):
    request = pb.WaitForUpdatesRequest(**{"model": "followed", "goal": pb.WAIT_GOAL_NOW, **fields})
    return stub.WaitForUpdates(request, timeout=timeout, metadata=metadata)


def record(topic=FOLLOWED, offset=FAR):
    return {"goal": pb.WAIT_GOAL_RECORDS, "records": [pb.UpdateRecords(topic=topic, first=[offset], last=[offset])]}


@pytest.fixture(name="followed", scope="module")
def followed_topic(broker):
    broker.create(FOLLOWED, 1)


@pytest.fixture(name="following")
def following_daemon(followed, broker, daemon, work):
    """An hpsd with versions 1 (active) and 2 of the model."""
    def make(**server):
        table = Table("t", np.arange(10), np.zeros((10, 4), "f4"))
        one = daemon(default_config([model_config("followed", [table.save(f"{work}/files")], [4], ["t"])], update_source={
            "type": "kafka_message_queue", "brokers": broker.bootstrap, "start": "latest"}, server=server))
        one.load("followed", f"{work}/files", version=2)
        return one

    return make


def until_waiting(one, n):
    kafka.until(lambda: one.metrics()["hpsd_update_waits"] == n, f"{n} calls that wait")


def test_wait_when_the_caller_has_the_role_lookup_then_it_is_allowed(following, work):
    with open(f"{work}/roles.json", "w", encoding="utf-8") as f:
        json.dump({"rules": [{"who": [f"token:{name}"], "may": [role], "models": [model]}
                             for name, role, model in (
                                 ("app", "lookup", "followed"), ("ops", "read", "followed"), ("not", "lookup", "n"))],
                   "tokens": [{"name": name, "sha256": hashlib.sha256(name.encode()).hexdigest()}
                              for name in ("app", "ops", "not")]}, f)
    one = following(access=f"{work}/roles.json")
    stub = one.stub()

    def by(name):
        return (("authorization", f"Bearer {name}"),)
    assert wait(stub, metadata=by("app")).outcome == pb.WAIT_OUTCOME_VISIBLE
    for name in ("ops", "not"):
        with refused(grpc.StatusCode.PERMISSION_DENIED, f"token:{name}", "lookup"):
            wait(stub, metadata=by(name))


def test_wait_when_the_request_is_invalid_then_fails_and_when_it_cannot_succeed_then_outcome(following):
    one = following()
    stub = one.stub()
    for code, words, fields in ((grpc.StatusCode.INVALID_ARGUMENT, "goal", {"goal": 0}),
                                (grpc.StatusCode.INVALID_ARGUMENT, "topic", record("hps_et.n.t")),
                                (grpc.StatusCode.NOT_FOUND, "version 9", {"version": 9})):
        with refused(code, words):
            wait(stub, **fields)
    answer = wait(stub, **record("hps_et.followed.gadgets"))
    assert answer.outcome == pb.WAIT_OUTCOME_NO_TOPIC and "no table gadgets" in answer.text
    assert answer.topic == "hps_et.followed.gadgets" and answer.version == 1
    assert wait(stub).outcome == pb.WAIT_OUTCOME_VISIBLE  # the version is connected
    answer = wait(stub, **record(), max_wait_ms=100)
    assert answer.outcome == pb.WAIT_OUTCOME_NOT_YET and f"{FOLLOWED}:0:{FAR} is not applied" in answer.text
    assert (answer.topic, answer.partition, answer.offset) == (FOLLOWED, 0, FAR)
    with refused(grpc.StatusCode.DEADLINE_EXCEEDED):
        wait(stub, **record(), timeout=0.2)
    one.ctl("updates", "pause", "--model", "followed", "--version", 2)
    assert wait(stub, **record(), version=2).outcome == pb.WAIT_OUTCOME_PAUSED


def test_wait_when_the_version_is_unloaded_or_hpsd_stops_then_each_call_ends(following, work):
    one = following()
    stub = one.stub()

    def begin(n, **fields):
        """Start n calls, and wait until hpsd has them."""
        before = one.metrics()["hpsd_update_waits"]
        request = pb.WaitForUpdatesRequest(model="followed", **record(), **fields)
        calls = [stub.WaitForUpdates.future(request, timeout=PATIENCE_S) for _ in range(n)]
        until_waiting(one, before + n)
        return calls

    mark = wait(stub, goal=pb.WAIT_GOAL_READY).mark  # from version 1, but valid for all versions
    follows, named, unloaded, cancelled = *begin(1), *begin(1, version=1), *begin(1, version=2), *begin(1)
    cancelled.cancel()
    until_waiting(one, 3)
    one.load("followed", f"{work}/files", version=3, activate=True)
    assert wait(stub, **record(), mark=mark, max_wait_ms=1).outcome == pb.WAIT_OUTCOME_NOT_YET
    one.ctl("unload", "followed", 2)
    assert unloaded.result().outcome == pb.WAIT_OUTCOME_VERSION_ENDED and "unloaded" in unloaded.result().text
    until_waiting(one, 2)
    one.ctl("updates", "pause", "--model", "followed", "--version", 3)  # the active version
    assert (follows.result().outcome, follows.result().version) == (pb.WAIT_OUTCOME_PAUSED, 3)
    one.ctl("updates", "resume", "--model", "followed", "--version", 3)
    assert not named.done()
    others = begin(63)
    with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "64 calls of this client", "retry"):
        wait(stub, **record())
    one.send(signal.SIGTERM)
    for call in (named, *others):
        assert call.code() is grpc.StatusCode.UNAVAILABLE and "the server stops" in call.details()


def test_wait_for_when_interrupted_then_it_ends_and_the_server_removes_the_call(following):
    one = following()
    with subprocess.Popen([os.path.join(BIN, "hpsctl"), "--addr", one.admin, "--timeout", str(PATIENCE_S), "wait-for",
                           f"{FOLLOWED}:0:{FAR}"], preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)) as ctl_:
        until_waiting(one, 1)
        ctl_.send_signal(signal.SIGINT)
        assert ctl_.wait(PATIENCE_S) in (130, -signal.SIGINT)
    until_waiting(one, 0)


# ---- updates -------------------------------------------------------------------------------------------

def rows_of(text):
    """The rows of the printed table, as dicts."""
    lines = text.split("\n\n")[-1 if "?:" not in text else -2].splitlines()
    columns = [(match[0], match.start()) for match in re.finditer(r"\S+(?: \S+)*", lines[0])]
    assert [name for name, _ in columns] == ["MODEL", "VERSION", "TOPIC", "PARTITION", "STATE", "OFFSET", "END", "LAG",
                                             "LAG S", "RECORDS/S", "REASON"]
    found = []
    for line in lines[1:]:
        cells = re.split(r" {2,}", line.strip(), maxsplit=len(columns) - 1)
        found.append(dict(zip((name for name, _ in columns), cells)))
    return found


def test_updates_when_values_are_unknown_then_they_are_marked():
    now = now_ms()
    parts = [partition(TOPIC, 0, 10, end_offset=12, lag_record_count=2, records_per_s=7.25, lag_ms=40),
             partition(TOPIC, 1, 10, end_offset=12, lag_record_count=2, end_unix_ms=now - 9000, lag_ms=9000,
                       reason="the leader does not answer"),
             partition(TOPIC, 2, -1, state="starting", end_offset=-1, end_unix_ms=0, lag_ms=-1),
             partition(TOPIC, 3, 10, state="held", lag_ms=0),
             partition(TOPIC, 4, 10, state="frozen", lag_ms=-1, passed_over_offset=3, passed_over_end_offset=10)]
    says = [version(parts, held="no room on the disk", records_per_s=12.5, keys_per_s=340, as_of_unix_ms=0, frozen=True,
                    rejected_records=[refusal(TOPIC, 4), refusal(TOPIC, 5, age_s=3)], rejected_record_count=2)]
    with Admin(says) as server:
        out, _ = ctl(server, "updates")
    assert re.search(r"^m 1 \(active\): connected, FROZEN, lineage l, .* 2 bad, as of not known, 12.5 records/s, "
                     r"340.0 keys/s$", out, re.M), out
    assert f"newest rejected record: {TOPIC}:0:5, 3." in out and "rows of 20 bytes, expected 16 (width)" in out
    assert "updates seek --model m --version 1" in out
    rows = rows_of(out)
    assert [row["STATE"] for row in rows] == ["running", "running", "starting", "held", "frozen"]
    assert [row["LAG"] for row in rows] == ["2", "2?", "-", "0", "0"]
    assert "has not replied for more than 2 s" in out.splitlines()[-1]
    assert [(row["OFFSET"], row["END"]) for row in rows][:3] == [("10", "12"), ("10", "12"), ("-", "-")]
    assert rows[0]["RECORDS/S"] in ("7.2", "7.3")
    assert rows[1]["REASON"] == "the leader does not answer"
    assert rows[3]["REASON"] == "no room on the disk"
    assert "another lineage" in rows[4]["REASON"] and "records 3 to 9 were skipped" in rows[4]["REASON"]


def test_updates_when_not_connected_or_without_topics_then_prints_the_reason():
    with Admin([version([], connected=False, connection_error="no route to host", as_of_unix_ms=0)]) as server:
        out, _ = ctl(server, "updates")
    assert "NOT CONNECTED" in out and "not connected: no route to host" in out
    assert "no topic hps_et.m or hps_et.m.<table>" in out
    assert "?:" not in out


# ---- changes -------------------------------------------------------------------------------------------

@pytest.mark.parametrize("verb", (["seek", "--to", "latest"], ["pause"], ["resume"], ["accept-gap"]))
def test_updates_when_no_filter_is_given_then_refused_unless_all(verb):
    with Admin([version([partition(TOPIC)])]) as server:
        for args in ([], ["--all", "--model", "m"]):
            _, error = ctl(server, "updates", *verb, *args, code=2)
            assert "--all" in error
        assert server.changes == []
        for filters in (["--all"], ["--model", "m"], ["--version", 1], ["--topic", TOPIC], ["--partition", 0]):
            assert ctl(server, "updates", *verb, *filters) == (f"{verb[0]}: 3 partitions\n", "")
    assert len(server.changes) == 5


def test_seek_when_partitions_are_paused_then_prints_how_to_resume():
    parts = [partition(TOPIC, number, state=state) for number, state in enumerate(("paused", "running", "paused"))]
    with Admin([version(parts)]) as server:
        out, _ = ctl(server, "updates", "seek", "--to", "latest", "--model", "m")
        assert "2 of them are paused and stay paused; to continue: hpsctl updates resume --model m\n" in out
        out, _ = ctl(server, "updates", "seek", "--to", "latest", "--topic", TOPIC, "--partition", 2)
        assert f"1 of them is paused and stays paused; to continue: hpsctl updates resume --topic {TOPIC} --partition 2" in out
        out, error = ctl(server, "updates", "seek", "--to", "latest", "--version", 1, "-o", "json")
        assert json.loads(out)["partition_count"] == 3 and "hpsctl updates resume --version 1" in error


@pytest.mark.parametrize("args", (("activate", "m", "1"), ("rollback", "m")))
def test_switch_when_the_version_is_frozen_then_warns_with_the_seek_command(args):
    text = "version 1 of model \"m\" is frozen; hpsctl updates seek --model m --version 1"
    with Admin(waits=visible("FROZEN", text)) as server:
        out, error = ctl(server, *args)
        assert "version 1 is active" in out
        assert "warning: version 1 of model \"m\" is frozen" in error
        assert "hpsctl updates seek --model m --version 1" in error
        out, error = ctl(server, *args, "-o", "json")
        assert json.loads(out)["version"] == 1 and "frozen" in error
    assert [(request.model, request.version) for request in server.waited] == [("m", 1)] * 2
    for said in (("VISIBLE", ""), grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND):
        with Admin(waits=lambda _, said=said: said) as server:
            assert ctl(server, *args)[1] == ""
    with Admin(waits=lambda _: grpc.StatusCode.UNAVAILABLE) as server:
        assert "the state of its updates is unknown" in ctl(server, *args)[1]
