"""Operators of _torch.so, the compiled part of flashkit.torch, and their autograd functions.

A compiled operator declines a call that it cannot compute, by empty results. Then the operators of
_operators.py compute the call, or raise its error. Without _torch.so, or with PyTorch before
2.10, every call is declined.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction
from torch.compiler import is_dynamo_compiling

from . import _abi, _call, _dispatcher, _fields

_FULL = "Tensor bias, Tensor mask, Tensor slopes, Tensor sink, Tensor q_lens, Tensor kv_lens, Tensor q_starts, Tensor kv_starts, Tensor pages, Tensor ranges, int seed, int given"
_SCHEMAS = (
    "_forward_o(Tensor q, Tensor k, Tensor v, Tensor plan) -> Tensor",
    "_forward(Tensor q, Tensor k, Tensor v, Tensor plan) -> (Tensor, Tensor)",
    f"_forward_full(Tensor q, Tensor k, Tensor v, Tensor plan, {_FULL}) -> (Tensor, Tensor)",
    "_backward(Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor plan) -> (Tensor, Tensor, Tensor)",
    f"_backward_full(Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor plan, Tensor d_lse, {_FULL}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)

# Bits of given, in the order of the optional tensors.
OPTIONAL = ("bias", "mask", "slopes", "sink", "q_lens", "kv_lens", "q_starts", "kv_starts", "pages", "ranges")
_D_LSE, _D_BIAS, _D_SINK = (1 << (len(OPTIONAL) + i) for i in range(3))

# The functions that _torch.c calls, in the order of its structure.
_PYTORCH = (
    "aoti_torch_library_init_impl", "torch_library_impl", "aoti_torch_delete_tensor_object", "aoti_torch_get_dim", "aoti_torch_get_sizes",
    "aoti_torch_get_strides", "aoti_torch_get_dtype", "aoti_torch_get_device_type", "aoti_torch_get_device_index", "aoti_torch_get_data_ptr",
    "aoti_torch_empty_strided", "aoti_torch_copy_", "aoti_torch_new_uninitialized_tensor", "torch_delete_list", "aoti_torch_dtype_float32", "aoti_torch_dtype_float16", "aoti_torch_dtype_bfloat16",
    "aoti_torch_dtype_bool", "aoti_torch_dtype_int32", "aoti_torch_dtype_int64", "aoti_torch_device_type_cpu", "aoti_torch_device_type_cuda",
)  # fmt: skip
_STREAM = "aoti_torch_get_current_cuda_stream"
_FLASHKIT = ("fk_problem_of", "fk_forward", "fk_backward")

# PyTorch's operators that _torch.c overrides.
_INPUTS = "Tensor query, Tensor key, Tensor value"
_STATE = "Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k"
_OVERRIDDEN = (
    f"_scaled_dot_product_fused_attention_overrideable({_INPUTS}, Tensor? attn_bias=None, float dropout_p=0., bool is_causal=False, bool return_debug_mask=False, *, "
    f"float? scale=None) -> (Tensor output, Tensor logsumexp, {_STATE}, Tensor philox_seed, Tensor philox_offset, Tensor debug_attn_mask)",
    f"_scaled_dot_product_fused_attention_overrideable_backward(Tensor grad_out, {_INPUTS}, Tensor attn_bias, bool[4] grad_input_mask, Tensor out, Tensor logsumexp, "
    f"{_STATE}, float dropout_p, bool is_causal, Tensor philox_seed, Tensor philox_offset, *, float? scale=None) -> "
    "(Tensor grad_query, Tensor grad_key, Tensor grad_value, Tensor grad_attn_bias)",
)

_VERSION = 0x666B0001  # the layout of a plan
_MOST = 256  # plans kept

_library: Any = torch.library.Library("flashkit", "FRAGMENT")  # type: ignore[no-untyped-call]


def _decline_one(*inputs: Any) -> Tensor:
    return torch.empty(0)


def _decline(*inputs: Any) -> tuple[Tensor, ...]:
    """Stand for a kernel on devices for which there is none."""
    return tuple(torch.empty(0) for _ in range(5 if len(inputs) > 16 else 3 if len(inputs) == 7 else 2))


def _define() -> list[Any]:
    operators = []
    for schema in _SCHEMAS:
        name = schema[: schema.index("(")]
        _library.define(schema)
        _library.impl(name, torch.library.fallthrough_kernel, "Autograd")
        _library.impl(name, _decline_one if name == "_forward_o" else _decline, "CompositeExplicitAutograd")
        operators.append(getattr(torch.ops.flashkit, name).default._op)
    return operators


_forward_o, _forward, _forward_full, _backward, _backward_full = _define()


class Plan:
    """The options of calls, and their dispatcher."""

    def __init__(self, tensor: Tensor, swap: bool, rest: tuple[Any, ...]) -> None:
        self.tensor = tensor  #: for the compiled operators
        self.swap = swap  #: whether rows come before heads
        self.rest = rest  #: the options as the operators of _operators.py take them


plans: dict[Any, Plan] = {}
_lock = threading.Lock()
_registered: bool | None = None  # None before the first call
record: Any = None  # computes O first of its results, and records gradients of q, k and v; None if there is no such operator
_none: Tensor | None = None


def _address(library: Any, name: str) -> int:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def _register() -> bool:
    """Give PyTorch the kernels of _torch.so. It is in the folder of the library."""
    global record
    library = os.environ.get("FLASHKIT_LIBRARY")
    file = pathlib.Path(library or __file__).with_name("_torch.so")
    if not file.exists():
        return False
    own = _abi.library()
    try:
        pytorch = ctypes.CDLL("libtorch_cpu.so", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        addresses = [_address(pytorch, name) for name in _PYTORCH]
        compiled = ctypes.CDLL(str(file))
    except (OSError, AttributeError):
        return False
    try:
        stream = _address(ctypes.CDLL("libtorch_cuda.so", mode=os.RTLD_NOLOAD | os.RTLD_LAZY), _STREAM)
    except (OSError, AttributeError):
        stream = 0
    recorded, raises = _overrideable()
    addresses += [stream, *(_address(own, name) for name in _FLASHKIT), raises]
    if compiled.flashkit_torch_register((ctypes.c_void_p * len(addresses))(*addresses)):
        return False
    record = recorded
    return True


def _overrideable() -> tuple[Any, int]:
    """Return PyTorch's operator that _torch.c overrides, and the function that raises its errors. Return (None, 0) if PyTorch lacks one."""
    try:
        for schema in _OVERRIDDEN:
            if str(getattr(torch.ops.aten, schema[: schema.index("(")]).default._schema) != f"aten::{schema}":
                return None, 0
        raises = _address(ctypes.CDLL("libstdc++.so.6", mode=os.RTLD_NOLOAD | os.RTLD_LAZY), "_ZSt21__throw_runtime_errorPKc")
    except (OSError, AttributeError):
        return None, 0
    return torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default._op, raises


def _ready() -> bool:
    global _registered, _none
    if _registered is None:
        with _lock:
            if _registered is None:
                _none = torch.empty(0, device="cpu")
                _registered = _register()
    return _registered


def plan(key: Any, causal: bool, sides: Any, top_left: bool, shift: int, numbers: tuple[Any, ...], dropout: float, backend: str | None, paired: bool, swap: bool) -> Plan | None:
    """Return the plan of options, which are checked, and keep it under key. Return None if there is no compiled part."""
    if not _ready():
        return None
    o: Any = dict(causal=causal, window=sides and tuple(None if side == -1 else side for side in sides), top_left=top_left, shift=shift, dropout=dropout)
    o |= {name: x or None for name, x in zip(_fields.NUMBERS, numbers, strict=True)}
    problem = _abi.Problem(size=ctypes.sizeof(_abi.Problem))
    _call.parameters(problem, o)
    _call.band(problem, o)
    words = (_VERSION, _dispatcher.shared(backend, not paired)._take(), int(swap), *np.frombuffer(bytes(problem), np.int64).tolist())
    with torch.inference_mode(False):
        p = Plan(torch.tensor(words, dtype=torch.int64, device="cpu"), swap, (causal, sides, top_left, shift, *[x or 0.0 for x in numbers], dropout, backend, paired))
    if len(plans) >= _MOST:
        plans.clear()
    plans[key] = p
    return p


_dispatch_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._are_functorch_transforms_active
_tracing = torch._C._get_tracing_state
_autocast = torch._C._is_any_autocast_enabled


def eager() -> bool:
    """Report whether PyTorch neither records, transforms nor casts the calls of this thread, except to record gradients."""
    return not (_dispatch_modes() or _transforms() or _autocast() or forward_ad._current_level >= 0 or _tracing() is not None)


def _packed(optional: tuple[Any, ...], given: int) -> tuple[list[Any], int]:
    """Return the optional tensors with a placeholder for each missing one, and the bits of the others."""
    tensors: list[Any] = [_none] * len(OPTIONAL)
    for i, t in enumerate(optional):
        if t is not None:
            given |= 1 << i
            tensors[i] = t
    return tensors, given


def compute(p: Plan, q: Tensor, k: Tensor, v: Tensor, optional: tuple[Any, ...] = (), seed: Tensor | None = None) -> tuple[Tensor, Tensor] | None:
    """Return O and LSE, or None if the call is declined. Nothing is recorded."""
    if optional or seed is not None:
        tensors, given = _packed(optional, 0)
        o, lse = _forward_full(q, k, v, p.tensor, *tensors, 0 if seed is None else int(seed), given)
    else:
        o, lse = _forward(q, k, v, p.tensor)
    return (o, lse) if o.dim() == 4 else None


def gradients(p: Plan, d_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, d_lse: Tensor | None, optional: tuple[Any, ...], seed: Tensor | None, d_bias: bool, d_sink: bool) -> Any:
    """Return five gradients, or None if the call is declined."""
    tensors, given = _packed(optional, _D_LSE * (d_lse is not None) + _D_BIAS * d_bias + _D_SINK * d_sink)
    g = _backward_full(d_o, q, k, v, o, lse, p.tensor, _none if d_lse is None else d_lse, *tensors, 0 if seed is None else int(seed), given)
    return g if g[0].dim() == 4 else None


class Declined(Exception):
    """The compiled part cannot compute this call."""


def _generic(p: Plan, d_o: Any, d_lse: Any, saved: Any, optional: Any, seed: Any, d_bias: bool, d_sink: bool) -> list[Any]:
    """Return the gradients by the operator of _operators.py, which records and transforms."""
    four = [t.transpose(1, 2) if p.swap else t for t in (d_o, *saved[:3], saved[3])]
    tensors = (*optional[:4], seed, *optional[4:])
    d_o, q, k, v, o = four
    g = torch.ops.flashkit.attention_backward(d_o, d_lse, q, k, v, o, saved[4], *tensors, *p.rest, d_bias, d_sink)
    return [*(t.transpose(1, 2) if p.swap else t for t in g[:3]), *g[3:]]


def _plain(t: Tensor) -> bool:
    """Report whether a backward pass is neither recorded nor traced."""
    return not is_dynamo_compiling() and t.__class__ is Tensor and not torch.is_grad_enabled() and eager()


class Attention(_SingleLevelFunction):
    """O and LSE with optional tensors. It is applied only if eager holds."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, p: Plan, seed: Any, *optional: Any) -> Any:
        r = compute(p, q, k, v, optional, seed)
        if r is None:
            raise Declined
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, *r, seed, *optional)
        ctx.plan = p
        return r

    @staticmethod
    def backward(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None) -> Any:
        tensors, p = ctx.saved_tensors, ctx.plan  # hooks may unpack them once only
        q, k, v, o, lse, seed = tensors[:6]
        optional, saved = tensors[6:], (q, k, v, o, lse)
        needs = ctx.needs_input_grad[5:]
        d_bias, d_sink = needs[0], needs[3]
        if d_o is None:
            d_o = torch.zeros_like(o)
        g = gradients(p, d_o, q, k, v, o, lse, d_lse, optional, seed, d_bias, d_sink) if _plain(d_o) else None
        if g is None:
            g = _generic(p, d_o, d_lse, saved, optional, seed, d_bias, d_sink)
        out: list[Any] = [None] * len(OPTIONAL)
        if d_bias:
            out[0] = g[3]
        if d_sink:
            out[3] = g[4]
        return *g[:3], None, None, *out

    @staticmethod
    def _compiled_autograd_key(ctx: Any) -> tuple[Any, ...]:  # same method as in autograd.Function
        return (ctx._autograd_function_id,)


apply: Any = Attention.apply  # type: ignore[attr-defined]


def with_all(p: Plan, q: Tensor, k: Tensor, v: Tensor, optional: tuple[Any, ...], seed: Tensor | None, record: bool) -> Any:
    """Return O and LSE of a call with optional tensors or dropout, or None if it is declined."""
    return apply(q, k, v, p, seed, *optional) if record else compute(p, q, k, v, optional, seed)
