# SPDX-License-Identifier: Apache-2.0
"""Measures how fresh lookups are: writes a row to Kafka, looks it up until it is visible, and repeats that.

usage: freshness.py HOST:PORT ADDRESS MODEL TABLE DIM SECONDS: the broker, then hpsd. Stock clients, no code of hpsd.
The key, 2^62, must not be in the table. It is deleted at the end.
"""
import struct
import sys
import time

import grpc
import numpy as np
from confluent_kafka import Producer
from hps.v1 import lookup_pb2 as pb

KEY = 2**62
PATIENCE_S = 60


def main():
    bootstrap, address, model, table, dim, seconds = sys.argv[1:]
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random", "linger.ms": 0})
    request = pb.LookupRequest(model=model, queries=[pb.TableQuery(table=table, keys=struct.pack("<q", KEY))])
    times_ms = []
    with grpc.insecure_channel(address) as channel:
        lookup = channel.unary_unary("/hps.v1.ParameterServer/Lookup",
                                     pb.LookupRequest.SerializeToString, pb.LookupResponse.FromString)
        end = time.monotonic() + float(seconds)
        while time.monotonic() < end:
            row = np.full(int(dim), len(times_ms) + 1, "<f4").tobytes()
            begun = time.monotonic()
            producer.produce(f"hps_et.{model}.{table}", key=struct.pack("<q", KEY), value=row)
            while lookup(request, timeout=30).results[0].rows != row:
                producer.poll(0)
                if time.monotonic() > begun + PATIENCE_S:
                    sys.exit(f"a row that was written {PATIENCE_S} s ago is not there")
            times_ms.append(1e3 * (time.monotonic() - begun))
    producer.produce(f"hps_et.{model}.{table}", key=struct.pack("<q", KEY), value=None)
    producer.flush(30)
    p50, p90, p99 = np.percentile(times_ms, [50, 90, 99])
    print(f"written until looked up: p50 {p50:.0f} ms, p90 {p90:.0f} ms, p99 {p99:.0f} ms, "
          f"longest {max(times_ms):.0f} ms, of {len(times_ms)} rows")


if __name__ == "__main__":
    main()
