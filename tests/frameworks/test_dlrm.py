# SPDX-License-Identifier: Apache-2.0
"""docs/examples/dlrm: the commands of its text, line by line, at small sizes. With Triton only if HPS_INTEROP_PACKAGES
names the packages of the environment of tests/interop."""
import os
import re
import shutil
import subprocess
import sys
import xml.dom.minidom

import pytest

import documents
import genuine
import kafka
from rig import BIN, PATIENCE_S, ROOT

PAGE = "docs/examples/dlrm/README.md"
BLOCKS = [block for block in documents.blocks() if block.file == PAGE]
SIZES = "--rows 5000 --width 8 --bottom 16 --top 32 16"
SMALL = {"train.py runs/1\n": f"train.py runs/1 {SIZES} --batches 150 --batch 256\n", "--version 1 >": "--version 1 --batches 150 --batch 256 >",
         "--start runs/1 --day 1\n": "--start runs/1 --day 1 --batches 100 --batch 256\n", "--clicks 4096 --while": "--clicks 1024 --while",
         "auc.py runs/1 ": "auc.py runs/1 --clicks 4096 ", "sleep 1;": "sleep 0.1;"}


def program(path, text):
    with open(path, "w", encoding="utf-8") as f:
        f.write(f"#!/bin/sh\n{text}\n")
    os.chmod(path, 0o755)


def without_numbers(text):
    return re.sub(r" +", " ", re.sub(r"[\d,.]*\d", "N", text)).strip()


@pytest.mark.skipif(bool(kafka.missing()), reason=kafka.missing() or "")
def test_dlrm_when_the_tutorial_is_followed_then_the_outputs_are_as_shown(work):
    here = f"{work}/docs/examples/dlrm"
    shutil.copytree(f"{ROOT}/docs/examples/dlrm", here)
    for name in ("tests", "clients"):
        os.symlink(f"{ROOT}/{name}", f"{work}/{name}")
    os.makedirs(f"{work}/bin")
    program(f"{work}/bin/python", f'exec {sys.executable} "$@"')
    ports = genuine.free_ports(2)
    values = {**SMALL, **{f":{shown}": f":{port}" for shown, port in zip((8701, 8702), ports)},
              **{f"serve.py {shown}": f"serve.py {port}" for shown, port in zip((8701, 8702), ports)}}
    left_out = {"./dev build"}
    library = f"{ROOT}/build/triton/hps/libtriton_hps.so"
    if genuine.missing_python() or not os.path.exists(library):
        left_out.add("cp runs/1/dense.npz")
    else:
        os.makedirs(f"{work}/triton")
        triton = genuine.Genuine(f"{work}/triton", "ensemble", backends={"hps": library})
        program(f"{work}/bin/tritonserver", f'shift; exec {" ".join(triton.command)} "$@"')
        values["triton=127.0.0.1:8001"] = f"triton={triton.rpc}"

    script, shown = ["cleanup() { kill $(jobs -p) 2>/dev/null || true; wait; }; trap cleanup EXIT"], {}
    for number, block in enumerate(BLOCKS):
        if block.language == "text":
            shown[number - 1] = block.code
        elif not block.code.startswith(tuple(left_out)):
            code = block.code
            for old, new in values.items():
                code = code.replace(old, new)
            script += [f"echo @{number}", code]
    code = "\n".join(script)
    assert all(new in code for new in SMALL.values())
    env = {**os.environ, "PATH": f"{work}/bin:{BIN}:{os.environ['PATH']}", "PYTHONPATH": f"{ROOT}/clients/python", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", code], cwd=work, env=env, capture_output=True, text=True, check=False,
                          timeout=20 * PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    outputs = dict(re.findall(r"^@(\d+)\n((?:(?!@\d+$).*\n)*)", done.stdout, re.MULTILINE))
    for number, text in shown.items():
        if str(number) in outputs:
            for line in text.splitlines():
                assert without_numbers(line) in [without_numbers(one) for one in outputs[str(number)].splitlines()], outputs[str(number)]

    def aucs(label, last=-1):
        return re.findall(rf"\b{label} AUC (\S+)", done.stdout)[last]

    assert aucs("hpsd", 0) == aucs("local")
    if "triton=127.0.0.1:8001" in values:
        assert aucs("triton") == aucs("hpsd")
    assert float(aucs("updated")) > float(aucs("not_updated")) + 0.02, done.stdout
    before, activated, rolled_back = re.findall(r"\bactive AUC (\S+) +next AUC (\S+)", done.stdout)
    assert before[0] == rolled_back[0] != before[1] == activated[0] == activated[1]
    xml.dom.minidom.parse(f"{here}/auc.svg")
