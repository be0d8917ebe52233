#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the corpora of fuzz_request and fuzz_lookup_reply: messages, good and bad, one file each."""
import pathlib
import struct
import sys

from make_corpus import blob, num, varint


def fixed64(field, value):
    return varint(field << 3 | 1) + struct.pack("<q", value)


def keys(*values):
    return struct.pack(f"<{len(values)}q", *values)


def offsets(*values):
    return blob(4, struct.pack(f"<{len(values)}I", *values))


def weights(*values):
    return blob(6, struct.pack(f"<{len(values)}f", *values))


def bags(*ends, pooling=2, n=None, more=b""):
    """A query of as many keys as the last bag ends with, or `n`."""
    n = ends[-1] if n is None else n
    return blob(3, blob(1, b"t") + blob(2, keys(*range(n))) + offsets(0, *ends) + num(5, pooling) + more)


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
    "bags": bags(2, 2, 5, pooling=5, more=weights(1, -2, 0.5, 0, 1e30)),
    "bags_of_a_list": blob(3, fixed64(3, 5) + blob(3, keys(6, 7)) + offsets(0, 1, 3) + num(5, 3)),
    "bags_of_no_keys": bags(0, 0, 0),
    "bags_none": blob(3, offsets(0) + num(5, 4)),
    "bags_most": bags(*[0] * 4096),
    "bags_too_many": bags(*[0] * 4097),
    "bags_begin_late": blob(3, blob(2, keys(1)) + offsets(1, 1) + num(5, 2)),
    "bags_fall": bags(2, 1, 3),
    "bags_end_early": bags(1, 2, n=3),
    "bags_end_late": bags(1, 4, n=3),
    "bags_wrap": bags(2**32 - 1, 3),
    "bags_odd": blob(3, blob(2, keys(1)) + blob(4, b"\0\0\0\0\1") + num(5, 2)),
    "bags_without_pooling": bags(2, pooling=1),
    "weights_few": bags(2, more=weights(1)),
    "weights_odd": bags(2, more=blob(6, b"1234567")),
    "weights_nan": bags(1, more=weights(float("nan"))),
    "raw": blob(3, blob(2, keys(1))) + num(7, 15),
    "raw_pooled": bags(1) + num(7, 15),
    "raw_matrix": num(7, 15) + num(12, 2),
    "int8": num(7, 4),
    "matrix": bags(1, 3) + blob(3, blob(2, keys(1, 2))) + num(12, 2),
    "matrix_uneven": bags(1, 3) + blob(3, blob(2, keys(1))) + num(12, 2),
    "label": blob(13, b"nightly"),
    "label_undone": blob(13, b"nightly") + blob(13, b""),
    "staleness": num(10, 5),
    "consistency_unit": num(11, 2),
    "enum_negative": num(4, -1),
    "enum_beyond_32_bits": num(4, 1 << 32),
    "enum_wide_but_good": num(7, (1 << 40) | 2),
    "bool_wide": num(8, 1 << 35),
    "version_negative": num(2, -1),
    "unknown_fields": num(127, 5) + blob(14, b"reserved") + varint(16 << 3 | 5) + b"1234" +
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


def result(dim, row_count, dtype=1, rows=b"", states=b"", column=0):
    return blob(4, blob(1, b"t") + num(2, dim) + num(3, dtype) + num(4, row_count) +
                (blob(8, states) if states else b"") + blob(9, blob(1, b"host") + num(2, 1)) +
                (num(10, column) if column else b"") + (blob(15, rows) if rows else b""))


REPLIES = {
    "empty": b"",
    "rows": blob(1, b"m") + num(2, 3) + result(2, 2, rows=bytes(16), states=b"\1\3") + num(5, 9),
    "rows_half": result(3, 1, 2, bytes(6)),
    "rows_int8": result(3, 2, 4, bytes(22)),
    "rows_int8_short": result(3, 2, 5, bytes(13)),
    "rows_many": result(1, 2**32 - 1, rows=bytes(4)),
    "rows_wide": result(2**32 - 1, 2**32 - 1, rows=bytes(4)),
    "rows_of_nothing": result(0, 2**32 - 1),
    "type_raw": result(1, 1, 15, bytes(4)),
    "type_unknown": result(1, 1, 7, bytes(4)),
    "bags": result(1, 2, rows=bytes(8), states=b"\1" * 5),
    "states_many": result(1, 2, rows=bytes(8), states=b"\1" * 99),
    "matrix": result(2, 2) + result(1, 2, column=2) + blob(15, bytes(24)),
    "matrix_first": blob(15, bytes(24)) + result(2, 2) + result(1, 2, column=2),
    "matrix_long": result(2, 2) + result(1, 2, column=2) + blob(15, bytes(32)),
    "matrix_odd": result(2, 2) + result(1, 2, column=2) + blob(15, bytes(25)),
    "matrix_overlaps": result(2, 2) + result(2, 2, column=1) + blob(15, bytes(24)),
    "matrix_uneven": result(2, 2) + result(1, 3, column=2) + blob(15, bytes(24)),
    "matrix_of_two_types": result(2, 2) + result(1, 2, 2, column=2) + blob(15, bytes(20)),
    "matrix_of_int8": result(2, 2, 4) + blob(15, bytes(20)),
    "matrix_beside_rows": result(2, 2, rows=bytes(16)) + blob(15, bytes(16)),
    "matrix_of_no_rows": result(2, 0) + blob(15, bytes(16)),
    "cut": result(2, 2, rows=bytes(16))[:-3],
}


def main():
    default = pathlib.Path(__file__).parent / "corpus"
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    for target, cases in {"request": CASES, "lookup_reply": REPLIES}.items():
        (root / target).mkdir(parents=True, exist_ok=True)
        for name, data in cases.items():
            (root / target / name).write_bytes(data)


if __name__ == "__main__":
    main()
