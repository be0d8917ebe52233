# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the end-to-end tests; what they are made of is in rig.py."""
import os

import pytest

from rig import SANITIZER, Daemon, default_config, kafka, scratch


def pytest_configure(config):
    config.addinivalue_line("markers", "one_thread: what is asserted depends on no order of threads; ThreadSanitizer, "
                                       "under which all takes ten times as long, runs it only with HPS_TSAN_ALL=1")
    config.addinivalue_line("markers", "chaos: minutes of everything at once; sanitizers run it only if HPS_CHAOS_S says "
                                       "for how long")


SHARED_BROKERS = 2  # one would be busy from beginning to end, and all the rest done before


@pytest.hookimpl(tryfirst=True)  # before the groups are looked at
def pytest_collection_modifyitems(items):
    """Under ThreadSanitizer those marked one_thread are left out, under any sanitizer those marked chaos. Tests that
    share a broker go to one of the processes that run tests, and those of a file to the same: there are then no more
    brokers than SHARED_BROKERS. So do those that share one of several daemons of their file. What takes long begins
    first, so that nothing waits for it at the end."""
    if SANITIZER == "thread" and not os.environ.get("HPS_TSAN_ALL"):
        items[:] = [item for item in items if item.get_closest_marker("one_thread") is None]
    if SANITIZER and not os.environ.get("HPS_CHAOS_S"):
        items[:] = [item for item in items if item.get_closest_marker("chaos") is None]
    items.sort(key=lambda item: ("broker" not in item.fixturenames, item.get_closest_marker("chaos") is None))
    sharing = list(dict.fromkeys(item.path for item in items if "broker" in item.fixturenames))
    for item in items:
        if "broker" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group(f"broker{sharing.index(item.path) % SHARED_BROKERS}"))
        served = getattr(item, "callspec", None) and item.callspec.params.get("served")
        if served:
            item.add_marker(pytest.mark.xdist_group(f"{item.path.name} {served}"))
        for broker in ("secure", "three_brokers"):
            if broker in item.fixturenames:
                item.add_marker(pytest.mark.xdist_group(broker))


@pytest.fixture(name="work")
def work_directory():
    with scratch() as path:
        yield path


@pytest.fixture(name="broker", scope="session")
def shared_broker():
    """A Kafka broker for all tests, which name their own topics and leave it running."""
    with scratch() as path, started_broker(path) as broker:
        yield broker


@pytest.fixture(name="own_broker")
def broker_of_one_test():
    """One that the test may stop, kill and start."""
    with scratch() as path, started_broker(path) as broker:
        yield broker


def started_broker(path):
    why = kafka.missing()
    if why is not None:
        pytest.skip(f"no Kafka broker: {why}")
    return kafka.Broker(path)


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
