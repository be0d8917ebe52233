# SPDX-License-Identifier: Apache-2.0
"""Makes hpsd/lookup.binpb, the descriptor of lookup.proto, if this is the source tree of hpsd. A source distribution, which
may be unpacked near any folder "proto", has it."""
import importlib.util
import os
import shutil
import subprocess
import sys

from setuptools import setup

HERE = os.path.dirname(os.path.abspath(__file__))
PROTO = os.path.join(HERE, "..", "..", "proto")
requires = []
if os.path.isdir(PROTO) and not os.path.exists(os.path.join(HERE, "PKG-INFO")):
    if importlib.util.find_spec("grpc_tools"):
        protoc = [sys.executable, "-m", "grpc_tools.protoc"]
    elif shutil.which("protoc"):
        protoc = ["protoc"]
    else:
        protoc, requires = [], ["grpcio-tools"]  # pip installs it, and runs this file again
    if protoc:
        subprocess.run([*protoc, f"-I{PROTO}", f"--descriptor_set_out={HERE}/hpsd/lookup.binpb", "hps/v1/lookup.proto"],
                       check=True)
setup(setup_requires=requires)
