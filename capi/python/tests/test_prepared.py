"""Repeated calls of NumPy arrays, which set new addresses only."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import flashkit
from flashkit import _prepared


@pytest.fixture
def d():
    with flashkit.Dispatcher(frozen=True) as d:
        yield d


def problem(rng, b=2, h=4, g=2, n=5, m=7, d=16, dv=8):
    normal = lambda *s: rng.standard_normal(s).astype(np.float32)
    return normal(b, h, n, d), normal(b, g, m, d), normal(b, g, m, dv)


OPTIONS = {
    "plain": {}, "causal": {"causal": True}, "window": {"window": (3, 0)}, "numbers": {"scale": 0.3, "softcap": 5.0}, "shift": {"causal": True, "shift": 1, "top_left": True},
    "bias": {"bias": (5, 7)}, "mask": {"mask": (2, 1, 1, 7)}, "slopes": {"slopes": (4,)}, "sink": {"sink": (4,)}, "all": {"bias": (4, 5, 7), "mask": (5, 7), "slopes": (2, 4), "sink": (4,)},
    "dropout": {"dropout": 0.25, "seed": 3}, "lengths": {"kv_lens": [3, 7]}, "one worker": {"workers": 1},
}  # fmt: skip


@pytest.mark.parametrize("form", OPTIONS)
def test_same_bits_as_the_first_call(rng, d, form, monkeypatch):
    def draw():
        given = {}
        for name, x in OPTIONS[form].items():
            if name == "mask":
                x = rng.random(x) < 0.8
            elif isinstance(x, tuple) and name != "window":
                x = rng.standard_normal(x).astype(np.float32)
            given[name] = x
        return problem(rng), given

    for _ in range(4):
        (q, k, v), given = draw()
        want_grad = {"d_bias": "bias" in given, "d_sink": "sink" in given}
        got = flashkit.attention(q, k, v, backend=d, return_lse=True, **given)
        do = rng.standard_normal(got[0].shape).astype(np.float32)
        g = flashkit.attention_backward(do, q, k, v, *got, backend=d, **want_grad, **given)
        with monkeypatch.context() as m:
            m.setattr(_prepared, "_works", False)
            expected = flashkit.attention(q, k, v, backend=d, return_lse=True, **given)
            h = flashkit.attention_backward(do, q, k, v, *expected, backend=d, **want_grad, **given)
        for a, b in zip((*got, *g), (*expected, *h)):
            assert a is b is None or np.array_equal(a, b)
    assert bool(d._prepared) == (form not in ("dropout", "lengths"))


def test_repeated_calls_are_kept(rng, d, monkeypatch):
    q, k, v = problem(rng)
    flashkit.attention(q, k, v, backend=d)
    monkeypatch.setattr(flashkit._dispatcher, "Call", None)  # what describes a call anew
    flashkit.attention(*problem(rng), backend=d)
    with pytest.raises(TypeError):
        flashkit.attention(q, k[:, :, :6], v[:, :, :6], backend=d)


def test_out(rng, d):
    q, k, v = problem(rng)
    for _ in range(3):
        out, lse = np.full((2, 4, 5, 8), np.nan, np.float32), np.full((2, 4, 5), np.nan, np.float32)
        r = flashkit.attention(q, k, v, out=out, lse=lse, return_lse=True, backend=d)
        assert r[0] is out and r[1] is lse and np.isfinite(out).all() and np.isfinite(lse).all()
    out.flags.writeable = False
    with pytest.raises(flashkit.OptionError, match="read-only"):
        flashkit.attention(q, k, v, out=out, lse=lse, backend=d)
    with pytest.raises(flashkit.OverlapError):
        flashkit.attention(q, k, v[..., :8].copy(), out=q[..., :8], backend=d)


def test_errors_are_those_of_the_first_call(rng, d):
    q, k, v = problem(rng)
    texts = []
    for _ in range(3):
        for arrays, options in (((q, k[:, :, :6], v), {}), ((q, k, v), {"scale": -1.0}), ((q, k, v), {"window": [3, 0, 1]}), ((q, k, v), {"causal": "no"})):
            with pytest.raises(flashkit.Error) as caught:
                flashkit.attention(*arrays, backend=d, **options)
            texts.append((type(caught.value), str(caught.value), caught.value.field))
    assert texts[:4] == texts[4:8] == texts[8:]
    flashkit.attention(q, k, v, scale=1.0, causal=True, shift=1, window=(1, 0), backend=d)
    for wrong in ({"scale": True}, {"shift": True}, {"window": (True, 0)}, {"causal": 1.0}):
        with pytest.raises(flashkit.OptionError):
            flashkit.attention(q, k, v, backend=d, **{"scale": 1.0, "causal": True, "shift": 1, "window": (1, 0)} | wrong)


def test_closed(rng):
    q, k, v = problem(rng)
    d = flashkit.Dispatcher()
    flashkit.attention(q, k, v, backend=d)
    flashkit.attention(q, k, v, backend=d)
    d.close()
    with pytest.raises(flashkit.HandleError):
        flashkit.attention(q, k, v, backend=d)


def test_bounded(rng, d):
    q, k, v = problem(rng)
    for i in range(3 * _prepared._MOST):
        flashkit.attention(q, k, v, scale=0.1 + i * 1e-4, backend=d)
    assert len(d._prepared) <= _prepared._MOST


def test_threads(rng, d):
    problems = [problem(rng) for _ in range(16)]
    expected = [flashkit.attention(*p, backend=d) for p in problems]

    def work(i):
        return all(np.array_equal(flashkit.attention(*problems[j % 16], backend=d), expected[j % 16]) for j in range(i, i + 200))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(16)))
