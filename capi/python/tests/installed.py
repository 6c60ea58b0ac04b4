"""Run by the Makefile in an environment that holds the wheel and NumPy alone."""

import pathlib
import sys

import numpy as np

import flashkit

assert pathlib.Path(flashkit.__file__).is_relative_to(sys.prefix), flashkit.__file__
r = np.random.default_rng()
q, k, v = (r.standard_normal((2, 4, n, 32)).astype(np.float32) for n in (5, 9, 9))
o = flashkit.attention(q, k, v)
s = np.exp(q.astype(np.float64) @ k.swapaxes(-1, -2) / np.sqrt(32))
error = np.abs(o - s / s.sum(-1, keepdims=True) @ v).max()
assert error < 1e-5, error
print(f"installed: {flashkit.__version__}, {len(flashkit.kernels())} kernels, error {error:.2g}")
