# SPDX-License-Identifier: Apache-2.0
"""The programs hpsd, hpsctl, hps-bench, hps-gen and hps-publish, with their libraries. hpsd.serve() starts this hpsd."""
import os
import sys


def path(name: str) -> str:
    """Where a program is."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", name)


def main() -> None:
    """Become the program by whose name this was started."""
    name = os.path.basename(sys.argv[0])
    os.execv(path(name), [name, *sys.argv[1:]])
