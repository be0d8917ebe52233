# SPDX-License-Identifier: Apache-2.0
"""How rows of each type are stored, by numpy: what hpsd must have made of values, bit for bit.

INT8 rows are u8 of each value, then scale and bias (value = u8 * scale + bias): F32 by the rule of FBGEMM, F16 by that
of NVE's exporters.
"""
import numpy as np

FP32, FP16, BF16, INT8_F32, INT8_F16 = range(1, 6)
STORED = (FP32, FP16, BF16, INT8_F32, INT8_F16)
NAMES = {FP32: "fp32", FP16: "fp16", BF16: "bf16", INT8_F32: "int8_rowwise_f32", INT8_F16: "int8_rowwise_f16"}


def row_bytes(dtype, dim):
    return {FP32: 4 * dim, FP16: 2 * dim, BF16: 2 * dim, INT8_F32: dim + 8, INT8_F16: dim + 4}[dtype]


def bf16(values):
    """As u2, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype("<u2")


def quantised(values, dtype):
    """u1 [n, dim], and scale and bias [n, 2] as f4 or f2."""
    values = np.ascontiguousarray(values, np.float32)
    low, high = values.min(1, keepdims=True) + np.float32(0), values.max(1, keepdims=True)
    if dtype == INT8_F32:
        extent = high - low
        scale, bias = extent / np.float32(255), low
        u8 = np.rint((values - low) * (np.float32(255) / (extent + np.float32(1e-8))))
        return u8.astype("u1"), np.hstack((scale, bias)).astype("<f4")
    bias = low.astype("<f2")
    scale = ((high - bias.astype(np.float32)) / np.float32(255)).astype("<f2")
    scale[scale == 0] = 1
    u8 = np.rint((values - bias.astype(np.float32)) / scale.astype(np.float32))
    return np.clip(u8, 0, 255).astype("u1"), np.hstack((scale, bias))


def stored(values, dtype):
    """Rows [n, dim] of float32 as the bytes of stored rows: u1 [n, row_bytes]."""
    values = np.ascontiguousarray(values, "<f4")
    n, dim = values.shape
    if dtype in (INT8_F32, INT8_F16):
        u8, scale_bias = quantised(values, dtype)
        return np.hstack((u8, scale_bias.view("u1").reshape(n, -1)))
    rows = values if dtype == FP32 else values.astype("<f2") if dtype == FP16 else bf16(values)
    return rows.view("u1").reshape(n, row_bytes(dtype, dim))


def values(rows, dtype, dim):
    """float32 [n, dim] of the bytes of stored rows."""
    rows = np.ascontiguousarray(rows, "u1").reshape(-1, row_bytes(dtype, dim))
    if dtype == FP32:
        return rows.view("<f4")
    if dtype == FP16:
        return rows.view("<f2").astype(np.float32)
    if dtype == BF16:
        return (rows.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    scale_bias = np.ascontiguousarray(rows[:, dim:]).view("<f4" if dtype == INT8_F32 else "<f2").astype(np.float32)
    return rows[:, :dim].astype(np.float32) * scale_bias[:, :1] + scale_bias[:, 1:]


def save(directory, name, keys, rows, dtype, dim):
    """Write the pair that has stored rows, as `load` takes it; of bf16 the manifest, or the user, must say what it is."""
    rows = np.ascontiguousarray(rows, "u1").reshape(-1, row_bytes(dtype, dim))
    np.save(f"{directory}/{name}.keys.npy", np.asarray(keys, "<i8"))
    if dtype in (INT8_F32, INT8_F16):
        np.save(f"{directory}/{name}.rows.npy", rows[:, :dim])
        np.save(f"{directory}/{name}.scale_bias.npy",
                np.ascontiguousarray(rows[:, dim:]).view("<f4" if dtype == INT8_F32 else "<f2"))
    else:
        np.save(f"{directory}/{name}.rows.npy", rows.view({FP32: "<f4", FP16: "<f2", BF16: "<u2"}[dtype]))
    return f"{directory}/{name}.rows.npy"
