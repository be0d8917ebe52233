# SPDX-License-Identifier: Apache-2.0
"""docs/examples/triton, a model of Triton's Python backend, in the genuine Triton. ./dev interop runs this."""
import importlib
import os
import shutil

import numpy as np
import pytest

import genuine
import test_tritonclient  # noqa: F401  makes tritonclient importable
from rig import ROOT, scratch
from test_triton_backend import INVALID, NOT_FOUND, UNAVAILABLE, Served, refused, repository, tensors

triton = importlib.import_module("tritonclient.grpc")
EXAMPLE = os.path.join(ROOT, "docs", "examples", "triton")

pytestmark = pytest.mark.skipif(bool(genuine.missing_python()), reason=genuine.missing_python() or "")


def example(work, name, beside, **changes):
    """A model of the example; `beside`: with the package beside model.py."""
    with open(f"{EXAMPLE}/config.pbtxt", encoding="utf-8") as f:
        text = f.read()
    for old, new in {"count: 4": "count: 1", **changes}.items():
        assert old in text
        text = text.replace(old, new)
    where = repository(work, **{name: text})
    shutil.copy(f"{EXAMPLE}/model.py", f"{where}/{name}/1")
    if beside:
        shutil.copytree(f"{ROOT}/clients/python/hpsd", f"{where}/{name}/1/hpsd")
    return where


def test_example_when_the_package_is_beside_it_then_rows_and_errors_are_those_of_the_backend_in_c():
    with scratch() as work:
        served = Served(work)
        keys, counts, rows = served.ask()
        pairs = [served.ask(sizes, seed) for seed, sizes in enumerate(((5, 0, 7), (2, 9, 1)))]
        example(work, "absent", True, **{"127.0.0.1:8601": served.address})
        where = example(work, "m", True, **{"127.0.0.1:8601": served.address, "max_batch_size: 64": "max_batch_size: 0", "[ -1 ]": "[ -1, -1 ]",
                                            "FP32 dims: [ -1, -1 ]": "FP32 dims: [ -1 ]"})
        with served.daemon as daemon, genuine.Genuine(work, where) as server, triton.InferenceServerClient(server.rpc) as client:
            def lookup(model="m", counts=counts, **how):
                return client.infer(model, tensors(keys[None], counts), **how).as_numpy("OUTPUT0")

            assert np.array_equal(lookup(), rows)
            both = client.infer("m", tensors(*(np.stack(one) if one[0].ndim == 1 else np.concatenate(one) for one in list(zip(*pairs))[:2])))
            assert np.array_equal(both.as_numpy("OUTPUT0"), np.concatenate([pair[2] for pair in pairs]))
            refused(INVALID, "NUMKEYS has 3 rows", lambda: lookup(counts=np.repeat(counts, 3, axis=0)))
            refused(INVALID, "counts: got", lambda: lookup(counts=counts + 1))
            refused(NOT_FOUND, "absent", lambda: lookup("absent"))
            daemon.kill()
            refused(UNAVAILABLE, "hpsd.sock", lambda: lookup(timeout=300_000))
            daemon.restart()
            assert np.array_equal(lookup(), rows)


def test_example_when_the_package_is_in_pythonpath_then_found_and_the_address_is_of_the_environment():
    with scratch() as work:
        served = Served(work)
        keys, counts, rows = served.ask()
        where = example(work, "m", False)
        environment = {"PYTHONPATH": f"{ROOT}/clients/python", "HPSD_LOOKUP_ADDR": served.address}
        with served.daemon, genuine.Genuine(work, where, environment=environment) as server, \
                triton.InferenceServerClient(server.rpc) as client:
            assert np.array_equal(client.infer("m", tensors(keys[None], counts)).as_numpy("OUTPUT0"), rows)
