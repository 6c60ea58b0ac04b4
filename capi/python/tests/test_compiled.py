"""The compiled part of flashkit.torch: it computes what it should, and leaves the rest to Python."""

import multiprocessing
import os
import pathlib
import re
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import flashkit  # noqa: E402
import flashkit.torch as ft  # noqa: E402
from flashkit import _compiled, _operators  # noqa: E402

pytestmark = pytest.mark.skipif(
    not pathlib.Path(os.environ.get("FLASHKIT_LIBRARY") or _compiled.__file__).with_name("_torch.so").exists(), reason="there is no compiled part"
)


@pytest.fixture
def python(monkeypatch):
    """Count the calls that Python computes."""
    seen, plain = [], _operators._options
    monkeypatch.setattr(_operators, "_options", lambda shared: seen.append(shared) or plain(shared))
    return seen


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def draw(rng):
    """Return random q, k, v and options, with features, layouts and types."""
    pick = lambda *x: x[int(rng.integers(len(x)))]
    b, g, d, dv = int(rng.integers(1, 4)), int(rng.integers(1, 4)), int(rng.integers(1, 70)), int(rng.integers(1, 70))
    h, n, m, dtype = g * int(rng.integers(1, 4)), int(rng.integers(1, 60)), int(rng.integers(1, 60)), pick(torch.float32, torch.float32, torch.bfloat16, torch.float16)
    randn = lambda *s: torch.from_numpy(rng.standard_normal(s).astype(np.float32))
    o = {"layout": pick("bhsd", "bshd")}
    shape = lambda heads, rows, row: (b, heads, rows, row) if o["layout"] == "bhsd" else (b, rows, heads, row)
    q, k, v = (randn(*s).to(dtype) for s in (shape(h, n, d), shape(g, m, d), shape(g, m, dv)))
    if rng.random() < 0.3:  # other strides: heads and rows exchanged, or elements not contiguous
        q = q.transpose(1, 2).contiguous().transpose(1, 2) if rng.random() < 0.5 else q.mT.contiguous().mT
    band = pick("none", "none", "causal", "causal", "window")
    if band == "causal":
        o |= {"causal": True, "top_left": bool(rng.random() < 0.5)}
    elif band == "window":
        o |= {"window": (pick(None, int(rng.integers(0, 30))), int(rng.integers(0, 30))), "shift": int(rng.integers(-3, 4))}
    if rng.random() < 0.5:
        o["scale"] = float(rng.uniform(0.05, 0.5))
    if rng.random() < 0.3:
        o["softcap"] = float(rng.uniform(1, 10))
    if rng.random() < 0.3:
        o["bias"] = randn(*pick((n, m), (h, 1, m), (b, 1, n, m), (b, h, n, m)))
    if rng.random() < 0.3:
        o["mask"] = torch.from_numpy(rng.random(pick((n, m), (b, 1, 1, m), (b, h, n, m))) < 0.8)
    if rng.random() < 0.2:
        o["slopes"] = torch.from_numpy(rng.random(pick((h,), (b, h))).astype(np.float32))
    if rng.random() < 0.2:
        o["sink"] = randn(h)
    if rng.random() < 0.2:
        o["kv_lens"] = torch.from_numpy(rng.integers(0, m + 1, b))
    return q, k, v, o


def reference(q, k, v, o):
    """Return O and LSE in float64 by PyTorch's operators."""
    if o["layout"] == "bshd":
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    groups, (n, m) = q.shape[1] // k.shape[1], (q.shape[2], k.shape[2])
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    s = q @ k.mT * o.get("scale", q.shape[-1] ** -0.5)
    if "softcap" in o:
        s = o["softcap"] * (s / o["softcap"]).tanh()
    ends = o["kv_lens"] if "kv_lens" in o else torch.full((q.shape[0],), m)
    off = (torch.zeros_like(ends) if o.get("top_left") else ends - n) + o.get("shift", 0)
    rows, keys = torch.arange(n)[:, None], torch.arange(m)
    away = keys - rows - off[:, None, None, None]
    if "bias" in o:
        s = s + o["bias"]
    if "slopes" in o:
        s = s - o["slopes"].to(s.dtype).reshape(-1, q.shape[1], 1, 1) * away.abs()
    seen = keys < ends[:, None, None, None]
    if o.get("causal"):
        seen = seen & (away <= 0)
    if "window" in o:
        left, right = (10**6 if side is None else side for side in o["window"])
        seen = seen & (away >= -left) & (away <= right)
    if "mask" in o:
        seen = seen & o["mask"]
    s = s.masked_fill(~seen, float("-inf"))
    if "sink" in o:
        s = torch.cat([s, o["sink"][:, None, None].expand(*s.shape[:-1], 1)], -1)
    dead = (s == float("-inf")).all(-1)
    s = s.masked_fill(dead[..., None], 0)
    lse = s.logsumexp(-1)
    p = (s - lse[..., None]).exp().masked_fill(dead[..., None], 0)[..., :m]
    r, lse = p.to(v.dtype) @ v, lse.masked_fill(dead, float("-inf"))
    return r.transpose(1, 2) if o["layout"] == "bshd" else r, lse


def test_random_problems(rng, python, one_thread):
    """Both passes, beside float64 and beside PyTorch's own error in the same type."""
    worst = {}
    for number in range(int(os.environ.get("FLASHKIT_PROBLEMS", 60))):
        q, k, v, o = draw(rng)
        leaves = {"q": q, "k": k, "v": v} | {name: o[name] for name in ("bias", "sink") if name in o}
        ours, exact, same = ({name: t.detach().to(kind or t.dtype).requires_grad_() for name, t in leaves.items()} for kind in (None, torch.float64, None))
        lse_too = bool(rng.random() < 0.3)
        got = ft.attention(**o | ours, return_lse=lse_too)
        got = got if lse_too else (got,)
        results = [(got, ours)]
        for t in (exact, same):
            results.append((reference(t["q"], t["k"], t["v"], o | {name: t[name] for name in ("bias", "sink") if name in t})[: len(got)], t))
        w = [torch.from_numpy(rng.standard_normal(tuple(x.shape)).astype(np.float32)) for x in got]
        values = []
        for outputs, t in results:
            finite = [torch.where(x.isfinite(), x, 0) for x in outputs]
            loss = sum((x * y.to(x.dtype)).sum() for x, y in zip(finite, w))
            values.append([x.detach().double() for x in (*finite, *torch.autograd.grad(loss, list(t.values())))])
        eps = torch.finfo(q.dtype).eps
        terms = w[0].norm(dim=-1).max().item() * v.norm(dim=-1).max().item()  # of a gradient that is 0 by cancellation, as with one key
        for name, a, b, c in zip([*("o", "lse")[: len(got)], *leaves], *values):
            most = b.abs().max().item()
            size = max(1, most if most > 1e-12 else terms)
            error, bound = (a - b).abs().max().item(), 3 * (c - b).abs().max().item() + 8 * eps * size
            assert a.shape == b.shape and error <= bound, f"problem {number}: {name}: {error} > {bound}; {tuple(q.shape)} {tuple(k.shape)} {q.dtype} {[(n, getattr(x, 'shape', x)) for n, x in o.items()]}"
            worst[name] = max(worst.get(name, 0), error / bound)
    assert not python, f"Python computed {len(python)} passes"
    print(worst)


def test_the_bits_of_python(rng, monkeypatch):
    for _ in range(30):
        q, k, v, o = draw(rng)
        q.requires_grad_()
        first = ft.attention(q, k, v, **o)
        g = torch.autograd.grad(first.float().square().sum(), q)[0]
        with monkeypatch.context() as m:
            m.setattr(_compiled, "_registered", False)
            m.setattr(_compiled, "plans", {})
            m.setattr(ft, "_plans", _compiled.plans)
            second = ft.attention(q, k, v, **o)
            assert type(second.grad_fn).__name__ != type(first.grad_fn).__name__ or o["layout"] == "bshd"
            h = torch.autograd.grad(second.float().square().sum(), q)[0]
        eps = torch.finfo(q.dtype).eps
        assert first.stride() == second.stride() and (first - second).abs().max() <= 8 * eps * max(1, second.abs().max())
        assert (g - h).abs().max() <= 32 * eps * max(1, h.abs().max())


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_sequences(randn, rng, python, kind):
    """Padded, packed and paged sequences, beside flashkit.attention, which describes them in Python."""
    of = lambda *x: torch.tensor(x, dtype=kind)
    q, k, v = randn(3, 4, 6, 8), randn(3, 2, 9, 8), randn(3, 2, 9, 8)
    packed = [randn(1, heads, rows, 8) for heads, rows in ((4, 11), (2, 20), (2, 20))]
    pools = [randn(7, 2, 4, 8) for _ in range(2)]
    table = torch.from_numpy(rng.permutation(7)[:6].reshape(3, 2)).to(kind)
    for arrays, options in (
        ((q, k, v), {"q_lens": of(6, 0, 2), "kv_lens": of(3, 9, 0)}),
        (packed, {"q_starts": of(0, 5, 5, 11), "kv_starts": of(0, 7, 12, 20), "causal": True}),
        ((packed[0], k, v), {"q_starts": of(0, 5, 5, 11), "kv_lens": of(3, 9, 1)}),
        ((q, *pools), {"kv_lens": of(8, 5, 1), "pages": table}),
    ):
        got = ft.attention(*arrays, return_lse=True, **options)
        for a, b in zip(got, flashkit.attention(*arrays, return_lse=True, **options)):
            assert torch.allclose(a, b, atol=1e-5)
    assert not python
    for wrong in ({"kv_lens": of(3, 9)}, {"kv_lens": of(3, 10, 0)}, {"kv_lens": of(3, -1, 0)}, {"q_starts": of(0, 5, 6)}):
        with pytest.raises(flashkit.Error):
            ft.attention(q, k, v, **wrong)
    sink = torch.nn.Parameter(randn(4))
    before = len(python)
    ft.attention(q, k, v, sink=sink, kv_lens=of(3, 9, 0)).sum().backward()
    assert len(python) == before and sink.grad.abs().sum() > 0


def test_ranges(randn, rng, python):
    """Ranges of keys, in any layout, beside a mask that shows the same pairs. Gradients flow through them."""
    q, k, v = randn(2, 4, 6, 8), randn(2, 2, 9, 8), randn(2, 2, 9, 8)
    for shape, options in (((2, 4, 6, 4), {}), ((6, 2), {"sink": randn(4)}), ((2, 1, 6, 2), {"layout": "bshd", "causal": True}), ((1, 4, 6, 4), {"kv_lens": torch.tensor([9, 4])})):
        ends = torch.from_numpy(np.sort(rng.integers(0, 10, shape).astype(np.int32), -1))
        keys = torch.arange(9)
        mask = ((ends[..., ::2, None] <= keys) & (keys < ends[..., 1::2, None])).any(-2)
        results = []
        for by in ({"ranges": ends}, {"mask": mask}):
            arrays = [t.transpose(1, 2) if "layout" in options else t for t in (q, k, v)]
            leaves = [t.clone().requires_grad_() for t in arrays]
            o, lse = ft.attention(*leaves, return_lse=True, **by, **options)
            results.append((o, lse, *torch.autograd.grad(o.square().sum() + lse[lse.isfinite()].sum(), leaves)))
        for a, b in zip(*results):
            assert torch.allclose(a, b, atol=1e-5)
    assert not python
    for wrong, error in ((ends.long(), flashkit.DTypeError), (ends[..., :3], flashkit.Error), (ends + 9, flashkit.Error), (ends.flip(-1), flashkit.Error)):
        with pytest.raises(error, match="ranges"):
            ft.attention(q, k, v, ranges=wrong)


def test_declines(randn, python):
    q, k, v = (randn(1, 2, 5, 8) for _ in range(3))
    expected = ft.attention(q, k, v)
    assert not python
    starts = torch.tensor([0, 3])  # leaves rows out, which Python clears
    o = ft.attention(q, k, v, q_starts=starts, kv_starts=torch.tensor([0, 5]))
    assert len(python) == 1 and not o[:, :, 3:].any() and o[:, :, :3].any()
    for wrong, error in (((q, k[..., :4], v), flashkit.DimensionError), ((q.double(), k.double(), v.double()), flashkit.DTypeError), ((q[0], k, v), flashkit.DimensionError)):
        with pytest.raises(error):
            ft.attention(*wrong)
    assert torch.equal(ft.attention(q, k, v), expected)


def test_options_that_are_equal_but_not_the_same(randn):
    q = randn(1, 1, 3, 8)
    ft.attention(q, q, q, scale=1.0, shift=1, window=(1, 0), causal=True)
    for options in ({"scale": True}, {"shift": True}, {"shift": 1.0}, {"window": (1.0, 0)}, {"causal": 1.0}, {"dropout": False}):
        with pytest.raises(flashkit.OptionError):
            ft.attention(q, q, q, **{"scale": 1.0, "shift": 1, "window": (1, 0), "causal": True} | options)


def test_many_options(randn):
    q = randn(1, 1, 3, 8)
    for i in range(3 * _compiled._MOST):
        near = ft.attention(q, q, q, scale=0.1 + i * 1e-3)
    assert len(_compiled.plans) <= _compiled._MOST
    assert torch.allclose(near, F.scaled_dot_product_attention(q, q, q, scale=0.1 + i * 1e-3), atol=1e-5)


def test_without_the_compiled_part(tmp_path):
    code = (
        "import torch, flashkit.torch as ft; from flashkit import _compiled\n"
        "q = torch.randn(1, 2, 5, 8, requires_grad=True); o = ft.attention(q, q, q, causal=True); o.sum().backward()\n"
        "w = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)\n"
        "assert (o - w).abs().max() < 1e-5 and _compiled._registered is False"
    )
    library = tmp_path / "libflashkit.so"
    library.symlink_to(os.environ.get("FLASHKIT_LIBRARY") or pathlib.Path(flashkit.__file__).with_name("libflashkit.so"))
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"FLASHKIT_LIBRARY": str(library)}, check=True)


@pytest.mark.skipif(not shutil.which("c++"), reason="there is no C++ compiler")
def test_signatures_are_those_of_the_headers(tmp_path):
    """_torch.c declares PyTorch's functions by itself."""
    source = (pathlib.Path(__file__).parents[1] / "src/flashkit/_torch.c").read_text()
    types = "".join(re.findall(r"^typedef (?:uint64_t|struct \w+Opaque).*$", source, re.MULTILINE))
    body = re.search(r"typedef struct functions \{\n(.*?)\n\} functions;", source, re.DOTALL)[1]
    members = re.findall(r"\(\*(\w+)\)\((?=[^*]|const)", re.sub(r"void \(\*kernel\)", "void (* kernel)", body))
    names = [*_compiled._PYTORCH, _compiled._STREAM]
    assert members[len(names) :] == ["problem_of", "forward", "backward", "raise"], members
    checks = [f"static_assert(std::is_same_v<decltype(functions::{m}), decltype(&{name})>);" for m, name in zip(members, names)]
    file = tmp_path / "signatures.cc"
    file.write_text("\n".join(['#define USE_CUDA', '#include <torch/csrc/stable/c/shim.h>', '#include "flashkit.h"', types, f"struct functions {{\n{body}\n}};", *checks]))
    include = pathlib.Path(torch.__file__).parent / "include"
    subprocess.run(["c++", "-std=c++20", "-fsyntax-only", f"-I{include}", f"-I{pathlib.Path(__file__).parents[2]}", file], check=True)


def test_replaced_again_and_again(randn):
    q, k, v = randn(2, 4, 7, 16), randn(2, 2, 9, 16), randn(2, 2, 9, 16)
    for _ in range(3):
        with ft.replace_sdpa() as report, warnings.catch_warnings():
            warnings.simplefilter("ignore", ft.FallbackWarning)
            for options in ({}, {"is_causal": True}, {"scale": 0.3}, {"is_causal": True, "scale": 0.2}):
                got = F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options)
                groups = [t.repeat_interleave(2, 1) for t in (k, v)]
                assert torch.allclose(got, ft.attention(q, *groups, causal="is_causal" in options, top_left=True, scale=options.get("scale")), atol=1e-5)
            with pytest.raises(RuntimeError):  # of PyTorch, as the numbers of heads differ
                F.scaled_dot_product_attention(q, k, v)
            with torch.autocast("cpu", torch.bfloat16):
                assert F.scaled_dot_product_attention(q, k, v, enable_gqa=True).dtype == torch.bfloat16
            assert F.scaled_dot_product_attention(q.double(), k.double(), v.double(), enable_gqa=True).dtype == torch.float64
            F.scaled_dot_product_attention(q, k, v, scale=-1.0, enable_gqa=True)
        assert report.calls == 5 and sorted(report.fallbacks.values()) == [1, 1, 1]


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        q = torch.full((1, 2, 3, 8), float(i + 1))
        return ft.attention(q, q, q)


LOADER = """
import sys, torch
sys.path.insert(0, {folder!r})
from test_compiled import Rows
if __name__ == "__main__":
    got = list(torch.utils.data.DataLoader(Rows(), batch_size=None, num_workers=2, multiprocessing_context={way!r}))
    assert [float(x.mean()) for x in got] == [1, 2, 3, 4], got
"""


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_loader(tmp_path, way):
    script = tmp_path / "load.py"
    script.write_text(LOADER.format(folder=str(pathlib.Path(__file__).parent), way=way))
    subprocess.run([sys.executable, script], check=True)


def called(queue, q):
    try:
        ft.attention(q, q, q)
    except flashkit.ForkedError:
        queue.put("forked")


def test_after_a_fork():
    q = torch.ones(1, 1, 2, 8)
    ft.attention(q, q, q)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    p = context.Process(target=called, args=(queue, q))
    p.start()
    assert queue.get(timeout=60) == "forked"
    p.join()


def test_export_and_compile(randn):
    class Net(torch.nn.Module):
        def forward(self, q, k, v):
            return ft.attention(q, k, v, causal=True, softcap=5.0)

    q, k, v = (randn(2, 3, 7, 16) for _ in range(3))
    expected = Net()(q, k, v)
    exported = torch.export.export(Net(), (q, k, v)).module()
    assert "flashkit.attention" in str(exported.graph) and torch.equal(exported(q, k, v), expected)
    compiled = torch.compile(Net(), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, k, v), expected)


def test_opcheck_of_many(randn):
    q, k, v, bias, mask = randn(2, 4, 5, 8), randn(2, 2, 6, 8), randn(2, 2, 6, 4), randn(5, 6), randn(5, 6) > -1
    for t in (q, k, v, bias):
        t.requires_grad_()
    rest = True, None, False, 0, 0.0, 3.0, 0.25, None, True
    inputs = q, k, v, bias, mask, None, None, torch.tensor(5), *(None,) * 6, *rest
    torch.library.opcheck(torch.ops.flashkit.attention.default, inputs)
    o, lse = torch.ops.flashkit.attention.default(*inputs)
    with torch.no_grad():
        torch.library.opcheck(torch.ops.flashkit.attention_backward.default, (randn(*o.shape), None, *(t.detach() for t in (q, k, v, o, lse)), *(t.detach() if torch.is_tensor(t) else t for t in inputs[3:]), True, False))


@pytest.mark.parametrize("recorded", [False, True])
def test_masks_of_replaced_calls(randn, recorded):
    """The second call of a description computes by its plan."""
    theirs = F.scaled_dot_product_attention
    with ft.replace_sdpa() as report:
        for round in range(2):
            for mask in (None, randn(2, 1, 9, 9) > -1, randn(1, 4, 9, 9), randn(9, 9), randn(9, 1)):
                leaves = [randn(2, 4, 9, 16) for _ in range(3)]
                if mask is not None and mask.is_floating_point():
                    leaves.append(mask)
                for t in leaves:
                    t.requires_grad_(recorded)
                options = dict(attn_mask=mask, is_causal=mask is None, scale=0.2)
                got, want = F.scaled_dot_product_attention(*leaves[:3], **options), theirs(*leaves[:3], **options)
                assert got.requires_grad == recorded and (got - want).abs().max() < 2e-5
                if recorded:
                    d_o = randn(*got.shape)
                    for a, b in zip(torch.autograd.grad(got, leaves, d_o), torch.autograd.grad(want, leaves, d_o)):
                        assert (a - b).abs().max() < 1e-4
    assert report.calls == 10 and not report.fallbacks


WORKERS = """
import ctypes, torch
import flashkit.torch as ft
from flashkit import _abi, _compiled
seen, kept, address = [], [], _compiled._address
function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(_abi.Args), ctypes.c_void_p)
def watched(library, name):
    if name not in ("fk_forward", "fk_backward"):
        return address(library, name)
    f = function(address(library, name))
    kept.append(function(lambda d, p, a, e: seen.append(a.contents.workers) or f(d, p, a, e)))
    return ctypes.cast(kept[-1], ctypes.c_void_p).value
_compiled._address = watched
for rows in (16, 40, 64):
    q, k, v = (torch.randn(1, 12, rows, 64, requires_grad=True) for _ in range(3))
    ft.attention(q, k, v).sum().backward()
assert seen == [1, 1, 1, 0, 0, 0], seen
"""


def test_short_calls_use_one_thread():
    subprocess.run([sys.executable, "-c", WORKERS], check=True)


def test_recorded_by_pytorchs_node(randn):
    q, k, v = (randn(1, 4, 5, 16).requires_grad_() for _ in range(3))
    o = ft.attention(q, k, v)
    if _compiled.record is None:
        pytest.skip("PyTorch's operator is not the one that _torch.c overrides")
    assert o.grad_fn.name() == "ScaledDotProductFusedAttentionOverrideableBackward0"
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t.clone(), lambda t: t):
        again = ft.attention(q, k, v)
    assert len(packed) >= 5 and all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(again.sum(), (q, k, v)), torch.autograd.grad(o.sum(), (q, k, v))))
    with pytest.raises(RuntimeError, match="flashkit: "):  # a call of others, without a plan
        torch.ops.aten._scaled_dot_product_fused_attention_overrideable(q, k, v)
    with pytest.raises(RuntimeError, match="flashkit: "):
        torch.ops.aten._scaled_dot_product_fused_attention_overrideable(q, k, v, randn(5, 5))
    mixed = ft.attention(q, k.bfloat16(), v.bfloat16())  # no kernel has a backward pass of two types
    with pytest.raises(flashkit.UnsupportedError):
        mixed.sum().backward()
