"""flashkit.attention on NumPy's arrays, beside the float64 reference of tools/check_vectors.py."""

import math
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import check_vectors
import numpy as np
import pytest

import flashkit

F32 = 2.0**-24


def problem(b, h, g, n, m, d, dv, **changes):
    p = SimpleNamespace(
        B=b, H=h, G=g, N=n, M=m, D=d, DV=dv, scale=1 / math.sqrt(d), left=math.inf, right=math.inf, topleft=False, shift=0,
        softcap=0.0, dropout=0.0, gradients=True,
    )  # fmt: skip
    p.__dict__.update(changes)
    p.shapes = {"o": (b, h, n, dv), "lse": (b, h, n), "dq": (b, h, n, d), "dk": (b, g, m, d), "dv": (b, g, m, dv)}
    return p


def draw(rng, p, dtype=np.float32):
    shapes = {"q": (p.B, p.H, p.N, p.D), "k": (p.B, p.G, p.M, p.D), "v": (p.B, p.G, p.M, p.DV), "do": (p.B, p.H, p.N, p.DV), "dlse": (p.B, p.H, p.N)}
    return {name: rng.standard_normal(s).astype(np.float32 if name == "dlse" else dtype) for name, s in shapes.items()}


def want(p, x, seed=0, **features):
    doubles = {name: a.astype(np.float64) for name, a in (x | features).items()}
    return check_vectors.attention(p, doubles, seed)[0]


def close(got, expected, unit=F32, factor=64):
    assert got.shape == expected.shape
    expected = expected.astype(np.float64)
    same = got.astype(np.float64) == expected
    with np.errstate(invalid="ignore"):
        gap = np.where(same, 0, np.abs(got.astype(np.float64) - expected))
    finite = np.abs(expected[np.isfinite(expected)]).max(initial=1)
    assert gap.max(initial=0) <= factor * unit * finite, f"off by {gap.max()}, {factor * unit * finite} allowed"


def poisoned(*shape, dtype=np.float32):
    return np.full(shape, np.nan, dtype)


FORMS = {
    "plain": ({}, {}, ()),
    "causal": ({"right": 0}, {"causal": True}, ()),
    "top_left": ({"right": 0, "topleft": True}, {"causal": True, "top_left": True}, ()),
    "window": ({"left": 3, "right": 2}, {"window": (3, 2)}, ()),
    "causal_window": ({"left": 3, "right": 0}, {"window": (3, None), "causal": True}, ()),
    "shift": ({"right": 0, "shift": -4}, {"causal": True, "shift": -4}, ()),
    "scale": ({"scale": 0.25}, {"scale": 0.25}, ()),
    "softcap": ({"softcap": 2.0}, {"softcap": 2.0}, ()),
    "dropout": ({"dropout": 0.25}, {"dropout": 0.25, "seed": 2**64 - 5}, ()),
    "bias": ({}, {}, ("bias",)),
    "mask": ({}, {}, ("mask",)),
    "slopes": ({"right": 0}, {"causal": True}, ("slopes",)),
    "sink": ({}, {}, ("sink",)),
    "origin": ({"dropout": 0.25, "first": (1, 3, 1000, 40)}, {"dropout": 0.25, "seed": 9, "origin": (1, 3, 1000, 40)}, ()),
    "all": ({"right": 0, "softcap": 3.0, "dropout": 0.5}, {"causal": True, "softcap": 3.0, "dropout": 0.5, "seed": 7}, ("bias", "mask", "slopes", "sink")),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_both_passes(rng, form, layout):
    of_reference, keywords, features = FORMS[form]
    p = problem(2, 4, 2, 9, 13, 16, 24, **of_reference)
    x = draw(rng, p)
    four = {
        "bias": rng.standard_normal((1, p.H, p.N, p.M)).astype(np.float32), "mask": rng.random((p.B, 1, p.N, p.M)) < 0.7,
        "slopes": 2.0 ** -np.arange(1, p.H + 1, dtype=np.float32).reshape(1, p.H, 1, 1), "sink": rng.standard_normal((1, p.H, 1, 1)).astype(np.float32),
    }  # fmt: skip
    four = {name: four[name] for name in features}
    given = {name: a.reshape(p.H) if name in ("slopes", "sink") else a for name, a in four.items()}
    expected = want(p, x, keywords.get("seed", 0), **four)
    lay = (lambda a: np.ascontiguousarray(a.swapaxes(1, 2))) if layout == "bshd" else (lambda a: a)
    back = (lambda a: a.swapaxes(1, 2)) if layout == "bshd" else (lambda a: a)
    options = keywords | given | {"layout": layout}
    q, k, v, do = (lay(x[name]) for name in ("q", "k", "v", "do"))
    out, lse = poisoned(*lay(expected["o"]).shape), poisoned(p.B, p.H, p.N)
    got = flashkit.attention(q, k, v, out=out, lse=lse, return_lse=True, **options)
    assert got[0] is out and got[1] is lse
    close(back(out), expected["o"])
    close(lse, expected["lse"])
    g = flashkit.attention_backward(do, q, k, v, out, lse, d_lse=x["dlse"], d_bias="bias" in given, d_sink="sink" in given, **options)
    for a, name in ((g.d_q, "dq"), (g.d_k, "dk"), (g.d_v, "dv")):
        close(back(a), expected[name], factor=512)
    if "bias" in given:
        close(g.d_bias, expected["dbias"], factor=512)
    if "sink" in given:
        close(g.d_sink, expected["dsink"].reshape(p.H), factor=512)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "uint16"])
def test_types(rng, dtype):
    half = np.dtype(np.float16) if dtype == "float16" else np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    p = problem(1, 2, 1, 5, 7, 8, 8)
    x = draw(rng, p, half)
    expected = want(p, x)
    name = "bfloat16" if dtype == "uint16" else None
    q, k, v = (x[n].view(np.uint16) if name else x[n] for n in ("q", "k", "v"))
    o, lse = flashkit.attention(q, k, v, dtype=name, return_lse=True)
    assert o.dtype == q.dtype and lse.dtype == np.float32
    close(o.view(half), expected["o"], 2.0**-11 if dtype == "float16" else 2.0**-8, 4)
    mixed = flashkit.attention(x["q"].astype(np.float32), x["k"], x["v"])
    assert mixed.dtype == np.float32
    close(mixed, expected["o"])


def test_strides_pass_through(rng):
    p = problem(2, 4, 4, 6, 6, 8, 8)
    x = draw(rng, p)
    packed = np.full((2, 6, 3, 4, 16), np.nan, np.float32)  # Q, K and V as parts of one projection, with a gap after each row
    for i, name in enumerate("qkv"):
        packed[:, :, i, :, :8] = x[name].swapaxes(1, 2)
    q, k, v = (packed[:, :, i, :, :8] for i in range(3))
    close(flashkit.attention(q, k, v, layout="bshd").swapaxes(1, 2), want(p, x)["o"])
    one = np.broadcast_to(x["k"][:, :1], x["k"].shape)  # repeated by stride 0
    close(flashkit.attention(x["q"], one, x["v"]), want(p, x | {"k": one})["o"])


def test_padded_packed_and_paged(rng):
    p = problem(3, 2, 1, 5, 8, 8, 8, right=0)
    x = draw(rng, p)
    n, m = rng.integers(1, 6, 3), rng.integers(1, 9, 3)
    lens = {"q_lens": n.reshape(3, 1, 1, 1), "kv_lens": m.reshape(3, 1, 1, 1)}
    expected = want(p, x, **lens)
    o, lse = flashkit.attention(x["q"], x["k"], x["v"], causal=True, q_lens=n, kv_lens=list(m), return_lse=True)
    close(o, expected["o"])
    close(lse, expected["lse"])
    rows = lambda a, lens: np.concatenate([a[b, :, : lens[b]] for b in range(3)], axis=1)[None]
    starts = lambda lens: np.concatenate([[0], np.cumsum(lens)])
    tail = np.full((1, 2, 2, 8), np.nan, np.float32)
    q = np.concatenate([rows(x["q"], n), tail], axis=2)
    packed = {"causal": True, "q_starts": starts(n), "kv_starts": starts(m)}
    o, lse = flashkit.attention(q, rows(x["k"], m), rows(x["v"], m), return_lse=True, **packed)
    close(o[:, :, :-2], rows(expected["o"], n))
    assert (o[:, :, -2:] == 0).all() and (lse[:, :, -2:] == -np.inf).all()
    do = np.concatenate([rows(x["do"], n), tail], axis=2)
    g = flashkit.attention_backward(do, q, rows(x["k"], m), rows(x["v"], m), o, lse, **packed)
    want_g = want(p, {name: a for name, a in x.items() if name != "dlse"}, **lens)
    close(g.d_q[:, :, :-2], rows(want_g["dq"], n), factor=512)
    close(g.d_k, rows(want_g["dk"], m), factor=512)
    whole = [rows(x[name], n if name in ("q", "do") else m) for name in ("do", "q", "k", "v")]  # no row outside all sequences
    o, lse = flashkit.attention(*whole[1:], return_lse=True, **packed)
    close(o, rows(expected["o"], n))
    g = flashkit.attention_backward(*whole, o, lse, **packed)
    close(g.d_q, rows(want_g["dq"], n), factor=512)
    pages = rng.permutation(6).reshape(3, 2)
    pool = {name: np.full((6, 1, 4, 8), np.nan, np.float32) for name in "kv"}
    for b in range(3):
        for i in range(2):
            for name in "kv":
                pool[name][pages[b, i]] = x[name][b, :, 4 * i : 4 * i + 4]
    o = flashkit.attention(x["q"], pool["k"], pool["v"], causal=True, q_lens=n, kv_lens=m, pages=pages)
    close(o, expected["o"])


def test_pages_that_are_not_read(rng):
    """What the lengths do not reach may be any number: in every kernel, table and binding."""
    x = draw(rng, problem(3, 2, 1, 2, 16, 8, 8))
    pool = {name: x[name].reshape(3, 1, 4, 4, 8).swapaxes(1, 2).reshape(12, 1, 4, 8) for name in "kv"}
    pages, lens = np.arange(12, dtype=np.int32).reshape(3, 4), np.array([5, 16, 0])
    expected = want(problem(3, 2, 1, 2, 16, 8, 8), x, kv_lens=lens.reshape(3, 1, 1, 1))["o"]
    read = np.array([[True] * -(-n // 4) + [False] * (4 - -(-n // 4)) for n in lens])
    ran = 0
    for unread in (-1, 99999, -(2**31), 2**31 - 1, 2**40, -(2**62)):
        table = np.where(read, pages, unread)
        close(flashkit.attention(x["q"], pool["k"], pool["v"], pages=table, kv_lens=lens), expected)
        if unread not in (-1, 2**31 - 1):
            continue
        table = table.astype(np.int32)
        for kernel in flashkit.kernels():
            try:
                o = flashkit.attention(x["q"], pool["k"], pool["v"], pages=table, kv_lens=lens, backend=kernel.name)
            except (flashkit.UnsupportedError, flashkit.UnavailableError):
                continue
            close(o, expected)
            ran += 1
    assert ran >= 2
    torch = pytest.importorskip("torch")
    import flashkit.torch as ft

    given = [torch.from_numpy(a) for a in (x["q"], pool["k"], pool["v"], np.where(read, pages, -1), lens)]
    o = ft.attention(*given[:3], pages=given[3], kv_lens=given[4])
    close(o.numpy(), expected)


def test_carry_and_merge(rng):
    p = problem(2, 2, 2, 4, 12, 8, 8)
    x = draw(rng, p)
    expected, q = want(p, x), x["q"]
    halves = [flashkit.attention(q, x["k"][:, :, s], x["v"][:, :, s], return_lse=True) for s in (slice(0, 5), slice(5, 12))]
    o, lse = flashkit.merge(*halves[0], *halves[1])
    close(o, expected["o"])
    close(lse, expected["lse"])
    o, lse = (a.copy() for a in halves[0])
    flashkit.attention(q, x["k"][:, :, 5:], x["v"][:, :, 5:], out=o, lse=lse, carry=True)
    close(o, expected["o"])
    close(lse, expected["lse"])


def test_dlpack(rng):
    class Array:
        def __init__(self, a):
            self.a = a

        def __dlpack__(self, **keywords):
            return self.a.__dlpack__(**keywords)

        def __dlpack_device__(self):
            return self.a.__dlpack_device__()

    p = problem(1, 1, 1, 3, 4, 8, 8)
    x = draw(rng, p)
    close(flashkit.attention(*(Array(x[name]) for name in "qkv")), want(p, x)["o"])


def test_threads(rng):
    p = problem(2, 4, 4, 40, 50, 16, 16)
    xs = [draw(rng, p) for _ in range(8)]
    with flashkit.Dispatcher(frozen=True) as d:
        alone = [flashkit.attention(x["q"], x["k"], x["v"], backend=d) for x in xs]

        def work(i):
            x = xs[i]
            return [flashkit.attention(x["q"], x["k"], x["v"], backend=d) for _ in range(20)]

        with ThreadPoolExecutor(8) as pool:
            for first, several in zip(alone, pool.map(work, range(8))):
                assert all((first == o).all() for o in several)


def test_any_order(rng):
    x = draw(rng, problem(1, 2, 2, 20, 30, 16, 16))
    o, lse = flashkit.attention(x["q"], x["k"], x["v"], return_lse=True)
    passed = [x["do"], x["q"], x["k"], x["v"], o, lse]
    expected = flashkit.attention_backward(*passed)
    with flashkit.Dispatcher(any_order=True) as d:  # any_order changes nothing for tensors in host memory
        for a, b in zip(flashkit.attention_backward(*passed, backend=d)[:3], expected[:3]):
            assert (a == b).all()


def test_questions(rng):
    x = draw(rng, problem(1, 2, 2, 8, 8, 16, 16))
    names = {k.name for k in flashkit.kernels() if not k.missing}
    for backward in (False, True):
        verdicts = flashkit.explain(x["q"], x["k"], x["v"], causal=True, backward=backward)
        chosen = [v for v in verdicts if v.chosen]
        assert len(chosen) == 1 and chosen[0].name in names and chosen[0].seconds > 0
    assert flashkit.workspace(x["q"], x["k"], x["v"]).host >= 0
    kernel = next(v.name for v in flashkit.explain(x["q"], x["k"], x["v"], backend="simd") if v.chosen)
    close(flashkit.attention(x["q"], x["k"], x["v"], backend=kernel), flashkit.attention(x["q"], x["k"], x["v"]))


def test_the_result_with_lse_is_that_of_training(rng):
    q, k, v = (rng.standard_normal((1, 4, n, 64)).astype(np.float32) for n in (1, 300, 300))
    one = {name: flashkit.Dispatcher("simd", frozen=True, blank=True, **({} if name == "frozen" else {name: True})) for name in ("paired", "unpaired", "frozen")}
    got = {name: flashkit.attention(q, k, v, return_lse=True, backend=d) for name, d in one.items()}
    for i in range(2):
        np.testing.assert_array_equal(got["frozen"][i], got["paired"][i])
        np.testing.assert_allclose(got["unpaired"][i], got["paired"][i], rtol=1e-5, atol=1e-6)
    plain = {name: flashkit.attention(q, k, v, backend=d) for name, d in one.items()}
    np.testing.assert_array_equal(plain["frozen"], plain["unpaired"])
    np.testing.assert_array_equal(plain["unpaired"], got["unpaired"][0])
    with pytest.raises(flashkit.Error, match="flags"):
        flashkit.Dispatcher(paired=True, unpaired=True)


def test_ranges_give_the_bits_of_a_mask():
    r = np.random.default_rng()
    q, k, v, d_o = (r.standard_normal((2, 3, 9, 16), np.float32) for _ in range(4))
    ends = np.sort(r.integers(0, 10, (2, 1, 9, 4)).astype(np.int32), -1)
    keys = np.arange(9)
    mask = ((ends[..., 0:1] <= keys) & (keys < ends[..., 1:2])) | ((ends[..., 2:3] <= keys) & (keys < ends[..., 3:4]))
    by = {"ranges": ends}, {"mask": mask}
    (o, lse), (o2, lse2) = (flashkit.attention(q, k, v, return_lse=True, backend="simd/fwd_generic", **x) for x in by)
    assert np.array_equal(o, o2) and np.array_equal(lse, lse2)
    first, second = (flashkit.attention_backward(d_o, q, k, v, o, lse, backend="simd/bwd_generic", **x) for x in by)
    assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(first[:3], second[:3], strict=True))
    with pytest.raises(flashkit.DTypeError, match="ranges.dtype = int64"):
        flashkit.attention(q, k, v, ranges=ends.astype(np.int64))
    with pytest.raises(flashkit.DTypeError, match="q.dtype = int32"):
        flashkit.attention(q.astype(np.int32), k, v)
    ends[1, 0, 8, 3] = 10
    with pytest.raises(flashkit.Error, match=r"ranges\[1\]\[0\]\[8\]\[3\]"):
        flashkit.attention(q, k, v, ranges=ends)
