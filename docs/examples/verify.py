# SPDX-License-Identifier: Apache-2.0
"""Looks up random keys of every table of a model with stock grpcio, and compares each row with the files of hps-gen. Any
row type.

usage: verify.py ADDRESS MODEL DIR [SEED], where DIR is the directory that hps-gen wrote (its manifest.json is read)
with --seed SEED (1).
"""
import json
import os
import random
import sys

import grpc
import numpy as np
from hps.v1 import lookup_pb2 as pb

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "lib"))
import hpsgen  # noqa: E402  the generator's formula, written again in NumPy

KEYS = 256


def main():
    address, model, directory = sys.argv[1:4]
    seed = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    with open(os.path.join(directory, "manifest.json"), encoding="utf-8") as f:
        tables = json.load(f)["tables"]
    random.seed(1)
    keys = [np.array(random.choices(range(t["rows"]), k=KEYS), dtype="<i8") for t in tables]
    queries = [pb.TableQuery(table=t["name"], keys=k.tobytes()) for t, k in zip(tables, keys)]
    with grpc.insecure_channel(address, [("grpc.max_receive_message_length", -1)]) as channel:
        lookup = channel.unary_unary("/hps.v1.ParameterServer/Lookup",
                                     pb.LookupRequest.SerializeToString, pb.LookupResponse.FromString)
        answer = lookup(pb.LookupRequest(model=model, queries=queries), timeout=30)
    for number, (table, wanted, result) in enumerate(zip(tables, keys, answer.results)):
        rows = np.frombuffer(result.rows, "<f4").reshape(result.row_count, result.dim)
        if not np.array_equal(rows, hpsgen.served(hpsgen.rows(seed, number, wanted, table["dim"]), table["dtype"])):
            sys.exit(f"{table['name']}: a row is wrong")
    print(f"{len(answer.results)} tables x {KEYS} random keys: every row is bit-exact")


if __name__ == "__main__":
    main()
