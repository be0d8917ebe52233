# SPDX-License-Identifier: Apache-2.0
"""`hpsd --table` serves the content of its files, also after they have changed. With a configuration, changed files
only cause a warning."""
import os
import signal

import numpy as np
import pytest

from rig import (PATIENCE_S, Daemon, Table, admin_pb, ask, default_config, floats, model_config, scratch, until)
from test_updates import DIM, KEYS, config_of, keyed, values, wait_now

pytestmark = pytest.mark.one_thread


def table(seed, name="items", n_rows=60, dim=4):
    return Table.random(name, n_rows, dim, seed=seed)


def check(one, *tables, model="default", version=None):
    stub = one.stub()
    for each in tables:
        reply = ask(stub, model, {each.name: each.keys})
        np.testing.assert_array_equal(floats(reply.results[0]), each.rows)
        assert version is None or reply.version == version


def drift(one):
    return list(one.admin_stub().GetStatus(admin_pb.GetStatusRequest(), timeout=PATIENCE_S).config_drift)


@pytest.fixture(name="serve")
def daemon_of_tables(work):
    """serve("NAME=PATH", ...) starts an hpsd without a configuration file."""
    started = []

    def make(*tables):
        one = Daemon(work, None, flags=[word for each in tables for word in ("--table", each)])
        started.append(one)
        return one

    yield make
    for one in started:
        one.stop(signal.SIGQUIT)  # without the delay of a drain


def test_table_when_the_file_is_edited_then_a_restart_serves_it(work, serve):
    first, second, third = table(1), table(2, n_rows=90, dim=8), table(3)
    one = serve(f"items={first.save(work + '/m')}")
    check(one, first, version=1)
    one.stop(signal.SIGQUIT)
    one.start()  # no change
    check(one, first, version=1)
    for version, now in ((2, second), (3, third)):
        one.kill()
        now.save(work + "/m")
        one.start()  # returns when hpsd is ready
        check(one, now, version=version)
        assert not drift(one)
    until(lambda: one.versions("default") == {2: "resident", 3: "active"}, "as many as keep_versions says")
    one.ctl("rollback", "default")
    check(one, second, version=2)
    one.kill()
    one.start()  # version 3 has the rows of the file
    check(one, third, version=3)
    assert one.versions("default") == {2: "resident", 3: "active"}


def test_table_when_its_path_is_relative_then_a_refused_load_names_the_root_from_the_top(work):
    items = table(1)
    items.save(work + "/m")
    with scratch() as other, Daemon(work, None, flags=["--table", "items=m/items.rows.npy"], wrapper=["env", "-C", work]) as one:
        said = one.ctl("load", "m", "--from", other, code=1)
        assert f'server.model_roots (2; first "{os.path.realpath(work)}")' in said
        one.ctl("load", "m", "--from", f"{work}/m", "--activate")
        check(one, items, model="m")


def test_table_when_another_table_is_named_then_both_are_served(work, serve):
    items, users = table(1), table(2, "users")
    one = serve(f"items={items.save(work + '/m')}")
    one.kill()
    one.args += ["--table", f"users={users.save(work + '/m')}"]
    one.start()
    check(one, items, users, version=2)


def test_table_when_the_file_is_missing_then_the_stored_rows_are_served_with_a_warning(work, serve):
    first = table(1)
    path = first.save(work + "/m")
    one = serve(f"items={path}")
    one.kill()
    os.rename(path, path + ".away")
    one.start()
    check(one, first, version=1)
    warned, = [line for line in one.log().splitlines() if "level=warn" in line and "earlier run" in line]
    assert "items.rows.npy" in warned and "model=default" in warned


def test_table_when_the_file_is_invalid_then_the_stored_rows_are_served_with_a_warning(work, serve):
    first = table(1)
    path = first.save(work + "/m")
    one = serve(f"items={path}")
    one.kill()
    with open(path, "wb") as out:
        out.write(b"no rows")
    one.start()
    check(one, first, version=1)
    assert drift(one) == ["default"]
    assert any("level=warn" in line and "earlier run" in line for line in one.log().splitlines())
    one.kill()
    rows = first.rows.copy()
    rows[7, 0] = np.nan  # found only when rows are read
    np.save(path, rows)
    one.start()
    check(one, first, version=1)
    assert drift(one) == ["default"]
    assert one.versions("default") == {1: "active"}
    one.kill()
    second = table(2)
    second.save(work + "/m")
    one.start()
    check(one, second)


def test_config_when_files_have_changed_then_the_warning_names_the_command_that_loads_them(work, daemon):
    first, second = table(1), table(2)
    one = daemon(default_config([model_config("m", [first.save(work + "/m")], [4], ["items"])]))
    check(one, first, model="m")
    one.kill()
    second.save(work + "/m")
    one.start()
    check(one, first, model="m", version=1)
    assert drift(one) == ["m"]
    warned, = [line for line in one.log().splitlines() if "level=warn" in line and "models[] changed since" in line]
    command = warned.split('command="hpsctl ')[1].split('"')[0]
    assert command == f"load m --config {os.path.realpath(one.config_file)} --activate"
    assert "options=sparse_files" in warned and "hpsctl load m" in one.ctl("status")
    one.ctl(*command.split())
    check(one, second, model="m", version=2)
    assert not drift(one)


def test_table_when_the_stored_rows_have_updates_then_changed_files_are_only_reported(broker, work, daemon):
    topic = broker.create("hps_et.default.a", 1)
    config = config_of(work, broker, "default", names=("a",))
    one = daemon(config)
    broker.write(topic, [keyed(1, 101)])
    wait_now(one, "default")
    one.kill()
    np.save(f"{work}/files-default/a.rows.npy", np.zeros((KEYS, DIM), np.float32))
    with_flags = Daemon(work, None, flags=["--table", f"a={work}/files-default/a.rows.npy"])
    assert values(with_flags.stub(), "default", "a", [1, 2]) == {1: 101, 2: 2}
    assert with_flags.versions("default") == {1: "active"} and drift(with_flags) == ["default"]
    assert "hpsctl load default --table NAME=PATH --activate" in with_flags.log()
    with_flags.stop(signal.SIGQUIT)
