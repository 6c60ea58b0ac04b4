"""Calls of NumPy arrays or PyTorch tensors that were made before: a repeated call sets new addresses only.

A call is kept by the shapes, strides and types of its arrays and by its options, for a
dispatcher. If a repeated call fails, the caller makes it again in the ordinary way, which raises
the error.
"""

from __future__ import annotations

import ctypes
import sys
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from . import _abi, _errors

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

Tensor: Any = None  # PyTorch's class, once PyTorch is imported
_torch: Any = None
_compiling: Any = None
_modes: Any = None
_transforms: Any = None
_tracing: Any = None
_proxies: Any = None
_recording: Any = None
_forward_mode: Any = None


def look() -> None:
    """Keep calls of PyTorch tensors from now on, if PyTorch is imported."""
    global Tensor, _torch, _compiling, _modes, _transforms, _tracing, _proxies, _recording, _forward_mode
    if Tensor is not None or (torch := sys.modules.get("torch")) is None:
        return
    try:
        compiling, forward_mode, c = torch.compiler.is_dynamo_compiling, torch.autograd.forward_ad, torch._C
        _modes, _transforms, _tracing = c._len_torch_dispatch_stack, c._are_functorch_transforms_active, c._get_tracing_state
        _proxies = partial(c._get_dispatch_mode, c._TorchDispatchModeKey.PROXY)
    except AttributeError:  # PyTorch is old, or not imported whole
        return
    _torch, _compiling, _forward_mode, _recording = torch, compiling, forward_mode, torch.is_grad_enabled
    Tensor = torch.Tensor


def refuse_traced(q: Any) -> None:
    """Refuse a call that PyTorch traces. Its graph would have the result's memory, but nothing that writes it."""
    if Tensor is not None and isinstance(q, Tensor) and not _compiling() and (_tracing() is not None or _proxies() is not None):
        raise _errors.UnsupportedError("flashkit: q: PyTorch traces this call, and its graph would lack it; call flashkit.torch.attention", "q")


def _maker(x: Any) -> Any:
    """Return a function that makes contiguous tensors of PyTorch like x. torch.empty takes longer to parse its arguments."""
    like = _torch.empty(1, dtype=x.dtype, device=x.device).expand(x.shape)
    return partial(_torch.empty_like, like, memory_format=_torch.contiguous_format)


class _Frame:
    """The structures of one call in progress."""

    def __init__(self, problem: Any, args: Any, fields: tuple[str, ...]) -> None:
        self.problem, self.args = type(problem).from_buffer_copy(problem), type(args).from_buffer_copy(args)
        self.slots = [ctypes.c_void_p.from_buffer(self.args, getattr(_abi.Args, name).offset + _abi.Tensor.data.offset) for name in fields]
        self.to = ctypes.byref(self.problem), ctypes.byref(self.args)


OPTIONAL = ("bias", "mask", "slopes", "sink")
NOT_KEPT = ("dropout", "seed", "origin", "q_lens", "kv_lens", "q_starts", "kv_starts", "pages", "ranges", "kscale", "vscale", "rowmax", "keymass", "timeout", "cancel")  # options that differ from call to call
INPUTS = ("d_o", "q", "k", "v", "o", "lse", "d_lse", "bias", "mask", "slopes", "sink")
FORWARD = ("q", "k", "v", *OPTIONAL)  # inputs of the forward pass; its outputs follow them


class Prepared:
    """A call that was made once."""

    handle: Any = None  # None until a call has succeeded

    def keep(self, function: str, handle: int, problem: Any, args: Any, fields: tuple[str, ...], outputs: tuple[Any, ...]) -> None:
        """Keep a call that has succeeded. fields are the names of its inputs and outputs in flashkit.h; the outputs come last."""
        self.fields, self.template = fields, (type(problem).from_buffer_copy(problem), type(args).from_buffer_copy(args))
        self.tensors = outputs[0].__class__ is not _ndarray
        if self.tensors:
            self.make = [_maker(x) for x in outputs]
        else:
            self.make = [partial(_empty, x.shape, x.dtype) for x in outputs]
        order = INPUTS if function == "fk_backward" else FORWARD
        self.given: Any = itemgetter(*(i for i, name in enumerate(order) if name in fields))
        self.stream = None if args.q.device < _abi.CUDA else partial(_torch._C._cuda_getCurrentRawStream, outputs[0].device.index)
        self.free: list[_Frame] = []
        self.function = _abi.library()[function]  # this object of it converts no arguments
        self.function.restype = ctypes.c_int
        self.handle = ctypes.c_void_p(handle)

    def run(self, arrays: tuple[Any, ...], outputs: list[Any]) -> Any:
        """Return the outputs, or None if the call failed. An output that is None is made."""
        for i, x in enumerate(outputs):
            if x is None:
                outputs[i] = self.make[i]()
            elif not self.tensors and not x.flags.writeable:
                return None
        try:
            f = self.free.pop()
        except IndexError:
            f = _Frame(*self.template, self.fields)
        try:
            if self.tensors:
                for slot, x in zip(f.slots, (*self.given(arrays), *outputs)):
                    slot.value = x.data_ptr()
                if self.stream is not None:
                    f.args.stream = self.stream()
            else:
                for slot, x in zip(f.slots, (*self.given(arrays), *outputs)):
                    slot.value = _pointer(id(x) + _HEAD).value
            code = self.function(self.handle, *f.to, None)
        except RuntimeError:  # a tensor of PyTorch without memory
            return None
        self.free.append(f)
        return None if code else outputs

    def forward(self, arrays: tuple[Any, ...]) -> Any:
        """Return O, and LSE if there is one, or None if the call failed. arrays are those of find."""
        return self.run(arrays, [*arrays[len(FORWARD) :][: len(self.make)]])

    def backward(self, arrays: tuple[Any, ...], d_bias: bool, d_sink: bool) -> Any:
        """Return the five gradients, or None if the call failed. arrays are those of find."""
        r = self.run(arrays, [None] * len(self.make))
        if r is None:
            return None
        q, k, v, *others = r
        return q, k, v, others.pop(0) if d_bias else None, others.pop(0) if d_sink else None


def kept(options: Any) -> bool:
    """Report whether a call with these options is worth keeping: its options other than arrays are likely to repeat."""
    return all((x := options.get(name)) is None or x.__class__ in (int, float) and x == 0 for name in NOT_KEPT)


def _described(arrays: tuple[Any, ...]) -> list[Any] | None:
    """Return everything that a call depends on besides addresses, or None if such calls cannot be kept."""
    key: list[Any] = []
    if arrays[0].__class__ is _ndarray:
        for x in arrays:
            if x is None:
                key.append(None)
            elif x.__class__ is _ndarray:
                key += x.shape, x.strides, x.dtype
            else:
                return None
        return key
    if Tensor is None or _compiling() or _modes() or _transforms() or _forward_mode._current_level >= 0 or _tracing() is not None:
        return None  # PyTorch may trace or transform the call
    recording = _recording()
    for x in arrays:
        if x is None:
            key.append(None)
        elif x.__class__ is not Tensor or x.is_neg() or recording and x.requires_grad:
            return None
        else:
            key += x.shape, x.is_contiguous() or x.stride(), x.dtype, x.device
    return key


def find(d: Any, options: tuple[Any, ...], arrays: tuple[Any, ...]) -> Prepared | None:
    """Return the call of a dispatcher with these options and arrays, or None if such calls cannot be kept. None stands for an array that is not given."""
    if not _works:
        return None
    calls = d._prepared
    try:
        key = _described(arrays)
        if key is None:
            return None
        whole = options, *key
        p: Prepared | None = calls.get(whole)
    except (TypeError, RuntimeError):  # an option of a wrong type, or a tensor without a shape
        return None
    if p is None:
        if len(calls) >= _MOST:
            calls.clear()
        p = calls[whole] = Prepared()
    return p
