"""Dispatchers: what is open, and what runs on it."""

from __future__ import annotations

import ctypes
import threading
from collections import namedtuple
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from . import _abi, _arrays, _errors, _fields, _names, _prepared
from ._call import Call, Options, flag
from ._handle import Handle

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._types import Array

    class Gradients(NamedTuple, Generic[Array]):
        d_q: Array
        d_k: Array
        d_v: Array
        d_bias: Array | None
        d_sink: Array | None

else:
    Gradients = namedtuple("Gradients", "d_q d_k d_v d_bias d_sink")  # before Python 3.11, no NamedTuple is generic
    Gradients.__doc__ = "What attention_backward returns. Those that were not asked for are None."


class Kernel(NamedTuple):
    """A kernel of a dispatcher."""

    name: str
    backward: bool
    missing: str  #: the requirement that this machine lacks, or ""
    about: str


class Verdict(NamedTuple):
    """What a dispatcher says about a kernel, or a missing backend, for a problem."""

    name: str
    chosen: bool
    seconds: float  #: predicted time; 0 if the kernel cannot run
    reason: str


class Memory(NamedTuple):
    """What a call takes beside its tensors, in bytes, by formula."""

    host: float
    tensors: float  #: device memory for copies of host tensors
    device: float  #: other device memory


def _reopen(kind: type[Dispatcher], backend: str | None, options: dict[str, bool]) -> Dispatcher:
    """Return a Dispatcher from its pickle."""
    return kind(backend, **options)


class Dispatcher(Handle):
    """Open backends, and what is known of the speed of their kernels.

    backend is None for what the environment variable FLASHKIT_BACKEND says, or "auto";
    "auto"; a backend such as "simd"; or a kernel such as "simd/fwd_avx2", which also stands for
    its variant in the other pass. UnavailableError if the machine lacks it.

    frozen chooses by what was known when it was opened: the same kernels, hence the same
    bits, in every call. A forward pass with LSE sums scores as the backward pass does: with paired
    every forward pass does, also for explain and workspace, which see no LSE; with unpaired none
    needs to, as no backward pass follows, which is faster for few query rows. blank ignores what a profile of the machine says. any_order sums d_q on a GPU's memory in
    whatever order comes: faster, but its bits differ from run to run. Any thread may use it,
    also at once. It is a context manager, which closes it.

    A copy is the same Dispatcher. A pickle holds the options, and opens a new Dispatcher where it
    is loaded.
    """

    _free, _what = "fk_close", "backend"
    _backend: str | None = None
    _options: dict[str, bool] = {}

    def __init__(
        self,
        backend: str | None = None,
        *,
        frozen: bool = False,
        paired: bool = False,
        blank: bool = False,
        any_order: bool = False,
        unpaired: bool = False,
    ) -> None:
        if backend is not None and (not isinstance(backend, str) or "\0" in backend):
            raise _errors.OptionError(f"flashkit: backend = {backend!r}: must be a name", "backend")
        options = dict(frozen=frozen, paired=paired, blank=blank, any_order=any_order, unpaired=unpaired)
        flags = sum(bit for bit, (name, x) in zip(_abi.FLAGS, options.items()) if flag(x, name))
        handle = ctypes.c_void_p()
        _abi.call("fk_open", None if backend is None else backend.encode(), flags, ctypes.byref(handle))
        self._handle = handle.value
        self._prepared: dict[Any, _prepared.Prepared] = {}
        self._backend, self._options = backend, {name: True for name, x in options.items() if x}

    def close(self) -> None:
        """Wait for the calls in progress and free everything. A second time does nothing."""
        self._prepared.clear()
        self._end()

    def __enter__(self) -> Dispatcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        self._take()  # raises an error if the dispatcher is closed
        return _reopen, (type(self), self._backend, self._options)

    def __repr__(self) -> str:
        given = ([] if self._backend is None else [repr(self._backend)]) + [f"{name}=True" for name in self._options]
        text = f"{type(self).__name__}({', '.join(given)})"
        return text if "_handle" in vars(self) else f"<closed {text}>"

    def forward(self, q: Any, k: Any, v: Any, o: Any, lse: Any, want_lse: bool, carry: bool, options: Options, call: _prepared.Prepared | None = None, prefix: Any = None) -> tuple[Any, Any]:
        c = Call(q, k, v, options)
        first = None if prefix is None else c.prefix(prefix)
        stacked = first is not None and c.args.q.device >= _abi.CUDA  # rows of all sequences with one stride, and LSE
        gaps = c.gaps["q_starts"]
        if flag(carry, "carry"):
            if o is None or lse is None:
                name = "out" if o is None else "lse"
                raise _errors.NullError(f"flashkit: {name}: is missing; carry continues the result that it holds", name)
            c.problem.features |= _fields.CARRY
            c.names["features"] = "carry"
        if o is None:
            o = _arrays.new(c.q, c.shape(c.v.shape[3], c.q), fill=0.0 if gaps else None, order=(0, 2, 1, 3) if stacked and not c.swap else None)
        else:
            o = _arrays.writable(o, "out")
        c.args.o = _arrays.four(o, "out", c.swap, c.dtype)
        c.given["o"], c.names["o"] = o, "out"
        if lse is None and (flag(want_lse, "return_lse") or stacked):
            lse = _arrays.new(c.q, c.columns(), "float32", float("-inf") if gaps else None, (0, 2, 1) if stacked else None)
        if lse is not None:
            c.args.lse = _arrays.column(_arrays.writable(lse, "lse"), "lse")
            c.given["lse"] = lse
        handle = self._take()
        if first is not None:
            c.run(_abi.call, "fk_forward_prefix", handle, ctypes.byref(c.problem), ctypes.byref(first), ctypes.byref(c.args))
            return o, lse
        c.run(_abi.call, "fk_forward", handle, ctypes.byref(c.problem), ctypes.byref(c.args))
        if call is not None:
            inputs = tuple(name for name in _prepared.INPUTS if name in c.given and name not in ("o", "lse"))
            call.keep("fk_forward", handle, c.problem, c.args, (*inputs, "o", "lse")[: None if lse is not None else -1], (o,) if lse is None else (o, lse))
        return o, lse

    def backward(self, d_o: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, d_lse: Any, d_bias: bool, d_sink: bool, options: Options, given: tuple[Any, Any, Any] | None = None, call: _prepared.Prepared | None = None) -> Gradients[Any]:
        c = Call(q, k, v, options)
        c.four(o, "o")
        c.column(lse, "lse")
        c.four(d_o, "d_o")
        if d_lse is not None:
            c.column(d_lse, "d_lse")
        fill = {"q": c.gaps["q_starts"], "k": c.gaps["kv_starts"], "v": c.gaps["kv_starts"]}
        out: list[Any] = []
        for i, (t, name) in enumerate(((c.q, "q"), (c.k, "k"), (c.v, "v"))):
            g = given[i] if given else _arrays.new(t, tuple(t.shape), fill=0.0 if fill[name] else None)
            setattr(c.args, "d_" + name, _arrays.four(g, "d_" + name, c.swap, c.dtype))
            out.append(g)
        for wanted, name in ((d_bias, "bias"), (d_sink, "sink")):
            if not flag(wanted, "d_" + name):
                out.append(None)
                continue
            x: Any = options.get(name)
            if x is None:
                raise _errors.NullError(f"flashkit: d_{name}: is asked for, and there is no {name}", f"d_{name}")
            g = _arrays.new(_arrays.take(x, name), tuple(x.shape))
            setattr(c.args, "d_" + name, _arrays.pairs(g, "d_bias", c.dtype) if name == "bias" else _arrays.per_head(g, "d_sink", False))
            out.append(g)
        handle = self._take()
        c.run(_abi.call, "fk_backward", handle, ctypes.byref(c.problem), ctypes.byref(c.args))
        if call is not None:
            inputs = tuple(name for name in _prepared.INPUTS if name in c.given)
            made = {name: x for name, x in zip(("d_q", "d_k", "d_v", "d_bias", "d_sink"), out) if x is not None}
            call.keep("fk_backward", handle, c.problem, c.args, (*inputs, *made), tuple(made.values()))
        return Gradients(*out)

    def kernels(self) -> list[Kernel]:
        """Return every kernel that it may run."""
        return [Kernel(name, way == "backward", missing, about) for name, way, missing, about in _abi.text("fk_kernels", self._take())]

    def explain(self, q: Any, k: Any, v: Any, backward: bool, carry: bool, options: Options) -> list[Verdict]:
        c = Call(q, k, v, options)
        c.problem.features |= _fields.CARRY * flag(carry, "carry")
        lines = c.run(_abi.text, "fk_explain", self._take(), ctypes.byref(c.problem), _abi.BACKWARD if flag(backward, "backward") else _abi.FORWARD)
        return [Verdict(name, mark == "*", int(ns) * 1e-9, reason) for mark, name, ns, reason in lines]

    def workspace(self, q: Any, k: Any, v: Any, backward: bool, options: Options) -> Memory:
        c, m = Call(q, k, v, options), _abi.Memory(size=ctypes.sizeof(_abi.Memory))
        c.run(_abi.call, "fk_workspace", self._take(), ctypes.byref(c.problem), _abi.BACKWARD if flag(backward, "backward") else _abi.FORWARD, ctypes.byref(m))
        return Memory(m.host, m.tensors, m.device)


_lock = threading.Lock()
_shared: dict[tuple[str | None, bool], Dispatcher] = {}


def shared(backend: str | Dispatcher | None, unpaired: bool = False) -> Dispatcher:
    """Return the dispatcher of a name, which is opened once and kept, or the caller's own."""
    if isinstance(backend, Dispatcher):
        return backend
    if backend is not None and not isinstance(backend, str):
        raise _errors.OptionError(f"flashkit: backend = {backend!r}: must be a name or a Dispatcher", "backend")
    d = _shared.get((backend, unpaired))
    if d is not None:
        return d
    with _lock:
        d = _shared.get((backend, unpaired))
        if d is None:
            d = _shared[backend, unpaired] = Dispatcher(backend, unpaired=unpaired)
        return d


def merge(o1: Any, lse1: Any, o2: Any, lse2: Any, layout: str) -> tuple[Any, Any]:
    if layout not in ("bhsd", "bshd"):
        raise _errors.OptionError(f"flashkit: layout = {layout!r}: must be 'bhsd' or 'bshd'", "layout")
    given = {name: _arrays.take(x, name) for name, x in (("o1", o1), ("lse1", lse1), ("o2", o2), ("lse2", lse2))}
    o, lse = _arrays.new(given["o1"], tuple(given["o1"].shape)), _arrays.new(given["lse1"], tuple(given["lse1"].shape), "float32")
    views = []
    for name, x in (("o", o), ("lse", lse), *given.items()):
        views.append(_arrays.column(x, name) if name.startswith("lse") else _arrays.four(x, name, layout == "bshd", None))
    try:
        _abi.call("fk_merge", *(ctypes.byref(t) for t in views))
    except _errors.Error as e:
        raise _names.spelled(e, layout == "bshd", {}, given) from None
    return o, lse
