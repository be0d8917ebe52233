# SPDX-License-Identifier: Apache-2.0
"""Our consumer of update logs (backends/kafka*.c) against a real broker: what the mock cluster of the unit
tests cannot do. The program is tests/e2e/log_reader.c."""
import ctypes
import glob
import struct

import pytest

from log_reader import (APPENDED, BAD, CAUGHT_UP, COMMITS, COMPACTION, CREATED, DATA_LOSS, DOWN, GAP, GONE, NOT_FOUND, OK, PATIENCE_S,
                        UNAVAILABLE, UP, Reader)

pytestmark = pytest.mark.one_thread
EARLIER = 1700000000000


def numbers(first, last):
    return [(b"key%d" % (i % 7), b"%d" % i) for i in range(first, last)]


def in_order(first, last):
    return [b"%d" % i for i in range(first, last)]


def test_topics_when_listed_then_settings_and_cluster_are_those_of_the_broker(broker):
    broker.create("hps_et.list.a", 3)
    broker.create("hps_et.list.b", 1, cleanup_policy="compact", delete_retention_ms=12345,
                  message_timestamp_type="LogAppendTime")
    broker.create("hps_et.lister.c", 1)
    with Reader(broker.bootstrap, "list") as reader:
        assert reader.topics() == {"hps_et.list.a": (3, COMPACTION["no"], 86400000, CREATED),
                                   "hps_et.list.b": (1, COMPACTION["yes"], 12345, APPENDED)}
        assert reader.cluster() == broker.admin().list_topics().cluster_id
        broker.grow("hps_et.list.a", 5)
        reader.until(lambda: reader.topics()["hps_et.list.a"][0] == 5, "a list with the new partitions")


def test_topics_when_one_is_made_anew_then_its_id_is_another(broker):
    if ctypes.CDLL("librdkafka.so.1").rd_kafka_version() < 0x020300ff:
        pytest.skip("this librdkafka cannot ask for the ids of topics")
    topic = broker.create("hps_et.ids.a", 1)
    with Reader(broker.bootstrap, "ids") as reader:
        reader.until(lambda: reader.ids().get(topic, "") != "", "an id")
        first = reader.ids()[topic]
        broker.recreate(topic, 1)
        reader.until(lambda: reader.ids().get(topic, "") not in ("", first), "another id")


def test_offsets_when_a_time_is_asked_then_the_first_record_since(broker):
    topic = broker.create("hps_et.times.a", 1, retention_ms=-1)  # the times are long ago
    broker.write(topic, [{"key": b"k", "value": b"v", "timestamp": EARLIER + 1000 * i} for i in range(4)])
    with Reader(broker.bootstrap, "times") as reader:
        assert reader.offsets(topic, 0, EARLIER) == (0, 0, 4, 0)
        assert reader.offsets(topic, 0, EARLIER + 1500) == (0, 0, 4, 2)
        assert reader.offsets(topic, 0, EARLIER + 9000) == (0, 0, 4, 4)
        assert reader.offsets(topic, 1)[0] == NOT_FOUND
        assert reader.offsets("hps_et.times.none", 0)[0] == NOT_FOUND


def test_poll_when_the_topic_grows_then_new_partitions_are_read(broker):
    topic = broker.create("hps_et.grow.a", 1)
    broker.write(topic, numbers(0, 10))
    with Reader(broker.bootstrap, "grow") as reader:
        reader.ask("assign", topic, 0, 0, 0)
        reader.values(10)
        broker.grow(topic, 2)
        broker.write(topic, [{"key": b"k", "value": b"new", "partition": 1}])
        reader.until(lambda: reader.topics()[topic][0] == 2, "two partitions")
        reader.ask("assign", topic, 1, 0, 1)
        assert reader.values(11)[10] == b"new"


def test_assign_when_retention_passed_then_a_gap(broker):
    topic = broker.create("hps_et.log_gap.a", 1)
    broker.write(topic, numbers(0, 20))
    broker.drop(topic, 0, 8)
    with Reader(broker.bootstrap, "log_gap") as reader:
        reader.ask("assign", topic, 0, 3, 5)
        assert reader.event(GAP)[1:3] == (5, 3)
        assert not reader.records
        assert reader.offsets(topic, 0) == (0, 8, 20, 20)
        reader.ask("assign", topic, 0, 8, 5)
        assert reader.values(12) == in_order(8, 20)
        reader.ask("assign", topic, 0, 21, 6)
        assert reader.event(GAP)[1:3] == (6, 21)


def test_poll_when_the_topic_is_deleted_and_made_anew_then_lists_show_it_and_it_is_read_again(broker):
    topic = broker.create("hps_et.log_anew.a", 1)
    broker.write(topic, numbers(0, 10))
    with Reader(broker.bootstrap, "log_anew") as reader:
        reader.ask("assign", topic, 0, 0, 3)
        assert reader.values(10) == in_order(0, 10)
        broker.delete(topic)
        reader.until(lambda: topic not in reader.topics(), "a list without it")
        broker.create(topic, 1)
        broker.write(topic, numbers(100, 105))
        reader.until(lambda: topic in reader.topics(), "the topic")
        reader.ask("assign", topic, 0, 10, 4)
        # The earlier assignment may have had a gap before.
        reader.until(lambda: any(event[:3] == (GAP, 4, 10) for event in reader.events), "the gap")
        reader.ask("assign", topic, 0, 0, 4)
        assert reader.values(15)[10:] == in_order(100, 105)


def test_assign_when_the_topic_was_made_anew_and_grew_then_the_last_record_differs(broker):
    """No offset tells: who has a position looks at the record before it, as it is told to."""
    topic = broker.create("hps_et.grown.a", 1)
    broker.write(topic, numbers(0, 10))
    broker.recreate(topic, 1)
    broker.write(topic, numbers(100, 130))
    with Reader(broker.bootstrap, "grown") as reader:
        reader.ask("assign", topic, 0, 9, 0)
        assert reader.values(21)[0] == b"109"
        assert GAP not in reader.kinds() and GONE not in reader.kinds()


def test_poll_when_a_transaction_is_aborted_then_none_of_it_comes(broker):
    kafka = broker.kafka()
    topic = broker.create("hps_et.tx.a", 1)
    producer = kafka.Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "tx"})
    producer.init_transactions(PATIENCE_S)
    for commit in (True, False, True, False):
        producer.begin_transaction()
        for i in range(5):
            producer.produce(topic, key=b"k", value=b"%s%d" % (b"kept" if commit else b"lost", i))
        assert producer.flush(PATIENCE_S) == 0
        (producer.commit_transaction if commit else producer.abort_transaction)(PATIENCE_S)
    with Reader(broker.bootstrap, "tx") as reader:
        reader.ask("assign", topic, 0, 0, 0)
        # Four times five records and a marker.
        reader.until(lambda: any(e[0] == CAUGHT_UP and e[2] == 24 for e in reader.events), "the end")
        assert [(o, v) for _, o, _, v in reader.records] == [
            (i, b"kept%d" % i) for i in range(5)] + [(12 + i, b"kept%d" % i) for i in range(5)]
        assert reader.offsets(topic, 0) == (0, 0, 24, 24)
        # What is open is not read, and is not part of what there is to read.
        producer.begin_transaction()
        producer.produce(topic, key=b"k", value=b"open")
        assert producer.flush(PATIENCE_S) == 0
        assert reader.offsets(topic, 0)[2] == 24
        producer.commit_transaction(PATIENCE_S)
        assert reader.values(11)[10] == b"open"


def test_poll_when_the_topic_was_compacted_then_missing_records_are_no_gap(broker):
    topic = broker.create("hps_et.compact.a", 1, cleanup_policy="compact", segment_ms=100,
                          min_cleanable_dirty_ratio=0.01, max_compaction_lag_ms=100)
    broker.write(topic, [(b"k", b"%d" % i) for i in range(50)])
    with Reader(broker.bootstrap, "compact") as reader:
        def compacted():
            # A record later than segment.ms closes the segment, so that it can be cleaned.
            broker.write(topic, [(b"tick", b"tick")])
            reader.records.clear()
            reader.events.clear()
            reader.ask("assign", topic, 0, 0, 0)
            reader.event(CAUGHT_UP)
            return sum(1 for r in reader.records if r[2] == b"k") < 50

        reader.until(compacted, "compaction")
        reader.records.clear()
        reader.ask("assign", topic, 0, 10, 0)
        reader.event(CAUGHT_UP)
        assert [r for r in reader.records if r[2] == b"k"][-1][1:] == (49, b"k", b"49")
        assert GAP not in reader.kinds()


def test_poll_when_the_broker_stops_and_starts_then_told_once_and_nothing_is_lost(own_broker):
    topic = own_broker.create("hps_et.away.a", 2)
    own_broker.write(topic, [{"value": b"%d" % i, "partition": 0} for i in range(20)])
    with Reader(own_broker.bootstrap, "away") as reader:
        reader.ask("assign", topic, 0, 0, 0)
        reader.values(20)
        for round_, end in enumerate(("stop", "kill")):
            getattr(own_broker, end)()
            assert reader.event(DOWN)[4] == UNAVAILABLE
            reader.poll()
            assert DOWN not in reader.kinds() and GAP not in reader.kinds()
            own_broker.start()
            reader.event(UP)
            first = 20 + 10 * round_
            own_broker.write(topic, [{"value": b"%d" % i, "partition": 0}
                                     for i in range(first, first + 10)])
            assert reader.values(first + 10) == in_order(0, first + 10)
        assert reader.kinds() <= {CAUGHT_UP}


def test_commit_and_letters_when_made_then_the_brokers_tools_see_them(broker):
    kafka = broker.kafka()
    topic = broker.create("hps_et.told.a", 1)
    dead = broker.create("dead.letters", 1)
    broker.write(topic, [{"key": b"\x01", "value": b"bad", "headers": [("hps-version", b"3")]}])
    with Reader(broker.bootstrap, "told") as reader:
        reader.ask("assign", topic, 0, 0, 0)
        reader.values(1)
        reader.ask("letters", dead)
        [letter] = broker.read(dead)
        assert (letter.key(), letter.value()) == (b"\x01", b"bad")
        assert letter.headers() == [("hps-version", b"3"), ("hps-reason", b"on purpose"),
                                    ("hps-topic", topic.encode()), ("hps-partition", b"0"),
                                    ("hps-offset", b"0")]
        reader.ask("commit", topic, 0, 1)
        tool = broker.consumer(**{"group.id": "group.told"})
        at = [kafka.TopicPartition(topic, 0)]
        reader.until(lambda: tool.committed(at, PATIENCE_S)[0].offset == 1, "the commit")
        tool.close()
        assert COMMITS not in reader.kinds()


LARGE = {"compression.type": "zstd", "message.max.bytes": 1000000000, "batch.size": 1000000000}
MIB = 1 << 20


def test_poll_when_records_are_as_large_as_promised_then_they_are_read(broker):
    topic = broker.create("hps_et.large.a", 1)
    sizes = [70 * MIB, 100 * MIB, 128 * MIB]
    for i, size in enumerate(sizes):
        broker.write(topic, [(b"%d" % i, b"%d" % i * size)], **LARGE)
    # Two in one batch.
    broker.write(topic, [(b"pair", b"5" * 128 * MIB)] * 2, **LARGE, **{"linger.ms": 60000, "batch.num.messages": 2})
    broker.write(topic, [(b"end", b"end")])
    with Reader(broker.bootstrap, "large") as reader:
        reader.ask("assign", topic, 0, 0, 0)
        assert reader.values(6) == [*sizes, 128 * MIB, 128 * MIB, b"end"]
        assert BAD not in reader.kinds()
        assert reader.recall(topic, 0, 2)[:4] == (OK, 2, 0, 2)


def batches(path):
    """[(place in the file, first offset, last offset)] of a segment of a log."""
    with open(path, "rb") as f:
        data = f.read()
    found, at = [], 0
    while at + 61 <= len(data) and data[at:at + 12] != b"\0" * 12:
        first, length = struct.unpack_from(">qi", data, at)
        found.append((at, first, first + struct.unpack_from(">i", data, at + 23)[0]))
        at += 12 + length
    return found


def test_poll_when_batches_are_damaged_on_disk_then_they_alone_are_left_out(own_broker):
    topic = own_broker.create("hps_et.damaged.a", 1)
    for first in range(0, 60, 10):
        own_broker.write(topic, numbers(first, first + 10), **{"compression.type": "zstd"})
    own_broker.stop()
    [path] = glob.glob(f"{own_broker.work}/log/{topic}-0/*.log")
    there = batches(path)
    assert there[-1][2] == 59
    damaged = [there[1], there[3], there[-1]]  # two between others that are sound, and the last one
    assert len(there) > 5
    with open(path, "r+b") as f:
        for at, _, _ in damaged:
            f.seek(at + 70)
            byte = f.read(1)
            f.seek(at + 70)
            f.write(bytes([byte[0] ^ 1]))
    own_broker.start()
    with Reader(own_broker.bootstrap, "damaged") as reader:
        reader.ask("assign", topic, 0, 0, 4)
        for _, first, last in damaged:
            assert reader.event(BAD)[1:5] == (4, first, last + 1, DATA_LOSS)
        lost = {i for _, first, last in damaged for i in range(first, last + 1)}
        sound = [i for i in range(60) if i not in lost]
        assert reader.values(len(sound)) == [b"%d" % i for i in sound]
        assert reader.heard_now(topic, 0) == 60
        own_broker.write(topic, numbers(60, 65))
        assert reader.values(len(sound) + 5)[len(sound):] == in_order(60, 65)
        assert BAD not in reader.kinds() and GAP not in reader.kinds()
        assert reader.recall(topic, 0, damaged[0][1])[0] == DATA_LOSS
        after = damaged[0][2] + 1
        assert reader.recall(topic, 0, after)[:4] == (OK, after, 0, after)
