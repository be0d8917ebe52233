# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the end-to-end tests; what they are made of is in rig.py."""
import pytest

from rig import Daemon, default_config, scratch


@pytest.fixture(name="work")
def work_directory():
    with scratch() as path:
        yield path


@pytest.fixture(name="daemon")
def daemon_maker(work):
    """daemon(config) starts an hpsd; those that still run at the end are drained and checked."""
    started = []

    def make(config=None, **how):
        one = Daemon(work, default_config() if config is None else config, **how)
        started.append(one)
        return one

    yield make
    failures = []
    for one in started:
        try:
            one.stop()
        except AssertionError as error:
            failures.append(str(error))
    assert not failures, "\n".join(failures)
