"""Types of results for PyTorch's tensors and for other packages' arrays, and wrong types, which mypy checks."""

from typing import Any

from torch import Tensor
from typing_extensions import assert_type

import flashkit
import flashkit.torch


class Other:
    def __dlpack__(self, *, stream: int | None = None) -> object:
        return stream


def of_torch(q: Tensor, more: bool) -> None:
    o, lse = assert_type(flashkit.attention(q, q, q, return_lse=True), tuple[Tensor, Tensor])
    assert_type(flashkit.attention(q, q, q, mask=q, timeout=1.0), Tensor)
    assert_type(flashkit.merge(o, lse, o, lse), tuple[Tensor, Tensor])
    g = flashkit.attention_backward(o, q, q, q, o, lse)
    assert_type(g.d_v, Tensor)
    assert_type(g.d_sink, Tensor | None)
    assert_type(flashkit.torch.attention(q, q, q, window=(1, 0), bias=q, scale=1.0, backend="simd"), Tensor)
    assert_type(flashkit.torch.attention(q, q, q, return_lse=True), tuple[Tensor, Tensor])
    assert_type(flashkit.torch.attention(q, q, q, return_lse=more), Any)


def of_others(x: Other) -> None:
    assert_type(flashkit.attention(x, x, x), Any)
    assert_type(flashkit.merge(x, x, x, x), tuple[Any, Any])


def wrong(q: Tensor) -> None:
    flashkit.attention(q, q, q, softcaps=1.0)  # type: ignore[call-overload]
    flashkit.attention([1.0], q, q)  # type: ignore[call-overload]
    flashkit.torch.attention(q, q, q, workers=1)  # type: ignore[call-overload]
