# SPDX-License-Identifier: Apache-2.0
"""The broker that the other tests lean on does what they ask of it."""
import contextlib
import glob
import os
import signal
import subprocess
import sys

import pytest

from rig import PATIENCE_S, ROOT, SANITIZER, until

pytestmark = pytest.mark.skipif(SANITIZER != "", reason="nothing of ours runs in it")

MAVEN = """#!/bin/sh
echo called >> "$HPS_KAFKA_JARS.calls"
read -r line < "$HPS_KAFKA_JARS.go"
for arg; do
    case $arg in -DoutputDirectory=*) mkdir -p "${arg#*=}" && : > "${arg#*=}/kafka_0.jar" ;; esac
done
"""


def test_broker_when_records_are_written_then_read_back(broker):
    topic = broker.create("rig.plain", 2, retention_ms=-1)  # of one record the time is long ago
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


def test_fetch_when_another_is_at_it_then_waits_for_what_that_one_gets(work):
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
        """The processes that wait for a lock on a file."""
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
                os.killpg(one.pid, signal.SIGKILL)  # its mvn too
    assert os.listdir(f"{work}/kafka/jars") == ["kafka_0.jar"]
    assert calls() == 1
    assert not glob.glob(f"{work}/kafka/jars.[0-9]*")
