# SPDX-License-Identifier: Apache-2.0
"""Records of updates as docs/publishing.md describes them, written and taken apart without our code.

What is written is a dict of arguments of confluent_kafka's Producer.produce. A row is a NumPy array.
"""
import struct

from hps.v1 import update_pb2 as update_pb

import numpy as np


def row_bytes(row):
    return np.ascontiguousarray(row, "<f4").tobytes()


def key_bytes(keys):
    return np.ascontiguousarray(keys, "<i8").tobytes()


def keyed(key, row):
    """Row None: a delete."""
    return {"key": key_bytes([key]), "value": None if row is None else row_bytes(row)}


def hctr(pairs, key_format="q"):
    body = b"".join(struct.pack(f"<{key_format}", key) + row_bytes(row) for key, row in pairs)
    return {"key": None, "value": b"HCTR" + struct.pack("<I", len(row_bytes(pairs[0][1]))) + body}


def packed(tables, version=0, event_time_unix_ms=0):
    """tables: {name: ({key: row}, [deleted keys])}"""
    batch = update_pb.UpdateBatch(version=version, event_time_unix_ms=event_time_unix_ms)
    for name, (puts, deletes) in tables.items():
        batch.tables.add(table=name, keys=key_bytes(list(puts)), deletes=key_bytes(deletes),
                         rows=b"".join(map(row_bytes, puts.values())))
    return {"key": None, "value": b"HPS1" + struct.pack("<I", 1) + batch.SerializeToString()}


def for_version(record, version):
    """A keyed or HCTR record that names the version it is for."""
    return {**record, "headers": [("hps-version", struct.pack("<q", version))]}


def hctr_pairs(value, key_format="q"):
    """[(key, row bytes)] of an HCTR record."""
    magic, size = struct.unpack_from("<4sI", value)
    assert magic == b"HCTR"
    width = struct.calcsize(f"<{key_format}") + size
    body = value[8:]
    assert len(body) % width == 0
    return [(struct.unpack_from(f"<{key_format}", body, at)[0], body[at + width - size:at + width])
            for at in range(0, len(body), width)]


def unpacked(value):
    assert value[:8] == b"HPS1\x01\0\0\0"
    return update_pb.UpdateBatch.FromString(value[8:])


def unpacked_rows(update):
    """[(key, row bytes; None: deleted)] of a TableUpdate."""
    keys = np.frombuffer(update.keys, "<i8").tolist()
    width = len(update.rows) // max(len(keys), 1)
    changes = [(key, update.rows[i * width:(i + 1) * width]) for i, key in enumerate(keys)]
    return changes + [(key, None) for key in np.frombuffer(update.deletes, "<i8").tolist()]
