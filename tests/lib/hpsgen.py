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
BLOCK_VALUES = 32768  # so that a block stays in the CPU's cache


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


DTYPES = ("fp32", "fp16", "bf16", "int8_rowwise_f32", "int8_rowwise_f16")


def quantised(values, dtype):
    """Quantise values (float32) to INT8 rows: (uint8 [n, dim], scales and biases [n, 2]). float32 scales follow
    FBGEMM's rule, float16 scales that of NVE's exporters. All arithmetic is float32."""
    low = values.min(axis=1, keepdims=True) + np.float32(0)  # -0 becomes 0
    high = values.max(axis=1, keepdims=True)
    if dtype == "int8_rowwise_f32":
        scale = (high - low) / np.float32(255)
        codes = np.rint((values - low) * (np.float32(255) / (high - low + np.float32(1e-8))))
        return codes.astype(np.uint8), np.hstack((scale, low))
    bias = low.astype(np.float16).astype(np.float32)
    scale = ((high - bias) / np.float32(255)).astype(np.float16)
    scale[scale == 0] = 1
    codes = np.clip(np.rint((values - bias) / scale.astype(np.float32)), 0, 255)
    return codes.astype(np.uint8), np.hstack((scale, bias.astype(np.float16)))


def bf16_bits(values):
    """Values (float32, finite) rounded to nearest even, as uint16."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def stored(values, dtype):
    """Values (float32) in the encoding of the files: (T.npy, T.scale_bias.npy or None)."""
    if dtype.startswith("int8"):
        return quantised(values, dtype)
    if dtype == "bf16":
        return bf16_bits(values), None
    return values.astype({"fp32": np.float32, "fp16": np.float16}[dtype]), None


def served(values, dtype):
    """The float32 values that a lookup returns for rows (float32) that are stored as `dtype`."""
    codes, scale_bias = stored(values, dtype)
    if dtype == "bf16":
        return (codes.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if scale_bias is None:
        return codes.astype(np.float32)
    scale, bias = scale_bias.astype(np.float32).T
    return codes.astype(np.float32) * scale[:, None] + bias[:, None]


def hashed_keys(n):
    """Keys of rows 0 ... n-1 with --keys hashed, as int64."""
    with np.errstate(over="ignore"):
        return mix64(np.arange(n, dtype=np.uint64) + GOLDEN).view(np.int64)


def read_table(path, name, dim):
    """(keys, rows, scales and biases or None) of one table, in any format."""
    base = os.path.join(path, name)
    scale_bias = np.load(base + ".scale_bias.npy") if os.path.exists(base + ".scale_bias.npy") else None
    if os.path.isdir(base):
        keys = np.fromfile(os.path.join(base, "key"), dtype="<i8")
        values = np.fromfile(os.path.join(base, "emb_vector"), dtype="<f4").reshape(-1, dim)
        return keys, values, None
    if os.path.exists(base + ".rows.npy"):
        return np.load(base + ".keys.npy"), np.load(base + ".rows.npy"), scale_bias
    values = np.load(base + ".npy")
    return np.arange(len(values), dtype=np.int64), values, scale_bias


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dir")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with open(os.path.join(args.dir, "manifest.json"), encoding="utf-8") as f:
        manifest = json.load(f)
    for index, table in enumerate(manifest["tables"]):
        keys, values, scale_bias = read_table(args.dir, table["name"], table["dim"])
        if len(keys) != table["rows"] or len(np.unique(keys)) != len(keys):
            sys.exit(f"{table['name']}: wrong number of keys")
        for at in range(0, len(keys), 65536):
            piece = slice(at, at + 65536)
            expected = stored(rows(args.seed, index, keys[piece], table["dim"]), table["dtype"])
            if values.dtype != expected[0].dtype or not np.array_equal(values[piece], expected[0]):
                sys.exit(f"{table['name']}: wrong values in rows {at} to {at + 65535}")
            if expected[1] is not None and not (scale_bias.dtype == expected[1].dtype and
                                                np.array_equal(scale_bias[piece], expected[1])):
                sys.exit(f"{table['name']}: wrong scales in rows {at} to {at + 65535}")
        print(f"{table['name']}: {len(keys)} rows of {table['dim']} {table['dtype']}: right")


if __name__ == "__main__":
    main()
