# SPDX-License-Identifier: Apache-2.0
"""The threads of the chaos test of Kafka. Some write updates. Others query hpsd and give its claims to the judge
(tests/lib/claims.py). One records which leaders hpsd can reach.

Models: `wide` has many partitions on all brokers, transactions and several versions; `dense` has compacted topics; the
topics of `anew` are recreated; the topics of `grown` get more partitions; the topics of `late` are created one after
the other; `bare` has no topics.
"""
import collections
import contextlib
import dataclasses
import json
import math
import os
import random
import re
import subprocess
import threading
import time
import traceback

import grpc
import numpy as np

import relay
from claims import DEFAULT, DIM, FOUND, Sight, numbers_in, row_of
from rig import BIN, PATIENCE_S, REPORT, SANITIZER, SLOW, key_bytes, pb, pb_grpc, records

KEYS, FILE_KEYS = 48, 32  # of each table; files have the keys below FILE_KEYS
MORTAL = KEYS - 3  # in compacted topics, only the test itself writes the keys from here on
RATE = 40 if SANITIZER else 120  # records a second
UNSENT_MAX = 300  # of a topic, while its leaders are unreachable
TRANSACTIONAL = "hps_et.wide.b"  # some of its keys are written only in transactions
OUT_OF_REACH = (relay.CUT, relay.HANG, relay.DEAF, relay.MUTE)
UNREACHABLE, DEADLINE, NEGATIVE = 3, 4, 5  # exit codes
VERBS = ("updates", "--refresh", "wait-for", "now", "activate", "seek", "accept-gap", "pause",
         "resume", "unload", "--wait")
FAMILIES = ("update_staleness_seconds", "update_source_up", "update_lag_records", "update_lag_seconds", "update_gap",
            "update_partition_state", "update_frozen")


@dataclasses.dataclass(eq=False)
class Topic:
    model: str
    table: str
    first: int  # partitions when it is created
    replicas: int
    weight: float  # relative number of writes
    config: tuple = ()
    most: int = 0  # maximum number of partitions
    partitions: int = 0  # current number; 0: the topic does not exist

    @property
    def name(self):
        return f"hps_et.{self.model}.{self.table}"

    @property
    def places(self):
        return [(self.name, number) for number in range(self.partitions)]

    def keys(self, partition):
        """The keys of a partition that are written outside transactions."""
        return [key for key in range(partition, MORTAL if self.config else KEYS, self.most or self.first)
                if not self.is_transactional(key)]

    def is_transactional(self, key):
        return self.name == TRANSACTIONAL and key // self.first % 4 == 0


# Segments are closed and cleaned, and their tombstones removed, while a leader is unreachable.
COMPACTED = (("cleanup_policy", "compact"), ("segment_ms", 1000), ("delete_retention_ms", 5000),
             ("min_cleanable_dirty_ratio", 0.01), ("max_compaction_lag_ms", 500))
TOPICS = (Topic("wide", "a", 6, 1, 4), Topic("wide", "b", 3, 3, 3), Topic("wide", "p", 1, 3, 0),
          Topic("dense", "c", 3, 1, 3, COMPACTED), Topic("anew", "d", 3, 1, 2), Topic("anew", "e", 2, 3, 2),
          Topic("grown", "g", 1, 1, 1, most=24), Topic("grown", "h", 1, 3, 1, most=24),
          *(Topic("late", f"t{i}", 1 + i % 2, 1, 0.1) for i in range(16)))
BY_NAME = {topic.name: topic for topic in TOPICS}
MODELS = ("wide", "dense", "anew", "grown", "late", "bare")
TABLES = {model: tuple(topic.table for topic in TOPICS if topic.model == model) or ("f",) for model in MODELS}
PUBLISHED = BY_NAME["hps_et.wide.p"]  # written only by hps-publish


def topics_of(model):
    return [topic for topic in TOPICS if topic.model == model]


def places_of(model):
    return [place for topic in topics_of(model) for place in topic.places]


class Stage:
    """State that all actors share."""

    def __init__(self, seed, cluster, daemon, history, judge, lookup_address):
        self.seed, self.cluster, self.daemon, self.history, self.judge = seed, cluster, daemon, history, judge
        self.lookup_address = lookup_address
        self.ends = threading.Event()
        self.failures = []
        self.lives = 0  # of the daemon; odd: it is not running
        self.switches = 0  # of wide's active version; odd: a switch is running
        self.counts, self.said = collections.Counter(), collections.Counter()
        self.longest = collections.defaultdict(float)  # per tool, seconds

    def fail(self, text):
        self.failures.append(text)

    @contextlib.contextmanager
    def switching(self):
        self.switches += 1
        try:
            yield
        finally:
            self.switches += 1

    def tool(self, name, *args, lines=None, patience_s=PATIENCE_S * 4):
        """Run a tool: (exit code, stdout, stderr)."""
        begun, words = time.monotonic(), list(map(str, args))
        done = subprocess.run([os.path.join(BIN, name), *words], input=lines, capture_output=True, text=True,
                              timeout=patience_s, check=False)
        verb = f"{name} {' '.join(word for word in words if word in VERBS)}"
        self.longest[verb] = max(self.longest[verb], time.monotonic() - begun)
        if done.returncode not in range(6) or done.returncode == 2 or REPORT.search(done.stderr):
            self.fail(f"{name} {' '.join(map(str, args))}: exit {done.returncode}: {done.stdout}{done.stderr}")
        if done.returncode != 0:
            self.said[f"{name}, exit {done.returncode}: {self.shape(done.stderr)}"] += 1
        return done.returncode, done.stdout, done.stderr

    @staticmethod
    def shape(text):
        """The message without names, addresses and numbers."""
        return re.sub(r"hps_et\S+|unix:\S+|127\S+|\d+", "#", " ".join(text.split()))[:140]

    def ctl(self, *args, **how):
        return self.tool("hpsctl", "--addr", self.daemon.admin, *args, **how)

    def updates(self, *args):
        """The versions that `hpsctl updates` reports; None: the daemon is not running."""
        code, out, _ = self.ctl("--timeout", PATIENCE_S, "updates", *args, "-o", "json")
        return json.loads(out)["versions"] if code == 0 else None


class Actor(threading.Thread):
    """Repeats `turn` until the stage ends. An exception in `turn` fails the test."""

    pause_s = 0.02

    def __init__(self, stage, number=0):
        super().__init__(name=f"{type(self).__name__}{number}", daemon=True)
        self.stage, self.history, self.judge = stage, stage.history, stage.judge
        self.rng = random.Random(f"{stage.seed}/{self.name}")

    def run(self):
        try:
            while not self.stage.ends.wait(self.pause_s):
                self.turn()
        except BaseException:
            self.stage.fail(f"{self.name}: {traceback.format_exc()}")


# ---- writers -------------------------------------------------------------------------------------------

class Writer(Actor):
    """Writes rows and deletes, for each key in order, and records when they were acknowledged."""

    def __init__(self, stage):
        super().__init__(stage)
        self.topics = [topic for topic in TOPICS if topic.weight]
        self.producers, self.unsent = {}, collections.Counter()
        self.locks, self.held = {topic.name: threading.Lock() for topic in TOPICS}, collections.Counter()
        for topic in TOPICS:
            if topic.partitions:
                self.renew(topic)

    def renew(self, topic):
        """Create a producer for a topic that is new or has more partitions, which the last producer does not know."""
        config = {"bootstrap.servers": self.stage.cluster.bootstrap, "enable.idempotence": True, "linger.ms": 2,
                  "topic.metadata.refresh.interval.ms": 1000, "log_level": 0}
        self.producers[topic.name] = self.stage.cluster.kafka().Producer(config)

    def turn(self):
        weights = [topic.weight for topic in self.topics]
        for topic in self.rng.choices(self.topics, weights, k=max(1, int(RATE * self.pause_s))):
            self.put(topic)
        for name in list(self.producers):
            with self.locks[name]:
                self.serve(name)

    def serve(self, name):
        """Replace the producer after a fatal error: librdkafka ends an idempotent producer if a new leader lacks its last
        records. Kafka may have the messages in flight."""
        try:
            self.producers[name].poll(0)
        except self.stage.cluster.kafka().KafkaException as error:
            if not error.args[0].fatal():
                raise
            self.stage.counts["producers given up"] += 1
            self.producers[name].purge()
            with contextlib.suppress(self.stage.cluster.kafka().KafkaException):
                self.producers[name].poll(0)
            self.renew(BY_NAME[name])

    def put(self, topic):
        with self.locks[topic.name]:
            if topic.partitions and not self.held[topic.name] and self.unsent[topic.name] < UNSENT_MAX:
                self.send(topic, self.rng.randrange(topic.partitions))

    def send(self, topic, partition, key=None, is_delete=None, headers=()):
        """The caller holds the lock of the topic."""
        if key is None:
            key = self.rng.choice(topic.keys(partition))
        is_delete = self.rng.random() < 0.25 if is_delete is None else is_delete
        one = self.history.write(topic.model, topic.table, key, is_delete, (topic.name, partition), time.time())
        self.unsent[topic.name] += 1
        while not self.produced(topic, partition, one, headers) and not self.stage.ends.wait(self.pause_s):
            pass
        return one

    def produced(self, topic, partition, one, headers):
        """False if a broker that lags behind the others told the producer of fewer partitions."""
        try:
            self.producers[topic.name].produce(
                topic.name, partition=partition, headers=list(headers),
                **records.keyed(one.key, None if one.is_delete else row_of(one.key, one.number)),
                on_delivery=lambda error, message: self.delivered(topic, one, error, message))
        except self.stage.cluster.kafka().KafkaException as error:
            if error.args[0].name() != "_UNKNOWN_PARTITION":
                raise
            return False
        return True

    def delivered(self, topic, one, error, message):
        self.unsent[topic.name] -= 1
        if error is None:
            one.offset, one.acked = message.offset(), time.time()
        else:
            self.stage.counts["not acknowledged"] += 1

    @contextlib.contextmanager
    def hold(self, *topics):
        """Flush the writes to these topics. Inside the block only `fill` and `sent` write to them."""
        for topic in topics:
            with self.locks[topic.name]:
                self.held[topic.name] += 1
        try:
            for topic in topics:
                self.flush(topic)
            yield
        finally:
            for topic in topics:
                self.held[topic.name] -= 1

    def flush(self, topic):
        producer = self.producers.get(topic.name)  # None: the topic was never created
        assert producer is None or producer.flush(PATIENCE_S * 4) == 0, f"{topic.name} takes no records"

    def fill(self, topic, ends=(), padding=0, first=0):
        """Write every key of the partitions from `first` on, with `padding` bytes in a header, and more records up to these
        ends. Returns when all are acknowledged."""
        with self.locks[topic.name]:
            for partition in range(first, topic.partitions):
                keys = topic.keys(partition)
                for i in range(max([len(keys), *ends[partition:partition + 1]])):
                    self.send(topic, partition, keys[i % len(keys)], headers=[("padding", bytes(padding))])
                    if i % 500 == 499:
                        self.flush(topic)
            self.flush(topic)

    def sent(self, topic, partition, key, is_delete):
        """Write one key, even to a held topic, and wait until it is acknowledged."""
        with self.locks[topic.name]:
            one = self.send(topic, partition, key, is_delete)
            self.flush(topic)
        return one


class Transactor(Actor):
    """Writes in transactions: some are long, some are aborted."""

    pause_s = 0.4
    topic = BY_NAME[TRANSACTIONAL]

    def __init__(self, stage):
        super().__init__(stage)
        self.resting = threading.Lock()  # while it is held, after `settle`, no transaction is open
        self.producer = None

    def settle(self):
        """Create a producer if necessary. This aborts the transaction that the last producer left open."""
        if self.producer is None:
            producer = self.stage.cluster.kafka().Producer({
                "bootstrap.servers": self.stage.cluster.bootstrap, "transactional.id": "chaos",
                "transaction.timeout.ms": 20000, "log_level": 0})
            producer.init_transactions(PATIENCE_S * 4)
            self.producer = producer

    def turn(self):
        with self.resting:
            try:
                self.settle()
                self.transact()
            except self.stage.cluster.kafka().KafkaException:  # the broker may have committed the transaction or not
                self.stage.counts["transactions in doubt"] += 1
                self.producer = None

    def transact(self):
        self.producer.begin_transaction()
        written = []
        for _ in range(self.rng.randint(1, 6)):
            partition = self.rng.randrange(self.topic.partitions)
            key = self.rng.choice([key for key in range(partition, KEYS, self.topic.partitions)
                                   if self.topic.is_transactional(key)])
            is_delete = self.rng.random() < 0.25
            one = self.history.write("wide", "b", key, is_delete, (self.topic.name, partition), time.time(), True)
            self.producer.produce(self.topic.name, partition=partition,
                                  **records.keyed(key, None if is_delete else row_of(key, one.number)))
            written.append(one)
        self.producer.flush(PATIENCE_S)
        self.stage.ends.wait(self.rng.choice((0, 0.05, 0.05, 0.3, 2)))
        if self.rng.random() < 0.3:
            self.producer.abort_transaction(PATIENCE_S)
            self.stage.counts["transactions aborted"] += 1
            return
        now = time.time()
        for one in written:
            one.seen_from = now
        self.producer.commit_transaction(PATIENCE_S)
        now = time.time()
        for one in written:
            one.acked = now
        self.stage.counts["transactions"] += 1


# ---- readers -------------------------------------------------------------------------------------------

class Away(Exception):
    """The daemon is not running, or was not a moment ago."""


class Refused(Exception):
    """hpsd refuses the lookup because it is not fresh enough."""


class Eyes:
    """Looks up rows with a stock client."""

    OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 50),
               ("grpc.max_reconnect_backoff_ms", 200)]

    def __init__(self, stage):
        self.stage = stage
        self.channel = grpc.insecure_channel(stage.lookup_address, options=self.OPTIONS)
        self.stub = pb_grpc.ParameterServerStub(self.channel)
        self.life = 0  # of the daemon, at its last reply

    def see(self, model, version=0, staleness_ms=0, keys=None):
        """Look up all keys of each table of a model, or these keys."""
        keys = {table: range(KEYS) if keys is None else keys for table in TABLES[model]}
        queries = [pb.TableQuery(table=table, keys=key_bytes(list(asked))) for table, asked in keys.items()]
        request = pb.LookupRequest(model=model, version=version, queries=queries, max_staleness_ms=staleness_ms,
                                   miss_policy=pb.MISS_POLICY_EXACT)
        life, begun = self.stage.lives, time.time()
        try:
            reply = self.stub.Lookup(request, timeout=PATIENCE_S)
        except grpc.RpcError as error:
            self.blame(error, staleness_ms)
        ended = time.time()
        self.life = life
        rows = {}
        for table, result in zip(keys, reply.results):
            statuses = result.key_status or bytes([FOUND]) * len(keys[table])
            values = np.frombuffer(result.rows, "<f4").reshape(-1, DIM)
            rows[table] = dict(zip(keys[table], numbers_in(keys[table], statuses, values)))
        return Sight(model, reply.version, begun, ended, rows)

    def blame(self, error, staleness_ms):
        is_unavailable = error.code() == grpc.StatusCode.UNAVAILABLE
        if is_unavailable and staleness_ms and "max_staleness_ms" in error.details():
            raise Refused from None
        if error.code() == grpc.StatusCode.NOT_FOUND:  # the version was unloaded
            raise Away from None
        if is_unavailable and (self.stage.lives % 2 or self.life != self.stage.lives):
            raise Away from None
        raise AssertionError(f"a look-up failed: {error.code()}: {error.details()}") from None


class Looker(Actor):
    """Looks up rows with and without a limit of staleness."""

    WANTED_MS = (0, 200, 1000, 1000, 3000, 10000)

    def __init__(self, stage, number):
        super().__init__(stage, number)
        self.eyes = Eyes(stage)

    def turn(self):
        model, staleness_ms = self.rng.choice(MODELS), self.rng.choice(self.WANTED_MS)
        version = self.rng.choice((0, 0, 1, 2)) if model == "wide" else 0
        name = f"look-ups of {model}" + (" within a time" if staleness_ms else "")
        try:
            sight = self.eyes.see(model, version, staleness_ms, self.rng.sample(range(KEYS), 24))
            self.judge.looked_up(sight, staleness_ms)
        except Refused:
            name += ", refused"
        except Away:
            name = "look-ups while it was away"
        self.stage.counts[name] += 1


class Claimant(Actor):
    """Reads a claim, then looks up rows to check it."""

    def __init__(self, stage, number=0):
        super().__init__(stage, number)
        self.eyes = Eyes(stage)

    def turn(self):
        switches = self.stage.switches
        with contextlib.suppress(Away):
            self.hear(lambda *what: self.sight(switches, *what))

    def sight(self, switches, model, version=0):
        """Look up rows. Raises Away if the active version has changed since the claim."""
        found = self.eyes.see(model, version)
        if version == 0 and model == "wide" and (switches % 2 or switches != self.stage.switches):
            raise Away
        return found


class Scraper(Claimant):
    """Checks /metrics."""

    pause_s = 0.15

    def hear(self, sight_of):
        begun = time.time()
        try:
            text = self.stage.daemon.get("/metrics")[1]
        except OSError:
            raise Away from None
        ended = time.time()
        if "hpsd_build_info" not in text:
            raise Away
        found = samples(text)
        self.families(found, begun)
        for model in MODELS:
            sight = sight_of(model)
            self.judge.staleness(sight, found["update_staleness_seconds"].get((model,)), begun)
            for place in places_of(model):
                labels = (place[0], str(place[1]))
                self.judge.lag(sight, place, found["update_lag_records"].get(labels),
                               found["update_lag_seconds"].get(labels), begun, "metrics")
                self.states(sight, place, found, begun, ended)
            if found["update_source_up"].get((model,)) == 1:
                self.judge.up(model, places_of(model), begun, ended, "metrics")
            if "update_frozen" in found and found["update_frozen"].get((model,)) != 1:
                for fact in self.judge.during(model, sight.version, None, begun, sight.ended):
                    if fact.what == "frozen":
                        self.judge.lie("frozen", model, begun, f"update_frozen of {model} is not 1, though it is")

    def families(self, found, begun):
        for name in FAMILIES:
            if name not in found and not self.stage.counts[f"without {name}"]:
                self.stage.counts[f"without {name}"] += 1
                self.judge.lie("metric", "", begun, f"there is no hpsd_{name}")

    def states(self, sight, place, found, begun, ended):
        """A partition must be in exactly one state."""
        labels, what = (place[0], str(place[1])), f"metrics: {place[0]}:{place[1]} is"
        states = {key[2]: value for key, value in found["update_partition_state"].items() if key[:2] == labels}
        is_so = [state for state, value in states.items() if value == 1]
        if states and len(is_so) != 1:
            self.judge.lie("state", sight.model, begun, f"{what} in {len(is_so)} states: {is_so}")
        for state in is_so:
            self.judge.state(sight.model, sight.version, place, state, begun, ended, "metrics")
            if (state == "gap") != (found["update_gap"].get(labels) == 1):
                self.judge.lie("state", sight.model, begun, f"{what} {state}, its update_gap "
                               f"{found['update_gap'].get(labels)}")


def samples(text):
    """The metrics of updates: {family: {label values: value}}. The values are in the order topic, partition, state, or
    sorted by label."""
    found = collections.defaultdict(dict)
    for line in text.splitlines():
        if line.startswith("hpsd_update_"):
            name, value = line.rsplit(" ", 1)
            name, _, labels = name.rstrip("}").partition("{")
            pairs = dict(pair.split("=", 1) for pair in labels.split(",") if pair)
            order = ("topic", "partition", "state") if "topic" in pairs else sorted(pairs)
            found[name.removeprefix("hpsd_")][tuple(pairs[label].strip('"') for label in order if label in pairs)] = \
                float(value)
    return found


class Teller(Claimant):
    """Checks `hpsctl updates`."""

    pause_s = 0.5

    def hear(self, sight_of):
        begun = time.time()
        told = self.stage.updates(*self.rng.choice(((), ("--refresh",))))
        ended = time.time()
        if told is None:
            raise Away
        for of in told:
            model, version = of["model"], int(of["version"])
            sight = sight_of(model, version)
            if int(of.get("as_of_unix_ms", 0)) > 0:
                self.judge.as_of(sight, int(of["as_of_unix_ms"]) / 1000, begun)
            for one in of.get("partitions", []):
                place = one["topic"], int(one.get("partition", 0))
                self.judge.state(model, version, place, one["state"], begun, ended, "updates")
                more = f"({one['state']}, next {one.get('offset', 0)}, end {one.get('end_offset', 0)})"
                if int(one.get("as_of_unix_ms", 0)) > 0:
                    self.judge.as_of(sight, int(one["as_of_unix_ms"]) / 1000, begun, place, more)
                lag_ms = int(one.get("lag_ms", 0))
                self.judge.lag(sight, place, None if one.get("lag_unknown") else int(one.get("lag_record_count", 0)),
                               lag_ms / 1000 if lag_ms >= 0 else math.inf, begun, f"updates {more}")


class Waiter(Claimant):
    """Checks `hpsctl wait-for now`."""

    pause_s = 0.4

    def hear(self, sight_of):
        model, begun = self.rng.choice(MODELS), time.time()
        code, _, error = self.stage.ctl("--timeout", self.rng.choice((2, 4, 10)) * SLOW, "wait-for", "now", "--model",
                                        model)
        self.stage.counts[f"wait-for now of {model}, exit {code}"] += 1
        if code == 0:
            self.judge.waited(sight_of(model), begun)
        elif code == NEGATIVE and not error.strip():
            self.stage.fail("wait-for now: exit 5 without a reason")


class Publisher(Claimant):
    """Checks `hps-publish --wait` with lines as input."""

    pause_s = 0.6

    def __init__(self, stage):
        super().__init__(stage)
        self.resting = threading.Lock()  # while it is held, no hps-publish runs

    def turn(self):
        with self.resting:
            super().turn()

    def hear(self, sight_of):
        begun, lines, written = time.time(), [], []
        for key in self.rng.sample(range(KEYS), self.rng.randint(1, 8)):
            is_delete = self.rng.random() < 0.25
            one = self.history.write("wide", "p", key, is_delete, PUBLISHED.places[0], begun)
            values = "null" if is_delete else " ".join(f"{value:.0f}" for value in row_of(key, one.number))
            lines.append(f"{key} {values}\n")
            written.append(one)
        code, _, error = self.stage.tool(
            "hps-publish", "-b", self.stage.cluster.bootstrap, "-m", "wide", "-t", "p", "--timeout", 20 * SLOW,
            "--wait", "--wait-timeout", self.rng.choice((3, 12)) * SLOW, "--addr", self.stage.daemon.admin, "-",
            lines="".join(lines))
        ended = time.time()
        self.stage.counts[f"hps-publish --wait, exit {code}"] += 1
        if code == 0:
            for one in written:
                one.acked = ended
            self.judge.published(sight_of("wide"), written, begun, ended)
        elif code == NEGATIVE and not error.strip():
            self.stage.fail("hps-publish: exit 5 without a reason")


class Watcher(Actor):
    """Records which leaders hpsd can reach."""

    pause_s = 0.15
    settled_s = 1  # after this time it is known which leaders were reachable

    def __init__(self, stage):
        super().__init__(stage)
        self.admin = stage.cluster.admin()

    def turn(self):
        cluster, now = self.stage.cluster, time.time()
        found = {}
        with contextlib.suppress(cluster.kafka().KafkaException):  # else no leader is known
            found = {(one.topic, one.partition): one.node for one in cluster.leaders(BY_NAME, self.admin)}
        for topic in TOPICS:
            for place in topic.places:
                self.judge.reach.mark(place, place not in found or self.can_be_reached(found[place]), now)
        self.judge.settle(now, self.settled_s)

    def can_be_reached(self, node):
        cluster = self.stage.cluster
        return node is not None and node.process is not None and (
            cluster.relays[cluster.nodes.index(node)].state not in OUT_OF_REACH)

    def all_may_be_reached(self):
        """Called just before a failure ends."""
        now = time.time()
        for topic in TOPICS:
            for place in topic.places:
                self.judge.reach.mark(place, True, now)
