# SPDX-License-Identifier: Apache-2.0
"""The embedding cache in hpsd, on simulated devices: replies and the tiers that they came from; also when versions
switch, when a device is lost, and without devices."""
import base64
import os
import signal
import threading

import grpc
import numpy as np
import pytest

from rig import (BF16, BIN, FP16, FP32, PATIENCE_S, REPORT, SANITIZER, SLOW, Daemon, Table, ask, default_config,
                 encoded, floats, key_bytes, model_config, pb, statuses, until)

FOUND, DEFAULTED, UNKNOWN = pb.KEY_STATUS_FOUND, pb.KEY_STATUS_DEFAULTED, pb.KEY_STATUS_UNKNOWN
SIM = {"HPS_DEVICE": "sim"}
NO_GPU = {"HPS_DEVICE": "", "CUDA_VISIBLE_DEVICES": ""}
NO_HOST = {"type": "disabled"}
HOST = {"type": "parallel_hash_map", "memory_bytes": "1GiB"}


def tables_of(seed=1):
    """Tables of such sizes that the cache has space for every requested row if a twentieth of the rows is requested."""
    return {name: Table.random(name, n_rows, dim, dtype=dtype, seed=seed, number=i, default=1.5 + i)
            for i, (name, n_rows, dim, dtype) in enumerate((("a", 4000, 16, np.float32),
                                                            ("b", 3000, 3, np.float32),
                                                            ("c", 12000, 128, np.float32)))}


def entry_of(work, tables, directory="m", name="m", **model):
    """Caches with space for every row. They are empty after the load: no table is cached completely."""
    paths = [table.save(f"{work}/{directory}") for table in tables.values()]
    return model_config(name, paths, [table.dim for table in tables.values()], list(tables),
                        [table.default for table in tables.values()],
                        **{"gpucache": True, "gpucacheper": 0.95, "hit_rate_threshold": 1.0, **model})


def config_of(work, tables, server=(), volatile=None, **model):
    return default_config([entry_of(work, tables, **model)], volatile_db=volatile or NO_HOST,
                          server={"model_roots": [work], **dict(server)})


def tiers(result):
    return {count.tier: count.found_keys for count in result.tier_counts if count.found_keys}


def check(stub, tables, queries, output_type=0, **how):
    """Look up rows, check the reply, and return it."""
    reply = ask(stub, "m", queries, output_type=output_type, **how)
    for result in reply.results:
        table, keys = tables[result.table], queries[result.table]
        assert statuses(result) == [FOUND if int(key) in table.at else UNKNOWN for key in keys]
        assert result.rows == encoded(table.expect(keys), output_type)
    return reply


def sample(daemon, name, *words):
    return sum(value for full, value in daemon.metrics().items()
               if full.split("{")[0] == f"hpsd_{name}" and all(word in full for word in words))


def some_keys(tables, n, seed):
    """Keys with duplicates and with unknown keys."""
    rng = np.random.default_rng(seed)
    return {name: np.append(rng.choice(table.keys, n), rng.integers(2**61, 2**61 + 50, 10))
            for name, table in tables.items()}


def known_of(table, keys):
    """The known keys, in the order of the request."""
    return [int(key) for key in keys if int(key) in table.at]


@pytest.mark.parametrize("path", ["auto", "gpu", "host"])
@pytest.mark.parametrize("volatile", [NO_HOST, {"type": "hash_map", "memory_bytes": "4MiB"}],
                         ids=["no host map", "small host map"])
@pytest.mark.one_thread
def test_lookups_when_the_cache_is_cold_or_warm_then_exact_and_at_last_from_the_device(work, path, volatile):
    tables = tables_of()
    config = config_of(work, tables, server={"lookup_path": path}, volatile=volatile)
    with Daemon(work, config, env=SIM) as daemon:
        stub = daemon.stub()
        for round_number, output_type in enumerate((FP32, FP16, BF16, 0)):
            queries = some_keys(tables, 200, seed=0)
            reply = check(stub, tables, queries, output_type, explain=True)
            for result in reply.results:
                known = known_of(tables[result.table], queries[result.table])
                found = tiers(result)
                if found.keys() == {"gpu"} and (volatile is NO_HOST or path == "gpu"):  # counts duplicates
                    assert found["gpu"] == len(known)
                    continue
                known = set(known)
                assert sum(found.values()) == len(known)
                if volatile is NO_HOST:
                    assert round_number == 0 and found == {"rocksdb": len(known)}
                elif round_number > 0:
                    assert found == {"host": len(known)} and path != "gpu"
            if round_number > 0 and volatile is NO_HOST:
                assert any("gpu (ok) found" in note for note in reply.explain.notes), reply.explain.notes
        hits = {name: sample(daemon, "tier_keys_total", f'table="{name}"', 'tier="gpu"', 'result="hit"')
                for name in tables}
        if volatile is NO_HOST:
            for name, table in tables.items():
                assert hits[name] == 3 * len(known_of(table, queries[name]))
        assert sample(daemon, "tier_up", 'tier="gpu"', 'node="0"') == 1
        n_rows = until(lambda: sample(daemon, "tier_rows", 'tier="gpu"'), "rows on the device")
        assert 0 < sample(daemon, "tier_used_bytes", 'tier="gpu"') < sample(daemon, "tier_capacity_bytes",
                                                                          'tier="gpu"')
        assert sample(daemon, "insertion_rows_total", 'tier="gpu"') >= n_rows


@pytest.mark.one_thread
def test_explain_when_a_key_is_on_the_device_then_reports_the_gpu_tier(work):
    tables = tables_of()
    table = tables["a"]
    with Daemon(work, config_of(work, tables), env=SIM) as daemon:
        def told(key):
            tiers = daemon.ctl("-o", "json", "explain", "m", "a", key)[0]["tiers"]
            return {tier["tier"]: tier.get("found", False) for tier in tiers}, tiers[0]

        key = 0
        assert told(key)[0] == {"gpu": False, "rocksdb": True}
        check(daemon.stub(), tables, {"a": [key]})
        found, gpu = told(key)
        assert found == {"gpu": True, "rocksdb": True}
        assert base64.b64decode(gpu["row"]) == table.rows[table.at[key]].tobytes() and not gpu.get("error")
        assert "gpu" in daemon.ctl("explain", "m", "a", key)


def test_lookups_when_concurrent_then_each_reply_is_exact(work):
    tables = tables_of()
    config = config_of(work, tables, volatile=HOST, server={"lookup_path": "gpu"}, gpucacheper=0.1)
    failures = []
    with Daemon(work, config, env={"HPS_DEVICE": "sim:seed=5,delay_us=200"}) as daemon:

        def client(seed):
            try:
                stub = daemon.stub()
                for i in range(9 if SANITIZER else 25):
                    n = (1, 20, 3000)[i % 3]
                    check(stub, tables, some_keys(tables, n, seed=seed * 100 + i))
            except BaseException as error:  # pylint: disable=broad-except
                failures.append(error)

        threads = [threading.Thread(target=client, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures[0]
        assert sample(daemon, "tier_keys_total", 'tier="gpu"', 'result="hit"') > 0
        assert sample(daemon, "tier_evictions_total", 'tier="gpu"') > 0
        until(lambda: sample(daemon, "tier_evictions_total", 'tier="gpu"') == sum(
            sample(daemon, "tier_evictions_total", 'tier="gpu"', f'table="{name}"') for name in tables),
            "changes behind the last answers")


@pytest.mark.one_thread
def test_metrics_when_the_cache_is_small_then_insertions_and_refusals_are_counted(work):
    tables = tables_of()
    with Daemon(work, config_of(work, tables, gpucacheper=0.05), env=SIM) as daemon:
        stub = daemon.stub()

        def of(name, *words):
            return sample(daemon, name, 'tier="gpu"', *words)

        for seed in range(5):
            check(stub, tables, some_keys(tables, 1000, seed))
        # Inserted rows are cached or were evicted; the other rows that lower tiers returned are refused.
        seen = [0]

        def stands_still():
            seen.append(of("insertion_rows_total") + of("tier_refusals_total"))
            return seen[-1] > 5000 and seen[-1] == seen[-2]

        until(stands_still, "all that was offered", step_s=0.1)
        until(lambda: of("insertion_rows_total") - of("tier_evictions_total") == of("tier_rows"), "the rows")
        assert of("tier_refusals_total") > of("insertion_rows_total")
        found = daemon.ctl("-o", "json", "tables")[0]["tables"]
        for info in found:
            ratio = of("tier_resident_ratio", f'table="{info["table"]}"', 'version="1"')
            assert 0 < ratio < 0.2
            assert ratio == pytest.approx(int(info["device_row_count"]) / int(info["row_count"]))
            assert int(info["device_bytes"]) > 0
        lines = daemon.ctl("tables").splitlines()
        assert "GPU SHARE" in lines[0] and len(lines) == 1 + len(tables) and lines[1].rstrip().endswith("%")


def test_versions_when_switched_then_each_has_its_own_caches(work):
    first, second = tables_of(seed=1), tables_of(seed=2)
    with Daemon(work, config_of(work, first), env=SIM) as daemon:
        stub = daemon.stub()
        for table in second.values():
            table.save(work + "/v2")
        old, new = some_keys(first, 200, 1), some_keys(second, 200, 2)

        def twice(tables, queries, version=0):
            check(stub, tables, queries, version=version)
            for result in check(stub, tables, queries, version=version).results:
                assert set(tiers(result)) == {"gpu"}

        twice(first, old)
        used = daemon.ctl("-o", "json", "models")[0]["models"][0]["versions"][0]
        assert int(used["device_bytes"]) > 0 and int(used["device_row_count"]) > 0
        daemon.load("m", work + "/v2", activate=True)
        twice(second, new)
        twice(first, old, version=1)
        assert sample(daemon, "tier_used_bytes", 'tier="gpu"', 'version="1"') > 0
        assert sample(daemon, "tier_used_bytes", 'tier="gpu"', 'version="2"') > 0
        daemon.ctl("rollback", "m")
        twice(first, old)
        twice(second, new, version=2)
        daemon.ctl("unload", "m", 2)
        twice(first, old)
        gpu = [tier for tier in daemon.ctl("-o", "json", "status")[0]["tiers"] if tier["tier"] == "gpu"]
        assert len(gpu) == 1 and gpu[0]["up"] and gpu[0]["note"] == "device 0: simulated device 0"
        assert int(gpu[0]["used_bytes"]) == int(used["device_bytes"])  # the memory of version 2 is free again
        assert not [name for name in daemon.metrics() if 'version="2"' in name]
        assert "device memory" in daemon.ctl("load", "m", "--from", work + "/v2", "--dry-run")
        daemon.stop()
        daemon.restart()
        stub = daemon.stub()
        twice(first, old)


@pytest.mark.one_thread
def test_versions_when_both_do_not_fit_then_the_active_one_gets_its_caches(work):
    first, second = tables_of(seed=1), tables_of(seed=2)
    config = config_of(work, first)
    with Daemon(work, config, env=SIM) as daemon:
        used = int(daemon.ctl("-o", "json", "models")[0]["models"][0]["versions"][0]["device_bytes"])
    config["server"]["gpu_memory_bytes"] = used * 3 // 2
    with Daemon(work, config, env=SIM) as daemon:
        stub = daemon.stub()
        for table in second.values():
            table.save(work + "/v2")
        daemon.load("m", work + "/v2")

        def from_gpu(tables, queries):
            return all(set(tiers(result)) == {"gpu"} for result in check(stub, tables, queries).results)

        old, new = some_keys(first, 200, 1), some_keys(second, 200, 2)
        until(lambda: from_gpu(first, old), "version 1 on the device")
        versions = daemon.ctl("-o", "json", "models")[0]["models"][0]["versions"]
        assert [version.get("device_note", "") for version in versions] == ["", "no device memory for 1 of 3 tables"]
        assert "no device memory for 1 of 3" in daemon.ctl("models").splitlines()[2]
        assert "no device memory for 1 table" in daemon.ctl("status")
        for _ in range(2):
            for result in check(stub, second, new, version=2).results:
                assert result.table != "c" or "gpu" not in tiers(result)
        daemon.ctl("activate", "m", 2)
        until(lambda: from_gpu(second, new), "version 2 on the device")
        check(stub, first, old, version=1)
        daemon.ctl("rollback", "m")
        until(lambda: from_gpu(first, old), "version 1 on the device again")


def all_from_gpu(stub, tables, version=0, n_keys=None):
    """Check that the first n_keys keys of each table (None: all) have correct rows from the device."""
    for name, table in tables.items():
        for at in range(0, len(table.keys[:n_keys]), 3000):
            keys = table.keys[:n_keys][at:at + 3000]
            result = ask(stub, "m", {name: keys}, version=version).results[0]
            assert set(statuses(result)) == {FOUND}
            assert result.rows == encoded(table.expect(keys), 0)
            assert tiers(result) == {"gpu": len(keys)}


@pytest.mark.parametrize("model", [{"gpucacheper": 1.0}, {"embedding_cache_type": "static", "gpucacheper": 0.1}],
                         ids=["all rows", "static"])
@pytest.mark.one_thread
def test_complete_tables_when_loaded_restarted_or_switched_then_all_rows_are_cached(work, model):
    first, second = tables_of(seed=1), tables_of(seed=2)
    config = config_of(work, first, hit_rate_threshold=0.0, **model)

    def ratios(version):
        return [sample(daemon, "tier_resident_ratio", 'tier="gpu"', f'table="{name}"', f'version="{version}"')
                for name in first]

    with Daemon(work, config, env=SIM) as daemon:
        all_from_gpu(daemon.stub(), first)
        assert ratios(1) == [1, 1, 1]
        for table in second.values():
            table.save(work + "/v2")
        daemon.load("m", work + "/v2", activate=True)
        all_from_gpu(daemon.stub(), second)
        assert ratios(2) == [1, 1, 1]
        assert not [v for v in daemon.ctl("-o", "json", "models")[0]["models"][0]["versions"] if v.get("device_note")]
        daemon.stop()
        daemon.restart()
        until(lambda: daemon.log().count('msg="embedding caches filled"') == 2, "the caches of both versions")
        filled = [line for line in daemon.log().splitlines() if 'msg="embedding caches filled"' in line]
        assert all("end=done" in line and "gpu_rows=19000" in line for line in filled)
        all_from_gpu(daemon.stub(), second)
        all_from_gpu(daemon.stub(), first, version=1)


@pytest.mark.one_thread
def test_complete_tables_when_not_all_fit_then_tables_that_fit_are_cached_completely(work):
    tables = tables_of()
    config = config_of(work, tables, hit_rate_threshold=0.0, gpucacheper=1.0, server={"gpu_memory_bytes": 1 << 20})
    with Daemon(work, config, env=SIM) as daemon:
        stub = daemon.stub()
        version = daemon.ctl("-o", "json", "models")[0]["models"][0]["versions"][0]
        assert version["device_note"] == "no device memory for 1 of 3 tables"
        says = [line for line in daemon.log().splitlines() if "embedding caches incomplete" in line]
        assert says and all("tables=c " in line for line in says)
        all_from_gpu(stub, {name: tables[name] for name in "ab"})
        for _ in range(2):  # without a cache each reply is exact
            result = ask(stub, "m", {"c": tables["c"].keys[:500]}).results[0]
            assert set(statuses(result)) == {FOUND} and tiers(result) == {"rocksdb": 500}
        assert "no device memory for 1 table" in daemon.ctl("status")


@pytest.mark.one_thread
def test_threshold_when_a_set_is_full_then_no_key_is_defaulted_twice_in_a_row(work):
    """With 10,000 keys, one row in a hundred finds its set full and uses an overflow slot. With more keys, overflow
    slots are sometimes full, too."""
    tables, n_keys = {"c": tables_of()["c"]}, 10000
    keys = tables["c"].keys[:n_keys]
    with Daemon(work, config_of(work, tables, hit_rate_threshold=0.0), env=SIM) as daemon:
        stub, before = daemon.stub(), set()
        for round_number in range(3):
            now = set()
            for at in range(0, len(keys), 2000):
                result = ask(stub, "m", {"c": keys[at:at + 2000]}).results[0]
                now |= {int(key) for key, status in zip(keys[at:at + 2000], statuses(result)) if status == DEFAULTED}
            assert not now & before, f"round {round_number}: {len(now & before)} keys defaulted again"
            before = now
            until(lambda: sample(daemon, "insertion_queue_rows") == 0, "the rows behind the answers")
        all_from_gpu(stub, tables, n_keys=n_keys)


@pytest.mark.parametrize("init_ec", [True, False])
@pytest.mark.one_thread
def test_start_when_hot_keys_are_stored_then_init_ec_decides_whether_the_cache_is_warm(work, init_ec):
    tables = tables_of()
    config = config_of(work, tables, volatile=HOST, server={"lookup_path": "gpu"}, init_ec=init_ec)
    with Daemon(work, config, env=SIM) as daemon:
        stub = daemon.stub()
        hot = {name: table.keys[:200] for name, table in tables.items()}
        for _ in range(40):
            check(stub, tables, hot)
        daemon.stop()
        daemon.restart()
        if not init_ec:
            until(lambda: daemon.get("/readyz")[0] == 200, "ready")
            assert sample(daemon, "tier_rows", 'tier="gpu"') == 0
            return
        until(lambda: "memory warmed up" in daemon.log(), "the warm-up")
        until(lambda: sample(daemon, "insertion_rows_total", 'tier="gpu"') > 300, "the rows of the warm-up")
        found = [tiers(result).get("gpu", 0) for result in check(daemon.stub(), tables, hot).results]
        assert sum(found) > 300


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
def test_stop_when_a_slow_device_has_lookups_then_hpsd_exits_with_0(work, number):
    tables = tables_of()
    config = config_of(work, tables, server={"drain_timeout_ms": 1})
    with Daemon(work, config, env={"HPS_DEVICE": "sim:delay_us=20000"}) as daemon:
        stub = daemon.stub()
        calls = [stub.Lookup.future(pb.LookupRequest(
            model="m", queries=[pb.TableQuery(table="a", keys=key_bytes(tables["a"].keys[i:i + 50]))]))
            for i in range(64)]
        until(lambda: sample(daemon, "tier_keys_total", 'tier="gpu"') > 0, "the first answers")
        daemon.send(number)
        assert daemon.wait_end() == 0
        for call in calls:
            assert call.exception(PATIENCE_S) is None or call.code() in (
                grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED), call.code()
        assert not REPORT.search(daemon.log()), daemon.log()
        daemon.process = None


def test_devices_when_a_model_names_several_then_each_has_a_copy_of_its_caches(work):
    one, two = tables_of(seed=1), tables_of(seed=2)
    config = config_of(work, one, deployed_device_list=[1, 0])
    config["models"].append(entry_of(work, two, "n", "n"))
    with Daemon(work, config, env=SIM) as daemon:
        stub = daemon.stub()
        for name, tables, n_devices in (("m", one, 2), ("n", two, 1)):
            queries = {"a": tables["a"].keys[:100]}
            for where in ["rocksdb", "gpu"] if n_devices == 1 else ["rocksdb", "rocksdb", "gpu", "gpu"]:
                result = ask(stub, name, queries).results[0]
                assert result.rows == encoded(tables["a"].expect(queries["a"]), 0)
                assert tiers(result) == {where: 100}
        nodes = {node: sample(daemon, "tier_up", 'tier="gpu"', f'node="{node}"') for node in "01"}
        assert nodes == {"0": 1, "1": 1}

        def rows():
            return {tier["note"]: int(tier["row_count"])
                    for tier in daemon.ctl("-o", "json", "status")[0]["tiers"] if tier["tier"] == "gpu"}
        until(lambda: rows() == {"device 1: simulated device 1": 100, "device 0: simulated device 0": 200},
              "the rows of both")


# ---- without a device ----------------------------------------------------------------------------------

@pytest.mark.one_thread
def test_gpucache_when_there_is_no_gpu_then_logs_it_once_and_replies_are_exact(work):
    tables = tables_of()
    config = config_of(work, tables, volatile=HOST, hit_rate_threshold=0.0)
    with Daemon(work, config, env=NO_GPU) as daemon:
        says = [line for line in daemon.log().splitlines() if "embedding caches off" in line]
        assert len(says) == 1 and "every answer is exact" in says[0] and "no usable GPU" in says[0]
        stub = daemon.stub()
        for seed in range(3):
            for result in check(stub, tables, some_keys(tables, 1000, seed)).results:
                assert "gpu" not in tiers(result)
        gpu = [tier for tier in daemon.ctl("-o", "json", "status")[0]["tiers"] if tier["tier"] == "gpu"]
        assert len(gpu) == 1 and not gpu[0].get("up") and gpu[0]["note"] == "device 0: no GPU"
        assert not [name for name in daemon.metrics() if name.startswith('hpsd_tier_up{tier="gpu"')]  # no alert
        assert sample(daemon, "build_info", "cuda=") == 1


@pytest.mark.one_thread
def test_start_when_a_required_device_is_missing_then_exit_1(work):
    config = config_of(work, tables_of(), server={"on_device_loss": "exit"})
    with pytest.raises(AssertionError, match="ended with 1 before it was listening(.|\n)*no usable GPU"):
        Daemon(work, config, env=NO_GPU)
    with pytest.raises(AssertionError, match="ended with 2 before it was listening(.|\n)*HPS_DEVICE: got"):
        Daemon(work, config, env={"HPS_DEVICE": "sim:fial=1"})


def test_hpsd_when_hps_device_is_sim_then_it_has_no_simulated_device(work):
    """Only hpsd-sim has simulated devices."""
    held = {}
    for name in ("hpsd", "hpsd-sim"):
        with open(os.path.join(BIN, name), "rb") as f:
            data = f.read()
        held[name] = [mark in data for mark in (b"simulated device %d", b"hps_simt_run", b"HPS_DEVICE: got")]
    assert held == {"hpsd": [False] * 3, "hpsd-sim": [True] * 3}
    with Daemon(work, config_of(work, tables_of(), volatile=HOST), wrapper=["env", "HPS_DEVICE=sim"],
                env=NO_GPU) as daemon:
        gpu = [tier for tier in daemon.ctl("-o", "json", "status")[0]["tiers"] if tier["tier"] == "gpu"]
        assert [tier["note"] for tier in gpu] == ["device 0: no GPU"]


# ---- lost devices --------------------------------------------------------------------------------------

def test_loss_when_policy_is_degrade_then_replies_stay_exact_and_status_reports_it(work):
    tables = tables_of()
    with Daemon(work, config_of(work, tables, volatile=HOST, server={"lookup_path": "gpu"}),
                env={"HPS_DEVICE": "sim:fail=400"}) as daemon:
        failures = []
        lost = threading.Event()

        def client(seed):
            try:
                stub, i = daemon.stub(), 0
                while not lost.is_set():
                    check(stub, tables, some_keys(tables, (5, 300, 4000)[i % 3], seed=seed * 1000 + i))
                    i += 1
            except BaseException as error:  # pylint: disable=broad-except
                failures.append(error)

        threads = [threading.Thread(target=client, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        try:
            until(lambda: failures or sample(daemon, "tier_up", 'tier="gpu"') == 0, "the loss")
            until(lambda: failures or "serving degraded: a device is lost" in daemon.log(), "what is done")
        finally:
            lost.set()
            for thread in threads:
                thread.join()
        assert not failures, failures[0]
        assert daemon.log().count('msg="device lost:') == 1
        stub = daemon.stub()
        for seed in range(3):
            for result in check(stub, tables, some_keys(tables, 500, seed)).results:
                assert "gpu" not in tiers(result)
        gpu = [tier for tier in daemon.ctl("-o", "json", "status")[0]["tiers"] if tier["tier"] == "gpu"]
        assert not gpu[0].get("up") and gpu[0]["note"].endswith("lost")
        daemon.load("m", work + "/m", activate=True)
        check(stub, tables, some_keys(tables, 500, 9))
        daemon.ctl("unload", "m", 1)
        assert daemon.get("/readyz")[0] == 200


@pytest.mark.one_thread
def test_loss_when_threshold_did_not_wait_then_lookups_wait_afterwards(work):
    tables = {"a": tables_of()["a"]}
    table = tables["a"]
    with Daemon(work, config_of(work, tables, hit_rate_threshold=0.0),
                env={"HPS_DEVICE": "sim:fail=300"}) as daemon:
        stub = daemon.stub()
        first = ask(stub, "m", {"a": table.keys[:100]}).results[0]
        assert statuses(first) == [DEFAULTED] * 100

        def turn():
            result = ask(stub, "m", {"a": table.keys}).results[0]
            wanted = table.expect(table.keys)
            wanted[np.array(statuses(result)) != FOUND] = table.default
            assert floats(result).tobytes() == wanted.tobytes()
            return "serving degraded: a device is lost" in daemon.log()

        until(turn, "the loss")
        check(stub, tables, {"a": table.keys})


@pytest.mark.one_thread
def test_loss_when_async_without_gpu_is_set_then_threshold_uses_the_host_map(work):
    tables = {"c": tables_of()["c"]}
    config = config_of(work, tables, volatile={"type": "hash_map", "memory_bytes": "4MiB"}, hit_rate_threshold=0.0,
                       server={"async_without_gpu": True, "lookup_path": "gpu", "hot_keys_bytes": 0})
    with Daemon(work, config, env={"HPS_DEVICE": "sim:fail=300"}) as daemon:
        stub, rng = daemon.stub(), np.random.default_rng(3)

        def turn():
            ask(stub, "m", {"c": rng.choice(tables["c"].keys[:2000], 200)})
            return "serving degraded: a device is lost" in daemon.log()

        until(turn, "the loss")
        # More keys than fit into the map, and none that was fetched often, so lookups do not wait for them.
        result = ask(stub, "m", {"c": tables["c"].keys[2000:]}).results[0]
        assert result.defaulted_key_count > 0
        assert set(statuses(result)) <= {FOUND, DEFAULTED}


@pytest.mark.parametrize("policy, device, says", [
    ("exit", "fail=300", "draining: a device is lost"),
    ("degrade", f"hang=200,stall_us={int(3e6 * SLOW)}", "device hung: a call of its driver has not returned"),
])
def test_loss_when_policy_is_exit_or_the_driver_hangs_then_exit_1_and_a_restart_serves(work, policy, device, says):
    tables = tables_of()
    config = config_of(work, tables, server={"on_device_loss": policy, "lookup_path": "gpu"})
    daemon = Daemon(work, config, env={"HPS_DEVICE": f"sim:{device}"})
    try:
        stub, seed = daemon.stub(), 0
        while daemon.alive():
            try:
                check(stub, tables, some_keys(tables, 300, seed))
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.UNAVAILABLE, error
            seed += 1
            assert seed < 100000
        assert daemon.wait_end(PATIENCE_S) == 1
        assert says in daemon.log()
        daemon.close_channels()
        daemon.env["HPS_DEVICE"] = "sim"
        daemon.start()
        check(daemon.stub(), tables, some_keys(tables, 300, 1))
        assert sample(daemon, "tier_up", 'tier="gpu"') == 1
        daemon.stop()
    finally:
        daemon.kill()


@pytest.mark.one_thread
def test_loss_when_at_startup_then_hpsd_serves_without_the_device(work):
    tables = tables_of()
    for n in (1, 5):
        with Daemon(work, config_of(work, tables), env={"HPS_DEVICE": f"sim:fail={n}"},
                    state=f"s{n}") as daemon:
            check(daemon.stub(), tables, some_keys(tables, 100, n))
