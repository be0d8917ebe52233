# SPDX-License-Identifier: Apache-2.0
"""A real Apache Kafka broker for tests: one KRaft node on random loopback ports.

    with Broker(directory) as broker:
        broker.create("topic", 3)
        broker.bootstrap  # "127.0.0.1:39123"

stop, kill and start keep port and data. Topics and records are read and written by Debian's python3-confluent-kafka and
by Kafka's own Java classes, without hpsd's code.

As a program: `kafka.py fetch` downloads the broker's jars (tests/kafka/pom.xml) once, with Maven. `kafka.py missing`
prints what is missing to run a broker. `kafka.py run [TOPIC...]` starts a broker, creates these topics with one
partition each and prints `ready bootstrap=ADDR pid=N`. Then it runs commands from the lines of its standard input until
the input ends, and replies to each with `ok` or `error TEXT`: create TOPIC PARTITIONS [NAME=VALUE...], grow TOPIC
PARTITIONS, delete TOPIC, drop TOPIC PARTITION OFFSET (the records before this offset), stop, kill, start.
"""
import base64
import fcntl
import glob
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import uuid

import ports

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
POM = os.path.join(ROOT, "tests", "kafka", "pom.xml")
JARS = os.environ.get("HPS_KAFKA_JARS") or os.path.join(ROOT, "build", "kafka", "jars")
ARCHIVE = os.path.join(JARS, "broker.jsa")
PATIENCE_S = 120
FETCH_S = 600

# A broker that is its own controller.
ALONE = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners={listeners},CONTROLLER://127.0.0.1:{controller}
advertised.listeners={listeners}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL,CONTROLLER:PLAINTEXT
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
"""

# For every broker. The session is short, because a killed broker can restart only after its last session has expired.
PROPERTIES = """\
controller.listener.names=CONTROLLER
log.dirs={work}/log
auto.create.topics.enable=false
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=3000
group.initial.rebalance.delay.ms=0
log.cleaner.backoff.ms=200
log.cleaner.dedupe.buffer.size=4194304
log.segment.delete.delay.ms=1000
message.max.bytes=8388608
num.io.threads=2
num.network.threads=2
num.recovery.threads.per.data.dir=1
offsets.topic.num.partitions=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
{more}"""

# A second listener with TLS and passwords (PLAIN or SCRAM).
SECURE = """\
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256
listener.name.secure.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
user_{user}="{password}";
listener.name.secure.scram-sha-256.sasl.jaas.config=\\
org.apache.kafka.common.security.scram.ScramLoginModule required;
"""


def missing():
    """The reason why no broker can run here, or None."""
    if shutil.which("java") is None:
        return "Java is missing: apt-get install default-jdk-headless"
    if importlib.util.find_spec("confluent_kafka") is None:
        return "apt-get install python3-confluent-kafka"
    if not glob.glob(os.path.join(JARS, "kafka_*.jar")):
        return f"the broker's jars are missing: {sys.executable} tests/lib/kafka.py fetch"
    return None


def fetch():
    """Download the jars if they are missing; the reason of a failure, or None. Only one process downloads at a time."""
    if glob.glob(os.path.join(JARS, "kafka_*.jar")):
        return None
    if shutil.which("mvn") is None:
        return "maven is missing: apt-get install maven"
    try:
        os.makedirs(os.path.dirname(os.path.abspath(JARS)), exist_ok=True)
        with open(f"{JARS}.lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return None if glob.glob(os.path.join(JARS, "kafka_*.jar")) else fetch_alone()
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)


def fetch_alone():
    work = f"{JARS}.{os.getpid()}"
    try:
        os.makedirs(work)
        shutil.copy(POM, os.path.join(work, "pom.xml"))
        command = ["mvn", "-q", "-B", "-f", os.path.join(work, "pom.xml"), "dependency:copy-dependencies",
                   "-DincludeScope=runtime", f"-DoutputDirectory={work}/jars"]
        for flags in (["-o"], []):  # -o: jars that Maven has cached need no network
            done = subprocess.run(command + flags, capture_output=True, text=True, timeout=FETCH_S)
            if done.returncode == 0:
                shutil.rmtree(JARS, ignore_errors=True)
                os.rename(os.path.join(work, "jars"), JARS)
                archive()
                return None
        return f"mvn could not fetch them:\n{(done.stdout + done.stderr)[-2000:]}"
    finally:
        shutil.rmtree(work, ignore_errors=True)


def archive():
    """Store the classes of a running broker as the JVM has them (class data sharing). Brokers then need a third less
    CPU time to start. If this fails, they only start more slowly."""
    try:
        with tempfile.TemporaryDirectory(prefix="hps-kafka-") as work:
            FirstBroker(work).stop()
        os.rename(FirstBroker.written, ARCHIVE)
    except (AssertionError, OSError, ImportError, subprocess.SubprocessError):
        pass


def until(condition, what, patience_s=PATIENCE_S):
    gate = threading.Event()
    seen = None
    for _ in range(patience_s * 20):
        seen = condition()
        if seen:
            return seen
        gate.wait(0.05)
    raise AssertionError(f"{what}: not within {patience_s} s, last seen {seen!r}")


def ending_with_parent(args):
    """End the process when the thread that starts it ends, for example when a test run is killed. A preexec_fn could do
    the same, but then Popen forks, and gRPC's fork handlers hang while another thread is in a call."""
    return ["setpriv", "--pdeathsig", "KILL", *args]


def java(*args, heap="-Xmx512m", more=()):
    if not more and os.path.exists(ARCHIVE):
        more = (f"-XX:SharedArchiveFile={ARCHIVE}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")
    return ["java", heap, "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *more,
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", os.path.join(JARS, "*"), *args]


class Log:
    """Requests of clients to one or more brokers at `bootstrap`."""

    bootstrap = None  # "host:port", or several with commas
    brokers = 1

    @staticmethod
    def kafka():
        import confluent_kafka  # only where a broker can run
        import confluent_kafka.admin  # noqa: F401
        return confluent_kafka

    def admin(self):
        return self.kafka().admin.AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def settle(self, verb, things):
        admin = self.admin()  # must live as long as its calls
        for future in getattr(admin, verb)(things, operation_timeout=PATIENCE_S).values():
            future.result(PATIENCE_S)

    def partitions(self, topic):
        """The number of partitions; 0: the topic does not exist."""
        found = self.admin().list_topics(timeout=PATIENCE_S).topics.get(topic)
        return 0 if found is None or found.error is not None else len(found.partitions)

    def create(self, topic, partitions=1, replicas=1, **config):
        """Create a topic, and wait until clients see it. Names in `config` have "_" for "."."""
        self.make(topic, partitions, replicas, **config)
        until(lambda: self.partitions(topic) == partitions and self.led(topic),
              f"{topic} with {partitions} partitions")
        return topic

    def make(self, topic, partitions, replicas, **config):
        """Create a topic. Clients may not see it yet."""
        config = {name.replace("_", "."): str(value) for name, value in config.items()}
        self.settle("create_topics", [self.kafka().admin.NewTopic(topic, partitions, replicas, config=config)])

    def answers(self):
        """Whether all brokers respond."""
        try:
            return len(self.admin().list_topics(timeout=2).brokers) == self.brokers
        except self.kafka().KafkaException:
            return False

    def led(self, topic):
        """Whether all partitions respond. The leader of a new topic may not know yet that it leads."""
        try:
            return len(self.offsets(topic)) > 0
        except self.kafka().KafkaException:
            return False

    def grow(self, topic, partitions):
        new = self.kafka().admin.NewPartitions(topic, partitions)
        self.settle("create_partitions", [new])
        until(lambda: self.partitions(topic) == partitions, f"{topic} with {partitions} partitions")

    def delete(self, topic):
        self.settle("delete_topics", [topic])
        until(lambda: self.partitions(topic) == 0, f"{topic} to be gone")

    def recreate(self, topic, partitions=1, **config):
        """Delete the topic, and create another one with the same name."""
        self.delete(topic)
        self.create(topic, partitions, **config)

    def drop(self, topic, partition, offset):
        """Delete the records before `offset`, as retention does."""
        done = subprocess.run(java(os.path.join(ROOT, "tests", "kafka", "DeleteRecords.java"), self.bootstrap,
                                   topic, str(partition), str(offset), heap="-Xmx128m"),
                              capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stdout + done.stderr

    def consumer(self, **config):
        return self.kafka().Consumer({"bootstrap.servers": self.bootstrap, "group.id": "reader",
                                      "enable.auto.commit": False, "enable.partition.eof": True,
                                      "auto.offset.reset": "earliest", "log_level": 0, **config})

    def offsets(self, topic):
        """{partition: (first offset, next offset)}"""
        def known():  # in a tuple, because no partitions is a result, too
            consumer = self.consumer()
            try:
                return ({i: consumer.get_watermark_offsets(self.kafka().TopicPartition(topic, i), PATIENCE_S)
                         for i in range(self.partitions(topic))},)
            except self.kafka().KafkaException as error:
                # The consumer has older metadata, which it keeps for minutes.
                if error.args[0].code() != self.kafka().KafkaError._UNKNOWN_PARTITION:
                    raise
            finally:
                consumer.close()

        return until(known, f"the offsets of {topic}")[0]

    # ---- records ----

    def read(self, topic):
        """All records of the topic as confluent_kafka.Message, in order by partition."""
        kafka, found = self.kafka(), []
        left = {i for i, (low, high) in self.offsets(topic).items() if high > low}
        consumer = self.consumer()
        try:
            consumer.assign([kafka.TopicPartition(topic, i, kafka.OFFSET_BEGINNING) for i in left])
            while left:
                message = consumer.poll(PATIENCE_S)
                assert message is not None, f"{topic}: no answer for partitions {left}"
                if message.error() is None:
                    found.append(message)
                elif message.error().code() == kafka.KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
                else:
                    raise kafka.KafkaException(message.error())
        finally:
            consumer.close()
        return sorted(found, key=lambda m: (m.partition(), m.offset()))

    def write(self, topic, records, **config):
        """Send records, as (key, value) or as dicts of arguments of Producer.produce, and wait until all are stored."""
        producer = self.kafka().Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5, **config})
        errors = []

        def delivered(error, _):
            if error is not None:
                errors.append(error)

        for record in records:
            fields = record if isinstance(record, dict) else {"key": record[0], "value": record[1]}
            while True:
                try:
                    producer.produce(topic, on_delivery=delivered, **fields)
                    break
                except BufferError:
                    producer.poll(1)
        assert producer.flush(PATIENCE_S) == 0, "the broker does not take records"
        assert not errors, errors[0]


class Node:
    """One broker process with its files in `work`."""

    heap = "-Xmx512m"
    jvm = ()  # flags

    def __init__(self, work):
        self.work = os.path.abspath(work)
        self.process = None
        self.log_file = os.path.join(self.work, "broker.log")
        self.file = os.path.join(self.work, "server.properties")

    def set_up(self, cluster, properties, *flags):
        """Write the configuration, and format the storage for a cluster with this id. Without flags, a file with the ids
        is sufficient; Kafka's tool would need a third of the CPU time of a broker's start to write it."""
        logs = os.path.join(self.work, "log")
        shutil.rmtree(logs, ignore_errors=True)
        os.makedirs(logs)
        with open(self.file, "w", encoding="utf-8") as f:
            f.write(properties)
        if not flags:
            number = properties.partition("node.id=")[2].split("\n")[0]
            with open(os.path.join(logs, "meta.properties"), "w", encoding="utf-8") as f:
                f.write(f"version=1\ncluster.id={cluster}\nnode.id={number}\n")
            return
        done = subprocess.run(java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", self.file, *flags),
                              capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stdout + done.stderr

    def log(self):
        with open(self.log_file, encoding="utf-8", errors="replace") as f:
            return f.read()

    def launch(self):
        assert self.process is None
        with open(self.log_file, "wb") as log:
            self.process = subprocess.Popen(ending_with_parent(java("kafka.Kafka", self.file, heap=self.heap,
                                                                    more=self.jvm)),
                                            stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def check(self):
        process = self.process
        code = process and process.poll()
        assert code is None, f"the broker ended with {code}\n{self.log()[-4000:]}"

    def end(self, number):
        process, self.process = self.process, None  # so that `check` does not report it as ended
        if process is not None:
            process.send_signal(number)
            process.wait(PATIENCE_S)

    def stop(self):
        self.end(signal.SIGTERM)

    def kill(self):
        self.end(signal.SIGKILL)


def cluster_id():
    """A random id. It begins with a letter, because a leading "-" would be parsed as an option."""
    return "h" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]


def on_free_ports(begin, end, log):
    """Call `begin()`. Try again if another program has taken a port between the check and the start."""
    for attempt in range(3):
        try:
            return begin()
        except AssertionError:
            if attempt == 2 or "Address already in use" not in log():
                raise
            end()


class Broker(Log, Node):
    """One broker with its data in `work`. `more`: additional properties. With `secure`, which is (file with key and
    certificate, user, password), the broker also listens at `secure_bootstrap`."""

    def __init__(self, work, secure=None, **more):
        super().__init__(work)
        self.port = self.secure_port = None
        self.secure = secure
        self.more = "".join(f"{name.replace('_', '.')}={value}\n" for name, value in more.items())
        on_free_ports(self.begin, self.kill, self.log)

    def begin(self):
        self.format()
        self.start()

    def format(self):
        self.port, self.secure_port, controller = (ports.take() for _ in range(3))
        listeners, more, scram = f"PLAINTEXT://{self.bootstrap}", self.more, []
        if self.secure is not None:
            keystore, user, password = self.secure
            listeners += f",SECURE://{self.secure_bootstrap}"
            more += SECURE.format(keystore=keystore, user=user, password=password)
            scram = ["--add-scram", f"SCRAM-SHA-256=[name={user},password={password}]"]
        self.set_up(cluster_id(), ALONE.format(listeners=listeners, controller=controller)
                    + PROPERTIES.format(work=self.work, more=more), *scram)

    @property
    def bootstrap(self):
        return f"127.0.0.1:{self.port}"

    @property
    def secure_bootstrap(self):
        return f"127.0.0.1:{self.secure_port}"

    def start(self):
        """Start on the same port and data, and wait until the broker responds."""
        self.launch()

        def answers():
            self.check()
            return self.answers()

        try:
            until(answers, "the broker")
        except AssertionError as error:
            self.kill()
            raise AssertionError(f"{error}\n{self.log()[-4000:]}") from None

    def restart(self):
        self.stop()
        self.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


class FirstBroker(Broker):
    """A broker that writes the class archive when it stops."""

    written = f"{JARS}.jsa"
    jvm = (f"-XX:ArchiveClassesAtExit={written}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")


# ---- as a program ---------------------------------------------------------------------------------

def obey(broker, words):
    verb, args = words[0], words[1:]
    if verb == "create":
        broker.create(args[0], int(args[1]), **dict(pair.split("=", 1) for pair in args[2:]))
    elif verb == "grow":
        broker.grow(args[0], int(args[1]))
    elif verb == "delete":
        broker.delete(args[0])
    elif verb == "drop":
        broker.drop(args[0], int(args[1]), int(args[2]))
    elif verb in ("stop", "kill", "start"):
        getattr(broker, verb)()
    else:
        raise ValueError(f"there is no command {verb}")


def run(topics):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    work = tempfile.mkdtemp(prefix="hps-kafka-")
    try:
        with Broker(work) as broker:
            for topic in topics:
                broker.create(topic)
            print(f"ready bootstrap={broker.bootstrap} pid={broker.process.pid}", flush=True)
            for line in sys.stdin:
                if line.strip():
                    try:
                        obey(broker, line.split())
                        print("ok", flush=True)
                    except Exception as error:  # reported to the other side
                        print("error", " ".join(str(error).split()) or repr(error), flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0


def main(argv):
    if argv[:1] == ["run"]:
        why = fetch() or missing()
        if why is None:
            return run(argv[1:])
    elif argv == ["fetch"]:
        why = fetch()
    elif argv == ["missing"]:
        why = missing()
    else:
        print(__doc__, file=sys.stderr)
        return 2
    if why is not None:
        print(f"kafka.py: {why}", file=sys.stderr)
    return 0 if why is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
