# SPDX-License-Identifier: Apache-2.0
"""Options that change answers: policies of a model."""
import grpc
import numpy as np

from rig import (PATIENCE_S, Table, ask, default_config, floats, model_config, pb, refused, statuses)

FOUND, DEFAULTED, UNKNOWN = pb.KEY_STATUS_FOUND, pb.KEY_STATUS_DEFAULTED, pb.KEY_STATUS_UNKNOWN


class Stored:
    """Models of the same table in RocksDB alone: a request that does not wait for it finds nothing."""

    ABSENT = 12345

    def __init__(self, work):
        self.table = Table.random("a", 100, 8, default=3.0)
        self.table.save(work + "/m")
        assert self.ABSENT not in self.table.at
        self.work = work
        self.keys = [int(self.table.keys[5]), self.ABSENT]

    def config(self, models, server=()):
        """`models`: {name: its policies}."""
        path = self.work + "/m/a.rows.npy"
        entries = [model_config(name, [path], [8], ["a"], [3.0], **policies)
                   for name, policies in models.items()]
        return default_config(entries, server={"model_roots": [self.work], **dict(server)},
                              volatile_db={"type": "disabled"})

    def ask(self, stub, model, **policies):
        """What came for the stored and for the absent key: statuses, and the rows."""
        result = ask(stub, model, {"a": self.keys}, **policies).results[0]
        return statuses(result), floats(result)

    def check_rows(self, rows, *expected):
        for row, what in zip(rows, expected):
            np.testing.assert_array_equal(row, {"true": self.table.expect(self.keys[:1])[0],
                                                "default": np.full(8, 3.0, np.float32),
                                                "zero": np.zeros(8, np.float32)}[what])


def check_policies(stored, stub):
    both, rows = stored.ask(stub, "memory")
    assert both == [DEFAULTED, DEFAULTED]
    stored.check_rows(rows, "default", "default")
    both, rows = stored.ask(stub, "memory", miss_policy=pb.MISS_POLICY_EXACT)
    assert both == [FOUND, UNKNOWN]
    stored.check_rows(rows, "true", "zero")  # the model's other policy still holds
    both, rows = stored.ask(stub, "memory", miss_policy=pb.MISS_POLICY_THRESHOLD,
                            unknown_key_policy=pb.UNKNOWN_KEY_POLICY_DEFAULT_ROW)
    assert both == [FOUND, UNKNOWN]
    stored.check_rows(rows, "true", "default")
    assert stored.ask(stub, "waiting")[0] == [DEFAULTED, DEFAULTED]  # it says for how long: 0
    with refused(grpc.StatusCode.NOT_FOUND, "'a'", str(stored.ABSENT)):
        stored.ask(stub, "waiting", max_wait_us=int(PATIENCE_S * 1e6))
    both, rows = stored.ask(stub, "waiting", max_wait_us=int(PATIENCE_S * 1e6),
                            unknown_key_policy=pb.UNKNOWN_KEY_POLICY_ZERO)
    assert both == [FOUND, UNKNOWN]
    stored.check_rows(rows, "true", "zero")
    for model in ("plain", "runtime"):
        both, rows = stored.ask(stub, model)
        assert both == [FOUND, UNKNOWN]
        stored.check_rows(rows, "true", "zero" if model == "runtime" else "default")


def test_policies_when_set_for_a_model_then_they_hold_unless_a_request_names_others(daemon, work):
    stored = Stored(work)
    policies = {"memory": {"miss_policy": "memory_only", "unknown_key_policy": "zero"},
                "waiting": {"miss_policy": "wait", "unknown_key_policy": "error"},
                "plain": {}}
    one = daemon(stored.config(policies))
    one.load("runtime", work + "/m")
    stub = one.stub()
    # A model that no configuration names has no default row of its own: zeros.
    assert stored.ask(stub, "runtime", unknown_key_policy=pb.UNKNOWN_KEY_POLICY_DEFAULT_ROW)[0] == [
        FOUND, UNKNOWN]
    check_policies(stored, stub)
    one.stop()
    one.start()
    check_policies(stored, one.stub())
    one.load("memory", work + "/m", activate=True)  # the next version, too
    assert stored.ask(one.stub(), "memory")[0] == [DEFAULTED, DEFAULTED]
