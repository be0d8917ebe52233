# SPDX-License-Identifier: Apache-2.0
# Rows and a delete for hpsd with a stock Kafka client: publish.py HOST:PORT MODEL TABLE
import sys
import time

import numpy as np
from confluent_kafka import Producer

bootstrap, model, table = sys.argv[1:4]
failed = []
producer = Producer({
    "bootstrap.servers": bootstrap,
    "enable.idempotence": True,       # each record once, in order
    "partitioner": "murmur2_random",  # where Java clients and hps-publish put a key: one partition, one order
})


def publish(key, row):
    producer.produce(
        f"hps_et.{model}.{table}",
        key=int(key).to_bytes(8, "little", signed=True),
        value=None if row is None else np.asarray(row, dtype="<f4").tobytes(),  # null deletes the key
        timestamp=int(time.time() * 1000),  # the event time, from which hpsd measures freshness
        on_delivery=lambda error, _: error and failed.append(error))
    producer.poll(0)


for key in range(100):
    publish(key, [key, 0.5])  # as many values as the table has
publish(7, None)
if producer.flush(30) or failed:
    sys.exit(f"not published: {failed[:1] or 'no answer'}")
print("published 100 rows and 1 delete")
