"""Exact attention, O = softmax(scale*Q*K^T + ...)*V, and its gradients.

    import flashkit, numpy as np
    q, k, v = (np.random.rand(1, 8, 512, 64).astype(np.float32) for _ in range(3))
    o = flashkit.attention(q, k, v, causal=True)

Arrays are NumPy's, PyTorch's tensors, or what speaks DLPack; none is copied. Types are
float32, float16 and bfloat16: of NumPy by ml_dtypes, or uint16 with dtype="bfloat16". All
functions may be called from any thread, several at once; they release Python's lock.
flashkit.torch has operators with gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _arrays, _dispatcher, _errors
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

__version__ = "0.1.0"
__all__ = [
    "Cancel", "CanceledError", "DTypeError", "DimensionError", "Dispatcher", "DriverError", "Error", "ForkedError", "Gradients", "HandleError",
    "HeadDimError", "InternalError", "Kernel", "Memory", "NullError", "OptionError", "Options", "OutOfMemoryError", "OverlapError", "SizeError",
    "StrideError", "TimeoutError", "UnavailableError", "UnsupportedError", "Verdict", "attention", "attention_backward", "explain", "kernels",
    "merge", "workspace",
]  # fmt: skip


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    top_left: bool = False,
    shift: int = 0,
    scale: float | None = None,
    softcap: float | None = None,
    bias: Any = None,
    mask: Any = None,
    slopes: Any = None,
    sink: Any = None,
    dropout: float = 0.0,
    seed: int = 0,
    origin: tuple[int, int, int, int] | None = None,
    q_lens: Any = None,
    kv_lens: Any = None,
    q_starts: Any = None,
    kv_starts: Any = None,
    pages: Any = None,
    layout: str = "bhsd",
    dtype: str | None = None,
    backend: str | Dispatcher | None = None,
    workers: int = 0,
    timeout: float | None = None,
    cancel: Cancel | None = None,
    out: Any = None,
    lse: Any = None,
    carry: bool = False,
    return_lse: bool = False,
) -> Any:
    """Return O, or (O, LSE) with return_lse. A row that sees no key is 0, and -inf in LSE.

    The order is: dot product, scale, softcap, bias and slopes, mask and band, softmax
    with the sink, dropout.

    Args:
        q: [B, H, N, D], elements of a row contiguous, other strides as they come.
        k: [B, G, M, D]; G divides H, and head h of q reads head h // (H // G).
        v: [B, G, M, DV]. k and v may be float16 or bfloat16 where q is float32.
        causal: no row sees a key after the diagonal, on which the last row meets the last key.
        window: (left, right): a row sees that many keys before and after the diagonal; None
            for no limit.
        top_left: the diagonal is that on which the first row meets the first key.
        shift: moves the diagonal to later keys.
        scale: multiplies the dot products; 1/sqrt(D) if None.
        softcap: c: the score s becomes c*tanh(s/c).
        bias: added to the scores: [B, H, N, M], float32 or q's type. Each dimension but M may be
            1, which repeats, or stride 0; leading ones may lack.
        mask: bool, shapes as of bias; True takes part.
        slopes: ALiBi, [H] or [B, H] float32: minus slope times the distance from the diagonal.
        sink: [H] float32, a logit that takes weight and has no value.
        dropout: the probability to drop a weight, below 1, rounded to a multiple of 2**-16. The seed says which ones.
        seed: from 0 to 2**64-1. The same one drops the same weights in both passes.
        origin: (batch, head, row, key) of the call's first ones in a whole, of which it is a part:
            it drops the weights that a call of the whole does there. key is a multiple of 8.
        q_lens, kv_lens: [B] integers: sequence b has that many rows, or keys. Beyond it O is 0.
        q_starts, kv_starts: [B+1] integers: sequence b lies from the one to the next, in
            tensors of batch 1. What lies outside of all is 0, and -inf in LSE.
        pages: [B, pages of a sequence] integers: k and v are pools [pages, G, page, D] and
            kv_lens says how many keys count. Without a backward pass. Of tensors on a GPU both
            may be there too, as int32, and are then not checked: pages must be in the pools.
        layout: "bhsd" as above, or "bshd": [B, N, H, D], also of the result.
        dtype: what arrays of uint16 hold: "bfloat16" or "float16".
        backend: a name, see Dispatcher, or a Dispatcher. One of a name is opened once and kept.
        workers: threads that the call may use at most; 0 for no limit.
        timeout: seconds, after which the call ends with TimeoutError.
        cancel: ends the call from another thread, with CanceledError.
        out: O, written in place of a new array. It shares memory with no other array.
        lse: LSE, likewise: [B, H, N] float32, natural logarithm.
        carry: out and lse hold the result of earlier keys, and are continued.
        return_lse: return LSE too.

    Raises:
        Error: one of its classes, with the field at fault in ``field``.
    """
    if _arrays.forward_mode():
        _arrays.without_tangents(q=q, k=k, v=v, bias=bias, slopes=slopes, sink=sink, out=out, lse=lse)
    options: Options = dict(
        causal=causal, window=window, top_left=top_left, shift=shift, scale=scale, softcap=softcap, bias=bias, mask=mask,
        slopes=slopes, sink=sink, dropout=dropout, seed=seed, origin=origin, q_lens=q_lens, kv_lens=kv_lens, q_starts=q_starts,
        kv_starts=kv_starts, pages=pages, layout=layout, dtype=dtype, workers=workers, timeout=timeout, cancel=cancel,
    )  # fmt: skip
    o, l = _dispatcher.shared(backend).forward(q, k, v, out, lse, return_lse, carry, options)
    if out is not None or lse is not None:
        _arrays.written(out, lse)
    return (o, l) if return_lse else o


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
) -> Gradients:
    """Return the gradients of sum(O*d_o) + sum(LSE*d_lse).

    o and lse are what attention returned, called with the same options. d_bias and d_sink
    ask for the gradients of these, in the shape and type of them. A forward pass
    that returns LSE sums scores in the order of this pass, if both have the same backend.
    """
    if _arrays.forward_mode():
        rest = {name: options.get(name) for name in ("bias", "slopes", "sink")}
        _arrays.without_tangents(d_o=d_o, q=q, k=k, v=v, o=o, lse=lse, d_lse=d_lse, **rest)
    return _dispatcher.shared(backend).backward(d_o, q, k, v, o, lse, d_lse, d_bias, d_sink, options)


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
