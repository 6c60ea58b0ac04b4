"""Attention as operators of PyTorch, with gradients, for torch.compile too.

    from flashkit.torch import attention, replace_sdpa

    o = attention(q, k, v, causal=True)  # gradients flow to q, k, v, bias and sink
    with replace_sdpa():                 # a model that calls PyTorch's function
        y = model(x)

The operators are torch.ops.flashkit.attention and attention_backward. torch.func.grad, vjp, jacrev
and vmap take them; second and forward-mode derivatives are refused. Tensors are not copied, but those whose rows are not contiguous.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _errors, _operators
from ._call import flag
from ._sdpa import FallbackWarning, Report, replace_sdpa

__all__ = ["FallbackWarning", "Report", "attention", "replace_sdpa"]


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
        if _plain(x, name).dim() != 4:
            raise _errors.DimensionError(f"flashkit: {name}.shape = {tuple(x.shape)}: must have 4 dimensions", f"{name}.shape")
    for name, t in zip(_operators.TENSORS, (bias, mask, slopes, sink, None, q_lens, kv_lens, q_starts, kv_starts, pages)):
        if t is not None:
            _plain(t, name)
    flag(causal, "causal")
    flag(top_left, "top_left")
    flag(return_lse, "return_lse")
    for name, number in (("scale", scale), ("softcap", softcap)):
        if number is not None and not (_is_number(number) and number > 0):
            raise _errors.OptionError(f"flashkit: {name} = {number!r}: must be more than 0; None leaves it out", name)
    if not _is_number(dropout):
        raise _errors.OptionError(f"flashkit: dropout = {dropout!r}: must be a number", "dropout")
    if not _is_integer(shift):
        raise _errors.OptionError(f"flashkit: shift = {shift!r}: must be an integer", "shift")
    if backend is not None and not isinstance(backend, str):
        raise _errors.OptionError(f"flashkit: backend = {backend!r}: must be a name: an operator takes no Dispatcher", "backend")
    if layout == "bshd":
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    sides = _sides(window)
    paired = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (q, k, v, bias, sink))
    o, lse = _operators.attention(
        q, k, v, bias, mask, slopes, sink, _seed(dropout, seed), q_lens, kv_lens, q_starts, kv_starts, pages,
        causal, sides, top_left, shift, scale or 0.0, softcap or 0.0, dropout, backend, paired,
    )  # fmt: skip
    if layout == "bshd":
        o = o.transpose(1, 2)
    return (o, lse) if return_lse else o


def _is_integer(x: Any) -> bool:
    return isinstance(x, (int, torch.SymInt)) and not isinstance(x, bool)


def _is_number(x: Any) -> bool:
    return isinstance(x, (float, torch.SymFloat)) or _is_integer(x)


def _plain(t: Any, name: str) -> Tensor:
    """Return a tensor, and refuse those whose elements are not where shape and strides say."""
    if not isinstance(t, Tensor):
        raise _errors.DTypeError(f"flashkit: {name}: is a {type(t).__name__}, and must be a tensor of PyTorch", name)
    if t.layout is not torch.strided or t.is_nested:
        raise _errors.StrideError(f"flashkit: {name}: is nested or sparse, and must be a plain strided tensor", name)
    return t


def _sides(window: Any) -> list[int] | None:
    """Return a window as the operator takes it: -1 for no limit."""
    if window is None:
        return None
    if not isinstance(window, (tuple, list)) or len(window) != 2 or not all(x is None or _is_integer(x) for x in window):
        raise _errors.OptionError(f"flashkit: window = {window!r}: must be (left, right), numbers of keys, or None for no limit", "window")
    return [-1 if side is None else side for side in window]


def _seed(dropout: float, seed: Any) -> Tensor | None:
    """Return the seed as the operator takes it: a tensor, so that a graph may draw it."""
    if isinstance(seed, Tensor):
        if seed.dtype != torch.int64 or seed.numel() != 1:
            raise _errors.DTypeError(f"flashkit: seed is {tuple(seed.shape)}, {seed.dtype}: must be one int64", "seed")
        return seed
    if seed is not None and not (_is_integer(seed) and 0 <= seed < 2**63):
        raise _errors.OptionError(f"flashkit: seed = {seed!r}: must be an integer from 0 to 2**63-1", "seed")
    if dropout == 0:
        return None
    if seed is None:
        return torch.randint(0, 2**63 - 1, (), dtype=torch.int64, device="cpu")
    return torch.tensor(seed, dtype=torch.int64, device="cpu")
