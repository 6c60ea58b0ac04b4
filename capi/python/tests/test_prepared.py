"""Repeated calls of NumPy arrays and PyTorch tensors, which set new addresses only."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import flashkit
from flashkit import _prepared


@pytest.fixture
def d():
    with flashkit.Dispatcher(frozen=True) as d:
        yield d


@pytest.fixture(params=["NumPy", "PyTorch"])
def of(request):
    """Return the function that makes an array of the package from NumPy's."""
    return np.asarray if request.param == "NumPy" else pytest.importorskip("torch").from_numpy


def problem(rng, b=2, h=4, g=2, n=5, m=7, d=16, dv=8):
    normal = lambda *s: rng.standard_normal(s).astype(np.float32)
    return normal(b, h, n, d), normal(b, g, m, d), normal(b, g, m, dv)


OPTIONS = {
    "plain": {}, "causal": {"causal": True}, "window": {"window": (3, 0)}, "numbers": {"scale": 0.3, "softcap": 5.0}, "shift": {"causal": True, "shift": 1, "top_left": True},
    "bias": {"bias": (5, 7)}, "mask": {"mask": (2, 1, 1, 7)}, "slopes": {"slopes": (4,)}, "sink": {"sink": (4,)}, "all": {"bias": (4, 5, 7), "mask": (5, 7), "slopes": (2, 4), "sink": (4,)},
    "dropout": {"dropout": 0.25, "seed": 3}, "lengths": {"kv_lens": [3, 7]}, "one worker": {"workers": 1},
}  # fmt: skip


@pytest.mark.parametrize("form", OPTIONS)
def test_same_bits_as_the_first_call(rng, d, form, of, monkeypatch):
    def draw():
        given = {}
        for name, x in OPTIONS[form].items():
            if name == "mask":
                x = of(rng.random(x) < 0.8)
            elif isinstance(x, tuple) and name != "window":
                x = of(rng.standard_normal(x).astype(np.float32))
            given[name] = x
        return map(of, problem(rng)), given

    for _ in range(4):
        (q, k, v), given = draw()
        want_grad = {"d_bias": "bias" in given, "d_sink": "sink" in given}
        got = flashkit.attention(q, k, v, backend=d, return_lse=True, **given)
        do = of(rng.standard_normal(got[0].shape).astype(np.float32))
        g = flashkit.attention_backward(do, q, k, v, *got, backend=d, **want_grad, **given)
        with monkeypatch.context() as m:
            m.setattr(_prepared, "_works", False)
            expected = flashkit.attention(q, k, v, backend=d, return_lse=True, **given)
            h = flashkit.attention_backward(do, q, k, v, *expected, backend=d, **want_grad, **given)
        for a, b in zip((*got, *g), (*expected, *h)):
            assert a is b is None or type(a) is type(b) is type(do) and np.array_equal(a, b)
    assert bool(d._prepared) == (form not in ("dropout", "lengths"))


def test_repeated_calls_are_kept(rng, d, of, monkeypatch):
    q, k, v = map(of, problem(rng))
    flashkit.attention(q, k, v, backend=d)
    flashkit.attention(q, k, v, backend=d)  # PyTorch may be unknown before the first call
    monkeypatch.setattr(flashkit._dispatcher, "Call", None)  # what describes a call anew
    flashkit.attention(*map(of, problem(rng)), backend=d)
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


def test_tensors_that_are_not_kept(rng, d, randn):
    """A tensor with a gradient, a transform, a tangent or other memory gets no kept call of a plain tensor."""
    import torch

    q = randn(1, 2, 3, 4)
    for _ in range(3):
        flashkit.attention(q, q, q, backend=d)
    plain = flashkit.attention(q, q, q, backend=d)
    r = q.clone().requires_grad_()
    with pytest.raises(flashkit.OptionError, match="requires a gradient"):
        flashkit.attention(r, q, q, backend=d)
    with torch.no_grad():
        assert torch.equal(flashkit.attention(r, q, q, backend=d), plain)
    with pytest.raises(flashkit.Error):
        torch.func.vmap(lambda x: flashkit.attention(x, x, x, backend=d))(q[None])
    with torch.autograd.forward_ad.dual_level(), pytest.raises(flashkit.UnsupportedError):
        flashkit.attention(torch.autograd.forward_ad.make_dual(q, q), q, q, backend=d)
    negative = torch._neg_view(q)
    with pytest.raises(flashkit.StrideError):
        flashkit.attention(negative, q, q, backend=d)
    for other in (q.to_sparse(), q.to_mkldnn(), torch.nested.nested_tensor([torch.ones(2, 3, 4)]), q.to("meta"), q.double()):
        with pytest.raises((flashkit.Error, RuntimeError)):
            flashkit.attention(other, q, q, backend=d)
    for strides in ((24, 4, 8, 1), (24, 12, 4, 1), (0, 0, 4, 1)):  # each has its own call
        x = torch.randn(64).as_strided(q.shape, strides)
        for _ in range(2):
            got = flashkit.attention(x, q, q, backend=d)
            assert torch.equal(got, flashkit.attention(x.contiguous(), q, q, backend=d)) and got.is_contiguous()


@pytest.mark.parametrize("kept", [False, True])
def test_traced(d, randn, kept):
    """A graph of PyTorch's tracers would have the memory of O, but not the call that writes it."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    q = randn(1, 2, 3, 4)
    for _ in range(3 * kept):
        flashkit.attention(q, q, q, backend=d)
    f = lambda x: flashkit.attention(x, x, x, backend=d)
    with pytest.raises(flashkit.UnsupportedError, match="traces"):
        torch.jit.trace(f, q)
    with pytest.raises(flashkit.UnsupportedError, match="traces"):
        make_fx(f)(q)
    with pytest.raises(flashkit.UnsupportedError, match="traces"):
        make_fx(lambda x: flashkit.attention_backward(x, x, x, x, x, x[..., 0].contiguous(), backend=d)[0])(q)
    assert torch.allclose(torch.compile(f, backend="eager")(q), f(q))


def test_outputs_of_tensors(rng, d, randn):
    import torch

    q = randn(1, 2, 3, 4)
    for _ in range(4):
        out, lse = torch.full((1, 2, 3, 4), torch.nan), torch.full((1, 2, 3), torch.nan)
        r = flashkit.attention(q, q, q, out=out, lse=lse, return_lse=True, backend=d)
        assert r[0] is out and r[1] is lse and out.isfinite().all() and lse.isfinite().all()
        assert out._version == lse._version == 1  # autograd sees the change
    with torch.inference_mode():
        assert torch.equal(flashkit.attention(q, q, q, backend=d), out)


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
