# SPDX-License-Identifier: Apache-2.0
"""Redis as a tier of hpsd: lookups, the keys that loads, switches and unloads leave in Redis, and failures of Redis."""
import json
import os
import shutil
import signal
import subprocess

import grpc
import numpy as np
import pytest

import ports
import redis
from rig import (BIN, SLOW, Authority, Table, admin_pb, ask, default_config, floats, generate, hpsgen, model_config,
                 refused, until)

pytestmark = pytest.mark.skipif(redis.missing() is not None, reason=redis.missing() or "")

N_SHARDS = 8
# The permissions that a daemon needs, as in docs/redis.md.
ACL = ["resetkeys", "~hpsd:*", "-@all", "+@hash", "+@sortedset", "+@scripting", "+@connection", "+unlink", "+pexpire",
       "+rename", "+time", "+cluster|slots"]


def config_of(work, address, models=(), durable=True, **volatile):
    volatile = {"type": "redis_cluster", "address": address, "num_partitions": N_SHARDS,
                "redis_command_timeout_ms": int(1000 * SLOW), **volatile}
    return default_config(models, durable=durable, server={"model_roots": [work]}, volatile_db=volatile)


def model_of(table, directory):
    return model_config("m", [table.save(directory)], [table.dim], [table.name], gpucache=False)


def shards(*nodes):
    """{name of a shard: number of its rows} of all servers."""
    found = {}
    for node in nodes:
        for name in node.ask("KEYS", "hpsd:*"):
            if name.endswith("}") and node.ask("TYPE", name) == "hash":
                found[name] = node.ask("HLEN", name) - 2
    return found


def n_rows(*nodes):
    return sum(shards(*nodes).values())


def check(daemon, table, keys=None, **fields):
    """Check all rows; {tier: number of keys found in it}."""
    keys = table.keys if keys is None else keys
    result = ask(daemon.stub(), "m", {table.name: keys}, **fields).results[0]
    np.testing.assert_array_equal(floats(result), table.expect(keys))
    return {count.tier: count.found_keys for count in result.tier_counts}


def has_leases(server, n):
    def leases():
        names = [name for name in server.ask("KEYS", "hpsd:*") if name.endswith(":leases")]
        return names and all(server.ask("ZCARD", name) == n for name in names)
    until(leases, f"{n} leases")


@pytest.fixture(name="server")
def server_fixture(work):
    with redis.Redis(os.path.join(work, "redis")) as server:
        yield server


@pytest.mark.parametrize("address", ["redis://10.0.0.1:7001", "10.0.0.1:99999", "10.0.0.1:7001,::1:7001"])
def test_check_when_an_address_is_invalid_then_the_error_names_it(work, address):
    file = os.path.join(work, "ps.json")
    with open(file, "w", encoding="utf-8") as out:
        json.dump({**config_of(work, address), "server": {"state_dir": work}}, out)
    done = subprocess.run([os.path.join(BIN, "hpsd"), "--config", file, "--check"], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 2
    assert f"{file}: volatile_db.address: " in done.stderr
    assert address.split(",")[-1] in done.stderr


# ---- above RocksDB -----------------------------------------------------------------------------------

def test_load_when_redis_is_above_rocksdb_then_redis_gets_and_returns_all_rows(daemon, work, server):
    table = Table.random("a", 3000, 8)
    one = daemon(config_of(work, server.address, [model_of(table, work + "/m")]))
    assert sorted(shards(server)) and len(shards(server)) == N_SHARDS
    assert n_rows(server) == len(table.keys)
    assert check(one, table) == {"redis": len(table.keys)}
    unknown = np.setdiff1d(np.arange(1000, 1100), table.keys)
    assert check(one, table, unknown) == {}
    one.kill()
    one.start()
    assert check(one, table) == {"redis": len(table.keys)}
    server.kill()
    assert check(one, table) == {"rocksdb": len(table.keys)}


def test_serve_when_redis_is_a_cluster_then_its_masters_share_the_rows(daemon, work):
    table = Table.random("a", 3000, 8)
    with redis.Cluster(os.path.join(work, "redis"), masters=3, replicas=0) as cluster:
        one = daemon(config_of(work, cluster.nodes[1].address, [model_of(table, work + "/m")]))
        assert n_rows(*cluster.nodes) == len(table.keys)
        assert sum(1 for node in cluster.nodes if shards(node)) > 1
        assert check(one, table) == {"redis": len(table.keys)}


def test_serve_when_redis_has_a_unix_socket_then_it_is_used(daemon, work):
    table = Table.random("a", 500, 8)
    path = os.path.join(work, "redis.sock")
    with redis.Redis(os.path.join(work, "redis"), unixsocket=path) as server:
        one = daemon(config_of(work, "unix:" + path, [model_of(table, work + "/m")]))
        assert n_rows(server) == len(table.keys)
        assert check(one, table) == {"redis": len(table.keys)}


def secured(work):
    """A server that requires client certificates of one CA, and a user with only the permissions that a daemon
    needs."""
    authority = Authority(work, "ca")
    certificate, key = authority.issue("server")
    port = ports.take()
    server = redis.Redis(os.path.join(work, "redis"), tls_port=port, tls_cert_file=certificate, tls_key_file=key,
                         tls_ca_cert_file=authority.path)
    server.ask("ACL", "SETUSER", "fleet", "on", ">secret", *ACL)
    certificate, key = authority.issue("client")
    return server, f"localhost:{port}", {
        "enable_tls": True, "user_name": "fleet", "password": "secret", "tls_ca_certificate": authority.path,
        "tls_client_certificate": certificate, "tls_client_key": key}


def test_serve_when_redis_requires_certificates_and_a_password_then_hpsd_connects(daemon, work):
    table = Table.random("a", 500, 8)
    server, address, volatile = secured(work)
    with server:
        one = daemon(config_of(work, address, [model_of(table, work + "/m")], overflow_policy="least_used", **volatile))
        assert n_rows(server) == len(table.keys)
        assert check(one, table) == {"redis": len(table.keys)}
        one.load("m", work + "/m", activate=True)
        one.ctl("unload", "m", 1)
        assert n_rows(server) == len(table.keys)
        assert server.ask("ACL", "LOG") == []


@pytest.mark.parametrize("wrong", [{"password": "wrong"}, {"tls_server_name_identification": "redis.example"},
                                   {"tls_client_certificate": "", "tls_client_key": ""}])
def test_serve_when_redis_refuses_the_daemon_then_rows_come_from_rocksdb(daemon, work, wrong):
    table = Table.random("a", 500, 8)
    server, address, volatile = secured(work)
    with server:
        one = daemon(config_of(work, address, [model_of(table, work + "/m")], **{**volatile, **wrong}))
        assert check(one, table) == {"rocksdb": len(table.keys)}
        assert n_rows(server) == 0
        assert "shared tier not seeded" in one.log()
        if "password" in wrong:
            assert "WRONGPASS" in next(line for line in one.log().splitlines() if "shared tier not seeded" in line)


def test_reload_when_certificates_for_redis_are_renewed_then_connections_use_them(daemon, work):
    table = Table.random("a", 500, 8)
    server, address, volatile = secured(work)
    every = {"redis": len(table.keys)}
    with server:
        one = daemon(config_of(work, address, [model_of(table, work + "/m")], **volatile))
        assert check(one, table) == every
        other = Authority(work, "other")
        (certificate, key), (own, own_key) = other.issue("other-server"), other.issue("other-client")
        with open(volatile["tls_client_certificate"], "w", encoding="utf-8") as f:
            f.write("none")
        one.send(signal.SIGHUP)
        until(lambda: any("not reloaded" in line and volatile["tls_client_certificate"] in line
                          for line in one.log().splitlines()), "a refusal that names the file")
        server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        until(lambda: check(one, table) == every, "connections with the certificate that there was")
        server.ask("CONFIG", "SET", "tls-ca-cert-file", other.path, "tls-cert-file", certificate, "tls-key-file", key)
        server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        until(lambda: check(one, table) != every, "a server of another authority")
        for path, name in ((other.path, "tls_ca_certificate"), (own, "tls_client_certificate"),
                           (own_key, "tls_client_key")):
            shutil.copy(path, volatile[name])
        one.send(signal.SIGHUP)
        until(lambda: check(one, table) == every, "connections with the new certificates")


def test_switch_when_versions_are_in_redis_then_each_has_its_rows_until_it_is_unloaded(daemon, work, server):
    for seed in (1, 2):
        generate(f"{work}/v{seed}", "--tables", 2, "--rows", 300, "--dim", 4, "--seed", seed)
    one = daemon(config_of(work, server.address))
    keys = np.arange(300)
    for version in (1, 2):
        one.load("m", f"{work}/v{version}", activate=True)
        assert len(shards(server)) == version * N_SHARDS
        assert n_rows(server) == version * 600
    for version in (1, 2):
        reply = ask(one.stub(), "m", {"feature_0": keys}, version=version)
        np.testing.assert_array_equal(floats(reply.results[0]), hpsgen.rows(version, 0, keys, 4))
        assert reply.results[0].tier_counts[0].tier == "redis"
    has_leases(server, 1)
    one.ctl("unload", "m", 1)
    assert n_rows(server) == 600
    assert all("m/2/" in name for name in server.ask("KEYS", "hpsd:*"))
    one.ctl("unload", "m", 2)
    assert server.ask("KEYS", "hpsd:*") == []


def test_unload_when_another_daemon_has_the_version_then_its_rows_stay(daemon, work, server):
    table = Table.random("a", 500, 8)
    config = config_of(work, server.address, [model_of(table, work + "/m")])
    one, two = daemon(config), daemon(config, state="other")
    has_leases(server, 2)
    one.ctl("unload", "m", 1)
    assert n_rows(server) == len(table.keys)
    assert check(two, table) == {"redis": len(table.keys)}
    two.ctl("unload", "m", 1)
    assert server.ask("KEYS", "hpsd:*") == []


def test_load_when_redis_is_down_then_rocksdb_serves_and_the_next_load_fills_redis(daemon, work, server):
    table = Table.random("a", 500, 8)
    server.kill()
    one = daemon(config_of(work, server.address, [model_of(table, work + "/m")], redis_connect_timeout_ms=50))
    assert check(one, table) == {"rocksdb": len(table.keys)}
    assert "Redis nodes unreachable" in one.log()
    server.start()

    def loaded():
        one.load("m", work + "/m", activate=True)
        return n_rows(server)
    until(loaded, "a load that reaches Redis", step_s=0.2)
    until(lambda: check(one, table) == {"redis": len(table.keys)}, "rows from Redis")


def test_unload_when_redis_hangs_then_a_restart_removes_the_rows_later(daemon, work, server):
    table = Table.random("a", 500, 8)
    one = daemon(config_of(work, server.address, [model_of(table, work + "/m")]))
    one.load("m", work + "/m", activate=True)
    has_leases(server, 1)
    server.pause()
    one.ctl("unload", "m", 1)
    assert one.versions("m") == {2: "active"}
    assert "left in the shared tier" in one.log()
    one.kill()
    server.resume()
    assert n_rows(server) == 2 * len(table.keys)
    one.start()
    until(lambda: all("m/2/" in name for name in server.ask("KEYS", "hpsd:*")), "the end of version 1")
    assert check(one, table) == {"redis": len(table.keys)}


def test_load_when_killed_while_it_fills_redis_then_the_next_start_removes_its_rows(daemon, work, server):
    one = daemon(config_of(work, server.address))
    Table.random("a", 200_000, 16).save(work + "/m")

    def is_filled():
        return any(":load:" in name for name in server.ask("KEYS", "hpsd:*"))

    def is_killed_on_the_way():
        load = one.admin_stub().LoadModel(admin_pb.LoadModelRequest(model="m", directory=work + "/m"))
        until(is_filled, "the first rows", step_s=0.001)
        server.pause()  # the load cannot complete
        one.kill()
        load.cancel()
        server.resume()
        # By then the server has executed the commands that were sent.
        until(lambda: len(server.ask("CLIENT", "LIST").splitlines()) == 1, "the end of the daemon's connections")
        if is_filled():
            return True
        server.ask("FLUSHALL")  # the load was complete before the pause; try again
        shutil.rmtree(one.state)
        one.start()
        return False

    until(is_killed_on_the_way, "a load that is cut short")
    one.start()
    assert one.versions("m") == {}
    until(lambda: server.ask("DBSIZE") == 0, "the end of what nobody uses")


def test_lookup_when_redis_has_lost_its_rows_then_cache_missed_embeddings_restores_them(daemon, work, server):
    table = Table.random("a", 500, 8)
    one = daemon(config_of(work, server.address, [model_of(table, work + "/m")], cache_missed_embeddings=True))
    two = daemon(config_of(work, server.address, [model_of(table, work + "/m")]), state="other")
    server.ask("FLUSHALL")
    assert check(two, table) == {"rocksdb": len(table.keys)}
    assert n_rows(server) == 0

    def asked():
        check(one, table)
        return n_rows(server) == len(table.keys)
    until(asked, "all rows in Redis")
    assert check(two, table) == {"redis": len(table.keys)}


@pytest.mark.parametrize("rate", [0.0, 0.25])
def test_load_when_initial_cache_rate_is_set_then_redis_gets_this_share_of_each_shard(daemon, work, server, rate):
    table = Table.random("a", 8000, 4)
    one = daemon(config_of(work, server.address, [model_of(table, work + "/m")], initial_cache_rate=rate))
    assert abs(n_rows(server) - rate * len(table.keys)) < 200
    assert len(shards(server)) == (N_SHARDS if rate else 0)
    assert max(shards(server).values(), default=0) < 400
    check(one, table)


@pytest.mark.parametrize("policy", ["random", "least_used", "oldest"])
def test_load_when_overflow_margin_is_set_then_shards_are_evicted_down_to_the_target(daemon, work, server, policy):
    table = Table.random("a", 3000, 8)
    config = config_of(work, server.address, [model_of(table, work + "/m")], overflow_margin=100, overflow_policy=policy,
                       overflow_resolution_target=0.6, cache_missed_embeddings=True)
    one = daemon(config)
    assert set(shards(server).values()) == {60}
    few = table.keys[:80]
    until(lambda: check(one, table, few) == {"redis": len(few)}, "rows that were asked for in Redis")
    assert N_SHARDS * 60 < n_rows(server) <= N_SHARDS * 60 + len(few)
    evicted = 'hpsd_shared_rows_total{tier="redis",result="evicted"}'
    before = one.metrics()[evicted]
    check(one, table)
    until(lambda: one.metrics()[evicted] > before and max(shards(server).values()) <= 100, "evictions after insertions")


def test_load_when_a_host_map_is_above_redis_then_lookups_use_the_host_map(daemon, work, server):
    table = Table.random("a", 500, 8)
    config = config_of(work, server.address, [model_of(table, work + "/m")], local_cache_bytes="8MiB")
    one = daemon(config)
    assert check(one, table) == {"host": len(table.keys)}
    assert n_rows(server) == len(table.keys)
    plan = one.load("m", work + "/m", dry_run=True).plan
    assert plan.host_bytes_needed < plan.host_bytes_available <= 8 << 20
    assert plan.redis_bytes_needed > 500 * 8 * 4


# ---- without RocksDB ---------------------------------------------------------------------------------

def test_restart_when_redis_has_the_only_copy_then_its_rows_are_not_rewritten(daemon, work, server):
    table = Table.random("a", 500, 8)
    config = config_of(work, server.address, [model_of(table, work + "/m")], durable=False)
    one = daemon(config)
    assert check(one, table) == {"redis": len(table.keys)}
    unknown = np.setdiff1d(np.arange(1000, 1100), table.keys)
    check(one, table, unknown)
    field = b"\0\0\0\0" + (5).to_bytes(8, "big")
    name = next(iter(shards(server)))
    two = daemon(config, state="other")
    assert check(two, table) == {"redis": len(table.keys)}
    server.ask("HSET", name, field, bytes(32))
    one.stop()
    one.start()
    assert server.ask("HGET", name, field) is not None
    assert check(one, table) == {"redis": len(table.keys)}


def test_restart_when_the_only_copy_lacks_a_shard_then_the_version_is_loaded_again(daemon, work, server):
    table = Table.random("a", 500, 8)
    one = daemon(config_of(work, server.address, [model_of(table, work + "/m")], durable=False))
    one.stop()
    server.ask("DEL", sorted(shards(server))[3])
    assert n_rows(server) < len(table.keys)
    one.start()
    assert n_rows(server) == len(table.keys)
    assert check(one, table) == {"redis": len(table.keys)}


@pytest.mark.parametrize("policy", ["noeviction", "allkeys-lru"])
def test_load_when_the_server_may_evict_the_only_copy_then_the_log_has_a_warning(daemon, work, policy):
    table = Table.random("a", 500, 8)
    with redis.Redis(os.path.join(work, "redis"), maxmemory="100mb", maxmemory_policy=policy) as server:
        one = daemon(config_of(work, server.address, [model_of(table, work + "/m")], durable=False))
        assert ("rows at risk" in one.log()) == (policy != "noeviction")


@pytest.mark.parametrize("noticed", [False, True])  # whether the other server has detected it, and refuses writes
def test_restart_when_one_master_of_the_only_copy_hangs_then_other_shards_are_not_deleted(daemon, work, noticed):
    table = Table.random("a", 500, 8)
    with redis.Cluster(os.path.join(work, "redis"), masters=2, replicas=0,
                       cluster_allow_reads_when_down="yes") as cluster:  # so that the test can read its keys
        one = daemon(config_of(work, cluster.addresses, [model_of(table, work + "/m")], durable=False))

        def leased():
            return [node for node in cluster.nodes if any(":leases" in name for name in node.ask("KEYS", "hpsd:*"))]
        (there,) = until(leased, "the daemon's lease")
        (away,) = set(cluster.nodes) - {there}
        one.stop()
        before = shards(there)
        assert before and shards(away)
        away.pause()
        if noticed:
            there.await_in("cluster_state:fail", "CLUSTER", "INFO")
        one.start(ready=False)
        until(lambda: "load failed" in one.log(), "the end of the load")
        assert shards(there) == before
        away.resume()
        one.wait_ready()
        assert check(one, table) == {"redis": len(table.keys)}


def test_lookup_when_the_only_copy_is_lost_then_unavailable_names_redis(daemon, work, server):
    table = Table.random("a", 500, 8)
    one = daemon(config_of(work, server.address, [model_of(table, work + "/m")], durable=False))
    server.ask("FLUSHALL")
    with refused(grpc.StatusCode.UNAVAILABLE, "redis"):
        check(one, table)
    server.kill()
    with refused(grpc.StatusCode.UNAVAILABLE, "redis"):
        check(one, table)


def test_ready_when_the_only_copy_is_lost_then_not_ready_until_it_is_loaded_again(daemon, work, server):
    table = Table.random("a", 500, 8)
    config = config_of(work, server.address, [model_of(table, work + "/m")], durable=False)
    one = daemon(config)

    def lost():
        return one.metrics()['hpsd_shared_lost_shards{model="m",version="1",tier="redis"}']

    assert lost() == 0
    server.ask("FLUSHALL")
    with refused(grpc.StatusCode.UNAVAILABLE, "redis"):
        check(one, table)
    why = f'redis has lost {N_SHARDS} shards of model "m" version 1, of which it held the only copy: load the version again'
    until(lambda: one.get("/readyz")[0] == 503 and why in one.get("/readyz")[1], "the loss of all shards to be told")
    assert one.ctl("-o", "json", "status")[0]["not_ready_reasons"] == [why]
    assert lost() == N_SHARDS
    assert "shards lost" in one.log()
    two = daemon(config, state="other")  # loads the missing rows
    one.wait_ready()
    assert lost() == 0
    assert check(one, table) == check(two, table) == {"redis": len(table.keys)}
    server.ask("DEL", sorted(shards(server))[3])
    until(lambda: one.get("/readyz")[0] == 503, "the loss to be found without a look-up")
    one.load("m", work + "/m", activate=True)
    one.wait_ready()
    assert check(one, table) == {"redis": len(table.keys)}


def test_restart_when_the_files_of_the_only_copy_have_changed_then_their_rows_are_served(daemon, work, server):
    table = Table.random("a", 500, 8)
    config = config_of(work, server.address, [model_of(table, work + "/m")], durable=False)
    one = daemon(config)
    one.stop()
    other = Table("a", table.keys, table.rows + 1)
    other.save(work + "/m")
    one.start()
    assert check(one, other) == {"redis": len(other.keys)}


def test_start_when_redis_has_the_only_copy_and_is_down_then_the_load_fails_with_the_reason(daemon, work, server):
    table = Table.random("a", 500, 8)
    server.kill()
    config = config_of(work, server.address, [model_of(table, work + "/m")], durable=False, redis_connect_timeout_ms=50)
    one = daemon(config, ready=False)
    until(lambda: "load failed" in one.log(), "the end of the load")
    assert "redis: model" in one.log() and f"cannot be loaded: {server.address}: Connection refused" in one.log()
    assert one.get("/readyz")[0] == 503
    server.start()
    one.wait_ready()
    assert check(one, table) == {"redis": len(table.keys)}
    one.ctl("unload", "m", 1)
    assert one.versions("m") == {}


def test_lookup_when_a_host_map_is_above_the_only_copy_then_requested_rows_are_inserted_into_it(daemon, work, server):
    table = Table.random("a", 500, 8)
    one = daemon(config_of(work, server.address, [model_of(table, work + "/m")], durable=False, local_cache_bytes="8MiB"))
    few = table.keys[:100]
    assert check(one, table, few) == {"redis": len(few)}
    until(lambda: check(one, table, few) == {"host": len(few)}, "rows in the host map")
    assert check(one, table) == {"host": len(few), "redis": len(table.keys) - len(few)}
    plan = one.load("m", work + "/m", dry_run=True).plan
    assert plan.host_bytes_needed == 0 and plan.redis_bytes_needed > 500 * 8 * 4
