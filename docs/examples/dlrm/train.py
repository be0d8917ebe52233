# SPDX-License-Identifier: Apache-2.0
"""Trains the model on generated clicks, and publishes the rows that it changes to Kafka.

    train.py runs/1                              a new model
    train.py runs/2 --start runs/1 --day 1       continue, with the clicks of another day
    train.py runs/live --start runs/1 --day 1 --publish 127.0.0.1:9092 --version 1
                                                 train only rows, and publish them every second
"""
import argparse
import time

import numpy as np
import torch

from clicks import Clicks, auc
from model import bags, load, new, save, score, sizes_of


class Publisher:
    """Sends changed rows to the topics hps_et.dlrm.TABLE, as records that hpsd applies to one version."""

    def __init__(self, brokers, tables, version):
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient, NewTopic
        admin = AdminClient({"bootstrap.servers": brokers})
        for made in admin.create_topics([NewTopic(f"hps_et.dlrm.{name}", 1) for name in tables]).values():
            if made.exception() and "ALREADY_EXISTS" not in str(made.exception()):
                raise made.exception()
        self.headers = [("hps-version", version.to_bytes(8, "little"))]
        self.producer = Producer({"bootstrap.servers": brokers, "enable.idempotence": True, "partitioner": "murmur2_random"})

    def rows(self, table, keys, rows):
        for key, row in zip(keys, rows):
            self.producer.produce(f"hps_et.dlrm.{table}", key=int(key).to_bytes(8, "little"), value=row.tobytes(),
                                  headers=self.headers)
            self.producer.poll(0)


def train(model, clicks, options, publisher=None):
    embeddings = bags(model)
    rows = [bag.weight for bag in embeddings.values()]
    for bag in embeddings.values():
        bag.sparse = True  # gradients only for the rows of a batch
    others = [weight for name, weight in model.named_parameters() if "_bags" not in name]
    of_rows, of_others = torch.optim.Adagrad(rows, lr=options.rate), torch.optim.Adam(others, lr=1e-3)
    changed = {name: [] for name in embeddings}
    begin = published = shown = time.monotonic()
    losses = []
    for number in range(1, options.batches + 1):
        numbers, keys, clicked = clicks.batch(options.batch)
        logits = score(model, numbers, keys)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(clicked))
        of_rows.zero_grad()
        of_others.zero_grad()
        loss.backward()
        of_rows.step()
        if publisher is None:
            of_others.step()
        losses.append(loss.item())
        for name, of_table in zip(changed, keys.T):
            changed[name].append(of_table)
        now = time.monotonic()
        if publisher is not None and (now > published + 1 or number == options.batches):
            for name, bag in embeddings.items():
                updated = np.unique(np.concatenate(changed[name])) if changed[name] else []
                publisher.rows(name, updated, bag.weight.detach()[updated].numpy())
                changed[name] = []
            published = now
        if publisher is None:
            changed = {name: [] for name in changed}
        if now > shown + 10 or number == options.batches:
            print(f"batch {number} of {options.batches}, loss {np.mean(losses):.4f}, {now - begin:.0f} s", flush=True)
            shown, losses = now, []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="directory for the trained model")
    parser.add_argument("--start", metavar="RUN", help="continue with this model, instead of a new one")
    parser.add_argument("--day", type=int, default=0, help="whose clicks")
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--batch", type=int, default=1024, help="clicks of a batch")
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate of the rows")
    parser.add_argument("--publish", metavar="BROKERS", help="publish changed rows to Kafka; only rows learn")
    parser.add_argument("--version", type=int, default=1, help="of the model in hpsd that gets the published rows")
    parser.add_argument("--rows", type=int, default=20_000, help="rows of each of the 26 tables of a new model")
    parser.add_argument("--width", type=int, default=128, help="values of a row")
    parser.add_argument("--bottom", type=int, nargs="+", default=[512, 256], help="bottom MLP; its last layer has WIDTH units")
    parser.add_argument("--top", type=int, nargs="+", default=[1024, 1024, 512, 256], help="top MLP; its last layer has 1 unit")
    parser.add_argument("--zipf", type=float, default=0, help="draw keys by a Zipf distribution; default: two levels")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.sparse.check_sparse_tensor_invariants.disable()  # else torch warns
    if options.start:
        sizes, model = sizes_of(options.start), load(options.start)
    else:
        sizes = {name: getattr(options, name) for name in ("rows", "width", "bottom", "top", "zipf")}
        model = new(sizes)
    publisher = Publisher(options.publish, bags(model), options.version) if options.publish else None
    train(model, Clicks(sizes["rows"], sizes["zipf"], options.day, seed=1), options, publisher)
    if publisher and publisher.producer.flush(30):
        raise SystemExit("Kafka did not take all rows")
    numbers, keys, clicked = Clicks(sizes["rows"], sizes["zipf"], options.day, seed=2).batch(20_000)
    with torch.no_grad():
        print(f"AUC on clicks of day {options.day}: {auc(score(model.eval(), numbers, keys).numpy(), clicked):.6f}")
    save(model, sizes, options.run)


if __name__ == "__main__":
    main()
