# SPDX-License-Identifier: Apache-2.0
"""Tables of every row type, served from every combination of tiers, and the expected replies of pooled and unpooled
lookups. Expected rows are computed by NumPy, which adds float32 in the order of the keys; replies must have the same
bits."""
import numpy as np

import dtypes
from rig import Daemon, Table, ask, default_config, key_bytes, model_config, pb

DEFAULT = 0.375
FOUND, DEFAULTED, UNKNOWN = pb.KEY_STATUS_FOUND, pb.KEY_STATUS_DEFAULTED, pb.KEY_STATUS_UNKNOWN
SUM, MEAN, SQRTN, BY_COUNT = pb.POOLING_SUM, pb.POOLING_MEAN, pb.POOLING_SQRTN, pb.POOLING_MEAN_BY_COUNT
POOLINGS = (SUM, MEAN, SQRTN, BY_COUNT)
HOST = {"type": "parallel_hash_map", "memory_bytes": "1GiB"}
SMALL_HOST = {"type": "parallel_hash_map", "memory_bytes": "4MiB"}
NO_HOST = {"type": "disabled"}
CACHED = {"gpucache": True, "gpucacheper": 0.5}
# name: volatile_db, options of the embedding cache in models[], lookup_path
TIERS = {"host map": (HOST, {}, "auto"),
         "small host map over RocksDB": (SMALL_HOST, {}, "auto"),
         "RocksDB": (NO_HOST, {}, "auto"),
         "embedding cache of a half over RocksDB": (NO_HOST, CACHED, "auto"),
         "embedding cache of a half, asked first, and a host map": (HOST, CACHED, "gpu"),
         "embedding cache of all, and a small host map": (SMALL_HOST, {"gpucache": True, "gpucacheper": 1.0}, "auto"),
         "host map, asked first, and an embedding cache": (SMALL_HOST, CACHED, "host")}


class Stored:
    """A table with rows and default row stored as some type. narrow: with `supportlonglong: false`, a key is the low 32
    bits of the int64 in a file or request. dense: the keys are the numbers 0 to n_rows - 1, a tenth of them without
    rows, and some of the random keys."""

    def __init__(self, name, dtype, dim, n_rows, number, default=DEFAULT, narrow=False, dense=False):
        self.name, self.dtype, self.dim, self.default, self.narrow = name, dtype, dim, default, narrow
        made = Table.random(name, n_rows, dim, number=number)
        numbers = np.random.default_rng(number).permutation(n_rows)
        self.holes = numbers[:n_rows // 10] if dense else numbers[:0]
        if dense:
            n = len(made.keys[len(self.holes) + n_rows // 50:])
            made.keys[-n:] = numbers[-n:]
        one_each = np.unique(self.meant(made.keys), return_index=True)[1]
        self.keys = made.keys[one_each]
        self.at = {int(key): i for i, key in enumerate(self.meant(self.keys))}
        self.bytes = dtypes.stored(made.rows[one_each], dtype)
        self.values = dtypes.values(self.bytes, dtype, dim)
        self.default_bytes = dtypes.stored(np.full((1, dim), default, np.float32), dtype)
        self.default_row = dtypes.values(self.default_bytes, dtype, dim)[0]

    def meant(self, keys):
        """The table's keys for the int64 keys of a file or request."""
        return np.asarray(keys, "<i8") & (2**32 - 1 if self.narrow else -1)

    def indices(self, keys):
        """The rows' indices; -1: an unknown key."""
        return np.array([self.at.get(key, -1) for key in self.meant(keys).tolist()], int)

    def put(self, keys, rows):
        """Add or replace rows; rows: bytes of the table's type."""
        for key, row in zip(self.meant(keys).tolist(), rows, strict=True):
            if key not in self.at:
                self.at[key] = len(self.bytes)
                self.keys = np.append(self.keys, key)
                self.bytes = np.vstack((self.bytes, row))
            self.bytes[self.at[key]] = row
        self.values = dtypes.values(self.bytes, self.dtype, self.dim)

    def delete(self, keys):
        for key in self.meant(keys).tolist():
            self.at.pop(key, None)  # `keys` and `bytes` keep it

    def save(self, directory):
        return dtypes.save(directory, self.name, self.keys, self.bytes, self.dtype, self.dim)

    def rows(self, keys, states, unknown=None):
        """The row values of a reply in which the keys have these states; unknown: replaces the default row of unknown
        keys."""
        at, states = self.indices(keys), np.asarray(states, int)
        assert len(states) == len(at) and (at[states == FOUND] >= 0).all()
        out = self.values[at]
        out[states != FOUND] = self.default_row
        if unknown is not None:
            out[states == UNKNOWN] = unknown
        return out

    def some_keys(self, n, n_unknown=0, seed=1):
        rng = np.random.default_rng([seed, self.dim])
        return rng.permutation(np.concatenate([rng.choice(self.keys, n - n_unknown),
                                               rng.integers(2, 2**40, n_unknown)]))


class Served:
    def __init__(self, work, tables, tiers):
        self.tables = tables
        host, cache, path = TIERS[tiers]
        paths = [table.save(work) for table in tables.values()]
        model = model_config("m", paths, [table.dim for table in tables.values()], list(tables),
                             [table.default for table in tables.values()],
                             row_dtype=[dtypes.NAMES[table.dtype] for table in tables.values()],
                             **{"hit_rate_threshold": 1.0, **cache})
        config = default_config([model], volatile_db=host, server={"lookup_path": path},
                                supportlonglong=not any(table.narrow for table in tables.values()))
        self.daemon = Daemon(work, config, env={"HPS_DEVICE": "sim"} if cache else {})
        self.stub = self.daemon.stub()

    def ask(self, queries, **fields):
        return ask(self.stub, "m", queries, **fields)


def weights_of(n_keys, seed=1):
    return np.random.default_rng(seed).standard_normal(n_keys).astype("<f4")


def query(table, keys, offsets=None, pooling=0, weights=None):
    return pb.TableQuery(table=table.name, keys=key_bytes(keys), pooling=pooling,
                         offsets=b"" if offsets is None else offsets.astype("<u4").tobytes(),
                         weights=b"" if weights is None else weights.astype("<f4").tobytes())


def added(values):
    """The sum of float32 rows in their order; numpy's sum adds in another order."""
    return np.add.accumulate(values, axis=0, dtype=np.float32)[-1] + np.float32(0)


def pooled(rows, offsets, pooling, weights=None):
    """One row for each bag. Every product, sum and quotient is rounded to float32 separately."""
    out = np.zeros((len(offsets) - 1, rows.shape[1]), np.float32)
    weights = np.ones(len(rows), np.float32) if weights is None else weights
    divisor = {SUM: lambda w: np.float32(1), MEAN: added, SQRTN: lambda w: np.sqrt(added(w * w)),
               BY_COUNT: lambda w: np.float32(len(w))}[pooling]
    rows = weights[:, None] * rows
    for bag, (begin, end) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
        if begin == end:
            continue
        by = divisor(weights[begin:end])
        out[bag] = added(rows[begin:end]) / by if by else 0
    return out


def states(result, n_keys):
    assert len(result.key_status) in (0, n_keys)
    return list(result.key_status) or [FOUND] * n_keys
