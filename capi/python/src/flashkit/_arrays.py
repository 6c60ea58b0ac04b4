"""Arrays of others as fk_tensor: an address, a shape and strides. Nothing is copied."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from . import _abi, _errors

_CODES = {"float32": _abi.F32, "float16": _abi.F16, "bfloat16": _abi.BF16, "bool": _abi.BOOL}
_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}

Raw = tuple[int, tuple[int, ...], tuple[int, ...], int, int]  # address, shape, strides in elements, type, device


def is_torch(x: Any) -> bool:
    """Report whether x is a tensor of PyTorch, which is not imported for that."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def plain(x: Any, name: str) -> Any:
    """Return NumPy's array, but refuse a masked one, whose mask nothing would look at."""
    if isinstance(x, np.ma.MaskedArray):
        raise _errors.DTypeError(f"flashkit: {name}: is a masked array, whose mask would be ignored; give its data, and hide keys by mask=", name)
    return x


def take(x: Any, name: str) -> Any:
    """Return x as NumPy's array or PyTorch's tensor, which it may be by DLPack."""
    if isinstance(x, np.ndarray):
        return plain(x, name)
    if is_torch(x):
        if x.requires_grad and sys.modules["torch"].is_grad_enabled():
            raise _errors.OptionError(f"flashkit: {name}: requires a gradient, which this function does not record; call flashkit.torch.attention, or call it under torch.no_grad()", name)
        return x
    if hasattr(x, "__dlpack__"):
        try:
            return np.from_dlpack(x)
        except Exception as e:  # the exporter of the array may raise any exception
            raise _errors.DTypeError(f"flashkit: {name}: NumPy cannot take this {type(x).__name__} by DLPack: {e}", name) from e
    raise _errors.DTypeError(f"flashkit: {name}: is a {type(x).__name__}, and must be an array of NumPy, a tensor of PyTorch, or speak DLPack", name)


_KNOWN: dict[Any, int] = {}  # codes by type object of NumPy or PyTorch; a look-up by the type's name is slow


def code_of(x: Any, name: str, dtype: str | None) -> int:
    """Return the FK_ code of the elements. dtype is what 16-bit integers stand for."""
    code = _KNOWN.get(x.dtype)
    if code is not None:
        return code
    found = str(x.dtype).removeprefix("torch.")
    native = getattr(x.dtype, "isnative", True)
    if found in _CODES and native:
        return _KNOWN.setdefault(x.dtype, _CODES[found])
    if found == "int32" and native and name == "ranges":  # an integer elsewhere keeps its own error
        return _abi.I32
    if found == "int8" and name in ("k", "v"):
        return _abi.I8
    if found == "uint16" and native and dtype is not None:
        return _CODES[_NAMES.get(dtype, dtype)]
    hint = "; say dtype='bfloat16' or 'float16' if that is what the integers hold" if found == "uint16" else ""
    raise _errors.DTypeError(f"flashkit: {name}.dtype = {x.dtype}: must be float32, float16 or bfloat16, bool of a mask, int32 of ranges, or int8 of k and v, in the machine's byte order{hint}", f"{name}.dtype")


def raw(x: Any, name: str, dtype: str | None = None) -> Raw:
    """Return what the library needs to know of an array."""
    code = code_of(x, name, dtype)
    if isinstance(x, np.ndarray):
        size, strides = x.itemsize, x.strides
        for d, (n, s) in enumerate(zip(x.shape, strides)):
            if s % size and n > 1:
                raise _errors.StrideError(f"flashkit: {name}.strides[{d}] = {s} bytes: must be a multiple of an element's size, {size}", f"{name}.strides[{d}]")
        return x.__array_interface__["data"][0], x.shape, tuple(s // size for s in strides), code, _abi.HOST
    device = x.device
    if device.type not in ("cpu", "cuda"):
        raise _errors.OptionError(f"flashkit: {name}.device = {device}: must be cpu or cuda", f"{name}.device")
    if x.layout is not sys.modules["torch"].strided or x.is_nested or x.is_conj() or x.is_neg():
        raise _errors.StrideError(f"flashkit: {name}: must be a plain strided tensor", name)
    try:
        address = x.data_ptr()
    except RuntimeError:  # functorch's tensors raise it
        address = 0
    if address == 0 and x.numel():
        raise _errors.StrideError(f"flashkit: {name}: is a {type(x).__name__} without memory of its own, of a subclass or a transform of PyTorch; call flashkit.torch.attention", name)
    return address, tuple(x.shape), x.stride(), code, _abi.CUDA + (device.index or 0) if device.type == "cuda" else _abi.HOST


def tensor(r: Raw) -> _abi.Tensor:
    """Return four dimensions as the library takes them."""
    address, shape, strides, code, device = r
    return _abi.Tensor(address, shape, strides, code, device)


def four(x: Any, name: str, swap: bool, dtype: str | None) -> _abi.Tensor:
    """Return q, k, v and what has their shapes: [batch, heads, rows, row], or rows before heads."""
    address, shape, strides, code, device = raw(x, name, dtype)
    if len(shape) != 4:
        raise _errors.DimensionError(f"flashkit: {name}.shape = {shape}: must have 4 dimensions", f"{name}.shape")
    if swap:
        shape, strides = (shape[0], shape[2], shape[1], shape[3]), (strides[0], strides[2], strides[1], strides[3])
    return tensor((address, shape, strides, code, device))


def column(x: Any, name: str) -> _abi.Tensor:
    """Return lse and its gradient: [batch, heads, rows]."""
    address, shape, strides, code, device = raw(x, name)
    if len(shape) != 3:
        raise _errors.DimensionError(f"flashkit: {name}.shape = {shape}: must be [batch, heads, rows]", f"{name}.shape")
    return tensor((address, (*shape, 1), (*strides, 1), code, device))


def pairs(x: Any, name: str, dtype: str | None) -> _abi.Tensor:
    """Return a bias, a mask or ranges, which may lack leading dimensions."""
    address, shape, strides, code, device = raw(x, name, dtype)
    if not 1 <= len(shape) <= 4:
        raise _errors.DimensionError(f"flashkit: {name}.shape = {shape}: must have 1 to 4 dimensions", f"{name}.shape")
    lack = 4 - len(shape)
    return tensor((address, (1,) * lack + shape, (0,) * lack + strides, code, device))


def per_head(x: Any, name: str, batched: bool) -> _abi.Tensor:
    """Return slopes and sinks: [heads], slopes [batch, heads] too."""
    address, shape, strides, code, device = raw(x, name)
    if len(shape) != 1 and not (batched and len(shape) == 2):
        raise _errors.DimensionError(f"flashkit: {name}.shape = {shape}: must be [heads]{' or [batch, heads]' if batched else ''}", f"{name}.shape")
    lack = 2 - len(shape)
    return tensor((address, (1,) * lack + shape + (1, 1), (0,) * lack + strides + (1, 1), code, device))


def integers(x: Any, name: str, dimensions: int) -> np.ndarray[Any, Any]:
    """Return lengths, starts or pages as the library takes them: int32, on the host."""
    if is_torch(x):
        if x.device.type != "cpu":
            raise _errors.OptionError(f"flashkit: {name}.device = {x.device}: must be cpu, unless kv_lens and pages lie on the device of q", f"{name}.device")
        x = x.detach().numpy()
    a = np.asarray(plain(x, name))
    if a.dtype.kind not in "iu" and a.size:
        raise _errors.DTypeError(f"flashkit: {name}.dtype = {a.dtype}: must be integers", f"{name}.dtype")
    if a.ndim != dimensions:
        raise _errors.DimensionError(f"flashkit: {name}.shape = {a.shape}: must have {dimensions} dimension{'s' * (dimensions > 1)}", f"{name}.shape")
    low, high = -(2**31), 2**31 - 1
    if a.size and name == "pages":  # the library checks the entries that the lengths use; others may have any value, such as -1
        a = a if a.dtype == np.int32 else np.clip(a.astype(np.int64), low, high)
    elif a.size and (a.min() < 0 or a.max() > high):
        wrong = np.flatnonzero((a < 0) | (a > high))
        raise _errors.OptionError(f"flashkit: {name}[{wrong[0]}] = {a.flat[wrong[0]]}: must be from 0 to {high}", f"{name}[{wrong[0]}]")
    return np.ascontiguousarray(a, np.int32)


def on_gpu(x: Any) -> bool:
    """Report whether x is a tensor on a GPU."""
    return is_torch(x) and bool(x.is_cuda)


def on_device(x: Any, name: str, dimensions: int, like: Any) -> Any:
    """Return lengths or pages on the device of like, which are read when the work runs."""
    if not is_torch(x) or x.device != like.device:
        raise _errors.OptionError(f"flashkit: {name}: must lie on {like.device}, as kv_lens and pages lie there both or neither", f"{name}.device")
    if x.dtype != sys.modules["torch"].int32:
        raise _errors.DTypeError(f"flashkit: {name}.dtype = {x.dtype}: must be int32 on a device", f"{name}.dtype")
    if x.dim() != dimensions:
        raise _errors.DimensionError(f"flashkit: {name}.shape = {tuple(x.shape)}: must have {dimensions} dimension{'s' * (dimensions > 1)}", f"{name}.shape")
    if not x.is_contiguous():
        raise _errors.StrideError(f"flashkit: {name}: must be contiguous on a device", name)
    return x


def new(like: Any, shape: tuple[int, ...], dtype: Any = None, fill: float | None = None, order: tuple[int, ...] | None = None) -> Any:
    """Return an array of like's kind and place, of like's type or float32. order is the order of the dimensions of a tensor in memory."""
    if order is not None:
        return new(like, tuple(shape[d] for d in order), dtype, fill).permute(order)  # each order here is its own inverse
    if isinstance(like, np.ndarray):
        a = np.empty(shape, like.dtype if dtype is None else dtype)
        if fill is not None:
            a.fill(fill)
        return a
    torch = sys.modules["torch"]
    kind = like.dtype if dtype is None else torch.float32
    return torch.empty(shape, dtype=kind, device=like.device) if fill is None else torch.full(shape, fill, dtype=kind, device=like.device)


def writable(x: Any, name: str) -> Any:
    """Return an output of the caller's, which nothing but NumPy or PyTorch may hold."""
    if isinstance(x, np.ndarray):
        if not x.flags.writeable:
            raise _errors.OptionError(f"flashkit: {name}: is read-only", name)
        return plain(x, name)
    if is_torch(x):
        return take(x, name)
    raise _errors.DTypeError(f"flashkit: {name}: is a {type(x).__name__}, and must be an array of NumPy or a tensor of PyTorch", name)


def forward_mode() -> bool:
    """Report whether tensors of PyTorch may have tangents."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.autograd.forward_ad._current_level >= 0


def without_tangents(**arrays: Any) -> None:
    """Refuse PyTorch's tensors that ask for a derivative of forward mode. Not within an operator, where PyTorch does not tell."""
    for name, x in arrays.items():
        if is_torch(x) and sys.modules["torch"].autograd.forward_ad.unpack_dual(x).tangent is not None:
            raise _errors.UnsupportedError(f"flashkit: {name}: has a tangent, and attention has no forward-mode derivative", name)


def written(*outputs: Any) -> None:
    """Tell PyTorch of outputs of the caller's: a backward pass that has saved one is then refused, as after any change in place."""
    for x in outputs:
        if is_torch(x) and not x.is_inference():
            sys.modules["torch"].autograd.graph.increment_version(x)
