# SPDX-License-Identifier: Apache-2.0
"""What hpsctl makes of what a server says of its updates: exit codes, reasons, tables. The servers are made up; those of
flesh and blood are in test_updates.py and its siblings. How replies are judged in all cases is in
tests/unit/client/test_update_wait.c."""
import json
import os
import re
import subprocess

import grpc
import pytest

from made_up import Admin, now_ms, partition, refusal, version
from rig import BIN, PATIENCE_S, REPORT

TOPIC = "hps_et.m.t"


def ctl(server, *args, code=0):
    """(stdout, stderr)"""
    done = subprocess.run([os.path.join(BIN, "hpsctl"), "--addr", server.address, *map(str, args)],
                          capture_output=True, text=True, timeout=PATIENCE_S * 2, check=False)
    assert done.returncode == code, f"exit {done.returncode}, expected {code}\n{done.stdout}{done.stderr}"
    assert not REPORT.search(done.stderr), done.stderr
    return done.stdout, done.stderr


# ---- wait-for ------------------------------------------------------------------------------------------

def test_wait_for_now_when_proved_later_then_visible_only_then():
    old = now_ms() - 1000
    behind = [version([partition(TOPIC, as_of_unix_ms=old)], as_of_unix_ms=old)]
    with Admin(behind, behind, behind, [version([partition(TOPIC)])]) as server:
        assert ctl(server, "wait-for", "now") == ("visible\n", "")
    assert [request.refresh for request in server.requests] == [True, False, False, False]


def test_wait_for_now_when_the_log_does_not_answer_then_asked_again_and_told_at_the_deadline():
    refusals = []
    lost = [version([partition(TOPIC, as_of_unix_ms=1)], as_of_unix_ms=1, connected=False,
                    connection_error="Authentication failed")]

    def mended(request):
        """The log answers the third time."""
        if request.refresh and len(refusals) < 2:
            refusals.append(request)
            return grpc.StatusCode.UNAVAILABLE
        return [version([partition(TOPIC)])] if request.refresh else lost

    with Admin(mended, mended) as server:
        ctl(server, "--timeout", PATIENCE_S, "wait-for", "now")
    assert len(refusals) == 2
    with Admin(lambda request: grpc.StatusCode.UNAVAILABLE if request.refresh else lost) as server:
        out, error = ctl(server, "--timeout", 0.2, "wait-for", "now", "-o", "json", code=4)
    assert "Authentication failed" in error and "version 1 of model" in error, error
    told = json.loads(out)
    assert told["visible"] is False and told["reason"] in error


def test_wait_for_when_it_may_be_another_topic_then_the_log_is_asked_again():
    asked = []

    def says(request):
        """The first refresh was answered by what had been asked before it."""
        asked.extend([request] if request.refresh else [])
        return [version([partition(TOPIC, same_topic_unix_ms=1 if len(asked) < 2 else now_ms())])]

    with Admin(says) as server:
        ctl(server, "--timeout", PATIENCE_S, "wait-for", "now")
        assert len(asked) == 2
        asked.clear()
        ctl(server, "--timeout", PATIENCE_S, "wait-for", f"{TOPIC}:0:5")
        assert len(asked) == 2


@pytest.mark.parametrize("says, words", (
    (dict(frozen=True), ("version 1 of model \"m\" is frozen", "updates seek --model m --version 1")),
    (dict(active=False), ("no active version", "hpsctl activate")),
    (dict(partitions=[], as_of_unix_ms=0), ("has no topic hps_et.m", "may not see it")),
    (dict(partitions=[partition(TOPIC, state="paused", as_of_unix_ms=1)], as_of_unix_ms=1), ("is paused", "resume")),
    (dict(partitions=[partition(TOPIC, state="gap", as_of_unix_ms=1, reason="retention")], as_of_unix_ms=1),
     ("is stopped at a gap", "retention", "accept-gap")),
))
def test_wait_for_now_when_it_cannot_become_so_then_exit_5_at_once(says, words):
    with Admin([version(**{"partitions": [partition(TOPIC)], **says})]) as server:
        _, error = ctl(server, "--timeout", PATIENCE_S * 2, "wait-for", "now", code=5)
    assert all(word in error for word in words), error
    assert len(server.requests) == 1


def test_wait_for_now_when_records_were_refused_then_exit_5_unless_allowed():
    says = [version([partition(TOPIC)], rejected_record_count=2,
                    rejected_records=[refusal(TOPIC, 3, age_s=30), refusal(TOPIC, 4, age_s=20)])]
    with Admin(says) as server:
        _, error = ctl(server, "wait-for", "now", code=5)
        assert f"{TOPIC}:0:4 was refused" in error and "2 records" in error and "--allow-refused" in error
        out, error = ctl(server, "wait-for", "now", "--allow-refused")
        assert out == "visible\n" and f"{TOPIC}:0:4 was refused" in error
        assert ctl(server, "wait-for", "now", "--refused-within", 10) == ("visible\n", "")


def test_wait_for_a_record_when_refused_or_passed_over_or_not_read_then_said():
    with Admin([version([partition(TOPIC)], rejected_record_count=1, rejected_records=[refusal(TOPIC, 4)])]) as server:
        _, error = ctl(server, "wait-for", f"{TOPIC}:0:4", code=5)
        assert "rows of 20 bytes, expected 16" in error
        ctl(server, "wait-for", f"{TOPIC}:0:5")
    with Admin([version([partition(TOPIC, passed_over_offset=4, passed_over_end_offset=6)])]) as server:
        _, error = ctl(server, "wait-for", f"{TOPIC}:0:5", code=5)
        assert "passed over" in error
        ctl(server, "wait-for", f"{TOPIC}:0:6")
        _, error = ctl(server, "--timeout", 0.2, "wait-for", "hps_et.m:0:0", code=4)
        assert "hps_et.m is not read" in error
        _, error = ctl(server, "--timeout", 0.2, "wait-for", f"{TOPIC}:0:10", code=4)
        assert "is not applied" in error
        assert {request.model for request in server.requests} == {"m"}  # that of the topic
        for wrong in (("other:0:1",), (f"{TOPIC}:0:1", "--model", "n")):
            ctl(server, "wait-for", *wrong, code=2)


def test_wait_for_a_record_when_it_may_be_another_topic_then_never_visible():
    with Admin([version([partition(TOPIC, state="gap", reason="the topic was made anew")])]) as server:
        _, error = ctl(server, "wait-for", f"{TOPIC}:0:5", code=5)
        assert "made anew" in error
    with Admin([version([partition(TOPIC, same_topic_unix_ms=0)])]) as server:  # not known since its start
        ctl(server, "--timeout", 0.2, "wait-for", f"{TOPIC}:0:5", code=4)


def test_wait_for_when_there_is_no_such_model_then_exit_5():
    with Admin(grpc.StatusCode.NOT_FOUND) as server:
        ctl(server, "wait-for", "now", "--model", "ghost", code=5)


# ---- updates -------------------------------------------------------------------------------------------

def rows_of(text):
    """The table, as dicts."""
    lines = text.split("\n\n")[-1 if "?:" not in text else -2].splitlines()
    columns = [(match[0], match.start()) for match in re.finditer(r"\S+(?: \S+)*", lines[0])]
    assert [name for name, _ in columns] == ["MODEL", "VERSION", "TOPIC", "PARTITION", "STATE", "OFFSET", "END", "LAG",
                                             "LAG S", "RECORDS/S", "REASON"]
    found = []
    for line in lines[1:]:
        cells = re.split(r" {2,}", line.strip(), maxsplit=len(columns) - 1)
        found.append(dict(zip((name for name, _ in columns), cells)))
    return found


def test_updates_when_shown_then_only_what_is_known():
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
    assert f"newest refused record: {TOPIC}:0:5, 3." in out and "rows of 20 bytes, expected 16 (width)" in out
    assert "updates seek --model m --version 1" in out
    rows = rows_of(out)
    assert [row["STATE"] for row in rows] == ["running", "running", "starting", "held", "frozen"]
    assert [row["LAG"] for row in rows] == ["2", "2?", "-", "0", "0"]
    assert "has not answered for more than 2 s" in out.splitlines()[-1]
    assert [(row["OFFSET"], row["END"]) for row in rows][:3] == [("10", "12"), ("10", "12"), ("-", "-")]
    assert rows[0]["RECORDS/S"] in ("7.2", "7.3")
    assert rows[1]["REASON"] == "the leader does not answer"
    assert rows[3]["REASON"] == "no room on the disk"
    assert "another lineage" in rows[4]["REASON"] and "records 3 to 9 were passed over" in rows[4]["REASON"]


def test_updates_when_not_connected_or_without_topics_then_said_why():
    with Admin([version([], connected=False, connection_error="no route to host", as_of_unix_ms=0)]) as server:
        out, _ = ctl(server, "updates")
    assert "NOT CONNECTED" in out and "not connected: no route to host" in out
    assert "no topic hps_et.m or hps_et.m.<table>" in out
    assert "?:" not in out


# ---- changes -------------------------------------------------------------------------------------------

@pytest.mark.parametrize("verb", (["seek", "--to", "latest"], ["pause"], ["resume"], ["accept-gap"]))
def test_updates_when_nothing_is_named_then_refused_unless_all(verb):
    with Admin([version([partition(TOPIC)])]) as server:
        for args in ([], ["--all", "--model", "m"]):
            _, error = ctl(server, "updates", *verb, *args, code=2)
            assert "--all" in error
        assert server.changes == []
        for filters in (["--all"], ["--model", "m"], ["--version", 1], ["--topic", TOPIC], ["--partition", 0]):
            assert ctl(server, "updates", *verb, *filters) == (f"{verb[0]}: 3 partitions\n", "")
    assert len(server.changes) == 5


def test_seek_when_partitions_are_paused_then_told_how_to_resume():
    parts = [partition(TOPIC, number, state=state) for number, state in enumerate(("paused", "running", "paused"))]
    with Admin([version(parts)]) as server:
        out, _ = ctl(server, "updates", "seek", "--to", "latest", "--model", "m")
        assert "2 of them are paused and stay so: hpsctl updates resume --model m lets them go on" in out
        out, _ = ctl(server, "updates", "seek", "--to", "latest", "--topic", TOPIC, "--partition", 2)
        assert f"1 of them is paused and stays so: hpsctl updates resume --topic {TOPIC} --partition 2" in out
        out, error = ctl(server, "updates", "seek", "--to", "latest", "--version", 1, "-o", "json")
        assert json.loads(out)["partition_count"] == 3 and "hpsctl updates resume --version 1" in error


@pytest.mark.parametrize("args", (("activate", "m", "1"), ("rollback", "m")))
def test_switch_when_the_version_is_frozen_then_warned_with_the_way_on(args):
    frozen = [version([partition(TOPIC)], frozen=True)]
    with Admin(frozen) as server:
        out, error = ctl(server, *args)
        assert "version 1 is active" in out
        assert "warning: version 1 of model \"m\" is frozen" in error
        assert "hpsctl updates seek --model m --version 1" in error
        out, error = ctl(server, *args, "-o", "json")
        assert json.loads(out)["version"] == 1 and "frozen" in error
    assert [(request.model, request.version) for request in server.requests] == [("m", 1)] * 2
    with Admin(grpc.StatusCode.UNAVAILABLE, frozen) as server:  # the log does not answer
        assert "is frozen" in ctl(server, *args)[1]
    for fine in ([version([partition(TOPIC)])], grpc.StatusCode.FAILED_PRECONDITION):
        with Admin(fine) as server:
            assert ctl(server, *args)[1] == ""
