# SPDX-License-Identifier: Apache-2.0
"""The Triton step of docs/migration.md, in the genuine server: an ensemble moves to the backend of hpsd."""
import os
import re

import numpy as np
import pytest

import documents
from rig import Daemon, scratch
from test_documents import CONFIG_PBTXT, MIGRATION, diff_side, moved, wdl

genuine = pytest.importorskip("genuine", reason="no genuine server: tests/interop/genuine.py is missing")
backend = pytest.importorskip("test_triton_backend", reason="no tests of clients/triton")
pytestmark = backend.pytestmark


def test_ensemble_when_moved_as_the_guide_shows_then_its_dense_step_gets_the_rows_of_hpsd():
    option, = re.findall(r"^\+.*(--backend-config=\S+)", documents.block(MIGRATION, "-tritonserver").code, re.MULTILINE)
    ensemble = {"dense": backend.DENSE, "whole": backend.ENSEMBLE.replace('model_name: "m"', 'model_name: "wdl"')}
    with scratch() as work:
        (wide, deep), _ = wdl(work)

        def triton(side):
            models = backend.repository(work, wdl=diff_side(CONFIG_PBTXT, side), **ensemble)
            return genuine.Genuine(work, models, option.replace("/run/hpsd", work),
                                   backends={"hps": backend.LIBRARY, "peer": backend.PEER})
        with Daemon(work, moved(work), listen=(f"unix:{work}/lookup.sock", "127.0.0.1:0")):
            if not os.path.exists("/dev/nvidiactl"):
                with pytest.raises(AssertionError, match="gpu id 0"), triton("-"):
                    pass
            with triton("+") as server, backend.triton.InferenceServerClient(server.rpc) as client:
                inputs = backend.tensors(np.array([[5, 6, 1]], "i8"), np.array([[2, 1]], "i4"))
                rows = client.infer("wdl", inputs).as_numpy("OUTPUT0")
                total = client.infer("whole", inputs).as_numpy("SUM")
    np.testing.assert_array_equal(rows, np.concatenate([wide.rows[5:7], deep.rows[1:2]], None))
    np.testing.assert_allclose(total, [rows.sum()], rtol=1e-5)
