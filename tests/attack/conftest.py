# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the attacks."""
import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from target import Target, scratch  # noqa: E402


@pytest.fixture(name="work")
def work_directory():
    with scratch() as path:
        yield path


@pytest.fixture(name="shared", scope="module")
def target_of_a_module(request):
    """The daemon that all attacks of a module are made on; SERVER of the module: its options, FRESH: how often the
    neighbour connects anew."""
    with scratch() as path:
        target = Target(path, server=getattr(request.module, "SERVER", {}),
                        client={"fresh": getattr(request.module, "FRESH", 32)})
        yield target
        target.close()


@pytest.fixture(name="target")
def attacked(shared):
    """`shared`, with the neighbour beside the test."""
    with shared.beside():
        yield shared


@pytest.fixture(name="other")
def maker_of_targets(work):
    """other(server={...}) is a daemon of the test's own."""
    made = []

    def make(**how):
        made.append(Target(work, **how))
        return made[-1]

    yield make
    for target in made:
        target.close()
