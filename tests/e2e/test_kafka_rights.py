# SPDX-License-Identifier: Apache-2.0
"""What hpsd's consumer can do with which permissions, on a broker that grants none by default. Nothing may wait for a
permission that it does not need. The table in docs/updates.md must agree with these tests."""
import contextlib
import os
import subprocess
import time

import grpc
import numpy as np
import pytest

from kafka_cluster import Operator
from log_reader import CAUGHT_UP, COMMITS, COMPACTION, CREATED, FAILED, NO_TIME, OK, PATIENCE_S, PERMISSION, Reader
from rig import Authority, Table, kafka, refused, scratch, until
from test_updates import DIM, KEYS, config_of, keyed, updates, values, wait_now

USER, PASSWORD = "hpsd", "one-two-three"
SOON_S = 20  # waiting for a response of the coordinator would take 44 s

pytestmark = pytest.mark.one_thread


class Guarded:
    """A broker with a secure listener on which only granted operations are allowed."""

    def __init__(self, work):
        self.authority = Authority(work, "right")
        crt, key = self.authority.issue("broker")
        keystore = os.path.join(work, "broker.pem")
        with open(keystore, "w", encoding="utf-8") as out:
            for path in (key, crt):
                with open(path, encoding="utf-8") as f:
                    out.write(f.read())
        self.broker = kafka.Broker(work, secure=(keystore, USER, PASSWORD),
                                   authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                                   super_users="User:ANONYMOUS")
        self.operator = None

    def reader(self, model):
        return Reader(self.broker.secure_bootstrap, model, security_protocol="SASL_SSL", sasl_mechanisms="PLAIN",
                      sasl_username=USER, sasl_password=PASSWORD, ssl_ca_location=self.authority.path)

    def source(self):
        """Additional options of update_source."""
        return {"brokers": self.broker.secure_bootstrap,
                "properties": ["security.protocol=SASL_SSL", "sasl.mechanisms=PLAIN", f"sasl.username={USER}",
                               f"sasl.password={PASSWORD}", f"ssl.ca.location={self.authority.path}"]}

    def rights(self, verb, *what):
        """Run Kafka's tool, as documents do. Each run starts Java, so tests use grant and revoke."""
        done = subprocess.run(kafka.java("kafka.admin.AclCommand", "--bootstrap-server", self.broker.bootstrap, verb,
                                         "--allow-principal", f"User:{USER}", *what, heap="-Xmx128m"),
                              capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stdout + done.stderr

    def ask(self, verb, *words):
        if self.operator is None:
            self.operator = Operator(self.broker.bootstrap)
        self.operator.ask(verb, USER, *words)

    def grant(self, kind, name, *operations):
        """name: of one topic or group, or a prefix and *"""
        self.ask("allow", kind, name, *operations)

    def revoke(self, topic):
        self.ask("deny", "topic", topic)

    def close(self):
        if self.operator is not None:
            self.operator.close()


@pytest.fixture(name="guarded", scope="module")
def guarded_broker():
    why = kafka.missing()
    if why is not None:
        pytest.skip(f"no Kafka broker: {why}")
    with scratch() as work:
        guarded = Guarded(work)
        with guarded.broker, contextlib.closing(guarded):
            yield guarded


def first_record(guarded, reader, topic, tag):
    """Read the first record of a new topic while a commit is in flight; the time that this takes."""
    guarded.broker.create(topic)
    guarded.broker.write(topic, [(b"k", b"%d" % tag)])
    begun, n = time.monotonic(), len(reader.records)
    reader.ask("assign", topic, 0, 0, tag)
    assert reader.values(n + 1)[-1] == b"%d" % tag
    took = time.monotonic() - begun
    reader.ask("commit", topic, 0, 1)
    return took


def test_consumer_when_it_has_no_permission_on_the_group_then_reads_without_delay(guarded):
    kafka_module = guarded.broker.kafka()
    guarded.grant("topic", "hps_et.ungrouped.*", "Read", "DescribeConfigs")
    with guarded.reader("ungrouped") as reader:
        took = [first_record(guarded, reader, f"hps_et.ungrouped.t{i}", i) for i in range(3)]
        assert max(took) < SOON_S, took
        assert reader.event(COMMITS)[4] == PERMISSION
        # Nor after a restart of the broker.
        guarded.broker.restart()
        assert first_record(guarded, reader, "hps_et.ungrouped.t3", 3) < SOON_S
        assert COMMITS not in reader.kinds()  # reported once
        guarded.grant("group", "group.ungrouped", "Read")
        assert reader.event(COMMITS)[4] == OK
        tool = guarded.broker.consumer(**{"group.id": "group.ungrouped"})
        at = [kafka_module.TopicPartition("hps_et.ungrouped.t3", 0)]
        reader.until(lambda: tool.committed(at, PATIENCE_S)[0].offset == 1, "the commit")
        tool.close()


def test_topics_when_permissions_are_granted_one_by_one_then_each_enables_its_operation(guarded):
    topic = guarded.broker.create("hps_et.bare.a", 1, cleanup_policy="compact")
    guarded.broker.write(topic, [(b"k", b"v")])
    with guarded.reader("bare") as reader:
        # Without Describe the topic does not exist for hpsd.
        assert reader.topics() == {}
        reader.until(lambda: reader.heard(topic, 0)[0] == PERMISSION, "the refusal of the leader")
        assert reader.offsets(topic, 0)[0] == PERMISSION
        # With Describe the topic is listed, and its leader reports offsets; records cannot be read.
        guarded.grant("topic", topic, "Describe")
        reader.until(lambda: topic in reader.topics(), "the topic")
        assert reader.topics()[topic] == (1, COMPACTION["unknown"], -1, NO_TIME)
        assert reader.heard_now(topic, 0) == 1
        assert reader.offsets(topic, 0) == (OK, 0, 1, 1)
        reader.ask("assign", topic, 0, 0, 7)
        assert reader.event(FAILED)[1:5:3] == (7, PERMISSION)
        assert reader.recall(topic, 0, 0)[0] == PERMISSION
        # DescribeConfigs shows the settings that say whether deletes may be lost.
        guarded.grant("topic", topic, "DescribeConfigs")
        reader.until(lambda: reader.topics()[topic] == (1, COMPACTION["yes"], 86400000, CREATED), "topic settings")
        guarded.grant("topic", topic, "Read")
        reader.ask("assign", topic, 0, 0, 8)
        assert reader.values(1) == [b"v"]
        reader.event(CAUGHT_UP)
        assert reader.recall(topic, 0, 0)[:4] == (OK, 0, 0, 0)
        # Dead letters: copies of the records from the last poll.
        guarded.broker.create("letters")

        def letters():
            reader.records.clear()
            reader.ask("assign", topic, 0, 0, 9)
            reader.values(1)
            reader.ask("letters", "letters")

        with pytest.raises(RuntimeError, match=f"failed {PERMISSION} "):
            letters()
        guarded.grant("topic", "letters", "Write")
        letters()  # works at once, although it was refused before
        assert [m.value() for m in guarded.broker.read("letters")] == [b"v"]


def test_freshness_when_a_topic_is_hidden_then_no_version_claims_it_even_after_a_crash(guarded, daemon, work):
    for name in "ab":
        guarded.grant("topic", guarded.broker.create(f"hps_et.hidden.{name}", 1), "Read")
        Table(name, np.arange(KEYS), np.ones((KEYS, DIM), "<f4")).save(f"{work}/files")
    config = config_of(work, guarded.broker, "hidden", source=guarded.source(), server={"model_roots": [work]})
    one = daemon({**config, "models": []})
    one.load("hidden", f"{work}/files", version=5)
    wait_now(one, "hidden")

    def in_state(state, version):
        return {of["topic"][-1] for of in updates(one, "hidden", version)["partitions"] if of["state"] == state}

    def check(version):
        until(lambda: in_state("failed", version) == {"b"}, "the hidden topic to be failed")
        wait_now(one, "hidden", "--version", version, code=5)

    guarded.revoke("hps_et.hidden.b")
    guarded.broker.write("hps_et.hidden.b", [keyed(1, 101)])
    check(5)
    one.load("hidden", f"{work}/files", version=3)  # at a start, it begins before the other version
    check(3)
    one.kill()
    one.restart()
    check(3)
    check(5)
    with refused(grpc.StatusCode.UNAVAILABLE):
        values(one.stub(), "hidden", "a", version=3, max_staleness_ms=3600_000)
    guarded.grant("topic", "hps_et.hidden.b", "Read")
    for version in (3, 5):
        def resumed(version=version):  # the broker applies the permission a moment later
            one.ctl("updates", "resume", "--model", "hidden", "--version", version)
            return in_state("running", version) == {"a", "b"}

        until(resumed, "both topics to run")
        wait_now(one, "hidden", "--version", version)
        assert values(one.stub(), "hidden", "b", [1, 2], version=version) == {1: 101, 2: 1}
