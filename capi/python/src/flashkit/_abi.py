"""flashkit.h for ctypes: structures, functions, and the library that is loaded by the first call."""

from __future__ import annotations

import ctypes
import os
import pathlib
import threading
from ctypes import c_char, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from typing import Any

from . import _errors, _fields

# This package is the distribution flashkit-attention. The distribution flashkit is another project with the same import name:
# installed second, it overwrites files of the first, and uninstalling one removes files of both.
for _other in pathlib.Path(__file__).parents[1].glob("flashkit-[0-9]*-info"):
    raise ImportError(
        f"flashkit: {_other} is another project with the same import name, so files of both are mixed; "
        "uninstall flashkit and flashkit-attention, then install flashkit-attention"
    )

F32, F16, BF16, BOOL, I32, I8 = range(6)
HOST, CUDA = range(2)
FORWARD, BACKWARD = range(2)
BAND_FULL, BAND_CAUSAL, BAND_WINDOW = range(3)
UNLIMITED = -1
FLAGS = FROZEN, PAIRED, BLANK, ANY_ORDER, UNPAIRED = 1, 2, 4, 8, 16


class Failure(ctypes.Structure):
    """fk_error"""

    _fields_ = [("size", c_size_t), ("code", c_int32), ("reserved", c_int32), ("field", c_char * 64), ("message", c_char * 432)]


class Tensor(ctypes.Structure):
    """fk_tensor"""

    _fields_ = [("data", c_void_p), ("shape", c_int64 * 4), ("strides", c_int64 * 4), ("dtype", c_int32), ("device", c_int32)]


class Problem(ctypes.Structure):
    """fk_problem"""

    _fields_ = _fields.PROBLEM


TENSORS = tuple(name for name, ctype in _fields.ARGS if ctype is None)
ARRAYS = ("q_lens", "kv_lens", "q_starts", "kv_starts", "pages")

ORIGIN = ("origin_batch", "origin_head", "origin_row", "origin_key")


class Args(ctypes.Structure):
    """fk_args"""

    _fields_ = [(name, Tensor if ctype is None else ctype) for name, ctype in _fields.ARGS]


class Prefix(ctypes.Structure):
    """fk_prefix"""

    _fields_ = [(name, Tensor if ctype is None else ctype) for name, ctype in _fields.PREFIX]


class CacheConfig(ctypes.Structure):
    """fk_cache_config"""

    _fields_ = _fields.CACHE


class Memory(ctypes.Structure):
    """fk_memory"""

    _fields_ = [("size", c_size_t), ("host", c_double), ("tensors", c_double), ("device", c_double)]


_P = ctypes.POINTER
_SIGNATURES: dict[str, list[Any]] = {
    "fk_open": [c_char_p, c_uint32, _P(c_void_p), _P(Failure)],
    "fk_close": [c_void_p, _P(Failure)],
    "fk_problem_of": [_P(Args), _P(Problem), _P(Failure)],
    "fk_forward": [c_void_p, _P(Problem), _P(Args), _P(Failure)],
    "fk_forward_prefix": [c_void_p, _P(Problem), _P(Prefix), _P(Args), _P(Failure)],
    "fk_backward": [c_void_p, _P(Problem), _P(Args), _P(Failure)],
    "fk_merge": [_P(Tensor)] * 6 + [_P(Failure)],
    "fk_workspace": [c_void_p, _P(Problem), c_int, _P(Memory), _P(Failure)],
    "fk_explain": [c_void_p, _P(Problem), c_int, c_char_p, c_size_t, _P(c_size_t), _P(Failure)],
    "fk_kernels": [c_void_p, c_char_p, c_size_t, _P(c_size_t), _P(Failure)],
    "fk_cache_new": [_P(CacheConfig), _P(c_void_p), _P(Failure)],
    "fk_cache_free": [c_void_p, _P(Failure)],
    "fk_cache_append": [c_void_p, _P(Tensor), _P(Tensor), c_void_p, _P(Failure)],
    "fk_cache_truncate": [c_void_p, c_int64, c_int64, _P(Failure)],
    "fk_cache_remove": [c_void_p, c_int64, _P(Failure)],
    "fk_cache_reset": [c_void_p, _P(Failure)],
    "fk_cache_fork": [c_void_p, c_int64, c_int64, _P(Failure)],
    "fk_cache_evict": [c_void_p, c_int64, c_int64, c_int64, _P(Failure)],
    "fk_cache_args": [c_void_p, _P(Args), _P(Prefix), _P(Failure)],
    "fk_cache_state": [c_void_p, _P(c_void_p), _P(c_int64), _P(Failure)],
    "fk_cancel_new": [_P(c_void_p), _P(Failure)],
    "fk_cancel_now": [c_void_p, _P(Failure)],
    "fk_cancel_free": [c_void_p, _P(Failure)],
}

_lock = threading.Lock()
_loaded: ctypes.CDLL | None = None


def library() -> ctypes.CDLL:
    """Return the library. It is FLASHKIT_LIBRARY, that of the wheel, or the system's."""
    global _loaded
    if _loaded is None:
        with _lock:
            if _loaded is None:
                _loaded = _load()
    return _loaded


def _load() -> ctypes.CDLL:
    own = pathlib.Path(__file__).with_name("libflashkit.so")
    name = os.environ.get("FLASHKIT_LIBRARY") or (str(own) if own.exists() else "libflashkit.so.0")
    try:
        lib = ctypes.CDLL(name)
        version, names = lib.fk_version, [getattr(lib, f) for f in _SIGNATURES]
    except (OSError, AttributeError) as e:
        raise _errors.UnavailableError(f"flashkit: the library {name} cannot be loaded: {e}", "FLASHKIT_LIBRARY") from e
    version.restype = c_char_p
    text = version().decode()
    (major, minor), (want, least) = ([int(x) for x in v.split(".")[:2]] for v in (text, _fields.VERSION))
    if name == str(own) and text != _fields.VERSION:
        raise _errors.UnavailableError(f"flashkit: {name} has version {text}, and the package has {_fields.VERSION}; install the package again", "FLASHKIT_LIBRARY")
    if major != want or minor < least:
        raise _errors.UnavailableError(f"flashkit: {name} has version {text}; this package needs {want}.{least} or newer of major {want}", "FLASHKIT_LIBRARY")
    for f, arguments in zip(names, _SIGNATURES.values()):
        f.argtypes, f.restype = arguments, c_int
    return lib


def call(name: str, *args: Any) -> None:
    """Call a function of the library, without Python's lock, and raise its error."""
    failure = Failure(size=ctypes.sizeof(Failure))
    code = getattr(library(), name)(*args, ctypes.byref(failure))
    if code:
        raise _errors.of_code(code)(failure.message.decode("utf-8", "replace"), failure.field.decode("utf-8", "replace"))


def text(name: str, *args: Any) -> list[list[str]]:
    """Return the lines of a text that the library writes, each split into its fields."""
    size, needed = 1 << 14, c_size_t()
    while True:
        buffer = ctypes.create_string_buffer(size)
        call(name, *args, buffer, size, ctypes.byref(needed))
        if needed.value < size:
            return [line.split("\t") for line in buffer.value.decode().splitlines()]
        size = needed.value + 1024
