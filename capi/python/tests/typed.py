"""Types of results for NumPy arrays, which mypy checks without PyTorch too."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type

import flashkit

Array = NDArray[Any]


def of_numpy(q: NDArray[np.float32], more: bool) -> None:
    o, lse = assert_type(flashkit.attention(q, q, q, causal=True, return_lse=True), tuple[Array, Array])
    assert_type(flashkit.attention(q, q, q, window=(3, None), softcap=30.0, backend="simd"), Array)
    assert_type(flashkit.attention(q, q, q, return_lse=more), Any)
    assert_type(flashkit.merge(o, lse, o, lse), tuple[Array, Array])
    g = flashkit.attention_backward(o, q, q, q, o, lse, d_bias=True)
    assert_type(g.d_q, Array)
    assert_type(g.d_bias, Array | None)
    assert_type(flashkit.attention(q, q, q, prefix=(q, q)), Array)
    c = flashkit.KVCache(1, 2, 8, 64, dtype="int8")
    assert_type(flashkit.attention(q, c.k, c.v, **c.keywords()), Array)
