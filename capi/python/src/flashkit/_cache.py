"""KV caches."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from . import _abi, _arrays, _errors, _names
from ._call import index
from ._handle import Handle

if TYPE_CHECKING:
    from ._types import NumPy

_TYPES = {"float32": (_abi.F32, "<f4"), "float16": (_abi.F16, "<f2"), "bfloat16": (_abi.BF16, "<u2"), "int8": (_abi.I8, "|i1")}
_STORED = {code: kind for code, kind in _TYPES.values()}


class Keywords(TypedDict, total=False):
    """The keywords of attention that describe the keys of a KVCache."""

    kv_lens: NumPy
    pages: NumPy
    kscale: NumPy
    vscale: NumPy
    dtype: str
    prefix: tuple[NumPy, NumPy, NumPy, int]


class _Lent:
    """Memory of a cache, for NumPy, whose array keeps it, and so the cache."""

    def __init__(self, cache: KVCache, address: int, shape: tuple[int, ...], kind: str) -> None:
        self.cache = cache
        self.__array_interface__ = {"data": (address, True), "shape": shape, "typestr": kind, "version": 3}


class KVCache(Handle):
    """The keys and values of growing sequences, so that each is computed once.

        cache = flashkit.KVCache(batch=2, heads=8, capacity=4096, dim=128, dtype="bfloat16", page=64)
        cache.append(k, v)
        o = flashkit.attention(q, cache.k, cache.v, causal=True, **cache.keywords())

    Args:
        batch: number of sequences.
        heads: KV heads.
        capacity: the most keys of a sequence, a multiple of page.
        dim: elements of a key and of a value.
        dtype: what is stored: "float32", "float16", "bfloat16" or "int8".
        page: keys of a page; 0 for no pages: each sequence then has memory for capacity keys.
        pages: pages of all sequences together; 0 for enough. No more memory is ever claimed.
        int8group: elements that share a scale of int8: 32, 64, or 0 for all of a row.
        scales: type of these scales, "float32" or "float16".

    The memory is on the host. Methods may be called from any thread, but not while a call reads the
    cache. One that raises an error has changed nothing. A copy is the same KVCache; it cannot be
    pickled. Its memory is freed with the last array that views it.
    """

    _free, _what = "fk_cache_free", "cache"

    def __init__(self, batch: int, heads: int, capacity: int, dim: int, *, dtype: str = "float32", page: int = 0, pages: int = 0, int8group: int = 0, scales: str = "float32") -> None:
        config = _abi.CacheConfig(size=ctypes.sizeof(_abi.CacheConfig))
        numbers = dict(batch=batch, heads=heads, capacity=capacity, dim=dim, page=page, pages=pages, int8group=int8group)
        for name, x in numbers.items():
            setattr(config, "kv_heads" if name == "heads" else name, index(x, name, "an integer"))
        for name, kind, field in (("dtype", dtype, "dtype"), ("scales", scales, "scale_dtype")):
            if kind not in _TYPES:
                raise _errors.DTypeError(f"flashkit: {name} = {kind!r}: must be one of {', '.join(_TYPES)}", name)
            setattr(config, field, _TYPES[kind][0])
        handle = ctypes.c_void_p()
        self._names = {f"config.{name}": name for name in numbers} | {"config.kv_heads": "heads", "config.dtype": "dtype", "config.scale_dtype": "scales"}
        self._call("fk_cache_new", {}, ctypes.byref(config), ctypes.byref(handle))
        self._handle = handle.value
        self._batch, self._paged, self._dtype = config.batch, config.page > 0, dtype

    def _call(self, function: str, names: dict[str, str], *args: Any, swap: bool = False, arrays: Any = ()) -> None:
        try:
            _abi.call(function, *args)
        except _errors.Error as e:
            raise _names.spelled(e, swap, self._names | names, dict(arrays)) from None

    def append(self, k: Any, v: Any, lens: Any = None, *, layout: str = "bhsd", dtype: str | None = None) -> None:
        """Add keys and values, [batch, heads, n, dim], to the ends of the sequences.

        Sequence b gets the first lens[b] of them, or all n. They are arrays of NumPy, tensors of
        PyTorch or speak DLPack, in float32, float16 or bfloat16, and are rounded to the type of
        the cache. layout and dtype are as in attention.
        """
        if layout not in ("bhsd", "bshd"):
            raise _errors.OptionError(f"flashkit: layout = {layout!r}: must be 'bhsd' or 'bshd'", "layout")
        swap, given = layout == "bshd", {"k": _arrays.take(k, "k"), "v": _arrays.take(v, "v")}
        views = [_arrays.four(x, name, swap, dtype) for name, x in given.items()]
        counts = None if lens is None else _arrays.integers(lens, "lens", 1)
        if counts is not None and len(counts) != self._batch:
            raise _errors.DimensionError(f"flashkit: lens.shape = {counts.shape}: must be ({self._batch},)", "lens.shape")
        address = None if counts is None else counts.__array_interface__["data"][0]
        self._call("fk_cache_append", {}, self._take(), ctypes.byref(views[0]), ctypes.byref(views[1]), address, swap=swap, arrays=given)

    def truncate(self, seq: int, length: int) -> None:
        """Keep the first keys of a sequence."""
        self._call("fk_cache_truncate", {"len": "length"}, self._take(), _number(seq, "seq"), _number(length, "length"))

    def remove(self, seq: int) -> None:
        """Empty a sequence."""
        self._call("fk_cache_remove", {}, self._take(), _number(seq, "seq"))

    def reset(self) -> None:
        """Empty all sequences."""
        self._call("fk_cache_reset", {}, self._take())

    def fork(self, seq: int, to: int) -> None:
        """Make sequence `to` a copy of sequence seq. With pages they share them until one changes."""
        self._call("fk_cache_fork", {}, self._take(), _number(seq, "seq"), _number(to, "to"))

    def evict(self, seq: int, start: int, stop: int) -> None:
        """Remove keys start, ..., stop-1 of a sequence. Later keys move down, in their order."""
        self._call("fk_cache_evict", {"from": "start", "to": "stop"}, self._take(), _number(seq, "seq"), _number(start, "start"), _number(stop, "stop"))

    @property
    def lens(self) -> NumPy:
        """The number of keys of each sequence, [batch]."""
        return self._integers(self._args()[0].kv_lens, self._batch)

    @property
    def next(self) -> NumPy:
        """The positions of the next keys, [batch], which evict does not change."""
        positions, _ = self._state()
        return self._integers(positions, self._batch)

    @property
    def free_pages(self) -> int:
        """The number of pages that no sequence uses."""
        return self._state()[1]

    @property
    def k(self) -> NumPy:
        """The keys, for attention: [batch, heads, capacity, dim] or, with pages, a pool. It is a view; bfloat16 is uint16."""
        return self._view(self._args()[0].k)

    @property
    def v(self) -> NumPy:
        """The values, likewise."""
        return self._view(self._args()[0].v)

    def keywords(self, *, shared: bool = False) -> Keywords:
        """Return the keywords of attention that go with k and v. They hold until the cache changes.

        With shared, the pages that all sequences share, by fork, are prefix, and so are read once.
        Not of int8.
        """
        if shared and self._dtype == "int8":
            raise _errors.UnsupportedError("flashkit: shared: a prefix does not support int8", "shared")
        a, prefix = self._args(shared)
        words: Keywords = {"kv_lens": self._integers(a.kv_lens, self._batch)}
        if self._paged:
            words["pages"] = self._integers(a.pages, self._batch, a.pages_per_seq)
        if self._dtype == "int8":
            words["kscale"], words["vscale"] = self._view(a.kscale), self._view(a.vscale)
        if self._dtype == "bfloat16":
            words["dtype"] = self._dtype
        if prefix.len:
            words["prefix"] = self._view(prefix.k), self._view(prefix.v), self._integers(prefix.pages, prefix.page_count), prefix.len
        return words

    def _args(self, shared: bool = False) -> tuple[_abi.Args, _abi.Prefix]:
        a, prefix = _abi.Args(size=ctypes.sizeof(_abi.Args)), _abi.Prefix(size=ctypes.sizeof(_abi.Prefix))
        self._call("fk_cache_args", {}, self._take(), ctypes.byref(a), ctypes.byref(prefix) if shared else None)
        return a, prefix

    def _state(self) -> tuple[int, int]:
        positions, pages = ctypes.c_void_p(), ctypes.c_int64()
        self._call("fk_cache_state", {}, self._take(), ctypes.byref(positions), ctypes.byref(pages))
        return positions.value or 0, pages.value

    def _view(self, t: _abi.Tensor) -> NumPy:
        return np.asarray(_Lent(self, t.data, tuple(t.shape), _STORED[t.dtype]))

    def _integers(self, address: int, *shape: int) -> NumPy:
        """Return a copy."""
        return np.array(_Lent(self, address, shape, "<i4"))

    def __reduce__(self) -> Any:
        raise TypeError("flashkit: a KVCache cannot be pickled: its memory is that of its own process")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._batch} sequences in {self._dtype}>" if "_handle" in vars(self) else f"<{type(self).__name__}>"


def _number(x: Any, name: str) -> int:
    return index(x, name, "an integer")
