"""What the library holds for Python's objects."""

from __future__ import annotations

import ctypes
from typing import Any

from . import _abi, _errors


class Handle:
    """What the library holds for an object. It is of this process, and a copy is the object itself."""

    _free: str  # name of the library's function that closes the handle
    _what: str  # name of the handle in the field of an error

    def _take(self) -> int:
        handle: int | None = vars(self).get("_handle")
        if handle is None:
            raise _errors.HandleError(f"flashkit: {self._what}: the {type(self).__name__} is closed", self._what)
        return handle

    def _end(self) -> None:
        handle = vars(self).pop("_handle", None)  # only one thread gets the handle
        if handle is not None:
            _abi.call(self._free, handle)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __del__(self) -> None:
        try:
            self._end()
        except Exception:  # raised when the interpreter ends, or after a fork
            pass


class Cancel(Handle):
    """Ends calls from another thread: pass it to them, and call now. Any thread may.

    A copy is the same Cancel. It cannot be pickled, as it ends calls of its own process.
    """

    _free, _what = "fk_cancel_free", "cancel"
    _called = False

    def __init__(self) -> None:
        handle = ctypes.c_void_p()
        _abi.call("fk_cancel_new", ctypes.byref(handle))
        self._handle = handle.value

    def now(self) -> None:
        """End the calls that hold it, also those that begin later, with CanceledError."""
        _abi.call("fk_cancel_now", self._take())
        self._called = True

    def __reduce__(self) -> Any:
        raise TypeError("flashkit: a Cancel cannot be pickled: it ends calls of its own process")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{', now was called' * self._called}>"
