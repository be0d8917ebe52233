# SPDX-License-Identifier: Apache-2.0
"""Tests of the brokers in tests/lib that other tests use. Those marked soak use what test_publish.py and
test_kafka_chaos.py need in order to pass."""
import contextlib
import glob
import os
import signal
import subprocess
import sys

import pytest

import kafka_cluster
import relay
from rig import PATIENCE_S, ROOT, SANITIZER, kafka, scratch, until

pytestmark = pytest.mark.skipif(SANITIZER != "", reason="nothing of ours runs in it")

MAVEN = """#!/bin/sh
echo called >> "$HPS_KAFKA_JARS.calls"
read -r line < "$HPS_KAFKA_JARS.go"
for arg; do
    case $arg in -DoutputDirectory=*) mkdir -p "${arg#*=}" && : > "${arg#*=}/kafka_0.jar" ;; esac
done
"""


def test_broker_when_records_are_written_then_read_back(broker):
    topic = broker.create("rig.plain", 2, retention_ms=-1)  # the time of one record is long ago
    broker.write(topic, [{"key": b"k", "value": b"v", "partition": 1, "timestamp": 1234},
                         {"key": b"", "value": b"", "partition": 0},
                         {"key": None, "value": None, "partition": 0, "headers": [("h", b"\x01")]}])
    found = broker.read(topic)
    assert [(m.partition(), m.key(), m.value()) for m in found] == [
        (0, b"", b""), (0, None, None), (1, b"k", b"v")]
    assert found[1].headers() == [("h", b"\x01")]
    assert found[2].timestamp()[1] == 1234
    assert broker.offsets(topic) == {0: (0, 2), 1: (0, 1)}


def test_broker_when_a_topic_grows_and_is_recreated_then_partitions_and_offsets_show_it(broker):
    topic = broker.create("rig.grows", 1)
    broker.write(topic, [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])
    broker.grow(topic, 3)
    assert broker.partitions(topic) == 3
    broker.drop(topic, 0, 2)
    assert broker.offsets(topic)[0] == (2, 3)
    assert [m.value() for m in broker.read(topic)] == [b"3"]
    broker.recreate(topic, 2)
    assert broker.offsets(topic) == {0: (0, 0), 1: (0, 0)}


@pytest.mark.soak
def test_broker_when_killed_and_started_then_same_port_and_data(own_broker):
    address = own_broker.bootstrap
    topic = own_broker.create("rig.kept", 1)
    own_broker.write(topic, [(b"a", b"1")])
    own_broker.kill()
    own_broker.start()
    assert own_broker.bootstrap == address
    assert [m.value() for m in own_broker.read(topic)] == [b"1"]
    own_broker.restart()
    assert own_broker.offsets(topic) == {0: (0, 1)}


def test_fetch_when_another_process_fetches_then_waits_for_its_jars(work):
    os.mkdir(f"{work}/bin")
    with open(f"{work}/bin/mvn", "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o755)) as f:
        f.write(MAVEN)
    env = {**os.environ, "PATH": f"{work}/bin:{os.environ['PATH']}", "HPS_KAFKA_JARS": f"{work}/kafka/jars"}
    os.mkdir(f"{work}/kafka")
    os.mkfifo(f"{work}/kafka/jars.go")

    def begin():
        return subprocess.Popen([sys.executable, f"{ROOT}/tests/lib/kafka.py", "fetch"], env=env, start_new_session=True)

    def calls():
        with open(f"{work}/kafka/jars.calls", "a+", encoding="utf-8") as f:
            f.seek(0)
            return len(f.readlines())

    def waiting():
        """Pids of processes that wait for a lock on a file."""
        with open("/proc/locks", encoding="utf-8") as f:
            return {int(line.split()[5]) for line in f if " -> FLOCK" in line}

    many = [begin()]
    try:
        until(lambda: calls() == 1, "the first one to get them")
        many += [begin() for _ in range(4)]
        until(lambda: calls() > 1 or {one.pid for one in many[1:]} <= waiting(), "the others")
        assert calls() == 1
        with open(f"{work}/kafka/jars.go", "w", encoding="utf-8") as f:
            f.write("go\n")
        assert [one.wait(PATIENCE_S) for one in many] == [0] * 5
    finally:
        for one in many:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)  # also ends its mvn
    assert os.listdir(f"{work}/kafka/jars") == ["kafka_0.jar"]
    assert calls() == 1
    assert not glob.glob(f"{work}/kafka/jars.[0-9]*")


# ---- three brokers -------------------------------------------------------------------------------------

@pytest.fixture(name="three_brokers", scope="module")
def three_brokers_fixture():
    why = kafka.missing()
    if why is not None:
        pytest.skip(f"no Kafka broker: {why}")
    with scratch() as work, kafka_cluster.Cluster(work) as three_brokers:
        three_brokers.allow("group", "*", "Read")
        yield three_brokers


def front(three_brokers):
    """A client that connects as the program under test does."""
    config = dict(pair.split("=", 1) for pair in three_brokers.properties)
    return three_brokers.kafka().Consumer({"bootstrap.servers": three_brokers.fronts.replace(";", ","), "group.id": "front",
                                     "auto.offset.reset": "earliest", "log_level": 0, **config})


def is_seen(three_brokers, topic, n):
    """Whether a new client of the relays soon reads n records of the first partition, and no errors."""
    consumer = front(three_brokers)
    try:
        consumer.assign([three_brokers.kafka().TopicPartition(topic, 0, 0)])
        return sum(message.error() is None for message in consumer.consume(n, 3)) == n
    finally:
        consumer.close()


def leader(three_brokers, topic):
    [one] = three_brokers.leaders([topic], three_brokers.admin())
    return one.node


@pytest.mark.soak
def test_cluster_when_permissions_are_removed_then_only_clients_of_the_relays_lose_them(three_brokers):
    topic = three_brokers.create("rights", 1, replicas=3)
    three_brokers.write(topic, [(b"a", b"1")])
    assert not is_seen(three_brokers, topic, 1)
    three_brokers.allow("topic", topic, "Read", "Describe")
    until(lambda: is_seen(three_brokers, topic, 1), "the record, with rights")
    three_brokers.deny("topic", topic)
    until(lambda: not is_seen(three_brokers, topic, 1), "no record, without")
    assert len(three_brokers.read(topic)) == 1


@pytest.mark.soak
def test_cluster_when_a_relay_is_cut_then_only_clients_of_the_relays_lose_the_leader(three_brokers):
    topic = three_brokers.create("cut", 1, replicas=2)
    three_brokers.allow("topic", topic, "Read", "Describe")
    three_brokers.write(topic, [(b"a", b"1")])
    until(lambda: is_seen(three_brokers, topic, 1), "the record")
    relays = [three_brokers.relays[three_brokers.nodes.index(leader(three_brokers, topic))]]
    relays[0].set(relay.CUT)
    three_brokers.write(topic, [(b"a", b"2")])
    assert not is_seen(three_brokers, topic, 1)
    relays[0].set(relay.PASS)
    until(lambda: is_seen(three_brokers, topic, 2), "both records")


@pytest.mark.soak
def test_cluster_when_leaders_move_or_are_killed_then_nothing_is_lost(three_brokers):
    topic = three_brokers.create("moves", 1, replicas=1)
    three_brokers.write(topic, [(b"a", b"1")])
    first, *others = [node for node in three_brokers.nodes if node is not leader(three_brokers, topic)]
    three_brokers.move(topic, 0, first)
    until(lambda: leader(three_brokers, topic) is first, "it to lead")
    three_brokers.move(topic, 0, *three_brokers.nodes[1:])
    until(lambda: leader(three_brokers, topic) is three_brokers.nodes[1], "the next one to lead")
    three_brokers.nodes[1].kill()
    until(lambda: leader(three_brokers, topic) is three_brokers.nodes[2], "the other to lead")
    three_brokers.write(topic, [(b"a", b"2")])
    three_brokers.start(three_brokers.nodes[1])
    three_brokers.balance([topic])
    assert leader(three_brokers, topic) is three_brokers.nodes[1]
    assert [message.value() for message in three_brokers.read(topic)] == [b"1", b"2"]
