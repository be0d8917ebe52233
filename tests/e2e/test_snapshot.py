# SPDX-License-Identifier: Apache-2.0
"""Snapshots of the persistent store: made while it is served and updated, restored for another hpsd."""
import os
import shutil
import subprocess
import threading

import pytest

from rig import BIN, PATIENCE_S, default_config, generate, until
from test_updates import KEYS, config_of, keyed, states, updates, values, wait_now


def positions(daemon, model):
    return {(one["topic"], int(one.get("partition", 0))): int(one.get("offset", 0))
            for one in updates(daemon, model)["partitions"]}


def replica_of(daemon, one, snapshot, config, state="replica"):
    """Another hpsd with the same configuration, from the snapshot; it never saw the files."""
    one.ctl("snapshot", "restore", snapshot, "--state-dir", os.path.join(one.work, state))
    return daemon(config, state=state)


def same(one, other, model):
    for table in "ab":
        assert values(one.stub(), model, table) == values(other.stub(), model, table), table


# ---- updates -------------------------------------------------------------------------------------------

def test_replica_when_made_from_a_snapshot_then_reads_on_from_there_and_is_equal(broker, daemon, work):
    topics = [broker.create("hps_et.copied.a", 2), broker.create("hps_et.copied.b", 1)]
    config = config_of(work, broker, "copied")
    one = daemon(config)
    broker.write(topics[0], [{**keyed(1, 101), "partition": 0}, {**keyed(2, None), "partition": 1}])
    broker.write(topics[1], [keyed(3, 103), keyed(1000, 7)])
    wait_now(one, "copied")
    made = one.ctl("snapshot", "create", f"{work}/snapshot", "-o", "json")[0]
    assert made["file_count"] > 3
    assert [(v["model"], int(v["version"]), v["active"]) for v in made["versions"]] == [("copied", 1, True)]
    broker.write(topics[0], [{**keyed(1, 111), "partition": 0}, {**keyed(4, None), "partition": 0}])
    wait_now(one, "copied")
    shutil.rmtree(f"{work}/files-copied")
    other = replica_of(daemon, one, f"{work}/snapshot", config)
    wait_now(other, "copied")
    assert updates(other, "copied")["record_count"] == 2  # what came after the snapshot, no more
    assert positions(other, "copied") == positions(one, "copied")
    same(one, other, "copied")
    assert values(other.stub(), "copied", "a", [1, 2, 4]) == {1: 111, 2: -1, 4: -1}
    assert values(other.stub(), "copied", "b", [3, 1000]) == {3: 103, 1000: 7}
    broker.write(topics[1], [keyed(3, 113)])
    for each in (one, other):
        wait_now(each, "copied")
    same(one, other, "copied")


def test_snapshot_when_made_during_updates_then_equal_after_catching_up(broker, daemon, work):
    topic = broker.create("hps_et.busy.a", 1)
    config = config_of(work, broker, "busy", source={"max_batch_size": 10})
    one = daemon(config)
    n = 0
    for snapshot in range(3):
        for _ in range(5):
            broker.write(topic, [keyed((n + i) % KEYS, n + i if (n + i) % 7 else None) for i in range(50)])
            n += 50
        one.ctl("snapshot", "create", f"{work}/{snapshot}")  # whatever has been applied by now
    wait_now(one, "busy")
    for snapshot in range(3):
        other = replica_of(daemon, one, f"{work}/{snapshot}", config, state=f"replica{snapshot}")
        wait_now(other, "busy")
        same(one, other, "busy")
        assert positions(other, "busy") == positions(one, "busy") == {(topic, 0): n}
        other.stop()


def test_gap_when_a_snapshot_of_a_healthy_replica_is_restored_then_it_is_gone(broker, daemon, work):
    topic = broker.create("hps_et.healed.a", 1)
    config = config_of(work, broker, "healed")
    one = daemon(config)
    broker.write(topic, [keyed(1, 101)])
    wait_now(one, "healed")
    one.ctl("snapshot", "create", f"{work}/first")
    healthy = replica_of(daemon, one, f"{work}/first", config)
    one.stop()
    broker.write(topic, [keyed(2, 102), keyed(3, 103)])
    wait_now(healthy, "healed")
    broker.drop(topic, 0, 3)
    broker.write(topic, [keyed(4, 104)])
    one.restart()
    until(lambda: states(one, "healed") == {("a", 0): "gap"}, "the gap")
    one.stop()
    healthy.ctl("snapshot", "create", f"{work}/second")
    os.rename(f"{one.state}/hpsd", f"{one.state}/hpsd.old")
    healthy.ctl("snapshot", "restore", f"{work}/second", "--state-dir", one.state)
    one.restart()
    wait_now(one, "healed")
    until(lambda: states(one, "healed") == {("a", 0): "running"}, "the stream to run")
    assert values(one.stub(), "healed", "a", [1, 2, 3, 4]) == {1: 101, 2: 102, 3: 103, 4: 104}


# ---- refusals ------------------------------------------------------------------------------------------

@pytest.fixture(name="kept")
def snapshot_of_a_daemon(daemon, work):
    one = daemon()
    one.ctl("snapshot", "create", f"{work}/kept")
    return one, f"{work}/kept"


def test_create_when_the_directory_will_not_do_then_refused(kept, work):
    one, snapshot = kept
    assert "not empty" in one.ctl("snapshot", "create", snapshot, code=1)
    assert "cannot make" in one.ctl("snapshot", "create", f"{work}/no/parent", code=1)
    one.ctl("snapshot", "create", code=2)
    one.ctl("snapshot", "restore", snapshot, code=2)
    assert "did you mean" in one.ctl("snapshot", "creat", snapshot, code=2)


def test_create_when_many_ask_then_one_after_the_other_or_refused(kept, work):
    one, _ = kept
    answers = []

    def create(n):
        answers.append((n, subprocess.run([f"{BIN}/hpsctl", "--addr", one.admin, "snapshot", "create", f"{work}/{n}"],
                                          capture_output=True, text=True, timeout=PATIENCE_S * 2, check=False)))

    threads = [threading.Thread(target=create, args=[n]) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, done in answers:
        assert done.returncode == 0 or "another snapshot" in done.stderr, done.stderr
        assert os.path.exists(f"{work}/{n}/snapshot") == (done.returncode == 0)
    assert any(done.returncode == 0 for _, done in answers)


def test_create_when_there_is_no_persistent_store_then_refused(daemon, work):
    one = daemon(default_config(durable=False))
    assert "persistent_db" in one.ctl("snapshot", "create", f"{work}/none", code=1)
    assert not os.path.exists(f"{work}/none")


def test_restore_when_the_state_directory_is_used_or_full_then_refused(kept):
    one, snapshot = kept
    assert "in use by a running hpsd" in one.ctl("snapshot", "restore", snapshot, "--state-dir", one.state, code=1)
    address = one.admin
    one.stop()
    one.admin = address
    assert "already exists" in one.ctl("snapshot", "restore", snapshot, "--state-dir", one.state, code=1)
    shutil.rmtree(f"{one.state}/hpsd")
    one.ctl("snapshot", "restore", snapshot, "--state-dir", one.state)
    one.restart()
    one.ctl("--timeout", PATIENCE_S, "ping")


# ---- damage --------------------------------------------------------------------------------------------

def change_byte(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        was = file.read(1)[0]
        file.seek(at)
        file.write(bytes([was ^ 1]))


@pytest.fixture(name="rows_kept")
def snapshot_with_rows(daemon, work):
    """A stopped daemon, its address for hpsctl, a copy of its snapshot that may be damaged; where to restore it."""
    generate(work + "/m", "--tables", 2, "--rows", 500, "--dim", 8, "--model", "m")
    one = daemon(default_config(server={"model_roots": [work]}))
    one.load("m", work + "/m")
    one.ctl("snapshot", "create", f"{work}/linked")
    shutil.copytree(f"{work}/linked", f"{work}/kept")
    return one, f"{work}/kept", f"{work}/restored"


def refused(one, snapshot, to, name):
    told = one.ctl("snapshot", "restore", snapshot, "--state-dir", to, code=5)
    assert f"{snapshot}/hpsd/{name}" in told
    assert not os.path.exists(f"{to}/hpsd") and not os.path.exists(f"{to}/hpsd.restoring")


def test_restore_when_a_byte_of_any_file_is_damaged_then_5_and_nothing_to_start_from(rows_kept):
    one, snapshot, to = rows_kept
    names = [name for name in os.listdir(f"{snapshot}/hpsd") if os.path.getsize(f"{snapshot}/hpsd/{name}")]
    assert any(name.endswith(".sst") for name in names) and any(name.startswith("MANIFEST") for name in names)
    for name in names:
        path = f"{snapshot}/hpsd/{name}"
        middle = os.path.getsize(path) // 2
        change_byte(path, middle)
        refused(one, snapshot, to, name)
        change_byte(path, middle)
    path = f"{snapshot}/hpsd/{names[0]}"
    os.rename(path, path + ".away")
    refused(one, snapshot, to, names[0])
    os.rename(path + ".away", path)
    restored = one.ctl("snapshot", "restore", snapshot, "--state-dir", to, "-o", "json")[0]
    assert restored["verified"] is True and restored["file_count"] >= len(names)


def test_restore_when_made_without_checksums_then_it_works_and_says_what_it_cannot(rows_kept, daemon):
    one, snapshot, to = rows_kept
    with open(f"{snapshot}/snapshot", encoding="utf-8") as text:
        lines = text.read().splitlines()
    assert lines[0] == "hpsd-snapshot 2" and lines[-1].startswith("end ")
    plain = ["hpsd-snapshot 1", *lines[1:3]]
    plain += [f"file {size} {name}" for _, size, _, name in (line.split(" ", 3) for line in lines[3:-1])]
    with open(f"{snapshot}/snapshot", "w", encoding="utf-8") as text:
        text.write("\n".join(plain) + "\n")
    told = one.ctl("snapshot", "restore", snapshot, "--state-dir", to)
    assert "note: " in told and "only the sizes" in told
    other = daemon(default_config(), state="restored")
    assert other.versions("m") == {1: "active"}
