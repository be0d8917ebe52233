# SPDX-License-Identifier: Apache-2.0
"""Gaps of updates, each made by a real broker: it is told, serving goes on, and the operator's ways out work.

Retention that has passed and a topic recreated while hpsd is down are in test_updates.py, the way out by a snapshot
in test_snapshot.py.
"""
import time

import numpy as np
import pytest

from rig import Table, until
from test_updates import DIM, KEYS, config_of, hctr, in_every_tier, keyed, states, updates, values, wait_now


def gap(daemon, model, version=None):
    """Why the only partition is stopped at a gap; None while it does not."""
    [partition] = updates(daemon, model, version).get("partitions") or [{"state": ""}]
    return partition.get("reason") if partition["state"] == "gap" else None


def told(daemon, topic):
    return daemon.metrics()[f'hpsd_update_gap{{topic="{topic}",partition="0"}}']


def files(work, value):
    """Files of both tables with the same row for every key: the next version."""
    for name in "ab":
        Table(name, np.arange(KEYS), np.full((KEYS, DIM), value, "<f4")).save(f"{work}/{value}")
    return f"{work}/{value}"


# ---- another log ---------------------------------------------------------------------------------------

def test_gap_when_the_cluster_is_another_then_told_until_the_model_is_loaded_anew(broker, own_broker, daemon, work):
    topic = broker.create("hps_et.moved.a", 1)
    config = config_of(work, broker, "moved", server={"model_roots": [work]})
    one = daemon(config)
    broker.write(topic, [keyed(1, 101)])
    wait_now(one, "moved")
    one.stop()
    own_broker.create(topic, 1)
    own_broker.write(topic, [keyed(1, 101), keyed(2, 102), keyed(3, 103)])  # the record that we have had, too
    one.write_config({**config, "update_source": {**config["update_source"], "brokers": own_broker.bootstrap}})
    one.restart()
    until(lambda: gap(one, "moved"), "the gap")
    for at in (broker, own_broker):
        assert at.admin().list_topics().cluster_id in gap(one, "moved")
    assert told(one, topic) == 1
    assert values(one.stub(), "moved", "a", [1, 2]) == {1: 101, 2: 2}
    one.kill()
    one.restart()
    until(lambda: gap(one, "moved"), "the gap, after a crash too")
    one.load("moved", files(work, 500), version=2, activate=True)
    one.ctl("unload", "moved", "1")
    wait_now(one, "moved")
    assert values(one.stub(), "moved", "a", [1, 2, 3, 4]) == {1: 101, 2: 102, 3: 103, 4: 500}
    until(lambda: told(one, topic) == 0, "the gap to be gone")


def test_gap_when_the_topic_is_made_anew_while_it_is_read_then_told_until_a_seek(broker, daemon, work):
    topic = broker.create("hps_et.remade.a", 1)
    one = daemon(config_of(work, broker, "remade"))
    broker.write(topic, [keyed(1, 101), keyed(2, 102)])
    wait_now(one, "remade")
    broker.delete(topic)
    until(lambda: states(one, "remade") == {("a", 0): "gone"}, "the topic to be missed")
    assert values(one.stub(), "remade", "a", [1, 2]) == {1: 101, 2: 102}
    broker.create(topic, 1)
    since = round(time.time() * 1000) - 100000
    broker.write(topic, [{**keyed(3, 103), "timestamp": since}, {**keyed(4, 104), "timestamp": since + 50000}])
    until(lambda: gap(one, "remade"), "the gap")
    assert "recreated" in gap(one, "remade")
    assert values(one.stub(), "remade", "a", [3, 4]) == {3: 3, 4: 4}
    one.ctl("updates", "seek", "--topic", topic, "--partition", "0", "--to", "3", code=1)
    assert gap(one, "remade")
    one.seek("--topic", topic, "--partition", "0", "--to", f"@{since + 1}")
    wait_now(one, "remade")
    assert values(one.stub(), "remade", "a", [1, 2, 3, 4]) == {1: 101, 2: 102, 3: 3, 4: 104}
    one.seek("--topic", topic, "--partition", "0", "--to", "0")
    wait_now(one, "remade")
    assert values(one.stub(), "remade", "a", [3, 4]) == {3: 103, 4: 104}


def test_gap_when_the_new_topic_is_shorter_then_told_until_a_seek_to_its_end(broker, daemon, work):
    topic = broker.create("hps_et.shorter.a", 1)
    one = daemon(config_of(work, broker, "shorter"))
    broker.write(topic, [keyed(key, 100 + key) for key in range(5)])
    wait_now(one, "shorter")
    one.stop()
    broker.recreate(topic, 1)
    broker.write(topic, [keyed(7, 107)])
    one.restart()
    until(lambda: gap(one, "shorter"), "the gap")
    assert told(one, topic) == 1
    one.seek("--model", "shorter", "--to", "latest")
    broker.write(topic, [keyed(8, 108)])
    wait_now(one, "shorter")
    assert values(one.stub(), "shorter", "a", [4, 7, 8]) == {4: 104, 7: 7, 8: 108}


# ---- records removed before they were read -------------------------------------------------------------

def test_start_when_records_after_the_files_were_deleted_then_it_runs_and_says_so(broker, daemon, work):
    topic = broker.create("hps_et.trimmed.a", 1)
    config = config_of(work, broker, "trimmed", source={"start": "files"})
    broker.write(topic, [keyed(1, 101), keyed(2, 102), keyed(3, 103)])
    broker.drop(topic, 0, 2)
    one = daemon(config)
    wait_now(one, "trimmed")
    [partition] = updates(one, "trimmed")["partitions"]
    assert (partition["state"], "may be gone" in partition["reason"]) == ("running", True)
    assert values(one.stub(), "trimmed", "a", [1, 3]) == {1: 1, 3: 103}
    assert "removed" in one.ctl("wait-for", f"{topic}:0:1", code=5)
    one.ctl("wait-for", f"{topic}:0:2")


def test_gap_when_the_topic_is_recreated_before_accept_gap_then_every_row_of_it_is_applied(broker, daemon, work):
    topic = broker.create("hps_et.regrown.a", 1)
    one = daemon(config_of(work, broker, "regrown", source={"metadata_refresh_interval_ms": 60000}))
    broker.write(topic, [keyed(key, 100 + key) for key in range(20)])
    wait_now(one, "regrown")
    one.ctl("updates", "pause", "--topic", topic)
    broker.write(topic, [keyed(key, 0) for key in range(20)])
    broker.drop(topic, 0, 30)
    one.ctl("updates", "resume", "--topic", topic)
    until(lambda: gap(one, "regrown"), "the gap")
    broker.settle("delete_topics", [topic])
    broker.make(topic, 1, 1)
    broker.write(topic, [keyed(key, 200 + key) for key in range(20, KEYS)])

    def accepted():
        try:
            return one.ctl("updates", "accept-gap", "--topic", topic) != ""
        except AssertionError as failed:  # until the leader of the new topic has responded
            assert "unavailable" in str(failed)
            return False
    until(accepted, "the gap to be accepted")
    wait_now(one, "regrown")
    assert values(one.stub(), "regrown", "a") == {key: key + (100 if key < 20 else 200) for key in range(KEYS)}


# ---- compaction ----------------------------------------------------------------------------------------

def test_gap_when_tombstones_were_compacted_while_down_then_told_until_loaded_anew(broker, daemon, work):
    topic = broker.create("hps_et.buried.a", 1, cleanup_policy="compact", segment_ms=100, delete_retention_ms=4000,
                           min_cleanable_dirty_ratio=0.01, max_compaction_lag_ms=100)
    one = daemon(config_of(work, broker, "buried", server={"model_roots": [work]}))
    broker.write(topic, [keyed(1, 101), keyed(2, 102)])
    wait_now(one, "buried")
    one.stop()
    broker.write(topic, [keyed(1, None)])

    def is_buried():
        broker.write(topic, [keyed(3, 103)])  # a later record closes the segment, so that it can be cleaned
        return all(message.key() != keyed(1, None)["key"] for message in broker.read(topic))

    until(is_buried, "the tombstone to be compacted away")
    one.restart()
    until(lambda: gap(one, "buried"), "the gap")
    assert "delete.retention.ms" in gap(one, "buried")
    assert told(one, topic) == 1
    assert values(one.stub(), "buried", "a", [1, 2, 3]) == {1: 101, 2: 102, 3: 3}
    one.ctl("updates", "accept-gap", "--topic", topic)
    wait_now(one, "buried")
    assert values(one.stub(), "buried", "a", [1, 3]) == {1: 101, 3: 103}  # accepted: the delete is lost
    one.load("buried", files(work, 500), version=2, activate=True)
    assert values(one.stub(), "buried", "a", [2, 3, 4]) == {2: 102, 3: 103, 4: 500}
    assert told(one, topic) == 0


def test_forms_when_the_topic_is_compacted_then_the_others_are_told(broker, daemon, work):
    """Without a key the broker takes none of them there; HPS's records have an empty one."""
    topic = broker.create("hps_et.squeezed.a", 1, cleanup_policy="compact")
    one = daemon(config_of(work, broker, "squeezed"))
    with pytest.raises(AssertionError, match="INVALID_RECORD"):
        broker.write(topic, [hctr([(1, 101)])])
    broker.write(topic, [keyed(1, 101), {**hctr([(2, 102), (3, 103)]), "key": b""}, keyed(4, None)])
    wait_now(one, "squeezed")
    assert values(one.stub(), "squeezed", "a", [1, 2, 3, 4]) == {1: 101, 2: 102, 3: 103, 4: -1}
    assert one.metrics()['hpsd_update_compacted_records_total{model="squeezed"}'] == 1
    [partition] = updates(one, "squeezed")["partitions"]
    assert (partition["state"], "not keyed" in partition["reason"]) == ("running", True)
    [line] = [line for line in one.log().splitlines() if "not keyed" in line]
    assert topic in line and "form=hctr" in line


# ---- more partitions -----------------------------------------------------------------------------------

def test_keys_when_the_topic_grows_while_producers_rest_then_exact_in_every_tier(broker, daemon, work):
    topic = broker.create("hps_et.wider.a", 1)
    config = config_of(work, broker, "wider")
    one = daemon(config)
    everywhere = {"partitioner": "murmur2_random"}
    broker.write(topic, [keyed(key, 100 + key) for key in range(KEYS)], **everywhere)
    wait_now(one, "wider")  # nothing is behind, and nobody writes
    broker.grow(topic, 3)
    broker.write(topic, [keyed(key, 200 + key if key % 3 else None) for key in range(KEYS)], **everywhere)
    expected = {key: 200 + key if key % 3 else -1 for key in range(KEYS)}
    wait_now(one, "wider")
    assert all(high > 0 for _, high in broker.offsets(topic).values()), "no key has moved"
    assert values(one.stub(), "wider", "a") == expected
    one.kill()
    one.restart()
    wait_now(one, "wider")
    assert values(one.stub(), "wider", "a") == expected
    assert set(in_every_tier(one, "wider", "a", 3).values()) == {None}
