"""flashkit as an attention implementation of the package transformers, also for models with softcap or sinks.

    import flashkit.transformers  # registers the name "fkit"

    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="fkit")

transformers takes names that contain "flash" for its interface to flash-attn, so the name must not contain it.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask
from transformers.utils.generic import TransformersKwargs

from . import _errors
from ._sdpa import _lowered
from .torch import attention

__all__ = ["NAME", "attention_forward", "attention_mask"]

NAME = "fkit"  #: the value of attn_implementation

# Keywords that do not change the result of an attention function: the mask includes sliding windows and packed
# sequences, and every result is deterministic.
_IGNORED = frozenset(TransformersKwargs.__annotations__) | {"cache_position", "deterministic", "past_key_values", "sliding_window", "use_cache"}


def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    is_causal: bool | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """Return O of [batch, rows, heads, head dim], and None for the weights. transformers calls this function.

    query is [batch, heads, rows, head dim], key and value are [batch, KV heads, keys, head dim]. attention_mask is a
    mask of bool, True for visible keys, or a bias. s_aux has a sink per head. Gradients flow to bias and sink too. Other
    keywords that change results raise UnsupportedError, unless they are None.
    """
    for name, x in rest.items():
        if x is not None and x is not False and (name not in _IGNORED or name == "output_attentions"):
            raise _errors.UnsupportedError(f"flashkit: {name}: is an argument that attention function {NAME!r} does not support", name)
    batch, rows = max(query.shape[0], key.shape[0]), query.shape[2]
    q, k, v = (t if t.shape[0] == batch else t.expand(batch, -1, -1, -1) for t in _lowered(query, key, value))
    causal = attention_mask is None and rows > 1 and bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    if causal and rows != key.shape[2]:
        text = f"is None in a causal call of {rows} rows and {key.shape[2]} keys, so the first row's position is unknown"
        raise _errors.UnsupportedError(f"flashkit: attention_mask: {text}", "attention_mask")
    mask = bias = None
    if attention_mask is not None:
        if attention_mask.dtype == torch.bool:
            mask = attention_mask
        else:
            bias = attention_mask
    if position_bias is not None:
        bias = position_bias if bias is None else position_bias + bias
    if bias is not None and bias.dtype != torch.float32:
        bias = bias.to(q.dtype)
    sink = None if s_aux is None else s_aux.float()
    o: Tensor = attention(q, k, v, causal=causal, scale=scaling, dropout=dropout, softcap=softcap, bias=bias, mask=mask, sink=sink)
    return o.transpose(1, 2).contiguous(), None


def attention_mask(*, q_length: int, kv_length: int, allow_is_causal_skip: bool = True, config: Any = None, **rest: Any) -> Tensor | None:
    """Return transformers' mask for sdpa. It is None for a causal mask only if rows and keys have the same positions."""
    if config is not None and not _takes_functions(type(config)):
        text = f"the model of a {type(config).__name__} takes no attention functions; use 'sdpa' with flashkit.torch.replace_sdpa"
        raise _errors.UnsupportedError(f"flashkit: attn_implementation = {NAME!r}: {text}", "attn_implementation")
    skip = allow_is_causal_skip and (q_length == 1 or q_length == kv_length)
    mask: Tensor | None = sdpa_mask(q_length=q_length, kv_length=kv_length, allow_is_causal_skip=skip, **rest)
    return mask


_known: dict[type, bool] = {}


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _takes_functions(config: type) -> bool:
    """Report whether models of a configuration call the registered function. Others would misread its masks."""
    if config not in _known:
        name = config.__module__.replace("configuration_", "modeling_")
        classes = [x for x in vars(sys.modules.get(name, object)).values() if isinstance(x, type)]
        models = [x for x in classes if issubclass(x, PreTrainedModel) and x.__module__ == name]
        _known[config] = all(x._can_set_attn_implementation() for x in models)
    return _known[config]


AttentionInterface.register(NAME, attention_forward)
AttentionMaskInterface.register(NAME, attention_mask)
