"""The library's errors in the caller's words: Python's names, and arrays as they were given."""

from __future__ import annotations

import re
from typing import Any

from . import _errors

# Fields of flashkit.h that have another name in Python.
_NAMES = {
    "d": "backend", "left": "window", "right": "window", "timeout_ns": "timeout", "page": "pages", "pages_per_seq": "pages",
    "prefix.k": "prefix[0]", "prefix.v": "prefix[1]", "prefix.pages": "prefix[2]", "prefix.page_count": "prefix[2]", "prefix.len": "prefix[3]",
    "origin_batch": "origin", "origin_head": "origin", "origin_row": "origin", "origin_key": "origin",
}  # fmt: skip
_FOUR = re.compile(r"\[(\d+) (\d+) (\d+) (\d+)\]")
_ELEMENT = re.compile(r"^(.*)\[(\d+)\]$")


def _tuple(numbers: Any) -> str:
    return "(" + ", ".join(str(x) for x in numbers) + ("," if len(numbers) == 1 else "") + ")"


def spelled(e: _errors.Error, swap: bool, names: dict[str, str], arrays: dict[str, Any]) -> _errors.Error:
    """Return an error in the caller's words: names of this call's fields, arrays by field, and whether rows come before heads."""
    names = _NAMES | names
    root, rest = re.fullmatch(r"((?:prefix|config)\.\w+|\w*)(.*)", e.field, re.DOTALL).groups()  # type: ignore[union-attr]
    text, array = str(e), arrays.get(root)
    if array is not None and rest.startswith((".shape", ".strides")):
        order = _order(root, swap, len(array.shape))
        text = _FOUR.sub(lambda m: _tuple([m[1 + d] for d in order]), text)
        if (m := _ELEMENT.match(rest)) and int(m[2]) in order:
            rest = f"{m[1]}[{order.index(int(m[2]))}]"
    elif array is not None and root == "pages" and (m := _ELEMENT.match(rest)):
        rest = f"[{int(m[2]) // array.shape[1]}, {int(m[2]) % array.shape[1]}]"
    field = names.get(root, root) + rest
    if e.field and text.startswith(f"flashkit: {e.field}"):
        text = f"flashkit: {field}{text[len('flashkit: ') + len(e.field) :]}"
    text = re.sub(r"(?<=shares memory with )\w+", lambda m: names.get(m[0], m[0]), text)
    return type(e)(text, field)


def _order(field: str, swap: bool, dims: int) -> list[int]:
    """Return which of the library's four dimensions those of the caller's array are."""
    match field.removeprefix("d_"):
        case "lse" | "lse1" | "lse2" | "rowmax":
            return [0, 1, 2]
        case "bias" | "mask" | "ranges" | "keymass":
            return [0, 1, 2, 3][4 - dims :]
        case "slopes" | "sink":
            return [0, 1][2 - dims :]
    return [0, 2, 1, 3] if swap else [0, 1, 2, 3]
