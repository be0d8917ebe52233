# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the end-to-end tests. rig.py has the classes that they use."""
import os

import pytest

from rig import SANITIZER, Daemon, default_config, kafka, scratch


def pytest_configure(config):
    config.addinivalue_line("markers", "one_thread: what is asserted depends on no order of threads; ThreadSanitizer, "
                                       "under which all takes ten times as long, runs it only in `./dev tsan all`")
    config.addinivalue_line("markers", "soak: long, and only of the test's own parts; `./dev soak` runs it")
    config.addinivalue_line("markers", "chaos: minutes of everything at once; sanitizers run it only if HPS_CHAOS_S says "
                                       "for how long")


SHARED_BROKERS = 2  # with one broker, its tests would still run after all other tests have ended


@pytest.hookimpl(tryfirst=True)  # before xdist forms its groups
def pytest_collection_modifyitems(items):
    """Skip tests marked one_thread under ThreadSanitizer, tests marked chaos under any sanitizer, and tests marked soak
    unless HPS_CHAOS_S is set. Tests of one file that share a broker run in the same test process, so that there are at
    most SHARED_BROKERS brokers. The same holds for tests that share a daemon of their file. Long tests begin first, so
    that they do not delay the end of the run."""
    if SANITIZER == "thread" and not os.environ.get("HPS_TSAN_ALL"):
        items[:] = [item for item in items if item.get_closest_marker("one_thread") is None]
    if not os.environ.get("HPS_CHAOS_S"):
        items[:] = [item for item in items if item.get_closest_marker("soak") is None]
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
        for broker in ("guarded", "secure", "three_brokers"):
            if broker in item.fixturenames:
                item.add_marker(pytest.mark.xdist_group(broker))


SHARED = []  # the broker of this process, once a test has used it


def pytest_runtest_setup(item):
    for broker in SHARED:
        if broker.process is None and "broker" in item.fixturenames:
            broker.start()


@pytest.hookimpl(trylast=True)  # after the fixtures of the test
def pytest_runtest_teardown(nextitem):
    """End the shared broker after the last of the tests that use it, because a broker without clients takes CPU time."""
    if nextitem is None or "broker" not in nextitem.fixturenames:
        for broker in SHARED:
            broker.kill()


@pytest.fixture(name="work")
def work_directory():
    with scratch() as path:
        yield path


@pytest.fixture(name="broker", scope="session")
def shared_broker():
    """A Kafka broker for all tests. Tests use their own topics and do not stop the broker."""
    with scratch() as path, started_broker(path) as broker:
        SHARED.append(broker)
        yield broker
        SHARED.remove(broker)


@pytest.fixture(name="own_broker")
def broker_of_one_test():
    """A broker that the test may stop, kill and start."""
    with scratch() as path, started_broker(path) as broker:
        yield broker


def started_broker(path):
    why = kafka.missing()
    if why is not None:
        pytest.skip(f"no Kafka broker: {why}")
    return kafka.Broker(path)


@pytest.fixture(name="daemon")
def daemon_maker(work):
    """daemon(config) starts an hpsd. At the end of the test, running daemons are drained and checked."""
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
