# SPDX-License-Identifier: Apache-2.0
"""When hpsd prints that it listens and that it is ready, and what it reports about models that are not loaded yet."""
import os
import re
import signal

import grpc
import numpy as np
import pytest

from rig import (PATIENCE_S, Daemon, Killpoint, Table, ask, default_config, floats, health_grpc, health_pb2, model_config,
                 pb, refused, until)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
LOADING = re.compile(r'model "m" is loading, (\d\d?) %')
FAILURES = 'hpsd_model_load_failures_total{model="m"}'


def model_of(table, directory):
    return model_config("m", [f"{directory}/{table.name}.rows.npy"], [table.dim], [table.name])


def health(daemon):
    return health_grpc.HealthStub(daemon.channel()).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S).status


def info(daemon):
    """The only model in the output of `hpsctl models`."""
    (model,) = daemon.ctl("-o", "json", "models")[0]["models"]
    return model


def stages(daemon):
    """Readiness as the page, the metric, the health service and hpsctl report it."""
    status = daemon.ctl("-o", "json", "status")[0]
    return (daemon.get("/readyz")[0] == 200, daemon.metrics()["hpsd_ready"] == 1, health(daemon) == SERVING,
            status.get("ready", False))


def check(daemon, table):
    result = ask(daemon.stub(), "m", {"a": table.keys[:200]}).results[0]
    np.testing.assert_array_equal(floats(result), table.expect(table.keys[:200]))


def silent(daemon):
    """Whether hpsd has printed nothing since the last line that was read."""
    os.set_blocking(daemon.process.stdout.fileno(), False)
    try:
        return daemon.said == b"" and os.read(daemon.process.stdout.fileno(), 100) == b""
    except BlockingIOError:
        return True
    finally:
        os.set_blocking(daemon.process.stdout.fileno(), True)


@pytest.fixture(name="held")
def load_that_is_held(work, daemon):
    """held(config) -> (an hpsd that is held during its first load, the killpoint)."""
    points = []

    def make(config):
        point = Killpoint(f"{work}/point", f"{work}/state")
        point.hold("*write* *.sst")
        points.append(point)
        one = daemon(config, wrapper=point.wrapper, ready=False)
        return one, point

    yield make
    for point in points:
        point.let_go()


def test_start_when_a_model_loads_then_hpsd_listens_and_reports_progress(held, work):
    table = Table.random("a", 60_000, 64)
    table.save(work + "/m")
    one, point = held(default_config([model_of(table, work + "/m")]))
    until(point.holds, "the load to be held")
    until(lambda: LOADING.search(one.get("/readyz")[1])[1] != "0", "progress")
    assert stages(one) == (False, False, False, False) and silent(one)
    assert one.get("/readyz")[0] == 503
    assert LOADING.fullmatch(one.get("/readyz")[1].strip())
    assert LOADING.fullmatch(one.ctl("-o", "json", "status")[0]["not_ready_reasons"][0])
    assert LOADING.search(one.ctl("status")) and LOADING.search(one.ctl("models"))
    model = info(one)
    assert model["state"] == "loading" and LOADING.fullmatch(model["reason"])
    (version,) = model["versions"]
    assert version["state"] == "loading" and 0 < version["load_ratio"] < 1
    for number in (0, 1):
        with pytest.raises(grpc.RpcError) as caught:
            ask(one.stub(), "m", {"a": [1]}, version=number)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert LOADING.fullmatch(caught.value.details())
    with refused(grpc.StatusCode.NOT_FOUND, '"other" is not loaded'):
        ask(one.stub(), "other", {"a": [1]})
    watch = health_grpc.HealthStub(one.channel()).Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S * 2)
    assert next(watch).status == NOT_SERVING
    point.let_go()
    assert one.read_line("ready") == one.addresses
    assert stages(one) == (True, True, True, True)
    assert next(watch).status == SERVING
    watch.cancel()
    check(one, table)
    assert info(one)["state"] == "active" and not info(one)["reason"]


def test_load_when_it_is_the_first_of_a_model_then_lookups_fail_with_progress(daemon, work):
    table = Table.random("a", 60_000, 64)
    table.save(work + "/m")
    point = Killpoint(f"{work}/point", f"{work}/state")
    one = daemon(default_config(server={"model_roots": [work]}), wrapper=point.wrapper)
    with refused(grpc.StatusCode.NOT_FOUND):
        ask(one.stub(), "m", {"a": [1]})
    point.hold("*write* *.sst")
    one.ctl("load", "m", "--from", work + "/m", "--no-wait")
    until(point.holds, "the load to be held")
    with refused(grpc.StatusCode.UNAVAILABLE, 'model "m" is loading, '):
        ask(one.stub(), "m", {"a": [1]})
    assert one.get("/readyz")[0] == 200  # the model is not in models[]
    point.let_go()
    until(lambda: one.versions("m") == {1: "active"}, "the load")
    check(one, table)
    one.ctl("unload", "m", 1)
    with refused(grpc.StatusCode.NOT_FOUND):
        ask(one.stub(), "m", {"a": [1]})


@pytest.mark.parametrize("heal", ["hup", "load", "restart"])
def test_model_when_its_load_fails_then_the_reason_is_reported_and_a_retry_succeeds(daemon, work, heal):
    table = Table.random("a", 2000, 16)
    config = default_config([model_of(table, work + "/m")], server={"model_roots": [work]})
    one = daemon(config, ready=False)
    until(lambda: "failed to load" in one.get("/readyz")[1], "the failure")
    why = one.get("/readyz")[1].strip()
    assert f"{work}/m/a.rows.npy" in why and "SIGHUP" in why
    assert stages(one) == (False, False, False, False) and silent(one)
    assert one.ctl("-o", "json", "status")[0]["not_ready_reasons"] == [why]
    assert one.metrics()[FAILURES] == 1
    model = info(one)
    assert (model["model"], model["state"], model["reason"]) == ("m", "failed", why) and not model["versions"]
    assert why in one.ctl("models")
    with refused(grpc.StatusCode.UNAVAILABLE, why):
        ask(one.stub(), "m", {"a": [1]})
    if heal == "hup":  # the first reload fails, the second one succeeds
        one.send(signal.SIGHUP)
        until(lambda: one.metrics()[FAILURES] == 2, "the second failure")
    table.save(work + "/m")
    if heal == "hup":
        one.send(signal.SIGHUP)
    elif heal == "load":
        one.ctl("load", "m", "--from", work + "/m")
    else:
        one.stop()
        one.start(ready=False)
    assert one.read_line("ready") == one.addresses
    assert stages(one) == (True, True, True, True)
    assert info(one)["state"] == "active" and not info(one)["reason"]
    check(one, table)


def test_model_when_a_row_is_invalid_then_the_failed_load_is_counted_and_reported(daemon, work):
    table = Table.random("a", 2000, 16)
    table.rows[1999, 3] = np.nan
    table.save(work + "/m")
    one = daemon(default_config([model_of(table, work + "/m")], server={"model_roots": [work]}), ready=False)
    until(lambda: "failed to load" in one.get("/readyz")[1], "the failure")
    assert "nan" in one.get("/readyz")[1].lower()
    assert one.metrics()[FAILURES] == 1
    config = default_config([model_of(table, work + "/m")], server={"model_roots": [work], "nan_policy": "accept"})
    one.write_config(config)
    one.send(signal.SIGHUP)  # the reload uses the changed file
    assert one.read_line("ready") == one.addresses
    assert one.metrics()[FAILURES] == 1


def test_load_when_a_later_version_fails_then_it_is_counted_and_the_model_serves(daemon, work):
    table = Table.random("a", 2000, 16)
    table.save(work + "/m")
    one = daemon(default_config([model_of(table, work + "/m")], server={"model_roots": [work]}))
    bad = Table.random("a", 2000, 16)
    bad.rows[5, 3] = np.nan
    bad.save(work + "/bad")
    with pytest.raises(grpc.RpcError):
        one.load("m", work + "/bad")
    assert one.metrics()[FAILURES] == 1
    assert stages(one) == (True, True, True, True)
    assert info(one)["state"] == "active" and not info(one)["reason"]
    one.ctl("unload", "m", 1)
    assert one.get("/readyz") == (503, 'model "m" has no active version; use hpsctl load\n')
    assert info(one)["state"] == "absent"
    one.send(signal.SIGHUP)  # a reload does not load a version that an operator unloaded
    until(lambda: '"reloaded"' in one.log() or "msg=reloaded" in one.log(), "the reload")
    assert one.metrics()[FAILURES] == 1 and one.versions("m") == {}


def test_ready_when_there_are_no_models_then_the_line_ready_is_printed_once(daemon):
    one = daemon(ready=False)
    assert one.read_line("ready") == one.addresses
    one.send(signal.SIGHUP)
    until(lambda: one.get("/readyz")[0] == 200, "ready")
    assert silent(one)


def test_start_when_stdout_is_closed_after_the_first_line_then_hpsd_serves(work):
    table = Table.random("a", 2000, 16)
    table.save(work + "/m")
    point = Killpoint(f"{work}/point", f"{work}/state")
    point.hold("*write* *.sst")
    with Daemon(work, default_config([model_of(table, work + "/m")]), wrapper=point.wrapper, ready=False) as one:
        until(point.holds, "the load to be held")
        one.process.stdout.close()
        point.let_go()
        one.wait_ready()
        check(one, table)
