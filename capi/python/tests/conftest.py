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
