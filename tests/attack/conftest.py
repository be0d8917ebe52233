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
    """The daemon for all tests of a module. `SERVER` of the module: options of the server. `FRESH`: how often the
    healthy client opens another connection."""
    with scratch() as path:
        target = Target(path, server=getattr(request.module, "SERVER", {}),
                        client={"fresh": getattr(request.module, "FRESH", 32)})
        yield target
        target.close()


@pytest.fixture(name="target")
def attacked(shared):
    """`shared`, checked by the healthy client during the test."""
    with shared.beside():
        yield shared


@pytest.fixture(name="other")
def maker_of_targets(work):
    """other(server={...}) starts a daemon for one test."""
    made = []

    def make(**how):
        made.append(Target(work, **how))
        return made[-1]

    yield make
    for target in made:
        target.close()
