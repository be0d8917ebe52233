#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What narrow rows cost a recommender: hit rate at 10 of one trained model, its rows stored as each type.

Clicks are drawn from a truth that is known: users and items have hidden vectors, items a popularity, and of each user
some clicks are held back. A factorisation (implicit ALS) is trained with numpy on the rest. Its two tables are then
loaded into one hpsd five times, each time converted at load to another type (`row_dtype`), and every score is computed
from rows that a stock client has looked up. A held-back click is a hit if fewer than ten items that the user has not
clicked score higher. The same clicks are judged for every type, so the differences are those of the rows alone.

    ./dev bench quality [--users 4000 --items 8000 --dim 64 --seed 1]
"""
import argparse
import json
import os
import sys
import tempfile

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(ROOT, "tests", "e2e"), os.path.join(ROOT, "tests", "lib")]
os.environ.pop("HPS_DEVICE", None)  # rows of the tiers in host memory
import dtypes  # noqa: E402
from rig import FP32, Daemon, Table, default_config, key_bytes, model_config, pb  # noqa: E402

TRUTH_DIM, TRUTH_SCALE = 16, 20.0  # how sharp a user's taste is
KEPT, HELD = 50, 5  # clicks of each user: to train on, and to be judged by
TOP = 10
ROUNDS, LAMBDA, ALPHA = 8, 8.0, 20.0  # of the training
BLOCK = 500  # users at a time
POINTS_MAX = {dtypes.FP16: 0.1, dtypes.BF16: None, dtypes.INT8_F32: 0.5, dtypes.INT8_F16: 0.5}


# ---- clicks ------------------------------------------------------------------------------------------

def truth(rng, n_users, n_items):
    """Hidden vectors of users and items, and how popular each item is."""
    users = rng.normal(size=(n_users, TRUTH_DIM)).astype("f4")
    items = rng.normal(size=(n_items, TRUTH_DIM)).astype("f4")
    for side in (users, items):
        side /= np.linalg.norm(side, axis=1, keepdims=True)
    return users, items, np.log(1 / np.arange(1, n_items + 1, dtype="f4") ** 0.5)[rng.permutation(n_items)]


def draw_clicks(rng, users, items, popularity):
    """Items [users, KEPT + HELD] that each user clicks, all different, in no order."""
    drawn = []
    for at in range(0, len(users), BLOCK):
        wish = TRUTH_SCALE * users[at:at + BLOCK] @ items.T + popularity
        wish += rng.gumbel(size=wish.shape)  # the largest are then a draw by the softmax
        drawn.append(np.argpartition(-wish, KEPT + HELD, axis=1)[:, :KEPT + HELD])
    return rng.permuted(np.vstack(drawn), axis=1)


# ---- the model ---------------------------------------------------------------------------------------

def solve_side(other, starts, clicked):
    """Vectors of one side by least squares: that of row i has clicked[starts[i]:starts[i + 1]] of the other."""
    dim = other.shape[1]
    common = other.T @ other + LAMBDA * np.eye(dim, dtype="f4")
    left, right = np.empty((len(starts) - 1, dim, dim), "f4"), np.empty((len(starts) - 1, dim), "f4")
    for i, (begin, end) in enumerate(zip(starts, starts[1:])):
        mine = other[clicked[begin:end]]
        left[i] = common + ALPHA * (mine.T @ mine)
        right[i] = (1 + ALPHA) * mine.sum(0)
    return np.linalg.solve(left, right[:, :, None])[:, :, 0]


def trained(rng, kept, n_items, dim):
    """Tables of users and items, float32."""
    n_users = len(kept)
    by_item = np.argsort(kept.ravel(), kind="stable")
    item_starts = np.searchsorted(kept.ravel()[by_item], np.arange(n_items + 1))
    items = (rng.normal(size=(n_items, dim)) / dim).astype("f4")
    users = None
    for _ in range(ROUNDS):
        users = solve_side(items, np.arange(n_users + 1) * KEPT, kept.ravel())
        items = solve_side(users, item_starts, by_item // KEPT)
    return users, items


def hit_rate(users, items, kept, held, bias=0):
    """Share of the held-back clicks that are among a user's first ten, in percent."""
    hits = 0
    for at in range(0, len(users), BLOCK):
        scores = users[at:at + BLOCK] @ items.T + bias
        np.put_along_axis(scores, kept[at:at + BLOCK], -np.inf, axis=1)
        mine = np.take_along_axis(scores, held[at:at + BLOCK], axis=1)
        for column in mine.T:
            hits += int(((scores > column[:, None]).sum(1) < TOP).sum())
    return 100 * hits / held.size


# ---- through a daemon --------------------------------------------------------------------------------

def serve(work, tables):
    """A daemon with a model for each type, all of the same files."""
    paths = [table.save(work) for table in tables]
    names, dims = [table.name for table in tables], [table.dim for table in tables]
    return Daemon(work, default_config([model_config(name, paths, dims, names, row_dtype=name)
                                        for name in dtypes.NAMES.values()], durable=False))


def looked_up(stub, model, tables):
    """float32 rows of all keys of each table, in the order of its files."""
    queries = [pb.TableQuery(table=table.name, keys=key_bytes(table.keys)) for table in tables]
    reply = stub.Lookup(pb.LookupRequest(model=model, queries=queries, output_type=FP32), timeout=120)
    for result in reply.results:
        assert result.unknown_key_count == result.defaulted_key_count == 0
    return [np.frombuffer(result.rows, "<f4").reshape(-1, table.dim) for result, table in zip(reply.results, tables)]


def tier_row_bytes(metrics, model):
    """What a row takes of the host tier, all included."""
    labels = f'{{model="{model}",version="1",tier="host"}}'
    return metrics[f"hpsd_tier_used_bytes{labels}"] / metrics[f"hpsd_tier_rows{labels}"]


class Report:
    """Lines like those of the other benchmarks: a table, and a file of JSON."""

    def __init__(self, path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self.file = open(path, "w", encoding="utf-8")
        self.missed = 0
        print(f"{'BENCH':<11} {'CASE':<34} {'METRIC':<24} {'VALUE':>12} {'UNIT':<8} TARGET")

    def add(self, case, metric, value, unit, at_most=None):
        line = {"bench": "quality", "case": case, "metric": metric, "value": float(f"{value:.6g}"), "unit": unit}
        target = ""
        if at_most is not None:
            line.update(target=at_most, met=bool(value <= at_most))
            target = f"<= {at_most:g} {'met' if line['met'] else 'MISSED'}"
            self.missed += not line["met"]
        print(f"{'quality':<11} {case:<34} {metric:<24} {value:>12.4g} {unit:<8} {target}", flush=True)
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()


def main():
    parse = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parse.add_argument("--users", type=int, default=4000)
    parse.add_argument("--items", type=int, default=8000)
    parse.add_argument("--dim", type=int, default=64)
    parse.add_argument("--seed", type=int, default=1)
    args = parse.parse_args()
    report = Report(os.path.join(ROOT, "build", "bench", "quality.jsonl"))
    rng = np.random.default_rng(args.seed)
    true_users, true_items, popularity = truth(rng, args.users, args.items)
    clicks = draw_clicks(rng, true_users, true_items, popularity)
    kept, held = clicks[:, :KEPT], clicks[:, KEPT:]
    report.add("the truth itself", "hit rate at 10", hit_rate(TRUTH_SCALE * true_users, true_items, kept, held, popularity), "%")
    report.add("the most popular", "hit rate at 10", hit_rate(0 * true_users, true_items, kept, held,
                                                              np.bincount(kept.ravel(), minlength=args.items)), "%")
    tables = [Table(name, np.arange(len(rows)), np.ascontiguousarray(rows, "<f4"))
              for name, rows in zip(("users", "items"), trained(rng, kept, args.items, args.dim))]
    with tempfile.TemporaryDirectory(prefix="hps-quality-") as work, serve(work, tables) as daemon:
        stub, base = daemon.stub(), None
        for dtype, name in dtypes.NAMES.items():
            users, items = looked_up(stub, name, tables)
            rate = hit_rate(users, items, kept, held)
            base = rate if base is None else base
            error = max(float(np.abs(got - table.rows).max()) for got, table in zip((users, items), tables))
            report.add(name, "hit rate at 10", rate, "%")
            report.add(name, "difference from fp32", abs(rate - base), "points", POINTS_MAX.get(dtype))
            report.add(name, "largest error of a value", error, "")
            report.add(name, "bytes a row of host tier", tier_row_bytes(daemon.metrics(), name), "B")
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
