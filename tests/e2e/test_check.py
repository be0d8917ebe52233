# SPDX-License-Identifier: Apache-2.0
"""What `hpsd --check` says of model files, of files and words for TLS, and of properties for librdkafka."""
import json
import os
import socket
import subprocess

import numpy as np
import pytest

from rig import (BIN, GPU, PATIENCE_S, Authority, Daemon, Table, default_config, generate, model_config,
                 run_hpsd)

pytestmark = pytest.mark.one_thread


def check(work, config, *flags):
    """The finished process of `hpsd --check`; `config`: None for the flags alone."""
    args = [os.path.join(BIN, "hpsd"), "--check", "--state-dir", os.path.join(work, "state"), *flags]
    if config is not None:
        path = os.path.join(work, "checked.json")
        with open(path, "w", encoding="utf-8") as out:
            json.dump(config, out)
        args += ["--config", path]
    return subprocess.run(args, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def refused(done, *words):
    assert done.returncode == 2, done.stderr
    for word in words:
        assert word in done.stderr, done.stderr


def passed(done):
    assert done.returncode == 0, done.stderr
    assert "models[" not in done.stderr and "properties" not in done.stderr, done.stderr


def tables(work):
    one, other = Table.random("one", 50, 8), Table.random("two", 40, 4, number=1)
    return one.save_hugectr(work + "/m"), other.save(work + "/m")


def config_of(paths, dims=(8, 4), **more):
    return default_config([model_config("m", list(paths), list(dims), ["one", "two"])], **more)


def test_check_when_all_files_are_good_then_it_passes_and_opens_no_store(work):
    done = check(work, config_of(tables(work)))
    passed(done)
    assert json.loads(done.stdout)["models"][0]["model"]["value"] == "m"
    assert not os.path.exists(work + "/state")


def of_hps(work):
    """A ps.json as for HPS, with the directories of HugeCTR that it names."""
    paths = [Table.random(f"wdl{i}_sparse_2000.model", 50, dim, number=i).save_hugectr(work + "/m/1") for i, dim in ((0, 1), (1, 4))]
    return {"supportlonglong": True,
            "volatile_db": {"type": "parallel_hash_map", "overflow_policy": "evict_oldest", "allocation_rate": 1 << 28},
            "update_source": {"type": "kafka_message_queue", "brokers": "127.0.0.1:1", "receive_buffer_size": 262144},
            "models": [{"model": "wdl", "sparse_files": paths, "embedding_table_names": ["wide", "deep"],
                        "embedding_vecsize_per_table": [1, 4], "maxnum_catfeature_query_per_table_per_sample": [2, 26],
                        "default_value_for_each_table": [0.0, 0.0], "deployed_device_list": [0], "refresh_interval": 10}]}


def notes_of(config, work):
    """What the check of a file says without a state directory, [kind and option of each line]."""
    path = f"{work}/ps.json"
    with open(path, "w", encoding="utf-8") as out:
        json.dump(config, out)
    code, out, err = run_hpsd("--check", "--config", path)
    assert code == 0, err
    assert json.loads(out)["models"][0]["model"]["value"] == "wdl"
    assert not any(os.path.exists(f"{where}/admin.sock") for where in (work, os.getcwd()))
    return [tuple(line.removeprefix("hpsd: ").split(": ")[::2][:2]) for line in err.splitlines()]


def test_check_when_a_file_of_hps_is_given_alone_then_first_what_is_missing_different_and_ignored(work):
    config = of_hps(work)
    config["model"] = []  # a misspelt key
    notes = notes_of(config, work)
    if not GPU and (notes[0][1] == "models[].gpucache" or "cuda none" in run_hpsd("--version")[1]):
        assert notes.pop(0) == ("missing", "models[].gpucache")
    assert notes == [
        ("missing", "server.state_dir"),
        ("missing", "persistent_db"),
        ("missing", "server.kserve_listen"),
        ("different from HPS", "volatile_db.overflow_policy"),
        ("different from HPS", "volatile_db.memory_bytes"),
        ("different from HPS", "update_filters"),
        ("ignored", "no effect in hpsd"),
        ("warning", "model")]


def test_check_when_rows_of_hps_are_in_its_stores_then_it_says_that_they_are_not_read(work):
    config = {**of_hps(work), "volatile_db": {"type": "redis_cluster", "address": "127.0.0.1:1", "update_filters": [".+"]},
              "persistent_db": {"type": "rocks_db", "path": work + "/rocksdb", "update_filters": ["wdl"]},
              "server": {"state_dir": work + "/state"}}
    config["models"][0]["gpucache"] = False
    assert notes_of(config, work) == [("different from HPS", "volatile_db.type"),
                                      ("different from HPS", "persistent_db.path"),
                                      ("ignored", "no effect in hpsd")]
    del config["server"], config["persistent_db"]["path"]
    assert ("missing", "server.state_dir") in notes_of(config, work)


def test_check_when_files_are_wrong_then_each_table_is_named_with_its_reason(work):
    paths = tables(work)
    refused(check(work, config_of(paths, dims=(8, 5))), "checked.json: models[m]: ", 'table "two"', "two.rows.npy")
    refused(check(work, config_of(paths, dims=(7, 4))), 'table "one"', "emb_vector")
    with open(paths[0] + "/emb_vector", "ab") as out:
        out.truncate(33)
    np.save(work + "/m/two.keys.npy", np.arange(39))
    done = check(work, config_of(paths))
    refused(done, 'table "one"', 'table "two"', "not be ready")
    assert json.loads(done.stdout)["models"][0]["model"]["value"] == "m"  # what applies is printed all the same


def test_check_when_files_are_missing_then_it_is_an_error_unless_a_store_may_have_the_rows(work):
    paths = tables(work)
    config = config_of(paths)
    os.rename(paths[1], paths[1] + ".away")
    refused(check(work, config), 'table "two"', "No such file")
    os.rename(paths[1] + ".away", paths[1])
    Daemon(work, config).stop()
    os.rename(paths[1], paths[1] + ".away")
    done = check(work, config)
    assert done.returncode == 0, done.stderr
    assert "warning: " in done.stderr and 'table "two"' in done.stderr and "first start" in done.stderr
    refused(check(work, {**config, "persistent_db": {"type": "disabled"}}), 'table "two"', "No such file")
    again = Daemon(work, config)  # and so it is
    again.stop()


def test_check_when_a_manifest_says_otherwise_then_it_is_an_error(work):
    generate(work + "/m", "--tables", 2, "--rows", 100, "--dim", 4, "--format", "npy")
    config = default_config([model_config("m", [work + f"/m/t{i}.npy" for i in range(2)], [4, 4], ["a", "b"])])
    manifest = work + "/m/manifest.json"
    with open(manifest, encoding="utf-8") as text:
        said = json.load(text)
    names = [table["name"] for table in said["tables"]]
    config["models"][0]["sparse_files"] = [f"{work}/m/{name}.npy" for name in names]
    done = check(work, config)
    passed(done)
    said["tables"][1]["rows"] = 101
    with open(manifest, "w", encoding="utf-8") as text:
        json.dump(said, text)
    refused(check(work, config), 'table "b"', "expected 101 as in manifest.json")
    said["tables"][1]["rows"] = 100
    said["tables"][0]["files"][0]["bytes"] += 1
    with open(manifest, "w", encoding="utf-8") as text:
        json.dump(said, text)
    refused(check(work, config), 'table "a"', "as in manifest.json")
    with open(manifest, "w", encoding="utf-8") as text:
        text.write('{"written": "by another program"}')
    done = check(work, config)
    assert done.returncode == 0, done.stderr
    assert "warning: " in done.stderr and "manifest.json" in done.stderr


def test_check_when_tables_come_from_flags_then_their_files_are_looked_at_too(work):
    table = Table.random("items", 30, 4)
    path = table.save(work + "/m")
    passed(check(work, None, "--table", f"items={path}"))
    refused(check(work, None, "--table", f"items={path}.no"), "models[default]", 'table "items"', "No such file")


@pytest.mark.parametrize("wrong, words", [
    ("no.such.property=1", ('"no.such.property"', "No such configuration property")),
    ("security.protocol=carrier pigeon", ('"security.protocol"', "carrier pigeon")),
    ("socket.timeout.ms=-7", ('"socket.timeout.ms"',)),
    ("group.id=mine", ('"group.id"', "not to be set")),
    ("ssl.ca.location=/does/not/exist.pem", ("ssl.ca.location",)),
])
def test_check_when_a_property_is_wrong_then_it_is_named_with_librdkafkas_reason(work, wrong, words):
    config = default_config(update_source={"type": "kafka", "brokers": "127.0.0.1:1",
                                           "properties": ["security.protocol=ssl", "client.id=mine"]})
    done = check(work, config)
    passed(done)
    config["update_source"]["properties"].append(wrong)
    refused(check(work, config), "checked.json: update_source.properties", *words)


def test_check_when_files_or_words_for_tls_are_wrong_then_the_option_is_named(work):
    authority, other = Authority(work, "ca"), Authority(work, "other")
    (certificate, key), (_, other_key) = authority.issue("server"), other.issue("stranger")
    tls = {"certificate": certificate, "key": key, "client_ca": authority.path}

    def checked(**wrong):
        return check(work, default_config(server={"tls": {**tls, **wrong}}))

    passed(checked())
    refused(checked(certificate=work + "/no.crt"), "checked.json: server.tls.certificate", "/no.crt", "No such file")
    refused(checked(certificate=key), "server.tls.certificate '" + key)
    refused(checked(key=other_key), "server.tls.key '" + other_key, "mismatch")
    refused(checked(key=certificate), "server.tls.key '" + certificate)
    refused(checked(client_ca=key), "server.tls.client_ca '" + key)
    refused(checked(client_crl=authority.path), "server.tls.client_crl '" + authority.path)
    refused(checked(ciphers="ROT13"), "server.tls.ciphers 'ROT13'")
    refused(checked(ciphersuites="TLS_ROT13"), "server.tls.ciphersuites 'TLS_ROT13'")


def test_check_when_files_for_tls_to_redis_are_wrong_then_the_option_is_named(work):
    authority, other = Authority(work, "ca"), Authority(work, "other")
    (certificate, key), (_, other_key) = authority.issue("client"), other.issue("stranger")
    redis = {"type": "redis_cluster", "address": "127.0.0.1:1", "enable_tls": True, "tls_ca_certificate": authority.path,
             "tls_client_certificate": certificate, "tls_client_key": key}

    def checked(**wrong):
        return check(work, default_config(volatile_db={**redis, **wrong}))

    passed(checked())
    refused(checked(tls_ca_certificate=key), "volatile_db.tls_ca_certificate '" + key)
    refused(checked(tls_client_certificate=key), "volatile_db.tls_client_certificate '" + key)
    refused(checked(tls_client_key=other_key), "volatile_db.tls_client_key '" + other_key, "mismatch")
    passed(checked(enable_tls=False, tls_client_key=other_key))


def test_check_when_the_file_of_the_admin_token_has_none_then_the_option_is_named(work):
    refused(check(work, default_config(server={"admin_token_file": work + "/token"})), "server.admin_token_file", "/token")


def test_start_when_files_are_wrong_then_all_are_named_and_nothing_is_opened(work):
    """The port is taken, too, which is found out later."""
    for name in ("roles", "key"):
        with open(f"{work}/{name}", "w", encoding="utf-8") as out:
            out.write('{"ruels": []}')
    config = default_config(
        server={"access": f"{work}/roles", "tls": {"certificate": f"{work}/key", "key": f"{work}/key"}},
        volatile_db={"type": "redis_cluster", "address": "127.0.0.1:1", "enable_tls": True,
                     "tls_ca_certificate": f"{work}/key"},
        update_source={"type": "kafka", "brokers": "127.0.0.1:1", "properties": ["group.id=mine"]})
    with open(f"{work}/ps.json", "w", encoding="utf-8") as out:
        json.dump(config, out)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, out, err = run_hpsd("--config", f"{work}/ps.json", "--state-dir", f"{work}/state", "--listen",
                                  f"127.0.0.1:{taken.getsockname()[1]}")
    assert (code, out) == (2, ""), err
    for word in ("server.access", "ruels", "server.tls.certificate", "volatile_db.tls_ca_certificate",
                 "update_source.properties"):
        assert f"hpsd: {work}/ps.json: " in err and word in err, err
    assert not os.path.exists(f"{work}/state")


def test_start_when_the_audit_log_cannot_be_opened_then_it_is_named_before_a_port_is_opened(work):
    with open(f"{work}/ps.json", "w", encoding="utf-8") as out:
        json.dump(default_config(server={"audit_log": f"{work}/none/audit"}), out)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        _, _, err = run_hpsd("--config", f"{work}/ps.json", "--state-dir", f"{work}/state", "--listen",
                             f"127.0.0.1:{taken.getsockname()[1]}")
    assert f"{work}/none/audit" in err, err


def test_check_when_keys_are_missing_or_repeated_then_all_are_told_and_a_start_says_the_same(work):
    """Two models lack most required keys; one has a repeated key, as NVIDIA's own sample."""
    with open(f"{work}/ps.json", "w", encoding="utf-8") as out:
        out.write('{"supportlonglong": true, "models": [\n{"model": "a", "gpucache": true, "gpucache": false},\n'
                  '{"sparse_files": ["b"], "deployed_device_list": [0]}]}')
    needed = ("model", "sparse_files", "embedding_vecsize_per_table",
              "default_value_for_each_table", "deployed_device_list")
    for how in ((), ("--check",)):
        code, _, err = run_hpsd("--config", f"{work}/ps.json", "--state-dir", f"{work}/state", *how)
        assert code == 2
        assert err.splitlines() == [
            f"hpsd: warning: {work}/ps.json:2: models[0].gpucache: duplicate key; its last value "
            "is used",
            *(f'hpsd: {work}/ps.json:2: models[0]: got no "{key}", which is required' for key in needed[1:]),
            *(f'hpsd: {work}/ps.json:3: models[1]: got no "{key}", which is required' for key in needed
              if key not in ("sparse_files", "deployed_device_list"))]
