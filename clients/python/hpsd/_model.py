# SPDX-License-Identifier: Apache-2.0
"""Models, versions and tables, from GetModel."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

import grpc

from . import _messages
from .errors import NotFound, in_range

_DATA_TYPES = {number: word for word, number in _messages.words("DataType", "DATA_TYPE_").items()}


@dataclass(frozen=True)
class Table:
    """A table of a version."""

    name: str
    dim: int  # values per row
    data_type: str  # type of the stored rows: "fp32", "fp16", "bf16", ...
    row_count: int
    row_count_estimated: bool
    place: int  # in the order of tables of the model
    dense_row_count: int = 0  # rows that the host map stores without an index


@dataclass(frozen=True)
class Position:
    """Position of a version in a partition of the update log. `next_offset` is the offset of the next record to apply."""

    topic: str
    partition: int
    next_offset: int


@dataclass(frozen=True)
class Version:
    """A version that lookups can use."""

    number: int
    label: str
    lineage: str
    loaded_unix_ms: int
    tables: Dict[str, Table]  # in the order of the model
    update_sequence: int
    event_time_unix_ms: int  # event time of the newest update; 0: none
    as_of_unix_ms: int  # every update logged before this time is applied; 0: unknown
    positions: Tuple[Position, ...]
    rejected_record_count: int


@dataclass(frozen=True)
class Model:
    """A model, and its versions by number."""

    name: str
    active_version: Optional[int]
    versions: Dict[int, Version]
    pinned_version: int = 0  # of the client that read it; 0: none

    @property
    def active(self) -> Version:
        """The active version, which lookups without a version use. Raises NotFound if the model has none."""
        if self.active_version is None or self.active_version not in self.versions:
            raise NotFound(f"model {self.name!r} has no active version", grpc.StatusCode.NOT_FOUND)
        return self.versions[self.active_version]

    @property
    def tables(self) -> Dict[str, Table]:
        """The tables of the active version, or of the version to which the client is pinned, in the order of the model."""
        return self.versions[self.pinned_version].tables if self.pinned_version else self.active.tables


def _table(of: Any) -> Table:
    return Table(of.table, of.dim, _DATA_TYPES.get(of.data_type, str(of.data_type)), of.row_count,
                 of.row_count_estimated, of.place, of.dense_row_count)


def _version(of: Any) -> Version:
    positions = tuple(Position(one.topic, one.partition, one.next_offset) for one in of.positions)
    return Version(of.version, of.label, of.lineage, of.loaded_unix_ms, {one.table: _table(one) for one in of.tables},
                   of.update_sequence, of.event_time_unix_ms, of.as_of_unix_ms, positions, of.rejected_record_count)


def version_number(value: Any) -> int:
    """`value` as an int from 0 to 2**63 - 1. Raises InvalidArgument."""
    return int(in_range(value, "version", 0, 2**63 - 1, "a whole number", whole=True))


def request(model: str, version: int) -> bytes:
    """hps.v1.GetModelRequest, serialised. version 0: all versions."""
    return bytes(_messages.GetModelRequest(model=model, version=version).SerializeToString())


def read(data: bytes, version: int) -> Model:
    """The model in a serialised hps.v1.GetModelResponse, which answers a request for this version."""
    reply = _messages.read(_messages.GetModelResponse, data)
    versions = {of.version: _version(of) for of in reply.versions}
    return Model(reply.model, reply.active_version or None, versions, version)
