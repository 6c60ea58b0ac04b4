"""Random problems, and the NumPy reference of the golden vectors."""

import os
import pathlib
import sys

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tools"))

SEED = int(os.environ.get("FLASHKIT_SEED") or np.random.default_rng().integers(2**31))


def pytest_report_header():
    return f"FLASHKIT_SEED={SEED}"


@pytest.fixture
def rng():
    return np.random.default_rng(SEED)


@pytest.fixture
def randn(rng):
    """Return torch.randn with the tests' seed, for those that PyTorch is there for."""
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    return lambda *shape, **keywords: torch.randn(*shape, generator=generator).to(**keywords)
