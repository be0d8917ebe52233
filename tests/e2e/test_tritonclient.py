# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own Python client, if it is there: installed, as in the environment of ./dev interop, or its sources, of which
HPS_TRITONCLIENT names a folder (a checkout of triton-inference-server/client). They run from a copy that has stubs of our
protos where theirs would be built; Debian's python3-rapidjson, -geventhttpclient and -gevent are what they import.
"""
import asyncio
import importlib.util
import os
import queue
import shutil
import sys

import numpy as np
import pytest

from rig import PATIENCE_S, Daemon, Table, default_config, model_config, scratch

NAMES, DIMS = ("items", "users", "ads"), (4, 8, 3)
INSTALLED = importlib.util.find_spec("tritonclient")
SOURCES = os.environ.get("HPS_TRITONCLIENT") or (os.path.dirname(INSTALLED.origin) if INSTALLED else None)
STUBS = {"service_pb2": "grpc_service_pb2", "service_pb2_grpc": "grpc_service_pb2_grpc", "model_config_pb2": "model_config_pb2"}


def package():
    """The folder of the package below SOURCES."""
    found = [at for at, folders, files in os.walk(SOURCES) if os.path.basename(at) == "tritonclient" and "grpc" in folders]
    assert len(found) == 1, f"HPS_TRITONCLIENT={SOURCES}: a folder tritonclient with grpc in it, expected 1, found {found}"
    return found[0]


@pytest.fixture(name="triton", scope="module")
def genuine_client():
    """import_("tritonclient.grpc")"""
    if not SOURCES:
        pytest.skip("tritonclient is not installed, and HPS_TRITONCLIENT names no folder with its sources")
    with scratch() as work:
        shutil.copytree(package(), f"{work}/tritonclient")
        for name, ours in STUBS.items():
            with open(f"{work}/tritonclient/grpc/{name}.py", "w", encoding="utf-8") as f:
                f.write(f"import sys\nfrom inference import {ours}\nsys.modules[__name__] = {ours}\n")
        sys.path.insert(0, work)
        try:
            yield importlib.import_module
        finally:
            sys.path.remove(work)
            for name in [name for name in sys.modules if name.split(".")[0] == "tritonclient"]:
                del sys.modules[name]


@pytest.fixture(name="web", scope="module")
def its_http_client(triton):
    for name in ("rapidjson", "geventhttpclient", "gevent"):
        pytest.importorskip(name, reason=f"python3-{name} is missing")
    return triton("tritonclient.http")


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


class Asked:
    """What is asked for, by the classes of a client, and what comes back."""

    def __init__(self, served, client, sizes=(5, 0, 7)):
        rng = np.random.default_rng(len(sizes) + sizes[0])
        self.client, self.by_name = client, served.by_name
        self.groups = [rng.choice(served.by_name[name].keys, size) for name, size in zip(NAMES, sizes)]

    def input(self, name, values, **how):
        kinds = {"<i8": "INT64", "<i4": "INT32"}
        one = self.client.InferInput(name, list(values.shape), kinds[values.dtype.str])
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


def check_refusals(client, exception, ask, unknown, invalid):
    with pytest.raises(exception) as caught:
        client.infer("nope", ask.by_position())
    assert "Request for unknown model: 'nope' is not found" in caught.value.message()
    assert caught.value.status() == unknown
    with pytest.raises(exception) as caught:
        client.infer("m", ask.by_position()[:1])
    assert "'NUMKEYS' of model 'm' is missing" in caught.value.message() and caught.value.status() == invalid


# ---- gRPC --------------------------------------------------------------------------------------------

@pytest.fixture(name="rpc")
def its_grpc_client(triton, served):
    module = triton("tritonclient.grpc")
    with module.InferenceServerClient(served.grpc[0]) as client:
        yield module, client


def test_grpc_when_it_asks_what_there_is_then_it_is_told(rpc):
    _, client = rpc
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("m")
    assert client.is_model_ready("m", "next") and not client.is_model_ready("m", "7")
    assert client.get_server_metadata(as_json=True)["name"] == "hpsd"
    about = client.get_model_metadata("m.tables", as_json=True)
    assert [one["name"] for one in about["outputs"]] == list(NAMES)
    assert client.get_model_config("m", as_json=True)["config"]["max_batch_size"] == 1024
    assert [one["name"] for one in client.get_model_repository_index(as_json=True)["models"]] == ["m", "m"]
    assert client.get_inference_statistics("m").model_stats[0].name == "m"


@pytest.mark.parametrize("packed", [None, "gzip", "deflate"])
def test_grpc_when_it_infers_then_rows_are_right_in_both_views(rpc, served, packed):
    module, client = rpc
    ask = Asked(served, module)
    result = client.infer("m", ask.by_position(), request_id="r1", compression_algorithm=packed)
    ask.check_position(result)
    assert result.get_response().id == "r1"
    outputs = [module.InferRequestedOutput(name) for name in ("STATUS", "OUTPUT0")]
    result = client.infer("m", ask.by_position(), outputs=outputs, model_version="next", client_timeout=PATIENCE_S,
                          timeout=int(PATIENCE_S * 1e6), parameters={"hps_miss_policy": "exact"})
    ask.check_position(result)
    assert result.as_numpy("STATUS").tolist() == [1] * 12 and result.get_response().model_version == "2"
    ask.check_table(client.infer("m.tables", ask.by_table(), compression_algorithm=packed))


def test_grpc_when_it_is_refused_then_its_exception_has_code_and_words(rpc, served, triton):
    module, client = rpc
    check_refusals(client, triton("tritonclient.utils").InferenceServerException, Asked(served, module),
                   "StatusCode.NOT_FOUND", "StatusCode.INVALID_ARGUMENT")


def test_grpc_when_it_asks_in_the_background_then_all_come_back(rpc, served):
    module, client = rpc
    answers, asks = queue.Queue(), [Asked(served, module, (n, 1, 2)) for n in range(20)]
    for number, ask in enumerate(asks):
        client.async_infer("m", ask.by_position(), callback=lambda result, error, n=number: answers.put((n, result, error)))
    for _ in asks:
        number, result, error = answers.get(timeout=PATIENCE_S)
        assert error is None
        asks[number].check_position(result)


def test_grpc_when_it_streams_then_answers_come_in_order_and_errors_among_them(rpc, served):
    module, client = rpc
    answers, asks = queue.Queue(), [Asked(served, module, (n, 1, 2)) for n in range(20)]
    client.start_stream(callback=lambda result, error: answers.put((result, error)))
    for number, ask in enumerate(asks):
        inputs = ask.by_position()
        client.async_stream_infer("m", inputs[:1] if number == 7 else inputs, request_id=str(number))
    for number, ask in enumerate(asks):
        result, error = answers.get(timeout=PATIENCE_S)
        if number == 7:
            assert "'NUMKEYS'" in error.message()
        else:
            assert error is None and result.get_response().id == str(number)
            assert result.get_response().parameters["triton_final_response"].bool_param  # which the usual loop waits for
            ask.check_position(result)
    client.stop_stream()


def test_grpc_when_by_asyncio_then_the_same(triton, served):
    module = triton("tritonclient.grpc.aio")
    asks = [Asked(served, module, (n, 1, 2)) for n in range(10)]

    async def requests():
        for ask in asks:
            yield {"model_name": "m", "inputs": ask.by_position()}

    async def run():
        async with module.InferenceServerClient(served.grpc[0]) as client:
            for ask, result in zip(asks, await asyncio.gather(*(client.infer("m", ask.by_position()) for ask in asks))):
                ask.check_position(result)
            count = 0
            async for result, error in client.stream_infer(requests()):
                assert error is None
                asks[count].check_position(result)
                count += 1
            assert count == len(asks)

    asyncio.run(run())


# ---- HTTP --------------------------------------------------------------------------------------------

@pytest.fixture(name="http")
def a_connection_of_its_http_client(web, served):
    with web.InferenceServerClient(served.kserve[0], concurrency=4, network_timeout=PATIENCE_S) as client:
        yield web, client


def test_http_when_it_asks_what_there_is_then_it_is_told(http):
    _, client = http
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("m")
    assert client.is_model_ready("m", "next") and not client.is_model_ready("m", "7")
    assert client.get_server_metadata()["name"] == "hpsd"
    assert [one["name"] for one in client.get_model_metadata("m.tables")["outputs"]] == list(NAMES)
    assert client.get_model_config("m")["max_batch_size"] == 1024
    assert [one["name"] for one in client.get_model_repository_index()] == ["m", "m"]
    assert client.get_inference_statistics("m")["model_stats"][0]["name"] == "m"


@pytest.mark.parametrize("packed", [None, "gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
def test_http_when_it_infers_then_rows_are_right_in_both_views(http, served, packed, binary):
    web, client = http
    ask = Asked(served, web)
    how = {"request_compression_algorithm": packed, "response_compression_algorithm": packed}
    result = client.infer("m", ask.by_position(binary_data=binary), request_id="r1", **how)
    ask.check_position(result)
    assert result.get_response()["id"] == "r1"
    outputs = [web.InferRequestedOutput(name, binary_data=binary) for name in ("STATUS", "OUTPUT0")]
    result = client.infer("m", ask.by_position(binary_data=binary), outputs=outputs, model_version="next",
                          timeout=int(PATIENCE_S * 1e6), parameters={"hps_miss_policy": "exact"}, **how)
    ask.check_position(result)
    assert result.as_numpy("STATUS").tolist() == [1] * 12 and result.get_response()["model_version"] == "2"
    ask.check_table(client.infer("m.tables", ask.by_table(binary_data=binary), **how))


def test_http_when_it_is_refused_then_its_exception_has_code_and_words(http, served, triton):
    web, client = http
    check_refusals(client, triton("tritonclient.utils").InferenceServerException, Asked(served, web), "404", "400")


def test_http_when_it_asks_by_gevent_then_all_come_back(http, served):
    web, client = http
    asks = [Asked(served, web, (n, 1, 2)) for n in range(20)]
    pending = [client.async_infer("m", ask.by_position()) for ask in asks]
    for ask, one in zip(asks, pending):
        ask.check_position(one.get_result(timeout=PATIENCE_S))


def test_http_when_bodies_are_made_and_read_without_its_connection_then_they_are_the_same(web, served):
    """As HPS's notebooks do it with their own transport."""
    import http.client
    ask = Asked(served, web, (900, 30, 1))
    body, size = web.InferenceServerClient.generate_request_body(
        ask.by_position(), outputs=[web.InferRequestedOutput("OUTPUT0")])
    connection = http.client.HTTPConnection(served.kserve[0], timeout=PATIENCE_S)
    connection.request("POST", "/v2/models/m/infer", body, {"Inference-Header-Content-Length": str(size)})
    reply = connection.getresponse()
    length = int(reply.headers["Inference-Header-Content-Length"])
    ask.check_position(web.InferenceServerClient.parse_response_body(reply.read(), header_length=length))
    connection.close()


def test_http_when_by_asyncio_then_the_same(triton, web, served):
    pytest.importorskip("aiohttp", reason="python3-aiohttp is missing")
    module = triton("tritonclient.http.aio")
    asks = [Asked(served, web, (n, 1, 2)) for n in range(10)]

    async def run():
        async with module.InferenceServerClient(served.kserve[0]) as client:
            for ask, result in zip(asks, await asyncio.gather(*(client.infer("m", ask.by_position()) for ask in asks))):
                ask.check_position(result)

    asyncio.run(run())
