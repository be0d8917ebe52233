# SPDX-License-Identifier: Apache-2.0
"""Writes tables as a model directory, and compares it with the source."""
import json
import os
import random
import shutil
import sys
import time
from typing import Any, BinaryIO, Dict, List

import numpy as np

from ._source import DTYPES, ConvertError, Table, Tensor

SAMPLE = 1000  # rows that are compared with the source, for each table
PART = ".part"  # no file with this suffix is a table


class _Progress:
    """One line on a terminal; nothing elsewhere."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.shown = total, 0, 0.0
        self.on = sys.stderr.isatty()

    def add(self, n: int, name: str) -> None:
        self.done += n
        now = time.monotonic()
        if self.on and (now - self.shown > 0.2 or self.done == self.total):
            self.shown = now
            share = self.done / self.total if self.total else 1
            bar = "#" * int(30 * share)
            print(f"\r[{bar:30}] {100 * share:3.0f} %  {self.done >> 20} MiB  {name[:30]:30}", end="", file=sys.stderr)

    def end(self) -> None:
        if self.on:
            print(file=sys.stderr)


def _files(table: Table) -> Dict[str, Any]:
    """The arrays of a table: {file name: (type, columns or None)}"""
    tensor = table.tensor
    has_keys = tensor.keys(0, 0) is not None
    files: Dict[str, Any] = {f"{table.name}{'.rows' if has_keys else ''}.npy": (DTYPES[tensor.dtype], tensor.dim)}
    if has_keys:
        files[f"{table.name}.keys.npy"] = ("<i8", None)
    if tensor.dtype == "uint8":
        files[f"{table.name}.scale_bias.npy"] = ("<f2", 2)
    return files


def _pieces(tensor: Tensor, begin: int, end: int) -> List[Any]:
    """The arrays of some rows, in the order of _files."""
    rows = tensor.read(begin, end)
    if tensor.dtype == "uint8":  # float16 scale and bias, then the values, then padding
        return [rows[:, 4:4 + tensor.dim], np.ascontiguousarray(rows[:, :4]).view("<f2")]
    keys = tensor.keys(begin, end)
    return [rows] if keys is None else [rows, keys]


def _header(file: BinaryIO, dtype: str, rows: int, columns: Any) -> None:
    shape = (rows,) if columns is None else (rows, columns)
    np_format: Any = np.lib.format
    np_format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})


def _write_table(table: Table, directory: str, memory: int, progress: _Progress) -> Dict[str, Any]:
    tensor, files = table.tensor, _files(table)
    step = max(1, memory // (4 * (tensor.row_bytes + 64)))
    paths = [os.path.join(directory, name + PART) for name in files]
    outs = [open(path, "wb", buffering=0) for path in paths]  # pylint: disable=consider-using-with
    try:
        for out, (dtype, columns) in zip(outs, files.values()):
            _header(out, dtype, tensor.rows, columns)
        for begin in range(0, tensor.rows, step):
            end = min(tensor.rows, begin + step)
            for out, piece in zip(outs, _pieces(tensor, begin, end)):
                view = memoryview(np.ascontiguousarray(piece).data).cast("B")
                while view:
                    view = view[out.write(view):]
            progress.add((end - begin) * tensor.row_bytes, table.name)
        for out in outs:
            os.fsync(out.fileno())
    finally:
        for out in outs:
            out.close()
    _check_table(table, paths)
    dtype = "int8_rowwise_f16" if tensor.dtype == "uint8" else tensor.dtype
    return {"name": table.name, "dim": tensor.dim, "rows": tensor.rows, "dtype": dtype,
            "files": [{"name": name, "bytes": os.path.getsize(path)} for name, path in zip(files, paths)]}


def _check_table(table: Table, paths: List[str]) -> None:
    """Read a sample of the rows from the source again, and compare it with the written rows."""
    tensor = table.tensor
    written: List[Any] = [np.load(path, mmap_mode="r") if os.path.getsize(path) > 0 and tensor.rows else None for path in paths]
    some = {0, tensor.rows - 1} | set(random.sample(range(tensor.rows), min(SAMPLE, tensor.rows)))
    for row in sorted(some) if tensor.rows else ():
        for array, piece in zip(written, _pieces(tensor, row, row + 1)):
            if array is None or array.shape[0] != tensor.rows or array[row:row + 1].tobytes() != piece.tobytes():
                raise ConvertError(f"table '{table.name}': row {row} differs from '{tensor.name}'; did the source "
                                   "change?")


def write(tables: List[Table], out: str, memory: int) -> None:
    """Write the tables into a directory, which appears only when all are complete."""
    out = os.path.abspath(out)
    if os.path.isdir(out) and os.listdir(out) or os.path.exists(out) and not os.path.isdir(out):
        raise ConvertError(f"{out}: exists, expected a new or empty directory")
    for table in tables:
        table.tensor.prepare()
    progress = _Progress(sum(table.tensor.rows * table.tensor.row_bytes for table in tables))
    os.makedirs(os.path.dirname(out), exist_ok=True)
    temporary = os.path.join(os.path.dirname(out), f".{os.path.basename(out)}.tmp-{os.getpid()}")
    os.mkdir(temporary)
    try:
        manifest = {"format": "hpsd-manifest", "version": 1,
                    "tables": [_write_table(table, temporary, memory, progress) for table in tables]}
        with open(os.path.join(temporary, "manifest.json"), "w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        for name in os.listdir(temporary):
            if name.endswith(PART):
                os.rename(os.path.join(temporary, name), os.path.join(temporary, name[:-len(PART)]))
        os.rename(temporary, out)
    finally:
        progress.end()
        shutil.rmtree(temporary, ignore_errors=True)
