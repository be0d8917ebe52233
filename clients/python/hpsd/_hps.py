# SPDX-License-Identifier: Apache-2.0
"""Reads the ps.json of HPS, for layers with the arguments of HPS's layers."""
from __future__ import annotations

import json
from typing import Any, Dict, List, Optional, Tuple

from ._address import DEFAULT_PORT, Addresses, as_targets
from ._client import Client, connect
from .errors import InvalidArgument

_clients: Dict[Tuple[Tuple[str, ...], str], Client] = {}  # the layers of a model share connections


def _parsed(text: str) -> Any:
    """Parse JSON with comments, as hpsd accepts it."""
    out: List[str] = []
    at = 0
    while at < len(text):
        two = text[at:at + 2]
        if text[at] == '"':
            end = at + 1
            while end < len(text) and text[end] != '"':
                end += 2 if text[end] == "\\" else 1
            out.append(text[at:end + 1])
            at = end + 1
        elif two in ("//", "/*"):
            end = text.find("\n" if two == "//" else "*/", at + 2)
            at = len(text) if end < 0 else end + (0 if two == "//" else 2)
        else:
            out.append(text[at])
            at += 1
    return json.loads("".join(out))


def _table_name(config: Any, path: str, model: str, table_id: int) -> str:
    entry = next((one for one in config.get("models", []) if one.get("model") == model), None)
    if entry is None:
        there = ", ".join(repr(one.get("model")) for one in config.get("models", []))
        raise InvalidArgument(f"model_name: got {model!r}, expected one of {path}: {there}")
    n_tables = len(entry.get("sparse_files", []))
    if not 0 <= table_id < n_tables:
        raise InvalidArgument(f"table_id: got {table_id}, expected 0 to {n_tables - 1}, as {model!r} has {n_tables} tables in "
                              f"{path}")
    names = entry.get("embedding_table_names") or [f"sparse_embedding{i}" for i in range(n_tables)]
    return str(names[table_id])


def _address(config: Any) -> Addresses:
    listen = config.get("server", {}).get("listen", f"127.0.0.1:{DEFAULT_PORT}")
    first = listen[0] if isinstance(listen, list) else listen
    return str(first["address"] if isinstance(first, dict) else first)


def table_of(ps_config_file: str, model_name: str, table_id: int, address: Optional[Addresses]) -> Tuple[Client, str]:
    """The client and the name of a table. The address of hpsd is in the file, unless it is given."""
    with open(ps_config_file, encoding="utf-8") as file:
        try:
            config = _parsed(file.read())
        except ValueError as error:
            raise InvalidArgument(f"ps_config_file: {ps_config_file} is not JSON: {error}") from None
    table = _table_name(config, ps_config_file, model_name, table_id)
    targets = as_targets(_address(config) if address is None else address)
    return _clients.setdefault((tuple(targets), model_name), connect(targets, model_name)), table
