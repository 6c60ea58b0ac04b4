"""Tensors of PyTorch on a GPU: passed by address, on PyTorch's current stream."""

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("PyTorch sees no GPU", allow_module_level=True)

import torch.nn.functional as F  # noqa: E402

import flashkit  # noqa: E402
import flashkit.torch as ft  # noqa: E402

DEVICES = [f"cuda:{i}" for i in range(min(2, torch.cuda.device_count()))]
TYPES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def near(a, b, by):
    assert a.shape == b.shape
    assert (a.double() - b.double().to(a.device)).abs().max() <= by * max(1, b.double().abs().max())


def reference(q, k, v, causal):
    """Return O and gradients of the sum of its squares in float64."""
    leaves = [t.detach().double().requires_grad_() for t in (q, k, v)]
    o = F.scaled_dot_product_attention(*leaves, is_causal=causal, enable_gqa=True)
    return o.detach(), torch.autograd.grad(o.square().sum(), leaves)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("causal", [False, True])
def test_gradients(randn, device, kind, causal):
    q, k, v = (randn(2, h, 77, 64, device=device, dtype=kind) for h in (4, 2, 2))
    o, gradients = reference(q, k, v, causal)
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    got = ft.attention(*leaves, causal=causal)
    assert got.device == q.device and got.dtype == kind
    near(got, o, TYPES[kind])
    for a, b in zip(torch.autograd.grad(got.float().square().sum(), leaves), gradients):
        near(a, b, 4 * TYPES[kind])


def test_current_stream(randn):
    q = randn(1, 8, 2048, 64, device="cuda", dtype=torch.bfloat16)
    expected = flashkit.attention(q, q, q, causal=True)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(50):  # each round overwrites its input; stream order must protect the call
            x = q + 1
            x -= 1
            o = flashkit.attention(x, x, x, causal=True)
            x.fill_(float("nan"))
    stream.synchronize()
    near(o, expected, 3e-2)


def test_graph(randn):
    q, k, v = (randn(2, 4, 256, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    flashkit.attention(q, k, v)  # loads the kernel
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = flashkit.attention(q, k, v)
    q.copy_(randn(2, 4, 256, 64, dtype=torch.bfloat16))
    graph.replay()
    assert torch.equal(o, flashkit.attention(q, k, v))


def test_any_order(randn):
    q, k, v = (randn(1, 4, 1000, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    o, lse = flashkit.attention(q, k, v, return_lse=True)
    expected = flashkit.attention_backward(o, q, k, v, o, lse)
    with flashkit.Dispatcher(any_order=True) as d:
        for a, b in zip(flashkit.attention_backward(o, q, k, v, o, lse, backend=d)[:3], expected[:3]):
            near(a, b, 1e-2)


def test_pages_on_the_device(randn):
    q, k, v = (randn(*shape, 64, device="cuda", dtype=torch.bfloat16) for shape in ((2, 1, 8), (12, 16, 2), (12, 16, 2)))
    lens, pages = torch.tensor([90, 17], dtype=torch.int32), torch.randperm(12).int().reshape(2, 6)
    expected = flashkit.attention(q, k, v, kv_lens=lens, pages=pages, layout="bshd")
    there = {"kv_lens": lens.cuda(), "pages": pages.cuda()}
    for attention in (flashkit.attention, ft.attention):
        assert torch.equal(attention(q, k, v, **there, layout="bshd"), expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = flashkit.attention(q, k, v, **there, layout="bshd")
    there["kv_lens"].copy_(torch.tensor([5, 96]))
    graph.replay()
    assert torch.equal(o, flashkit.attention(q, k, v, kv_lens=[5, 96], pages=pages, layout="bshd"))
    with pytest.raises(flashkit.OptionError, match="both or neither"):
        flashkit.attention(q, k, v, kv_lens=lens, pages=pages.cuda(), layout="bshd")
    with pytest.raises(flashkit.DTypeError, match="int32"):
        flashkit.attention(q, k, v, kv_lens=lens.cuda(), pages=pages.long().cuda(), layout="bshd")


@pytest.mark.parametrize("rows", [1, 3])
def test_prefix(randn, rows):
    cuda = {"device": "cuda", "dtype": torch.bfloat16}
    q = randn(3, rows, 4, 64, **cuda).transpose(1, 2)  # rows of all sequences with one stride
    pk, pv, k, v = randn(1, 2, 70, 64, **cuda), randn(1, 2, 70, 64, **cuda), randn(3, 2, 9, 64, **cuda), randn(3, 2, 9, 64, **cuda)
    expected = flashkit.attention(q, torch.cat([pk.expand(3, -1, -1, -1), k], 2), torch.cat([pv.expand(3, -1, -1, -1), v], 2), causal=True, return_lse=True)
    for got, want, by in zip(flashkit.attention(q, k, v, prefix=(pk, pv), causal=True, return_lse=True), expected, (3e-2, 1e-4)):
        near(got, want, by)
    near(flashkit.attention(q, k, v, prefix=(pk, pv), causal=True), expected[0], 3e-2)
    turned = [x.transpose(1, 2) for x in (q, k, v, pk, pv)]
    near(flashkit.attention(*turned[:3], prefix=tuple(turned[3:]), causal=True, layout="bshd").transpose(1, 2), expected[0], 3e-2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = flashkit.attention(q, k, v, prefix=(pk, pv), causal=True)
    graph.replay()
    near(o, expected[0], 3e-2)
    with pytest.raises(flashkit.OptionError, match="must be a tensor on GPU 0"):
        flashkit.attention(q, k, v, prefix=(pk.cpu(), pv))


def test_host_and_device(randn):
    q = randn(1, 2, 8, 16)
    with pytest.raises(flashkit.Error, match="k = elsewhere: must be a tensor on GPU 0"):
        flashkit.attention(q.cuda(), q, q)
    with pytest.raises(flashkit.Error, match="must lie where q does"):
        flashkit.attention(q, q.cuda(), q)


@pytest.mark.skipif(len(DEVICES) < 2, reason="one GPU")
def test_two_devices(randn):
    q = randn(1, 2, 8, 16)
    with pytest.raises(flashkit.Error, match="must be a tensor on GPU 0"):
        flashkit.attention(q.to("cuda:0"), q.to("cuda:1"), q.to("cuda:0"))


def test_sdpa(randn):
    q, k, v = (randn(2, 4, 33, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    with ft.replace_sdpa() as report:
        got = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert report.calls == 1 and not report.fallbacks
    near(got, expected, 3e-2)
