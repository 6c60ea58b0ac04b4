"""Exact attention, O = softmax(scale*Q*K^T + ...)*V, and its gradients.

    import flashkit, numpy as np
    q, k, v = (np.random.rand(1, 8, 512, 64).astype(np.float32) for _ in range(3))
    o = flashkit.attention(q, k, v, causal=True)

Arrays are NumPy's, PyTorch's tensors, or what speaks DLPack; none is copied. Types are
float32, float16 and bfloat16. A NumPy array holds bfloat16 with the type of package ml_dtypes,
or as uint16 with dtype="bfloat16". All functions may be called from any thread, several at
once; they release Python's lock.
flashkit.torch has operators with gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np

from . import _arrays, _dispatcher, _fields, _prepared
from ._attention import attention
from ._cache import KVCache
from ._call import Options
from ._dispatcher import Dispatcher, Gradients, Kernel, Memory, Verdict
from ._errors import (
    CanceledError,
    DimensionError,
    DriverError,
    DTypeError,
    Error,
    ForkedError,
    HandleError,
    HeadDimError,
    InternalError,
    NullError,
    OptionError,
    OutOfMemoryError,
    OverlapError,
    SizeError,
    StrideError,
    TimeoutError,
    UnavailableError,
    UnsupportedError,
)
from ._handle import Cancel

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._types import Backward, DLPack, NumPy, Tensor

__version__ = _fields.VERSION
__all__ = [
    "Cancel", "CanceledError", "DTypeError", "DimensionError", "Dispatcher", "DriverError", "Error", "ForkedError", "Gradients", "HandleError",
    "HeadDimError", "InternalError", "KVCache", "Kernel", "Memory", "NullError", "OptionError", "Options", "OutOfMemoryError", "OverlapError", "SizeError",
    "StrideError", "TimeoutError", "UnavailableError", "UnsupportedError", "Verdict", "attention", "attention_backward", "explain", "kernels",
    "merge", "workspace",
]  # fmt: skip


@overload
def attention_backward(d_o: NumPy, q: NumPy, k: NumPy, v: NumPy, o: NumPy, lse: NumPy, **options: Unpack[Backward]) -> Gradients[NumPy]: ...
@overload
def attention_backward(d_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, **options: Unpack[Backward]) -> Gradients[Tensor]: ...
@overload
def attention_backward(d_o: DLPack, q: DLPack, k: DLPack, v: DLPack, o: DLPack, lse: DLPack, **options: Unpack[Backward]) -> Gradients[Any]: ...
def attention_backward(
    d_o: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    *,
    d_lse: Any = None,
    d_bias: bool = False,
    d_sink: bool = False,
    backend: str | Dispatcher | None = None,
    **options: Unpack[Options],
) -> Gradients[Any]:
    """Return the gradients of sum(O*d_o) + sum(LSE*d_lse).

    o and lse are what attention returned, called with the same options. d_bias and d_sink
    ask for the gradients of these, in the shape and type of them. A forward pass
    that returns LSE sums scores in the order of this pass, if both have the same backend.
    """
    d, call = _dispatcher.shared(backend), None
    if (q.__class__ is np.ndarray or q.__class__ is _prepared.Tensor) and _prepared.kept(options):
        arrays: Any = d_o, q, k, v, o, lse, d_lse, *(options.get(name) for name in _prepared.OPTIONAL)
        rest = {name: x for name, x in options.items() if name not in _prepared.OPTIONAL}
        call = _prepared.find(d, ("backward", d_bias, d_sink, *rest.items(), *map(type, rest.values()), str(rest.get("window"))), arrays)
        if call is not None and call.handle is not None and (g := call.backward(arrays, d_bias, d_sink)) is not None:
            return Gradients(*g)
    _prepared.look()
    _prepared.refuse_traced(q)
    if _arrays.forward_mode():
        rest = {name: options.get(name) for name in ("bias", "slopes", "sink")}
        _arrays.without_tangents(d_o=d_o, q=q, k=k, v=v, o=o, lse=lse, d_lse=d_lse, **rest)
    return d.backward(d_o, q, k, v, o, lse, d_lse, d_bias, d_sink, options, call=call)


@overload
def merge(o1: NumPy, lse1: NumPy, o2: NumPy, lse2: NumPy, *, layout: str = "bhsd") -> tuple[NumPy, NumPy]: ...
@overload
def merge(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor, *, layout: str = "bhsd") -> tuple[Tensor, Tensor]: ...
@overload
def merge(o1: DLPack, lse1: DLPack, o2: DLPack, lse2: DLPack, *, layout: str = "bhsd") -> tuple[Any, Any]: ...
def merge(o1: Any, lse1: Any, o2: Any, lse2: Any, *, layout: str = "bhsd") -> tuple[Any, Any]:
    """Return (O, LSE) over both of two disjoint sets of keys, from those over each.

    Not for results with a sink on both sides, which would count twice.
    """
    if _arrays.forward_mode():
        _arrays.without_tangents(o1=o1, lse1=lse1, o2=o2, lse2=lse2)
    return _dispatcher.merge(o1, lse1, o2, lse2, layout)


def kernels(backend: str | Dispatcher | None = None) -> list[Kernel]:
    """Return the kernels of a dispatcher, also those that this machine cannot run."""
    return _dispatcher.shared(backend).kernels()


def explain(
    q: Any,
    k: Any,
    v: Any,
    *,
    backward: bool = False,
    carry: bool = False,
    backend: str | Dispatcher | None = None,
    **options: Unpack[Options],
) -> list[Verdict]:
    """Return what speaks for and against every kernel for this call. It runs nothing."""
    return _dispatcher.shared(backend).explain(q, k, v, backward, carry, options)


def workspace(q: Any, k: Any, v: Any, *, backward: bool = False, backend: str | Dispatcher | None = None, **options: Unpack[Options]) -> Memory:
    """Return what memory this call would take beside its arrays. It runs nothing."""
    return _dispatcher.shared(backend).workspace(q, k, v, backward, options)
