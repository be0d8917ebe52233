# SPDX-License-Identifier: Apache-2.0
"""A real Apache Kafka cluster for tests, with a relay before each broker and rights that can be taken away.

    with Cluster(directory) as cluster:
        cluster.create("topic", 6, replicas=3)
        cluster.allow("topic", "topic", "Read", "Describe")
        cluster.relays[2].set(relay.HANG)

Tests reach the brokers at `bootstrap`, where everybody may do everything. The program under test is to use `fronts`,
the relays', with `properties`: it is a user who may do nothing until he is allowed to, and learns from the brokers of
their relays alone.
"""
import collections
import concurrent.futures
import contextlib
import os
import subprocess
import threading

import kafka
import ports
import relay

USER, PASSWORD = "hpsd", "correct-horse"
CONTROLLER = 0  # the node that is the controller, too, and is never to be killed: without it nothing happens
DIRECT, FRONT = "DIRECT", "FRONT"

# Processes, but not their data, share one machine: heaps and threads are few.
MEMBER = """\
process.roles={roles}
node.id={id}
controller.quorum.voters=1@127.0.0.1:{controller}
listeners={listeners}
advertised.listeners=DIRECT://127.0.0.1:{port},FRONT://127.0.0.1:{front}
listener.security.protocol.map=DIRECT:PLAINTEXT,FRONT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=DIRECT
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
allow.everyone.if.no.acl.found=false
sasl.enabled.mechanisms=PLAIN
listener.name.front.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
user_{user}="{password}";
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
auto.leader.rebalance.enable=false
controlled.shutdown.max.retries=1
"""


class Member(kafka.Node):
    """One broker of a cluster; a number from 1 on is its id."""

    heap = "-Xmx256m"

    def __init__(self, work, number):
        super().__init__(work)
        self.id = number
        self.port = self.hidden_port = self.front_port = None

    def take_ports(self):
        self.port, self.hidden_port, self.front_port = (ports.take() for _ in range(3))

    def format(self, name, controller, more):
        leads = self.id == CONTROLLER + 1
        listeners = f"DIRECT://127.0.0.1:{self.port},FRONT://127.0.0.1:{self.hidden_port}"
        self.set_up(name, MEMBER.format(
            id=self.id, controller=controller, port=self.port, front=self.front_port, user=USER, password=PASSWORD,
            roles="broker,controller" if leads else "broker",
            listeners=f"{listeners},CONTROLLER://127.0.0.1:{controller}" if leads else listeners)
            + kafka.PROPERTIES.format(work=self.work, more=more))


class Operator:
    """tests/kafka/Operator.java: what Debian's client cannot ask of a cluster."""

    def __init__(self, bootstrap):
        self.lock = threading.Lock()
        self.process = subprocess.Popen(
            kafka.ending_with_parent(kafka.java(os.path.join(kafka.ROOT, "tests", "kafka", "Operator.java"), bootstrap,
                                                heap="-Xmx128m")),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, *words):
        with self.lock:
            self.process.stdin.write(" ".join(map(str, words)) + "\n")
            self.process.stdin.flush()
            said = self.process.stdout.readline().rstrip()
        assert said == "ok", f"{' '.join(map(str, words))}: {said or 'it has ended'}"

    def close(self):
        self.process.kill()
        self.process.communicate()


Leader = collections.namedtuple("Leader", "topic partition node")  # node: None, it has none


class Cluster(kafka.Log):
    """So many brokers with their data below `work`; `more` are properties that each gets besides."""

    def __init__(self, work, brokers=3, **more):
        self.brokers = brokers
        self.nodes = [Member(os.path.join(work, f"broker{i + 1}"), i + 1) for i in range(brokers)]
        self.more = "".join(f"{name.replace('_', '.')}={value}\n" for name, value in more.items())
        self.lines = self.relays = self.operator = None
        self.launcher = concurrent.futures.ThreadPoolExecutor(1)  # with whose thread the brokers end
        kafka.on_free_ports(self.begin, self.kill, self.log)

    # ---- its life ----

    def begin(self):
        name, controller = kafka.cluster_id(), ports.take()
        for node in self.nodes:
            node.take_ports()
        self.each(lambda node: node.format(name, controller, self.more))
        self.lines = relay.Relays()
        self.relays = [self.lines.add(node.front_port, node.hidden_port) for node in self.nodes]
        for node in self.nodes:
            self.launcher.submit(node.launch).result()
        kafka.until(self.is_whole, "the cluster")
        self.operator = Operator(self.bootstrap)

    def each(self, what):
        """For all nodes at once; the first error is raised."""
        errors = []

        def one(node):
            try:
                what(node)
            except Exception as error:  # it is raised below
                errors.append(error)

        threads = [threading.Thread(target=one, args=(node,)) for node in self.nodes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    @property
    def bootstrap(self):
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    @property
    def fronts(self):
        """Where the program under test is to begin."""
        return ";".join(f"127.0.0.1:{node.front_port}" for node in self.nodes)

    @property
    def properties(self):
        return ["security.protocol=SASL_PLAINTEXT", "sasl.mechanisms=PLAIN", f"sasl.username={USER}",
                f"sasl.password={PASSWORD}"]

    def log(self):
        return "\n".join(node.log() for node in self.nodes if os.path.exists(node.log_file))

    def check(self):
        """No broker has ended by itself."""
        for node in self.nodes:
            node.check()

    def is_whole(self):
        self.check()
        return self.answers()

    def start(self, node):
        """Start one that was killed or stopped; back when it has heard of all others and they of it."""
        self.launcher.submit(node.launch).result()
        admin = self.kafka().admin.AdminClient({"bootstrap.servers": f"127.0.0.1:{node.port}", "log_level": 0})

        def answers():
            with contextlib.suppress(self.kafka().KafkaException):  # not the others: they may not miss it yet
                return self.is_whole() and len(admin.list_topics(timeout=2).brokers) == self.brokers

        kafka.until(answers, f"broker {node.id}")

    def kill(self):
        if self.operator is not None:
            self.operator.close()
        for node in self.nodes:
            node.kill()
        if self.lines is not None:
            self.lines.close()
        self.operator = self.lines = self.relays = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.launcher.shutdown()

    # ---- rights and leaders ----

    def allow(self, kind, name, *operations):
        """The program under test may do this to a "topic", a "group" or the "cluster" of a name."""
        self.operator.ask("allow", USER, kind, name, *operations)

    def deny(self, kind, name):
        self.operator.ask("deny", USER, kind, name)

    def leaders(self, topics, admin):
        """Of each partition of those that are there."""
        found = admin.list_topics(timeout=kafka.PATIENCE_S).topics
        return [Leader(topic, number, self.nodes[one.leader - 1] if one.leader > 0 else None)
                for topic in topics if topic in found and found[topic].error is None
                for number, one in found[topic].partitions.items()]

    def move(self, topic, partition, *nodes):
        """Have these nodes hold a partition, the first one lead it."""
        self.operator.ask("move", topic, partition, ",".join(str(node.id) for node in nodes))

    def balance(self, topics):
        """Have each partition be led by the first of its replicas again."""
        def others():
            found = self.admin().list_topics(timeout=kafka.PATIENCE_S).topics
            return [(topic, number) for topic in topics if topic in found
                    for number, one in found[topic].partitions.items() if one.leader != one.replicas[0]]

        def is_so():
            for topic, number in others():
                with contextlib.suppress(AssertionError):  # its broker has only just come back
                    self.operator.ask("lead", topic, number)
            return not others()

        kafka.until(is_so, "each partition to be led by its first replica")
