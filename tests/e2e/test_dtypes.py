# SPDX-License-Identifier: Apache-2.0
"""Rows of fp32, fp16, bf16 and row-wise INT8: stored as in the files or converted by the load; after restarts and
switches, and in snapshots. Loads reject rows that the type cannot represent."""
import json
import os
import shutil

import grpc
import numpy as np
import pytest

from rig import PATIENCE_S, admin_pb, ask, default_config, floats, generate, hpsgen, model_config, refused, run_hpsd

N, DIM = 300, 13  # an odd width: scales of rows are not aligned
DTYPES = hpsgen.DTYPES
NARROW = DTYPES[1:]
DEFAULT = 0.7


def rows(number, n=N):
    return hpsgen.rows(1, number, np.arange(n), DIM)


def save(directory, name, values, dtype):
    """Write rows of type `dtype` as .npy files."""
    os.makedirs(directory, exist_ok=True)
    data, scale_bias = hpsgen.stored(values, dtype)
    np.save(f"{directory}/{name}.npy", data)
    if scale_bias is not None:
        np.save(f"{directory}/{name}.scale_bias.npy", scale_bias)
    return f"{directory}/{name}.npy"


def save_ml_dtypes(directory, name, values):
    """Write bf16 as numpy.save writes ml_dtypes.bfloat16: an array of 2-byte values without a type."""
    path = save(directory, name, values, "bf16")
    data = np.load(path)
    with open(path, "wb") as f:
        np.lib.format.write_array_header_1_0(f, {"descr": "<V2", "fortran_order": False, "shape": data.shape})
        f.write(data.tobytes())
    return path


def save_pair(directory, name, values, dtype):
    """The same with keys, in random order."""
    order = np.random.default_rng(1).permutation(len(values))
    save(directory, f"{name}.rows", values[order], dtype)
    if os.path.exists(f"{directory}/{name}.rows.scale_bias.npy"):
        os.rename(f"{directory}/{name}.rows.scale_bias.npy", f"{directory}/{name}.scale_bias.npy")
    np.save(f"{directory}/{name}.keys.npy", order.astype("<i8"))


def save_hugectr(directory, name, values):
    os.makedirs(f"{directory}/{name}")
    np.arange(len(values), dtype="<i8").tofile(f"{directory}/{name}/key")
    values.astype("<f4").tofile(f"{directory}/{name}/emb_vector")
    return f"{directory}/{name}"


def manifest(directory, tables):
    with open(f"{directory}/manifest.json", "w", encoding="utf-8") as f:
        json.dump({"tables": [{"name": name, "dtype": dtype} for name, dtype in tables]}, f)


def expected_defaults(dtype, default=DEFAULT):
    return hpsgen.served(np.full((1, DIM), default, np.float32), dtype)[0]


def check(one, model, names, dtype_of, default=0.0, **fields):
    """Check every row of each table and the default row with a stock client."""
    keys = np.append(np.arange(N), [-1])
    reply = ask(one.stub(), model, {name: keys for name in names}, **fields)
    for number, (name, result) in enumerate(zip(names, reply.results)):
        dtype = dtype_of[name]
        np.testing.assert_array_equal(floats(result)[:N], hpsgen.served(rows(number), dtype), f"{model}.{name}")
        np.testing.assert_array_equal(floats(result)[N], expected_defaults(dtype, default), f"{model}.{name}")
        assert result.unknown_key_count == 1
    return reply


def data_types(one, model, version=0):
    reply = one.admin_stub().ListTables(admin_pb.ListTablesRequest(model=model, version=version), timeout=PATIENCE_S)
    return {table.table: table.data_type for table in reply.tables}


# ---- files -------------------------------------------------------------------------------------------

def test_rows_when_of_each_type_and_format_then_served_as_in_numpy_also_after_a_restart(daemon, work):
    for number, dtype in enumerate(DTYPES):
        save(f"{work}/m/npy", dtype, rows(number), dtype)
        save_pair(f"{work}/m/pair", dtype, rows(number), dtype)
        save_hugectr(f"{work}/m/hugectr", dtype, rows(number))
        save(f"{work}/m/dle", f"feature_{number}", rows(number), dtype)
    for form in ("npy", "pair"):
        manifest(f"{work}/m/{form}", [(dtype, dtype) for dtype in DTYPES])
    with open(f"{work}/m/dle/config.json", "w", encoding="utf-8") as f:
        json.dump({"categorical_cardinalities": [N] * len(DTYPES), "embedding_dim": [DIM] * len(DTYPES)}, f)
    manifest(f"{work}/m/dle", [(f"feature_{number}", dtype) for number, dtype in enumerate(DTYPES)])
    wanted = model_config("wanted", [f"{work}/m/hugectr/{dtype}" for dtype in DTYPES], [DIM] * len(DTYPES),
                          list(DTYPES), [DEFAULT] * len(DTYPES), row_dtype=list(DTYPES))
    one = daemon(default_config([wanted], server={"model_roots": [work]}))
    for form in ("npy", "pair", "dle"):
        assert len(one.load(form, f"{work}/m/{form}").conversions) == 0
    as_named = {dtype: dtype for dtype in DTYPES}
    features = {f"feature_{number}": dtype for number, dtype in enumerate(DTYPES)}
    for again in range(2):
        check(one, "npy", DTYPES, as_named)
        check(one, "pair", DTYPES, as_named)
        check(one, "dle", list(features), features)
        check(one, "wanted", DTYPES, as_named, DEFAULT)
        assert data_types(one, "wanted") == as_named
        if again == 0:
            one.kill()
            shutil.rmtree(f"{work}/m")
            one.start()


def test_rows_when_bfloat16_of_ml_dtypes_then_served_if_the_table_or_manifest_declares_bf16(
        daemon, work):
    path = save_ml_dtypes(f"{work}/m", "a", rows(0))
    save_ml_dtypes(f"{work}/m", "b.rows", rows(1))
    np.save(f"{work}/m/b.keys.npy", np.arange(N, dtype="<i4"))
    manifest(f"{work}/m", [("a", "bf16"), ("b", "bf16")])
    one = daemon(default_config([model_config("said", [path], [DIM], ["a"], row_dtype="bf16")],
                                server={"model_roots": [work]}))
    check(one, "said", ["a"], {"a": "bf16"})
    one.load("m", f"{work}/m")
    check(one, "m", ["a", "b"], {"a": "bf16", "b": "bf16"})
    one.load("wide", f"{work}/m", row_dtype="fp32")
    np.testing.assert_array_equal(floats(ask(one.stub(), "wide", {"b": np.arange(N)}).results[0]),
                                  hpsgen.served(rows(1), "bf16"))


@pytest.mark.parametrize("form, keys", [("npy", "dense"), ("npy", "hashed"), ("dle", "dense")])
def test_gen_when_rows_are_of_a_narrow_type_then_its_files_and_its_ps_json_serve_them(daemon, work, form, keys):
    """Three file formats, each with another type."""
    dtype = {"npydense": "int8_rowwise_f16", "npyhashed": "bf16", "dledense": "int8_rowwise_f32"}[form + keys]
    generate(f"{work}/g", "--tables", 2, "--rows", N, "--dim", DIM, "--format", form, "--dtype", dtype, "--keys", keys,
             "--model", "mine")
    with open(f"{work}/g/ps.json", encoding="utf-8") as f:
        config = json.load(f)
    config.setdefault("server", {}).update(drain_delay_ms=1, disk_free_min_bytes="1MiB", model_roots=[work])
    one = daemon(config)
    one.load("again", f"{work}/g")
    asked = hpsgen.hashed_keys(N) if keys == "hashed" else np.arange(N)
    for model in ("mine", "again"):
        assert set(data_types(one, model).values()) == {dtype}
        for number, result in enumerate(ask(one.stub(), model, {f"feature_{i}": asked for i in range(2)}).results):
            expected = hpsgen.served(hpsgen.rows(1, number, asked, DIM), dtype)
            np.testing.assert_array_equal(floats(result), expected)


# ---- conversion, and versions of different types -------------------------------------------------------

def test_versions_when_of_different_types_then_both_are_served_compared_and_in_snapshots(daemon, work):
    save(f"{work}/m", "t", rows(0), "fp32")
    one = daemon(default_config(server={"model_roots": [work]}))
    one.load("m", f"{work}/m")
    for version, dtype in enumerate(NARROW, 2):
        values = rows(0)
        error = np.abs(hpsgen.served(values, dtype).astype(np.float64) - values)
        plan = one.ctl("load", "m", "--from", f"{work}/m", "--row-dtype", dtype, "--dry-run")
        assert dtype in plan and f"fp32 -> {dtype}" in plan
        done = one.load("m", f"{work}/m", row_dtype=dtype)
        (made,) = done.conversions
        assert (made.table, made.data_type_from, made.data_type_to) == ("t", "fp32", dtype)
        assert made.error_max == error.max()
        assert made.error_mean == pytest.approx(error.mean(), rel=1e-9)
        assert data_types(one, "m", version) == {"t": dtype}
        check(one, "m", ["t"], {"t": dtype}, version=version)
        check(one, "m", ["t"], {"t": "fp32"})
    said = one.ctl("load", "m", "--from", f"{work}/m", "--row-dtype", "bf16")
    assert "LARGEST ERROR" in said and "fp32 -> bf16" in said
    assert "fp32 -> int8_rowwise_f32" in one.ctl("activate", "m", 4)  # works without --force
    check(one, "m", ["t"], {"t": "int8_rowwise_f32"})
    one.ctl("snapshot", "create", f"{work}/snapshot")
    one.ctl("snapshot", "restore", f"{work}/snapshot", "--state-dir", f"{work}/replica")
    other = daemon(default_config(), state="replica")
    for version, dtype in enumerate(DTYPES, 1):
        if version in other.versions("m"):  # except versions beyond keep_versions
            check(other, "m", ["t"], {"t": dtype}, version=version)
    check(other, "m", ["t"], {"t": "int8_rowwise_f32"})


def test_plan_when_rows_are_converted_to_a_smaller_type_then_fewer_bytes_are_needed(daemon, work):
    values = hpsgen.rows(1, 0, np.arange(1000), 128)
    save(f"{work}/m", "t", values, "fp32")
    one = daemon(default_config(server={"model_roots": [work]}))

    def plan(**fields):
        return one.load("m", f"{work}/m", dry_run=True, **fields)
    wide, narrow = plan(), plan(row_dtype="int8_rowwise_f32")
    assert (wide.bytes_total, narrow.bytes_total) == (1000 * 512, 1000 * 136)
    assert narrow.plan.disk_bytes_needed < wide.plan.disk_bytes_needed / 3
    assert narrow.plan.host_bytes_needed < wide.plan.host_bytes_needed / 3
    assert [table.data_type for table in narrow.plan.tables] == ["int8_rowwise_f32"]


def test_config_when_row_dtype_changes_then_it_is_drift_until_it_is_loaded(daemon, work):
    path = save(f"{work}/m", "t", rows(0), "fp32")
    config = default_config([model_config("m", [path], [DIM], ["t"])])
    one = daemon(config)
    one.stop()
    config["models"][0]["row_dtype"] = "int8_rowwise_f16"
    one.write_config(config)
    one.start()

    def drift():
        return list(one.admin_stub().GetStatus(admin_pb.GetStatusRequest(), timeout=PATIENCE_S).config_drift)
    assert drift() == ["m"] and "options=row_dtype" in one.log()
    check(one, "m", ["t"], {"t": "fp32"})
    one.ctl("load", "m", "--config", one.config_file, "--activate")
    check(one, "m", ["t"], {"t": "int8_rowwise_f16"})
    one.stop()
    one.start()
    assert drift() == []
    check(one, "m", ["t"], {"t": "int8_rowwise_f16"})


# ---- rejected rows -------------------------------------------------------------------------------------

def test_rows_when_the_type_cannot_represent_them_then_refused_with_table_key_and_value(daemon, work):
    def case(name, at, value):
        values = rows(0)
        values[at] = value
        return save(f"{work}/{name}", "t", values, "fp32")
    case("large", (17, 3), 1e6)
    case("nan", (18, 4), np.nan)
    save(f"{work}/int8", "t", rows(0), "int8_rowwise_f32")
    save(f"{work}/bf16", "t", rows(0), "bf16")
    one = daemon(default_config(server={"model_roots": [work]}))
    with refused(grpc.StatusCode.INVALID_ARGUMENT, 'table "t"', "1e+06", "(key 17), value 3", "does not fit fp16"):
        one.load("m", f"{work}/large", row_dtype="fp16")
    for row_dtype in ("", "bf16"):
        with refused(grpc.StatusCode.INVALID_ARGUMENT, 'table "t"', "NaN or Inf", "(key 18), value 4"):
            one.load("m", f"{work}/nan", row_dtype=row_dtype)
    with refused(grpc.StatusCode.INVALID_ARGUMENT, 'table "t"', "already quantised as int8_rowwise_f32", "row_dtype is fp16"):
        one.load("m", f"{work}/int8", row_dtype="fp16")
    with refused(grpc.StatusCode.INVALID_ARGUMENT, 'table "t"', "uint16", "manifest.json"):
        one.load("m", f"{work}/bf16")
    with refused(grpc.StatusCode.INVALID_ARGUMENT, 'table "t"', "<V2", "manifest.json"):
        one.load("m", os.path.dirname(save_ml_dtypes(f"{work}/ml", "t", rows(0))))
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "row_dtype", '"int8"', "expected fp32"):
        one.load("m", f"{work}/large", row_dtype="int8")
    assert one.versions("m") == {}
    assert "expected fp32|fp16|bf16" in one.ctl("load", "m", "--from", work, "--row-dtype", "int4", code=2)


def test_rows_when_nan_policy_accepts_them_then_halves_have_infinities_and_int8_still_refuses(daemon, work):
    values = rows(0)
    values[17, 3] = -1e6
    save(f"{work}/m", "t", values, "fp32")
    one = daemon(default_config(server={"model_roots": [work], "nan_policy": "accept"}))
    one.load("m", f"{work}/m", row_dtype="fp16")
    assert floats(ask(one.stub(), "m", {"t": [17]}).results[0])[0, 3] == -np.inf
    values[17, 3] = np.inf
    save(f"{work}/m", "t", values, "fp32")
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "inf", "(key 17), value 3", "does not fit int8_rowwise_f16"):
        one.load("m", f"{work}/m", row_dtype="int8_rowwise_f16")
    for dtype, which, name in (("int8_rowwise_f32", 0, "scale"), ("int8_rowwise_f16", 1, "bias")):
        scales = np.load(save(f"{work}/{dtype}", "t", rows(0), dtype).replace(".npy", ".scale_bias.npy"))
        scales[17, which] = np.nan
        np.save(f"{work}/{dtype}/t.scale_bias.npy", scales)
        with refused(grpc.StatusCode.INVALID_ARGUMENT, 'table "t"', "NaN or Inf", "(key 17)", name):
            one.load("m", f"{work}/{dtype}")


def test_check_when_a_load_would_refuse_the_rows_then_prints_the_reason(work):
    path = save(f"{work}/m", "t", rows(0), "int8_rowwise_f16")
    config = default_config([model_config("m", [path], [DIM], ["t"], row_dtype="fp16")])
    for row_dtype, code in (("fp16", 2), ("int8_rowwise_f16", 0), ("file", 0)):
        config["models"][0]["row_dtype"] = row_dtype
        with open(f"{work}/ps.json", "w", encoding="utf-8") as f:
            json.dump(config, f)
        got, out, err = run_hpsd("--check", "--config", f"{work}/ps.json", "--state-dir", f"{work}/state")
        assert got == code, out + err
        assert ("already quantised" in out + err) == (code != 0)
