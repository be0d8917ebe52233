#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the corpus of fuzz_request: LookupRequest messages, good and bad, one file each."""
import pathlib
import struct
import sys

from make_corpus import blob, num, varint


def fixed64(field, value):
    return varint(field << 3 | 1) + struct.pack("<q", value)


def keys(*values):
    return struct.pack(f"<{len(values)}q", *values)


ALL = (blob(1, b"dlrm") + num(2, 3) + blob(3, blob(1, b"items") + blob(2, keys(1, -1, -2**63))) +
       blob(3, blob(3, keys(7, 8)) + num(5, 1)) + num(4, 2) + num(5, 250) + num(6, 2) + num(7, 3) +
       num(8, 1) + blob(9, b"req-1") + num(11, 1))

CASES = {
    "empty": b"",
    "all": ALL,
    "many_tables": b"".join(blob(3, blob(1, b"t%d" % i) + blob(2, keys(i))) for i in range(40)),
    "too_many_tables": blob(3, b"") * 65,
    "too_many_keys": blob(3, blob(2, keys(*range(4097)))),
    "most_keys": blob(3, blob(2, keys(*range(4096)))),
    "list_unpacked": blob(3, fixed64(3, 5) + fixed64(3, -5)),
    "list_mixed": blob(3, fixed64(3, 5) + blob(3, keys(6, 7)) + blob(3, b"") + fixed64(3, 8)),
    "keys_and_list": blob(3, blob(2, keys(1)) + fixed64(3, 5)),
    "keys_twice": blob(3, blob(2, keys(1, 2)) + blob(2, keys(3))),
    "keys_odd": blob(3, blob(2, b"1234567")),
    "list_odd": blob(3, blob(3, b"1234567")),
    "last_wins": blob(1, b"a") + blob(1, b"b") + num(4, 1) + num(4, 3) + num(2, 9) + num(2, 0),
    "pooling": blob(3, num(5, 2)),
    "pooling_undone": blob(3, num(5, 2) + num(5, 0)),
    "pooling_unknown": blob(3, num(5, 77)),
    "offsets": blob(3, blob(4, b"\0\0\0\0")),
    "weights": blob(3, blob(6, b"\0\0\0\0")),
    "offsets_undone": blob(3, blob(4, b"\0\0\0\0") + blob(4, b"")),
    "staleness": num(10, 5),
    "consistency_unit": num(11, 2),
    "enum_negative": num(4, -1),
    "enum_beyond_32_bits": num(4, 1 << 32),
    "enum_wide_but_good": num(7, (1 << 40) | 2),
    "bool_wide": num(8, 1 << 35),
    "version_negative": num(2, -1),
    "unknown_fields": num(127, 5) + blob(12, b"reserved") + varint(13 << 3 | 5) + b"1234" +
                      fixed64(15, 3) + blob(3, num(9, 1)),
    "group": varint(1 << 3 | 3) + varint(1 << 3 | 4),
    "field_zero": num(0, 1),
    "model_as_varint": num(1, 5),
    "queries_as_fixed32": varint(3 << 3 | 5) + b"1234",
    "version_as_bytes": blob(2, b"\1"),
    "nul_in_model": blob(1, b"a\0b"),
    "id_too_long": blob(9, b"x" * 129),
    "cut_tag": b"\x80",
    "cut_varint": b"\x10\xff\xff",
    "cut_length": b"\x0a",
    "cut_bytes": b"\x0a\x05ab",
    "cut_query": b"\x1a\x03\x12\x08\x01",
    "length_huge": b"\x0a\xff\xff\xff\xff\x0f",
    "length_beyond_32_bits": b"\x0a\xff\xff\xff\xff\x7f",
    "varint_11_bytes": b"\x10" + b"\x80" * 10 + b"\x01",
    "varint_65_bits": b"\x10" + b"\x80" * 9 + b"\x02",
    "varint_padded": b"\x10\x81\x80\x80\x00",
    "tag_padded": b"\x90\x80\x00\x05",
    "tag_6_bytes": b"\x90\x80\x80\x80\x80\x00\x05",
    "tag_beyond_32_bits": b"\x90\x80\x80\x80\x7f\x05",
}


def main():
    default = pathlib.Path(__file__).parent / "corpus" / "request"
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    out.mkdir(parents=True, exist_ok=True)
    for name, data in CASES.items():
        (out / name).write_bytes(data)


if __name__ == "__main__":
    main()
