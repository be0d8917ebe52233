# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own Python client, over gRPC and over HTTP. ./dev interop installs it."""
import asyncio
import importlib
import queue
import sys

import numpy as np
import pytest
from inference import grpc_service_pb2, grpc_service_pb2_grpc, model_config_pb2

import documents
from rig import PATIENCE_S, Daemon, Table, default_config, model_config, scratch
from test_documents import KSERVE, MIGRATION, diff_side, followed, moved, wdl

pytest.importorskip("tritonclient", reason="tritonclient is not installed; ./dev interop installs it")
# A process can have one set of stubs whose messages have these names: rig.py has made some of our protos.
sys.modules.update({"tritonclient.grpc.service_pb2": grpc_service_pb2, "tritonclient.grpc.model_config_pb2": model_config_pb2,
                    "tritonclient.grpc.service_pb2_grpc": grpc_service_pb2_grpc})
utils = importlib.import_module("tritonclient.utils")
NAMES, DIMS = ("items", "users", "ads"), (4, 8, 3)
KINDS = ("grpc", "http")


@pytest.fixture(name="served", scope="module")
def a_daemon_with_a_model(tmp_path_factory):
    work = str(tmp_path_factory.mktemp("triton"))
    tables = [Table.random(name, 100, dim, number=i) for i, (name, dim) in enumerate(zip(NAMES, DIMS))]
    paths = [table.save(f"{work}/m") for table in tables]
    config = default_config([model_config("m", paths, list(DIMS), list(NAMES))],
                            server={"kserve_listen": ["127.0.0.1:0"]})
    with Daemon(work, config) as daemon:
        daemon.by_name = {table.name: table for table in tables}
        daemon.load("m", f"{work}/m", label="next")
        yield daemon


class Client:
    """One of its clients; `as_dict`: the words by which the one of gRPC answers with dictionaries, as the other does."""

    def __init__(self, kind, served, **how):
        self.module = importlib.import_module(f"tritonclient.{kind}")
        self.kind, self.by_name = kind.split(".", maxsplit=1)[0], served.by_name
        self.made = self.module.InferenceServerClient((served.grpc if self.kind == "grpc" else served.kserve)[0], **how)
        self.as_dict = {"as_json": True} if self.kind == "grpc" else {}

    def asked(self, sizes=(5, 0, 7)):
        return Asked(self.module, self.by_name, sizes)


@pytest.fixture(name="client", params=KINDS)
def either_client(request, served):
    how = {"concurrency": 4, "network_timeout": PATIENCE_S} if request.param == "http" else {}
    one = Client(request.param, served, **how)
    with one.made:
        yield one


class Asked:
    """What is asked for, by the classes of a client, and what comes back."""

    def __init__(self, module, by_name, sizes):
        rng = np.random.default_rng(len(sizes) + sizes[0])
        self.module, self.by_name = module, by_name
        self.groups = [rng.choice(by_name[name].keys, size) for name, size in zip(NAMES, sizes)]

    def input(self, name, values, **how):
        kinds = {"<i8": "INT64", "<i4": "INT32"}
        one = self.module.InferInput(name, list(values.shape), kinds[values.dtype.str])
        one.set_data_from_numpy(values, **how)
        return one

    def by_position(self, **how):
        keys = np.concatenate(self.groups).astype("<i8").reshape(1, -1)
        counts = np.array([[len(keys) for keys in self.groups]], "<i4")
        return [self.input("KEYS", keys, **how), self.input("NUMKEYS", counts, **how)]

    def by_table(self, **how):
        return [self.input(name, keys.astype("<i8"), **how) for name, keys in zip(NAMES, self.groups)]

    def check_position(self, result):
        expected = [self.by_name[name].expect(keys).ravel() for name, keys in zip(NAMES, self.groups)]
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), np.concatenate(expected))

    def check_table(self, result):
        for name, keys in zip(NAMES, self.groups):
            np.testing.assert_array_equal(result.as_numpy(name), self.by_name[name].expect(keys))


# ---- one request at a time ---------------------------------------------------------------------------

def test_client_when_it_asks_what_there_is_then_it_is_told(client):
    one, how = client.made, client.as_dict
    assert one.is_server_live() and one.is_server_ready() and one.is_model_ready("m")
    assert one.is_model_ready("m", "next") and not one.is_model_ready("m", "7")
    assert one.get_server_metadata(**how)["name"] == "hpsd"
    assert [output["name"] for output in one.get_model_metadata("m.tables", **how)["outputs"]] == list(NAMES)
    config, index = one.get_model_config("m", **how), one.get_model_repository_index(**how)
    assert (config["config"] if how else config)["max_batch_size"] == 1024
    assert [listed["name"] for listed in (index["models"] if how else index)] == ["m", "m"]
    assert one.get_inference_statistics("m", **how)["model_stats"][0]["name"] == "m"


@pytest.mark.parametrize("packed", [None, "gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
def test_infer_when_by_position_or_table_then_rows_are_right(client, packed, binary):
    ask, of_tensors = client.asked(), {} if client.kind == "grpc" else {"binary_data": binary}
    how = ({"compression_algorithm": packed} if client.kind == "grpc" else
           {"request_compression_algorithm": packed, "response_compression_algorithm": packed})
    result = client.made.infer("m", ask.by_position(**of_tensors), request_id="r1", **how)
    ask.check_position(result)
    assert result.get_response(**client.as_dict)["id"] == "r1"
    outputs = [client.module.InferRequestedOutput(name, **of_tensors) for name in ("STATUS", "OUTPUT0")]
    result = client.made.infer("m", ask.by_position(**of_tensors), outputs=outputs, model_version="next",
                               timeout=int(PATIENCE_S * 1e6), parameters={"hps_miss_policy": "exact"}, **how)
    ask.check_position(result)
    assert result.as_numpy("STATUS").tolist() == [1] * 12
    assert result.get_response(**client.as_dict)["model_version"] == "2"
    ask.check_table(client.made.infer("m.tables", ask.by_table(**of_tensors), **how))


def test_infer_when_refused_then_its_exception_has_code_and_words(client):
    ask = client.asked()
    unknown, invalid = ("StatusCode.NOT_FOUND", "StatusCode.INVALID_ARGUMENT") if client.kind == "grpc" else ("404", "400")
    for model, inputs, status, words in (
            ("nope", ask.by_position(), unknown, "Request for unknown model: 'nope' is not found"),
            ("m", ask.by_position()[:1], invalid, "'NUMKEYS' of model 'm' is missing")):
        with pytest.raises(utils.InferenceServerException) as caught:
            client.made.infer(model, inputs)
        assert words in caught.value.message() and caught.value.status() == status


def test_infer_when_bodies_are_made_and_read_without_its_connection_then_they_are_the_same(served):
    """As HPS's notebooks do it with their own transport."""
    import http.client
    client = Client("http", served)
    ask, kind = client.asked((900, 30, 1)), client.module.InferenceServerClient
    body, size = kind.generate_request_body(ask.by_position(), outputs=[client.module.InferRequestedOutput("OUTPUT0")])
    connection = http.client.HTTPConnection(served.kserve[0], timeout=PATIENCE_S)
    connection.request("POST", "/v2/models/m/infer", body, {"Inference-Header-Content-Length": str(size)})
    reply = connection.getresponse()
    length = int(reply.headers["Inference-Header-Content-Length"])
    ask.check_position(kind.parse_response_body(reply.read(), header_length=length))
    connection.close()
    client.made.close()


# ---- many at once ------------------------------------------------------------------------------------

def test_infer_when_in_the_background_then_all_come_back(client):
    asks, answers = [client.asked((n, 1, 2)) for n in range(20)], queue.Queue()
    if client.kind == "grpc":
        for number, ask in enumerate(asks):
            client.made.async_infer("m", ask.by_position(),
                                    callback=lambda result, error, n=number: answers.put((n, result, error)))
    else:
        for number, pending in enumerate([client.made.async_infer("m", ask.by_position()) for ask in asks]):
            answers.put((number, pending.get_result(timeout=PATIENCE_S), None))
    for _ in asks:
        number, result, error = answers.get(timeout=PATIENCE_S)
        assert error is None
        asks[number].check_position(result)


def test_stream_when_errors_are_among_the_answers_then_they_come_in_order(served):
    client, answers = Client("grpc", served), queue.Queue()
    asks = [client.asked((n, 1, 2)) for n in range(20)]
    with client.made as one:
        one.start_stream(callback=lambda result, error: answers.put((result, error)))
        for number, ask in enumerate(asks):
            inputs = ask.by_position()
            one.async_stream_infer("m", inputs[:1] if number == 7 else inputs, request_id=str(number))
        for number, ask in enumerate(asks):
            result, error = answers.get(timeout=PATIENCE_S)
            if number == 7:
                assert "'NUMKEYS'" in error.message()
            else:
                assert error is None and result.get_response().id == str(number)
                assert result.get_response().parameters["triton_final_response"].bool_param  # which the usual loop waits for
                ask.check_position(result)
        one.stop_stream()


@pytest.mark.parametrize("kind", KINDS)
def test_infer_when_by_asyncio_then_the_same(served, kind):
    async def run():
        client = Client(f"{kind}.aio", served)
        asks = [client.asked((n, 1, 2)) for n in range(10)]

        async def requests():
            for ask in asks:
                yield {"model_name": "m", "inputs": ask.by_position()}
        async with client.made as one:
            for ask, result in zip(asks, await asyncio.gather(*(one.infer("m", ask.by_position()) for ask in asks))):
                ask.check_position(result)
            if kind == "grpc":
                results = [result async for result, error in one.stream_infer(requests()) if error is None]
                assert len(results) == len(asks)
                for ask, result in zip(asks, results):
                    ask.check_position(result)
    asyncio.run(run())


# ---- documents ---------------------------------------------------------------------------------------

@pytest.fixture(name="work")
def work_directory():
    with scratch() as path:
        yield path


def test_kserve_when_by_tritonclient_as_shown_then_the_rows_of_the_keys(work):
    with followed(work, documents.block(KSERVE, "hps-gen --tables 2").code) as here:
        names = {}
        exec(here(documents.block(KSERVE, "import numpy as np\nimport tritonclient").code), names)  # pylint: disable=exec-used
        items, users = (np.load(f"{work}/g/feature_{number}.npy") for number in range(2))
        np.testing.assert_array_equal(names["rows"], np.concatenate([items[[0, 1, 2]].ravel(), users[7]]))


def test_migration_when_compared_as_shown_then_only_other_rows_are_reported():
    code = documents.block(MIGRATION, "import numpy as np\nimport tritonclient").code
    with scratch() as work:
        wdl(work)
        config = moved(work)
        code = code.replace("/models", f"{work}/models")
        with Daemon(work, config) as one:
            code = code.replace("127.0.0.1:8600", one.kserve[0])
            exec(code.replace("127.0.0.1:8000", one.kserve[0]), {})  # pylint: disable=exec-used
            paths = config["models"][0]["sparse_files"]
            config["models"][0]["sparse_files"] = [path.replace("/1/", "/2/").replace("2000", "4000") for path in paths]
            with Daemon(f"{work}/models", config) as other, pytest.raises(AssertionError):
                exec(code.replace("127.0.0.1:8000", other.kserve[0]), {})  # pylint: disable=exec-used


def test_migration_when_the_address_is_changed_as_shown_then_the_same_rows():
    code = diff_side(documents.block(MIGRATION, " import numpy as np\n import tritonclient").code, "+")
    with scratch() as work:
        (wide, deep), _ = wdl(work)
        with Daemon(work, moved(work)) as one:
            names = {}
            exec(code.replace("127.0.0.1:8600", one.kserve[0]), names)  # pylint: disable=exec-used
    np.testing.assert_array_equal(names["rows"], np.concatenate([wide.rows[5:7], deep.rows[1:2]], None))
