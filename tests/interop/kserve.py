# SPDX-License-Identifier: Apache-2.0
"""A model of hps-gen's formula, served, and what clients of KServe v2 in other languages make of it.

usage: kserve.py DIRECTORY PROGRAM...   (HPS_BIN_DIR: where hpsd is; tests/e2e and tests/lib on PYTHONPATH)

PROGRAM gets ADDRESS and DIRECTORY, in which there are `keys` (int64), `counts` (int32) and `rows` (float32): what to
ask for, table by table, and what is to come back, by the formula and not by hpsd. It prints a line for each case.
"""
import os
import subprocess
import sys

import numpy as np

import hpsgen
from rig import Daemon, default_config, generate, model_config, scratch

TABLES, DIM, ROWS = 3, 16, 5000


def ask_and_expect(directory):
    """Keys that there are, of the last table none; the most that a client takes by default are 4 MiB."""
    rng = np.random.default_rng(9)
    keys = [rng.integers(0, ROWS, n) for n in (9000, 4000, 0)]
    rows = [hpsgen.rows(1, table, of_table, DIM) for table, of_table in enumerate(keys)]
    np.concatenate(keys).astype("<i8").tofile(f"{directory}/keys")
    np.array([len(of_table) for of_table in keys], "<i4").tofile(f"{directory}/counts")
    np.concatenate(rows).astype("<f4").tofile(f"{directory}/rows")


def main():
    directory, *program = sys.argv[1:]
    os.makedirs(directory, exist_ok=True)
    ask_and_expect(directory)
    with scratch() as work:
        generate(f"{work}/m", "--tables", TABLES, "--rows", ROWS, "--dim", DIM, "--format", "npy")
        names = [f"feature_{number}" for number in range(TABLES)]
        paths = [f"{work}/m/{name}.npy" for name in names]
        with Daemon(work, default_config([model_config("m", paths, [DIM] * TABLES, names)])) as daemon:
            return subprocess.run([*program, daemon.grpc[0], directory], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
