# SPDX-License-Identifier: Apache-2.0
"""replace: put layers of hpsd into a trained model."""
from __future__ import annotations

import collections
from typing import Any, Dict, List, Mapping, Optional, Tuple

import grpc
import torch

from .._client import Client
from ..errors import Error, InvalidArgument
from ._calls import check_client
from ._collections import EmbeddingBagCollection, EmbeddingCollection
from ._layers import Embedding, EmbeddingBag

# Modules of TorchRec with these classes, by the modules that define them. Subclasses may look up other keys.
_TORCHREC = ("torchrec.modules.embedding_modules", "torchrec.quant.embedding_modules")


class _Left(Exception):
    """A module stays in the model. Its text is the reason."""


def _collection_kind(module: torch.nn.Module) -> str:
    """The name of the class of a TorchRec collection; "" for other modules."""
    kind = type(module)
    known = kind.__module__ in _TORCHREC and kind.__name__ in ("EmbeddingBagCollection", "EmbeddingCollection")
    return kind.__name__ if known else ""


class _Replacement:
    """One call of replace."""

    def __init__(self, model: torch.nn.Module, client: Client, tables: Mapping[str, str], options: Dict[str, Any]) -> None:
        self._client, self._tables, self._options = client, tables, options
        self._dims = {name: table.dim for name, table in client.model().tables.items()}
        self._check_tables(model)
        paths = [path for path, module in model.named_modules() if type(module) in (torch.nn.Embedding, torch.nn.EmbeddingBag)]
        self._of_last_name = collections.Counter(path.rpartition(".")[2] for path in paths)
        self._uses = collections.Counter(id(weight) for module in model.modules() for weight in module._parameters.values())
        self._made: Dict[int, torch.nn.Module] = {}  # by id: a module may be in the model twice
        self.lines: List[str] = []

    def _check_tables(self, model: torch.nn.Module) -> None:
        """Raises for a path in `tables` that is not a layer of torch, or is inside a collection."""
        modules = list(model.named_modules())
        inside = tuple(f"{path}." if path else "" for path, module in modules if _collection_kind(module))
        known = {path for path, module in modules if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag))
                 and not path.startswith(inside)}
        for path in self._tables:
            if path not in known:
                raise InvalidArgument(f"tables: got {path!r}, expected paths of torch.nn layers: {sorted(known)}; a collection "
                                      "of TorchRec uses the names of its configurations")

    def _check_dim(self, table: str, dim: int) -> None:
        there = self._dims.get(table)
        if there is None:
            raise _Left(f"hpsd has no table {table!r}")
        if there != dim:
            raise _Left(f"table {table!r} has rows of {there} values, not {dim}")

    def _check_uses(self, module: torch.nn.Module) -> None:
        if any(self._uses[id(weight)] > 1 for weight in module.parameters()):
            raise _Left("another module uses its weight")

    def _table_of(self, path: str) -> str:
        """The table of a layer of torch: by its path, or by the last name of its path if no other layer has it."""
        last = path.rpartition(".")[2]
        if path in self._tables or path in self._dims:
            return self._tables.get(path, path)
        return last if self._of_last_name[last] == 1 and last in self._dims else path

    def _of_torch(self, path: str, module: Any) -> Tuple[torch.nn.Module, str]:
        if type(module) not in (torch.nn.Embedding, torch.nn.EmbeddingBag):
            raise _Left("a subclass may look up other rows")
        table = self._table_of(path)
        self._check_dim(table, module.embedding_dim)
        if module.max_norm is not None:
            raise _Left("it has max_norm, which changes rows")
        self._check_uses(module)
        if module._forward_pre_hooks or module._forward_hooks:
            raise _Left("it has hooks, which may change rows")
        how: Dict[str, Any] = {"padding_idx": module.padding_idx, **self._options}
        if type(module) is torch.nn.Embedding:
            return Embedding(self._client, table, module.embedding_dim, **how), table
        if module.mode not in ("sum", "mean"):
            raise _Left(f"its mode is {module.mode!r}")
        return EmbeddingBag(self._client, table, module.embedding_dim, mode=module.mode,
                            include_last_offset=module.include_last_offset, **how), table

    def _of_torchrec(self, kind: str, module: Any) -> Tuple[torch.nn.Module, str]:
        of_bags = kind == "EmbeddingBagCollection"
        configs = module.embedding_bag_configs() if of_bags else module.embedding_configs()
        for config in configs:
            self._check_dim(config.name, config.embedding_dim)
        self._check_uses(module)
        names = ", ".join(config.name for config in configs)
        try:
            if of_bags:
                return EmbeddingBagCollection(self._client, configs, module.is_weighted(), **self._options), names
            return EmbeddingCollection(self._client, configs, need_indices=module.need_indices(), **self._options), names
        except InvalidArgument as error:
            raise _Left(error.details) from None

    def _replaced(self, path: str, module: torch.nn.Module) -> Optional[torch.nn.Module]:
        """The replacement of a module; the module, if it stays; None for modules that have no rows of their own."""
        kind, of_torch = _collection_kind(module), isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag))
        if not kind and not of_torch:
            return None
        if id(module) in self._made:
            return self._made[id(module)]
        name = f"{path or 'the model'} ({type(module).__name__})"
        try:
            made, tables = self._of_torch(path, module) if of_torch else self._of_torchrec(kind, module)
            whole: Any = module
            if of_torch:
                device, dtype = whole.weight.device, whole.weight.dtype
            else:  # collections return float32 rows, whatever type their weights have; quantised ones have a choice
                device, dtype = whole.device, getattr(whole, "output_dtype", lambda: torch.float32)()
            made.to("cpu" if str(device) == "meta" else device, dtype)  # meta: its weights were never made
            made.train(module.training)
            self.lines.append(f"replaced {name}: {tables}")
        except _Left as reason:
            made = module
            self.lines.append(f"left {name}: {reason}")
        self._made[id(module)] = made
        return made

    def walk(self, path: str, module: torch.nn.Module) -> torch.nn.Module:
        """Replace the module or its parts. Returns the module for this path."""
        made = self._replaced(path, module)
        if made is not None:
            return made
        for name, child in module._modules.items():
            if child is not None:
                module._modules[name] = self.walk(f"{path}.{name}" if path else name, child)
        return module


def replace(model: torch.nn.Module, client: Client, tables: Optional[Mapping[str, str]] = None, *,
            strict: bool = False, **options: Any) -> torch.nn.Module:
    """Replace the modules of a model for which hpsd has tables: collections of TorchRec (also quantised ones),
    torch.nn.EmbeddingBag and torch.nn.Embedding. Changes the model. Prints each module that it replaced, and each that
    it left with the reason. Returns the model, or its replacement if the model is such a module itself.

    tables: {path of a torch.nn layer in the model: table}. By default the table has the name of the path, such as
        "tower.items", or of its last part, "items", if no other layer has this last part. Collections have the names
        of tables themselves.
    strict: raise an Error if a module was left, or if the model has no embedding. The model may be changed already.
    options: the options of the layers.
    """
    check_client(client)
    work = _Replacement(model, client, tables or {}, options)
    model = work.walk("", model)
    lines = work.lines or ["found no embedding in the model"]
    print("\n".join(f"hpsd.torch.replace: {line}" for line in lines))
    left = [line for line in lines if not line.startswith("replaced ")]
    if strict and left:
        raise Error(f"replace: {'; '.join(left)}", grpc.StatusCode.FAILED_PRECONDITION)
    return model
