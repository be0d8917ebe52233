# SPDX-License-Identifier: Apache-2.0
"""What status, metrics, readiness and the log say of the servers of a Redis tier."""
import os

import grpc
import numpy as np
import pytest

import redis
from rig import SLOW, Table, ask, default_config, floats, model_config, until

pytestmark = pytest.mark.skipif(redis.missing() is not None, reason=redis.missing() or "")

TABLE = Table.random("a", 3000, 8)


def start(daemon, work, address, durable=True, **volatile):
    """A daemon whose only other tier, if any, is RocksDB: each lookup asks Redis."""
    model = model_config("m", [TABLE.save(work + "/m")], [TABLE.dim], ["a"], gpucache=False)
    volatile = {"type": "redis_cluster", "address": address, "num_partitions": 8,
                "redis_command_timeout_ms": int(1000 * SLOW), "local_cache_bytes": 0, **volatile}
    return daemon(default_config([model], durable=durable, volatile_db=volatile))


def tier(one):
    return next(tier for tier in one.ctl("-o", "json", "status")[0]["tiers"] if tier["tier"] == "redis")


def sample(one, name, *words):
    return {full: value for full, value in one.metrics().items()
            if full.split("{")[0] == "hpsd_" + name and all(word in full for word in words)}


def value(one, name, *words):
    (found,) = sample(one, name, *words).values()
    return found


def check(one, keys=TABLE.keys):
    """All rows are right; by which tier how many were found."""
    result = ask(one.stub(), "m", {"a": keys}).results[0]
    np.testing.assert_array_equal(floats(result), TABLE.expect(keys))
    return {count.tier: count.found_keys for count in result.tier_counts}


def of(node):
    return f'node="{node.address}"'


def test_servers_when_all_are_up_then_status_and_metrics_tell_of_each(daemon, work):
    with redis.Cluster(os.path.join(work, "redis"), masters=3, replicas=0) as cluster:
        one = start(daemon, work, cluster.addresses)
        check(one)
        found = tier(one)
        assert found["up"] and not found.get("authoritative") and found["note"] == "cluster"
        servers = {server["address"]: server for server in found["servers"]}
        assert set(servers) == {node.address for node in cluster.nodes}
        assert sum(server["slot_count"] for server in servers.values()) == redis.SLOTS
        assert {server["role"] for server in servers.values()} == {"master"}
        assert all(server["up"] and int(server["latency_us"]) > 0 for server in servers.values()
                   if int(server["command_count"]) > 0)
        assert all(node.address in one.ctl("status") for node in cluster.nodes)

        assert value(one, "tier_reachable_ratio", 'tier="redis"') == 1
        assert len(sample(one, "tier_server_keys_total", 'result="hit"')) == 3
        assert sum(sample(one, "tier_server_slots").values()) == redis.SLOTS
        for node in cluster.nodes:
            assert value(one, "tier_up", 'tier="redis"', of(node)) == 1

        def found_keys():
            return (sum(int(server["found_key_count"]) for server in tier(one)["servers"]),
                    sum(sample(one, "tier_server_keys_total", 'result="hit"').values()),
                    value(one, "shared_rows_total", 'result="found"'))

        def growth():
            """By a lookup that had all from Redis: of a server that is late its rows come from RocksDB."""
            before = found_keys()
            if check(one) == {"redis": len(TABLE.keys)}:
                return [now - then for now, then in zip(found_keys(), before)]
            return None

        for _ in range(2):
            assert until(growth, "all rows from Redis") == [len(TABLE.keys)] * 3


def test_server_when_it_goes_and_comes_then_it_is_told_and_the_daemon_stays_ready(daemon, work):
    with redis.Cluster(os.path.join(work, "redis"), masters=3, replicas=0) as cluster:
        one = start(daemon, work, cluster.addresses)
        check(one)
        gone = cluster.nodes[1]
        gone.kill()

        def is_down():
            check(one)  # the rest answers, and RocksDB has all
            servers = {server["address"]: server for server in tier(one)["servers"]}
            return (value(one, "tier_up", 'tier="redis"', of(gone)) == 0
                    and value(one, "tier_reachable_ratio", 'tier="redis"') < 1
                    and "refused" in servers[gone.address].get("error", ""))

        until(is_down, "the metrics, and a connection that is refused")
        servers = {server["address"]: server for server in tier(one)["servers"]}
        assert not servers[gone.address].get("up")
        assert servers[cluster.nodes[0].address]["up"]
        assert "of 16384 slots up" in tier(one)["note"]
        assert 0.6 < value(one, "tier_reachable_ratio", 'tier="redis"') < 0.7
        assert sum(sample(one, "tier_server_failures_total", of(gone), 'reason="broken"').values()) > 0
        assert one.get("/readyz")[0] == 200
        assert "node down" in one.log() and gone.address in one.log()
        gone.start()
        until(lambda: value(one, "tier_up", 'tier="redis"', of(gone)) == 1, "the node")
        assert value(one, "tier_reachable_ratio", 'tier="redis"') == 1
        assert "node up again" in one.log()
        check(one)


def test_server_when_it_refuses_commands_then_status_and_log_have_its_answer(daemon, work):
    with redis.Redis(os.path.join(work, "redis")) as server:
        one = start(daemon, work, server.address)
        check(one)
        server.ask("ACL", "SETUSER", "default", "-@hash", "-@scripting")

        def told():
            check(one)  # RocksDB has all rows
            return "NOPERM" in tier(one)["servers"][0].get("error", "")

        until(told, "the answer of the server")
        for _ in range(5):
            check(one)
        assert "NOPERM" in one.ctl("status")
        lines = [line for line in one.log().splitlines() if "command refused" in line]
        assert len(lines) == 1 and "NOPERM" in lines[0] and f"node={server.address}" in lines[0], lines


def test_server_when_another_takes_its_place_then_its_series_go(daemon, work):
    with redis.Cluster(os.path.join(work, "redis"), masters=3, replicas=1) as cluster:
        one = start(daemon, work, cluster.nodes[0].address)
        check(one)
        gone, heir = cluster.nodes[2], cluster.nodes[5]
        assert value(one, "tier_up", of(gone)) == 1
        gone.kill()
        cluster.take_over(heir)

        def has_left():
            check(one)
            return not sample(one, "tier_up", of(gone)) and sum(sample(one, "tier_server_slots", of(heir)).values()) > 0

        until(has_left, "the server to be forgotten")
        assert not sample(one, "tier_server_keys_total", of(gone))
        assert value(one, "tier_up", of(heir)) == 1
        assert value(one, "tier_reachable_ratio", 'tier="redis"') == 1


def test_only_redis_when_it_says_nothing_then_unready_until_it_does(daemon, work):
    with redis.Redis(os.path.join(work, "redis")) as server:
        one = start(daemon, work, server.address, durable=False)
        check(one)
        assert tier(one)["authoritative"]
        server.pause()

        def is_unready():
            with pytest.raises(grpc.RpcError):
                check(one)
            return one.get("/readyz")[0] == 503

        until(is_unready, "the outage")
        assert "unreachable for 16384 of 16384 slots" in str(one.get("/readyz")[1])
        server.resume()
        until(lambda: one.get("/readyz")[0] == 200, "the server")
        check(one)


def test_status_when_a_user_may_not_ask_for_slots_then_it_says_so(daemon, work):
    with redis.Cluster(os.path.join(work, "redis"), masters=3, replicas=0) as cluster:
        for node in cluster.nodes:
            node.ask(*"ACL SETUSER few on >secret ~hpsd:* -@all +@hash +@scripting +@connection".split())
        one = start(daemon, work, cluster.addresses, user_name="few", password="secret")
        check(one)
        assert not tier(one)["up"] and "cluster|slots" in tier(one)["note"]
        assert "cluster|slots" in one.ctl("status")
        for node in cluster.nodes:
            node.ask("ACL", "SETUSER", "few", "+cluster|slots")
        until(lambda: tier(one)["note"] == "cluster", "the map of slots")
