"""Exceptions: one class for each error code of flashkit.h."""

from __future__ import annotations

import builtins


class Error(Exception):
    """What flashkit refuses, or fails at.

    ``field`` names what is at fault as flashkit.h does: ``"q.shape"``, ``"kv_lens[3]"``. It is
    empty where no field is. ``code`` is the FK_ERR_ number of the class.
    """

    code = 0

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class NullError(Error, ValueError):
    """A tensor that the call needs is missing."""

    code = 1


class HandleError(Error):
    """A Dispatcher or a Cancel that is closed."""

    code = 2


class SizeError(Error):
    """The library is older than this package, and does not know what was asked."""

    code = 3


class DimensionError(Error, ValueError):
    """A dimension makes no sense, or a tensor has not the shape of the problem."""

    code = 4


class HeadDimError(DimensionError):
    """The last dimension of a tensor, that of a head."""

    code = 5


class DTypeError(Error, TypeError):
    """The type of a tensor's elements, or what is no tensor."""

    code = 6


class StrideError(Error, ValueError):
    """The strides or the address of a tensor."""

    code = 7


class OverlapError(Error, ValueError):
    """An output shares memory with another tensor, or with itself."""

    code = 8


class OptionError(Error, ValueError):
    """Another value: window, scale, another number, lengths, pages, a name."""

    code = 9


class UnsupportedError(Error, NotImplementedError):
    """The problem is valid, but no kernel of the dispatcher takes it."""

    code = 10


class UnavailableError(Error, RuntimeError):
    """This machine lacks the library, the backend or the kernel."""

    code = 11


class OutOfMemoryError(Error, MemoryError):
    """Out of memory, of the host or of a device."""

    code = 12


class DriverError(Error, RuntimeError):
    """The driver of a device failed."""

    code = 13


class CanceledError(Error):
    """Cancel.now was called."""

    code = 14


class TimeoutError(Error, builtins.TimeoutError):
    """The call's timeout passed."""

    code = 15


class ForkedError(Error, RuntimeError):
    """The process is a fork of the one that loaded the library."""

    code = 16


class InternalError(Error, RuntimeError):
    """A defect of the library; please report it."""

    code = 17


def _all() -> dict[int, type[Error]]:
    return {c.code: c for c in globals().values() if isinstance(c, type) and issubclass(c, Error) and c.code}


_CLASSES = _all()


def of_code(code: int) -> type[Error]:
    """Return the class of a code; InternalError of one that this package does not know."""
    return _CLASSES.get(code, InternalError)
