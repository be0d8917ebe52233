# SPDX-License-Identifier: Apache-2.0
"""GetModel: the tables and versions of a model for lookup clients, and errors that list existing names. test_updates.py
tests log positions."""
import hashlib
import json
import os

import grpc

from rig import PATIENCE_S, Daemon, Table, ask, default_config, model_config, pb, refused

DENIED, UNKNOWN = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED
NOT_FOUND = grpc.StatusCode.NOT_FOUND


def served(work, names=("items", "users"), model="m", **more):
    tables = [Table.random(name, 20 + i, 4 + i, number=i) for i, name in enumerate(names)]
    paths = [table.save(f"{work}/{model}") for table in tables]
    return model_config(model, paths, [table.dim for table in tables], list(names), **more), tables


def get(stub, model="m", metadata=None, **fields):
    return stub.GetModel(pb.GetModelRequest(model=model, **fields), timeout=PATIENCE_S, metadata=metadata)


def test_get_model_when_it_is_served_then_returns_tables_in_order_and_versions(work):
    config, tables = served(work)
    with Daemon(work, default_config([config])) as daemon:
        stub = daemon.stub()
        reply = get(stub)
        assert (reply.model, reply.active_version) == ("m", 1)
        version, = reply.versions
        assert version.version == 1 and version.loaded_unix_ms > 0 and not version.positions
        assert [(t.table, t.dim, t.data_type, t.row_count, t.place) for t in version.tables] == [
            (table.name, table.dim, pb.DATA_TYPE_FP32, len(table.keys), i) for i, table in enumerate(tables)]
        daemon.load("m", f"{work}/m", label="next")
        reply = get(stub)
        assert reply.active_version == 1 and [v.version for v in reply.versions] == [1, 2]
        assert reply.versions[1].label == "next"
        assert [v.version for v in get(stub, version=2).versions] == [2]
        with refused(NOT_FOUND, "version 3"):
            get(stub, version=3)
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "model: empty"):
            get(stub, model="")
        assert daemon.metrics()['hpsd_rpc_requests_total{method="hps.v1.ParameterServer/GetModel",code="OK"}'] == 3


def test_names_when_unknown_then_the_error_lists_existing_names(work):
    config, _ = served(work)
    other, _ = served(work, ["only"], "other")
    with Daemon(work, default_config([config, other])) as daemon:
        stub = daemon.stub()
        for call in (lambda: get(stub, "n"), lambda: ask(stub, "n", {"items": [1]})):
            with refused(NOT_FOUND, '"n" is not loaded; models here: ', "m", "other"):
                call()
        with refused(NOT_FOUND, "no table 'itmes'; its tables: items, users"):
            ask(stub, "m", {"itmes": [1]})


def test_get_model_when_there_is_a_role_file_then_it_needs_the_role_read_for_the_model(work):
    path = os.path.join(work, "roles.json")
    names = ("app", "watch", "ops")
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"rules": [{"who": ["token:app"], "may": ["lookup"]},
                             {"who": ["token:watch"], "may": ["read", "lookup"], "models": ["m"]},
                             {"who": ["token:ops"], "may": ["read"]}],
                   "tokens": [{"name": name, "sha256": hashlib.sha256(name.encode()).hexdigest()} for name in names]},
                  f)
    config, _ = served(work)
    secret, _ = served(work, ["only"], "secret")
    with Daemon(work, default_config([config, secret], server={"access": path}),
                flags=["--admin-listen", "127.0.0.1:0"]) as daemon:
        stub = daemon.stub()

        def by(name):
            return (("authorization", f"Bearer {name}"),)
        assert get(stub, "secret", by("ops")).active_version == 1
        assert get(stub, "m", by("watch")).active_version == 1
        with refused(DENIED, "token:watch", "read", "'secret'"):
            get(stub, "secret", by("watch"))
        with refused(DENIED, "token:app", "read"):
            get(stub, "m", by("app"))
        with refused(UNKNOWN):
            get(stub)
        with refused(DENIED, "token:watch", "'n'"):  # same error as for an existing model
            get(stub, "n", by("watch"))
        with refused(NOT_FOUND, "m, secret"):
            get(stub, "n", by("ops"))
