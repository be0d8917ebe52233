# SPDX-License-Identifier: Apache-2.0
"""Shows the effect of the hit-rate threshold with stock grpcio. It looks up skewed keys repeatedly while the embedding
cache fills, and compares every row that the reply marks as true with the files of hps-gen.

The counts are keys; the count of the gpu tier is different keys.
usage: threshold.py ADDRESS MODEL DIR, where DIR is the directory that hps-gen wrote (its manifest.json is read).
"""
import json
import os
import sys
import time

import grpc
import numpy as np
from hps.v1 import lookup_pb2 as pb

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "lib"))
import hpsgen  # noqa: E402  the generator's formula, written again in NumPy

KEYS, POOL, LARGE, ROUNDS, SHOWN = 256, 400, 10000, 40, (1, 2, 3, 4, 6, 10, 20, 40)
FOUND = pb.KEY_STATUS_FOUND


def main():
    address, model, directory = sys.argv[1:4]
    with open(os.path.join(directory, "manifest.json"), encoding="utf-8") as f:
        tables = [(number, t) for number, t in enumerate(json.load(f)["tables"]) if t["rows"] >= LARGE]
    rng = np.random.default_rng(1)
    pools = [rng.integers(0, t["rows"], POOL, dtype="<i8") for _, t in tables]
    print(f"{'lookup':>8}{'true rows':>12}{'of them from':>16}{'default rows':>16}{'ms':>8}")
    print(f"{'':>8}{'':>12}{'the gpu tier':>16}{'for now':>16}")
    with grpc.insecure_channel(address, [("grpc.max_receive_message_length", -1)]) as channel:
        lookup = channel.unary_unary("/hps.v1.ParameterServer/Lookup",
                                     pb.LookupRequest.SerializeToString, pb.LookupResponse.FromString)
        for number in range(1, ROUNDS + 1):
            keys = [pool[(POOL * rng.random(KEYS) ** 3).astype(int)] for pool in pools]
            request = pb.LookupRequest(model=model, miss_policy=pb.MISS_POLICY_THRESHOLD, queries=[
                pb.TableQuery(table=t["name"], keys=k.tobytes()) for (_, t), k in zip(tables, keys)])
            start = time.perf_counter()
            answer = lookup(request, timeout=30)
            took_ms = 1e3 * (time.perf_counter() - start)
            n_true = n_gpu = n_default = 0
            for (index, table), wanted, result in zip(tables, keys, answer.results):
                status = np.frombuffer(result.key_status, "u1")
                true = status == FOUND if len(status) else np.ones(len(wanted), bool)
                rows = np.frombuffer(result.rows, "<f4").reshape(result.row_count, result.dim)
                if not np.array_equal(rows[true], hpsgen.rows(1, index, wanted[true], table["dim"])):
                    sys.exit(f"{table['name']}: a row that is said to be true is wrong")
                n_true += int(true.sum())
                n_default += result.defaulted_key_count
                n_gpu += sum(t.found_keys for t in result.tier_counts if t.tier == "gpu")
            if number in SHOWN:
                print(f"{number:>8}{n_true:>12}{n_gpu:>16}{n_default:>16}{took_ms:>8.1f}")
    print("Every row that is said to be true is bit-exact.")


if __name__ == "__main__":
    main()
