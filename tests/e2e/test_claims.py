# SPDX-License-Identifier: Apache-2.0
"""Tests claims.py, the oracle of the chaos test of Kafka. It must find the lies in made-up histories, and no lies in
true ones; a chaos test with an oracle that finds nothing would prove nothing."""
import math

import numpy as np
import pytest

import claims
from claims import DIM, FOUND, UNKNOWN, History, Judge, Reach, Sight, numbers_in, row_of
from rig import SANITIZER

pytestmark = pytest.mark.skipif(SANITIZER != "", reason="nothing of ours runs in it")

FILE_KEYS = 10
BOUND_S, MARGIN_S = 3, 0.1
TOPIC, OTHER = "hps_et.m.a", "hps_et.m.b"
P0, P1, Q0 = (TOPIC, 0), (TOPIC, 1), (OTHER, 0)


class Made:
    """A history of one model, m, with tables a and b, and its judge."""

    def __init__(self):
        self.history, self.reach = History(FILE_KEYS), Reach()
        self.judge = Judge(self.history, self.reach, BOUND_S, MARGIN_S)
        for topic in (TOPIC, OTHER):
            self.history.make(topic, 0)

    def write(self, key, sent, acked=None, place=P0, is_delete=False, table="a", **more):
        one = self.history.write("m", table, key, is_delete, place, sent, **more)
        one.acked = math.inf if acked is None else acked
        return one

    def lies(self):
        """The kinds of the lies since the last call."""
        found = [lie.kind for lie in self.judge.lies]
        self.judge.lies.clear()
        return found


@pytest.fixture(name="made")
def history_and_judge():
    return Made()


def sight(begun, version=1, ended=None, b=(), **rows):
    """A Sight of keys k0, k1, ...: numbers of writes; None: no row."""
    return Sight("m", version, begun, begun + 0.01 if ended is None else ended,
                 {"a": {int(name[1:]): number for name, number in rows.items()}, "b": dict(b)})


# ---- rows ----------------------------------------------------------------------------------------------

def test_numbers_in_when_rows_are_valid_then_returns_the_numbers_of_their_writes():
    rows = np.array([row_of(3, 7), row_of(4, -2), [claims.DEFAULT] * DIM])
    assert numbers_in([3, 4, 5], [FOUND, FOUND, UNKNOWN], rows) == [7, -2, None]


@pytest.mark.parametrize("rows, status", (
    ([row_of(3, 7)[:2].tolist() + row_of(3, 8)[2:].tolist()], FOUND), ([row_of(4, 7)], FOUND),
    ([[np.nan] * DIM], FOUND), ([row_of(3, 7)], UNKNOWN), ([[0] * DIM], UNKNOWN)))
def test_numbers_in_when_rows_are_torn_or_foreign_or_have_a_wrong_status_then_raises(rows, status):
    with pytest.raises(ValueError, match="no write has the row"):
        numbers_in([3], [status], np.array(rows, "<f4"))


def test_judge_when_no_visible_write_made_a_row_then_records_a_lie(made):
    put, gone = made.write(1, 10, 10.1), made.write(2, 10, 10.1, is_delete=True)
    secret, aborted = made.write(3, 10, is_open=True), made.write(4, 10, is_open=True)
    secret.seen_from = secret.acked = 20
    made.judge.looked_up(sight(11, k1=put.number, k2=None, k3=-1, k5=-1, k10=None), 0)
    made.judge.looked_up(sight(20, k3=secret.number), 0)
    assert made.lies() == []
    for wrong in ({"k1": None}, {"k5": None}, {"k2": gone.number}, {"k5": put.number}, {"k1": 99}, {"k10": -1},
                  {"k1": -2}, {"k3": secret.number}, {"k4": aborted.number}):
        made.judge.looked_up(sight(11, **wrong), 0)
        assert made.lies() == ["row"], wrong
    made.judge.looked_up(sight(21, k4=aborted.number), 0)
    assert made.lies() == ["row"]


# ---- freshness -----------------------------------------------------------------------------------------

def test_judge_when_a_row_is_older_than_max_staleness_then_records_a_lie(made):
    old, new = made.write(1, 10, 10.1), made.write(1, 12, 12.5)
    for begun in (11, 13.4):
        made.judge.looked_up(sight(begun, k1=old.number), 1000)
    made.judge.looked_up(sight(99, k1=new.number), 1000)
    made.judge.looked_up(sight(99, k1=old.number), 0)  # claims nothing
    assert made.lies() == []
    made.judge.looked_up(sight(13.6, k1=old.number), 1000)
    made.judge.looked_up(sight(11.2, k1=-1), 1000)
    assert made.lies() == ["max_staleness_ms"] * 2


def test_judge_when_a_delete_is_lost_then_records_a_lie(made):
    put = made.write(1, 10, 10.1)
    gone = made.write(1, 12, 12.1, is_delete=True)
    again = made.write(1, 14, 14.1)
    made.judge.looked_up(sight(13, k1=None), 100)
    made.judge.looked_up(sight(13, k1=again.number, ended=14), 100)  # the write arrived during the lookup
    assert made.lies() == []
    made.judge.looked_up(sight(13, k1=put.number), 100)
    made.judge.looked_up(sight(15, k1=None), 100)
    made.judge.looked_up(sight(15, k1=put.number), 100)
    assert made.lies() == ["max_staleness_ms"] * 3
    assert gone.number < again.number


def test_judge_when_a_write_was_not_acknowledged_then_accepts_the_row_before_and_after_it(made):
    old, lost = made.write(1, 10, 10.1), made.write(1, 11)
    made.judge.looked_up(sight(50, k1=old.number), 100)
    made.judge.looked_up(sight(50, k1=lost.number), 100)
    assert made.lies() == []


def test_judge_when_a_write_is_in_a_transaction_then_requires_it_after_the_commit(made):
    one = made.write(1, 10, is_open=True)
    made.judge.looked_up(sight(15, k1=-1), 100)
    one.seen_from, one.acked = 20, 20.5
    made.judge.looked_up(sight(20.4, k1=-1), 100)
    assert made.lies() == []
    made.judge.looked_up(sight(20.7, k1=-1), 100)
    assert made.lies() == ["max_staleness_ms"]


def test_judge_when_staleness_is_too_small_or_missing_then_records_a_lie(made):
    made.write(1, 10, 10.1)
    made.judge.staleness(sight(15, k1=-1), 4.95, 15)
    made.judge.staleness(sight(15, k1=-1), math.inf, 15)
    assert made.lies() == []
    made.judge.staleness(sight(15, k1=-1), 4.7, 15)
    made.judge.staleness(sight(15, k1=1), None, 15)
    assert made.lies() == ["staleness"] * 2


def test_judge_when_as_of_and_lag_are_of_one_partition_then_checks_only_its_rows(made):
    made.write(1, 10, 10.1, P0), made.write(2, 10, 10.1, P1)
    half = sight(20, k1=-1, k2=2)
    made.judge.as_of(half, 19, 20, P1)
    made.judge.lag(half, P1, 0, 0.5, 20, "metrics")
    made.judge.lag(half, P0, 1, 9.95, 20, "metrics")
    made.judge.lag(half, P0, 0, math.inf, 12, "metrics")  # more recent than bound_s
    made.judge.lag(half, P0, None, None, 20, "metrics")
    made.judge.as_of(half, 10.1, 20)
    assert made.lies() == []
    made.judge.as_of(half, 19, 20, P0)
    made.judge.as_of(half, 19, 20)
    made.judge.lag(half, P0, 0, 9.7, 20, "metrics")
    assert made.lies() == ["as_of", "as_of", "lag", "lag_seconds"]


# ---- exit codes ----------------------------------------------------------------------------------------

def test_judge_when_rows_are_missing_after_wait_for_or_publish_then_records_lies(made):
    one, other = made.write(1, 10, 10.1), made.write(2, 10, 10.1, is_delete=True)
    made.judge.waited(sight(12, k1=-1, k2=-2, version=2), 10.05)  # begun before the writes were acknowledged
    made.judge.waited(sight(12, k1=1, k2=None), 11)
    made.judge.published(sight(12, k1=1, k2=None), [one, other], 9, 11)
    assert made.lies() == []
    made.judge.waited(sight(12, k1=-1, k2=None), 11)
    made.judge.published(sight(12, k1=1, k2=-1), [one, other], 9, 11)
    made.judge.published(sight(12, k1=-1, k2=None), [one, other], 9, 11)
    assert made.lies() == ["wait-for", "publish", "publish"]


def test_judge_when_an_activated_version_lacks_old_updates_then_records_a_lie(made):
    made.write(1, 10, 10.1)
    behind, before = sight(20, version=2, k1=-2), sight(20, version=1, k1=1)
    made.judge.activated(behind, before, 10, 20)  # more recent than the allowed lag
    made.judge.activated(behind, sight(20, version=1, k1=-1), 5, 20)  # the other version lacks it, too
    assert made.lies() == []
    made.judge.activated(behind, before, 5, 20)
    assert made.lies() == ["activate"]


# ---- deleted topics, gaps and facts ----------------------------------------------------------------------

def test_judge_when_a_topic_is_recreated_then_requires_only_updates_of_the_new_one(made):
    old = made.write(1, 10, 10.1)
    assert made.history.last("m", "a", 1) is old
    made.history.unmake(TOPIC, 20)
    assert made.history.last("m", "a", 1) is None
    made.judge.looked_up(sight(20.5, k1=-1), 100)
    made.history.make(TOPIC, 21)
    new = made.write(1, 21, 21.1)
    made.judge.looked_up(sight(21.15, k1=-1), 100)  # the log has only the new write, which is too recent
    made.judge.looked_up(sight(21.3, k1=new.number), 100)
    assert made.lies() == []
    made.judge.looked_up(sight(21.3, k1=old.number), 100)
    made.judge.waited(sight(21.3, k1=old.number), 21.2)
    made.judge.as_of(sight(21.3, k1=old.number), 21.15, 21.3)
    assert made.lies() == ["max_staleness_ms", "wait-for", "as_of"]


def test_judge_when_a_partition_or_topic_is_new_then_requires_its_acknowledged_updates(made):
    added, first = (TOPIC, 7), ("hps_et.m.c", 0)
    made.history.make(first[0], 20)
    made.write(1, 20, 20.1, added), made.write(2, 20, 20.1, first)
    made.judge.looked_up(sight(21.1, k1=-1, k2=-1), 1000)
    assert made.lies() == []
    made.judge.looked_up(sight(21.2, k1=-1, k2=2), 1000)
    made.judge.looked_up(sight(21.2, k1=1, k2=-1), 1000)
    assert made.lies() == ["max_staleness_ms"] * 2


def test_judge_when_a_topic_is_deleted_after_the_lookup_then_requires_its_updates(made):
    made.write(1, 10, 10.1)
    made.history.unmake(TOPIC, 20)
    made.judge.looked_up(sight(19, k1=-1), 100)
    assert made.lies() == ["max_staleness_ms"]


def test_judge_when_a_gap_is_accepted_then_only_earlier_updates_of_its_partition_may_be_missing(made):
    made.write(1, 10, 10.1, P0), made.write(2, 10, 10.1, P1)
    made.history.accept(*P0, 12)
    made.judge.looked_up(sight(13, k1=-1, k2=2), 100)
    assert made.lies() == []
    made.judge.looked_up(sight(11, k1=-1, k2=2), 100)
    made.judge.looked_up(sight(13, k1=-1, k2=-1), 100)
    made.write(1, 14, 14.1, P0)
    made.judge.looked_up(sight(15, k1=-1, k2=2), 100)
    assert made.lies() == ["max_staleness_ms"] * 3


def test_judge_when_a_claim_is_newer_than_the_start_of_a_fact_then_records_a_lie(made):
    fact = made.judge.fact("frozen", "m", 10, versions=[1])
    made.judge.looked_up(sight(10.5, k1=-1), 1000)  # as of a time before the fact
    made.judge.as_of(sight(15, k1=-1), 10.1, 15)  # hpsd noticed the freeze a moment later
    made.judge.as_of(sight(15, k1=-1), 12.9, 15, P0)  # and its partition later still
    made.judge.looked_up(sight(15, version=2, k1=-2), 1000)
    made.judge.staleness(sight(15, k1=-1), math.inf, 15)
    assert made.lies() == []
    made.judge.looked_up(sight(15, k1=-1), 1000)
    made.judge.staleness(sight(15, k1=-1), 3, 15)
    made.judge.waited(sight(15, k1=-1), 14)
    made.judge.state("m", 1, P0, "running", 15, 15.1, "updates")
    assert made.lies() == ["max_staleness_ms", "staleness", "wait-for", "state"]
    made.judge.state("m", 1, P0, "frozen", 15, 15.1, "updates")
    fact.ended = 16
    made.judge.looked_up(sight(17, k1=-1), 100)
    made.judge.looked_up(sight(15.9, ended=16.1, k1=-1), 100)  # the fact may have ended before the lookup
    assert made.lies() == []


def test_judge_when_a_fact_is_of_one_topic_then_it_does_not_apply_to_other_topics(made):
    made.judge.fact("made anew", "m", 10, topic=OTHER)
    made.judge.as_of(sight(15, k1=-1), 15, 15, P0)
    made.judge.state("m", 1, Q0, "running", 15, 15.1, "updates")  # a state claims no freshness
    assert made.lies() == []
    made.judge.as_of(sight(15, k1=-1), 15, 15)
    made.judge.as_of(sight(15, k1=-1), 15, 15, Q0)
    assert made.lies() == ["as_of", "as_of"]


# ---- leaders -------------------------------------------------------------------------------------------

def test_judge_when_a_source_is_up_with_an_unreachable_leader_then_records_a_lie(made):
    for place, can_be, at in ((P0, True, 0), (P1, True, 0), (P0, False, 10), (P0, True, 20)):
        made.reach.mark(place, can_be, at)
    for begun in (9, 12, 19.8, 25):  # 19.8: hpsd may have reached the leader before the test knew
        made.judge.up("m", [P0, P1], begun, begun + 0.1, "metrics")
    made.judge.settle(100, 1)
    assert made.lies() == []
    made.judge.up("m", [P0, P1], 15, 15.1, "metrics")
    made.judge.up("m", [P1], 15, 15.1, "metrics")
    made.judge.settle(16, 1)
    assert made.lies() == []  # it is not known yet which leaders were reachable
    made.judge.settle(17, 1)
    assert made.lies() == ["up"]
