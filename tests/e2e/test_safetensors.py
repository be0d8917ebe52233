# SPDX-License-Identifier: Apache-2.0
"""hpsd reads tables from safetensors files: `hpsctl load`, models[] and `hpsd --table`."""
import json
import os
import signal
import struct

import numpy as np
import pytest

from rig import Daemon, ask, default_config, floats, model_config

NAMES = {"float32": "F32", "float16": "F16", "uint8": "U8", "int8": "I8", "int64": "I64"}


def write(path, **tensors):
    """A safetensors file of these arrays, written by its specification."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    head, data = {"__metadata__": {"format": "pt"}}, b""
    for name, array in tensors.items():
        array = np.asarray(array)
        head[name.replace("__", ".")] = {"dtype": NAMES[array.dtype.name], "shape": list(array.shape),
                                         "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(head).encode()
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text + data)
    return path


def rows(seed, n=50, dim=4):
    return np.random.default_rng(seed).standard_normal((n, dim)).astype("<f4")


def check(one, model, table, keys, expected):
    np.testing.assert_array_equal(floats(ask(one.stub(), model, {table: keys}).results[0]), expected)


def test_load_when_a_directory_has_safetensors_then_each_matrix_is_a_table(work, daemon):
    users, items = rows(1), rows(2, 30, 8)
    write(f"{work}/m/a-00001-of-00002.safetensors", ebc__users__weight=users, step=np.arange(3))
    write(f"{work}/m/a-00002-of-00002.safetensors", items=items, items__keys=np.arange(30) * 7 - 50)
    one = daemon(default_config(server={"model_roots": [work]}))
    said = one.ctl("load", "m", "--from", f"{work}/m", "--activate")
    assert "m version 1" in said
    check(one, "m", "ebc_users_weight", np.arange(50), users)
    check(one, "m", "items", np.arange(30) * 7 - 50, items)
    one.kill()
    one.start()  # from its store
    check(one, "m", "items", [-50], items[:1])
    os.remove(f"{work}/m/a-00002-of-00002.safetensors")
    assert "a-00002-of-00002.safetensors" in one.ctl("load", "m", "--from", f"{work}/m", code=1)
    one.ctl("load", "n", "--from", f"{work}/m/a-00001-of-00002.safetensors", code=1)  # it says which file is missing
    alone = write(f"{work}/alone.safetensors", t=users)
    one.ctl("load", "n", "--from", alone, "--activate")
    check(one, "n", "t", [3], users[3:4])


def test_load_when_tensors_are_named_then_they_are_tables(work, daemon):
    w, q = rows(1), np.arange(40, dtype=np.uint8).reshape(10, 4)
    scale, bias = np.linspace(.5, 2, 10, dtype="<f4"), np.linspace(-3, 3, 10, dtype="<f4")
    file = write(f"{work}/m/x.safetensors", **{"model/emb": w, "q": q, "s": scale, "b": bias,
                                               "i": (q.astype(int) - 128).astype(np.int8)})
    one = daemon(default_config([model_config("m", [f"{file}:model/emb"], [4], ["e"])]))
    check(one, "m", "e", np.arange(50), w)  # models[]
    one.ctl("load", "m", "--table", f"e={file}:model/emb", "--table", f"q={file}:q:s:b", "--table", f"i={file}:i:s:b",
            "--activate", "--force")
    check(one, "m", "e", np.arange(50), w)
    check(one, "m", "q", np.arange(10), q * scale[:, None] + bias[:, None])
    signed = floats(ask(one.stub(), "m", {"i": np.arange(10)}).results[0])
    np.testing.assert_allclose(signed, (q.astype("f4") - 128) * scale[:, None] + bias[:, None], rtol=1e-5, atol=1e-4)
    assert "has no tensor 'nothing'" in one.ctl("load", "m", "--table", f"e={file}:nothing", code=1)
    assert "not below any" in one.ctl("load", "m", "--table", "e=/etc/x.safetensors:t", code=1)


@pytest.mark.one_thread
def test_table_flag_when_a_safetensors_file_then_served_and_reloaded(work):
    first, second = rows(1), rows(2, 60)
    file = write(f"{work}/m/x.safetensors", emb=first, count=np.arange(1))
    one = Daemon(work, None, flags=["--table", f"items={file}", "--table", f"named={file}:emb"])
    try:
        for table in ("items", "named"):
            check(one, "default", table, np.arange(50), first)
        one.stop(signal.SIGQUIT)
        write(file, emb=second)
        one.start()
        check(one, "default", "items", np.arange(60), second)
    finally:
        one.stop(signal.SIGQUIT)
