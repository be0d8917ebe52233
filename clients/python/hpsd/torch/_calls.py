# SPDX-License-Identifier: Apache-2.0
"""The base class of layers: client, device and dtype, no gradients, and the operator `hpsd::rows`, with which
torch.compile and torch.export record layers. The first argument of the operator describes the layer as text, so that a
program works in every process (_program.py)."""
from __future__ import annotations

from typing import Any, ClassVar, Dict, List, Optional, Sequence, Tuple

import torch

from .._client import Client
from ..errors import InvalidArgument
from .. import _program

Tensors = Tuple[Optional[torch.Tensor], ...]
_n_recorders: Any = torch._C._len_torch_dispatch_stack  # make_fx and fake tensors; without them the operator only costs time
_OUTPUTS = {torch.float16: "fp16", torch.bfloat16: "bf16"}  # other dtypes are converted from fp32
_OPTIONS = {"miss", "max_wait", "unknown", "max_staleness", "consistency", "timeout"}


def _is_plain(given: Optional[torch.Tensor]) -> bool:
    """Whether the input has values and no gradients. Others need the operator: for shapes, or an error in the backward pass."""
    return given is None or (type(given) is torch.Tensor and not given.is_meta and not given.requires_grad)


def check_client(client: Any) -> None:
    if not isinstance(client, Client):
        raise InvalidArgument(f"client: got {type(client).__module__}.{type(client).__qualname__}, expected an hpsd.Client, "
                              "which hpsd.connect returns; layers cannot use an asyncio client")


class Layer(torch.nn.Module):
    """A layer without weights.

    options: the options of hpsd.Client.lookup.
    arguments: the other arguments of the constructor.
    client: None for the layer of a program, whose calls pass a client.
    """

    kind: ClassVar[str]
    _place: torch.Tensor  # has the device and dtype of the module; not in a state_dict

    def __init__(self, client: Optional[Client], options: Dict[str, Any], **arguments: Any) -> None:
        if client is not None:
            check_client(client)
        super().__init__()
        unknown = options.keys() - _OPTIONS
        if unknown:
            raise TypeError(f"{type(self).__name__}: got an unexpected argument {sorted(unknown)[0]!r}")
        self.client: Any = client
        self.options = options
        self._arguments = arguments
        self.register_buffer("_place", torch.empty(0), persistent=False)
        self._anchor = torch.empty(0, requires_grad=True)  # makes a backward pass call this operator
        self._describe()

    def __init_subclass__(cls) -> None:
        if "kind" in vars(cls):
            _program.KINDS[cls.kind] = cls

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        state = self.__dict__
        if "_program" in state and (name in ("client", "options") or name in state["_arguments"]):
            if name in self._arguments:
                self._arguments[name] = value
            self._describe()

    def __setstate__(self, state: Any) -> None:
        torch.nn.Module.__setstate__(self, state)  # type: ignore[no-untyped-call]
        self._describe()  # the copy has another client

    def __prepare_scriptable__(self) -> Any:
        """torch.jit.script calls it."""
        raise self._not_recorded()

    def _describe(self) -> None:
        client = self.client
        self._program = "" if client is None else _program.write(client, self.kind, self._arguments, self.options)

    def _not_recorded(self) -> RuntimeError:
        return RuntimeError(
            f"hpsd.torch.{self!r} cannot be traced, scripted, or exported to ONNX: the recording would hold rows instead of "
            "looking them up. Use torch.compile or torch.export, or call client.lookup outside of the recorded module and "
            "pass the rows to it as an input")

    # ---- implemented by each kind of layer ----

    def lookup_rows(self, client: Client, tensors: Tensors, layout: Sequence[int], output: str) -> torch.Tensor:
        """The rows, on any device, of the dtype `output`."""
        raise NotImplementedError

    def shape(self, tensors: Tensors, layout: Sequence[Any]) -> List[Any]:
        """The shape of the result of lookup_rows."""
        raise NotImplementedError

    # ---- common ----

    def check_inputs(self, tensors: Tensors) -> None:
        for given in tensors:
            if isinstance(given, torch.fx.Proxy):
                raise self._not_recorded()
            if given is None:
                continue
            if not isinstance(given, torch.Tensor):
                raise InvalidArgument(f"{type(self).__name__}: got {type(given).__name__} as an input, "
                                      "expected a torch.Tensor")
            if given.layout is not torch.strided or given.is_nested:
                raise InvalidArgument(f"{type(self).__name__}: got a sparse or nested tensor as an input, expected a dense "
                                      "one; bags of different sizes are an input of one dimension with offsets")

    def rows(self, *tensors: Optional[torch.Tensor], layout: Sequence[int] = ()) -> torch.Tensor:
        """The result of the layer for these inputs."""
        if torch.jit.is_tracing():
            raise self._not_recorded()
        self.check_inputs(tensors)
        anchor = self._anchor if self.training and torch.is_grad_enabled() else None
        if anchor is None and not torch.compiler.is_compiling() and _n_recorders() == 0 and all(map(_is_plain, tensors)):
            return self.look_up(self.client, tensors + (None,) * (4 - len(tensors)), layout, self._place)
        return _operator(self._program, *tensors, *[None] * (4 - len(tensors)), layout, self._place, anchor)

    def look_up(self, client: Client, tensors: Tensors, layout: Sequence[int], place: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            rows = self.lookup_rows(client, tensors, layout, _OUTPUTS.get(place.dtype, "fp32"))
            return rows.to(device=place.device, dtype=place.dtype)


# ---- the operators -----------------------------------------------------------------------------------

def _rows(layer: str, first: torch.Tensor, second: Optional[torch.Tensor], third: Optional[torch.Tensor],
          fourth: Optional[torch.Tensor], layout: Sequence[int], place: torch.Tensor,
          anchor: Optional[torch.Tensor]) -> torch.Tensor:
    made: Layer = _program.read(layer)
    return made.look_up(_program.client_of(layer), (first, second, third, fourth), layout, place)


def _shape_of_rows(layer: str, first: torch.Tensor, second: Optional[torch.Tensor], third: Optional[torch.Tensor],
                   fourth: Optional[torch.Tensor], layout: Sequence[int], place: torch.Tensor,
                   anchor: Optional[torch.Tensor]) -> torch.Tensor:
    made = _program.read(layer)
    if torch.onnx.is_in_onnx_export():  # under Dynamo, which the ONNX exporter may use, this is False in Layer.rows
        raise made._not_recorded()
    return place.new_empty(made.shape((first, second, third, fourth), layout))


_library: Any = torch.library
if not hasattr(_library, "custom_op"):
    raise ImportError(f"hpsd.torch: got torch {torch.__version__}, expected 2.4 or later; client.lookup accepts tensors of any version")
_operator = _library.custom_op(
    "hpsd::rows", _rows, mutates_args=(), schema="(str layer, Tensor first, Tensor? second, Tensor? third, Tensor? fourth, "
    "SymInt[] layout, Tensor place, Tensor? anchor) -> Tensor")
_operator.register_fake(_shape_of_rows)


def _no_gradients(gradient: torch.Tensor, layer: str) -> torch.Tensor:
    raise RuntimeError(f"hpsd.torch.{_program.read(layer)!r} is for inference: its rows are in hpsd, and have no gradients. "
                       "Use it in eval() or under torch.no_grad(), or detach() its result")


# A separate operator: a compiler records the backward pass even if it will not run.
_fail = _library.custom_op("hpsd::no_gradients", _no_gradients, mutates_args=(),
                           schema="(Tensor gradient, str layer) -> Tensor")
_fail.register_fake(lambda gradient, layer: gradient.new_empty(0))


def _keep_layer(ctx: Any, inputs: Tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.layer = inputs[0]


def _backward(ctx: Any, gradient: torch.Tensor) -> Tuple[Any, ...]:
    return (*[None] * 7, _fail(gradient, ctx.layer))


_operator.register_autograd(_backward, setup_context=_keep_layer)
