# SPDX-License-Identifier: Apache-2.0
"""torch's index_select on a GPU, asked by lines on stdin (torch.h has the other side).

`case ROW_BYTES N_ROWS N ALPHA` makes a table of float32 and N row numbers (uniform for alpha 0, else by
Zipf's law), answered by `ready`, or `none` where memory does not suffice; `run` gathers and answers the
microseconds of one gather. Says `ready` once torch sees a device.
"""
import sys

RUNS = 4


def make_ids(torch, n_rows, n, alpha):
    uniform = torch.rand(n, device="cuda", dtype=torch.float64)
    if alpha == 0:
        ranks = uniform * n_rows
    elif alpha == 1:
        ranks = torch.exp(uniform * torch.log(torch.tensor(float(n_rows)))) - 1
    else:  # the continuous law, by its inverse
        power = 1 - alpha
        ranks = (1 + uniform * (n_rows ** power - 1)) ** (1 / power) - 1
    ids = ranks.long().clamp_(0, n_rows - 1)
    step = 2654435761  # prime: popular rows are no neighbours
    return ids if alpha == 0 else ids * step % n_rows


def main():
    try:
        import torch
    except ImportError as error:
        sys.exit(f"without torch: {error}")
    if not torch.cuda.is_available():
        sys.exit("without torch: it sees no device")
    table = ids = out = None
    print("ready", flush=True)
    for line in sys.stdin:
        words = line.split()
        if words[0] == "case":
            table = ids = out = None
            torch.cuda.empty_cache()
            row_bytes, n_rows, n, alpha = int(words[1]), int(words[2]), int(words[3]), float(words[4])
            try:
                table = torch.empty(n_rows, row_bytes // 4, device="cuda")
                ids = [make_ids(torch, n_rows, n, alpha) for _ in range(2)]
                out = torch.empty(n, row_bytes // 4, device="cuda")
                torch.index_select(table, 0, ids[0], out=out)
                torch.cuda.synchronize()
            except torch.OutOfMemoryError as error:
                print(error, file=sys.stderr)
                print("none", flush=True)
                continue
            print("ready", flush=True)
        elif words[0] == "run":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for i in range(RUNS):
                torch.index_select(table, 0, ids[i % 2], out=out)
            end.record()
            end.synchronize()
            print(1000 * begin.elapsed_time(end) / RUNS, flush=True)


if __name__ == "__main__":
    main()
