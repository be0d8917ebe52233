# SPDX-License-Identifier: Apache-2.0
"""Triton's perf_analyzer puts load on hpsd, over gRPC, a stream and HTTP. ./dev interop puts it into PATH."""
import json
import shutil
import subprocess

import numpy as np
import pytest

import documents
from rig import PATIENCE_S, Authority, Daemon, Table, default_config, kserve_grpc, kserve_pb as kpb, model_config, scratch, until
from test_documents import KSERVE, followed, shell, with_values

PROGRAM = shutil.which("perf_analyzer")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="perf_analyzer is not installed; ./dev interop installs it")
NAMES, DIMS, KEYS, N = ("items", "users"), (4, 8), 5, 20  # keys of each table of a request, requests of a run


def perf_analyzer(*args, code=0):
    """(the output, the number of runs). If all requests of --request-count are answered before the first measurement
    begins, perf_analyzer does not count them and waits forever, or finds that no version of the model was used. It runs
    again."""
    for n_runs in (1, 2, 3):
        try:
            done = subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
            if n_runs == 3 or "failed to find the requested model version" not in done.stderr:
                break
        except subprocess.TimeoutExpired:
            assert n_runs < 3
    assert (done.returncode != 0) == (code != 0), done.stdout + done.stderr
    return done.stdout + done.stderr, n_runs


class Served:
    """A daemon with a model, and the file of three requests that perf_analyzer makes in turn."""

    def __init__(self, work, **server):
        tables = [Table.random(name, 100, dim, number=i) for i, (name, dim) in enumerate(zip(NAMES, DIMS))]
        model = model_config("m", [table.save(f"{work}/m") for table in tables], list(DIMS), list(NAMES))
        self.daemon = Daemon(work, default_config([model], server={"kserve_listen": ["127.0.0.1:0"], **server}))
        self.data, rng = f"{work}/data.json", np.random.default_rng(1)
        requests = [{"KEYS": {"content": [int(key) for table in tables for key in rng.choice(table.keys, KEYS)],
                              "shape": [KEYS * len(tables)]},
                     "NUMKEYS": {"content": [KEYS] * len(tables), "shape": [len(tables)]}} for _ in range(3)]
        with open(self.data, "w", encoding="utf-8") as f:
            json.dump({"data": requests}, f)

    def args(self, protocol, *more):
        address = self.daemon.grpc[0] if protocol == "grpc" else self.daemon.kserve[0]
        return ["-m", "m", "-i", protocol, "-u", address, "--input-data", self.data, "--request-count", N, *more]

    def counted(self):
        """(inferences of the model, keys that were found)"""
        stub = kserve_grpc.GRPCInferenceServiceStub(self.daemon.channel())
        one, = stub.ModelStatistics(kpb.ModelStatisticsRequest(name="m"), timeout=PATIENCE_S).model_stats
        keys = [value for name, value in self.daemon.metrics().items() if name.startswith("hpsd_lookup_keys_total")]
        return one.inference_stats.success.count, sum(keys)


@pytest.fixture(name="served", scope="module")
def a_daemon_with_a_model():
    with scratch() as work:
        served = Served(work)
        with served.daemon as daemon:
            daemon.wait_ready()
            yield served


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("way", [["grpc"], ["grpc", "--streaming"], ["grpc", "--grpc-compression-algorithm", "gzip"], ["http"],
                                 ["http", "--input-tensor-format", "json", "--output-tensor-format", "json"]], ids=" ".join)
def test_load_when_requests_come_from_a_file_then_all_are_answered_and_counted(served, way, samples):
    before = served.counted()
    said, n_runs = perf_analyzer(*served.args(*way, "-b", samples))
    assert f"Request count: {N}\n" in said
    expected = before[0] + n_runs * N, before[1] + n_runs * N * samples * KEYS * len(NAMES)
    until(lambda: served.counted() == expected, f"{expected} inferences and keys")


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_load_when_by_shared_memory_then_refused_by_name_and_nothing_is_looked_up(served, protocol):
    before = served.counted()
    assert "SystemSharedMemoryRegister is not built: " in perf_analyzer(*served.args(protocol, "--shared-memory", "system"), code=99)[0]
    assert served.counted() == before


def test_load_when_by_tls_then_the_authority_decides():
    with scratch() as work:
        authority, other = (Authority(work, name) for name in ("ca", "other"))
        certificate, key = authority.issue("server")
        served = Served(work, tls={"certificate": certificate, "key": key})
        with served.daemon as daemon:
            daemon.wait_ready()
            ways = {"grpc": ["--ssl-grpc-use-ssl", "true", "--ssl-grpc-root-certifications-file"],
                    "http": ["-u", f"https://{daemon.kserve[0]}", "--ssl-https-ca-certificates-file"]}
            for protocol, words in ways.items():
                assert f"Request count: {N}\n" in perf_analyzer(*served.args(protocol, *words, authority.path))[0]
                perf_analyzer(*served.args(protocol, *words, other.path), code=99)


def test_document_when_it_shows_a_load_then_it_runs():
    data, command = (documents.block(KSERVE, begins).code for begins in ('{"data"', "perf_analyzer"))
    with scratch() as work, followed(work, documents.block(KSERVE, "hps-gen --tables 2").code) as here:
        with open(f"{work}/requests.json", "w", encoding="utf-8") as f:
            f.write(data)
        short = f"--measurement-mode count_windows --measurement-request-count {N} --stability-percentage 999"
        code = with_values(here(command), {"--concurrency-range 8": f"--concurrency-range 8 {short}"})
        assert shell(code, work).count("Request count: ") == 2
