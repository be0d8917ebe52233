# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/clients.md, with the tools of each language that this machine has."""
import os
import shutil
import subprocess

import numpy as np
import pytest

import documents
from rig import Daemon, ROOT, scratch

PAGE = "docs/clients.md"


@pytest.fixture(name="place")
def daemon_and_directory():
    rows = np.random.default_rng(1).random((100, 16), np.float32)
    with scratch() as work:
        np.save(f"{work}/items.npy", rows)
        os.symlink(os.path.join(ROOT, "proto"), f"{work}/proto")
        with Daemon(work, flags=["--table", f"items={work}/items.npy"]) as one:
            yield one.grpc[0], work, f"3 16 {rows[0, 0]:.5f}"


def run(command, work):
    path = f"{work}/bin:{os.environ['PATH']}"
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=work, capture_output=True, text=True, timeout=400,
                          check=False, env={**os.environ, "GOBIN": f"{work}/bin", "PATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("tools, setup, begins, file, command", [
    (("npm", "node"), "npm install", "const grpc", "example.js", "node example.js"),
    (("go", "protoc"), "go install", "package main", "main.go", "go run ."),
], ids=["node", "go"])
def test_example_when_run_as_shown_then_it_prints_the_row(place, tools, setup, begins, file, command):
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not installed")
    address, work, expected = place
    run(documents.block(PAGE, setup).code, work)
    with open(f"{work}/{file}", "w", encoding="utf-8") as f:
        f.write(documents.at(documents.block(PAGE, begins).code, address))
    count, dim, value = run(command, work).split()
    assert f"{count} {dim} {float(value):.5f}" == expected
