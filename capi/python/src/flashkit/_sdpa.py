"""In place of torch.nn.functional.scaled_dot_product_attention, for the time of a with statement."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from . import _compiled, _fields, _operators, _unseen

_TYPES = (torch.float32, torch.float16, torch.bfloat16)
_PLAIN = (Tensor, torch.nn.Parameter)
_NO_MORE = (None,) * (len(_compiled.OPTIONAL) - 2)  # optional tensors after bias and mask
_grad_enabled = torch.is_grad_enabled


class FallbackWarning(UserWarning):
    """PyTorch computes a call of scaled_dot_product_attention; the text says why."""


class Report:
    """What became of the calls during replace_sdpa.

    calls counts those that flashkit computes, fallbacks those of PyTorch by their reason.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.fallbacks: dict[str, int] = {}
        self._said: set[str] = set()

    def __str__(self) -> str:
        return "; ".join([f"flashkit: {self.calls}", *(f"PyTorch: {n} ({reason})" for reason, n in self.fallbacks.items())])

    def say(self, depth: int) -> None:
        """Warn of every reason once, at the caller so many frames up."""
        for reason in self.fallbacks:
            if reason not in self._said:
                self._said.add(reason)
                warnings.warn(f"flashkit: scaled_dot_product_attention is PyTorch's here: {reason}", FallbackWarning, stacklevel=depth)


def _refuses(q: Any, k: Any, v: Any, mask: Any, dropout: Any, causal: Any, scale: Any, gqa: bool) -> str:
    """Return why a call is left to PyTorch, "" if it is not."""
    if _operators.forward_mode():
        return "a forward-mode derivative is asked for"
    for name, t in (("query", q), ("key", k), ("value", v), ("attn_mask", mask)):
        if t is None and name == "attn_mask":
            continue
        if type(t) not in _PLAIN:
            return f"{name} is a {type(t).__name__}"
        if t.is_nested or t.layout is not torch.strided:
            return f"{name} is nested or sparse"
        if t.device.type not in ("cpu", "cuda"):
            return f"{name} is on {t.device}"
        if t.device != q.device:
            return f"{name} is on another device than query"
    if q.dtype not in _TYPES or k.dtype != q.dtype or v.dtype != q.dtype:
        return f"query, key and value are {q.dtype}, {k.dtype} and {v.dtype}"
    if q.dim() not in (3, 4) or k.dim() != q.dim() or v.dim() != q.dim():
        return f"query, key and value have {q.dim()}, {k.dim()} and {v.dim()} dimensions"
    heads = q.dim() - 3
    if k.shape[:-1] != v.shape[:-1] or k.shape[:heads] != q.shape[:heads] or k.shape[-1] != q.shape[-1]:
        return "key and value do not have the shape that query asks for"
    if k.shape[heads] != q.shape[heads] and not (gqa and heads and k.shape[heads] and q.shape[heads] % k.shape[heads] == 0):
        return "key and query differ in heads without enable_gqa"
    if min(*q.shape, *k.shape, *v.shape) == 0:
        return "a dimension is 0"
    if mask is not None:
        if causal:
            return "attn_mask and is_causal are both given"
        if mask.dtype not in (torch.bool, torch.float32, q.dtype):
            return f"attn_mask is {mask.dtype}"
        if not 1 <= mask.dim() <= q.dim() or any(n not in (1, m) for n, m in zip(mask.shape[::-1], (k.shape[-2], *q.shape[-2::-1]))):
            return "attn_mask does not broadcast to the scores"
    if not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        return f"dropout_p is {dropout}"
    if scale is not None and not (isinstance(scale, (int, float)) and 2.0**-126 <= scale <= 2e38):
        return f"scale is {scale}"
    return ""


_accepted: dict[Any, Any] = {}  # plans of calls without dropout that _refuses has accepted, by description
_MOST = 1024


def _description(q: Any, k: Any, v: Any, mask: Any, dropout: Any, causal: Any, scale: Any, gqa: Any, backend: Any) -> Any:
    """Return everything that _refuses and a plan depend on, or None of a call that is not described."""
    if is_dynamo_compiling() or not (q.__class__ is Tensor and k.__class__ is Tensor and v.__class__ is Tensor):
        return None
    if causal.__class__ is not bool or gqa.__class__ is not bool or dropout.__class__ not in (float, int) or dropout != 0:
        return None
    if scale is not None and scale.__class__ is not float or not _compiled.eager():
        return None
    try:
        recorded = _grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad or mask is not None and mask.requires_grad)
        call = recorded, q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, q.device, k.device, v.device, q.layout, k.layout, v.layout, causal, scale, gqa, backend
        if mask is None:
            return call
        return (*call, mask.shape, mask.dtype, mask.device, mask.layout) if mask.__class__ is Tensor else None
    except RuntimeError:  # a nested tensor has no shape
        return None


def _plan(call: Any, k: Tensor, mask: Tensor | None, causal: bool, scale: float | None, backend: str | None) -> Any:
    """Return the plan of a described call of four dimensions, or None if _run must compute it."""
    recorded = call[0]
    if k.dim() != 4 or mask is not None and mask.shape[-1] != k.shape[-2] or recorded and _compiled.record is None:
        return None
    numbers = tuple(scale if name == "scale" else None for name in _fields.NUMBERS)
    key = "sdpa", causal, scale, backend, recorded
    return _compiled.plans.get(key) or _compiled.plan(key, causal, None, causal, 0, numbers, 0.0, backend, recorded, False)


def _planned(plan: Any, recorded: bool, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor | None:
    """Return O, or None if the compiled part declines the call."""
    o: Tensor
    if mask is not None:
        try:
            r = _compiled.with_all(plan, q, k, v, ((None, mask) if mask.dtype == torch.bool else (mask, None)) + _NO_MORE, None, recorded)
        except _compiled.Declined:
            return None
        return None if r is None else r[0]
    if recorded:
        try:
            o = _compiled.record(q, k, v, plan.tensor)[0]
        except RuntimeError:
            return None
        return o
    o = _compiled._forward_o(q, k, v, plan.tensor)
    return o if o.dim() == 4 else None


def _lowered(*tensors: Any) -> tuple[Any, ...]:
    """Return what autocast makes of them, as it does for PyTorch's function."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    to = torch.get_autocast_dtype(kind)
    return tuple(t if t is None or not t.dtype.is_floating_point or t.dtype == torch.float64 else t.to(to) for t in tensors)


def _run(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool, scale: float | None, backend: str | None) -> Tensor:
    from .torch import attention

    flat = q.dim() == 3  # tensors have heads, but no batch
    if flat:
        q, k, v = q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)
    if mask is not None:
        if mask.shape[-1] != k.shape[-2]:  # a mask must have all keys: the library repeats other dimensions, but not this one
            mask = mask.expand(*mask.shape[:-1], k.shape[-2])
        mask = mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))
    hides = mask is not None and mask.dtype == torch.bool
    o: Tensor = attention(
        q, k, v, causal=causal, top_left=causal, scale=None if scale is None else float(scale), dropout=float(dropout),
        bias=None if hides else mask, mask=mask if hides else None, backend=backend,
    )  # fmt: skip
    return o.squeeze(0) if flat else o


@contextlib.contextmanager
def replace_sdpa(backend: str | None = None) -> Iterator[Report]:
    """Replace torch.nn.functional.scaled_dot_product_attention while the with statement lasts.

    It is replaced for all threads. What flashkit does not take is left to PyTorch, with one
    FallbackWarning for each reason, and one if there was no call; the Report that is returned counts. Dropout drops other
    weights than PyTorch's would, by a seed from PyTorch's generator. backend is as in
    flashkit.attention: an error of it is raised, and not left to PyTorch.

    What torch.compile has compiled before is compiled again inside.
    """
    functional, report = torch.nn.functional, Report()
    theirs = functional.scaled_dot_product_attention

    def scaled_dot_product_attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """PyTorch's signature, on flashkit."""
        q, k, v, mask = query, key, value, attn_mask
        call = _description(q, k, v, mask, dropout_p, is_causal, scale, enable_gqa, backend)
        if (plan := _accepted.get(call)) is not None and (r := _planned(plan, call[0], q, k, v, mask)) is not None:
            report.calls += 1
            return r
        if isinstance(q, Tensor):
            q, k, v, mask = _lowered(q, k, v, mask)
        reason = _refuses(q, k, v, mask, dropout_p, is_causal, scale, enable_gqa)
        if not reason:
            report.calls += 1
            if call is not None and call not in _accepted:
                if len(_accepted) >= _MOST:
                    _accepted.clear()
                _accepted[call] = _plan(call, k, mask, is_causal, scale, backend)
            return _run(q, k, v, mask, dropout_p, is_causal, scale, backend)
        report.fallbacks[reason] = report.fallbacks.get(reason, 0) + 1
        if not torch.compiler.is_compiling():
            report.say(3)
        o: Tensor = theirs(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        return o

    functional.scaled_dot_product_attention = scaled_dot_product_attention
    try:
        yield report
    finally:
        functional.scaled_dot_product_attention = theirs
        report.say(4)
    if not report.calls and not report.fallbacks:
        warnings.warn(f"flashkit: replace_sdpa saw no call: {_unseen.reasons(theirs)}", FallbackWarning, stacklevel=3)
