# SPDX-License-Identifier: Apache-2.0
"""The model that the tests of the Python client look up in: rows that anybody can recompute."""
import numpy as np

from rig import Table, default_config, model_config

MODEL = "shop"
N_ROWS = 200
DIMS = {"items": 4, "users": 8, "wide": 16}
DEFAULT = -1.0


def rows_of(table, keys):
    """The rows of keys that are there: small multiples of 1/8, exact in fp16 and in sums of many."""
    keys = np.asarray(keys, np.int64)
    values = (keys[..., None] * 7 + np.arange(DIMS[table]) * 3 + len(table)) % 64
    return values.astype(np.float32) / 8


def tables():
    keys = np.arange(N_ROWS, dtype="<i8")
    return [Table(name, keys, rows_of(name, keys), DEFAULT) for name in DIMS]


def config(work, **more):
    """Of a daemon with the model, from files below `work`."""
    paths = [table.save(f"{work}/files") for table in tables()]
    model = model_config(MODEL, paths, list(DIMS.values()), list(DIMS), defaults=[DEFAULT] * len(DIMS), gpucache=False)
    return default_config([model], **more)


def pooled(table, keys, offsets, weights=None, mode="sum"):
    """What bags come to, in float32."""
    out = np.zeros((len(offsets) - 1, DIMS[table]), np.float32)
    for bag, (begin, end) in enumerate(zip(offsets, offsets[1:])):
        w = np.ones(end - begin, np.float32) if weights is None else np.asarray(weights[begin:end], np.float32)
        total = (rows_of(table, keys[begin:end]) * w[:, None]).sum(0, dtype=np.float32)
        by = {"sum": 1, "mean": w.sum(), "sqrtn": np.sqrt((w * w).sum()), "mean_by_count": end - begin}[mode]
        out[bag] = total / by if by != 0 else 0
    return out
