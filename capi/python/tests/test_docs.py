"""The code of the guide and of the README runs, and the error is the one that the guide shows."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", ["docs/bindings.md", "capi/python/README.md"])
def test_code(name, capsys):
    pytest.importorskip("torch")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)
    assert len(blocks) >= 2
    names = {}
    for block in blocks:
        exec(block, names)
    printed = capsys.readouterr().out
    comments = [line.split("  # ", 1)[1] for block in blocks for line in block.splitlines() if "print(" in line and "  # " in line]
    for said in comments:
        assert said in printed, f"{said!r} is not in {printed!r}"
    assert "flashkit: 1" in printed
