# SPDX-License-Identifier: Apache-2.0
"""The package as others get it: its types, what pip makes of it, and the code of the documents."""
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

import documents
from documents import ROOT
from rig import BIN

PACKAGE = os.path.join(ROOT, "clients", "python")
VERSION = re.search(r"^hpsd (\S+) ", subprocess.run([f"{BIN}/hpsd", "--version"], capture_output=True, text=True, check=True).stdout)[1]


def run(*args, **how):
    done = subprocess.run(args, capture_output=True, text=True, timeout=240, check=False, **how)
    assert done.returncode == 0, f"{args}\n{done.stdout}{done.stderr}"
    return done.stdout


def copied(work):
    """The path of a copy of the package, with the protocol file but without its descriptor; setuptools builds where the source is."""
    package = os.path.join(work, "clients", "python")
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info", "lookup.binpb"))
    shutil.copytree(os.path.join(ROOT, "proto", "hps"), os.path.join(work, "proto", "hps"))
    return package


# ---- types -------------------------------------------------------------------------------------------

def test_types_when_checked_then_neither_the_package_nor_the_examples_have_an_error(work):
    for name, blocks in documents.python_pages().items():
        with open(os.path.join(work, f"{name}.py"), "w", encoding="utf-8") as f:
            f.write("\n".join(blocks))
    files = sorted(os.path.join(work, name) for name in os.listdir(work) if name.endswith(".py"))
    assert len(files) >= 4
    run(sys.executable, "-m", "mypy", "--config-file", os.path.join(PACKAGE, "pyproject.toml"), "--cache-dir", f"{work}/cache",
        os.path.join(PACKAGE, "hpsd"), *files, env={**os.environ, "MYPYPATH": PACKAGE})


# ---- the code of the documents -----------------------------------------------------------------------

@pytest.mark.parametrize("name", [name for name in documents.python_pages() if "torch" not in name and "tensorflow" not in name])
def test_document_when_its_code_is_run_then_it_works(name, two_tables, work):
    documents.run_page(name, two_tables.grpc[0], work)


# ---- pip ---------------------------------------------------------------------------------------------

def test_install_when_as_shown_and_without_network_then_the_first_lookup_works(work, two_tables):
    """apt-get would need the network: ./dev has what it names."""
    apt, path, pip = documents.block("docs/python.md", "apt-get").code.splitlines()
    index_line = documents.block("docs/python.md", "pip install clients").code.split("#")[0].strip()
    assert set(apt.split()[2:]) <= set(documents.read("dev").split()) and path == "export PYTHONPATH=$PWD/clients/python"
    copied(work)
    run("/usr/bin/python3", "-m", "venv", "--system-site-packages", os.path.join(work, "venv"))
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for readme in (documents.read("README.md"), documents.read("clients/python/README.md")):
        assert f"`{index_line}`" in readme
    offline = ["unshare", "--user", "--net"]
    if subprocess.run([*offline, "true"], capture_output=True, check=False).returncode != 0:
        offline = []
    run(*offline, "bash", "-euc", f". venv/bin/activate; {pip}", cwd=work, env=alone)
    python = os.path.join(work, "venv", "bin", "python")
    out = run(python, "-c", documents.at(documents.python_pages()["README"][1], two_tables.grpc[0]), cwd=work, env=alone)
    assert len(re.findall(r"[-0-9.e]+", out)) >= 3 * 16
    installed = run(python, "-c", "import hpsd; print(hpsd.__path__[0])", cwd=work, env=alone).strip()
    assert installed.startswith(work)


def test_distributions_when_built_then_they_have_the_version_and_files_of_the_package_and_no_licence_table(work):
    """Setuptools refuses a table `license` from 2027-02-18 on; that of Debian 12 knows nothing else."""
    copy = copied(work)
    run("/usr/bin/python3", "-c", "import setuptools.build_meta as of; of.build_wheel('.'); of.build_sdist('.')", cwd=copy)
    package = {os.path.relpath(os.path.join(folder, name), PACKAGE) for folder, _, names in os.walk(f"{PACKAGE}/hpsd")
               for name in names if not name.endswith(".pyc")}
    assert {"hpsd/py.typed", "hpsd/lookup.binpb"} < package
    with zipfile.ZipFile(f"{copy}/hpsd-{VERSION}-py3-none-any.whl") as wheel:
        names = set(wheel.namelist())
        metadata = wheel.read(f"hpsd-{VERSION}.dist-info/METADATA").decode()
    assert {name for name in names if "dist-info" not in name} == package
    assert f"hpsd-{VERSION}.dist-info/LICENSE" in names or f"hpsd-{VERSION}.dist-info/licenses/LICENSE" in names
    assert not re.search("^License:", metadata, re.MULTILINE)
    for minor in range(9, 14):
        assert f"Classifier: Programming Language :: Python :: 3.{minor}\n" in metadata
    with tarfile.open(f"{copy}/hpsd-{VERSION}.tar.gz") as sdist:
        assert {f"hpsd-{VERSION}/{name}" for name in package | {"pyproject.toml", "setup.py", "README.md", "LICENSE"}} <= set(sdist.getnames())
        sdist.extractall(f"{work}/of_others/unpacked")
    os.makedirs(f"{work}/of_others/proto")  # pip unpacks into /tmp, where others have folders
    run("/usr/bin/python3", "-c", "import setuptools.build_meta as of; of.build_wheel('.')", cwd=f"{work}/of_others/unpacked/hpsd-{VERSION}")
