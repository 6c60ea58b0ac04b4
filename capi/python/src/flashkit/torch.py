"""Attention as operators of PyTorch, with gradients, for torch.compile too.

    from flashkit.torch import attention, replace_sdpa

    o = attention(q, k, v, causal=True)  # gradients flow to q, k, v, bias and sink
    with replace_sdpa():                 # a model that calls PyTorch's function
        y = model(x)

The operators are torch.ops.flashkit.attention and attention_backward. There is no second
derivative. Tensors are not copied, but those whose rows are not contiguous.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _dispatcher, _errors
from ._call import Options, uncovered
from ._sdpa import FallbackWarning, Report, replace_sdpa

__all__ = ["FallbackWarning", "Report", "attention", "replace_sdpa"]

# What both operators take. A window side of -1 is no limit; a scale or softcap of 0 is none.
_TENSORS = ("bias", "mask", "slopes", "sink", "seed", "q_lens", "kv_lens", "q_starts", "kv_starts", "pages")
_REST = "bool causal, int[]? window, bool top_left, int shift, float scale, float softcap, float dropout, str? backend, bool paired"
_SHARED = ", ".join(f"Tensor? {name}" for name in _TENSORS) + ", " + _REST
_FORWARD = f"(Tensor q, Tensor k, Tensor v, {_SHARED}) -> (Tensor, Tensor)"
_BACKWARD = f"(Tensor d_o, Tensor? d_lse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, {_SHARED}, bool d_bias, bool d_sink) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"


def _rows(t: Tensor) -> Tensor:
    """Return t with the elements of a row contiguous: a copy only if they are not."""
    return t if t.dim() == 0 or t.stride(-1) == 1 or t.size(-1) == 1 else t.contiguous()


def _result(like: Tensor, row: int, zero: bool = False) -> Tensor:
    """Return memory for a result in the order of like's, in which heads may follow rows."""
    b, h, n, _ = like.shape
    new = like.new_zeros if zero else like.new_empty
    if like.stride(1) < like.stride(2):
        return new((b, n, h, row)).transpose(1, 2)
    return new((b, h, n, row))


def _gaps(starts: Any, t: Tensor) -> bool:
    """Report whether packed sequences leave rows of t out, which are not written."""
    return starts is not None and uncovered(starts, t.size(2))


def _options(shared: tuple[Any, ...]) -> tuple[Options, str | None, bool]:
    """Return the keywords, the backend and paired from the arguments that both operators take."""
    given = dict(zip(_TENSORS, shared))
    causal, window, top_left, shift, scale, softcap, dropout, backend, paired = shared[len(_TENSORS) :]
    seed = given.pop("seed")
    left, right = (None if side < 0 else side for side in (window if window is not None else (-1, -1)))
    o: Options = dict(
        causal=causal, window=None if window is None else (left, right), top_left=top_left, shift=shift,
        scale=scale or None, softcap=softcap or None, dropout=dropout, seed=0 if seed is None else int(seed) % 2**64,
    )  # fmt: skip
    for name, t in given.items():
        if t is not None:
            o[name] = _rows(t)  # type: ignore[literal-required]
    return o, backend, paired


@torch.library.custom_op("flashkit::attention", mutates_args=(), schema=_FORWARD)
def _attention(q: Tensor, k: Tensor, v: Tensor, *shared: Any) -> tuple[Tensor, Tensor]:
    options, backend, paired = _options(shared)
    gaps = _gaps(options.get("q_starts"), q)
    o = _result(q, v.shape[-1], gaps)
    lse = q.new_full(q.shape[:3], float("-inf"), dtype=torch.float32) if gaps else q.new_empty(q.shape[:3], dtype=torch.float32)
    with torch.no_grad():
        _dispatcher.shared(backend, paired).forward(_rows(q), _rows(k), _rows(v), o, lse, True, False, options)
    return o, lse


@_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *shared: Any) -> tuple[Tensor, Tensor]:
    return _result(q, v.shape[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("flashkit::attention_backward", mutates_args=(), schema=_BACKWARD)
def _attention_backward(d_o: Tensor, d_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *shared, d_bias, d_sink = rest
    options, backend, paired = _options(tuple(shared))
    q_gaps, kv_gaps = _gaps(options.get("q_starts"), q), _gaps(options.get("kv_starts"), k)
    given = _result(q, q.shape[-1], q_gaps), _result(k, k.shape[-1], kv_gaps), _result(v, v.shape[-1], kv_gaps)
    d = _dispatcher.shared(backend, paired)
    with torch.no_grad():
        g = d.backward(_rows(d_o), _rows(q), _rows(k), _rows(v), o, lse, d_lse, d_bias, d_sink, options, given)
    return *given, *(q.new_empty(0) if x is None else x for x in (g.d_bias, g.d_sink))


@_attention_backward.register_fake
def _(d_o: Tensor, d_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    bias, sink = rest[_TENSORS.index("bias")], rest[_TENSORS.index("sink")]
    optional = (x.new_empty(x.shape) if wanted else q.new_empty(0) for x, wanted in ((bias, rest[-2]), (sink, rest[-1])))
    return *(_result(x, x.shape[-1]) for x in (q, k, v)), *optional


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    tensors = 3 + len(_TENSORS)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:tensors], *output)
    ctx.rest = inputs[tensors:]


def _gradients(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None) -> tuple[Any, ...]:
    q, k, v, *tensors, o, lse = ctx.saved_tensors
    needs = ctx.needs_input_grad
    at = {name: 3 + i for i, name in enumerate(_TENSORS)}
    d_bias, d_sink = needs[at["bias"]], needs[at["sink"]]
    if d_o is None:
        d_o = torch.zeros_like(o)
    g = torch.ops.flashkit.attention_backward(d_o, d_lse, q, k, v, o, lse, *tensors, *ctx.rest, d_bias, d_sink)
    out: list[Tensor | None] = [*g[:3], *(None for _ in tensors), *(None for _ in ctx.rest)]
    if d_bias:
        out[at["bias"]] = g[3]
    if d_sink:
        out[at["sink"]] = g[4]
    return tuple(out)


_attention.register_autograd(_gradients, setup_context=_setup)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    top_left: bool = False,
    shift: int = 0,
    scale: float | None = None,
    softcap: float | None = None,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    slopes: Tensor | None = None,
    sink: Tensor | None = None,
    dropout: float = 0.0,
    seed: int | Tensor | None = None,
    q_lens: Tensor | None = None,
    kv_lens: Tensor | None = None,
    q_starts: Tensor | None = None,
    kv_starts: Tensor | None = None,
    pages: Tensor | None = None,
    layout: str = "bhsd",
    backend: str | None = None,
    return_lse: bool = False,
) -> Any:
    """Return O, or (O, LSE) with return_lse, through which gradients flow.

    Parameters are those of flashkit.attention. Gradients flow to q, k, v, bias and sink, from O and
    LSE. Where one is required, the forward pass runs on a kernel that sums scores as the
    backward kernel does. Lengths, starts and pages are tensors of integers on the host, or kv_lens and pages
    of int32 on the GPU of q, not checked there. seed is from 0 to 2**63-1, or a tensor of one int64; None draws it from PyTorch's generator.
    """
    if layout not in ("bhsd", "bshd"):
        raise _errors.OptionError(f"flashkit: layout = {layout!r}: must be 'bhsd' or 'bshd'", "layout")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4:
            raise _errors.DimensionError(f"flashkit: {name}.shape = {tuple(x.shape)}: must have 4 dimensions", f"{name}.shape")
    for name, number in (("scale", scale), ("softcap", softcap)):
        if number is not None and not number > 0:
            raise _errors.OptionError(f"flashkit: {name} = {number}: must be more than 0; None leaves it out", name)
    if layout == "bshd":
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    sides = None if window is None else [-1 if side is None else side for side in window]
    paired = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (q, k, v, bias, sink))
    o, lse = torch.ops.flashkit.attention(
        q, k, v, bias, mask, slopes, sink, _seed(dropout, seed), q_lens, kv_lens, q_starts, kv_starts, pages,
        causal, sides, top_left, shift, scale or 0.0, softcap or 0.0, dropout, backend, paired,
    )  # fmt: skip
    if layout == "bshd":
        o = o.transpose(1, 2)
    return (o, lse) if return_lse else o


def _seed(dropout: float, seed: int | Tensor | None) -> Tensor | None:
    """Return the seed as the operator takes it: a tensor, so that a graph may draw it."""
    if isinstance(seed, Tensor):
        return seed
    if seed is not None and not 0 <= seed < 2**63:
        raise _errors.OptionError(f"flashkit: seed = {seed}: must be from 0 to 2**63-1", "seed")
    if dropout == 0:
        return None
    if seed is None:
        return torch.randint(0, 2**63 - 1, (), dtype=torch.int64, device="cpu")
    return torch.tensor(seed, dtype=torch.int64, device="cpu")
