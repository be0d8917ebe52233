# SPDX-License-Identifier: Apache-2.0
"""Tables with consecutive keys. The host map stores them without an index (server.host_dense). Random updates
change rows, delete them, fill holes, append keys and write keys outside the range; replies are compared with a dict."""
import numpy as np
import pytest

from rig import PATIENCE_S, Table, default_config, key_bytes, model_config, pb, records, until

DIM, N, OUTSIDE = 4, 3000, 2**40
ROUNDS, WRITES = 5, 300


def config_of(work, broker, model, durable, **server):
    rng = np.random.default_rng(7)
    keys = np.sort(rng.permutation(N)[:N - N // 10]).astype("<i8")
    keys = np.append(keys, OUTSIDE + np.arange(0, 1000, 10))
    rows = np.repeat((keys % 1024).astype("<f4")[:, None], DIM, axis=1)
    table = Table("a", keys, rows, default=-1.0)
    config = default_config(
        [model_config(model, [table.save(work + "/files")], [DIM], ["a"], defaults=[-1.0], gpucache=False)], durable=durable,
        update_source={"type": "kafka_message_queue", "brokers": broker.bootstrap, "metadata_refresh_interval_ms": 200,
                       "start": "earliest"}, server=server)
    return config, {int(key): float(key % 1024) for key in keys}


def draw_key(rng, model):
    """A key of the range, of its end, or outside."""
    return int(rng.choice([rng.integers(N), N + rng.integers(len(model) // 10), OUTSIDE + rng.integers(1000)],
                          p=[0.7, 0.2, 0.1]))


def write(broker, topic, rng, model):
    written = []
    for _ in range(WRITES):
        key = draw_key(rng, model)
        if rng.random() < 0.3:
            model.pop(key, None)
            written.append(records.keyed(key, None))
        else:
            model[key] = float(rng.integers(1024))
            written.append(records.keyed(key, np.full(DIM, model[key], "<f4")))
    broker.write(topic, written)


def check(stub, model_name, model):
    """All keys, their sums in bags of 5, and no torn row."""
    keys = [*range(2 * N), *range(OUTSIDE, OUTSIDE + 1000)]
    wanted = np.array([model.get(key, -1.0) for key in keys], np.float32)
    queries = [pb.TableQuery(table="a", keys=key_bytes(keys)),
               pb.TableQuery(table="a", keys=key_bytes(keys), pooling=pb.POOLING_SUM,
                             offsets=np.arange(0, len(keys) + 1, 5, "<u4").tobytes())]
    reply = stub.Lookup(pb.LookupRequest(model=model_name, queries=queries, miss_policy=pb.MISS_POLICY_EXACT),
                        timeout=PATIENCE_S)
    rows = [np.frombuffer(result.rows, "<f4").reshape(-1, DIM) for result in reply.results]
    np.testing.assert_array_equal(rows[0], np.repeat(wanted[:, None], DIM, axis=1))
    np.testing.assert_array_equal(rows[1][:, 0], wanted.reshape(-1, 5).sum(axis=1))
    assert (rows[1] == rows[1][:, :1]).all()


def dense_rows(daemon, model):
    (table,) = daemon.ctl("tables", model, "-o", "json")[0]["tables"]
    return int(table["dense_row_count"])


@pytest.mark.parametrize("durable", [True, False], ids=["rocksdb", "memory"])
def test_dense_table_when_updated_at_random_then_every_reply_is_as_the_model(broker, daemon, work, durable):
    name = "dense" + str(durable)
    rng = np.random.default_rng(1)
    broker.create(f"hps_et.{name}.a", 1)
    config, model = config_of(work, broker, name, durable)
    one = daemon(config)
    assert dense_rows(one, name) == N - N // 10
    described = one.stub().GetModel(pb.GetModelRequest(model=name), timeout=PATIENCE_S)
    assert described.versions[0].tables[0].dense_row_count == N - N // 10
    for _ in range(ROUNDS):
        check(one.stub(), name, model)
        write(broker, f"hps_et.{name}.a", rng, model)
        one.ctl("--timeout", PATIENCE_S, "wait-for", "now", "--model", name)
    check(one.stub(), name, model)
    n_rows = sum(key < OUTSIDE for key in model)
    assert max(key for key in model if key < OUTSIDE) > N and dense_rows(one, name) == n_rows  # with the appended keys
    one.stop()
    one.restart()
    if durable:
        check(one.stub(), name, model)  # perhaps before the range is complete
        until(lambda: dense_rows(one, name) == n_rows, "the refill")
    one.ctl("--timeout", PATIENCE_S, "wait-for", "now", "--model", name)
    check(one.stub(), name, model)


def test_dense_table_when_the_option_is_off_then_it_has_an_index(broker, daemon, work):
    config, model = config_of(work, broker, "indexed", True, host_dense=False)
    one = daemon(config)
    assert dense_rows(one, "indexed") == 0
    check(one.stub(), "indexed", model)
