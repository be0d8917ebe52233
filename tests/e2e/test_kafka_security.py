# SPDX-License-Identifier: Apache-2.0
"""Updates through a broker that requires TLS and a password. Properties are passed to librdkafka, and hpsd and
hps-publish report the same errors."""
import os
import subprocess

import numpy as np
import pytest

from rig import (BIN, PATIENCE_S, Authority, Table, ask, default_config, floats, kafka, model_config, scratch, until)

pytestmark = pytest.mark.one_thread
DIM = 4
REFUSED, NO_ANSWER = 1, 3  # exit codes of hps-publish
USER, PASSWORD = "trainer", "one-two-three"


class Secure:
    """A broker, and the properties that its clients need."""

    def __init__(self, work):
        self.authority, self.other = Authority(work, "right"), Authority(work, "wrong")
        crt, key = self.authority.issue("broker")
        keystore = os.path.join(work, "broker.pem")
        with open(keystore, "w", encoding="utf-8") as out:
            for path in (key, crt):
                with open(path, encoding="utf-8") as f:
                    out.write(f.read())
        self.broker = kafka.Broker(work, secure=(keystore, USER, PASSWORD))
        self.address = self.broker.secure_bootstrap

    def properties(self, mechanism, password=PASSWORD, authority=None):
        return ["security.protocol=SASL_SSL", f"sasl.mechanisms={mechanism}", f"sasl.username={USER}",
                f"sasl.password={password}", f"ssl.ca.location={(authority or self.authority).path}"]

    def wrong(self):
        """[(properties, words of the error)]; each list of properties has one mistake."""
        return [(self.properties("PLAIN", password="wrong"), ("Authentication failed",)),
                (self.properties("SCRAM-SHA-256", password="wrong"), ("Authentication failed",)),
                (self.properties("PLAIN", authority=self.other), ("certificate verify failed",)),
                (["security.protocol=PLAINTEXT"], ("security.protocol",))]


@pytest.fixture(name="secure", scope="module")
def secure_broker():
    why = kafka.missing()
    if why is not None:
        pytest.skip(f"no Kafka broker: {why}")
    with scratch() as work:
        secure = Secure(work)
        with secure.broker:
            yield secure


def config_of(work, secure, model, properties):
    keys = np.arange(10, dtype="<i8")
    table = Table("a", keys, np.repeat(keys.astype("<f4")[:, None], DIM, axis=1), default=-1.0)
    return default_config([model_config(model, [table.save(f"{work}/{model}")], [DIM], ["a"], defaults=[-1.0])],
                          update_source={"type": "kafka_message_queue", "brokers": secure.address,
                                         "start": "earliest", "metadata_refresh_interval_ms": 200,
                                         "properties": properties})


def publish(secure, model, properties, lines, *args, code=0):
    words = [word for pair in properties for word in ("-X", pair)]
    done = subprocess.run([os.path.join(BIN, "hps-publish"), "-b", secure.address, "-m", model, "-t", "a", *words,
                           *map(str, args), "-"], input=lines, capture_output=True, text=True,
                          timeout=PATIENCE_S * 4)
    if code == REFUSED and done.returncode == NO_ANSWER:
        return None
    assert done.returncode == code, f"exit {done.returncode}, expected {code}\n{done.stdout}{done.stderr}"
    return done.stderr


def refused_publish(*args):
    """Publish and return the error. The tool reports a refusal after its timeout; a short timeout may end before the
    broker has refused."""
    limit_s = 3
    while (error := publish(*args, "--timeout", limit_s, code=REFUSED)) is None:
        assert limit_s < PATIENCE_S
        limit_s *= 2
    return error


def value(stub, model, key):
    return floats(ask(stub, model, {"a": [key]}).results[0])[0].tolist()


@pytest.mark.parametrize("ours, theirs", (("SCRAM-SHA-256", "PLAIN"), ("PLAIN", "SCRAM-SHA-256")))
def test_updates_when_the_broker_requires_tls_and_a_password_then_they_are_applied(secure, daemon, work, ours, theirs):
    model = f"safe{len(ours)}"
    letters = secure.broker.create(f"letters.{model}")
    topic = secure.broker.create(f"hps_et.{model}.a", 2)
    config = config_of(work, secure, model, secure.properties(ours))
    config["update_source"]["dead_letter_topic"] = letters
    one = daemon(config)
    secure.broker.write(topic, [{"key": b"bad", "value": b"bad"}])
    publish(secure, model, secure.properties(theirs), "3 7 7 7 7\n4 null\n", "--wait", "--addr", one.admin,
            "--wait-timeout", PATIENCE_S)
    assert value(one.stub(), model, 3) == [7] * DIM
    assert value(one.stub(), model, 4) == [-1] * DIM
    one.ctl("--timeout", PATIENCE_S, "wait-for", "now", "--model", model, "--allow-refused")
    assert [m.value() for m in secure.broker.read(letters)] == [b"bad"]
    assert PASSWORD not in one.log() and PASSWORD not in str(one.ctl("config", "get"))


@pytest.mark.parametrize("number", range(4))
def test_updates_when_the_broker_refuses_then_hpsd_and_hps_publish_report_it_and_lookups_succeed(secure, daemon, work, number):
    properties, words = secure.wrong()[number]
    model = f"refused{number}"
    topic = secure.broker.create(f"hps_et.{model}.a", 1)
    one = daemon(config_of(work, secure, model, properties))
    stub = one.stub()
    until(lambda: all(word in one.log() for word in words), "the reason in the log")
    assert not one.ctl("updates", "--model", model, "-o", "json")[0]["versions"][0].get("connected")
    assert value(stub, model, 3) == [3] * DIM
    if number < 3:
        error = refused_publish(secure, model, properties, "3 7 7 7 7\n")
    else:
        error = publish(secure, model, properties, "3 7 7 7 7\n", "--timeout", 3, code=NO_ANSWER)
    assert secure.address in error and all(word in error for word in words), error
    assert secure.broker.read(topic) == []
    said = one.ctl("--timeout", 1, "wait-for", "now", "--model", model, code=4)
    assert "is not connected to Kafka" in said and all(word in said for word in words), said
    assert value(stub, model, 3) == [3] * DIM
