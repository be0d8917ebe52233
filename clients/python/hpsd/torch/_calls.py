# SPDX-License-Identifier: Apache-2.0
"""What all layers have in common: a client, a device and a dtype, no gradients; and that torch.compile takes what they
do for one opaque operator, `hpsd::rows`, of which it knows the shape alone."""
from __future__ import annotations

import itertools
import weakref
from typing import Any, Dict, List, Optional, Tuple

import torch

from .._client import Client

Tensors = Tuple[Optional[torch.Tensor], ...]
_OUTPUTS = {torch.float16: "fp16", torch.bfloat16: "bf16"}  # all else is made of fp32


class _ForInference(torch.autograd.Function):
    """Rows as they are; a backward pass through them is an error."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, anchor: torch.Tensor, what: str) -> torch.Tensor:  # type: ignore[override]
        ctx.what = what
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise RuntimeError(f"{ctx.what} is for inference: its rows are in hpsd, and have no gradients. Use it in eval() or "
                           "under torch.no_grad(), or detach() what it returns")


_for_inference: Any = _ForInference.apply


def _compiling() -> bool:
    compiler = getattr(torch, "compiler", None)
    return bool(compiler is not None and getattr(compiler, "is_compiling", lambda: False)())


class Layer(torch.nn.Module):
    """A layer without weights. `options` are those of hpsd.Client.lookup."""

    _place: torch.Tensor  # goes where the module goes: to its device and dtype; not in a state_dict

    def __init__(self, client: Client, options: Dict[str, Any]) -> None:
        super().__init__()
        unknown = options.keys() - {"miss", "max_wait", "unknown", "max_staleness", "consistency", "timeout"}
        if unknown:
            raise TypeError(f"{type(self).__name__}: got an unexpected argument {sorted(unknown)[0]!r}")
        self.client = client
        self.options = options
        self.register_buffer("_place", torch.empty(0), persistent=False)
        self._handle = _register(self)

    def __setstate__(self, state: Any) -> None:
        torch.nn.Module.__setstate__(self, state)  # type: ignore[no-untyped-call]
        self._handle = _register(self)  # a copy is a layer of its own

    # ---- of each kind of layer ----

    def look_up(self, tensors: Tensors) -> torch.Tensor:
        """The rows, on whatever device, and of the dtype that `output` asks for."""
        raise NotImplementedError

    def shape(self, tensors: Tensors) -> List[Any]:
        """Of what look_up returns."""
        raise NotImplementedError

    # ---- of all ----

    @property
    def output(self) -> str:
        return _OUTPUTS.get(self._place.dtype, "fp32")

    def rows(self, *tensors: Optional[torch.Tensor]) -> torch.Tensor:
        """What the layer returns for these inputs."""
        if _compiling() and _operator is not None:
            return _operator(self._handle, *tensors, *[None] * (3 - len(tensors)), self._place)
        rows = self._rows_now(tensors)
        if self.training and torch.is_grad_enabled():
            return _for_inference(rows, torch.empty(0, requires_grad=True), f"hpsd.torch.{self!r}")
        return rows

    def _rows_now(self, tensors: Tensors) -> torch.Tensor:
        with torch.no_grad():
            return self.look_up(tensors).to(device=self._place.device, dtype=self._place.dtype)


# ---- the operator ------------------------------------------------------------------------------------

_layers: "weakref.WeakValueDictionary[int, Layer]" = weakref.WeakValueDictionary()
_handles = itertools.count(1)


def _register(layer: Layer) -> int:
    """Operators take numbers, not objects."""
    handle = next(_handles)
    _layers[handle] = layer
    return handle


_operator: Any = None
if hasattr(torch, "library") and hasattr(torch.library, "custom_op"):  # torch 2.4 and later
    def _rows(layer: int, first: torch.Tensor, second: Optional[torch.Tensor], third: Optional[torch.Tensor],
              place: torch.Tensor) -> torch.Tensor:
        return _layers[layer]._rows_now((first, second, third))

    def _shape_of_rows(layer: int, first: torch.Tensor, second: Optional[torch.Tensor], third: Optional[torch.Tensor],
                       place: torch.Tensor) -> torch.Tensor:
        return place.new_empty(_layers[layer].shape((first, second, third)))

    _operator = torch.library.custom_op(
        "hpsd::rows", _rows, mutates_args=(),
        schema="(int layer, Tensor first, Tensor? second, Tensor? third, Tensor place) -> Tensor")
    _operator.register_fake(_shape_of_rows)
