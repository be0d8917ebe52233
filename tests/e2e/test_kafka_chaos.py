# SPDX-License-Identifier: Apache-2.0
"""Checks hpsd's claims of freshness while the network, the three Kafka brokers, the topics and hpsd itself fail.

A relay (tests/lib/relay.py) in front of each broker is cut, hangs, loses one direction or is slow. Leaders move, and
brokers are killed. Topics are created, grow, are compacted, deleted and recreated. Rights on topics and groups are
removed and restored. Versions are activated, frozen and paused, and hpsd is killed. Concurrently, the threads of
kafka_actors.py write, look up rows, read metrics and run the tools. tests/lib/claims.py compares the claims that they
receive with the acknowledged updates. At the end of each round all failures end, and the test makes all partitions
run again. Then it compares every row with the log, as a stock client reads it.

A seed determines the events and their order, but not their exact times. HPS_CHAOS_S is the duration in seconds,
HPS_KILL_SEED the seed. Each run prints both. A failed run also prints what happened around each lie:

    HPS_KILL_SEED=1234 HPS_CHAOS_S=60 python3 -m pytest -s -p no:cacheprovider tests/e2e/test_kafka_chaos.py

HPS_CHAOS_ONLY is a regular expression that selects events by name: `hang|cut`.
"""
import collections
import concurrent.futures
import contextlib
import datetime
import glob
import itertools
import math
import os
import random
import re
import signal
import threading
import time
import traceback

import grpc
import numpy as np
import pytest

import claims
import kafka_actors as actors
import kafka_cluster
import relay
from kafka_actors import BY_NAME, FILE_KEYS, KEYS, MODELS, MORTAL, TABLES, TOPICS, topics_of
from rig import (PATIENCE_S, SLOW, Daemon, Table, chaos_s, default_config, kafka, kill_seed, model_config,
                 scratch, until)

pytestmark = [pytest.mark.skipif(kafka.missing() is not None, reason=f"no Kafka broker: {kafka.missing()}"),
              pytest.mark.chaos]

SECONDS = chaos_s()
ROUND_S = 15  # between two comparisons of all rows
PACE = min(SLOW, 3)  # a sanitizer build may take longer to detect changes
GRACE_S = 0.5 + 3 * PACE  # in which hpsd must detect a recreated topic; its claims of freshness must always be right
BOUND_S = 4 * PACE  # in which hpsd must detect an unreachable leader
MARGIN_S = 0.15  # tolerance for metrics
LAG_MAX_S = 2  # a version that is further behind is not activated
RIGHTS = ("Read", "Describe", "DescribeConfigs")
FIRST, SECOND, STRANGE = 1, 2, 3  # versions of `wide`; STRANGE is of another lineage
SHOWN = 2  # number of lies of each kind that are printed in full


class Story:
    """Causes the failures of brokers and daemon, and checks what must hold."""

    def __init__(self, work, cluster, seed):
        self.work, self.cluster, self.seed, self.begun = work, cluster, seed, time.time()
        self.steps, self.gate, self.counts = [], threading.Event(), collections.Counter()
        self.relay_locks = [threading.Lock() for _ in self.cluster.nodes]
        self.topic_locks = {topic.name: threading.Lock() for topic in TOPICS}
        self.history, self.reach = claims.History(FILE_KEYS), claims.Reach()
        self.judge = claims.Judge(self.history, self.reach, BOUND_S, MARGIN_S)
        self.right = None, {}  # number of writes, and the rows of the log after them
        self.strangers = {}  # facts of recreated topics that the operator has not accepted yet, by name
        self.is_frozen = False  # whether a version of wide is frozen, or may be
        self.unread = set()  # topics recreated since the last comparison, perhaps before hpsd had read them
        for topic in TOPICS:
            topic.partitions = 0
            self.cluster.allow("topic", topic.name, *RIGHTS)
            if topic not in topics_of("late")[1:]:
                self.make(topic)
        self.cluster.allow("group", "*", "Read")
        self.daemon = self.start_daemon()
        self.stage = actors.Stage(seed, self.cluster, self.daemon, self.history, self.judge, self.lookup_address)
        self.judge.fact("without topics", "bare", 0)
        self.eyes = actors.Eyes(self.stage)
        self.writer, self.transactor = actors.Writer(self.stage), actors.Transactor(self.stage)
        self.publisher, self.watcher = actors.Publisher(self.stage), actors.Watcher(self.stage)
        self.actors = [self.writer, self.transactor, self.publisher, self.watcher, actors.Scraper(self.stage),
                       actors.Teller(self.stage), actors.Waiter(self.stage),
                       *(actors.Looker(self.stage, number) for number in range(2))]

    # ---- set-up ----

    @property
    def lookup_address(self):
        return f"unix:{self.work}/lookup.sock"

    def start_daemon(self):
        keys = np.arange(FILE_KEYS, dtype="<i8")
        paths = {}
        for version, model in itertools.product((FIRST, SECOND, STRANGE), MODELS):
            rows = np.array([claims.row_of(key, -version) for key in keys.tolist()])
            paths[model, version] = [Table(table, keys, rows).save(f"{self.work}/{model}/{version}")
                                     for table in TABLES[model]]
        models = [model_config(model, paths[model, FIRST], [claims.DIM] * len(names), list(names),
                               defaults=[claims.DEFAULT] * len(names)) for model, names in TABLES.items()]
        source = {"type": "kafka_message_queue", "brokers": self.cluster.fronts, "start": "earliest",
                  "properties": self.cluster.properties}
        self.config = default_config(models, update_source=source, server={
            "model_roots": [self.work], "activate_lag_max_s": LAG_MAX_S, "keep_versions": 3, "hot_keys_save_s": 0,
            "log_level": "debug"})
        one = Daemon(self.work, self.config, listen=(self.lookup_address,))
        one.load("wide", f"{self.work}/wide/{SECOND}", version=SECOND)
        return one

    def make(self, topic, at_once=False):
        """Create a topic. Wait until clients see it, unless `at_once`."""
        self.insist(lambda: self.cluster.make(topic.name, topic.first, topic.replicas, **dict(topic.config)),
                    "TOPIC_ALREADY_EXISTS")
        if not at_once:
            until(lambda: self.cluster.led(topic.name), f"{topic.name} to be led", PATIENCE_S * 4)
        self.history.make(topic.name, time.time())
        topic.partitions = topic.first

    def unmake(self, topic):
        self.unread.add(topic.name)
        topic.partitions = 0
        self.history.unmake(topic.name, time.time())
        self.insist(lambda: self.cluster.settle("delete_topics", [topic.name]), "UNKNOWN_TOPIC_OR_PART")

    def insist(self, what, done=""):
        """Repeat a request to the brokers until it succeeds; its result, or None if it fails with the error `done`."""
        found = []

        def is_done():
            try:
                found.append(what())
            except self.cluster.kafka().KafkaException as error:
                if error.args[0].name() == done:
                    found.append(None)
            return found

        until(is_done, "an answer of the brokers", PATIENCE_S * 4, 0.2)
        return found[0]

    # ---- steps ----

    @contextlib.contextmanager
    def step(self, text):
        begun = time.time()
        one = [begun, None, text]
        self.steps.append(one)
        try:
            yield
        finally:
            one[1] = time.time()

    def wait(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.check()
            self.gate.wait(0.05)

    def check(self):
        assert not self.stage.failures, "\n".join(self.stage.failures)
        assert self.stage.lives % 2 or self.daemon.alive(), f"hpsd ended with {self.daemon.process.poll()}"
        self.cluster.check()

    # ---- events of the network ----

    @contextlib.contextmanager
    def relays_are(self, state, nodes):
        with contextlib.ExitStack() as held:
            for node in sorted(nodes):
                held.enter_context(self.relay_locks[node])
            with self.step(f"broker {', '.join(str(node + 1) for node in nodes)}: {state}"):
                for node in nodes:
                    self.cluster.relays[node].set(state)
                try:
                    yield
                finally:
                    self.watcher.all_may_be_reached()
                    for node in nodes:
                        self.cluster.relays[node].set(relay.PASS)

    def one_is(self, state, rng):
        return self.relays_are(state, [rng.randrange(len(self.cluster.nodes))])

    def cut(self, rng):
        return self.one_is(relay.CUT, rng)

    def hang(self, rng):
        return self.one_is(relay.HANG, rng)

    def deaf(self, rng):
        return self.one_is(relay.DEAF, rng)

    def mute(self, rng):
        return self.one_is(relay.MUTE, rng)

    def slow(self, rng):
        return self.one_is(relay.SLOW, rng)

    def all_cut(self, rng):
        return self.relays_are(rng.choice((relay.CUT, relay.HANG)), range(len(self.cluster.nodes)))

    # ---- events of brokers ----

    @contextlib.contextmanager
    def leader_moved(self, rng):
        """Reassign a partition to other brokers: to as many as the topic has replicas."""
        topic = rng.choice([topic for topic in self.topics_now() if not topic.config])
        share, nodes = rng.random(), list(self.cluster.nodes)
        rng.shuffle(nodes)
        with self.topic_locks[topic.name]:
            partition = int(share * topic.partitions)
            with self.step(f"{topic.name}:{partition} moves to broker {nodes[0].id}"):
                self.cluster.move(topic.name, partition, *nodes[:topic.replicas])
        yield

    @contextlib.contextmanager
    def broker_away(self, node, how):
        with self.step(f"broker {node.id}: {how}"):
            getattr(node, how)()
            try:
                yield
            finally:
                self.watcher.all_may_be_reached()
                self.cluster.start(node)
        self.cluster.balance(BY_NAME)

    def broker_killed(self, rng):
        return self.broker_away(rng.choice(self.cluster.nodes[kafka_cluster.CONTROLLER + 1:]), "kill")

    def broker_stopped(self, rng):
        return self.broker_away(rng.choice(self.cluster.nodes[kafka_cluster.CONTROLLER + 1:]), "stop")

    # ---- events of topics ----

    def topics_now(self):
        return [topic for topic in TOPICS if topic.partitions]

    @contextlib.contextmanager
    def topic_grown(self, rng):
        """Add a partition, and write rows to it as soon as clients see it."""
        found = [topic for topic in topics_of("grown") if topic.partitions < topic.most]
        for topic in rng.sample(found, min(1, len(found))):
            with self.topic_locks[topic.name], self.writer.hold(topic):
                before = topic.partitions
                with self.step(f"{topic.name}: partition {before} is added"):
                    self.insist(lambda: self.cluster.grow(topic.name, before + 1), "INVALID_PARTITIONS")
                    topic.partitions = before + 1
                    self.fill_new(topic, first=before)
        yield

    @contextlib.contextmanager
    def topic_created(self, rng):
        """Create the next topic of `late`, and write rows to it at once."""
        for topic in [topic for topic in topics_of("late") if not topic.partitions][:1]:
            with self.topic_locks[topic.name], self.writer.hold(topic):
                with self.step(f"{topic.name}: created"):
                    self.make(topic, at_once=rng.random() < 0.5)
                    self.fill_new(topic)
        yield

    def fill_new(self, topic, **how):
        self.writer.renew(topic)
        self.writer.fill(topic, **how)

    @contextlib.contextmanager
    def topic_gone(self, rng):
        """Delete a topic and recreate it later, with fewer, as many or more records."""
        for topic in self.some_read(rng):
            with self.topic_locks[topic.name], self.writer.hold(topic):
                with self.step(f"{topic.name}: deleted"):
                    ends = self.ends(topic, rng.choice((-math.inf, 0, 10)))
                    self.unmake(topic)
                    yield
                with self.step(f"{topic.name}: made anew"):
                    self.make(topic)
                    self.make_known(topic, ends)
            self.wait(GRACE_S + rng.uniform(1, 3))
            self.adopt(topic)
            return
        yield

    @contextlib.contextmanager
    def topic_made_anew(self, rng):
        """Delete a topic and recreate it at once. It soon has as many records or more."""
        for topic in self.some_read(rng):
            with self.topic_locks[topic.name], self.writer.hold(topic):
                with self.step(f"{topic.name}: deleted, made anew at once"):
                    ends = self.ends(topic, rng.choice((0, 1, 500)))
                    self.unmake(topic)
                    self.make(topic, at_once=True)
                    self.make_known(topic, ends, rng.choice((0, 20000)))
                    self.wait(GRACE_S)
            yield
            self.adopt(topic)
            return
        yield

    def some_read(self, rng):
        """A list of one topic that hpsd has read completely since it was created, or of none."""
        found = [topic for topic in topics_of("anew") if topic.name not in self.unread]
        return rng.sample(found, min(1, len(found)))

    def ends(self, topic, more):
        """The end of each partition plus `more`."""
        return [end + more for _, (_, end) in sorted(self.insist(lambda: self.cluster.offsets(topic.name)).items())]

    def make_known(self, topic, ends, padding=0):
        """Fill the recreated topic, and tell the judge that it was recreated."""
        self.fill_new(topic, ends=ends[:topic.partitions], padding=padding)
        self.strangers[topic.name] = self.judge.fact("made anew", topic.model, time.time(), topic=topic.name)

    def adopt(self, topic):
        """Accept the recreated topic as an operator does, from its beginning; whether the daemon did it."""
        self.strangers[topic.name].ended = min(self.strangers[topic.name].ended, time.time())
        with self.step(f"{topic.name}: seek to its beginning"):
            code, _, _ = self.stage.ctl("updates", "seek", "--model", topic.model, "--topic", topic.name, "--to",
                                        "earliest")
        if code == 0:
            del self.strangers[topic.name]
        return code == 0

    @contextlib.contextmanager
    def tombstones_lost(self, rng):
        """Delete a key while hpsd cannot reach the leader, and wait until compaction has removed the tombstone."""
        topic = topics_of("dense")[0]
        key = rng.randrange(MORTAL, KEYS)
        partition = key % topic.partitions
        node = self.leader(topic, partition)
        if self.history.last(topic.model, topic.table, key).is_delete or node is None:
            yield
            return
        with self.topic_locks[topic.name], self.relays_are(rng.choice(actors.OUT_OF_REACH), [node]):
            with self.step(f"{topic.name}:{partition}: key {key} is deleted, until nothing of that is left"):
                self.writer.sent(topic, partition, key, True)
                until(lambda: self.check() or not self.has_records(topic, key), "a tombstone to go",
                      PATIENCE_S * 4, 0.5)
            self.counts["tombstones"] += 1
            yield
        self.wait(rng.uniform(1, 4))

    def leader(self, topic, partition):
        """The index of the leader's node, or None."""
        nodes = [one.node for one in self.cluster.leaders([topic.name], self.cluster.admin())
                 if one.partition == partition]
        return self.cluster.nodes.index(nodes[0]) if nodes and nodes[0] is not None else None

    def has_records(self, topic, key):
        """Whether the log has records of the key."""
        return any(int(np.frombuffer(message.key(), "<i8")[0]) == key
                   for message in self.insist(lambda: self.cluster.read(topic.name)))

    def read_taken(self, rng):
        return self.rights_taken(rng.choice(self.topics_now()), ("Describe", "DescribeConfigs"))

    def hidden(self, rng):
        return self.rights_taken(rng.choice(self.topics_now()), ())

    @contextlib.contextmanager
    def rights_taken(self, topic, left):
        with self.topic_locks[topic.name], self.step(f"{topic.name}: rights left: {' '.join(left) or 'none'}"):
            self.cluster.deny("topic", topic.name)
            if left:
                self.cluster.allow("topic", topic.name, *left)
            try:
                yield
            finally:
                self.cluster.allow("topic", topic.name, *RIGHTS)

    @contextlib.contextmanager
    def group_taken(self, _):
        with self.step("no rights on groups"):
            self.cluster.deny("group", "*")
            try:
                yield
            finally:
                self.cluster.allow("group", "*", "Read")

    # ---- events of the daemon ----

    @contextlib.contextmanager
    def daemon_killed(self, rng):
        self.kill_daemon(rng)
        yield

    def kill_daemon(self, rng):
        """Kill the daemon and restart it soon."""
        with self.step("hpsd: killed"):
            self.stage.lives += 1
            self.daemon.kill()
            self.wait(rng.uniform(0, 1))
            self.daemon.restart()
            self.stage.lives += 1

    @contextlib.contextmanager
    def throttled(self, rng):
        """Limit the rate of updates, so that hpsd falls far behind."""
        def set_rate(rows_per_s):
            source = {**self.config["update_source"], "max_rows_per_s": rows_per_s}
            self.daemon.write_config({**self.config, "update_source": source})
            self.daemon.send(signal.SIGHUP)

        rate = rng.choice((1, 10))
        with self.step(f"hpsd: {rate} rows a second"):
            set_rate(rate)
            try:
                yield
            finally:
                set_rate(0)

    @contextlib.contextmanager
    def activated(self, _):
        if not self.is_frozen:
            self.activate()
        yield

    def activate(self):
        """Activate the other version of the same lineage; whether that succeeded."""
        with self.stage.switching():
            with contextlib.suppress(actors.Away):
                before = self.eyes.see("wide")
                wanted = SECOND if before.version == FIRST else FIRST
                begun = time.time()
                with self.step(f"activate wide {wanted}"):
                    code, _, _ = self.stage.ctl("activate", "wide", wanted)
                self.counts[f"activate, exit {code}"] += 1
                if code == 0:
                    self.judge.activated(self.eyes.see("wide", wanted), before, LAG_MAX_S, begun)
                return code == 0

    @contextlib.contextmanager
    def frozen(self, rng):
        """Activate a version of another lineage, which freezes versions 1 and 2, and switch back."""
        since, facts, self.is_frozen = round(time.time() * 1000) - 5000, [], True
        with contextlib.suppress(grpc.RpcError):  # it is loaded already, or too many brokers are unreachable
            self.daemon.load("wide", f"{self.work}/wide/{STRANGE}", version=STRANGE, lineage="another")
        try:
            for _ in range(20):  # the version must catch up first, and leaders may be unreachable
                if self.switched(STRANGE):
                    break
                self.wait(0.5)
            else:
                yield
                return
            facts.append(self.judge.fact("frozen", "wide", time.time(), (FIRST, SECOND)))
            with self.step("wide: versions 1 and 2 are frozen"):
                self.wait(rng.uniform(0, 2))
                self.switched(FIRST)
                if rng.random() < 0.5:
                    self.kill_daemon(rng)
                yield
                facts[0].ended = time.time()
        finally:
            self.is_frozen = not all([self.thaw(version, since) for version in (FIRST, SECOND)])
            self.switched(FIRST)
            with self.step("wide: version 3 goes"):
                self.stage.ctl("unload", "wide", STRANGE)

    def switched(self, version):
        with self.stage.switching(), self.step(f"activate wide {version}"):
            code, _, _ = self.stage.ctl("activate", "wide", version)
        self.counts[f"activate for a freeze, exit {code}"] += 1
        return code == 0

    def thaw(self, version, since_ms=None):
        with self.step(f"wide {version}: seek back, before it was frozen"):
            return self.stage.ctl("updates", "seek", "--model", "wide", "--version", version, "--to",
                                  f"@{since_ms}" if since_ms else "earliest")[0] == 0

    @contextlib.contextmanager
    def paused(self, rng):
        model = rng.choice(("wide", "dense"))  # no other event seeks in these models; a seek would end the pause
        code, _, _ = self.stage.ctl("updates", "pause", "--model", model)
        fact = self.judge.fact("paused", model, time.time())
        with self.step(f"{model}: paused, exit {code}"):
            if code == 0:
                yield
            fact.ended = time.time() if code == 0 else 0
        self.stage.ctl("updates", "resume", "--model", model)
        if code != 0:
            yield

    TRACKS = {
        "network": (cut, hang, hang, deaf, mute, slow, all_cut),
        "brokers": (leader_moved, leader_moved, leader_moved, broker_killed, broker_stopped),
        "lists": (topic_grown, topic_created),
        "topics": (topic_gone, topic_made_anew, tombstones_lost, read_taken, hidden, group_taken),
        "daemon": (daemon_killed, activated, activated, frozen, paused, throttled),
    }
    PAUSES_S = {"network": (0.5, 3), "brokers": (0.5, 3), "lists": (0.5, 3), "topics": (0.5, 2), "daemon": (1, 4)}
    LASTS_S = {"network": (1, 7), "brokers": (0.5, 5), "lists": (1, 4), "topics": (1, 5), "daemon": (1, 5)}

    def decks(self, name):
        """All events of a track in random order, again and again."""
        rng = random.Random(f"{self.seed}/{name}")
        only = os.environ.get("HPS_CHAOS_ONLY", "")
        events = [event for event in self.TRACKS[name] if re.search(only, event.__name__)]
        while events:
            for event in rng.sample(events, len(events)):
                yield event, rng

    def track(self, name, deck, end):
        """Run one event after the other until the round ends."""
        try:
            for event, rng in deck:
                with contextlib.ExitStack() as happening:
                    happening.enter_context(event(self, rng))
                    self.counts[event.__name__] += 1
                    self.wait(rng.uniform(*self.LASTS_S[name]))
                self.wait(rng.uniform(*self.PAUSES_S[name]))
                if time.monotonic() > end:
                    return
        except BaseException:
            if not self.stage.failures:  # else another thread has failed first
                self.stage.fail(f"{name}: {traceback.format_exc()}")

    # ---- after a round ----

    def repair(self):
        """Make all partitions run again, as an operator would."""
        with self.step("all is mended"):
            self.cluster.balance(BY_NAME)
            for topic in [BY_NAME[name] for name in list(self.strangers)]:
                self.await_stranger(topic)
                until(lambda topic=topic: self.check() or self.adopt(topic), f"{topic.name} to be read anew")
            until(lambda: self.check() or self.all_run(), "all partitions to run", PATIENCE_S * 4, 0.2)
            self.is_frozen = False

    def await_stranger(self, topic):
        """By now hpsd must have detected that the topic was recreated."""
        def states():
            told = self.stage.updates("--model", topic.model, "--refresh") or []
            return {one["state"] for of in told for one in of.get("partitions", []) if one["topic"] == topic.name}

        try:
            until(lambda: self.check() or "running" not in states(), "it to be seen", int(GRACE_S) + 5, 0.2)
        except AssertionError:
            self.judge.lie("made anew", topic.model, time.time(), f"{topic.name} was made anew, and is {states()}")

    def all_run(self):
        """Whether all partitions run. Thaws, resumes or accepts gaps where necessary."""
        told, is_well = self.stage.updates("--refresh"), True
        for of in told or []:
            model, version, met = of["model"], of["version"], set()
            if of.get("frozen"):
                is_well = False
                self.thaw(int(version))
            for one in of.get("partitions", []):
                where = ("--model", model, "--topic", one["topic"], "--partition", one.get("partition", 0))
                met.add((one["topic"], int(one.get("partition", 0))))
                is_well = is_well and one["state"] == "running"
                if one["state"] == "gap":
                    self.accept(BY_NAME[one["topic"]], int(one.get("partition", 0)), where, one.get("reason"))
                elif one["state"] in ("failed", "paused"):
                    self.stage.ctl("updates", "resume", *where)
            is_well = is_well and met == {place for topic in topics_of(model) for place in topic.places}
        return is_well and told

    def accept(self, topic, partition, where, reason):
        self.counts[f"gap of {topic.name}"] += 1
        if not topic.config and topic.name not in self.unread:
            self.judge.lie("gap", topic.model, time.time(), f"{topic.name}:{partition} has a gap, and nothing is gone: "
                           f"{reason}")
        self.history.accept(topic.name, partition, time.time())
        with self.step(f"{topic.name}:{partition}: the gap is accepted ({reason})"):
            code, _, _ = self.stage.ctl("updates", "accept-gap", *where)
        if code == 0 and topic is not actors.PUBLISHED:  # the Publisher writes its rows
            self.refill(topic)

    def refill(self, topic):
        """Write every key again, so that lost updates no longer matter."""
        self.writer.fill(topic)
        self.revive(topic)

    def revive(self, topic):
        """Write the keys of compacted topics that `tombstones_lost` deletes later."""
        for key in range(MORTAL, KEYS) if topic.config else ():
            last = self.history.last(topic.model, topic.table, key)
            if last is None or last.is_delete:
                self.writer.sent(topic, key % topic.partitions, key, False)

    def in_log(self, topic, messages):
        """{key: number of its last write; None: a tombstone}, as a stock client reads the log. A write that is found in
        the log without an acknowledgement counts as acknowledged now."""
        puts, found = collections.defaultdict(int), {}
        for message in messages:
            key = int(np.frombuffer(message.key(), "<i8")[0])
            found[key] = None if message.value() is None else int(np.frombuffer(message.value(), "<f4")[1])
            puts[key] = found[key] or puts[key]
        for key, number in found.items():
            later = [one for one in self.history.of[topic.model, topic.table, key]
                     if (one.number == number if number else one.is_delete and one.number > puts[key])]
            assert later, f"{topic.name}, key {key}: the log has {number}, which nobody wrote"
            if all(one.acked == np.inf for one in later):
                later[0].acked = time.time()
        return found

    def eventually(self, holds, what):
        """Wait until `holds()`. The operator repairs partitions that stop: a slow machine causes gaps, too."""
        end = time.monotonic() + 2 * PATIENCE_S
        while not holds():
            assert time.monotonic() < end, f"{what}: not within {2 * PATIENCE_S} s"
            self.check()
            self.all_run()
            self.gate.wait(0.1)

    def compare(self):
        """Wait until every row equals the last write of its key, and all claims are fresh again."""
        with self.step("all is compared"):
            with self.transactor.resting, self.publisher.resting, self.writer.hold(*TOPICS):
                self.insist(self.transactor.settle)
                try:
                    self.eventually(self.is_right, "all rows to be those of the log")
                except AssertionError:
                    self.tell_differing()
                    self.eventually(self.is_right, "all rows, written anew")
                self.counts["compared"] += 1
            self.unread.clear()
            for topic in TOPICS:
                self.revive(topic)
            self.await_fresh()

    def is_right(self):
        """Whether all rows equal the log. Reads the log again only after new writes."""
        n_writes = len(self.history.updates)
        if self.right[0] != n_writes:
            self.right = n_writes, self.wanted()
        return not self.differing(self.right[1])

    def tell_differing(self):
        """Record the rows that differ as lies, and write their topics again so that the test can continue."""
        differing = self.differing(self.right[1])
        for model, version, table, key, number, right in differing[:4 * SHOWN]:
            self.judge.lie("row for ever", model, time.time(), f"{model}/{version}, table {table}, key {key} is "
                           f"{self.judge.told(number)}, the log has {self.judge.told(right)}")
        for topic in TOPICS:
            if any(one[0] == topic.model and one[2] == topic.table for one in differing):
                self.refill(topic)

    def wanted(self):
        """{(model, table, key): number of its last write; None: no row}, from the log."""
        found, topics = {}, self.topics_now()
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            read = pool.map(lambda topic: self.insist(lambda: self.cluster.read(topic.name)), topics)
        for topic, messages in zip(topics, read):
            log = self.in_log(topic, messages)
            for key in range(KEYS):
                now, last = time.time(), self.history.last(topic.model, topic.table, key)
                number = None if last is None or last.is_delete else last.number
                is_told = key in log or (last is None or (last.is_delete and topic.config))
                assert is_told and log.get(key) == number, (
                    f"{topic.name}, key {key}: the log has {log.get(key)}, acknowledged was {last}")
                if last is not None and self.history.counts(last, now):
                    found[topic.model, topic.table, key] = number
        return found

    def differing(self, wanted):
        """[(model, version, table, key, number of the write that is returned, expected number)]"""
        found = []
        for model, version in (("wide", FIRST), ("wide", SECOND), *((model, 0) for model in MODELS[1:-1])):
            sight = self.eyes.see(model, version)
            for table, rows in sight.rows.items():
                found += [(model, sight.version, table, key, number, wanted[model, table, key])
                          for key, number in rows.items()
                          if (model, table, key) in wanted and number != wanted[model, table, key]]
        return found

    def await_fresh(self):
        """hpsd must report fresh models within a bounded time."""
        for model in MODELS[:-1]:
            self.eventually(lambda model=model: self.looks_fresh(model), f"{model} to be fresh")
            self.eventually(lambda model=model: self.waits(model), f"{model} to be waited for")
            self.eventually(lambda model=model: self.told_fresh(model), f"metrics to tell that {model} is fresh")
        published = "hps-publish --wait, exit 0"
        before = self.stage.counts[published]
        self.eventually(lambda: self.stage.counts[published] > before, published)
        self.eventually(self.activate, "a version to be activated")

    def looks_fresh(self, model):
        with contextlib.suppress(actors.Refused):
            return self.eyes.see(model, 0, 1000)

    def waits(self, model):
        return self.stage.ctl("--timeout", 10 * SLOW, "wait-for", "now", "--model", model)[0] == 0

    def told_fresh(self, model):
        found = actors.samples(self.daemon.get("/metrics")[1])
        return (found["update_source_up"].get((model,)) == 1
                and found["update_staleness_seconds"].get((model,), np.inf) < 2 * PACE)

    # ---- the run ----

    def run(self):
        for topic in TOPICS:
            if topic.weight:
                self.writer.fill(topic)
        for topic in topics_of("dense"):
            self.refill(topic)
        until(lambda: self.all_run(), "all partitions to run")
        for one in self.actors:
            one.start()
        self.compare()
        decks = {name: self.decks(name) for name in self.TRACKS}
        begun = time.monotonic()
        while time.monotonic() - begun < SECONDS:
            end = min(time.monotonic() + ROUND_S * min(SLOW, 2), begun + SECONDS)
            threads = [threading.Thread(target=self.track, args=(name, deck, end), name=name, daemon=True)
                       for name, deck in decks.items()]
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    self.check()
                    thread.join(0.2)
            self.check()
            self.repair()
            self.compare()

    def told(self):
        """The lies by kind, each with the steps around it."""
        lines = []
        def kind_of(lie):
            return lie.kind, lie.model

        for (kind, model), found in itertools.groupby(sorted(self.judge.lies, key=kind_of), key=kind_of):
            found = sorted(found, key=lambda lie: lie.at)
            lines.append(f"{len(found)} lies of kind {kind} {model}; the first:")
            for lie in found[:SHOWN * (4 if kind == "row for ever" else 1)]:
                lines.append(f"  {lie.at - self.begun:7.2f} s: {lie.text}")
                lines += [f"      {self.span(step)} {step[2]}" for step in self.steps
                          if step[0] < lie.at + 2 and (step[1] is None or step[1] > lie.at - 12)]
            if found[0].kind != "row for ever":
                lines += [f"      {line}" for line in self.logged(found[0].at - 12, found[0].at + 6)]
        return "\n".join(lines)

    def logged(self, begun, ended):
        """Lines about updates that hpsd logged in this time, before and after restarts."""
        said = []
        for path in glob.glob(f"{self.work}/*.log"):
            with open(path, encoding="utf-8", errors="replace") as f:
                for line in f:
                    found = re.match(r"ts=(\S+)Z .*component=(updates|kafka|catalog)", line)
                    if found is not None:
                        at = datetime.datetime.fromisoformat(found[1] + "+00:00").timestamp()
                        if begun < at < ended:
                            said.append((at, f"{at - self.begun:7.2f} {line[len(found[1]) + 5:].rstrip()[:300]}"))
        return [line for _, line in sorted(said)][-SHOWN * 50:]

    def span(self, step):
        ended = "      …" if step[1] is None else f"{step[1] - self.begun:7.2f}"
        return f"[{step[0] - self.begun:7.2f}, {ended}]"

    def summary(self):
        print(f"HPS_KILL_SEED={self.seed} HPS_CHAOS_S={SECONDS}: {len(self.steps)} things happened in "
              f"{time.time() - self.begun:.0f} s; {len(self.history.updates):,} writes")
        for name, seconds in sorted(self.stage.longest.items()):
            print(f"  longest {name:45} {seconds:7.1f} s")
        for what, counts in (("happened", self.counts), ("asked", self.stage.counts), ("judged", self.judge.claims),
                             ("told", self.stage.said)):
            for name, n in sorted(counts.items()):
                print(f"  {what} {name:44} {n:7,}")

    def close(self):
        self.stage.ends.set()
        for one in self.actors:
            if one.ident is not None:
                one.join(PATIENCE_S)
        self.daemon.kill()


def test_freshness_claims_when_kafka_and_hpsd_fail_then_each_claim_matches_the_rows():
    seed = kill_seed()
    with scratch() as work, kafka_cluster.Cluster(f"{work}/kafka") as cluster:
        story = Story(work, cluster, seed)
        try:
            story.run()
            story.stage.ends.set()
            for one in story.actors:
                one.join(PATIENCE_S)
            story.check()
            story.daemon.stop()
            assert not story.judge.lies, f"{len(story.judge.lies)} lies"
        except BaseException:
            print(story.told())
            print("The last steps:", *(f"{story.span(step)} {step[2]}" for step in story.steps[-12:]), sep="\n  ")
            print(story.daemon.log()[-3000:])
            raise
        finally:
            story.summary()
            story.close()
