"""Types of arrays and keywords, for type checkers alone."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray
from torch import Tensor as Tensor

from . import _fields
from ._call import Options
from ._dispatcher import Dispatcher


class DLPack(Protocol):
    """An array of NumPy, PyTorch or another package."""

    def __dlpack__(self, *args: Any, **keywords: Any) -> Any: ...


NumPy = NDArray[Any]
Array = TypeVar("Array", NumPy, Tensor)


class Forward(Options, total=False):
    """The keywords of attention except return_lse."""

    backend: str | Dispatcher | None
    out: Any
    lse: Any
    carry: bool
    prefix: tuple[Any, Any] | tuple[Any, Any, Any, int] | None


class Backward(Options, total=False):
    """The keywords of attention_backward."""

    d_lse: Any
    d_bias: bool
    d_sink: bool
    backend: str | Dispatcher | None


class Operator(_fields.Numbers, total=False):
    """The keywords of flashkit.torch.attention except return_lse."""

    causal: bool
    window: tuple[int | None, int | None] | None
    top_left: bool
    shift: int
    bias: Tensor | None
    mask: Tensor | None
    ranges: Tensor | None
    slopes: Tensor | None
    sink: Tensor | None
    dropout: float
    seed: int | Tensor | None
    q_lens: Tensor | None
    kv_lens: Tensor | None
    q_starts: Tensor | None
    kv_starts: Tensor | None
    pages: Tensor | None
    layout: str
    backend: str | None
