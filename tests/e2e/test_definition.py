# SPDX-License-Identifier: Apache-2.0
"""Which options a version keeps and which follow the configuration; models that are defined only by a load."""
import json
import os
import re

import grpc
import numpy as np
import pytest

from rig import (PATIENCE_S, Daemon, Table, admin_pb, ask, default_config, floats, kserve_grpc, kserve_pb, model_config, pb,
                 refused, until)

UNKNOWN = 123456789
KAFKA = {"type": "kafka", "brokers": "127.0.0.1:1"}  # nothing listens there


def table(number):
    return Table("t", np.arange(20), np.full((20, 4), number, np.float32))


def entry(work, number, default=0.0, name="m", **more):
    """A models[] entry of the files m/NUMBER, in which all values are that number."""
    path = f"{work}/m/{number}/t.rows.npy"
    if not os.path.exists(path):
        table(number).save(f"{work}/m/{number}")
    return model_config(name, [path], [4], ["t"], [default], **more)


def config_of(work, *entries, **more):
    return default_config(entries, server={"model_roots": [work], "keep_versions": 8}, **more)


def served(one, model="m", key=1):
    return float(floats(ask(one.stub(), model, {"t": [key]}).results[0])[0, 0])


def status(one):
    return one.admin_stub().GetStatus(admin_pb.GetStatusRequest(), timeout=PATIENCE_S)


def version_info(one, model="m", version=1):
    reply = one.admin_stub().ListModels(admin_pb.ListModelsRequest(), timeout=PATIENCE_S)
    return next(v for m in reply.models if m.model == model for v in m.versions if v.version == version)


def again(one, config, kill=False):
    if kill:
        one.kill()
    else:
        one.stop()
    one.write_config(config)
    one.start()


def command(one):
    return one.log().split('command="hpsctl ')[-1].split('"')[0].split()


# ---- the order of tables -------------------------------------------------------------------------------

def by_position(one, model):
    """Names and values of the tables at positions 0 to 11."""
    queries = [pb.TableQuery(keys=np.array([3], "<i8").tobytes())] * 12
    results = one.stub().Lookup(pb.LookupRequest(model=model, queries=queries), timeout=PATIENCE_S).results
    return [result.table for result in results], [float(floats(result)[0, 0]) for result in results]


def test_load_when_table_names_have_numbers_then_positions_follow_the_numbers_or_the_models_order(work, daemon):
    paths = {f"table_{i}": Table(f"table_{i}", np.arange(9), np.full((9, 2), i, np.float32)).save(f"{work}/m")
             for i in range(12)}
    one = daemon(config_of(work))
    for dry in (["--dry-run"], []):
        assert ", ".join(f"{i} table_{i}" for i in range(12)) in one.ctl("load", "m", "--from", f"{work}/m", *dry)
    earlier = sorted(paths)  # 0, 1, 10, 11, 2
    one.ctl("load", "old", *[word for name in earlier for word in ("--table", f"{name}={paths[name]}")])
    assert "2 table_10, 3 table_11, 4 table_2" in one.ctl("load", "old", "--from", f"{work}/m", "--activate")
    for _ in range(2):
        assert by_position(one, "m") == ([f"table_{i}" for i in range(12)], list(range(12)))
        assert by_position(one, "old") == (earlier, [int(name[6:]) for name in earlier])
        one.stop()
        one.start()


# ---- options that a version keeps ------------------------------------------------------------------------------

def test_default_row_when_changed_in_the_configuration_then_reported_as_drift_until_a_load(work, daemon):
    one = daemon(config_of(work, entry(work, 1, 1.0)))
    again(one, config_of(work, entry(work, 1, 9.0)))
    assert served(one, key=UNKNOWN) == 1.0
    assert list(status(one).config_drift) == ["m"]
    assert "models[] changed since the active version was loaded" in one.log()
    assert "options=default_value_for_each_table" in one.log()
    assert "default_value_for_each_table" in one.ctl("status")
    one.ctl(*command(one))
    assert served(one, key=UNKNOWN) == 9.0
    for _ in range(2):
        assert not status(one).config_drift and not status(one).notes
        again(one, config_of(work, entry(work, 1, 9.0)))
    one.ctl("activate", "m", "1")
    for _ in range(2):  # before a restart and after it
        assert served(one, key=UNKNOWN) == 1.0 and list(status(one).config_drift) == ["m"]
        again(one, config_of(work, entry(work, 1, 9.0)), kill=True)


def test_keys_when_supportlonglong_changes_then_drift_until_it_is_set_back_or_the_version_is_loaded_again(work, daemon):
    files = Table("t", [-5, 7], np.full((2, 4), 1, np.float32)).save(f"{work}/m/1")

    def config(wide):
        return config_of(work, model_config("m", [files], [4], ["t"], [9.0]), supportlonglong=wide)

    one = daemon(config(False))
    one.ctl("load", "n", "--from", f"{work}/m/1", "--activate")  # not in models[]
    for model, unknown in (("m", 9.0), ("n", 0.0)):
        assert served(one, model, -5) == served(one, model, 2**32 - 5) == 1.0
    assert not status(one).config_drift
    again(one, config(True))
    for model, unknown in (("m", 9.0), ("n", 0.0)):
        assert served(one, model, -5) == unknown and served(one, model, 7) == 1.0
    assert sorted(status(one).config_drift) == ["m", "n"]
    assert one.log().count("supportlonglong changed since the active version was loaded") == 2
    told = sorted(status(one).notes)
    assert "models[] changed (supportlonglong) since version 1" in told[0] and "set it back, or load" in told[1]
    again(one, config(False), kill=True)
    assert not status(one).config_drift and served(one, key=-5) == 1.0
    again(one, config(True))
    one.ctl(*command(one))  # loads m again
    assert list(status(one).config_drift) == ["n"] and served(one, key=-5) == 1.0
    again(one, config(True))
    assert list(status(one).config_drift) == ["n"] and served(one, key=-5) == 1.0


def test_entry_when_its_files_are_missing_then_default_rows_and_types_are_compared(work, daemon):
    one = daemon(config_of(work, entry(work, 1, 1.0), entry(work, 2, 1.0, name="n")))
    changed = [entry(work, 1, 9.0), entry(work, 2, 1.0, name="n", row_dtype="fp16")]
    os.rename(f"{work}/m", f"{work}/away")
    again(one, config_of(work, *changed))
    assert served(one, key=UNKNOWN) == 1.0 and sorted(status(one).config_drift) == ["m", "n"]
    assert "options=default_value_for_each_table" in one.log() and "options=row_dtype" in one.log()
    os.rename(f"{work}/away", f"{work}/m")
    one.ctl(*command(one))  # loads one of the two models
    os.rename(f"{work}/m", f"{work}/away")
    again(one, config_of(work, *changed))
    assert len(status(one).config_drift) == 1


def test_entry_when_a_load_would_fail_then_the_stored_version_serves_and_drift_is_reported(work, daemon):
    one = daemon(config_of(work, entry(work, 1)))
    wrong = entry(work, 1)
    wrong["embedding_vecsize_per_table"] = [8]
    again(one, config_of(work, wrong))
    assert served(one) == 1 and list(status(one).config_drift) == ["m"]
    assert "models[] entry not usable" in one.log() and "would fail" in one.ctl("status")
    again(one, config_of(work, entry(work, 1)))
    assert not status(one).config_drift


# ---- versions loaded with hpsctl ------------------------------------------------------------------------

def test_version_when_loaded_with_hpsctl_then_it_is_no_drift_before_and_after_a_restart(work, daemon):
    config = config_of(work, entry(work, 1))
    entry(work, 2), entry(work, 3)
    one = daemon(config)
    one.ctl("load", "m", "--from", f"{work}/m/2", "--activate")
    for _ in range(2):
        assert served(one) == 2 and not status(one).config_drift
        assert "was loaded by hand" in status(one).notes[0]
        again(one, config)
        assert "version loaded by hand is active" in one.log() and "command=" not in one.log()
    one.ctl("rollback", "m")
    assert served(one) == 1 and not status(one).config_drift and not status(one).notes
    one.ctl("activate", "m", "2")
    again(one, config_of(work, entry(work, 3)))  # files that are not loaded yet
    assert served(one) == 2 and list(status(one).config_drift) == ["m"]
    one.ctl(*command(one))
    assert served(one) == 3 and not status(one).config_drift
    one.ctl("activate", "m", "1")  # the files that models[] named before
    for _ in range(2):
        assert served(one) == 1 and list(status(one).config_drift) == ["m"]
        again(one, config_of(work, entry(work, 3)))


def test_version_when_persistent_db_is_disabled_then_loads_and_starts_warn(work, daemon):
    entry(work, 2)
    one = daemon(config_of(work, entry(work, 1), durable=False))
    assert "versions not stored: persistent_db is disabled" in one.log()
    assert "restart" not in one.ctl("load", "m", "--config", one.config_file, "--version", "5")  # as in models[]
    assert "a restart loads models[], and forgets this version" in one.ctl(
        "load", "m", "--from", f"{work}/m/2", "--activate")
    assert "a restart forgets this version" in one.ctl("load", "n", "--from", f"{work}/m/2", "--dry-run")
    assert "version not stored" in one.log()


# ---- loads with an entry --------------------------------------------------------------------------------

def test_load_when_it_has_an_entry_then_all_options_apply_also_after_a_restart(work, daemon):
    one = daemon(config_of(work))
    whole = entry(work, 1, 7.0, label="first", lineage="run7", version=4, unknown_key_policy="error", max_batch_size=77)
    del whole["model"]
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "config:1: models[0]", "model"):
        one.load("n", "", config=json.dumps(whole))
    whole["model"] = "any"
    assert one.load("n", "", config=" " * 200_000 + json.dumps(whole)).version == 4  # as for many tables
    file = f"{work}/ps.json"
    with open(file, "w", encoding="utf-8") as f:
        json.dump(config_of(work, entry(work, 2, 9.0, unknown_key_policy="default_row", row_dtype="fp16")), f)
    one.ctl("load", "n", "--config", file, "--model", "m", "--label", "second")
    for _ in range(2):
        assert served(one, "n") == 1
        with refused(grpc.StatusCode.NOT_FOUND, str(UNKNOWN)):
            served(one, "n", UNKNOWN)
        info = version_info(one, "n", 4)
        assert (info.label, info.lineage) == ("first", "run7")
        assert json.loads(info.config)["unknown_key_policy"] == "error"
        reply = ask(one.stub(), "n", {"t": [UNKNOWN]}, version=5)
        assert floats(reply.results[0])[0, 0] == 9.0 and reply.label == "second"
        kserve = kserve_grpc.GRPCInferenceServiceStub(one.channel())
        told = kserve.ModelConfig(kserve_pb.ModelConfigRequest(name="n", version="4"), timeout=PATIENCE_S)
        assert told.config.max_batch_size == 77
        again(one, config_of(work), kill=True)


def test_load_when_models_has_the_model_then_its_serving_options_override_the_loads_entry(work, daemon):
    one = daemon(config_of(work, entry(work, 1, unknown_key_policy="error")))
    other = entry(work, 2, 9.0, unknown_key_policy="zero", hit_rate_threshold=0.25, label="x")
    notes = list(one.load("m", "", config=json.dumps(other), activate=True).notes)
    assert any(re.search(r"^options ignored.*: hit_rate_threshold, unknown_key_policy$", note) for note in notes), notes
    for _ in range(2):
        with refused(grpc.StatusCode.NOT_FOUND, str(UNKNOWN)):
            served(one, key=UNKNOWN)
        reply = ask(one.stub(), "m", {"t": [UNKNOWN]}, unknown_key_policy=pb.UNKNOWN_KEY_POLICY_DEFAULT_ROW)
        assert floats(reply.results[0])[0, 0] == 9.0 and reply.label == "x"
        assert not status(one).config_drift
        one.stop()
        one.start()


@pytest.mark.parametrize("change, words", [
    ({"directory": "/m"}, ("config: got it together with directory",)),
    ({"tables": [admin_pb.TableSource(table="t", path="/m")]}, ("config: got it together with tables",)),
    ({"config": "{"}, ("config:1",)),
    ({"label": "3"}, ("label", "digits")),
    ({"config": {"label": "a b"}}, ("label", "a b")),
    ({"config": {"sparse_files": ["/proc/self/mem"]}}, ("model_roots",)),
    ({"config": {"embedding_vecsize_per_table": [5]}}, ("5",)),
    ({"config": {"row_versions": True}}, ("persistent_db",)),
])
def test_load_when_the_entry_is_invalid_then_refused_and_no_version_exists(work, daemon, change, words):
    one = daemon(config_of(work, durable=False))
    fields = {"config": entry(work, 1), **change}
    if isinstance(fields["config"], dict):
        fields["config"] = json.dumps({**entry(work, 1), **fields["config"]})
    code = grpc.StatusCode.PERMISSION_DENIED if "model_roots" in words else grpc.StatusCode.INVALID_ARGUMENT
    with refused(code, *words):
        one.load("n", fields.pop("directory", ""), **fields)
    assert one.versions("n") == {}


def test_load_when_the_entry_has_an_embedding_cache_then_the_version_has_it(work):
    config = config_of(work, {**entry(work, 1), "gpucache": True})
    with Daemon(work, config, env={"HPS_DEVICE": "sim"}) as one:
        for share, rows in ((1.0, 20), (0.0, 0)):
            whole = {**entry(work, 2), "gpucache": True, "gpucacheper": share}
            plan = one.load("n", "", config=json.dumps(whole), dry_run=True).plan
            assert (plan.device_bytes_needed > 0) == (rows > 0)
            version = one.load("n", "", config=json.dumps(whole)).version
            until(lambda at=version, n=rows: version_info(one, "n", at).device_row_count == n, "the rows are counted")
        one.stop()
        one.start()
        assert version_info(one, "n", 1).device_bytes > 0 and version_info(one, "n", 2).device_bytes == 0


def test_load_when_the_entry_has_an_unknown_key_then_a_note_names_it(work, daemon):
    one = daemon(config_of(work))
    odd = {**entry(work, 1), "default_value_for_each_tabel": [7.0]}
    told = "default_value_for_each_tabel: unknown key, ignored; did you mean"
    assert any(told in note for note in one.load("n", "", config=json.dumps(odd), dry_run=True).notes)
    file = f"{work}/ps.json"
    with open(file, "w", encoding="utf-8") as f:
        json.dump(config_of(work, odd), f)
    assert told in one.ctl("load", "m", "--config", file)


def test_load_when_the_entrys_version_number_is_used_then_the_next_number_is_used(work, daemon):
    one = daemon(config_of(work, entry(work, 1, 1.0, version=1)))
    again(one, config_of(work, entry(work, 1, 9.0, version=1)))
    one.ctl(*command(one))
    assert one.versions("m")[2] == "active" and served(one, key=UNKNOWN) == 9.0


# ---- updates -------------------------------------------------------------------------------------------

def test_load_when_files_are_older_than_the_log_then_prints_the_start_time_of_updates(work, daemon):
    one = daemon(config_of(work, entry(work, 1, lineage="run1"), update_source=KAFKA))
    path = entry(work, 2)["sparse_files"][0]
    for name in os.listdir(os.path.dirname(path)):
        os.utime(os.path.join(os.path.dirname(path), name), (1_700_000_600, 1_700_000_600))
    said = one.ctl("load", "m", "--from", f"{work}/m/2", "--dry-run")
    assert "records since 2023-11-14T22:13:20Z are applied" in said
    assert 'lineage "run1" is that of version 1' in said
    assert 'lineage "' not in one.ctl("load", "m", "--from", f"{work}/m/2", "--lineage", "run2")
    with open(f"{work}/m/2/manifest.json", "w", encoding="utf-8") as f:
        json.dump({"format": "hpsd-manifest", "version": 1, "lineage": "run3", "tables": [{"name": "t"}],
                   "start_positions": [{"topic": "hps_et.m.t", "partition": 0, "offset": 17}]}, f)
    said = one.ctl("load", "m", "--from", f"{work}/m/2")
    assert "1 partitions start at the manifest's start_positions" in said and "run1" not in said


# ---- labels --------------------------------------------------------------------------------------------

def test_label_when_it_is_a_number_or_not_a_path_segment_then_the_load_is_refused(work, daemon):
    one = daemon(config_of(work, entry(work, 1)))
    for label in ("3", "-1", "007", "a b/ü", "a/b", "..", ".x"):
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "label: got", "not digits alone"):
            one.load("m", f"{work}/m/1", label=label)
    assert one.versions("m") == {1: "active"}
    one.load("m", f"{work}/m/1", label="2024-11-28")
    assert ask(one.stub(), "m", {"t": [1]}, label="2024-11-28").version == 2
    again(one, config_of(work, entry(work, 1, label="a b")))  # an invalid label
    assert served(one) == 1 and "a load refuses this label" in one.log()
