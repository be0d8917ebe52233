# SPDX-License-Identifier: Apache-2.0
"""torch's index_select and EmbeddingBag, measured for torch.c: torch_gather.py DEVICE.

Prints `ready` once torch has the device, cuda or cpu. `case ROW_BYTES N_ROWS N ALPHA BAG` makes a float32
table and N row numbers (uniform for alpha 0, else by Zipf's law), and prints `ready`, or `none` if memory
does not suffice. `run` gathers these rows or, with BAG above 0, pools each BAG of them. It prints the
microseconds of one run.
"""
import sys
import time

RUNS = 4


def make_ids(torch, device, n_rows, n, alpha):
    uniform = torch.rand(n, device=device, dtype=torch.float64)
    if alpha == 0:
        ranks = uniform * n_rows
    else:  # inverse of the continuous distribution
        power = 1 - alpha
        ranks = (1 + uniform * (n_rows ** power - 1)) ** (1 / power) - 1
    ids = ranks.long().clamp_(0, n_rows - 1)
    step = 2654435761  # prime: separates popular rows
    return ids if alpha == 0 else ids * step % n_rows


def make_case(torch, device, row_bytes, n_rows, n, alpha, bag):
    """A function that gathers or adds: batch i."""
    table = torch.empty(n_rows, row_bytes // 4, device=device).normal_()
    ids = [make_ids(torch, device, n_rows, n, alpha) for _ in range(2)]
    if bag > 0:
        offsets = torch.arange(0, n, bag, device=device)
        return lambda i: torch.nn.functional.embedding_bag(ids[i % 2], table, offsets, mode="sum")
    out = torch.empty(n, row_bytes // 4, device=device)
    return lambda i: torch.index_select(table, 0, ids[i % 2], out=out)


def main():
    device = sys.argv[1]
    try:
        import torch
    except ImportError as error:
        sys.exit(f"without torch: {error}")
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit("without torch: it sees no device")
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    run = None
    print("ready", flush=True)
    for line in sys.stdin:
        words = line.split()
        if words[0] == "case":
            run = None
            if device == "cuda":
                torch.cuda.empty_cache()
            try:
                row_bytes, n_rows, n, bag = (int(words[i]) for i in (1, 2, 3, 5))
                run = make_case(torch, device, row_bytes, n_rows, n, float(words[4]), bag)
                run(0)
                wait()
            except torch.OutOfMemoryError as error:
                print(error, file=sys.stderr)
            print("none" if run is None else "ready", flush=True)
        elif words[0] == "run":
            began = time.perf_counter()
            for i in range(RUNS):
                run(i)
            wait()
            print(1e6 * (time.perf_counter() - began) / RUNS, flush=True)


if __name__ == "__main__":
    main()
