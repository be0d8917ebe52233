# SPDX-License-Identifier: Apache-2.0
"""The backend "hps" (clients/triton) in the genuine Triton, in the place of HPS's. ./dev interop builds and installs both."""
import concurrent.futures
import importlib
import json
import os
import re
import shlex
import subprocess
import threading

import numpy as np
import pytest

import documents
import genuine
import ports
import relay
import test_perf_analyzer
import test_tritonclient  # noqa: F401  makes tritonclient importable
from rig import BIN, PATIENCE_S, Daemon, Table, admin_pb, default_config, model_config, scratch, until
from test_documents import with_values

BUILD = os.path.dirname(BIN)
LIBRARY = f"{BUILD}/triton/hps/libtriton_hps.so"
PEER = f"{BUILD}/triton/peer/libtriton_peer.so"
NAMES, DIMS = ("items", "users", "ads"), (4, 8, 3)
UNAVAILABLE, INVALID, NOT_FOUND = "StatusCode.UNAVAILABLE", "StatusCode.INVALID_ARGUMENT", "StatusCode.NOT_FOUND"
triton = importlib.import_module("tritonclient.grpc")
triton_http = importlib.import_module("tritonclient.http")
Refused = importlib.import_module("tritonclient.utils").InferenceServerException

pytestmark = pytest.mark.skipif(bool(genuine.missing()) or not os.path.exists(LIBRARY),
                                reason=genuine.missing() or "no libtriton_hps.so: ./dev triton builds it")

# The configuration of NVIDIA's samples, also its comma, which Triton accepts; they have KIND_GPU and gpus.
SAMPLE = """
name: "NAME"
backend: "hps"
max_batch_size:64
input [
  {
    name: "KEYS"
    data_type: TYPE_INT64
    dims: [ -1 ]
  },
  {
    name: "NUMKEYS"
    data_type: TYPE_INT32
    dims: [ -1 ]
  }
]
output [
  {
    name: "OUTPUT0"
    data_type: TYPE_FP32
    dims: [ -1 ]
  }
]
version_policy: {
        specific:{versions: [1]}
},
instance_group [
  {
    count: 1
    kind : KIND_GPU
    gpus:[0]
  }
]
"""
BATCHED = "\ndynamic_batching { max_queue_delay_microseconds: 20000 }\n"
ON_CPU = ("kind : KIND_GPU\n    gpus:[0]", "kind : KIND_CPU")
DENSE = """
backend: "peer"
max_batch_size: 0
input [ { name: "ROWS" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "SUM" data_type: TYPE_FP32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 0
input [
  { name: "KEYS" data_type: TYPE_INT64 dims: [ -1, -1 ] },
  { name: "NUMKEYS" data_type: TYPE_INT32 dims: [ -1, -1 ] }
]
output [ { name: "SUM" data_type: TYPE_FP32 dims: [ 1 ] } ]
ensemble_scheduling { step [
  { model_name: "m" model_version: -1
    input_map { key: "KEYS" value: "KEYS" } input_map { key: "NUMKEYS" value: "NUMKEYS" }
    output_map { key: "OUTPUT0" value: "rows" } },
  { model_name: "dense" model_version: -1
    input_map { key: "ROWS" value: "rows" } output_map { key: "SUM" value: "SUM" } }
] }
"""


def sample(name, *changes):
    text = SAMPLE.replace("NAME", name)
    for old, new in (ON_CPU, *changes):
        assert old in text
        text = text.replace(old, new)
    return text


def repository(work, **configs):
    """A directory of models."""
    for name, text in configs.items():
        os.makedirs(f"{work}/repository/{name}/1", exist_ok=True)
        with open(f"{work}/repository/{name}/config.pbtxt", "w", encoding="utf-8") as f:
            f.write(text)
    return f"{work}/repository"


class Served:
    """hpsd on a Unix socket with a model, and Triton with the backend."""

    def __init__(self, work, models=("m",), **server):
        self.work, self.address = work, f"unix:{work}/hpsd.sock"
        self.tables = [Table.random(name, 100, dim, number=i) for i, (name, dim) in enumerate(zip(NAMES, DIMS))]
        paths = [table.save(f"{work}/m") for table in self.tables]
        config = default_config([model_config(name, paths, list(DIMS), list(NAMES)) for name in models], server=server)
        self.daemon = Daemon(work, config, listen=(self.address, "127.0.0.1:0"))

    def triton(self, *more, configs=None, address=None, **how):
        where = repository(self.work, **(configs or {"m": sample("m")}))
        return genuine.Genuine(self.work, where, f"--backend-config=hps,addr={address or self.address}", *more,
                               backends={"hps": LIBRARY, "peer": PEER}, **how)

    def ask(self, sizes=(5, 0, 7), seed=1):
        """Keys by table, and the rows that they have."""
        rng = np.random.default_rng(seed)
        groups = [rng.choice(table.keys, size) for table, size in zip(self.tables, sizes)]
        rows = np.concatenate([table.expect(keys).ravel() for table, keys in zip(self.tables, groups)])
        return np.concatenate(groups).astype("i8"), np.array([sizes], "i4"), rows


def tensors(keys, counts, module=triton):
    inputs = [module.InferInput("KEYS", list(keys.shape), "INT64"), module.InferInput("NUMKEYS", list(counts.shape), "INT32")]
    inputs[0].set_data_from_numpy(keys)
    inputs[1].set_data_from_numpy(counts)
    return inputs


def refused(code, words, call):
    with pytest.raises(Refused) as error:
        call()
    assert error.value.status() == code and re.search(words, error.value.message()), error.value
    return error.value.message()


@pytest.fixture(name="served", scope="module")
def hpsd_and_triton():
    with scratch() as work:
        served = Served(work, models=("m", "batched"))
        configs = {"m": sample("m"), "absent": sample("absent"), "batched": sample("batched") + BATCHED, "dense": DENSE, "whole": ENSEMBLE}
        with served.daemon as daemon:
            daemon.wait_ready()
            with served.triton("--backend-config=hps,ps=/etc/ps.json", configs=configs) as server:
                served.server = server
                yield served


@pytest.fixture(name="client", scope="module")
def client_of_triton(served):
    with triton.InferenceServerClient(served.server.rpc) as client:
        yield client


# ---- the file ----------------------------------------------------------------------------------------

def dynamic_symbols():
    """[(kind, name, version)] of the library."""
    said = subprocess.run(["objdump", "-T", LIBRARY], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in said.splitlines() if re.match("[0-9a-f]{16} ", line)]
    return [("undefined" if "*UND*" in row else "defined", row[-1],
             next((word.strip("()") for word in row if "GLIBC" in word), "")) for row in rows]


def test_library_when_linked_then_it_exports_the_backend_only_and_needs_no_more_than_libc():
    found = dynamic_symbols()
    functions = ("Initialize", "Finalize", "ModelInitialize", "ModelFinalize", "ModelInstanceInitialize", "ModelInstanceFinalize",
                 "ModelInstanceExecute")
    assert {name for kind, name, _ in found if kind == "defined"} == {f"TRITONBACKEND_{name}" for name in functions}
    foreign = {name for kind, name, version in found if kind == "undefined" and not version}
    assert not {name for name in foreign if not name.startswith(("TRITON", "_ITM_", "__gmon_start__"))}
    needed = subprocess.run(["objdump", "-p", LIBRARY], capture_output=True, text=True, check=True).stdout
    libraries = set(re.findall(r"NEEDED +(\S+)", needed))
    assert libraries <= {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


def test_library_when_built_on_debian_12_then_it_needs_no_newer_glibc_than_the_genuine_server():
    levels = {tuple(map(int, re.findall(r"\d+", version))) for _, _, version in dynamic_symbols() if version[6:7].isdigit()}
    with open("/etc/debian_version", encoding="ascii") as f:
        debian = f.read().split(".")[0].strip()
    print(f"libtriton_hps.so needs GLIBC_{'.'.join(map(str, max(levels)))}")
    assert max(levels) <= (2, 35) or debian != "12"


# ---- lookups -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("module", [triton, triton_http], ids=["grpc", "http"])
def test_sample_when_infer_then_rows_in_the_form_of_hps(served, module):
    with module.InferenceServerClient(served.server.rpc if module is triton else served.server.web) as client:
        for sizes in ((5, 0, 7), (0, 0, 0), (1,), (100, 100, 100)):
            keys, counts, rows = served.ask(sizes)
            result = client.infer("m", tensors(keys[None], counts, module))
            assert np.array_equal(result.as_numpy("OUTPUT0"), rows) and result.as_numpy("OUTPUT0").ndim == 1
            said = result.get_response(**({"as_json": True} if module is triton else {}))["parameters"]
            values = [said[name] for name in ("NumSample", "DeviceID")]
            values = [int(value["int64_param"]) for value in values] if module is triton else values
            assert values == [len(keys) // len(sizes), 0]


def test_sample_when_several_samples_are_sent_then_rows_of_one_after_the_other(served, client):
    asks = [served.ask(sizes, seed) for seed, sizes in enumerate(((5, 0, 7), (2, 9, 1), (0, 0, 12)))]
    keys, counts, rows = (list(one) for one in zip(*asks))
    result = client.infer("m", tensors(np.stack(keys), np.concatenate(counts)))
    assert np.array_equal(result.as_numpy("OUTPUT0"), np.concatenate(rows))


def test_sample_when_streamed_and_asynchronous_then_all_are_right(served):
    ended = []
    with triton.InferenceServerClient(served.server.rpc) as client:
        gate = threading.Semaphore(0)

        def take(result, error):
            ended.append((result, error))
            gate.release()

        asks = {str(i): served.ask((i % 7, 3, i % 5), i) for i in range(60)}
        client.start_stream(take)
        for i, (keys, counts, _) in asks.items():
            if int(i) % 2:
                client.async_stream_infer("m", tensors(keys[None], counts), request_id=i)
            else:
                client.async_infer("m", tensors(keys[None], counts), take, request_id=i)
        for _ in asks:
            assert gate.acquire(timeout=PATIENCE_S)
        client.stop_stream()
    assert len(ended) == len(asks)
    for result, error in ended:
        assert error is None and np.array_equal(result.as_numpy("OUTPUT0"), asks[result.get_response().id][2])


@pytest.mark.parametrize("module", [triton, triton_http], ids=["grpc", "http"])
def test_sample_when_triton_batches_requests_then_each_has_its_rows(served, module):
    asks = [served.ask((5, 3, 9), seed) for seed in range(32)]  # of one shape, so that Triton can batch them
    asked = [tensors(keys[None], counts, module) for keys, counts, _ in asks]
    if module is triton_http:
        with module.InferenceServerClient(served.server.web, concurrency=16) as client:
            pending = [client.async_infer("batched", inputs) for inputs in asked]
            found = [one.get_result() for one in pending]
    else:
        with module.InferenceServerClient(served.server.rpc) as client, concurrent.futures.ThreadPoolExecutor(16) as pool:
            found = list(pool.map(lambda inputs: client.infer("batched", inputs), asked))
    assert all(np.array_equal(result.as_numpy("OUTPUT0"), rows) for result, (_, _, rows) in zip(found, asks))


def test_sample_when_a_body_comes_in_chunks_then_keys_that_straddle_them_are_right(served):
    keys, counts, rows = served.ask((4001, 3000, 2001))
    kinds = {"KEYS": ("INT64", keys), "NUMKEYS": ("INT32", counts[0])}
    head = json.dumps({"inputs": [{"name": name, "datatype": kind, "shape": [1, values.size],
                                   "parameters": {"binary_data_size": values.nbytes}} for name, (kind, values) in kinds.items()],
                       "parameters": {"binary_data_output": True}}).encode()
    body = head + keys.tobytes() + counts.tobytes()
    request = (f"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: {len(head)}\r\n"
               "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n").encode()
    chunks = [body[at:at + 909] for at in range(0, len(body), 909)]
    with genuine.connection(served.server) as link:
        link.sendall(request + b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in chunks) + b"0\r\n\r\n")
        said = b"".join(iter(lambda: link.recv(1 << 20), b""))
    assert said.startswith(b"HTTP/1.1 200") and said.endswith(rows.tobytes())


def test_ensemble_when_a_dense_step_follows_then_it_has_the_rows(served, client):
    keys, counts, rows = served.ask((50, 20, 30))
    inputs = tensors(keys[None], counts)
    total = np.add.accumulate(rows, dtype="f4")[-1]
    assert client.infer("whole", inputs).as_numpy("SUM") == total


@pytest.mark.skipif(test_perf_analyzer.PROGRAM is None, reason="perf_analyzer is not installed; ./dev interop installs it")
@pytest.mark.parametrize("model", ["m", "whole"])
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_load_when_perf_analyzer_makes_it_then_all_are_answered_and_counted(served, client, model, protocol):
    def counted():
        stats, = client.get_inference_statistics("m", as_json=True)["model_stats"]
        return np.array([int(stats.get(name, 0)) for name in ("inference_count", "execution_count")])

    before = counted()
    keys, counts, _ = served.ask((50, 20, 30))
    shape = [] if model == "m" else [1]
    with open(f"{served.work}/data.json", "w", encoding="utf-8") as f:
        json.dump({"data": [{"KEYS": {"content": keys.tolist(), "shape": [*shape, len(keys)]},
                             "NUMKEYS": {"content": counts[0].tolist(), "shape": [*shape, 3]}}]}, f)
    said, n_runs = test_perf_analyzer.perf_analyzer(
        "-m", model, "-i", protocol, "-u", served.server.rpc if protocol == "grpc" else served.server.web, "--input-data",
        f"{served.work}/data.json", "--request-count", 500, "--concurrency-range", 8)
    assert "Request count: 500\n" in said
    assert (counted() == before + 500 * n_runs).all()


# ---- what is refused ---------------------------------------------------------------------------------

def test_request_when_malformed_then_refused_by_name_and_the_next_one_is_right(served, client):
    keys, counts, rows = served.ask()
    for wrong, words in (((keys[None], counts + 1), "'NUMKEYS': the sum of row 0 is 15 keys, but a row of 'KEYS' has 12"),
                         ((keys[None], np.array([[-1, 13, 0]], "i4")), r"'NUMKEYS': \[0, 0\] is -1"),
                         ((keys[None], np.array([[5, 0, 0, 7]], "i4")), "table")):
        code = INVALID
        with pytest.raises(Refused) as error:
            client.infer("m", tensors(*wrong))
        assert error.value.status() == code and re.search(words, error.value.message())
    assert np.array_equal(client.infer("m", tensors(keys[None], counts)).as_numpy("OUTPUT0"), rows)
    refused(NOT_FOUND, "absent", lambda: client.infer("absent", tensors(keys[None], counts)))


def test_ps_json_when_given_then_ignored_with_a_line(served):
    assert "--backend-config=hps,ps=/etc/ps.json ignored: hpsd reads this file" in served.server.said()


def test_load_when_the_configuration_is_not_that_of_hps_then_refused_by_name(served, client):
    for old, new, words in (("TYPE_INT64", "TYPE_INT32", "input 'KEYS' has data_type TYPE_INT32, expected TYPE_INT64"),
                            ("TYPE_FP32", "TYPE_INT8", "expected one output, of data_type TYPE_FP32"),
                            ('"NUMKEYS"', '"COUNTS"', "input 'NUMKEYS' of data_type TYPE_INT32 is missing")):
        repository(served.work, other=sample("other", (old, new)))
        with pytest.raises(Refused, match=words):
            client.load_model("other")


def test_sample_when_there_is_no_gpu_then_triton_itself_refuses_and_names_it():
    with scratch() as work:
        where = repository(work, m=SAMPLE.replace("NAME", "m"))
        server = genuine.Genuine(work, where, backends={"hps": LIBRARY})
        with pytest.raises(AssertionError), server:
            pass
        assert "instance group m_0 of model m specifies invalid or unsupported gpu id 0" in server.said()


def test_caller_when_over_its_quota_then_unavailable_with_the_text_of_hpsd():
    with scratch() as work:
        with open(f"{work}/roles.json", "w", encoding="utf-8") as f:
            json.dump({"rules": [{"who": ["any"], "may": ["lookup"], "requests_per_s": 1}]}, f)
        served = Served(work, access=f"{work}/roles.json")
        keys, counts, _ = served.ask()
        with served.daemon, served.triton("--backend-config=hps,timeout=250ms") as server, \
                triton.InferenceServerClient(server.rpc) as client:
            def flood():
                for _ in range(50):
                    client.infer("m", tensors(keys[None], counts))
            refused(UNAVAILABLE, "requests_per_s of its rule", flood)
            assert client.is_model_ready("m")


# ---- hpsd goes away ----------------------------------------------------------------------------------

def test_hpsd_when_killed_and_restarted_under_load_then_clear_errors_and_recovery_without_a_reload():
    with scratch() as work:
        served = Served(work)
        asks = [served.ask((i % 7, 3, 40), i) for i in range(16)]
        stop, seen = threading.Event(), []

        with served.daemon as daemon, served.triton() as server, triton.InferenceServerClient(server.rpc) as client:
            def call(number):
                while not stop.is_set():
                    keys, counts, rows = asks[number]
                    try:
                        result = client.infer("m", tensors(keys[None], counts), timeout=300_000)
                        seen.append("right" if np.array_equal(result.as_numpy("OUTPUT0"), rows) else "wrong")
                    except Refused as error:
                        seen.append(f"{error.status()} {error.message()}")

            with concurrent.futures.ThreadPoolExecutor(len(asks)) as pool:
                calls = [pool.submit(call, number) for number in range(len(asks))]
                try:
                    for _ in range(2):
                        until(lambda: "right" in seen[-50:], "an answer")
                        daemon.kill()
                        until(lambda: seen[-1].startswith(UNAVAILABLE), "an error")
                        assert client.is_model_ready("m")
                        daemon.restart()
                        mark = len(seen)
                        until(lambda at=mark: seen[at:].count("right") > 100, "answers after the restart")
                finally:
                    stop.set()
                for one in calls:
                    one.result(PATIENCE_S)
        assert "wrong" not in seen
        assert {one.split()[0] for one in seen if one != "right"} == {UNAVAILABLE}
        assert any("hpsd.sock" in one for one in seen)


def test_model_when_hpsd_starts_later_then_it_loads_and_answers_without_a_reload():
    with scratch() as work:
        served = Served(work)
        keys, counts, rows = served.ask()
        with served.daemon as daemon:
            daemon.kill()
            with served.triton() as server, triton.InferenceServerClient(server.rpc) as client:
                assert "model 'm': requests fail for now: " in server.said()
                refused(UNAVAILABLE, "hpsd.sock", lambda: client.infer("m", tensors(keys[None], counts), timeout=100_000))
                daemon.restart()
                assert np.array_equal(client.infer("m", tensors(keys[None], counts)).as_numpy("OUTPUT0"), rows)


def test_addresses_when_one_of_several_is_away_then_the_other_answers_also_from_the_environment():
    with scratch() as work:
        served = Served(work)
        keys, counts, rows = served.ask()
        with served.daemon:
            both = f"unix:{work}/nobody.sock,{served.address}"
            with served.triton(address=both) as server, triton.InferenceServerClient(server.rpc) as client:
                for _ in range(20):
                    assert np.array_equal(client.infer("m", tensors(keys[None], counts)).as_numpy("OUTPUT0"), rows)
            where = repository(work, m=sample("m"))
            with genuine.Genuine(work, where, backends={"hps": LIBRARY}, environment={"HPSD_LOOKUP_ADDR": both}) as server, \
                    triton.InferenceServerClient(server.rpc) as client:
                assert np.array_equal(client.infer("m", tensors(keys[None], counts)).as_numpy("OUTPUT0"), rows)


@pytest.mark.parametrize("how", ["deadline of gRPC", "cancelled"])
def test_request_when_its_client_gives_up_then_the_lookup_is_cancelled_and_the_model_can_be_unloaded(how):
    with scratch() as work, relay.Relays() as relays:
        served = Served(work)
        keys, counts, rows = served.ask()
        with served.daemon as daemon:
            front = relays.add(ports.take(), to=int(daemon.grpc[1].rsplit(":", 1)[1]))
            with served.triton("--backend-config=hps,timeout=1h", address=f"127.0.0.1:{front.port}") as server, \
                    triton.InferenceServerClient(server.rpc) as client:
                assert np.array_equal(client.infer("m", tensors(keys[None], counts)).as_numpy("OUTPUT0"), rows)
                front.set(relay.HANG)
                if how == "cancelled":
                    client.async_infer("m", tensors(keys[None], counts), lambda result, error: None).cancel()
                else:
                    refused("StatusCode.DEADLINE_EXCEEDED", "", lambda: client.infer("m", tensors(keys[None], counts), client_timeout=0.2))
                client.unload_model("m")
                until(lambda: not server_has(client, "m"), "unloaded, as no request is left")


def server_has(client, model):
    return any(one["name"] == model and one.get("state") != "UNAVAILABLE"
               for one in client.get_model_repository_index(as_json=True)["models"])


# ---- versions, models --------------------------------------------------------------------------------

def test_version_when_switched_to_other_widths_under_load_then_each_answer_is_of_one_version():
    with scratch() as work:
        served = Served(work)
        keys, counts, rows = served.ask((40, 30, 20))
        others = [Table(table.name, table.keys, np.repeat(table.rows, 2, axis=1) + 1) for table in served.tables]
        groups = np.split(keys, np.cumsum(counts[0])[:-1])
        expected = {"1": rows, "2": np.concatenate([table.expect(group).ravel() for table, group in zip(others, groups)])}
        for table in others:
            table.save(f"{work}/m2")
        with served.daemon as daemon, served.triton() as server, triton.InferenceServerClient(server.rpc) as client:
            wider = model_config("m", [f"{work}/m2/{name}.rows.npy" for name in NAMES], [2 * dim for dim in DIMS], list(NAMES))
            daemon.load("m", "", version=2, config=json.dumps(wider))
            seen, stop = [], threading.Event()

            def call():
                while not stop.is_set():
                    found = client.infer("m", tensors(keys[None], counts)).as_numpy("OUTPUT0")
                    seen.append(next((name for name, rows in expected.items() if np.array_equal(found, rows)), "wrong"))

            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                calls = [pool.submit(call) for _ in range(4)]
                try:
                    for version in (2, 1, 2):
                        wanted = admin_pb.ActivateVersionRequest(model="m", version=version, force=True)
                        daemon.admin_stub().ActivateVersion(wanted, timeout=PATIENCE_S)
                        until(lambda v=str(version): seen[-8:].count(v) == 8, f"version {version}")
                finally:
                    stop.set()
                for one in calls:
                    one.result(PATIENCE_S)
            assert set(seen) == {"1", "2"}


def state(pid):
    """(threads, descriptors, KiB of memory) of a process."""
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        kib = int(re.search(r"VmRSS:\s+(\d+)", f.read())[1])
    return len(os.listdir(f"/proc/{pid}/task")), len(os.listdir(f"/proc/{pid}/fd")), kib


def test_model_when_loaded_and_unloaded_200_times_then_nothing_is_left_behind():
    with scratch() as work:
        served = Served(work)
        keys, counts, rows = served.ask()
        with served.daemon, served.triton(configs={"m": sample("m", ("count: 1", "count: 2")), "stays": sample("stays")}) as server, \
                triton.InferenceServerClient(server.rpc) as client:
            states = []
            for _ in range(200):
                assert np.array_equal(client.infer("m", tensors(keys[None], counts)).as_numpy("OUTPUT0"), rows)
                client.unload_model("m")
                until(lambda: not client.is_model_ready("m"), "unloaded")
                client.load_model("m")
                states.append(state(server.process.pid))
            threads, descriptors, memory = zip(*states)
            # Triton itself starts threads now and then; what stays of each round adds up.
            assert min(threads[180:]) <= max(threads[:100]) and min(descriptors[180:]) <= max(descriptors[:100])
            assert memory[-1] - memory[99] < 100 * 40, memory[::20]  # a client alone has buffers of 100s of KiB
            assert server.stop() == 0


def test_server_when_it_ends_under_load_then_it_drains():
    with scratch() as work:
        served = Served(work)
        keys, counts, rows = served.ask((100, 100, 100))
        with served.daemon, served.triton() as server, triton.InferenceServerClient(server.rpc) as client:
            ended, gate = [], threading.Semaphore(0)

            def take(result, error):
                ended.append((result, error))
                gate.release()

            for _ in range(50):
                client.async_infer("m", tensors(keys[None], counts), take)
            assert server.stop() == 0
            for _ in range(50):
                assert gate.acquire(timeout=PATIENCE_S)
        assert all(error is not None or np.array_equal(result.as_numpy("OUTPUT0"), rows) for result, error in ended)


# ---- the document ------------------------------------------------------------------------------------

def test_document_when_it_starts_triton_then_its_commands_and_settings_work():
    code = documents.block("docs/triton.md", "./dev triton").code
    with scratch() as work:
        served = Served(work)
        keys, counts, rows = served.ask()
        server = genuine.Genuine(work, repository(work, m=sample("m")))
        start = shlex.join(server.command[:1] + server.command[3:])  # without the repository
        code = with_values(code, {"./dev triton\n": "", "build/triton": f"{BUILD}/triton", "/opt/tritonserver/backends": f"{work}/backends",
                                  "tritonserver --model-repository=models": f"exec {start} --model-repository={work}/repository",
                                  "unix:/run/hpsd/lookup.sock": served.address})
        server.command = ["bash", "-euxc", code]
        with served.daemon, server, triton.InferenceServerClient(server.rpc) as client:
            assert np.array_equal(client.infer("m", tensors(keys[None], counts)).as_numpy("OUTPUT0"), rows)
    text = documents.read("docs/triton.md") + documents.read("clients/triton/config.c")
    for name in ("addr", "timeout", "connections", "token-file", "token-in-clear", "tls-ca", "tls-cert", "tls-key", "ps"):
        assert f'{name}=' in text and f'"{name}"' in text
