# SPDX-License-Identifier: Apache-2.0
"""Checks two daemons with one Kafka log and one Redis cluster while all of them fail. No reply may be stale or wrong,
and no lookup may fail that RocksDB could have served. At the end every shard must be as new as the log.

The cluster has three masters with a replica each, TLS and a password. Updates and lookups run all the time, and clients
(tests/lib/chaos.py) check every row. A seed determines the events and their order; some events overlap. One version,
the guest, is loaded, activated and unloaded again and again, at each daemon independently. Redis stores nothing on
disk: a killed server loses all data that no replica has.

HPS_CHAOS_S is the duration in seconds, HPS_KILL_SEED the seed.
"""
import collections
import contextlib
import json
import random
import re
import signal
import struct
import subprocess
import sys
import threading
import time

import grpc
import numpy as np
import pytest

import chaos
import redis
from chaos import (ACTIVE, DIMS, FILE_KEYS, GONE, GUEST, KEYS, MODEL, N_DAEMONS, PLACES, THERE, VERSIONS,
                   topic_of)
from rig import (PATIENCE_S, ROOT, SANITIZER, SLOW, Authority, Daemon, Table, admin_grpc, admin_pb, ask, chaos_s,
                 default_config, kill_seed, model_config, pb, records, until)

pytestmark = [pytest.mark.skipif(redis.missing() is not None, reason=f"no Redis server: {redis.missing()}"),
              pytest.mark.chaos]

SECONDS = chaos_s()
SHARDS = 16
USER, PASSWORD = "hpsd", "correct-horse"
RATE = 60 if SANITIZER else 300  # records a second
BEHIND_MAX = 2000  # records not yet applied, above which the writer waits
GUEST_BEHIND = 200  # records per partition that the files of the guest lack when it is loaded
TURNS_UNCHECKED = 12  # turns between two comparisons of all rows
NODE_TIMEOUT_MS = 1500
ELECTIONS_S = 4 * PATIENCE_S  # the cluster holds an election about every 6 s, and some elections fail
COMMAND_TIMEOUT_MS = int(20 * SLOW)


# ---- updates -------------------------------------------------------------------------------------------

class Writer(threading.Thread):
    """Writes the log, not much faster than the daemons apply it."""

    def __init__(self, broker, board, behind):
        super().__init__(daemon=True)
        self.board, self.behind = board, behind
        self.rng = random.Random(board.seed)
        self.producer = broker.kafka().Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 2,
                                                 "enable.idempotence": True})
        self.failure = None
        self.stops, self.held, self.lock = threading.Event(), False, threading.Lock()

    def run(self):
        while not self.stops.wait(0.02):
            with self.lock:
                if not self.held and self.behind() < BEHIND_MAX:
                    for _ in range(max(1, RATE // 50)):
                        self.write(self.rng.randrange(len(PLACES)))
                self.producer.poll(0)

    def write(self, place):
        (topic_table, partition), offset = PLACES[place], int(self.board.written[place])
        said = chaos.changes(self.board.seed, place, offset)
        rows = {table: chaos.rows_of(table, *zip(*[(key, offset) for name, key, _ in said if name == table]))
                for table in {table for table, _, _ in said}}
        if len(said) == 1:
            record = records.keyed(said[0][1], None if said[0][2] else rows[topic_table][0])
        elif len(said) == 4:
            record = records.hctr([(key, row) for (_, key, _), row in zip(said, rows[topic_table])])
        else:
            record = records.packed({table: self.split(said, table, rows[table]) for table in rows})
        self.board.written[place] = offset + 1
        self.producer.produce(topic_of(topic_table), partition=partition, **record,
                              on_delivery=lambda error, message: self.delivered(error, message, offset))

    @staticmethod
    def split(said, table, rows):
        mine = [(key, is_delete) for name, key, is_delete in said if name == table]
        puts = {key: row for (key, is_delete), row in zip(mine, rows) if not is_delete}
        return puts, [key for key, is_delete in mine if is_delete]

    def delivered(self, error, message, offset):
        if error is not None or message.offset() != offset:
            self.failure = f"record {offset}: {error or message.offset()}"

    @contextlib.contextmanager
    def paused(self):
        """Wait until the broker has all records. Inside the block the thread writes none."""
        with self.lock:
            self.held = True
        assert self.producer.flush(PATIENCE_S) == 0 and self.failure is None, self.failure
        yield
        self.held = False


# ---- the run -------------------------------------------------------------------------------------------

class Story:
    """Causes the failures of the cluster and two daemons, and checks what must hold."""

    def __init__(self, work, broker, seed):
        self.work, self.rng, self.steps, self.spans = work, random.Random(seed), [], []
        self.counts, self.forgets = collections.Counter(), False
        self.remains = set()  # keys of the guest that a replica without the last writes brought back
        self.guest_begin = -1  # start of the guest's updates in the first partition
        self.board = chaos.Board(f"{work}/board", seed)
        self.gate, self.stack = threading.Event(), contextlib.ExitStack()
        self.good, self.other = self.certificates("good"), self.certificates("other")
        self.acl = f"{work}/users.acl"
        with open(self.acl, "w", encoding="utf-8") as f:
            f.write(f"user default on nopass ~* &* +@all\nuser {USER} on >{PASSWORD} ~* &* +@all\n")
        for table in DIMS:
            broker.create(topic_of(table), sum(name == table for name, _ in PLACES))
        broker.create(topic_of(None), sum(name is None for name, _ in PLACES))
        self.broker, self.clients, self.daemons = broker, [], []
        self.cluster = self.stack.enter_context(redis.Cluster(f"{work}/redis", 3, 1, **self.redis_options()))
        self.watch_ends = threading.Event()
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self.watch_failure = None
        self.writer = Writer(broker, self.board, self.behind)

    # ---- set-up ----

    def certificates(self, name):
        authority = Authority(self.work, name)
        certificate, key = authority.issue(f"{name}-server")
        return authority.path, certificate, key

    def redis_options(self):
        ca, certificate, key = self.good
        return {"aclfile": self.acl, "cluster_node_timeout": NODE_TIMEOUT_MS, "tls_ca_cert_file": ca,
                "tls_cert_file": certificate, "tls_key_file": key, "tls_auth_clients": "no"}

    def add_daemon(self, number):
        """Start a daemon. The first one has no host map and no device, so all its lookups query Redis."""
        paths = {}
        keys = np.arange(FILE_KEYS, dtype="<i8")
        for version in VERSIONS:
            paths[version] = [Table(table, keys, chaos.rows_of(table, keys, np.full(FILE_KEYS, -version)))
                              .save(f"{self.work}/v{version}") for table in DIMS]
        model = model_config(MODEL, paths[1], list(DIMS.values()), list(DIMS), defaults=[chaos.DEFAULT] * len(DIMS),
                             **({} if number else {"gpucache": False}))
        tier = {"type": "redis_cluster", "address": self.cluster.addresses, "user_name": USER,
                "password": PASSWORD, "num_partitions": SHARDS, "cache_missed_embeddings": True,
                "enable_tls": True, "tls_ca_certificate": self.good[0], "tls_server_name_identification": "localhost",
                "redis_command_timeout_ms": COMMAND_TIMEOUT_MS, "local_cache_bytes": "1MiB" if number else 0}
        source = {"type": "kafka_message_queue", "brokers": self.broker.bootstrap, "metadata_refresh_interval_ms": 500,
                  "start": "earliest", "max_batch_size": 100}
        config = default_config([model], update_source=source, volatile_db=tier,
                                server={"model_roots": [self.work], "hot_keys_save_s": 0,
                                        "keep_versions": len(VERSIONS)})
        one = Daemon(self.work, config, state=f"state{number}", listen=(f"unix:{self.work}/lookup{number}",))
        self.daemons.append(one)
        one.load(MODEL, f"{self.work}/v2", version=2)

    # ---- watching ----

    def admin(self, number):
        """A new channel: a channel that saw a daemon end would wait long before it connects again."""
        return grpc.insecure_channel(f"unix:{self.daemons[number].state}/admin.sock",
                                     options=[("grpc.use_local_subchannel_pool", 1)])

    def watch(self):
        """Write to the board what each daemon has published."""
        channels = [None] * N_DAEMONS
        while not self.watch_ends.wait(0.02):
            for number in range(N_DAEMONS):
                try:
                    channels[number] = channels[number] or self.admin(number)
                    self.publish(number, channels[number])
                except AssertionError as error:
                    self.watch_failure = str(error)
                except grpc.RpcError:  # the daemon was killed
                    channels[number].close()
                    channels[number] = None
        for channel in channels:
            if channel is not None:
                channel.close()

    def publish(self, number, channel):
        guest = int(self.board.guests[number])
        reply = admin_grpc.AdminStub(channel).GetUpdates(admin_pb.GetUpdatesRequest(model=MODEL), timeout=PATIENCE_S)
        for one in reply.versions:
            if one.version == GUEST and (guest % 4 != THERE or guest != self.board.guests[number]):
                continue
            known = self.board.published[number, VERSIONS.index(one.version)]
            for partition in one.partitions:
                topic = partition.topic.removeprefix(topic_of(None)).removeprefix(".") or None
                place = PLACES.index((topic, partition.partition))
                assert partition.state not in ("gap", "failed"), f"daemon {number}: {partition}"
                if partition.state == "running":
                    assert partition.offset >= known[place], f"daemon {number}: back from {known[place]} to {partition}"
                    known[place] = partition.offset

    def behind(self):
        """The largest number of records that a running daemon has not applied yet."""
        return max((int((self.board.written - self.published(number)).sum(axis=1).max())
                    for number in range(N_DAEMONS) if self.board.lives[number] % 2 == 0), default=0)

    def versions(self, number):
        """The versions that a daemon has loaded."""
        return [version for version in VERSIONS if version != GUEST or self.board.guests[number] % 4 == THERE]

    def all_versions(self):
        return sorted({version for number in range(N_DAEMONS) for version in self.versions(number)})

    def published(self, number):
        return self.board.published[number, [VERSIONS.index(version) for version in self.versions(number)]]

    def check_alive(self):
        """Raise the first error that any thread or process has found."""
        assert self.watch_failure is None, self.watch_failure
        assert self.writer.failure is None, self.writer.failure
        for number, process in enumerate(self.clients):
            assert process.poll() is None, self.told(number)["failure"]
        for number, one in enumerate(self.daemons):
            assert self.board.lives[number] % 2 or one.alive(), f"daemon {number} ended with {one.process.poll()}"

    def wait(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.check_alive()
            self.gate.wait(0.02)

    def told(self, number):
        with open(f"{self.work}/client{number}", encoding="utf-8") as f:
            return json.load(f)

    # ---- the cluster ----

    def live(self):
        return [node for node in self.cluster.nodes if node.process is not None]

    def masters(self):
        """Nodes that have slots, as the first running node sees it."""
        ports = {master[1] for _, _, master, *_ in self.live()[0].ask("CLUSTER", "SLOTS")}
        return [node for node in self.cluster.nodes if node.port in ports]

    @staticmethod
    def master_id(node):
        """The id of the node's master, as the node sees it; "-" if the node is a master."""
        return next(words[3] for line in node.ask("CLUSTER", "NODES").splitlines()
                    if "myself" in (words := line.split())[2])

    def replica_of(self, master):
        """The master's replica, after it has received all writes."""
        for node in self.live():
            if self.master_id(node) == master.id:
                node.await_in("master_link_status:up", "INFO", "replication")
                return node
        raise AssertionError(f"{master.address} has no replica")

    def is_whole(self):
        """Whether all nodes agree on the masters of all slots, each master has a connected replica, and no node is
        marked as failed."""
        try:
            masters = {node.port for node in self.masters()}
            for node in self.cluster.nodes:
                told, slots = node.ask("INFO", "replication"), node.ask("CLUSTER", "SLOTS")
                is_master = node.port in masters
                if ("cluster_state:ok" not in node.ask("CLUSTER", "INFO") or {slot[2][1] for slot in slots} != masters
                        or sum(last - first + 1 for first, last, *_ in slots) != redis.SLOTS
                        or "fail" in node.ask("CLUSTER", "NODES")
                        or ("role:master" if is_master else "master_link_status:up") not in told):
                    return False
            followed = {self.master_id(node) for node in self.cluster.nodes if node.port not in masters}
            return followed == {node.id for node in self.cluster.nodes if node.port in masters}
        except (OSError, redis.ServerError):
            return False

    def close_slots(self):
        """Close open slots as `redis-cli --cluster fix` does. A restarted master may have received keys of foreign
        slots as a replica. It then marks these slots as open, and ignores news about their owners."""
        for node in self.live():
            with contextlib.suppress(OSError, redis.ServerError):
                for slot in re.findall(r"\[(\d+)-[<>]-", node.ask("CLUSTER", "NODES")):
                    node.ask("CLUSTER", "SETSLOT", slot, "STABLE")

    def await_whole(self):
        try:
            until(lambda: self.is_whole() or self.close_slots(), "the cluster to be whole again",
                  ELECTIONS_S)
        except AssertionError as error:
            views = "\n".join(node.ask("CLUSTER", "NODES") + node.ask("INFO", "replication") for node in self.live())
            raise AssertionError(f"{error}\n{views}") from None

    def some(self):
        """One master or all masters."""
        masters = self.masters()
        return masters if self.rng.random() < 0.3 else [self.rng.choice(masters)]

    @staticmethod
    def keys(node, pattern="hpsd:{*}"):
        """The master's keys of shards, or its keys that match the pattern."""
        cursor, found = "0", set()
        while True:
            cursor, keys = node.ask("SCAN", cursor, "COUNT", 1000, "MATCH", pattern)
            found |= set(keys)
            if str(cursor) == "0":
                return sorted(found)

    # ---- events: each lasts as long as its context ----

    @contextlib.contextmanager
    def master_killed(self):
        """The replica is elected, or takes over by force."""
        master = self.rng.choice(self.masters())
        replica = self.replica_of(master)
        master.kill()
        if self.rng.random() < 0.5:
            self.cluster.take_over(replica)
        yield
        replica.await_in("role:master", "INFO", "replication")
        master.start()

    @contextlib.contextmanager
    def writes_lost(self):
        """A replica without the last writes becomes the master."""
        master = self.rng.choice(self.masters())
        replica = self.replica_of(master)
        replica.ask("CONFIG", "SET", "masteruser", "nobody", "masterauth", "wrong")
        master.ask("CLIENT", "KILL", "TYPE", "replica")
        replica.await_in("master_link_status:down", "INFO", "replication")
        yield
        master.kill()
        self.cluster.take_over(replica)
        replica.ask("CONFIG", "SET", "masteruser", "", "masterauth", "")
        self.wait(self.rng.uniform(0, 0.5))
        master.start()

    @contextlib.contextmanager
    def master_paused(self):
        """The master hangs for a moment, or until its replica has become the master."""
        master = self.rng.choice(self.masters())
        replica = self.replica_of(master)
        master.pause()
        yield
        if self.rng.random() < 0.5:
            replica.await_in("role:master", "INFO", "replication")
        master.resume()

    @contextlib.contextmanager
    def all_paused(self):
        for node in self.cluster.nodes:
            node.pause()
        yield
        for node in self.cluster.nodes:
            node.resume()

    @contextlib.contextmanager
    def master_emptied(self):
        """A master restarts without data, before its replica takes over."""
        self.rng.choice(self.masters()).restart()
        yield

    @contextlib.contextmanager
    def flushed(self):
        for node in self.some():
            node.ask("FLUSHALL")
        yield

    @contextlib.contextmanager
    def failed_over(self):
        """Fail over as an operator does, without losing writes."""
        replica = self.replica_of(self.rng.choice(self.masters()))
        self.is_master_by_agreement(replica)
        yield
        until(lambda: self.is_master_by_agreement(replica), "a replica to be the master", ELECTIONS_S)

    @staticmethod
    def is_master_by_agreement(replica):
        """Whether the replica is the master. If not, it requests a failover, which times out after 5 s; a busy machine
        may need several requests."""
        if "role:master" in replica.ask("INFO", "replication"):
            return True
        with contextlib.suppress(redis.ServerError):  # the replica considers the master dead
            replica.ask("CLUSTER", "FAILOVER")
        return False

    @contextlib.contextmanager
    def resharded(self):
        masters = self.masters()
        keys = [key for node in masters for key in self.keys(node)]
        for key in self.rng.sample(keys, min(len(keys), 4)):
            slot = masters[0].ask("CLUSTER", "KEYSLOT", key)
            self.cluster.move(slot, self.rng.choice(masters))
        yield

    @contextlib.contextmanager
    def full(self):
        """Limit the memory: commands fail, or shards are evicted."""
        nodes = self.some()
        policy = self.rng.choice(("noeviction", "allkeys-random"))
        for node in nodes:
            node.ask("CONFIG", "SET", "maxmemory-policy", policy, "maxmemory", 1 << 20)
        yield
        for node in nodes:
            node.ask("CONFIG", "SET", "maxmemory", 0)

    @contextlib.contextmanager
    def locked_out(self):
        """Change the password, remove all permissions, or disable the user."""
        nodes, rule = self.some(), self.rng.choice((("resetpass", ">other"), ("-@all",), ("off",)))
        for node in nodes:
            node.ask("ACL", "SETUSER", USER, *rule)
            node.ask("CLIENT", "KILL", "USER", USER)
        yield
        for node in nodes:
            node.ask("ACL", "LOAD")

    @contextlib.contextmanager
    def untrusted(self):
        """Use a certificate of another CA, so that all handshakes fail."""
        nodes = self.some()
        for node in nodes:
            node.ask("CONFIG", "SET", "tls-cert-file", self.other[1], "tls-key-file", self.other[2])
            node.ask("CLIENT", "KILL", "USER", USER)
        yield
        for node in nodes:
            node.ask("CONFIG", "SET", "tls-cert-file", self.good[1], "tls-key-file", self.good[2])

    @contextlib.contextmanager
    def daemon_killed(self):
        number = self.rng.randrange(N_DAEMONS)
        self.board.lives[number] += 1
        self.daemons[number].kill()
        yield
        self.daemons[number].start()
        self.board.lives[number] += 1

    @contextlib.contextmanager
    def daemon_behind(self):
        """One daemon pauses its updates, the other daemon continues."""
        number = self.rng.randrange(N_DAEMONS)
        self.control(number, admin_pb.UPDATE_ACTION_PAUSE)
        yield
        until(lambda: self.board.lives[number] % 2 == 0, "the daemon to be back")
        self.control(number, admin_pb.UPDATE_ACTION_RESUME)

    @contextlib.contextmanager
    def daemon_restarted(self):
        """Stop a daemon with SIGTERM: calls that it has accepted get replies."""
        number = self.rng.randrange(N_DAEMONS)
        self.board.lives[number] += 1
        self.daemons[number].stop()
        yield
        self.daemons[number].start()
        self.board.lives[number] += 1

    @contextlib.contextmanager
    def daemon_paused(self):
        one = self.rng.choice(self.daemons)
        one.send(signal.SIGSTOP)
        yield
        one.send(signal.SIGCONT)

    @contextlib.contextmanager
    def version_changed(self):
        """Load and activate the guest at a daemon, or unload it."""
        number = self.rng.randrange(N_DAEMONS)
        self.change_version(number)
        yield

    def change_version(self, number):
        one, goes = self.daemons[number], GUEST in self.versions(number)
        admin = one.admin_stub()
        self.board.guests[number] += 1
        if goes:
            self.activate(admin, ACTIVE)
            admin.UnloadVersion(admin_pb.UnloadVersionRequest(model=MODEL, version=GUEST), timeout=PATIENCE_S)
        else:
            if GUEST not in self.all_versions():
                self.make_guest()
            self.board.published[number, VERSIONS.index(GUEST)] = self.board.begins
            one.load(MODEL, f"{self.work}/v{GUEST}", version=GUEST)
            self.activate(admin, GUEST)
        self.board.guests[number] += 1

    def activate(self, admin, version):
        with self.writer.paused():  # it does not wait for the daemon, which may be slower on a busy machine
            until(lambda: self.is_activated(admin, version), f"version {version} to have its updates", ELECTIONS_S)

    @staticmethod
    def is_activated(admin, version):
        try:
            admin.ActivateVersion(admin_pb.ActivateVersionRequest(model=MODEL, version=version), timeout=PATIENCE_S)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.FAILED_PRECONDITION:
                raise
            return False
        return True

    def make_guest(self):
        """Write a new manifest with other start positions, so that the next load uses other keys in Redis."""
        until(lambda: self.board.written[0] > self.guest_begin, "a record more than there was for the last guest")
        self.board.begins[:] = np.maximum(0, self.board.written - GUEST_BEHIND)
        self.board.begins[0] = self.guest_begin = max(int(self.board.begins[0]), self.guest_begin + 1)
        begins = [{"topic": topic_of(table), "partition": partition, "offset": int(offset)}
                  for (table, partition), offset in zip(PLACES, self.board.begins)]
        with open(f"{self.work}/v{GUEST}/manifest.json", "w", encoding="utf-8") as f:
            json.dump({"tables": [{"name": table} for table in DIMS], "start_positions": begins}, f)

    def control(self, number, action):
        with self.admin(number) as channel:
            request = admin_pb.ControlUpdatesRequest(action=action, model=MODEL)
            admin_grpc.AdminStub(channel).ControlUpdates(request, timeout=PATIENCE_S, wait_for_ready=True)

    TO_REDIS = (master_killed, writes_lost, master_paused, all_paused, master_emptied, flushed, failed_over,
                resharded, full, locked_out, untrusted)
    TO_DAEMONS = (daemon_killed, daemon_behind, daemon_restarted, daemon_paused, version_changed,
                  version_changed)
    FAILOVERS = ("master_killed", "writes_lost", "master_paused", "failed_over")
    LOSSES = ("master_killed", "writes_lost", "master_paused")  # events that lose acknowledged writes

    def turn(self):
        """Run the next event of a random order; sometimes an event of a daemon at the same time."""
        if not self.steps or not self.left:
            self.left = self.rng.sample(self.TO_REDIS + self.TO_DAEMONS, len(self.TO_REDIS + self.TO_DAEMONS))
        what = [self.left.pop()]
        if what[0] not in self.TO_DAEMONS and self.rng.random() < 0.3:
            what.append(self.rng.choice(self.TO_DAEMONS))
        name = " and ".join(one.__name__ for one in what)
        self.steps.append(f"{time.monotonic() - self.begun:6.1f} s: {name}")
        self.counts.update(one.__name__ for one in what)
        begun = time.monotonic()
        with contextlib.ExitStack() as happening:
            for one in what:
                happening.enter_context(one(self))
            self.wait(self.rng.uniform(0.1, 1.2))
        self.await_whole()
        self.forgets |= what[0].__name__ in self.LOSSES
        self.check_gone()
        self.spans.append((name, begun, time.monotonic()))
        self.wait(self.rng.uniform(0, 1))

    # ---- checks between events ----

    def compare(self):
        """Wait until Redis and both daemons have all updates, and compare every row."""
        with self.writer.paused():
            ends = self.board.written.tolist()
            until(lambda: self.check_alive() or self.is_applied(), "all to be applied", ELECTIONS_S)
            histories = {version: chaos.History(self.board.seed, self.begins(version)) for version in VERSIONS}
            for history in histories.values():
                history.extend(ends)
            self.await_shards(sorted(ends))
            self.compare_redis(histories, ends)
            for number in range(N_DAEMONS):
                until(lambda number=number: self.compare_daemon(number, histories, ends), "all rows to be in Redis",
                      ELECTIONS_S)
        self.counts["compared"] += 1

    def begins(self, version):
        return self.board.begins.tolist() if version == GUEST else None

    def is_applied(self):
        return all((self.published(number) == self.board.written).all() for number in range(N_DAEMONS))

    def await_shards(self, ends):
        right = {version: [ends] * SHARDS for version in self.all_versions()}
        try:
            until(lambda: self.positions() == right, "all shards to be as new as the log", ELECTIONS_S)
        except AssertionError as error:
            raise AssertionError(f"{error}; the log ends at {ends}, shards at {self.positions()}") from None

    def shards(self, *words, pattern="hpsd:{*}"):
        """[(key, reply to the command)] of all shards. Skips keys of slots that have moved away, and keys in
        `remains`."""
        found = []
        for node in self.masters():
            for key in set(self.keys(node, pattern)) - self.remains:
                with contextlib.suppress(redis.ServerError):  # MOVED
                    found.append((key, node.ask(words[0], key, *words[1:])))
        return found

    def positions(self):
        """The log positions of each shard, sorted, by version."""
        found = collections.defaultdict(list)
        for key, p in self.shards("HGET", "p"):
            one = raw(p or "")
            found[version_of(key)].append(sorted(struct.unpack_from(">q", one, at + 8)[0]
                                                 for at in range(0, len(one), 16)))
        return found

    def compare_redis(self, histories, ends):
        """Check every row in Redis."""
        for key, words in self.shards("HGETALL"):
            version, told = version_of(key), [raw(word) for word in words]
            for field, row in zip(told[::2], told[1::2]):
                if len(field) == 12:
                    number, row_key = struct.unpack(">Iq", field)
                    table = list(DIMS)[number]
                    offset = histories[version].state(table, row_key, ends[chaos.place_of(row_key, table)])
                    assert offset is not None and row == row_of(version, table, row_key, offset), (
                        key, table, row_key, np.frombuffer(row, "<f4")[:4], offset)

    def compare_daemon(self, number, histories, ends):
        """Check every row of a daemon; whether the daemon without host map found all rows in Redis."""
        n_redis = n_there = 0
        for version in self.versions(number):
            reply = ask(self.daemons[number].stub(), MODEL, {table: range(KEYS) for table in DIMS}, version=version,
                        miss_policy=pb.MISS_POLICY_EXACT)
            for table, result in zip(DIMS, reply.results):
                status = result.key_status or bytes([chaos.FOUND]) * KEYS
                rows = np.frombuffer(result.rows, "<f4").reshape(KEYS, DIMS[table])
                for key in range(KEYS):
                    offset = histories[version].state(table, key, ends[chaos.place_of(key, table)])
                    assert (status[key] == chaos.UNKNOWN) == (offset is None), (number, version, table, key)
                    assert offset is None or rows[key].tobytes() == row_of(version, table, key, offset), (
                        number, version, table, key, rows[key][:4], offset)
                    n_there += offset is not None
                n_redis += sum(count.found_keys for count in result.tier_counts if count.tier == "redis")
        return number > 0 or n_redis == n_there

    def check_gone(self):
        """If no daemon has the guest, Redis must not have its keys, except keys that a stale replica brought
        back."""
        if GUEST not in self.all_versions():
            self.remains |= self.guest_keys() if self.forgets else set()
            self.forgets = False
            until(lambda: not self.guest_keys(), "the guest's keys to be gone", ELECTIONS_S)

    def guest_keys(self):
        """Keys of the guest in Redis, without those in `remains`."""
        return {key for key, there in self.shards("EXISTS", pattern=f"hpsd:{{{MODEL}/{GUEST}/*") if there}

    def end_visit(self):
        """Unload the guest at all daemons, load it, and unload it again."""
        for wanted in (False, True, False):
            for number in range(N_DAEMONS):
                if (GUEST in self.versions(number)) != wanted:
                    self.change_version(number)
            self.check_gone()

    # ---- main ----

    def run(self):
        for number in range(N_DAEMONS):
            self.add_daemon(number)
            args = [sys.executable, f"{ROOT}/tests/lib/chaos.py", self.board.path, str(number),
                    f"{self.work}/client{number}", self.daemons[number].grpc[0]]
            self.clients.append(subprocess.Popen(redis.ending_with_parent(args)))
        self.watcher.start()
        self.writer.start()
        self.begun = time.monotonic()
        self.wait(1)
        self.compare()
        while time.monotonic() - self.begun < SECONDS:
            self.turn()
            if len(self.steps) % TURNS_UNCHECKED == 0:
                self.compare()
        self.compare()
        self.end_visit()
        self.compare()
        self.board.end()
        for process in self.clients:
            process.wait(PATIENCE_S)
        for number in range(N_DAEMONS):
            assert self.told(number)["failure"] is None, self.told(number)["failure"]

    def summary(self):
        told = [self.told(number) for number in range(N_DAEMONS)]
        print(f"{len(self.steps)} times something happened, in {time.monotonic() - self.begun:.0f} s; "
              f"{sum(self.board.written):,} records; all was compared {self.counts.pop('compared')} times")
        for what, n in sorted(self.counts.items()):
            print(f"  {what:24} {n:5}")
        for number, one in enumerate(told):
            tiers = ", ".join(f"{tier} {n:,}" for tier, n in sorted(one["tiers"].items()))
            print(f"  daemon {number}: {one['calls']:,} look-ups, {one['units']:,} of units, {one['away']:,} while it "
                  f"was away, {one['gone']:,} for the guest while it was; {one['rows']:,} rows and "
                  f"{one['unknown']:,} unknown keys right; from {tiers}")
        print(f"  keys of the guest that a lost master brought back: {len(self.remains)}")
        self.print_times(np.array(told[0]["times"]))

    def print_times(self, calls):
        """Print durations of the first daemon's lookups, which all query Redis, during failovers and otherwise."""
        spans = [span for span in self.spans if span[0] in self.FAILOVERS]
        within = np.zeros(len(calls), bool)
        for _, begun, ended in spans:
            within |= (calls[:, 0] > begun) & (calls[:, 0] < ended)
        limit_ms = 1.2 * COMMAND_TIMEOUT_MS
        for name, which in (("otherwise", ~within), ("fail-over", within)):
            if which.any():
                p50, p99, top = np.percentile(1e3 * calls[which, 1], (50, 99, 100))
                print(f"  look-ups that ask Redis, {name:9}: {np.count_nonzero(which):7,}, p50 {p50:.1f} ms, "
                      f"p99 {p99:.1f} ms (target at fail-over: {limit_ms:.0f}), longest {top:.1f} ms")

    def close(self):
        self.board.end()
        self.watch_ends.set()
        self.writer.stops.set()
        for thread in (self.watcher, self.writer):
            if thread.ident is not None:
                thread.join(PATIENCE_S)
        for process in self.clients:
            process.kill()
            process.wait()
        self.stack.close()


def version_of(key):
    return int(key.split("/")[1])


def raw(word):
    return word if isinstance(word, bytes) else word.encode()


def row_of(version, table, key, offset):
    return chaos.rows_of(table, [key], [-version if offset < 0 else offset])[0].tobytes()


# ---- the tests -----------------------------------------------------------------------------------------

def answer(history, version, keys, at):
    """The reply of a daemon that has exactly the records below the positions `at`."""
    results = {}
    for table in DIMS:
        states = [history.state(table, key, at[chaos.place_of(key, table)]) for key in keys]
        status = np.array([chaos.UNKNOWN if state is None else chaos.FOUND for state in states], np.uint8)
        rows = chaos.rows_of(table, keys, [-version if state in (None, -1) else state for state in states])
        rows[status == chaos.UNKNOWN] = chaos.DEFAULT
        results[table] = keys, status, rows
    return results


def test_judge_when_rows_are_stale_torn_foreign_or_of_two_positions_then_it_raises_wrong():
    judge, keys = chaos.Judge(7), list(range(KEYS))
    none, old, new = ([n] * len(PLACES) for n in (0, 300, 400))
    judge.history.extend(new)
    before, after = answer(judge.history, 1, keys, old), answer(judge.history, 1, keys, new)
    judge.check(1, old, new, before, True)
    judge.check(1, old, new, after, True)
    judge.check(1, new, new, after, True)
    mixed = {"a": before["a"], "b": after["b"]}
    judge.check(1, old, new, mixed, False)
    with pytest.raises(chaos.Wrong, match="is not of the unit"):
        judge.check(1, old, new, mixed, True)
    with pytest.raises(chaos.Wrong, match="stale: version 1, table a"):
        judge.check(1, new, new, before, False)
    with pytest.raises(chaos.Wrong, match="wrong: version 1, table a"):
        judge.check(1, old, old, after, False)
    with pytest.raises(chaos.Wrong, match="of another version"):
        judge.check(2, none, new, answer(judge.history, 1, keys, none), False)
    after["b"][2][5][32] += 1
    with pytest.raises(chaos.Wrong, match="table b, key 5, status 1: no record has the row"):
        judge.check(1, old, new, after, False)


def test_lookups_when_redis_and_hpsd_fail_then_all_succeed_with_current_rows(own_broker, work):
    seed = kill_seed()
    story = Story(work, own_broker, seed)
    try:
        story.run()
        for one in story.daemons:
            one.stop()
        story.summary()
    except BaseException:
        print(f"HPS_KILL_SEED={seed} HPS_CHAOS_S={SECONDS}; the last steps:", *story.steps[-12:], sep="\n  ")
        for one in story.daemons:
            print(one.log()[-6000:])
        raise
    finally:
        for one in story.daemons:
            one.kill()
        story.close()
