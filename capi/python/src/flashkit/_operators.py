"""torch.ops.flashkit.attention and attention_backward: kernels, shapes, derivatives."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from . import _compiled, _dispatcher, _errors, _fields
from ._call import Options, uncovered

# The arguments of both operators. A window side of -1 means no limit. A number of 0 means that
# the argument is not given.
TENSORS = ("bias", "mask", "slopes", "sink", "seed", "q_lens", "kv_lens", "q_starts", "kv_starts", "pages", "ranges")
_NUMBERS = (*_fields.NUMBERS, "dropout")
_REST = f"bool causal, int[]? window, bool top_left, int shift, {', '.join(f'float {name}' for name in _NUMBERS)}, str? backend, bool paired"
_SHARED = ", ".join(f"Tensor? {name}" for name in TENSORS) + ", " + _REST
_FORWARD = f"attention(Tensor q, Tensor k, Tensor v, {_SHARED}) -> (Tensor, Tensor)"
_BACKWARD = f"attention_backward(Tensor d_o, Tensor? d_lse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, {_SHARED}, bool d_bias, bool d_sink) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"

_library: Any = torch.library.Library("flashkit", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(_FORWARD, tags=(torch.Tag.pt2_compliant_tag,))
_library.define(_BACKWARD, tags=(torch.Tag.pt2_compliant_tag,))


def _kernel(name: str) -> Callable[[Any], Any]:
    """Register what computes an operator. torch.compile does not look into it."""
    return lambda f: _library.impl(name, _disable_dynamo(f), "CompositeExplicitAutograd")


def _shapes(name: str) -> Callable[[Any], Any]:
    """Register what an operator returns, without its elements."""
    register: Callable[[Any], Any] = torch.library.register_fake(f"flashkit::{name}", lib=_library)
    return register


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
    given = dict(zip(TENSORS, shared))
    causal, window, top_left, shift, *numbers, backend, paired = shared[len(TENSORS) :]
    seed = given.pop("seed")
    left, right = (None if side == -1 else side for side in (window if window is not None else (-1, -1)))
    o: Options = dict(
        causal=causal, window=None if window is None else (left, right), top_left=top_left, shift=shift,
        seed=0 if seed is None else int(seed) % 2**64,
    )  # fmt: skip
    for name, x in zip(_NUMBERS, numbers, strict=True):
        if x:
            o[name] = x  # type: ignore[literal-required]
    for name, t in given.items():
        if t is not None:
            o[name] = _rows(t)  # type: ignore[literal-required]
    return o, backend, paired


def _plan(q: Tensor, shared: tuple[Any, ...]) -> Any:
    """Return the plan of the arguments that both operators take, or None without a compiled part."""
    causal, window, top_left, shift, *numbers, dropout, backend, paired = shared[len(TENSORS) :]
    sides = None if window is None else tuple(window)
    key = causal, sides, top_left, shift, *numbers, dropout, backend, paired
    return _compiled.plans.get(key) or _compiled.plan(key, causal, sides, top_left, shift, tuple(numbers), dropout, backend, paired, False)


def _optional(shared: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
    """Return the optional tensors without the seed, and the seed."""
    at = TENSORS.index("seed")
    return (*shared[:at], *shared[at + 1 : len(TENSORS)]), shared[at]


@_kernel("attention")
def _attention(q: Tensor, k: Tensor, v: Tensor, *shared: Any) -> tuple[Tensor, Tensor]:
    plan = _plan(q, shared)
    if plan is not None and (r := _compiled.compute(plan, q, k, v, *_optional(shared))) is not None:
        return r
    options, backend, paired = _options(shared)
    gaps = _gaps(options.get("q_starts"), q)
    o = _result(q, v.shape[-1], gaps)
    lse = q.new_full(q.shape[:3], float("-inf"), dtype=torch.float32) if gaps else q.new_empty(q.shape[:3], dtype=torch.float32)
    with torch.no_grad():
        _dispatcher.shared(backend, not paired).forward(_rows(q), _rows(k), _rows(v), o, lse, True, False, options)
    return o, lse


@_shapes("attention")
def _attention_shapes(q: Tensor, k: Tensor, v: Tensor, *shared: Any) -> tuple[Tensor, Tensor]:
    for name, t in zip(("k", "v", *TENSORS[: TENSORS.index("seed")]), (k, v, *shared)):
        if t is not None and t.device != q.device:  # PyTorch also asks for the shapes if only one of the tensors is on meta
            raise _errors.OptionError(f"flashkit: {name}.device = {t.device}: must be q's, {q.device}", f"{name}.device")
    for name, t, want in (("k", k, (*v.shape[:3], q.shape[3])), ("v", v, (*k.shape[:3], v.shape[3]))):
        if tuple(t.shape) != want:
            raise _errors.DimensionError(f"flashkit: {name}.shape = {tuple(t.shape)}: must be {want}", f"{name}.shape")
    return _result(q, v.shape[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)


@_kernel("attention_backward")
def _attention_backward(d_o: Tensor, d_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *shared, d_bias, d_sink = rest
    plan = _plan(q, tuple(shared))
    if plan is not None and (r := _compiled.gradients(plan, d_o, q, k, v, o, lse, d_lse, *_optional(tuple(shared)), d_bias, d_sink)) is not None:
        return tuple(r)
    options, backend, paired = _options(tuple(shared))
    q_gaps, kv_gaps = _gaps(options.get("q_starts"), q), _gaps(options.get("kv_starts"), k)
    given = _result(q, q.shape[-1], q_gaps), _result(k, k.shape[-1], kv_gaps), _result(v, v.shape[-1], kv_gaps)
    d = _dispatcher.shared(backend, not paired)
    with torch.no_grad():
        g = d.backward(_rows(d_o), _rows(q), _rows(k), _rows(v), o, lse, d_lse, d_bias, d_sink, options, given)
    return *given, *(q.new_empty(0) if x is None else x for x in (g.d_bias, g.d_sink))


@_shapes("attention_backward")
def _attention_backward_shapes(d_o: Tensor, d_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    bias, sink = rest[TENSORS.index("bias")], rest[TENSORS.index("sink")]
    optional = (x.new_empty(x.shape) if wanted else q.new_empty(0) for x, wanted in ((bias, rest[-2]), (sink, rest[-1])))
    return *(_result(x, x.shape[-1]) for x in (q, k, v)), *optional


attention, attention_backward = torch.ops.flashkit.attention.default, torch.ops.flashkit.attention_backward.default

_NONE = "flashkit: attention has no {}; PyTorch's scaled_dot_product_attention has one under torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"


def _compute(op: Any, keys: Any, *inputs: Any) -> Any:
    """Call what is below the derivatives."""
    with torch._C._AutoDispatchBelowAutograd():
        return op.redispatch(keys & torch._C._after_autograd_keyset, *inputs)


def _record(function: Any, keys: Any, *inputs: Any) -> Any:
    """Apply a function to tensors of one level of functorch. It may not turn derivatives off for the levels below."""
    if not torch._C._are_functorch_transforms_active():
        return function.apply(contextlib.nullcontext, keys, *inputs)
    reverse, forward = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()

    @contextlib.contextmanager
    def as_before() -> Iterator[None]:
        with torch.set_grad_enabled(reverse), forward_ad._set_fwd_grad_enabled(forward):
            yield

    with enable_single_level_autograd_function():
        return function.apply(as_before, keys, *inputs)


def forward_mode() -> bool:
    """Report whether tensors may have tangents, which no kernel computes."""
    return forward_ad._current_level >= 0


class _Refusing(_SingleLevelFunction):
    """An operator without a derivative. functorch calls it once for each of its levels, as PyTorch's own operators."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise _errors.UnsupportedError(_NONE.format("forward-mode derivative"))

    @staticmethod
    def _compiled_autograd_key(ctx: Any) -> tuple[Any, ...]:  # same method as in autograd.Function
        return (ctx._autograd_function_id,)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise _errors.UnsupportedError(_NONE.format("second derivative"))


class _Backward(_Refusing):
    @staticmethod
    def forward(ctx: Any, modes: Any, keys: Any, *inputs: Any) -> Any:
        with modes():
            return _compute(attention_backward, keys, *inputs)


class _Forward(_Refusing):
    @staticmethod
    def forward(ctx: Any, modes: Any, keys: Any, *inputs: Any) -> Any:
        with modes():
            o, lse = _compute(attention, keys, *inputs)
        tensors = 3 + len(TENSORS)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:tensors], o, lse)
        ctx.rest = inputs[tensors:]
        return o, lse

    @staticmethod
    def backward(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None) -> Any:
        q, k, v, *tensors, o, lse = ctx.saved_tensors
        needs = ctx.needs_input_grad[2:]
        at = {name: 3 + i for i, name in enumerate(TENSORS)}
        d_bias, d_sink = needs[at["bias"]], needs[at["sink"]]
        if d_o is None:
            d_o = torch.zeros_like(o)
        g = torch.ops.flashkit.attention_backward(d_o, d_lse, q, k, v, o, lse, *tensors, *ctx.rest, d_bias, d_sink)
        out: list[Tensor | None] = [*g[:3], *(None for _ in tensors), *(None for _ in ctx.rest)]
        if d_bias:
            out[at["bias"]] = g[3]
        if d_sink:
            out[at["sink"]] = g[4]
        return None, None, *out


def _wants(inputs: tuple[Any, ...]) -> bool:
    """Report whether a derivative of an operator's result is asked for, of either mode."""
    return torch.is_grad_enabled() and torch._C._any_requires_grad(*inputs) or forward_mode()


def _differentiate_attention(keys: Any, *inputs: Any) -> Any:
    if not _wants(inputs):
        return _compute(attention, keys, *inputs)
    slopes = inputs[3 + TENSORS.index("slopes")]
    if slopes is not None and slopes.requires_grad and torch.is_grad_enabled():
        raise _errors.UnsupportedError("flashkit: slopes: requires a gradient, which is not computed; give slopes.detach(), or a bias", "slopes")
    return _record(_Forward, keys, *inputs[:-1], True)  # paired, because functorch may hide that a gradient is needed


def _differentiate_backward(keys: Any, *inputs: Any) -> Any:
    return _record(_Backward, keys, *inputs) if _wants(inputs) else _compute(attention_backward, keys, *inputs)


_library.impl("attention", _differentiate_attention, "Autograd", with_keyset=True)
_library.impl("attention_backward", _differentiate_backward, "Autograd", with_keyset=True)


def _cast(kind: str) -> None:
    """Under autocast, cast q, k and v as PyTorch does for its own function, and a bias that is not float32 too."""
    key = getattr(torch._C.DispatchKey, "Autocast" + kind)
    keys: Any = torch._C.DispatchKeySet(key)
    without: Any = torch._C._ExcludeDispatchKeyGuard

    def lower(t: Tensor) -> Tensor:
        return t.to(torch.get_autocast_dtype(t.device.type)) if t.is_floating_point() and t.dtype != torch.float64 else t

    def autocast(*inputs: Any) -> Any:
        q, k, v, bias, *rest = inputs
        if bias is not None and bias.dtype != torch.float32:
            bias = lower(bias)
        with without(keys):
            return attention(lower(q), lower(k), lower(v), bias, *rest)

    _library.impl("attention", autocast, f"Autocast{kind}")


for _kind in ("CPU", "CUDA"):
    _cast(_kind)
