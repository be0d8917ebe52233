# SPDX-License-Identifier: Apache-2.0
"""The broker that the other tests lean on does what they ask of it."""


def test_broker_when_records_are_written_then_read_back(broker):
    topic = broker.create("rig.plain", 2)
    broker.write(topic, [{"key": b"k", "value": b"v", "partition": 1, "timestamp": 1234},
                         {"key": b"", "value": b"", "partition": 0},
                         {"key": None, "value": None, "partition": 0, "headers": [("h", b"\x01")]}])
    found = broker.read(topic)
    assert [(m.partition(), m.key(), m.value()) for m in found] == [
        (0, b"", b""), (0, None, None), (1, b"k", b"v")]
    assert found[1].headers() == [("h", b"\x01")]
    assert found[2].timestamp()[1] == 1234
    assert broker.offsets(topic) == {0: (0, 2), 1: (0, 1)}


def test_broker_when_topic_grows_and_is_made_anew_then_partitions_and_offsets_tell(broker):
    topic = broker.create("rig.grows", 1)
    broker.write(topic, [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])
    broker.grow(topic, 3)
    assert broker.partitions(topic) == 3
    broker.drop(topic, 0, 2)
    assert broker.offsets(topic)[0] == (2, 3)
    assert [m.value() for m in broker.read(topic)] == [b"3"]
    broker.recreate(topic, 2)
    assert broker.offsets(topic) == {0: (0, 0), 1: (0, 0)}


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
