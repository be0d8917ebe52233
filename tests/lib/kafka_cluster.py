# SPDX-License-Identifier: Apache-2.0
"""A real Apache Kafka cluster for tests, with a relay in front of each broker, and permissions that tests can change.

    with Cluster(directory) as cluster:
        cluster.create("topic", 6, replicas=3)
        cluster.allow("topic", "topic", "Read", "Describe")
        cluster.relays[2].set(relay.HANG)

Tests connect to `bootstrap`, where everything is allowed. The program under test connects to the relays at `fronts`
with `properties`. These name a user without permissions, until `allow` adds some. The brokers advertise only their
relays to it.
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
CONTROLLER = 0  # the node that is also the controller; tests never stop it, because the cluster cannot work without it
DIRECT, FRONT = "DIRECT", "FRONT"

# All brokers run on one machine, so heaps and threads are small.
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
    """One broker of a cluster. `number` is its id, from 1."""

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
    """tests/kafka/Operator.java: requests that Debian's Kafka client cannot send."""

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


Leader = collections.namedtuple("Leader", "topic partition node")  # node: None without leader


class Cluster(kafka.Log):
    """A cluster of `brokers` brokers with their data in `work`; `more`: additional properties of each."""

    def __init__(self, work, brokers=3, **more):
        self.brokers = brokers
        self.nodes = [Member(os.path.join(work, f"broker{i + 1}"), i + 1) for i in range(brokers)]
        self.more = "".join(f"{name.replace('_', '.')}={value}\n" for name, value in more.items())
        self.lines = self.relays = self.operator = None
        self.launcher = concurrent.futures.ThreadPoolExecutor(1)  # brokers end with the thread that starts them
        kafka.on_free_ports(self.begin, self.kill, self.log)

    # ---- processes ----

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
        """Call `what` for all nodes concurrently, and raise the first error."""
        errors = []

        def one(node):
            try:
                what(node)
            except Exception as error:  # raised below
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
        """The bootstrap addresses for the program under test."""
        return ";".join(f"127.0.0.1:{node.front_port}" for node in self.nodes)

    @property
    def properties(self):
        return ["security.protocol=SASL_PLAINTEXT", "sasl.mechanisms=PLAIN", f"sasl.username={USER}",
                f"sasl.password={PASSWORD}"]

    def log(self):
        return "\n".join(node.log() for node in self.nodes if os.path.exists(node.log_file))

    def check(self):
        """Assert that no broker has ended."""
        for node in self.nodes:
            node.check()

    def is_whole(self):
        self.check()
        return self.answers()

    def start(self, node):
        """Start a stopped node, and wait until it sees all brokers and they see it."""
        self.launcher.submit(node.launch).result()
        admin = self.kafka().admin.AdminClient({"bootstrap.servers": f"127.0.0.1:{node.port}", "log_level": 0})

        def answers():
            with contextlib.suppress(self.kafka().KafkaException):  # ask this node: others may not miss it yet
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

    # ---- permissions and leaders ----

    def allow(self, kind, name, *operations):
        """Allow the program under test these operations on a resource: kind "topic", "group" or "cluster", and its
        name."""
        self.operator.ask("allow", USER, kind, name, *operations)

    def deny(self, kind, name):
        self.operator.ask("deny", USER, kind, name)

    def leaders(self, topics, admin):
        """The leader of each partition of the topics that exist."""
        found = admin.list_topics(timeout=kafka.PATIENCE_S).topics
        return [Leader(topic, number, self.nodes[one.leader - 1] if one.leader > 0 else None)
                for topic in topics if topic in found and found[topic].error is None
                for number, one in found[topic].partitions.items()]

    def move(self, topic, partition, *nodes):
        """Reassign a partition to these nodes. The first one becomes its leader."""
        self.operator.ask("move", topic, partition, ",".join(str(node.id) for node in nodes))

    def balance(self, topics):
        """Make the first replica of each partition its leader again."""
        def others():
            found = self.admin().list_topics(timeout=kafka.PATIENCE_S).topics
            return [(topic, number) for topic in topics if topic in found
                    for number, one in found[topic].partitions.items() if one.leader != one.replicas[0]]

        def is_so():
            for topic, number in others():
                with contextlib.suppress(AssertionError):  # the broker has just restarted
                    self.operator.ask("lead", topic, number)
            return not others()

        kafka.until(is_so, "each partition to be led by its first replica")
