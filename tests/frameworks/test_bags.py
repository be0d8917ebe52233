# SPDX-License-Identifier: Apache-2.0
"""Pooled lookups over gRPC against torch.nn.EmbeddingBag.

Of each stored type there are tables of some widths; a case is a pooling and an output type, with and without weights,
each table by itself and all in one matrix. torch has the rows as hpsd says that they are (output FP32, not pooled);
that those are what was loaded is compared first, byte by byte, with torch's own conversion and quantisation.
"""
import itertools

import numpy as np
import pytest
import torch

from rig import Daemon, Table, ask, default_config, key_bytes, model_config, pb, scratch

DIMS = (16, 33, 64, 128)
STORED = {"fp32": pb.DATA_TYPE_FP32, "fp16": pb.DATA_TYPE_FP16, "bf16": pb.DATA_TYPE_BF16,
          "int8_rowwise_f32": pb.DATA_TYPE_INT8_ROWWISE_F32, "int8_rowwise_f16": pb.DATA_TYPE_INT8_ROWWISE_F16}
# by how much an answer may be off beside the true value, because it is of that type
OUTPUTS = {"fp32": (pb.DATA_TYPE_FP32, 2.0**-23), "fp16": (pb.DATA_TYPE_FP16, 2.0**-11),
           "bf16": (pb.DATA_TYPE_BF16, 2.0**-8)}
POOLINGS = {"sum": pb.POOLING_SUM, "mean": pb.POOLING_MEAN, "sqrtn": pb.POOLING_SQRTN,
            "mean_by_count": pb.POOLING_MEAN_BY_COUNT}
N_ROWS, N_BAGS, DEFAULT = 3000, 96, 0.25
SMALLEST = {"fp32": 0, "fp16": 2.0**-25, "bf16": 0}  # half of the least step of fp16


def decoded(data, output):
    """Bytes of an answer as float32."""
    if output == "bf16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, "<f4" if output == "fp32" else "<f2").astype(np.float32)


def stored_by_torch(rows, dtype):
    """What torch makes of float32 rows, as bytes; None where it has no such type."""
    rows = torch.from_numpy(np.ascontiguousarray(rows))
    if dtype == "int8_rowwise_f32":
        return torch.ops.quantized.embedding_bag_byte_prepack(rows).numpy().tobytes()
    if dtype == "bf16":
        return rows.bfloat16().view(torch.int16).numpy().tobytes()
    if dtype == "int8_rowwise_f16":
        return None
    return (rows.half() if dtype == "fp16" else rows).numpy().tobytes()


class Bags:
    """Random bags: empty ones, one of many keys, duplicates, and keys that no table has (torch: the last row)."""

    def __init__(self, rng, keys):
        sizes = rng.integers(0, 40, N_BAGS)
        sizes[[0, 7, N_BAGS - 1]] = 0
        sizes[5] = 2000
        self.offsets = np.concatenate(([0], np.cumsum(sizes)))
        self.at = rng.integers(0, N_ROWS // 2, self.offsets[-1])  # half of the rows: duplicates
        self.at[rng.random(len(self.at)) < 0.02] = len(keys)
        self.keys = np.append(keys, np.int64(2**40 + 17))[self.at]
        self.weights = rng.normal(1, 0.5, len(self.at)).astype("<f4")
        self.weights[self.offsets[3]:self.offsets[4]] = 0

    def query(self, table, pooling, weighted):
        return pb.TableQuery(table=table, keys=key_bytes(self.keys), offsets=self.offsets.astype("<u4").tobytes(),
                             pooling=POOLINGS[pooling], weights=self.weights.tobytes() if weighted else b"")

    def by_torch(self, rows, pooling, weighted):
        """What the bags come to, and the sums of magnitudes that say how exact float32 is."""
        at, offsets = torch.from_numpy(self.at), torch.from_numpy(self.offsets)
        weights = self.weights if weighted else np.ones(len(self.at), np.float32)
        counts = np.diff(self.offsets)

        def per_bag(values):  # in double precision
            return np.array([values[a:b].astype(np.float64).sum() for a, b in itertools.pairwise(self.offsets)])
        by = {"sum": np.ones(N_BAGS), "mean": per_bag(weights), "sqrtn": np.sqrt(per_bag(weights**2)),
              "mean_by_count": counts.astype(np.float64)}[pooling]
        inverse = np.divide(1, by, out=np.zeros(N_BAGS), where=by != 0)

        def pooled(table, factors):
            bag = torch.nn.EmbeddingBag.from_pretrained(table, mode="sum", include_last_offset=True)
            return bag(at, offsets, per_sample_weights=factors.to(table.dtype)).numpy()
        if not weighted and pooling.startswith("mean"):
            bag = torch.nn.EmbeddingBag.from_pretrained(torch.from_numpy(rows), mode="mean", include_last_offset=True)
            answer = bag(at, offsets).numpy()
        else:
            answer = pooled(torch.from_numpy(rows), torch.from_numpy(weights)).astype(np.float64) * inverse[:, None]
        magnitude = pooled(torch.from_numpy(np.abs(rows).astype(np.float64)), torch.from_numpy(np.abs(weights)))
        return answer, magnitude * np.abs(inverse)[:, None] * (counts[:, None] + 4)


class Served:
    """The daemon, and of each table what torch is to have."""

    def __init__(self, work):
        self.tables = [Table.random(f"{dtype}_{dim}", N_ROWS, dim, number=i, default=DEFAULT)
                       for i, (dtype, dim) in enumerate(itertools.product(STORED, DIMS))]
        self.dtypes = [dtype for dtype, _ in itertools.product(STORED, DIMS)]
        paths = [table.save(work) for table in self.tables]
        self.daemon = Daemon(work, default_config([model_config(
            "m", paths, [table.dim for table in self.tables], [table.name for table in self.tables],
            [DEFAULT] * len(paths), row_dtype=self.dtypes)]))
        self.daemon.wait_ready()
        self.stub = self.daemon.stub()
        rng = np.random.default_rng(4)
        self.bags = [Bags(rng, table.keys) for table in self.tables]
        self.rows = []
        for table in self.tables:
            result, = ask(self.stub, "m", {table.name: np.append(table.keys, 2**40 + 17)}).results
            self.rows.append(decoded(result.rows, "fp32").reshape(-1, table.dim))


@pytest.fixture(name="served", scope="module")
def daemon_with_tables_of_each_type():
    torch.set_num_threads(1)
    with scratch() as work:
        served = Served(work)
        with served.daemon:
            yield served


@pytest.mark.parametrize("dtype", STORED)
def test_rows_when_loaded_then_they_are_what_torch_makes_of_them(served, dtype):
    for table in (table for table, one in zip(served.tables, served.dtypes) if one == dtype):
        result, = ask(served.stub, "m", {table.name: table.keys}, output_type=pb.DATA_TYPE_RAW).results
        assert result.data_type == STORED[dtype]
        expected = stored_by_torch(table.rows, dtype)
        assert expected is None or result.rows == expected, f"{table.name}: other bytes than torch's"


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("pooling", POOLINGS)
def test_bags_when_pooled_then_what_torch_makes_of_them(served, pooling, output):
    for weighted, layout in itertools.product((False, True), (pb.ROW_LAYOUT_PER_TABLE, pb.ROW_LAYOUT_CONCAT)):
        queries = [bags.query(table.name, pooling, weighted) for bags, table in zip(served.bags, served.tables)]
        answer = ask(served.stub, "m", queries, output_type=OUTPUTS[output][0], row_layout=layout)
        matrix = decoded(answer.matrix, output).reshape(N_BAGS, -1) if answer.matrix else None
        for i, (result, table) in enumerate(zip(answer.results, served.tables)):
            got = matrix[:, result.column:result.column + table.dim] if matrix is not None else \
                decoded(result.rows, output).reshape(N_BAGS, table.dim)
            expected, magnitude = served.bags[i].by_torch(served.rows[i], pooling, weighted)
            bound = magnitude * 2.0**-23 + np.abs(expected) * OUTPUTS[output][1] + SMALLEST[output]
            worst = np.argmax(np.abs(got - expected) - bound)
            assert np.all(np.abs(got - expected) <= bound), (
                f"{table.name}, weights {weighted}, layout {layout}: {got.flat[worst]}, torch "
                f"{expected.flat[worst]} at {np.unravel_index(worst, got.shape)}, {bound.flat[worst]} allowed")
