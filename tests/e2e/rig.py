# SPDX-License-Identifier: Apache-2.0
"""Shared code of the end-to-end tests: generated stubs, a daemon under test, a client, tables to serve.

Nothing here sleeps for a fixed time: `until` polls a condition, and fails with the last value. Servers listen on
loopback, or on sockets in a temporary directory of the test.
"""
import atexit
import contextlib
import ctypes
import ctypes.util
import glob
import http.client
import json
import mmap
import os
import random
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading

import grpc
import numpy as np
import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.path.abspath(os.environ.get("HPS_BIN_DIR") or os.path.join(ROOT, "build", "bin"))
PROTO = os.path.join(ROOT, "proto")
sys.path.insert(0, os.path.join(ROOT, "tests", "lib"))
import hpsgen  # noqa: E402
import kafka  # noqa: E402,F401  for the tests
import reflected  # noqa: E402,F401  for the tests


def sanitizer():
    """The sanitizer of the programs under test: "thread", "address" or ""."""
    with open(os.path.join(BIN, "hpsd"), "rb") as f:
        data = f.read()
    for mark, name in ((b"__tsan_init", "thread"), (b"__asan_init", "address")):
        if mark in data:
            return name
    return ""


SANITIZER = sanitizer()
GPU = os.environ.get("HPS_DEVICE") == "sim"
SLOW = float(os.environ.get("HPS_TEST_SLOW") or (8 if SANITIZER else 1))
PATIENCE_S = 30 * SLOW
LONG_LOAD_ROWS = 50_000 if SANITIZER else 250_000  # of each of four tables: enough rows to observe a load while it runs
DEFAULT_PORTS = (8600, 8601, 8602)
CALL_S = 10  # default time limit of hpsctl
REPORT = re.compile(r"ERROR: \w+Sanitizer|WARNING: \w+Sanitizer|runtime error:|Assertion|assertion")


def as_somebody_else():
    """The reason why this tree's programs cannot run as another user, or an empty string."""
    if os.geteuid() != 0:
        return "only root can be somebody else"
    path = BIN
    while path != "/":
        if not os.stat(path).st_mode & 0o001:
            return f"{path} is closed to others"
        path = os.path.dirname(path)
    return ""


def held_default_ports():
    """Bind the default ports, which the documents use, too, until this process ends. So a test in which an hpsd
    listens on a default port fails on every machine."""
    held = [socket.socket() for _ in DEFAULT_PORTS]
    for one, port in zip(held, DEFAULT_PORTS):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # so that all test processes can bind it
        with contextlib.suppress(OSError):  # another server has the port
            one.bind(("127.0.0.1", port))
    return held


HELD = held_default_ports()


def kills(usual):
    """The number of kills in a test: $HPS_KILLS, or `usual`; with sanitizers a quarter of it."""
    return int(os.environ.get("HPS_KILLS") or (usual // 4 if SANITIZER else usual))


def chaos_s():
    """The duration of a chaos test: $HPS_CHAOS_S. Without this variable, `./dev` skips chaos tests under sanitizers."""
    return float(os.environ.get("HPS_CHAOS_S") or 10)


def kill_seed():
    """The seed of a test of kills: $HPS_KILL_SEED, or a random number. The test prints it when it fails."""
    return int(os.environ.get("HPS_KILL_SEED") or random.SystemRandom().randrange(2**32))


def generated_stubs():
    out = tempfile.mkdtemp(prefix="hps-stubs-")
    atexit.register(shutil.rmtree, out, True)
    plugin = shutil.which("grpc_python_plugin")
    if plugin is None:
        pytest.exit("grpc_python_plugin is missing: apt-get install protobuf-compiler-grpc", 1)
    files = [f"hps/v1/{name}.proto" for name in ("lookup", "admin", "update")]
    files += ["grpc/health/v1/health.proto", "grpc/reflection/v1/reflection.proto",
              "grpc/reflection/v1alpha/reflection.proto", "inference/grpc_service.proto",
              "inference/model_config.proto"]
    subprocess.run(["protoc", f"--plugin=protoc-gen-py_grpc={plugin}", f"-I{PROTO}",
                    f"--python_out={out}", f"--py_grpc_out={out}", *files], check=True)
    # Modules grpc.health and grpc.reflection belong below the installed package "grpc".
    sys.path.insert(0, out)
    grpc.__path__.append(os.path.join(out, "grpc"))


generated_stubs()
from hps.v1 import admin_pb2 as admin_pb  # noqa: E402
from hps.v1 import admin_pb2_grpc as admin_grpc  # noqa: E402
from hps.v1 import lookup_pb2 as pb  # noqa: E402
from hps.v1 import lookup_pb2_grpc as pb_grpc  # noqa: E402
import records  # noqa: E402,F401  for the tests
from records import key_bytes  # noqa: E402
from grpc.health.v1 import health_pb2  # noqa: E402
from grpc.health.v1 import health_pb2_grpc as health_grpc  # noqa: E402
from inference import grpc_service_pb2 as kserve_pb  # noqa: E402,F401  for the tests
from inference import grpc_service_pb2_grpc as kserve_grpc  # noqa: E402,F401  for the tests

UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


# ---- waiting -----------------------------------------------------------------------------------------

def until(condition, what, patience_s=PATIENCE_S, step_s=0.01):
    """Poll until `condition()` is true, and return its value."""
    gate = threading.Event()
    steps = int(patience_s / step_s)
    seen = None
    for _ in range(steps):
        seen = condition()
        if seen:
            return seen
        gate.wait(step_s)
    raise AssertionError(f"{what}: not within {patience_s} s, last seen {seen!r}")


@contextlib.contextmanager
def refused(code, *words):
    """The call inside must fail with this code and a message that contains all words."""
    with pytest.raises(grpc.RpcError) as caught:
        yield
    error = caught.value
    assert error.code() == code, f"{error.code()}: {error.details()}"
    for word in words:
        assert word in error.details(), error.details()


@contextlib.contextmanager
def scratch():
    """A temporary directory with a short path, because socket paths have at most 107 bytes."""
    path = tempfile.mkdtemp(prefix="hps-")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


# ---- values ------------------------------------------------------------------------------------------

FP32, FP16, BF16 = 1, 2, 3
VALUE_BYTES = {0: 4, FP32: 4, FP16: 2, BF16: 2}


def encoded(values, output_type):
    """Rows in the encoding of a reply: values of any float type, rounded to nearest even."""
    wide = np.ascontiguousarray(values, dtype=np.float32)
    if output_type in (0, FP32):
        return wide.astype("<f4").tobytes()
    if output_type == FP16:
        return wide.astype("<f2").tobytes()
    bits = wide.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return rounded.astype("<u2").tobytes()


class Table:
    """A table with its keys and rows in memory. `save` writes its files."""

    def __init__(self, name, keys, rows, default=0.0):
        self.name, self.keys, self.rows, self.default = name, np.asarray(keys, "<i8"), rows, default
        self.dim = rows.shape[1]
        self.at = {int(key): i for i, key in enumerate(self.keys)}

    @classmethod
    def random(cls, name, n_rows, dim, dtype=np.float32, seed=1, number=0, default=0.0):
        rng = np.random.default_rng([seed, number, dim])
        keys = rng.integers(-2**63, 2**63 - 1, n_rows, dtype=np.int64)
        keys[:3] = (0, -1, 2**63 - 1)
        keys = np.unique(keys)
        rng.shuffle(keys)
        return cls(name, keys, hpsgen.rows(seed, number, keys, dim, dtype), default)

    def save(self, directory):
        """Write the pair NAME.rows.npy and NAME.keys.npy; returns the path for sparse_files."""
        os.makedirs(directory, exist_ok=True)
        np.save(os.path.join(directory, f"{self.name}.keys.npy"), self.keys)
        np.save(os.path.join(directory, f"{self.name}.rows.npy"), self.rows)
        return os.path.join(directory, f"{self.name}.rows.npy")

    def save_hugectr(self, directory):
        path = os.path.join(directory, self.name)
        os.makedirs(path)
        self.keys.tofile(os.path.join(path, "key"))
        self.rows.astype("<f4").tofile(os.path.join(path, "emb_vector"))
        return path

    def expect(self, keys):
        """The rows of the keys, with the default row for unknown keys."""
        out = np.full((len(keys), self.dim), self.default, np.float32)
        for i, key in enumerate(keys):
            at = self.at.get(int(key))
            if at is not None:
                out[i] = self.rows[at]
        return out


def model_config(name, paths, dims, names, defaults=None, **more):
    """A model's configuration. With HPS_DEVICE=sim it has an embedding cache on a simulated device. A test of other
    tiers sets `gpucache` to False."""
    return {"model": name, "sparse_files": paths, "embedding_vecsize_per_table": dims,
            "embedding_table_names": names, "default_value_for_each_table": defaults or [0.0] * len(dims),
            "deployed_device_list": [0], "max_batch_size": 1024, "gpucache": GPU, **more}


def generate(directory, *args):
    """Run hps-gen into `directory`."""
    return subprocess.run([os.path.join(BIN, "hps-gen"), "--out", directory, *map(str, args)],
                          check=True, capture_output=True, text=True, timeout=PATIENCE_S * 4)


# ---- certificates ------------------------------------------------------------------------------------

class Authority:
    """A CA made by the openssl program."""

    def __init__(self, work, name):
        self.work, self.name = work, name
        self.path = os.path.join(work, f"{name}.pem")
        self.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                     "-days", "2", "-subj", f"/CN={name}", "-addext", "keyUsage=critical,keyCertSign,cRLSign",
                     "-keyout", f"{name}.key", "-out", self.path)

    def openssl(self, *args):
        subprocess.run(["openssl", *args], check=True, capture_output=True, cwd=self.work,
                       timeout=PATIENCE_S)

    def issue(self, name, names="DNS:localhost,IP:127.0.0.1"):
        """Issue a certificate for these names (None: only for the subject); the paths of certificate and key."""
        extensions = os.path.join(self.work, "san.cnf")
        with open(extensions, "w", encoding="utf-8") as f:
            f.write(f"subjectAltName={names}\n" if names else "basicConstraints=CA:FALSE\n")
        self.openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj",
                     f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        self.openssl("x509", "-req", "-in", f"{name}.csr", "-CA", self.path, "-CAkey",
                     f"{self.name}.key", "-CAcreateserial", "-days", "2", "-extfile", "san.cnf", "-out",
                     f"{name}.crt")
        return os.path.join(self.work, f"{name}.crt"), os.path.join(self.work, f"{name}.key")


# ---- the database of a daemon -------------------------------------------------------------------------

def rocksdb_library():
    """librocksdb, with the functions that tests use."""
    library = ctypes.CDLL(ctypes.util.find_library("rocksdb"))
    for name in ("options_create", "open_column_families", "list_column_families",
                 "writeoptions_create"):
        getattr(library, f"rocksdb_{name}").restype = ctypes.c_void_p
    return library


def rocksdb_families(path):
    """Names of the column families. hpsd may have the database open if it is idle."""
    library, n, error = rocksdb_library(), ctypes.c_size_t(), ctypes.c_char_p()
    options = ctypes.c_void_p(library.rocksdb_options_create())
    names = library.rocksdb_list_column_families(options, path.encode(), ctypes.byref(n),
                                                 ctypes.byref(error))
    assert not error, error.value
    pointers = ctypes.cast(names, ctypes.POINTER(ctypes.c_char_p))
    found = [pointers[i].decode() for i in range(n.value)]
    library.rocksdb_list_column_families_destroy(ctypes.c_void_p(names), n)
    library.rocksdb_options_destroy(options)
    return found


# ---- the daemon --------------------------------------------------------------------------------------

def default_config(models=(), durable=True, server=(), **more):
    config = {"supportlonglong": True,
              "volatile_db": {"type": "parallel_hash_map", "memory_bytes": "2GiB"},
              "models": list(models),
              "server": {"drain_delay_ms": 1, "disk_free_min_bytes": "1MiB", "loop_threads": 2,
                         **dict(server)}}
    if durable:
        config["persistent_db"] = {"type": "rocks_db", "num_threads": 2}
    config.update(more)
    return config


def program(env):
    """The path of hpsd, or with HPS_DEVICE of hpsd-sim."""
    return os.path.join(BIN, "hpsd-sim" if env.get("HPS_DEVICE") else "hpsd")


class Daemon:
    """One hpsd process. `config` is written to a file next to the state directory."""

    def __init__(self, work, config=None, flags=(), state="state", listen=("127.0.0.1:0",), wrapper=(),
                 ready=True, env=()):
        self.env = {**os.environ, **dict(env)}
        self.work, self.state = work, os.path.join(work, state)
        self.config_file = os.path.join(work, f"{state}.json")
        self.process = None
        self.said = b""  # bytes of stdout that `read_line` has not consumed yet
        self.log_file = None
        self.channels = []
        self.admin_channel = None
        args = [program(self.env), "--state-dir", self.state, "--http-listen", "127.0.0.1:0"]
        for address in listen:
            args += ["--listen", address]
        if config is not None:
            self.write_config(config)
            args += ["--config", self.config_file]
        self.args = [*wrapper, *args, *map(str, flags)]
        self.start(ready)

    def write_config(self, config):
        with open(self.config_file + ".new", "w", encoding="utf-8") as f:
            json.dump(config, f, indent=1)
        os.replace(self.config_file + ".new", self.config_file)

    def start(self, ready=True):
        number = len(glob.glob(os.path.join(self.work, "*.log")))
        self.log_file = os.path.join(self.work, f"hpsd-{number}.log")
        with open(self.log_file, "wb") as log:
            self.process = subprocess.Popen(self.args, stdout=subprocess.PIPE, stderr=log,
                                            stdin=subprocess.DEVNULL, env=self.env)
        self.said = b""
        self.addresses = self.read_line("listening")
        self.grpc = self.addresses["grpc"].split(",")
        self.http = self.addresses["http"]
        self.kserve = self.addresses.get("kserve", "").split(",")  # addresses of server.kserve_listen
        self.admin = self.addresses["admin"]
        if ready:
            assert self.read_line("ready") == self.addresses

    def read_line(self, word):
        """Wait for the next line on stdout, which must begin with this word; the addresses in the line."""
        out = self.process.stdout
        while b"\n" not in self.said:
            if not select.select([out], [], [], PATIENCE_S * 2)[0]:
                self.kill()
                raise AssertionError(f"no line {word!r}, got {self.said!r}\n{self.log()}")
            piece = os.read(out.fileno(), 4096)
            if not piece:
                code = self.process.wait(PATIENCE_S)
                raise AssertionError(f"hpsd ended with {code} before it was {word}\n{self.log()}")
            self.said += piece
        line, self.said = self.said.split(b"\n", 1)
        words = line.decode().split()
        assert words[0] == word, line
        found = dict(pair.split("=", 1) for pair in words[1:])
        assert set(found) - {"kserve"} == {"grpc", "http", "admin", "pid"}, line
        return found

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def wait_ready(self):
        def is_ready():
            assert self.alive(), f"hpsd ended with {self.process.poll()}\n{self.log()}"
            return self.get("/readyz")[0] == 200

        try:
            until(is_ready, "/readyz")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}") from None

    def log(self):
        with open(self.log_file, encoding="utf-8", errors="replace") as f:
            return f.read()

    def get(self, path):
        host, port = self.http.rsplit(":", 1)
        connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
        try:
            connection.request("GET", path)
            reply = connection.getresponse()
            return reply.status, reply.read().decode()
        except (ConnectionError, http.client.HTTPException) as error:
            return 0, repr(error)
        finally:
            connection.close()

    def metrics(self):
        """{'name{labels}': value} of all samples."""
        status, text = self.get("/metrics")
        assert status == 200
        pairs = (line.rsplit(" ", 1) for line in text.splitlines() if line and line[0] != "#")
        return {name: float(value) for name, value in pairs}

    # ---- end of the process ----

    def send(self, number):
        os.kill(self.process.pid, number)

    def wait_end(self, patience_s=PATIENCE_S * 2):
        code = self.process.wait(patience_s)
        self.process.stdout.close()
        return code

    def stop(self, number=signal.SIGTERM, code=0):
        """Drain hpsd, and check its exit code and log."""
        self.close_channels()
        if self.process is None:
            return
        if self.alive():
            self.send(number)
        try:
            got = self.wait_end()
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"hpsd did not end after a signal\n{self.log()}") from None
        self.process = None
        log = self.log()
        assert not REPORT.search(log), log
        assert got == code, f"hpsd ended with {got}, expected {code}\n{log}"

    def kill(self):
        """Kill hpsd with SIGKILL."""
        self.close_channels()
        if self.process is not None:
            if self.alive():
                self.process.kill()
            self.process.wait(PATIENCE_S)
            self.process.stdout.close()
            self.process = None

    def restart(self, **how):
        self.start(**how)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        if kind is None:
            self.stop()
        else:
            sys.stderr.write(self.log()[-6000:])
            self.kill()

    # ---- clients ----

    def close_channels(self):
        for channel in self.channels:
            channel.close()
        self.channels = []
        self.admin_channel = None

    def channel(self, address=None, options=UNLIMITED, **how):
        channel = grpc.insecure_channel(address or self.grpc[0], options=[
            *options, ("grpc.use_local_subchannel_pool", 1)], **how)
        self.channels.append(channel)
        return channel

    def stub(self, **how):
        return pb_grpc.ParameterServerStub(self.channel(**how))

    def admin_stub(self):
        """A stub that always uses the same connection, because the admin socket accepts few."""
        if self.admin_channel is None:
            self.admin_channel = self.channel(self.admin)
        return admin_grpc.AdminStub(self.admin_channel)

    def ctl(self, *args, code=0, timeout=None):
        """Run hpsctl on the admin socket; its output, parsed if -o json is given."""
        lasts = args and args[0] in ("load", "activate", "snapshot")  # verbs without a time limit
        patience = ("--timeout", CALL_S * SLOW) if SANITIZER and not lasts else ()  # a --timeout in `args` overrides it
        done = subprocess.run([os.path.join(BIN, "hpsctl"), "--addr", self.admin, *map(str, (*patience, *args))],
                              capture_output=True, text=True, timeout=timeout or PATIENCE_S * 2)
        assert done.returncode == code, f"{done.returncode}: {done.stdout}{done.stderr}"
        assert not REPORT.search(done.stderr), done.stderr
        if "json" in args and code in (0, 5):
            return [json.loads(line) for line in json_documents(done.stdout)]
        return done.stdout + done.stderr

    def seek(self, *args):
        """hpsctl updates seek. Repeats it while a loaded broker takes longer than hpsd waits for its offsets."""
        def done():
            try:
                return (self.ctl("updates", "seek", *args),)  # the output may be empty
            except AssertionError as error:
                if ": unavailable" not in str(error):
                    raise
                return None
        return until(done, "the seek")[0]

    def ctl_out_of_time(self, *args, has_begun=lambda: True):
        """Run hpsctl with a verb that takes long, until its time limit expires; its output. The limit also applies to
        connecting. If it expires before the call has begun, the limit is doubled."""
        limit_s, told = 0.05 * SLOW, ""
        while True:
            done = subprocess.run([os.path.join(BIN, "hpsctl"), "--addr", self.admin, "--timeout", str(limit_s),
                                   *map(str, args)], capture_output=True, text=True, timeout=PATIENCE_S * 2)
            told = done.stdout + done.stderr if done.returncode == 4 else told
            if told and "no answer from" not in told and has_begun():
                return told
            assert done.returncode in (3, 4) and limit_s < PATIENCE_S, f"{done.returncode}: {done.stdout}{done.stderr}"
            limit_s *= 2

    def load(self, model, directory, **fields):
        """Load a version and wait; the last progress message."""
        request = admin_pb.LoadModelRequest(model=model, directory=directory, **fields)
        last = None
        for last in self.admin_stub().LoadModel(request, timeout=PATIENCE_S * 4):
            pass
        return last

    def versions(self, model):
        """{version: state} of a model."""
        channel = self.channel(self.admin)
        try:  # this is polled, and the admin listener accepts few connections
            reply = admin_grpc.AdminStub(channel).ListModels(admin_pb.ListModelsRequest(), timeout=PATIENCE_S)
        finally:
            channel.close()
            self.channels.remove(channel)
        return {v.version: v.state for m in reply.models if m.model == model for v in m.versions}


class Killpoint:
    """hpsd under `wrapper` runs with a library that intercepts calls which change files below a directory. Before or
    during a chosen call, the library ends the process or holds the thread. The file at `path` is shared with it: struct
    control of tests/fault/killpoint.c."""

    LIBRARY = os.path.join(os.path.dirname(BIN), "tests", "libkillpoint.so")
    PATTERN_AT, PATTERN_BYTES, TRACE_AT, SIZE = 24, 240, 264, 1 << 20
    HOLD = 2

    def __init__(self, path, below):
        with open(path, "w+b") as f:
            f.truncate(self.SIZE)
            self.map = mmap.mmap(f.fileno(), self.SIZE)
        self.wrapper = ["env", f"LD_PRELOAD={self.LIBRARY}", f"HPS_KILLPOINT={path}",
                        f"HPS_KILLPOINT_BELOW={below}"]
        if SANITIZER == "address":  # its library must be loaded first
            options = os.environ.get("ASAN_OPTIONS", "")
            self.wrapper.append(f"ASAN_OPTIONS={options}:verify_asan_link_order=0")

    def arm(self, pattern, number, torn):
        self.take_trace()
        struct.pack_into(f"<q{self.PATTERN_BYTES}s", self.map, 16, torn, pattern.encode())
        struct.pack_into("<q", self.map, 0, number)

    def disarm(self):
        struct.pack_into("<q", self.map, 0, 0)

    def hold(self, pattern):
        """Hold the thread that makes the next call that matches, until `let_go`."""
        self.arm(pattern, 1, self.HOLD)

    def holds(self):
        return struct.unpack_from("<q", self.map, 0)[0] == 0

    def let_go(self):
        struct.pack_into("<q", self.map, 16, 0)

    def take_trace(self):
        """The calls since the last `take_trace`."""
        used = struct.unpack_from("<q", self.map, 8)[0]
        assert used <= self.SIZE - self.TRACE_AT, "the trace is longer than its file"
        struct.pack_into("<q", self.map, 8, 0)
        return self.map[self.TRACE_AT:self.TRACE_AT + used].decode().splitlines()


def json_documents(text):
    """Split the text into JSON documents: one document of several lines, or one document per line."""
    try:
        json.loads(text)
        return [text]
    except ValueError:
        return [line for line in text.splitlines() if line]


def run_hpsd(*args, timeout=None, **process):
    """Run hpsd until it ends by itself, on free ports unless `args` has others: (exit code, stdout, stderr). `process`:
    arguments of subprocess.run."""
    ports = [word for flag in ("--listen", "--http-listen") if flag not in args for word in (flag, "127.0.0.1:0")]
    done = subprocess.run([program(os.environ), *map(str, args), *ports], capture_output=True, text=True,
                          timeout=timeout or PATIENCE_S * 2, check=False, **process)
    assert not REPORT.search(done.stderr), done.stderr
    return done.returncode, done.stdout, done.stderr


def ask(stub, model, queries, timeout=None, metadata=None, compression=None, **fields):
    """Call Lookup. `queries`: {table name: keys}, or a list of TableQuery."""
    if isinstance(queries, dict):
        queries = [pb.TableQuery(table=name, keys=key_bytes(keys)) for name, keys in queries.items()]
    return stub.Lookup(pb.LookupRequest(model=model, queries=queries, **fields),
                       timeout=timeout or PATIENCE_S, metadata=metadata, compression=compression)


def statuses(result):
    return list(result.key_status) or [pb.KEY_STATUS_FOUND] * result.row_count


def floats(result):
    return np.frombuffer(result.rows, "<f4").reshape(result.row_count, result.dim)
