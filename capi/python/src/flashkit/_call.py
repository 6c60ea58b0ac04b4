"""From keywords to fk_problem and fk_args."""

from __future__ import annotations

import ctypes
import math
import operator
import sys
from typing import Any

import numpy as np

from . import _abi, _arrays, _errors, _fields, _names
from ._handle import Cancel


class Options(_fields.Numbers, total=False):
    """The keywords of attention that both passes take; attention describes them."""

    causal: bool
    window: tuple[int | None, int | None] | None
    top_left: bool
    shift: int
    bias: Any
    mask: Any
    ranges: Any
    kscale: Any
    vscale: Any
    rowmax: Any
    keymass: Any
    slopes: Any
    sink: Any
    dropout: float
    seed: int
    origin: tuple[int, int, int, int] | None
    q_lens: Any
    kv_lens: Any
    q_starts: Any
    kv_starts: Any
    pages: Any
    layout: str
    dtype: str | None
    workers: int
    timeout: float | None
    cancel: Cancel | None


NAMES = frozenset(Options.__annotations__)


class Call:
    """A problem and its arguments. It holds the arrays that these point to."""

    def __init__(self, q: Any, k: Any, v: Any, options: Options) -> None:
        unknown = options.keys() - NAMES
        if unknown:
            raise TypeError(f"flashkit: no such keyword: {', '.join(sorted(unknown))}")
        layout = options.get("layout", "bhsd")
        if layout not in ("bhsd", "bshd"):
            raise _errors.OptionError(f"flashkit: layout = {layout!r}: must be 'bhsd' or 'bshd'", "layout")
        self.swap = layout == "bshd"
        self.dtype = options.get("dtype")
        if self.dtype not in (None, "float16", "bfloat16", "f16", "bf16"):
            raise _errors.OptionError(f"flashkit: dtype = {self.dtype!r}: must be 'float16' or 'bfloat16', for arrays of uint16", "dtype")
        self.given: dict[str, Any] = {}  # arrays by field; they must live as long as the call
        self.names: dict[str, str] = {}  # the caller's names of fields that flashkit.h names differently
        self.gaps = {"q_starts": False, "kv_starts": False}  # whether some rows are outside all packed sequences; these are not written
        self.problem = _abi.Problem(size=ctypes.sizeof(_abi.Problem))
        self.args = _abi.Args(size=ctypes.sizeof(_abi.Args))
        self.q, self.k, self.v = (self.four(x, name) for x, name in ((q, "q"), (k, "k"), (v, "v")))
        self.features(options)
        band(self.problem, options)
        self.sequences(options)
        self.limits(options)
        self.run(_abi.call, "fk_problem_of", ctypes.byref(self.args), ctypes.byref(self.problem))

    def run(self, f: Any, *args: Any) -> Any:
        """Call the library, whose errors become those of the caller's arguments."""
        try:
            return f(*args)
        except _errors.Error as e:
            raise _names.spelled(e, self.swap, self.names, self.given) from None

    def four(self, x: Any, name: str) -> Any:
        x = _arrays.take(x, name)
        setattr(self.args, name, _arrays.four(x, name, self.swap, self.dtype))
        self.given[name] = x
        return x

    def column(self, x: Any, name: str) -> Any:
        x = _arrays.take(x, name)
        setattr(self.args, name, _arrays.column(x, name))
        self.given[name] = x
        return x

    def features(self, o: Options) -> None:
        p, a = self.problem, self.args
        parameters(p, o)
        a.seed = index(o.get("seed", 0), "seed", "an integer from 0 to 2**64-1", 0, 2**64 - 1)
        if (origin := o.get("origin")) is not None:
            want = "(batch, head, row, key), integers from 0 to 2**31-1"
            if not isinstance(origin, tuple) or len(origin) != len(_abi.ORIGIN):
                raise _errors.OptionError(f"flashkit: origin = {origin!r}: must be {want}", "origin")
            p.features |= _fields.ORIGIN
            self.names["features"] = "origin"
            for name, first in zip(_abi.ORIGIN, origin, strict=True):
                setattr(a, name, index(first, "origin", want, 0, 2**31 - 1, given=origin))
        for name, scale in (("kscale", o.get("kscale")), ("vscale", o.get("vscale"))):
            if scale is not None:
                self.four(scale, name)
        if (rowmax := o.get("rowmax")) is not None:
            a.rowmax = _arrays.column(_arrays.writable(rowmax, "rowmax"), "rowmax")
            self.given["rowmax"] = rowmax
        if (keymass := o.get("keymass")) is not None:
            a.keymass = _arrays.pairs(_arrays.writable(keymass, "keymass"), "keymass", None)
            self.given["keymass"] = keymass
        for name in ("bias", "mask", "ranges", "slopes", "sink"):
            x: Any = o.get(name)
            if x is None:
                continue
            x = _arrays.take(x, name)
            self.given[name] = x
            setattr(a, name, _arrays.pairs(x, name, self.dtype) if name in ("bias", "mask", "ranges") else _arrays.per_head(x, name, name == "slopes"))

    def sequences(self, o: Options) -> None:
        a, seqs, first = self.args, None, ""
        on_device = a.q.device >= _abi.CUDA and any(_arrays.on_gpu(x) for x in (o.get("kv_lens"), o.get("pages")))
        if on_device:
            a.seqs_device = a.q.device
        for name in _abi.ARRAYS:
            x: Any = o.get(name)
            if x is None:
                continue
            dimensions = 2 if name == "pages" else 1
            array: Any = _arrays.on_device(x, name, dimensions, self.q) if on_device else _arrays.integers(x, name, dimensions)
            self.given[name] = array
            setattr(a, name, array.data_ptr() if on_device else array.__array_interface__["data"][0])
            count = array.shape[0] - name.endswith("_starts")
            if seqs is not None and count != seqs:
                raise _errors.DimensionError(f"flashkit: {name} describes {count} sequences, {first} describes {seqs}", name)
            seqs, first = count, first or name
            if name == "pages":
                a.pages_per_seq = array.shape[1]
            if name in self.gaps:
                self.gaps[name] = uncovered(array, (a.q if name == "q_starts" else a.k).shape[2])
        if seqs is not None:
            if seqs < 0:
                raise _errors.DimensionError(f"flashkit: {first}: is empty, and must have one more element than there are sequences", first)
            if a.q_starts is None and seqs != a.q.shape[0]:
                raise _errors.DimensionError(f"flashkit: {first} describes {seqs} sequences: must be {a.q.shape[0]}, the batch of q", first)
            if a.kv_starts is None and a.pages is None and seqs != a.k.shape[0]:
                raise _errors.DimensionError(f"flashkit: k.shape = {tuple(self.k.shape)}: must have batch {seqs}, as {first} describes {seqs} sequences and kv_starts is not given", "k.shape")
            a.seqs = seqs

    def prefix(self, x: Any) -> _abi.Prefix:
        """Return the keys and values that all sequences share."""
        if not isinstance(x, (tuple, list)) or len(x) not in (2, 4):
            raise _errors.OptionError("flashkit: prefix: must be (k, v), or (k, v, pages, keys) with pools", "prefix")
        p = _abi.Prefix(size=ctypes.sizeof(_abi.Prefix))
        for i, name in enumerate("kv"):
            t = _arrays.take(x[i], f"prefix[{i}]")
            setattr(p, name, _arrays.four(t, f"prefix[{i}]", self.swap, self.dtype))
            self.given[f"prefix.{name}"] = t
        if len(x) == 4:
            pages = _arrays.integers(x[2], "prefix[2]", 1)
            self.given["prefix.pages"] = pages
            p.pages, p.page_count, p.len = pages.__array_interface__["data"][0], len(pages), index(x[3], "prefix[3]", "the number of keys in the pages", 0)
        return p

    def limits(self, o: Options) -> None:
        a, timeout, cancel = self.args, o.get("timeout"), o.get("cancel")
        a.workers = index(o.get("workers", 0), "workers", "an integer from 1, or 0 for no limit", 0, 2**31 - 1)
        if timeout is not None:
            seconds = number(o, "timeout")
            if not 0 < seconds < 2**33:
                raise _errors.OptionError(f"flashkit: timeout = {timeout!r}: must be more than 0 seconds, and less than 2**33", "timeout")
            a.timeout_ns = max(1, int(seconds * 1e9))
        if cancel is not None:
            if not isinstance(cancel, Cancel):
                raise _errors.OptionError(f"flashkit: cancel = {cancel!r}: must be a Cancel", "cancel")
            a.cancel = cancel._take()
            self.given["cancel"] = cancel
        if self.args.q.device >= _abi.CUDA:
            a.stream = sys.modules["torch"].cuda.current_stream(self.q.device).cuda_stream

    def shape(self, row: int, like: Any) -> tuple[int, ...]:
        """Return like's shape with rows of that many elements."""
        return (*like.shape[:3], row)

    def columns(self) -> tuple[int, int, int]:
        """Return the shape of lse."""
        return tuple(self.args.q.shape[:3])


def parameters(p: Any, o: Options) -> None:
    """Set the numbers of a problem."""
    for name in _fields.NUMBERS:
        setattr(p, name, positive(o, name))
    p.dropout = number(o, "dropout")


def band(p: Any, o: Options) -> None:
    """Set the band of a problem."""
    window = o.get("window")
    causal, p.top_left, p.shift = flag(o.get("causal", False), "causal"), flag(o.get("top_left", False), "top_left"), index(o.get("shift", 0), "shift", "an integer")
    if causal:
        p.band = _abi.BAND_CAUSAL
    if window is not None:
        want = "(left, right), numbers of keys, or None for no limit"
        if not isinstance(window, (tuple, list)) or len(window) != 2:
            raise _errors.OptionError(f"flashkit: window = {window!r}: must be {want}", "window")
        left, right = (_abi.UNLIMITED if side is None else index(side, "window", want, _abi.UNLIMITED, given=window) for side in window)
        if causal:
            if right > 0:
                raise _errors.OptionError(f"flashkit: window = {window!r}: a causal row sees no key after the diagonal; right must be 0 or None", "window")
            right = 0
        p.band, p.left, p.right = _abi.BAND_WINDOW, left, right


def uncovered(starts: Any, rows: int) -> bool:
    """Report whether packed sequences leave some of so many rows out."""
    return len(starts) == 0 or int(starts[0]) != 0 or int(starts[-1]) != rows


def flag(x: Any, name: str) -> bool:
    """Return a bool as it is; 0 and 1 are bools too, and what else Python takes for one is refused."""
    if x is True or x is False:
        return x
    if not isinstance(x, (int, np.bool_)) or x not in (0, 1):
        raise _errors.OptionError(f"flashkit: {name} = {x!r}: must be True or False", name)
    return bool(x)


def index(x: Any, name: str, want: str, low: int = -(2**63), high: int = 2**63 - 1, given: Any = None) -> int:
    """Return an integer of Python or NumPy from low to high. given is what the caller wrote, if that holds more than x."""
    if type(x) is int and low <= x <= high:
        return x
    try:
        i = None if isinstance(x, bool) else operator.index(x)
    except TypeError:
        i = None
    if i is None or not low <= i <= high:
        raise _errors.OptionError(f"flashkit: {name} = {x if given is None else given!r}: must be {want}", name)
    return i


def number(o: Options, name: str) -> float:
    x: Any = o.get(name, 0.0)
    if isinstance(x, bool) or not isinstance(x, (int, float, np.integer, np.floating)):
        raise _errors.OptionError(f"flashkit: {name} = {x!r}: must be a number", name)
    return float(x)


def positive(o: Options, name: str) -> float:
    """Return a number that may be None, which is 0 for the library; 0 itself is refused."""
    if o.get(name) is None:
        return 0.0
    x = number(o, name)
    if not 0 < x < math.inf:
        raise _errors.OptionError(f"flashkit: {name} = {x}: must be more than 0; None leaves it out", name)
    return x
