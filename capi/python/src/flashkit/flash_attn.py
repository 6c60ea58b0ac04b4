"""Functions with the names, arguments and defaults of the package flash-attn 2.8, on CPUs and GPUs.

    from flashkit.flash_attn import flash_attn_func

    o = flash_attn_func(q, k, v, causal=True)  # [batch, seqlen, nheads, headdim]

Masks and windows align the last row with the last key. Types are float32, float16 and bfloat16. Gradients flow through
O and LSE, except in flash_attn_with_kvcache. A row that sees no key has O = 0 and LSE = -inf.
Results are always deterministic, so the argument deterministic has no effect.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _errors, _names
from ._call import flag, index
from .torch import attention

__all__ = [
    "flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func", "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache",
]  # fmt: skip

# flash-attn's names of the keywords of flashkit.torch.attention.
_NAMES = {"scale": "softmax_scale", "window": "window_size", "slopes": "alibi_slopes", "dropout": "dropout_p", "pages": "block_table"}


def _shape(t: Any, name: str, *want: int | str) -> tuple[int, ...]:
    """Return a tensor's shape. The names of free dimensions are strings."""
    if not isinstance(t, Tensor):
        raise _errors.DTypeError(f"flashkit: {name}: is a {type(t).__name__}, and must be a tensor of PyTorch", name)
    if t.dim() != len(want) or any(n != m for n, m in zip(t.shape, want) if not isinstance(m, str)):
        raise _errors.DimensionError(f"flashkit: {name}.shape = {tuple(t.shape)}: must be ({', '.join(map(str, want))})", f"{name}.shape")
    return tuple(t.shape)


def _integers(t: Any, name: str, shape: tuple[int | str, ...], device: torch.device, low: int, high: int) -> Tensor:
    """Return integers as int32 on a device. The values of tensors on a CPU are checked."""
    _shape(t, name, *shape)
    if t.dtype not in (torch.int32, torch.int64):
        raise _errors.DTypeError(f"flashkit: {name}.dtype = {t.dtype}: must be int32 or int64", f"{name}.dtype")
    if t.device.type == "cpu" and not torch.compiler.is_compiling():
        for at in ((t < low) | (t > high)).nonzero()[:1].tolist():
            raise _errors.OptionError(f"flashkit: {name}{at} = {int(t[tuple(at)])}: must be from {low} to {high}", f"{name}{at}")
    x: Tensor = t.to(device, torch.int32)
    return x


def _options(softmax_scale: Any, causal: Any, window_size: Any, softcap: Any, alibi_slopes: Any) -> dict[str, Any]:
    """Return the keywords of flashkit.torch.attention."""
    want = "(left, right), numbers of keys, or -1 for no limit"
    if not isinstance(window_size, (tuple, list)) or len(window_size) != 2:
        raise _errors.OptionError(f"flashkit: window_size = {window_size!r}: must be {want}", "window_size")
    left, right = (index(side, "window_size", want, -1, given=window_size) for side in window_size)
    causal = flag(causal, "causal")
    if causal:  # also limits the right side, whatever its size
        right = -1
    if isinstance(softcap, bool) or not isinstance(softcap, (int, float)) or softcap != softcap:
        raise _errors.OptionError(f"flashkit: softcap = {softcap!r}: must be a number; 0.0 leaves it out", "softcap")
    if softmax_scale is not None and not (isinstance(softmax_scale, (int, float)) and softmax_scale > 0):
        raise _errors.OptionError(f"flashkit: softmax_scale = {softmax_scale!r}: must be more than 0; None leaves it out", "softmax_scale")
    window = None if left == right == -1 else (None if left == -1 else left, None if right == -1 else right)
    return dict(causal=causal, window=window, scale=softmax_scale, softcap=softcap if softcap > 0 else None, slopes=alibi_slopes)


def _check_heads(q: Tensor, k: Tensor, name: str, slopes: Any, batch: int) -> None:
    """Check that the heads of k, which has a name, divide the heads of q, and that slopes fit."""
    heads, kv_heads = q.shape[2], k.shape[2]
    if kv_heads and heads % kv_heads:
        raise _errors.DimensionError(f"flashkit: {name}.shape: has {kv_heads} heads, which must divide the {heads} heads of q", f"{name}.shape")
    if slopes is not None:
        one = isinstance(slopes, Tensor) and slopes.dim() == 1
        _shape(slopes, "alibi_slopes", *((heads,) if one else (batch, heads)))


def _attention(names: dict[str, str], q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Return O and LSE. names has the caller's names of arguments."""
    try:
        o, lse = attention(q, k, v, layout="bshd", return_lse=True, **options)
    except _errors.Error as e:
        raise _names.spelled(e, False, _NAMES | names, {}) from None
    return o, lse


def _results(
    names: dict[str, str],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    return_attn_probs: bool,
    sequences: dict[str, Tensor] | None = None,
) -> Any:
    """Return the results of all functions but flash_attn_with_kvcache, which have these arguments in common."""
    flag(deterministic, "deterministic")
    options = _options(softmax_scale, causal, window_size, softcap, alibi_slopes)
    if flag(return_attn_probs, "return_attn_probs") and dropout_p:
        text = "flashkit: return_attn_probs: asks for the weights after dropout, which are not stored; dropout_p = 0 returns LSE"
        raise _errors.UnsupportedError(text, "return_attn_probs")
    _check_heads(q, k, names.get("k", "k"), alibi_slopes, len(sequences["q_starts"]) - 1 if sequences else q.shape[0])
    o, lse = _attention(names, q, k, v, dropout=dropout_p, **options, **(sequences or {}))
    if sequences:
        o, lse = o.squeeze(0), lse.squeeze(0)
    return (o, lse, o.new_empty(0)) if return_attn_probs else o


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Return O of [batch, seqlen, nheads, headdim], or (O, LSE, empty) with return_attn_probs.

    q is [batch, seqlen, nheads, headdim], k and v are [batch, seqlen_k, nheads_k, headdim], and nheads_k divides
    nheads. alibi_slopes is [nheads] or [batch, nheads]. LSE is [batch, nheads, seqlen]. softcap up to 0
    leaves it out. With dropout_p, return_attn_probs is refused: flash-attn's third result would then be the weights.
    """
    b, _, _, d = _shape(q, "q", "batch", "seqlen", "nheads", "headdim")
    _, m, g, _ = _shape(k, "k", b, "seqlen_k", "nheads_k", d)
    _shape(v, "v", b, m, g, "headdim")
    return _results({}, q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """As flash_attn_func, for kv of [batch, seqlen_k, 2, nheads_k, headdim]."""
    b, _, _, d = _shape(q, "q", "batch", "seqlen", "nheads", "headdim")
    _shape(kv, "kv", b, "seqlen_k", 2, "nheads_k", d)
    k, v = kv.unbind(2)
    return _results({"k": "kv", "v": "kv"}, q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """As flash_attn_func, for qkv of [batch, seqlen, 3, nheads, headdim]."""
    _shape(qkv, "qkv", "batch", "seqlen", 3, "nheads", "headdim")
    q, k, v = qkv.unbind(2)
    return _results(dict.fromkeys("qkv", "qkv"), q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)


def _starts(t: Any, name: str, total: int, longest: Any, longest_name: str) -> Tensor:
    """Return sequence starts on the host, where the library reads them."""
    _shape(t, name, "batch + 1")
    starts = _integers(t.cpu(), name, ("batch + 1",), torch.device("cpu"), 0, total)
    index(longest, longest_name, "an integer from 0", 0)
    if len(starts) > 1 and not torch.compiler.is_compiling() and (most := int(starts.diff().max())) > longest:
        raise _errors.OptionError(f"flashkit: {longest_name} = {longest}: must be at least {most}, the longest sequence of {name}", longest_name)
    return starts


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Any:
    """Return O of [total_q, nheads, headdim], or (O, LSE, empty) with return_attn_probs.

    q is [total_q, nheads, headdim], k and v are [total_k, nheads_k, headdim]. Sequence b has rows
    cu_seqlens_q[b] to cu_seqlens_q[b+1]-1, and keys likewise. With block_table, k and v are pools of pages, [blocks,
    page, nheads_k, headdim], and there is no backward pass. LSE is [nheads, total_q]. Sequence starts and pages on a
    GPU are copied to the host, which waits for the GPU.
    """
    total, _, d = _shape(q, "q", "total_q", "nheads", "headdim")
    if block_table is None:
        keys, g, _ = _shape(k, "k", "total_k", "nheads_k", d)
        _shape(v, "v", keys, g, "headdim")
    else:
        blocks, page, g, _ = _shape(k, "k", "blocks", "page", "nheads_k", d)
        _shape(v, "v", blocks, page, g, "headdim")
        keys = 2**31 - 1
    starts = _starts(cu_seqlens_q, "cu_seqlens_q", total, max_seqlen_q, "max_seqlen_q")
    kv_starts = _starts(cu_seqlens_k, "cu_seqlens_k", keys, max_seqlen_k, "max_seqlen_k")
    _shape(cu_seqlens_k, "cu_seqlens_k", len(starts))
    names = {"q_starts": "cu_seqlens_q", "kv_starts": "cu_seqlens_k", "kv_lens": "cu_seqlens_k"}
    if block_table is None:
        k, v, sequences = k.unsqueeze(0), v.unsqueeze(0), {"q_starts": starts, "kv_starts": kv_starts}
    else:
        _shape(block_table, "block_table", len(starts) - 1, "blocks of a sequence")
        sequences = {"q_starts": starts, "kv_lens": kv_starts.diff(), "pages": block_table.cpu()}
    rest = dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    return _results(names, q.unsqueeze(0), k, v, *rest, sequences)


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """As flash_attn_varlen_func, for kv of [total_k, 2, nheads_k, headdim]."""
    _, _, d = _shape(q, "q", "total_q", "nheads", "headdim")
    _shape(kv, "kv", "total_k", 2, "nheads_k", d)
    rest = dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    k, v = kv.unbind(1)
    return flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *rest)


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """As flash_attn_varlen_func, for qkv of [total, 3, nheads, headdim]."""
    total, *_ = _shape(qkv, "qkv", "total", 3, "nheads", "headdim")
    starts = _starts(cu_seqlens, "cu_seqlens", total, max_seqlen, "max_seqlen")
    q, k, v = (t.unsqueeze(0) for t in qkv.unbind(1))
    rest = dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    names = dict.fromkeys("qkv", "qkv") | dict.fromkeys(("q_starts", "kv_starts"), "cu_seqlens")
    return _results(names, q, k, v, *rest, {"q_starts": starts, "kv_starts": starts})


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, at: Tensor, interleaved: bool) -> Tensor:
    """Return x of [batch, rows, heads, dim], with the first elements of row i rotated by the angles of position at[:, i]."""
    c, s = (t[at].unsqueeze(2).float() for t in (cos, sin))
    turned, rest = x[..., : 2 * c.shape[-1]].float(), x[..., 2 * c.shape[-1] :]
    a, b = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    both = a * c - b * s, b * c + a * s
    turned = torch.stack(both, -1).flatten(-2) if interleaved else torch.cat(both, -1)
    return torch.cat((turned.to(x.dtype), rest), -1)


def _rotary(q: Tensor, k: Tensor, cos: Any, sin: Any, lens: Tensor, moves: bool, interleaved: bool) -> tuple[Tensor, Tensor]:
    """Return q and k rotated by their positions. Without moves, all rows of q have the position of the first."""
    for name, t in (("rotary_cos", cos), ("rotary_sin", sin)):
        if t is None:
            raise _errors.NullError(f"flashkit: {name}: is missing; rotary_cos and rotary_sin are given together", name)
        if t.device != q.device or not t.is_floating_point():
            raise _errors.DTypeError(f"flashkit: {name}: is {t.dtype} on {t.device}, and must be of floating point on {q.device}, as q", name)
    positions, half = _shape(cos, "rotary_cos", "positions", "rotary_dim / 2")
    _shape(sin, "rotary_sin", positions, half)
    if 2 * half > q.shape[3]:
        raise _errors.DimensionError(f"flashkit: rotary_cos.shape = {tuple(cos.shape)}: must have at most headdim / 2 = {q.shape[3] // 2} columns", "rotary_cos.shape")
    rows = [torch.arange(t.shape[1], device=q.device) for t in (q, k)]
    if not moves:
        rows[0] = torch.zeros_like(rows[0])
    at = [lens.long().unsqueeze(1) + x for x in rows]
    if not q.is_cuda and not torch.compiler.is_compiling():
        for x in at:
            if x.numel() and (most := int(x.max())) >= positions:
                raise _errors.DimensionError(f"flashkit: rotary_cos.shape = {tuple(cos.shape)}: must have more than {most} rows, the last position", "rotary_cos.shape")
    return _rotated(q, cos, sin, at[0], interleaved), _rotated(k, cos, sin, at[1], interleaved)


def _check_pages(table: Tensor, keys: Tensor, page: int, pool: int) -> None:
    """Check the entries of a page table on a CPU that sequences of so many keys use."""
    if table.is_cuda or torch.compiler.is_compiling():
        return
    used = torch.arange(table.shape[1]) * page < keys.unsqueeze(1)
    for b, i in (used & ((table < 0) | (table >= pool))).nonzero()[:1].tolist():
        raise _errors.OptionError(f"flashkit: block_table[{b}, {i}] = {int(table[b, i])}: must be from 0 to {pool - 1}", f"block_table[{b}, {i}]")


def _lengths(cache_seqlens: Any, b: int, new: int, capacity: int, device: torch.device) -> Tensor:
    """Return the lengths of sequences before keys are appended."""
    if isinstance(cache_seqlens, Tensor):
        return _integers(cache_seqlens, "cache_seqlens", (b,), device, 0, capacity - new)
    most = capacity - new
    return torch.full((b,), index(cache_seqlens, "cache_seqlens", f"from 0 to {most}", 0, most), dtype=torch.int32, device=device)


def _pages(block_table: Tensor | None, cache_batch_idx: Tensor | None, q: Tensor, k_cache: Tensor) -> Tensor | None:
    """Return the page table. A cache without pages is a pool with a page per sequence."""
    b, pool = q.shape[0], k_cache.shape[0]
    if block_table is not None and cache_batch_idx is not None:
        raise _errors.OptionError("flashkit: cache_batch_idx: is given, and so is block_table", "cache_batch_idx")
    if cache_batch_idx is not None:
        return _integers(cache_batch_idx, "cache_batch_idx", (b,), q.device, 0, pool - 1).unsqueeze(1)
    if block_table is not None:  # entries after the end of a sequence may have any value
        return _integers(block_table, "block_table", (b, "blocks of a sequence"), q.device, -(2**31), 2**31 - 1).contiguous()
    if pool < b:
        raise _errors.DimensionError(f"flashkit: k_cache.shape = {tuple(k_cache.shape)}: must have batch {b} or more, as q", "k_cache.shape")
    return None


def _check_cache(q: Tensor, others: dict[str, Tensor | None]) -> None:
    """Check types, and that no gradient is required."""
    if q.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise _errors.DTypeError(f"flashkit: q.dtype = {q.dtype}: must be float32, float16 or bfloat16", "q.dtype")
    for name, t in {"q": q, **others}.items():
        if t is None:
            continue
        if t.dtype != q.dtype:
            raise _errors.DTypeError(f"flashkit: {name}.dtype = {t.dtype}: must be {q.dtype}, as q", f"{name}.dtype")
        if t.device != q.device:
            raise _errors.OptionError(f"flashkit: {name}.device = {t.device}: must be q's, {q.device}", f"{name}.device")
        if t.requires_grad and torch.is_grad_enabled():
            text = "requires a gradient, and a cache has no backward pass; call this function under torch.no_grad()"
            raise _errors.OptionError(f"flashkit: {name}: {text}", name)


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Append k and v to a cache, and return O of [batch, seqlen, nheads, headdim], or (O, LSE) with return_softmax_lse.

    k_cache and v_cache are [batch, seqlen_cache, nheads_k, headdim], or with block_table pools of pages, [blocks, page,
    nheads_k, headdim]. k and v of [batch, seqlen_new, nheads_k, headdim] are written to position cache_seqlens and after.
    rotary_cos and rotary_sin of [positions, rotary_dim / 2] rotate k by its positions. They rotate row i of q by position
    cache_seqlens + i, or by cache_seqlens without a causal mask or window. Batch b is at cache_batch_idx[b] of the
    cache, and its first key is cache_leftpad[b]. num_splits has no effect. The values of integers on a GPU are not
    checked.
    """
    names = {"k": "k_cache", "v": "v_cache", "kv_lens": "cache_seqlens"}
    flag(rotary_interleaved, "rotary_interleaved")
    flag(return_softmax_lse, "return_softmax_lse")
    index(num_splits, "num_splits", "an integer from 0", 0)
    options = _options(softmax_scale, causal, window_size, softcap, alibi_slopes)
    b, _, _, d = _shape(q, "q", "batch", "seqlen", "nheads", "headdim")
    pool, page, g, _ = _shape(k_cache, "k_cache", "batch" if block_table is None else "blocks", "seqlen_cache", "nheads_k", d)
    *_, dv = _shape(v_cache, "v_cache", pool, page, g, "headdim")
    new = 0
    if k is not None or v is not None or rotary_cos is not None or rotary_sin is not None:
        for name, x in (("k", k), ("v", v), ("cache_seqlens", cache_seqlens)):
            if x is None:
                raise _errors.NullError(f"flashkit: {name}: is missing; appended keys need k, v and cache_seqlens, and rotary_cos needs appended keys", name)
        _, new, *_ = _shape(k, "k", b, "seqlen_new", g, d)
        _shape(v, "v", b, new, g, dv)
    _check_cache(q, {"k_cache": k_cache, "v_cache": v_cache, "k": k, "v": v})
    _check_heads(q, k_cache, "k_cache", alibi_slopes, b)
    table = _pages(block_table, cache_batch_idx, q, k_cache)
    capacity = page if table is None else page * table.shape[1]
    lens = _lengths(capacity if cache_seqlens is None else cache_seqlens, b, new, capacity, q.device)
    whole = cache_seqlens is None and table is None
    if block_table is not None and table is not None:
        _check_pages(table, lens + new, page, pool)
    if cache_leftpad is not None:
        first = _integers(cache_leftpad, "cache_leftpad", (b,), q.device, 0, capacity)
        options["mask"] = (torch.arange(capacity, device=q.device) >= first[:, None])[:, None, None]
    with torch.no_grad():
        rows = torch.arange(b, dtype=torch.int32, device=q.device).unsqueeze(1)  # the page table of a cache without pages
        if k is not None and v is not None:
            if rotary_cos is not None or rotary_sin is not None:
                moves = options["causal"] or options["window"] is not None
                q, k = _rotary(q, k, rotary_cos, rotary_sin, lens, moves, rotary_interleaved)
            at = lens.long().unsqueeze(1) + torch.arange(new, device=q.device)
            where = (rows if table is None else table).long().gather(1, at // page), at % page
            k_cache[where] = k
            v_cache[where] = v
        if table is None:
            k_cache, v_cache = k_cache[:b], v_cache[:b]
        if not whole:
            options["kv_lens"] = lens + new
            if table is not None or q.is_cuda:  # lengths on a GPU need a page table
                options["pages"] = rows if table is None else table
        o, lse = _attention(names, q, k_cache, v_cache, **options)
    return (o, lse) if return_softmax_lse else o
