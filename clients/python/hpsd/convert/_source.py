# SPDX-License-Identifier: Apache-2.0
"""Arrays of a checkpoint: where their rows are, and how they are read."""
import io
import os
import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

Array = Any  # an array of NumPy

# hpsd's names of the types, and the types in NumPy. bf16 is stored as its bits.
DTYPES: Dict[str, str] = {"fp32": "<f4", "fp16": "<f2", "bf16": "<u2", "uint8": "|u1"}
EXPECTED = "expected fp32, fp16 or bf16"


class ConvertError(Exception):
    """The source cannot be converted. The text names the file or array, and the expected content."""


TORCHREC = re.compile(r"(?:^|\.)embedding(?:_bag)?s\.([^.]+)\.weight$")


def table_name(source: str) -> str:
    """The name of the table for an array."""
    match = TORCHREC.search(source)
    stem = match[1] if match else re.sub(r"[./](weight|embeddings)$", "", source)
    return re.sub(r"[^A-Za-z0-9_-]", "_", stem)


class Request(NamedTuple):
    """What the command line says about a source."""
    source: str
    dims: Dict[str, int]  # values per row, by name of the table; "": of all other tables
    dtype: Optional[str]

    def dim(self, source: str) -> Optional[int]:
        """Values per row of an array, if given."""
        return self.dims.get(table_name(source), self.dims.get(""))


class Part(NamedTuple):
    """A part of an array: rows in C order, at an offset in a file."""
    row: int
    column: int
    rows: int
    columns: int
    path: str
    offset: int


class Tensor:
    """An array [rows, dim]. The subclass with other files overrides `read`."""
    is_embedding = False  # whether it is converted without --table

    def __init__(self, name: str, dtype: str, shape: Tuple[int, ...], parts: List[Part]) -> None:
        self.name, self.dtype, self.parts = name, dtype, parts
        self.refusal = ""
        self.rows, self.dim = shape if len(shape) == 2 else (0, 0)
        self.width = self.dim  # columns in the source; int8 rows have more than dim
        self.is_embedding = "emb" in name.lower()
        if len(shape) != 2:
            self.refusal = f"an array of shape {list(shape)}, expected [rows, dim]"
        elif dtype not in DTYPES or dtype == "uint8":
            self.refusal = f"type {dtype}, {EXPECTED}"
        elif not 1 <= self.dim <= 65536:
            self.refusal = f"{self.dim} values per row, expected 1 to 65536"

    @property
    def row_bytes(self) -> int:
        return self.width * np.dtype(DTYPES[self.dtype]).itemsize

    def read(self, begin: int, end: int) -> Array:
        """Rows begin ... end - 1, [end - begin, width]."""
        out = np.empty((end - begin, self.width), DTYPES[self.dtype])
        for part in self.parts:
            first, last = max(begin, part.row), min(end, part.row + part.rows)
            if first >= last:
                continue
            size = part.columns * out.itemsize
            offset = part.offset + (first - part.row) * size
            if part.columns == self.width:
                read_into(part.path, offset, out[first - begin:last - begin])
            else:
                piece = np.empty((last - first, part.columns), out.dtype)
                read_into(part.path, offset, piece)
                out[first - begin:last - begin, part.column:part.column + part.columns] = piece
        return out

    def keys(self, begin: int, end: int) -> Optional[Array]:
        """The keys of these rows; None: row numbers."""
        return None

    def prepare(self) -> None:
        """Check, before a row is read, that the parts cover the array, each value once, and are inside their files."""
        area = 0
        for part in self.parts:
            inside = (part.row >= 0 and part.column >= 0 and part.row + part.rows <= self.rows
                      and part.column + part.columns <= self.width)
            if not inside:
                raise ConvertError(f"'{self.name}': the part {part[:4]} is not inside [{self.rows}, {self.width}]")
            area += part.rows * part.columns
            need = part.offset + part.rows * part.columns * np.dtype(DTYPES[self.dtype]).itemsize
            size = os.path.getsize(part.path)
            if size < need:
                raise ConvertError(f"{part.path}: {size} bytes, expected at least {need} for '{self.name}'")
        ordered = sorted(part for part in self.parts if part.rows and part.columns)
        overlap = False
        for i, one in enumerate(ordered):
            for other in ordered[i + 1:]:
                if other.row >= one.row + one.rows:
                    break
                overlap = overlap or (other.column < one.column + one.columns
                                      and one.column < other.column + other.columns)
        if overlap or area != self.rows * self.width:
            raise ConvertError(f"'{self.name}': its {len(self.parts)} parts have {area} values, expected each of "
                               f"{self.rows} x {self.width} once; is a rank's file missing?")


class Table(NamedTuple):
    """A table to write."""
    name: str
    tensor: Tensor


def read_into(path: str, offset: int, out: Array) -> None:
    """Fill a C-ordered array from a file."""
    view = memoryview(out.data).cast("B") if out.size else memoryview(b"")
    with open(path, "rb", buffering=0) as file:
        file.seek(offset)
        done = 0
        while done < len(view):
            n = file.readinto(view[done:])
            if not n:
                raise ConvertError(f"{path}: ends at byte {offset + done}, expected {offset + len(view)}")
            done += n


class Slice(io.RawIOBase):
    """Bytes begin ... begin + size - 1 of a file, as a file."""

    def __init__(self, path: str, begin: int, size: int) -> None:
        super().__init__()
        self._file = open(path, "rb")  # pylint: disable=consider-using-with
        self._begin, self._size, self._at = begin, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        n = max(0, min(len(buffer), self._size - self._at))
        self._file.seek(self._begin + self._at)
        data = self._file.read(n)
        buffer[:len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()
