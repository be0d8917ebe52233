# SPDX-License-Identifier: Apache-2.0
"""The Python client as pip installs it, from an index, into environments of each Python that is here; one lookup in each.

usage: install.py DIRECTORY   (for environments; HPS_BIN_DIR: where hpsd is; tests/e2e and tests/lib on PYTHONPATH)

Pythons are those in PATH and pyenv's. One that is missing is a line SKIP. With the Python that runs this, also one lookup with each
major version of protobuf that the package allows.
"""
import glob
import os
import shutil
import subprocess
import sys

import numpy as np

import documents
from rig import Daemon, Table, default_config, model_config, scratch

PYTHONS = [f"3.{minor}" for minor in range(9, 14)]
PROTOBUFS = ["3.20", "4", "5", "6", "7"]
VERSIONS = ("import importlib.metadata as m; print(*(f'{name} {m.version(name)}' for name in ('grpcio', 'protobuf', 'numpy')), "
            "sep=', ')")


class Failed(Exception):
    """The output of a program that failed."""


def run(*command):
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=alone)
    if done.returncode != 0:
        raise Failed((done.stdout + done.stderr)[-2000:])
    return done.stdout + done.stderr


def find(version):
    for path in (shutil.which(f"/usr/bin/python{version}"), shutil.which(f"python{version}"), *glob.glob(os.path.expanduser(f"~/.pyenv/versions/{version}.*/bin/python"))):
        if path and subprocess.run([path, "-c", "import venv"], capture_output=True, check=False).returncode == 0:
            return path
    return None


def install(python, directory):
    """A virtual environment's Python that has the package of a copy, as setuptools builds where the source is."""
    package = f"{directory}/clients/python"
    shutil.copytree(f"{documents.ROOT}/clients/python", package,
                    ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__", "lookup.binpb"))
    shutil.copytree(f"{documents.ROOT}/proto/hps", f"{directory}/proto/hps")
    run(python, "-m", "venv", f"{directory}/venv")
    inside = f"{directory}/venv/bin/python"
    said = run(inside, "-m", "pip", "install", "-v", "--no-compile", package)
    if "SetuptoolsDeprecationWarning" in said:
        raise Failed(said[said.index("SetuptoolsDeprecationWarning"):].split("\n")[0])
    return inside


def replace(inside, version):
    """The same Python, which has another protobuf."""
    run(inside, "-m", "pip", "install", "--no-deps", f"protobuf=={version}.*")
    run(inside, "-m", "pip", "check")
    return inside


def do_lookup(inside, address, rows):
    code = documents.at(documents.python_pages()["README"][1], address)
    said = run(inside, "-c", code)
    if said != f"{rows}\n":
        raise Failed(f"expected {rows}, got {said}")
    return run(inside, "-c", VERSIONS).strip()


def main():
    directory, = sys.argv[1:]
    shutil.rmtree(directory, ignore_errors=True)
    keys = np.arange(100, dtype="<i8")
    table = Table("items", keys, np.arange(1600, dtype="<f4").reshape(100, 16) / 8)
    with scratch() as work, Daemon(work, default_config([model_config("default", [table.save(work)], [16], ["items"])])) as daemon:
        def case(name, prepare, *args):
            try:
                print(f"PASS pip_{name}: {do_lookup(prepare(*args), daemon.grpc[0], table.rows[:3])}", flush=True)
            except (Failed, OSError, subprocess.TimeoutExpired) as error:
                print(f"FAIL pip_{name}: {error}", flush=True)

        for version in PYTHONS:
            python = find(version)
            if python is None:
                print(f"SKIP pip_python{version}: there is no such Python here", flush=True)
            else:
                case(f"python{version}", install, python, f"{directory}/{version}")
        inside = "{}/{}.{}/venv/bin/python".format(directory, *sys.version_info)
        for version in PROTOBUFS:
            case(f"protobuf{version}", replace, inside, version)
    shutil.rmtree(directory)


if __name__ == "__main__":
    main()
