"""The operators of flashkit.torch, and the replacement of PyTorch's function."""

import contextlib
import gc
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import flashkit  # noqa: E402
import flashkit.torch as ft  # noqa: E402


@pytest.fixture
def leaves(randn):
    return lambda *shapes: [randn(*s).requires_grad_() for s in shapes]


def near(a, b, by=2e-5):
    assert a.shape == b.shape and a.dtype == b.dtype
    assert (a.double() - b.double()).abs().max() <= by * max(1, b.double().abs().max())


def test_tensors_without_copies(randn):
    qkv = randn(2, 7, 3, 4, 16)
    q, k, v = (qkv[:, :, i] for i in range(3))
    o = flashkit.attention(q, k, v, layout="bshd")
    near(o.transpose(1, 2), F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v))))
    b = [t.bfloat16() for t in (q, k, v)]
    assert flashkit.attention(*b, layout="bshd").dtype == torch.bfloat16
    with pytest.raises(flashkit.OptionError, match="no_grad"):
        flashkit.attention(q.clone().requires_grad_(), k, v)


@pytest.mark.parametrize("form", ["plain", "causal", "bias", "mask", "softcap", "sink", "slopes", "dropout", "padded", "ranges"])
def test_gradcheck(leaves, randn, form):
    q, k, v, bias, sink = leaves((1, 2, 4, 8), (1, 1, 5, 8), (1, 1, 5, 8), (1, 2, 4, 5), (2,))
    mask = randn(4, 5) > -0.5
    mask[:, 0] = True  # the LSE of a row that sees no key is -inf, which has no numerical derivative
    options = {
        "plain": {}, "causal": {"causal": True}, "bias": {"bias": bias}, "mask": {"mask": mask}, "softcap": {"softcap": 2.0}, "sink": {"sink": sink},
        "slopes": {"slopes": torch.tensor([0.5, 0.25])}, "dropout": {"dropout": 0.3, "seed": 11}, "padded": {"kv_lens": torch.tensor([3])},
        "ranges": {"ranges": torch.tensor([[0, 2, 3, 4], [1, 5, 5, 5], [0, 0, 2, 5], [0, 1, 1, 3]], dtype=torch.int32)},
    }[form]  # fmt: skip

    def f(q, k, v, bias, sink):
        given = {name: {"bias": bias, "sink": sink}.get(name, x) for name, x in options.items()}
        o, lse = ft.attention(q, k, v, return_lse=True, **given)
        return o, lse

    inputs = [q, k, v, bias if form == "bias" else bias.detach(), sink if form == "sink" else sink.detach()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ignores the warning that inputs are not float64
        assert torch.autograd.gradcheck(f, inputs, eps=1e-2, atol=2e-3, rtol=2e-2, nondet_tol=0.0)


def test_opcheck(leaves):
    q, k, v, bias = leaves((2, 2, 5, 8), (2, 1, 6, 8), (2, 1, 6, 4), (5, 6))
    ranges = torch.tensor([[0, 4]] * 5, dtype=torch.int32)
    arguments = (q, k, v, bias, *(None,) * 9, ranges, True, None, False, 0, 0.0, 0.0, 0.0, None, True)
    torch.library.opcheck(torch.ops.flashkit.attention.default, arguments)


def test_no_second_derivative(leaves):
    q, k, v = leaves(*[(1, 1, 3, 8)] * 3)
    (g,) = torch.autograd.grad(ft.attention(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(g.square().sum(), q)


def test_dropout_follows_the_generator(randn):
    q = randn(1, 2, 16, 8)
    draw = lambda: ft.attention(q, q, q, dropout=0.5)
    torch.manual_seed(5)
    first, second = draw(), draw()
    torch.manual_seed(5)
    assert torch.equal(first, draw()) and not torch.equal(first, second)


def test_threads(leaves):
    def work(_):
        q, k, v = (t.detach().clone().requires_grad_() for t in inputs)
        return torch.autograd.grad(ft.attention(q, k, v, causal=True).square().sum(), (q, k, v))

    inputs = leaves(*[(2, 4, 33, 16)] * 3)
    first = work(0)
    with ThreadPoolExecutor(8) as pool:
        for g in pool.map(work, range(64)):
            for a, b in zip(g, first):
                near(a, b)


class Layer(torch.nn.Module):
    def __init__(self, width, heads, dropout=0.0):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm, self.qkv, self.out = torch.nn.LayerNorm(width), torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        return x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout).transpose(1, 2).flatten(-2))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(randn, dynamic):
    torch._dynamo.reset()
    model = torch.nn.Sequential(Layer(32, 4), Layer(32, 4))
    x = randn(2, 9, 32)
    loss = lambda y: y.square().sum()
    expected = model(x)
    want = torch.autograd.grad(loss(expected), model.parameters())
    with ft.replace_sdpa() as report:
        compiled = torch.compile(model, fullgraph=True, dynamic=dynamic, backend="aot_eager" if dynamic else "inductor")
        got = compiled(x)
        assert report.calls >= 2 and not report.fallbacks
        near(got, expected)
        for a, b in zip(torch.autograd.grad(loss(got), model.parameters()), want):
            near(a, b, 1e-4)


def test_compile_draws_dropout(randn):
    torch._dynamo.reset()
    model, x = torch.nn.Sequential(Layer(16, 2, 0.5)), randn(1, 8, 16)
    with ft.replace_sdpa():
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        assert not torch.equal(compiled(x), compiled(x))


def test_checkpoint_and_compiled_autograd(leaves):
    def loss():
        return ft.attention(q, k, v, causal=True, dropout=0.3, seed=3).square().sum()

    q, k, v = leaves(*[(1, 2, 5, 8)] * 3)
    expected = torch.autograd.grad(loss(), (q, k, v))
    kept = torch.utils.checkpoint.checkpoint(loss, use_reentrant=False)
    with torch.autograd.graph.save_on_cpu():
        saved = loss()
    for x in (kept, saved):
        assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(x, (q, k, v)), expected))
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
        loss().backward()
    for t, b in zip((q, k, v), expected):
        near(t.grad, b)


CALLS = {
    "plain": {}, "causal": {"is_causal": True}, "scale": {"scale": 0.3},
    "bool": {"attn_mask": (7, 9)}, "float": {"attn_mask": (2, 1, 7, 9)}, "keys": {"attn_mask": (2, 1, 1, 9)}, "column": {"attn_mask": (7, 1)},
}  # fmt: skip


@pytest.mark.parametrize("form", CALLS)
@pytest.mark.parametrize("dims", [3, 4])
def test_sdpa(randn, form, dims):
    lead = (2, 4) if dims == 4 else (4,)
    q, k, v = randn(*lead, 7, 16), randn(*lead, 9, 16), randn(*lead, 9, 16)
    keywords = dict(CALLS[form])
    if shape := keywords.get("attn_mask"):
        m = randn(*(shape if dims == 4 else shape[-2:]))
        keywords["attn_mask"] = m > -1 if form in ("bool", "keys") else m
    q, k, v = (t.requires_grad_() for t in (q, k, v))
    expected = F.scaled_dot_product_attention(q, k, v, **keywords)
    theirs = F.scaled_dot_product_attention
    with ft.replace_sdpa() as report:
        assert F.scaled_dot_product_attention is not theirs
        got = F.scaled_dot_product_attention(q, k, v, **keywords)
    assert F.scaled_dot_product_attention is theirs
    assert report.calls == 1 and not report.fallbacks, report
    near(got, expected)
    for a, b in zip(torch.autograd.grad(got.square().sum(), (q, k, v)), torch.autograd.grad(expected.square().sum(), (q, k, v))):
        near(a, b)


def test_sdpa_gqa_and_autocast(randn):
    q, k = randn(1, 6, 5, 8), randn(1, 2, 5, 8)
    expected = F.scaled_dot_product_attention(q, k, k, enable_gqa=True)
    with ft.replace_sdpa() as report:
        near(F.scaled_dot_product_attention(q, k, k, enable_gqa=True), expected)
        with torch.autocast("cpu", torch.bfloat16):
            assert F.scaled_dot_product_attention(q, q, q).dtype == torch.bfloat16
    assert report.calls == 2


def test_sdpa_falls_back_and_says_so(randn):
    q = randn(1, 2, 5, 8, dtype=torch.float64)
    expected = F.scaled_dot_product_attention(q, q, q)
    with ft.replace_sdpa() as report, pytest.warns(ft.FallbackWarning, match="float64") as caught:
        for _ in range(3):
            assert torch.equal(F.scaled_dot_product_attention(q, q, q), expected)
    assert len(caught) == 1 and list(report.fallbacks.values()) == [3] and report.calls == 0
    with ft.replace_sdpa() as report, pytest.warns(ft.FallbackWarning, match="both"), contextlib.suppress(RuntimeError):
        f = q.float()  # some versions of PyTorch compute this call, others refuse it
        F.scaled_dot_product_attention(f, f, f, torch.ones(5, 5, dtype=torch.bool), is_causal=True)


def test_sdpa_says_that_it_saw_no_call(randn):
    x = randn(2, 6, 32)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    with pytest.warns(ft.FallbackWarning, match="saw no call: .*a TransformerEncoderLayer in eval mode calls C\\+\\+") as caught, torch.no_grad():
        with ft.replace_sdpa():
            layer(x)
    assert len(caught) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with ft.replace_sdpa():
            F.scaled_dot_product_attention(x, x, x)
        with pytest.raises(KeyError), ft.replace_sdpa():
            raise KeyError


def unseen():
    """Return the warning of a with statement without calls."""
    gc.collect()
    with pytest.warns(ft.FallbackWarning, match="saw no call: ") as caught, ft.replace_sdpa():
        pass
    return str(caught[0].message)


def test_sdpa_says_why_it_saw_no_call(monkeypatch):
    assert "it sees only calls by the name" in unseen()
    monkeypatch.setitem(globals(), "attend", F.scaled_dot_product_attention)
    assert f"{__name__}.attend was imported before" in unseen()
    monkeypatch.undo()
    layer = torch.nn.MultiheadAttention(8, 2)
    assert "a MultiheadAttention calls" in unseen()
    del layer
    transformers = pytest.importorskip("transformers")
    sizes = dict(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    model = transformers.BertModel._from_config(transformers.BertConfig(**sizes), attn_implementation="eager")
    assert "a BertModel has attn_implementation='eager', not 'sdpa'" in unseen()
    del model
    assert "BertModel" not in unseen()


def test_sdpa_in_a_transformer_layer(randn):
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True).train()
    x = randn(2, 6, 32)
    expected = layer(x)
    with ft.replace_sdpa() as report:
        near(layer(x), expected)
    assert report.calls == 1, report


def test_numpy_and_torch_give_the_same_bits(randn):
    q, k, v = (randn(1, 2, 6, 16) for _ in range(3))
    with flashkit.Dispatcher(frozen=True) as d:
        a = flashkit.attention(q, k, v, backend=d)
        b = flashkit.attention(q.numpy(), k.numpy(), v.numpy(), backend=d)
    assert np.array_equal(a.numpy(), b)


def test_inference_takes_the_kernel_of_few_rows():
    q, k, v = (torch.randn(1, 4, n, 64) for n in (1, 300, 300))
    o = flashkit.torch.attention(q, k, v, backend="simd")
    unpaired = flashkit.attention(q.numpy(), k.numpy(), v.numpy(), backend=flashkit.Dispatcher("simd", unpaired=True))
    assert torch.equal(o, torch.from_numpy(unpaired))
