# SPDX-License-Identifier: Apache-2.0
"""The Redis servers that other tests lean on do what they ask of them."""
import concurrent.futures
import socket
import ssl

import pytest
import redis
from redis import Cluster, Gate, Redis, ServerError
from rig import Authority

pytestmark = pytest.mark.skipif(redis.missing() is not None, reason=f"no Redis server: {redis.missing()}")


def test_server_when_killed_and_started_then_same_port_and_empty(tmp_path):
    with Redis(tmp_path, maxmemory="100mb") as server:
        assert server.ask("SET", "key", b"\xff\x00") == "OK"
        assert server.ask("GET", "key") == b"\xff\x00"
        assert server.ask("CONFIG", "GET", "maxmemory") == ["maxmemory", str(100 << 20)]
        with pytest.raises(ServerError, match="unknown command"):
            server.ask("NONSENSE")
        address = server.address
        server.restart()
        assert server.address == address
        assert server.ask("GET", "key") is None


def test_gate_when_shut_then_one_answer_waits_as_it_was_given(tmp_path):
    def asked(connection, words):
        connection.sendall(words.encode() + b"\r\n")
        return connection.recv(100)

    with Redis(tmp_path) as server, Gate(server) as gate, concurrent.futures.ThreadPoolExecutor(1) as pool:
        host, port = gate.address.split(":")
        with socket.create_connection((host, int(port))) as one, socket.create_connection((host, int(port))) as two:
            assert asked(one, "SET key old") == b"+OK\r\n"
            gate.shut(b"GET key")
            held = pool.submit(asked, one, "GET key")
            gate.wait_kept()
            assert asked(two, "SET key new") == b"+OK\r\n"
            assert asked(two, "GET key") == b"$3\r\nnew\r\n"
            gate.open()
            assert held.result() == b"$3\r\nold\r\n"
            assert asked(one, "GET key") == b"$3\r\nnew\r\n"


def test_cluster_when_a_slot_moves_and_a_master_dies_then_keys_are_where_they_should(tmp_path):
    with Cluster(tmp_path, masters=3, replicas=1) as cluster:
        slot = cluster.nodes[0].ask("CLUSTER", "KEYSLOT", "key")
        owner = cluster.owner(slot)
        owner.ask("SET", "key", "value")
        to = next(node for node in cluster.nodes[:3] if node is not owner)
        cluster.move(slot, to)
        assert to.ask("GET", "key") == "value"
        with pytest.raises(ServerError, match=f"MOVED {slot} {to.address}"):
            owner.ask("GET", "key")
        assert to.ask("WAIT", 1, 60000) == 1
        replica = cluster.nodes[cluster.nodes.index(to) + 3]
        to.kill()
        cluster.take_over(replica)
        assert replica.ask("GET", "key") == "value"


def test_replica_when_killed_and_started_then_what_its_master_had_sent_is_gone(tmp_path):
    with Cluster(tmp_path, masters=1, replicas=1) as cluster:
        master, replica = cluster.nodes
        master.ask("SET", "key", "value")
        replica.ask("CLUSTER", "RESET")
        replica.ask("CLUSTER", "MEET", "127.0.0.1", master.port, master.bus_port)
        replica.await_in(master.id, "CLUSTER", "NODES")
        replica.ask("CLUSTER", "REPLICATE", master.id)
        replica.await_in("master_link_status:up", "INFO", "replication")
        assert replica.ask("DBSIZE") == 1
        master.kill()
        replica.restart()
        assert replica.ask("DBSIZE") == 0


def test_cluster_when_it_speaks_tls_then_its_nodes_and_replicas_do_too(tmp_path):
    authority = Authority(str(tmp_path), "ca")
    certificate, key = authority.issue("server")
    with Cluster(tmp_path, masters=2, replicas=1, tls_cert_file=certificate, tls_key_file=key,
                 tls_ca_cert_file=authority.path, tls_auth_clients="no") as cluster:
        owner = cluster.owner(cluster.nodes[0].ask("CLUSTER", "KEYSLOT", "key"))
        to = cluster.nodes[1 - cluster.nodes.index(owner)]
        owner.ask("SET", "key", "value")
        cluster.move(owner.ask("CLUSTER", "KEYSLOT", "key"), to)
        assert to.ask("GET", "key") == "value" and to.ask("WAIT", 1, 60000) == 1
        assert cluster.addresses == ",".join(f"127.0.0.1:{node.tls_port}" for node in cluster.nodes)
        with socket.create_connection(("127.0.0.1", to.tls_port)) as plain:
            context = ssl.create_default_context(cafile=authority.path)
            with context.wrap_socket(plain, server_hostname="localhost") as speaker:
                speaker.sendall(b"GET key\r\n")
                assert speaker.recv(100) == b"$5\r\nvalue\r\n"
