# SPDX-License-Identifier: Apache-2.0
"""Real redis-server processes for tests, on random loopback ports. They end with the test program.

    with Redis(directory) as redis:                       # one server
        redis.address                                     # "127.0.0.1:39123"
        redis.ask("SET", "key", "value")                  # "OK"
    with Cluster(directory, masters=3, replicas=1) as cluster:
        cluster.addresses                                 # "127.0.0.1:39123,127.0.0.1:…"
        cluster.nodes[0].pause()
    with Redis(directory, tls_cert_file=…, tls_key_file=…, tls_ca_cert_file=…) as redis:
        redis.address                                     # the TLS port; replicas and nodes use TLS, too
    with Redis(directory) as redis, Gate(redis) as gate:  # can hold back replies of one server
        gate.address

Tests query servers with a few lines of RESP in this file, without hpsd's client. Other options of a server are given as
`name="value"` (`_` for `-`). tests/lib/redis_rig.h is the same for C.

As a program: `redis.py missing` prints what is missing to run a server. `redis.py run MASTERS REPLICAS` starts a
cluster with this many replicas of each master, and prints `ready addresses=ADDR,… pids=N,…`. It ends when its standard
input ends.
"""
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import ports

SLOTS = 16384
PATIENCE_S = 60


def missing():
    """The reason why no server can run here, or None."""
    return None if shutil.which("redis-server") else "apt-get install redis-server"


def ending_with_parent(args):
    """End the process with this one. See kafka.py for why this is no preexec_fn."""
    return ["setpriv", "--pdeathsig", "KILL", *args]


def until(what, why):
    """Call `what` until it returns a true value, and return this value."""
    end = time.monotonic() + PATIENCE_S
    while True:
        found = what()
        if found:
            return found
        assert time.monotonic() < end, f"waited {PATIENCE_S} s for {why}"
        time.sleep(0.005)


class ServerError(Exception):
    """An error reply of the server."""


class Redis:
    """One server with its files in `work`; `more`: additional options."""

    def __init__(self, work, **more):
        self.work = os.path.abspath(work)
        os.makedirs(self.work, exist_ok=True)
        self.more = {name.replace("_", "-"): str(value) for name, value in more.items()}
        self.process = None
        self.connection = None
        for attempt in range(3):  # another program may take a port between the check and the start
            self.port, self.bus_port = ports.take(), ports.take()
            self.tls_port = ports.take() if "tls-cert-file" in self.more else None
            try:
                self.start()
                return
            except AssertionError:
                if attempt == 2 or "bind" not in self.log().lower():
                    raise

    # ---- process ----

    @property
    def address(self):
        return f"127.0.0.1:{self.peer_port}"

    @property
    def peer_port(self):
        """The port that replicas and nodes use."""
        return self.tls_port or self.port

    @property
    def pid(self):
        return self.process.pid

    def log(self):
        with open(os.path.join(self.work, "log"), encoding="utf-8", errors="replace") as f:
            return f.read()

    def start(self):
        """Start on the same port. Data is lost unless the options make Redis store it."""
        assert self.process is None
        options = {"bind": "127.0.0.1", "dir": self.work, "port": str(self.port), "save": "", "appendonly": "no",
                   "logfile": "log", "enable-debug-command": "yes", "repl-diskless-sync-delay": "0",
                   "rdb-del-sync-files": "yes", **self.more}
        if options.get("cluster-enabled") == "yes":
            options = {"cluster-port": str(self.bus_port), **options}
        if self.tls_port is not None:
            options = {"tls-port": str(self.tls_port), "tls-replication": "yes", "tls-cluster": "yes", **options}
        args = [word for name, value in options.items() for word in (f"--{name}", value)]
        self.process = subprocess.Popen(ending_with_parent(["redis-server", *args]), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def answers():
            if self.process.poll() is not None:
                code, self.process = self.process.returncode, None
                raise AssertionError(f"redis-server ended with {code}\n{self.log()[-2000:]}")
            try:
                told = self.ask("INFO", "server")
            except OSError:
                return False
            except ServerError:
                return True  # the server is loading, or requires a password
            if f"process_id:{self.pid}\r\n" in told:
                return True
            self.hang_up()  # another server has the port; this one will end with an error
            return False

        until(answers, "redis-server")

    def end(self, number):
        if self.process is not None:
            self.process.send_signal(number)
            if number == signal.SIGTERM:
                self.process.send_signal(signal.SIGCONT)
            self.process.wait(PATIENCE_S)
            self.process = None
        self.hang_up()

    def stop(self):
        self.end(signal.SIGTERM)

    def kill(self):
        self.end(signal.SIGKILL)

    def restart(self):
        self.kill()
        self.start()

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    # ---- commands ----

    def hang_up(self):
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def ask(self, *words):
        """Send a command; its reply as str (bytes if it is not valid text), int, None or a list of these."""
        parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        data = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
        try:
            if self.connection is None:
                self.connection = socket.create_connection(("127.0.0.1", self.port), PATIENCE_S).makefile("rwb")
            self.connection.write(data)
            self.connection.flush()
            answer = self.read()
        except OSError:
            self.hang_up()
            raise
        if isinstance(answer, ServerError):
            raise answer
        return answer

    def read(self):
        line = self.connection.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the server hung up")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            return ServerError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"*":
            return None if rest == b"-1" else [self.read() for _ in range(int(rest))]
        if kind == b"$":
            if rest == b"-1":
                return None
            rest = self.connection.read(int(rest) + 2)[:-2]
        try:
            return rest.decode()
        except UnicodeDecodeError:
            return rest

    def await_in(self, wanted, *words):
        """Repeat a command until its reply, a text, contains `wanted`."""
        return until(lambda: wanted in self.ask(*words), f"{wanted!r} in {' '.join(words)}")


class Gate:
    """A proxy of a server, at `address`, that can hold back the reply to a command. So a test can act after the server
    has sent a reply, and before the client reads it."""

    def __init__(self, server):
        self.server = server
        self.lock = threading.Condition()
        self.word, self.kept = None, 0
        self.closed = False
        self.sockets = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.start(self.accept)

    @staticmethod
    def start(run, *args):
        threading.Thread(target=run, args=args, daemon=True).start()

    def accept(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.server.port))
            except OSError:
                client.close()
                continue
            with self.lock:
                self.sockets += [client, server]
                if self.closed:
                    self.hang_up()
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            waits = threading.Event()
            self.start(self.carry, client, server, lambda data, waits=waits: self.question(data, waits))
            self.start(self.carry, server, client, lambda _, waits=waits: self.answer(waits))

    def carry(self, source, target, look):
        try:
            while data := source.recv(65536):
                look(data)
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def question(self, data, waits):
        with self.lock:
            if self.word is not None and self.word in data and not self.kept:
                waits.set()

    def answer(self, waits):
        with self.lock:
            if waits.is_set() and self.word is not None:
                self.kept += 1
                self.lock.notify_all()
                self.lock.wait_for(lambda: self.word is None or self.closed)
            waits.clear()

    def shut(self, word):
        """Hold back the reply to the next command that contains these bytes, and all later replies of its
        connection."""
        with self.lock:
            self.word, self.kept = word, 0

    def wait_kept(self):
        """Wait until the server has sent the reply."""
        with self.lock:
            assert self.lock.wait_for(lambda: self.kept > 0, PATIENCE_S), f"nobody has asked {self.word!r}"

    def open(self):
        with self.lock:
            self.word = None
            self.lock.notify_all()

    def hang_up(self):
        for each in self.sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with self.lock:
            self.closed = True
            self.lock.notify_all()
            self.hang_up()
        self.listener.close()


class Cluster:
    """nodes[0 … masters - 1] are masters with equal shares of the slots. The replicas follow, one per master in
    turn."""

    def __init__(self, work, masters=3, replicas=1, **more):
        options = {"cluster_enabled": "yes", "cluster_node_timeout": 1500, "cluster_config_file": "nodes.conf",
                   "cluster_require_full_coverage": "no", **more}
        self.nodes = []
        self.masters = masters
        try:
            for i in range(masters * (1 + replicas)):
                self.nodes.append(Redis(os.path.join(work, f"node{i}"), **options))
            self.join()
        except BaseException:
            self.kill()
            raise

    @property
    def addresses(self):
        return ",".join(node.address for node in self.nodes)

    def join(self):
        for i, node in enumerate(self.nodes):
            node.id = node.ask("CLUSTER", "MYID")
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
            if i < self.masters:
                node.ask("CLUSTER", "ADDSLOTSRANGE", SLOTS * i // self.masters,
                         SLOTS * (i + 1) // self.masters - 1)
            if i > 0:
                self.nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", node.port, node.bus_port)
        for node in self.nodes:
            node.await_in(f"cluster_known_nodes:{len(self.nodes)}\r", "CLUSTER", "INFO")
        for i, node in enumerate(self.nodes[self.masters:]):
            master = self.nodes[i % self.masters].id
            node.await_in(master, "CLUSTER", "NODES")
            node.ask("CLUSTER", "REPLICATE", master)
        for node in self.nodes:
            node.await_in("cluster_state:ok", "CLUSTER", "INFO")
            node.await_in(f"cluster_slots_assigned:{SLOTS}", "CLUSTER", "INFO")
        for node in self.nodes[self.masters:]:
            node.await_in("master_link_status:up", "INFO", "replication")

    def owner(self, slot, seen_by=None):
        """The node that owns the slot, as node `seen_by` sees it, or None."""
        for first, last, master, *_ in (seen_by or self.nodes[0]).ask("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == master[1])
        return None

    def move(self, slot, to):
        """Move a slot and its keys to another master as redis-cli does, and wait until all nodes know. Moved keys
        replace keys of the same name."""
        source = self.owner(slot, to)
        if source is to:
            return
        to.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", to.id)
        while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
            source.ask("MIGRATE", "127.0.0.1", to.peer_port, "", 0, PATIENCE_S * 1000, "REPLACE", "KEYS", *keys)
        for node in (to, source):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", to.id)
        for node in self.nodes:
            if node.process is not None:
                until(lambda node=node: self.owner(slot, node) is to, "all nodes to hear of a moved slot")

    def take_over(self, replica):
        """Make a replica the master without an election."""
        replica.ask("CLUSTER", "FAILOVER", "TAKEOVER")
        replica.await_in("role:master", "INFO", "replication")

    def kill(self):
        for node in self.nodes:
            node.kill()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


def run(masters, replicas):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="hps-redis-", ignore_cleanup_errors=True) as work:
        with Cluster(work, masters, replicas) as cluster:
            pids = ",".join(str(node.pid) for node in cluster.nodes)
            print(f"ready addresses={cluster.addresses} pids={pids}", flush=True)
            sys.stdin.read()
    return 0


def main(argv):
    counts = [int(arg) for arg in argv[1:] if arg.isdigit()]
    if argv != ["missing"] and not (argv[:1] == ["run"] and len(argv) == 3 == len(counts) + 1):
        print(__doc__, file=sys.stderr)
        return 2
    why = missing()
    if why is not None:
        print(f"redis.py: {why}", file=sys.stderr)
        return 1
    return run(*counts) if argv[0] == "run" else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
