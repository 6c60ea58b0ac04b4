"""PyTorch's function for packed sequences, torch.nn.attention.varlen.varlen_attn, on CPUs and GPUs.

from flashkit.varlen import varlen_attn
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _errors
from ._call import flag, index
from .flash_attn import _integers, _results, _shape, _starts

__all__ = ["varlen_attn"]

_NAMES = {
    "q": "query", "k": "key", "v": "value", "q_starts": "cu_seq_q", "kv_starts": "cu_seq_k", "kv_lens": "seqused_k",
}  # fmt: skip


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Any:
    """Return O of [rows, heads, head dim], or (O, LSE) if return_aux.lse is set. LSE is [heads, rows].

    query is [rows, heads, head dim], key and value are [keys, KV heads, head dim]. Sequence b has rows cu_seq_q[b] to
    cu_seq_q[b+1]-1, and keys likewise, but only the first seqused_k[b] of them. The window (-1, 0) is causal, and aligns
    the last row with the last key. With block_table, key and value are pools of pages, [pages, page, KV heads, head dim],
    and there is no backward pass. On a GPU, integers are copied to the host, and num_splits=1 is refused.
    """
    flag(enable_gqa, "enable_gqa")
    if scale is not None and not (isinstance(scale, (int, float)) and scale > 0):
        raise _errors.OptionError(f"flashkit: scale = {scale!r}: must be more than 0; None leaves it out", "scale")
    if num_splits is not None and index(num_splits, "num_splits", "None, or an integer from 0", 0) == 1 and query.is_cuda:
        raise _errors.UnsupportedError("flashkit: num_splits = 1: asks for the same bits in any batch, which GPU kernels do not give", "num_splits")
    rows, heads, d = _shape(query, "query", "rows", "heads", "head dim")
    *room, g, _ = _shape(key, "key", *(("keys",) if block_table is None else ("pages", "page")), "KV heads", d)
    _shape(value, "value", *room, g, "head dim")
    if g != heads and not enable_gqa:
        raise _errors.DimensionError(f"flashkit: key.shape = {tuple(key.shape)}: must have {heads} heads, as query, without enable_gqa", "key.shape")
    starts = _starts(cu_seq_q, "cu_seq_q", rows, max_q, "max_q")
    seqs = len(starts) - 1
    used = None if seqused_k is None else _integers(seqused_k.cpu(), "seqused_k", (seqs,), torch.device("cpu"), 0, max_k)
    k, v, sequences = key, value, {"q_starts": starts}
    if block_table is not None:
        if used is None:
            raise _errors.NullError("flashkit: seqused_k: is missing; block_table needs it", "seqused_k")
        _shape(block_table, "block_table", seqs, "pages of a sequence")
        sequences |= {"kv_lens": used, "pages": block_table.cpu()}
    else:
        if cu_seq_k is None:
            raise _errors.NullError("flashkit: cu_seq_k: is missing; only block_table replaces it", "cu_seq_k")
        kv_starts = _starts(cu_seq_k, "cu_seq_k", room[0], max_k, "max_k")
        _shape(cu_seq_k, "cu_seq_k", seqs + 1)
        if used is not None:
            for (b,) in (used > kv_starts.diff()).nonzero()[:1].tolist():
                raise _errors.OptionError(f"flashkit: seqused_k[{b}] = {used[b]}: must be at most the length of the sequence in cu_seq_k", f"seqused_k[{b}]")
            keys = torch.cat([torch.arange(int(s), int(s + n)) for s, n in zip(kv_starts, used)]).to(key.device)
            k, v = key[keys], value[keys]
            kv_starts = torch.nn.functional.pad(used.cumsum(0), (1, 0))
        k, v = k.unsqueeze(0), v.unsqueeze(0)
        sequences["kv_starts"] = kv_starts
    lse = return_aux is not None and flag(return_aux.lse, "return_aux.lse")
    results = _results(_NAMES, query.unsqueeze(0), k, v, 0.0, scale, False, window_size, 0.0, None, False, lse, sequences)
    return results[:2] if lse else results
