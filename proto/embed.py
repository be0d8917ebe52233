# SPDX-License-Identifier: Apache-2.0
"""Writes a file's bytes as a C array: embed.py IN OUT."""
import sys

data = open(sys.argv[1], "rb").read()
with open(sys.argv[2], "w", encoding="ascii") as out:
    out.write('#include "proto/descriptors.h"\n\nconst unsigned char hps_descriptors[] = {\n')
    for start in range(0, len(data), 16):
        out.write("    " + ",".join(str(b) for b in data[start:start + 16]) + ",\n")
    out.write("};\nconst unsigned long hps_descriptors_size = sizeof(hps_descriptors);\n")
