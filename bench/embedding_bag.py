# SPDX-License-Identifier: Apache-2.0
"""torch.nn.EmbeddingBag on one CPU thread, driven by lines on stdin (embedding_bag.h is the other side).

Prints `ready` after importing torch. `case DIM N_ROWS ALPHA` makes a float32 table and batches of row
numbers (uniform for alpha 0, else by Zipf's law), and prints `ready`. `sum` and `mean` pool 512 bags of 32
rows a call for 100 ms of CPU time, and print the nanoseconds of CPU time per row.
"""
import sys
import time

BAGS, KEYS, BATCHES, RUN_NS = 512, 32, 256, 100_000_000  # enough batches that no row is still cached


def make_ids(torch, n_rows, alpha):
    uniform = torch.rand(BATCHES, BAGS * KEYS, dtype=torch.float64)
    if alpha == 0:
        return (uniform * n_rows).long().clamp_(0, n_rows - 1)
    power = 1 - alpha  # inverse of the continuous distribution
    ranks = ((1 + uniform * (n_rows ** power - 1)) ** (1 / power) - 1).long().clamp_(0, n_rows - 1)
    return ranks * 2654435761 % n_rows  # prime: separates popular rows


def main():
    try:
        import torch
    except ImportError as error:
        sys.exit(f"without torch: {error}")
    torch.set_num_threads(1)
    print("ready", flush=True)
    bags = ids = None
    offsets = torch.arange(0, BAGS * KEYS, KEYS)
    at = 0
    for line in sys.stdin:
        words = line.split()
        if words[0] == "case":
            dim, n_rows, alpha = int(words[1]), int(words[2]), float(words[3])
            bags = ids = None
            table = torch.rand(n_rows, dim)
            bags = {mode: torch.nn.EmbeddingBag(n_rows, dim, mode=mode, _weight=table) for mode in ("sum", "mean")}
            ids = make_ids(torch, n_rows, alpha)
            print("ready", flush=True)
            continue
        begin = now = time.thread_time_ns()
        calls = 0
        with torch.no_grad():
            while now - begin < RUN_NS:
                bags[words[0]](ids[at % BATCHES], offsets)
                at += 1
                calls += 1
                now = time.thread_time_ns()
        print((now - begin) / (calls * BAGS * KEYS), flush=True)


if __name__ == "__main__":
    main()
