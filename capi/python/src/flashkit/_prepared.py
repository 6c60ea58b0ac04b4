"""Calls of NumPy arrays that were made before: a repeated call sets new addresses only.

A call is kept by the shapes, strides and types of its arrays and by its options, for a
dispatcher. If a repeated call fails, the caller makes it again in the ordinary way, which raises
the error.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np

from . import _abi

_MOST = 256  # calls that a dispatcher keeps

_ndarray, _empty = np.ndarray, np.empty

# In NumPy's C API the address of the elements follows the head of the object.
_HEAD = object.__basicsize__
_pointer = ctypes.c_void_p.from_address


def _addressable() -> bool:
    """Report whether addresses of arrays can be read from the arrays' own memory."""
    if sys.implementation.name != "cpython":
        return False
    arrays: list[np.ndarray[Any, Any]] = [np.zeros(3), np.zeros((2, 2), np.float32)[1:], np.zeros(8, np.uint16)[::2]]
    return all(_pointer(id(x) + _HEAD).value == x.__array_interface__["data"][0] for x in arrays)


_works = _addressable()


class _Frame:
    """The structures of one call in progress."""

    def __init__(self, problem: Any, args: Any, fields: tuple[str, ...]) -> None:
        self.problem, self.args = type(problem).from_buffer_copy(problem), type(args).from_buffer_copy(args)
        self.slots = [ctypes.c_void_p.from_buffer(self.args, getattr(_abi.Args, name).offset + _abi.Tensor.data.offset) for name in fields]
        self.to = ctypes.byref(self.problem), ctypes.byref(self.args)


OPTIONAL = ("bias", "mask", "slopes", "sink")
NOT_KEPT = ("dropout", "seed", "origin", "q_lens", "kv_lens", "q_starts", "kv_starts", "pages", "ranges", "kscale", "vscale", "rowmax", "keymass", "timeout", "cancel")  # options that differ from call to call
INPUTS = ("d_o", "q", "k", "v", "o", "lse", "d_lse", "bias", "mask", "slopes", "sink")


class Prepared:
    """A call that was made once."""

    handle: Any = None  # None until a call has succeeded

    def keep(self, function: str, handle: int, problem: Any, args: Any, fields: tuple[str, ...], outputs: tuple[Any, ...]) -> None:
        """Keep a call that has succeeded. fields are the names of its inputs and outputs in flashkit.h; the outputs come last."""
        self.fields, self.template = fields, (type(problem).from_buffer_copy(problem), type(args).from_buffer_copy(args))
        self.outputs = [(x.shape, x.dtype) for x in outputs]
        self.free: list[_Frame] = []
        self.function = _abi.library()[function]  # this object of it converts no arguments
        self.function.restype = ctypes.c_int
        self.handle = ctypes.c_void_p(handle)

    def run(self, arrays: tuple[Any, ...], outputs: list[Any]) -> Any:
        """Return the outputs, or None if the call failed. An output that is None is made."""
        for i, x in enumerate(outputs):
            if x is None:
                outputs[i] = _empty(*self.outputs[i])
            elif not x.flags.writeable:
                return None
        try:
            f = self.free.pop()
        except IndexError:
            f = _Frame(*self.template, self.fields)
        for slot, x in zip(f.slots, (*arrays, *outputs)):
            slot.value = _pointer(id(x) + _HEAD).value
        code = self.function(self.handle, *f.to, None)
        self.free.append(f)
        return None if code else outputs

    def forward(self, q: Any, k: Any, v: Any, optional: tuple[Any, ...], out: Any, lse: Any) -> Any:
        """Return O, and LSE if there is one, or None if the call failed."""
        arrays = (q, k, v, *(x for x in optional if x is not None))
        return self.run(arrays, [out] if len(self.outputs) == 1 else [out, lse])

    def backward(self, arrays: tuple[Any, ...], d_bias: bool, d_sink: bool) -> Any:
        """Return the five gradients, or None if the call failed."""
        r = self.run(tuple(x for x in arrays if x is not None), [None] * len(self.outputs))
        if r is None:
            return None
        q, k, v, *others = r
        return q, k, v, others.pop(0) if d_bias else None, others.pop(0) if d_sink else None


def kept(options: Any) -> bool:
    """Report whether a call with these options is worth keeping: its options other than arrays are likely to repeat."""
    return all((x := options.get(name)) is None or x.__class__ in (int, float) and x == 0 for name in NOT_KEPT)


def find(d: Any, options: tuple[Any, ...], arrays: tuple[Any, ...]) -> Prepared | None:
    """Return the call of a dispatcher with these options and arrays, or None if such calls cannot be kept. None stands for an array that is not given."""
    if not _works:
        return None
    key: list[Any] = [options]
    for x in arrays:
        if x is None:
            key.append(None)
        elif x.__class__ is _ndarray:
            key += x.shape, x.strides, x.dtype
        else:
            return None
    calls = d._prepared
    whole = tuple(key)
    try:
        p: Prepared | None = calls.get(whole)
    except TypeError:  # an option of a wrong type
        return None
    if p is None:
        if len(calls) >= _MOST:
            calls.clear()
        p = calls[whole] = Prepared()
    return p
