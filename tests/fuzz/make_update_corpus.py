# SPDX-License-Identifier: Apache-2.0
"""Writes tests/fuzz/corpus/update_record: one record of each kind, good and bad.

First byte, as fuzz_update_record.c reads it: 1 keys of 4 bytes, 2 a key of 8 bytes precedes the value,
4 one of 5, 8 the value is null, the dim (0 unknown) in bits 4 and 5, and how the table stores rows in 6 and 7.
"""
import os
import struct

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus", "update_record")
DIM2, NARROW, KEY, ODD_KEY, NULL = 0x20, 1, 2, 4, 8
DIM3, BF16, INT8_F32, INT8_F16 = 0x30, 0x40, 0x80, 0xc0


def hctr(*pairs, key="q", width=8, magic=b"HCTR"):
    body = b"".join(struct.pack(f"<{key}2f", number, *row) for number, row in pairs)
    return magic + struct.pack("<I", width) + body


TWO = ((1, (1.0, -2.0)), (-7, (0.5, 3.0)))
RECORDS = {
    "hctr_wide": (DIM2, hctr(*TWO)),
    "hctr_narrow": (DIM2 | NARROW, hctr((1, (1.0, -2.0)), (7, (0.5, 3.0)), key="I")),
    "hctr_unknown_dim": (0, hctr(*TWO)),
    "hctr_beacon": (DIM2, hctr(width=0)),
    "hctr_cut_pair": (DIM2, hctr(*TWO)[:-3]),
    "hctr_cut_head": (DIM2, b"HCTR\x08"),
    "hctr_other_width": (DIM2, hctr(*TWO, width=4)),
    "hctr_no_width": (0, hctr(*TWO, width=0)),
    "hctr_huge_width": (0, hctr(*TWO, width=0xffffffff)),
    "hctr_odd_width": (0, hctr(*TWO, width=6)),
    "hctr_with_key": (DIM2 | ODD_KEY, b"12345" + hctr(*TWO)),
    "magic": (DIM2, hctr(*TWO, magic=b"RTCH")),
    "keyed": (DIM2 | KEY, struct.pack("<q2f", -1, 1.0, 2.0)),
    "keyed_delete": (DIM2 | KEY | NULL, struct.pack("<q", 5)),
    "keyed_short": (DIM2 | KEY, struct.pack("<qf", 5, 1.0)),
    "keyed_empty": (DIM2 | KEY, struct.pack("<q", 5)),
    "keyed_unknown_dim": (KEY, struct.pack("<q3f", 5, 1.0, 2.0, 3.0)),
    "keyed_5_bytes": (DIM2 | ODD_KEY, b"12345" + struct.pack("<2f", 1.0, 2.0)),
    "keyed_bf16": (DIM3 | KEY | BF16, struct.pack("<q3H", 5, 1, 2, 3)),
    "keyed_int8_f32": (DIM3 | KEY | INT8_F32, struct.pack("<q3B2f", 5, 1, 2, 3, 0.5, -1.0)),
    "keyed_int8_f16": (DIM3 | KEY | INT8_F16, struct.pack("<q3B2e", 5, 1, 2, 3, 0.5, -1.0)),
    "keyed_int8_wide": (DIM3 | KEY | INT8_F16, struct.pack("<q3f", 5, 1.0, 2.0, 3.0)),
    "keyed_int8_other": (DIM3 | KEY | INT8_F16, struct.pack("<q3B2f", 5, 1, 2, 3, 0.5, -1.0)),
    "hctr_int8": (DIM2 | INT8_F32, hctr(*TWO)),
    "nothing": (DIM2 | NULL, b""),
    "empty": (DIM2, b""),
    "packed": (DIM2, b"HPS1\x01\0\0\0\x08\x07\x10\x01"),
    "packed_newer": (DIM2, b"HPS1\x02\0\0\0"),
    "packed_cut": (DIM2, b"HPS1\x01\0"),
}


def main():
    os.makedirs(OUT, exist_ok=True)
    for name, (mode, data) in RECORDS.items():
        with open(os.path.join(OUT, name), "wb") as f:
            f.write(bytes([mode]) + data)


if __name__ == "__main__":
    main()
