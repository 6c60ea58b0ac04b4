"""Why replace_sdpa saw no call."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

import torch

_GENERAL = (
    "it sees only calls by the name torch.nn.functional.scaled_dot_product_attention, not by a name that was imported before, from "
    "C++, or of a model with another attention"
)


def reasons(function: Any) -> str:
    """Return the reasons that can be known: names of the function, and modules that are alive and do not call it."""
    return "; ".join((*_imported(function), *_modules())) or _GENERAL


def _imported(function: Any) -> Iterator[str]:
    names = [
        f"{name}.{key}"
        for name, module in sorted(sys.modules.items())
        if name.partition(".")[0] != "torch"
        for key, x in list(getattr(module, "__dict__", {}).items())
        if x is function
    ]
    if names:
        yield f"{', '.join(names[:4])}{' and others' * (len(names) > 4)} was imported before, and is still PyTorch's function"


def _modules() -> list[str]:
    """Return what live modules do, once each."""
    found: dict[str, None] = {}
    transformers: Any = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", ())
    for x in gc.get_objects():
        kind = type(x)  # isinstance would call code of proxies
        if issubclass(kind, torch.nn.TransformerEncoderLayer) and not x.training:
            found["a TransformerEncoderLayer in eval mode calls C++"] = None
        elif issubclass(kind, torch.nn.MultiheadAttention):
            found["a MultiheadAttention calls C++ in eval mode, and its own softmax with need_weights=True"] = None
        elif issubclass(kind, transformers) and (name := getattr(getattr(x, "config", None), "_attn_implementation", "sdpa")) != "sdpa":
            found[f"a {kind.__name__} has attn_implementation={name!r}, not 'sdpa'"] = None
    return list(found)
