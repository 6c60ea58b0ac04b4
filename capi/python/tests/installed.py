"""Run by guide.sh in an environment that holds the wheel and NumPy alone: the guide's code prints what the guide says."""

import contextlib
import io
import pathlib
import re
import subprocess
import sys

import numpy as np

import flashkit

assert pathlib.Path(flashkit.__file__).is_relative_to(sys.prefix), flashkit.__file__
names, ran = {}, 0
for block in re.findall(r"```python\n(.*?)```", pathlib.Path(sys.argv[1]).read_text(), re.DOTALL):
    if "torch" in block:
        continue
    ran += 1
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(block, names)
    for line in block.splitlines():
        if "print(" in line and "  # " in line:
            said = line.split("  # ", 1)[1]
            assert said in printed.getvalue(), f"{said!r} is not in {printed.getvalue()!r}"
assert ran >= 2, ran
r = np.random.default_rng()
q, k, v = (r.standard_normal((2, 4, n, 32)).astype(np.float32) for n in (5, 9, 9))
o = flashkit.attention(q, k, v)
s = np.exp(q.astype(np.float64) @ k.swapaxes(-1, -2) / np.sqrt(32))
error = np.abs(o - s / s.sum(-1, keepdims=True) @ v).max()
assert error < 1e-5, error


def refused(code: str, text: str) -> None:
    r = subprocess.run([sys.executable, "-c", "import flashkit; " + code], capture_output=True, text=True)
    assert r.returncode == 1 and text in r.stderr, (code, r.stderr)


refused("flashkit._fields.VERSION = '0.1.9999'; flashkit.kernels()", f"has version {flashkit.__version__}, and the package has 0.1.9999")
other = pathlib.Path(flashkit.__file__).parents[1] / "flashkit-1.0.6.dist-info"
other.mkdir()
refused("", f"ImportError: flashkit: {other} is another project")
other.rmdir()
print(f"installed: {flashkit.__version__}, {len(flashkit.kernels())} kernels, error {error:.2g}")
