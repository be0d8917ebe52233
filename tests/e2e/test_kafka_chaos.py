# SPDX-License-Identifier: Apache-2.0
"""A log on three brokers to which everything happens, and a daemon that follows it: nothing that it says of how fresh
it is claims more than is so.

Before each broker is a relay (tests/lib/relay.py) that is cut, hangs, loses one way or is slow. Leaders move, brokers
are killed, topics are created, get more partitions, are compacted, deleted and recreated, rights on them and on the
group are taken away and returned, versions are activated, frozen and paused, and the daemon is killed. Meanwhile others
(kafka_actors.py) write, look up, scrape and run the tools; what these are told is judged by what was acknowledged
(tests/lib/claims.py). Now and then all is mended, an operator does what has to be done, and every row is compared with
the log, as a stock client reads it.

What happens, and in which order, follows from a seed; when, not wholly. HPS_CHAOS_S sets for how long, HPS_KILL_SEED
the choices; each run prints both, a failure also what happened around each lie:

    HPS_KILL_SEED=1234 HPS_CHAOS_S=60 python3 -m pytest -s -p no:cacheprovider tests/e2e/test_kafka_chaos.py

HPS_CHAOS_ONLY, a regular expression, has only those things happen whose names it is in: `hang|cut`.
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
ROUND_S = 15  # between two comparisons of all that there is
PACE = min(SLOW, 3)  # a sanitizer's daemon may take longer to know
GRACE_S = 0.5 + 3 * PACE  # in which it must say that a topic is another one; what it claims must be right at once
BOUND_S = 4 * PACE  # in which it must know that a leader is away
MARGIN_S = 0.15  # of what it exports
LAG_MAX_S = 2  # behind which no version is activated
RIGHTS = ("Read", "Describe", "DescribeConfigs")
FIRST, SECOND, STRANGE = 1, 2, 3  # versions of `wide`; the last is of another lineage
SHOWN = 2  # lies of a kind that are told in full


class Story:
    """What is done to the brokers and the daemon, and what must hold."""

    def __init__(self, work, cluster, seed):
        self.work, self.cluster, self.seed, self.begun = work, cluster, seed, time.time()
        self.steps, self.gate, self.counts = [], threading.Event(), collections.Counter()
        self.relay_locks = [threading.Lock() for _ in self.cluster.nodes]
        self.topic_locks = {topic.name: threading.Lock() for topic in TOPICS}
        self.history, self.reach = claims.History(FILE_KEYS), claims.Reach()
        self.judge = claims.Judge(self.history, self.reach, BOUND_S, MARGIN_S)
        self.right = None, {}  # rows of the log, as of so many writes
        self.strangers = {}  # topics that were made anew, and the operator has not said what of it; facts
        self.is_frozen = False  # a version of wide, or it may be
        self.unread = set()  # topics of which not all had been read when that happened
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

    # ---- what there is ----

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
        """Back when clients see it, or at once, when it is decided."""
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
        """What it returns that is asked of brokers, of which one may be away; None: they say that it has been done."""
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

    # ---- the course of time ----

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

    # ---- what happens to the network ----

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

    # ---- to brokers ----

    @contextlib.contextmanager
    def leader_moved(self, rng):
        """Of one with replicas to another of them, of one without all that it has."""
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

    # ---- to topics ----

    def topics_now(self):
        return [topic for topic in TOPICS if topic.partitions]

    @contextlib.contextmanager
    def topic_grown(self, rng):
        """By a partition, which has rows as soon as clients see it."""
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
        """The first one of a table, which has rows at once."""
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
        """For a while; what comes is another one, which may be longer."""
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
        """At once, and it is as long, or longer, soon."""
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
        """One topic of which all was read since it was made, if there is any."""
        found = [topic for topic in topics_of("anew") if topic.name not in self.unread]
        return rng.sample(found, min(1, len(found)))

    def ends(self, topic, more):
        """Of its partitions, for another topic of so many more records."""
        return [end + more for _, (_, end) in sorted(self.insist(lambda: self.cluster.offsets(topic.name)).items())]

    def make_known(self, topic, ends, padding=0):
        """As another one; it is filled."""
        self.fill_new(topic, ends=ends[:topic.partitions], padding=padding)
        self.strangers[topic.name] = self.judge.fact("made anew", topic.model, time.time(), topic=topic.name)

    def adopt(self, topic):
        """What an operator does who wants the new one: all of it. False: the daemon did not do it."""
        self.strangers[topic.name].ended = min(self.strangers[topic.name].ended, time.time())
        with self.step(f"{topic.name}: seek to its beginning"):
            code, _, _ = self.stage.ctl("updates", "seek", "--model", topic.model, "--topic", topic.name, "--to",
                                        "earliest")
        if code == 0:
            del self.strangers[topic.name]
        return code == 0

    @contextlib.contextmanager
    def tombstones_lost(self, rng):
        """A key is deleted while the leader of its partition is out of reach, until the log says nothing of it."""
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
        """The number of its node, or None."""
        nodes = [one.node for one in self.cluster.leaders([topic.name], self.cluster.admin())
                 if one.partition == partition]
        return self.cluster.nodes.index(nodes[0]) if nodes and nodes[0] is not None else None

    def has_records(self, topic, key):
        """Whether the log says anything of it."""
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

    # ---- to the daemon ----

    @contextlib.contextmanager
    def daemon_killed(self, rng):
        self.kill_daemon(rng)
        yield

    def kill_daemon(self, rng):
        """It is there again soon."""
        with self.step("hpsd: killed"):
            self.stage.lives += 1
            self.daemon.kill()
            self.wait(rng.uniform(0, 1))
            self.daemon.restart()
            self.stage.lives += 1

    @contextlib.contextmanager
    def throttled(self, rng):
        """It may read less than is written, and is far behind soon."""
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
        """The other of two versions of one lineage; whether it is active."""
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
        """A version of another lineage is activated, and left again."""
        since, facts, self.is_frozen = round(time.time() * 1000) - 5000, [], True
        with contextlib.suppress(grpc.RpcError):  # it is loaded already, or too much is away
            self.daemon.load("wide", f"{self.work}/wide/{STRANGE}", version=STRANGE, lineage="another")
        try:
            for _ in range(20):  # it has updates to catch up with, and leaders may be away
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
        model = rng.choice(("wide", "dense"))  # nobody seeks there meanwhile, which ends a pause
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
        """Of a track all that can happen, in an order of chance, again and again."""
        rng = random.Random(f"{self.seed}/{name}")
        only = os.environ.get("HPS_CHAOS_ONLY", "")
        events = [event for event in self.TRACKS[name] if re.search(only, event.__name__)]
        while events:
            for event in rng.sample(events, len(events)):
                yield event, rng

    def track(self, name, deck, end):
        """One thing after the other, until the round ends."""
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
            if not self.stage.failures:  # else it has heard of another's
                self.stage.fail(f"{name}: {traceback.format_exc()}")

    # ---- when all is mended ----

    def repair(self):
        """As an operator: what stands still is told to go on."""
        with self.step("all is mended"):
            self.cluster.balance(BY_NAME)
            for topic in [BY_NAME[name] for name in list(self.strangers)]:
                self.await_stranger(topic)
                until(lambda topic=topic: self.check() or self.adopt(topic), f"{topic.name} to be read anew")
            until(lambda: self.check() or self.all_run(), "all partitions to run", PATIENCE_S * 4, 0.2)
            self.is_frozen = False

    def await_stranger(self, topic):
        """That a topic was made anew must be told by now."""
        def states():
            told = self.stage.updates("--model", topic.model, "--refresh") or []
            return {one["state"] for of in told for one in of.get("partitions", []) if one["topic"] == topic.name}

        try:
            until(lambda: self.check() or "running" not in states(), "it to be seen", int(GRACE_S) + 5, 0.2)
        except AssertionError:
            self.judge.lie("made anew", topic.model, time.time(), f"{topic.name} was made anew, and is {states()}")

    def all_run(self):
        """Whether nothing stands still any more; what does gets a push."""
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
        if code == 0 and topic is not actors.PUBLISHED:  # whose rows somebody else is writing
            self.refill(topic)

    def refill(self, topic):
        """Every key is written anew: what was lost does not matter any more."""
        self.writer.fill(topic)
        self.revive(topic)

    def revive(self, topic):
        """Keys of compacted topics that are to be deleted later are there."""
        for key in range(MORTAL, KEYS) if topic.config else ():
            last = self.history.last(topic.model, topic.table, key)
            if last is None or last.is_delete:
                self.writer.sent(topic, key % topic.partitions, key, False)

    def in_log(self, topic, messages):
        """{key: number of the write that is the last, or None: a tombstone is}, as a stock client reads it. Of what is
        there we know now, if nobody had told, that it was acknowledged."""
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
        """Wait for it; meanwhile the operator looks after what stands still: a busy machine makes gaps of its own."""
        end = time.monotonic() + 2 * PATIENCE_S
        while not holds():
            assert time.monotonic() < end, f"{what}: not within {2 * PATIENCE_S} s"
            self.check()
            self.all_run()
            self.gate.wait(0.1)

    def compare(self):
        """Every row is as it was written last, and nothing is old any more."""
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
        """Whether all rows are those of the log, which is read when it has changed."""
        n_writes = len(self.history.updates)
        if self.right[0] != n_writes:
            self.right = n_writes, self.wanted()
        return not self.differing(self.right[1])

    def tell_differing(self):
        """And write it anew, to go on."""
        differing = self.differing(self.right[1])
        for model, version, table, key, number, right in differing[:4 * SHOWN]:
            self.judge.lie("row for ever", model, time.time(), f"{model}/{version}, table {table}, key {key} is "
                           f"{self.judge.told(number)}, the log has {self.judge.told(right)}")
        for topic in TOPICS:
            if any(one[0] == topic.model and one[2] == topic.table for one in differing):
                self.refill(topic)

    def wanted(self):
        """{(model, table, key): number of its last write; None: there is to be no row}. The log is asked."""
        found, topics = {}, self.topics_now()
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            read = pool.map(lambda topic: self.cluster.read(topic.name), topics)
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
        """[(model, version, table, key, the write that is there, the one that is right)]"""
        found = []
        for model, version in (("wide", FIRST), ("wide", SECOND), *((model, 0) for model in MODELS[1:-1])):
            sight = self.eyes.see(model, version)
            for table, rows in sight.rows.items():
                found += [(model, sight.version, table, key, number, wanted[model, table, key])
                          for key, number in rows.items()
                          if (model, table, key) in wanted and number != wanted[model, table, key]]
        return found

    def await_fresh(self):
        """It may be as careful as it likes, but not for ever."""
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

    # ---- its course ----

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
        """What was found, by kind, each with what happened around it."""
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
        """What hpsd, in all its lives, said of updates between."""
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


def test_kafka_when_all_happens_to_it_then_nothing_claims_more_than_is_so():
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
