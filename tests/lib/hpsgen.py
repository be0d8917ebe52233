# SPDX-License-Identifier: Apache-2.0
"""The rows that hps-gen writes, computed independently with NumPy (formula in base/rows/rowgen.h).

Also a program: `hpsgen.py DIR` checks every file of a directory that hps-gen wrote with seed 1 (or
--seed N) and exits 0 if all values are right.
"""
import argparse
import json
import os
import sys

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
BLOCK_VALUES = 32768  # so many at a time: what is computed stays in the processor's cache


def mix64(x):
    """The finaliser of SplitMix64, on uint64 scalars or arrays."""
    with np.errstate(over="ignore"):
        x = np.array(x, dtype=np.uint64, ndmin=1)
        x ^= x >> np.uint64(30)
        x *= np.uint64(0xBF58476D1CE4E5B9)
        x ^= x >> np.uint64(27)
        x *= np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
        return x


def rows(seed, table, keys, dim, dtype=np.float32):
    """Rows of `keys` (int64 or uint64) of table number `table`: an array [len(keys), dim]."""
    keys = np.atleast_1d(np.asarray(keys)).astype(np.int64).view(np.uint64)
    out = np.empty((len(keys), dim), np.float32)
    n = max(1, BLOCK_VALUES // dim)
    with np.errstate(over="ignore"):
        c = mix64(mix64(mix64(np.uint64(seed)) + np.uint64(table)) ^ keys)
        steps = np.arange(dim, dtype=np.uint64) * GOLDEN
        for at in range(0, len(keys), n):
            u = mix64(c[at:at + n, None] + steps) >> np.uint64(40)
            out[at:at + n] = u.view(np.int64)  # 24 bits: exact
    out -= np.float32(2**23)
    out *= np.float32(2**-23)
    return out.astype(dtype, copy=False)


def hashed_keys(n):
    """Keys of rows 0 ... n-1 with --keys hashed, as int64."""
    with np.errstate(over="ignore"):
        return mix64(np.arange(n, dtype=np.uint64) + GOLDEN).view(np.int64)


def read_table(path, name, dim):
    """(keys, rows) of one table, whichever form it has."""
    base = os.path.join(path, name)
    if os.path.isdir(base):
        keys = np.fromfile(os.path.join(base, "key"), dtype="<i8")
        values = np.fromfile(os.path.join(base, "emb_vector"), dtype="<f4").reshape(-1, dim)
        return keys, values
    if os.path.exists(base + ".rows.npy"):
        return np.load(base + ".keys.npy"), np.load(base + ".rows.npy")
    values = np.load(base + ".npy")
    return np.arange(len(values), dtype=np.int64), values


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dir")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with open(os.path.join(args.dir, "manifest.json"), encoding="utf-8") as f:
        manifest = json.load(f)
    for index, table in enumerate(manifest["tables"]):
        keys, values = read_table(args.dir, table["name"], table["dim"])
        if len(keys) != table["rows"] or len(np.unique(keys)) != len(keys):
            sys.exit(f"{table['name']}: wrong number of keys")
        for at in range(0, len(keys), 65536):
            piece = slice(at, at + 65536)
            expected = rows(args.seed, index, keys[piece], table["dim"], values.dtype)
            if not np.array_equal(values[piece], expected):
                sys.exit(f"{table['name']}: wrong values in rows {at} to {at + 65535}")
        print(f"{table['name']}: {len(keys)} rows of {table['dim']} {values.dtype}: right")


if __name__ == "__main__":
    main()
