"""Every transform of PyTorch gives the right value or one clear error: none gives a wrong value in silence."""

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap  # noqa: E402

import flashkit  # noqa: E402
import flashkit.torch as ft  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap, which loops


class Problem:
    """Tensors, attention as a function of q alone, by flashkit and by PyTorch's operators, and the sums of squares."""

    def __init__(self, randn):
        self.q, self.k, self.v = (randn(1, 2, 5, 8) for _ in range(3))
        self.one, self.three = torch.ones_like(self.q), randn(3, 1, 2, 5, 8)

    def ours(self, q, **options):
        return ft.attention(q, self.k, self.v, **options)

    def theirs(self, q):
        return (q @ self.k.mT * 8**-0.5).softmax(-1) @ self.v

    def replaced(self, q):
        return F.scaled_dot_product_attention(q, self.k, self.v)

    def loss(self, q):
        return self.ours(q).square().sum()

    def their_loss(self, q):
        return self.theirs(q).square().sum()


@pytest.fixture
def p(randn):
    return Problem(randn)


def near(a, b, by=2e-5):
    assert a.shape == b.shape and (a - b).abs().max() <= by * max(1, b.abs().max()), (a - b).abs().max()


def twice(f, x):
    x = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(f(x), x, create_graph=True)
    return torch.autograd.grad(g.square().sum(), x)[0]


def dual(f, x):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x, torch.ones_like(x)))).tangent


RIGHT = {
    "grad": lambda p, f, loss: grad(loss)(p.q),
    "grad without recording": lambda p, f, loss: torch.no_grad()(grad(loss))(p.q),
    "vjp": lambda p, f, loss: vjp(f, p.q)[1](p.one)[0],
    "jacrev": lambda p, f, loss: jacrev(f)(p.q),
    "jacobian": lambda p, f, loss: torch.autograd.functional.jacobian(f, p.q),
    "jacobian at once": lambda p, f, loss: torch.autograd.functional.jacobian(f, p.q, vectorize=True),
    "vmap": lambda p, f, loss: vmap(f)(p.three),
    "vmap of dimension 2": lambda p, f, loss: vmap(f, in_dims=2, out_dims=2)(p.three.movedim(0, 2)),
    "vmap(grad)": lambda p, f, loss: vmap(grad(loss))(p.three),
    "grad(vmap)": lambda p, f, loss: grad(lambda x: vmap(f)(x).square().sum())(p.three),
    "functionalize": lambda p, f, loss: torch.func.functionalize(f)(p.q),
    "a constant under jvp": lambda p, f, loss: jvp(lambda x: f(p.q) + x, (p.q,), (p.one,))[1],
    "a gradient under no_grad": lambda p, f, loss: grad(lambda x: (x * torch.no_grad()(f)(x)).sum())(p.q),
}


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("way", ["attention", "replace_sdpa"])
def test_right(p, name, way):
    expected = RIGHT[name](p, p.theirs, p.their_loss)
    if way == "attention":
        near(RIGHT[name](p, p.ours, p.loss), expected)
        return
    with ft.replace_sdpa() as report, warnings.catch_warnings():
        warnings.simplefilter("ignore", ft.FallbackWarning)
        near(RIGHT[name](p, p.replaced, lambda q: p.replaced(q).square().sum()), expected)
    assert report.calls or "jvp" in name


REFUSED = {
    "jvp": ("forward-mode", lambda p, f, loss: jvp(f, (p.q,), (p.one,))),
    "dual": ("forward-mode", lambda p, f, loss: dual(f, p.q)),
    "dual that requires a gradient": ("forward-mode", lambda p, f, loss: dual(f, p.q.clone().requires_grad_())),
    "dual under no_grad": ("forward-mode", lambda p, f, loss: dual(torch.no_grad()(f), p.q)),
    "jacfwd": ("forward-mode", lambda p, f, loss: jacfwd(f)(p.q)),
    "forward jacobian": ("forward-mode", lambda p, f, loss: torch.autograd.functional.jacobian(f, p.q, vectorize=True, strategy="forward-mode")),
    "linearize": ("forward-mode", lambda p, f, loss: torch.func.linearize(f, p.q)),
    "hessian": ("forward-mode", lambda p, f, loss: hessian(loss)(p.q)),
    "jvp(grad)": ("forward-mode", lambda p, f, loss: jvp(grad(loss), (p.q,), (p.one,))),
    "jvp(vmap)": ("forward-mode", lambda p, f, loss: jvp(vmap(f), (p.three,), (p.three,))),
    "vmap(jvp)": ("forward-mode", lambda p, f, loss: vmap(lambda x: jvp(f, (x,), (p.one,))[1])(p.three)),
    "jvp(vmap(grad))": ("forward-mode", lambda p, f, loss: jvp(vmap(grad(loss)), (p.three,), (p.three,))),
    "jacrev(jacfwd)": ("forward-mode", lambda p, f, loss: jacrev(jacfwd(loss))(p.q)),
    "twice": ("second", lambda p, f, loss: twice(loss, p.q)),
    "grad(grad)": ("second", lambda p, f, loss: grad(lambda x: grad(loss)(x).square().sum())(p.q)),
    "grad(vjp)": ("second", lambda p, f, loss: grad(lambda x: vjp(f, x)[1](p.one)[0].square().sum())(p.q)),
    "grad(vmap(grad))": ("second", lambda p, f, loss: grad(lambda x: vmap(grad(loss))(x).square().sum())(p.three)),
    "jacrev(jacrev)": ("second", lambda p, f, loss: jacrev(jacrev(loss))(p.q)),
    "backward of grad": ("second", lambda p, f, loss: grad(loss)(p.q.clone().requires_grad_()).sum().backward()),
    "functional jvp": ("second", lambda p, f, loss: torch.autograd.functional.jvp(f, p.q, p.one)),
    "vhp": ("second", lambda p, f, loss: torch.autograd.functional.vhp(loss, p.q, p.one)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(p, name):
    which, call = REFUSED[name]
    with pytest.raises((RuntimeError, SystemError)) as caught:
        call(p, p.ours, p.loss)
    e = caught.value
    if isinstance(e, SystemError):  # PyTorch 2.11 warns of its loop while the error is raised
        e = e.__cause__
    recorded = which == "second" and "derivative for aten::" in str(e)  # the node of PyTorch's operator says so
    assert recorded or isinstance(e, flashkit.UnsupportedError) and f"has no {which}" in str(e), e
    with ft.replace_sdpa(), warnings.catch_warnings(), pytest.raises(RuntimeError, match="second derivative|forward AD|not implemented"):
        warnings.simplefilter("ignore", ft.FallbackWarning)
        call(p, p.replaced, lambda q: p.replaced(q).square().sum())


def test_compiled(p):
    torch._dynamo.reset()
    compiled = lambda f: torch.compile(f, backend="aot_eager", fullgraph=True)
    for f, x in ((grad(p.loss), p.q), (vmap(grad(p.loss)), p.three), (lambda x: vjp(p.ours, x)[1](torch.ones_like(x))[0], p.q)):
        near(compiled(f)(x), f(x), 0)
    with pytest.raises(RuntimeError, match="forward-mode"):  # PyTorch raises its own error if it checks first
        dual(compiled(p.ours), p.q)
    for f in (lambda x: jvp(p.ours, (x,), (x,))[1], grad(lambda x: grad(p.loss)(x).square().sum())):
        with pytest.raises(RuntimeError, match="has no (forward-mode|second) derivative"):
            compiled(f)(p.q)


def test_forward_mode_is_left_to_pytorch(p):
    with ft.replace_sdpa() as report, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        with pytest.warns(ft.FallbackWarning, match="forward-mode"):
            near(jvp(p.replaced, (p.q,), (p.one,))[1], jvp(p.theirs, (p.q,), (p.one,))[1])
    assert report.calls == 0


@pytest.mark.parametrize("name", ["k", "v", "bias", "sink", "slopes"])
def test_forward_mode_of_every_tensor(p, randn, name):
    given = {"q": p.q, "k": p.k, "v": p.v, "bias": randn(5, 5), "sink": randn(2), "slopes": randn(2)}
    with pytest.raises(flashkit.UnsupportedError, match="forward-mode"):
        dual(lambda x: ft.attention(**given | {name: x}), given[name])
    operator = torch.ops.flashkit.attention
    with pytest.raises(flashkit.UnsupportedError, match="forward-mode"):
        dual(lambda x: operator(x, p.k, p.v, *(None,) * 11, False, None, False, 0, 0.0, 0.0, 0.0, None, False)[0], p.q)


def test_grad_has_the_bits_of_backward(p):
    leaf = p.q.clone().requires_grad_()
    (expected,) = torch.autograd.grad(p.loss(leaf), leaf)
    for g in (grad(p.loss)(p.q), grad(lambda q: vmap(p.ours)(q[None]).square().sum())(p.q)):
        assert torch.equal(g, expected)


@pytest.mark.parametrize("name", ["bias", "sink"])
def test_gradients_of_the_other_tensors(p, randn, name):
    x = randn(2, 5, 5) if name == "bias" else randn(2)

    def f(x):
        o, lse = p.ours(p.q, return_lse=True, **{name: x})
        return o.square().sum() + lse.sum()

    leaf = x.clone().requires_grad_()
    near(grad(f)(x), torch.autograd.grad(f(leaf), leaf)[0], 0)


def test_gradient_through_lse(p):
    near(grad(lambda q: p.ours(q, return_lse=True)[1].sum())(p.q), grad(lambda q: (q @ p.k.mT * 8**-0.5).logsumexp(-1).sum())(p.q))


def test_slopes_have_no_gradient(p):
    slopes = torch.rand(2, requires_grad=True)
    for call in (lambda: p.ours(p.q, slopes=slopes), lambda: grad(lambda s: p.ours(p.q, slopes=s).sum())(slopes.detach())):
        with pytest.raises(flashkit.UnsupportedError) as caught:
            call()
        assert caught.value.field == "slopes"
    with torch.no_grad():
        p.ours(p.q, slopes=slopes)
    assert p.ours(p.q.clone().requires_grad_(), slopes=slopes.detach()).requires_grad


def test_vmap_of_seeds_and_lengths(p):
    draw = lambda q: p.ours(q, dropout=0.5)
    pair = p.q.expand(2, *p.q.shape)
    with pytest.raises(RuntimeError, match="random"):
        vmap(draw)(pair)
    a, b = vmap(draw, randomness="same")(pair)
    assert torch.equal(a, b)
    a, b = vmap(draw, randomness="different")(pair)
    assert not torch.equal(a, b)
    lengths = torch.tensor([[2], [3], [5]])
    got = vmap(lambda q, n: p.ours(q, kv_lens=n))(p.three, lengths)
    assert torch.equal(got, torch.stack([p.ours(q, kv_lens=n) for q, n in zip(p.three, lengths)]))


SAVED = ["q", "k", "v", "bias", "sink", "mask", "seed", "kv_lens", "o", "lse"]


@pytest.mark.parametrize("name", SAVED)
def test_changed_in_place(p, randn, name):
    t = {x: y.clone().requires_grad_() for x, y in {"q": p.q, "k": p.k, "v": p.v, "bias": randn(5, 5), "sink": randn(2)}.items()}
    t |= {"mask": randn(5, 5) > -1, "seed": torch.tensor(3), "kv_lens": torch.tensor([4])}
    t["o"], t["lse"] = ft.attention(**t, dropout=0.25, return_lse=True)
    with torch.no_grad():
        t[name].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (t["o"].sum() + t["lse"].sum()).backward()


def test_hooks(p):
    x, seen, packed = p.q.clone().requires_grad_(), [], []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        o = p.ours(x)
    x.register_hook(seen.append)
    o.register_hook(lambda g: 2 * g)
    o.sum().backward(retain_graph=True)
    near(x.grad, 2 * grad(lambda q: p.theirs(q).sum())(p.q))
    first = x.grad.clone()
    o.sum().backward()
    assert torch.equal(x.grad, 2 * first) and len(seen) == 2 and len(packed) >= 5


class Sub(torch.Tensor):
    pass


def test_kinds_of_tensors(p):
    expected = p.ours(p.q)
    got = p.ours(p.q.as_subclass(Sub))
    assert type(got) is Sub and torch.equal(got.as_subclass(torch.Tensor), expected)
    assert torch.equal(p.ours(torch.complex(p.q, -p.q).conj().imag), expected)  # a tensor with a lazy negation
    assert torch.equal(p.ours(torch._efficientzerotensor(p.q.shape)), p.ours(torch.zeros_like(p.q)))
    assert torch.equal(p.ours(p.q.mT.contiguous().mT), expected)
    meta = [t.to("meta") for t in (p.q, p.k, p.v)]
    o, lse = ft.attention(*meta, return_lse=True)
    assert o.is_meta and o.shape == p.q.shape and lse.shape == p.q.shape[:3]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(p, randn, dtype):
    q = p.q.clone().requires_grad_()
    lowered = [t.detach().to(dtype) for t in (p.q, p.k, p.v)]
    bias = randn(5, 5)
    leaf = lowered[0].clone().requires_grad_()
    expected = ft.attention(leaf, *lowered[1:], bias=bias)
    (g,) = torch.autograd.grad(expected.float().square().sum(), leaf)
    compiled = torch.compile(p.ours, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", dtype):
        got = p.ours(q, bias=bias)
        theirs = F.scaled_dot_product_attention(p.q, p.k, p.v)
        assert got.dtype == theirs.dtype == dtype and p.ours(p.q).dtype == compiled(p.q).dtype == dtype
        assert p.ours(p.q, bias=bias.half()).dtype == dtype
        with pytest.raises(flashkit.DTypeError):
            ft.attention(*(t.double() for t in (p.q, p.k, p.v)))
        with torch.autocast("cpu", enabled=False):
            assert p.ours(p.q).dtype == torch.float32
    assert torch.equal(got, expected) and torch.equal(p.ours(p.q), p.ours(p.q.clone()))
    (h,) = torch.autograd.grad(got.float().square().sum(), q)
    assert h.dtype == torch.float32 and torch.equal(h, g.float())


def nested(t, **keywords):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ignores the warning that nested tensors are a prototype
        return torch.nested.nested_tensor([t[0], t[0]], **keywords)


WRONG = {
    "sparse": (lambda p: {"q": p.q.to_sparse()}, flashkit.StrideError, "q"),
    "rows": (lambda p: {"k": p.k[0, 0].to_sparse_csr()}, flashkit.StrideError, "k"),
    "sparse mask": (lambda p: {"mask": torch.ones(5, 5).bool().to_sparse()}, flashkit.StrideError, "mask"),
    "nested": (lambda p: {"v": nested(p.v)}, flashkit.StrideError, "v"),
    "jagged": (lambda p: {"q": nested(p.q, layout=torch.jagged)}, flashkit.StrideError, "q"),
    "NumPy": (lambda p: {"q": p.q.numpy()}, flashkit.DTypeError, "q"),
    "NumPy's bias": (lambda p: {"bias": np.zeros((5, 5), np.float32)}, flashkit.DTypeError, "bias"),
    "None": (lambda p: {"k": None}, flashkit.DTypeError, "k"),
    "complex": (lambda p: {"q": p.q.to(torch.complex64).requires_grad_()}, flashkit.DTypeError, "q.dtype"),
    "float64": (lambda p: {"q": p.q.double(), "k": p.k.double(), "v": p.v.double()}, flashkit.DTypeError, "q.dtype"),
    "integers": (lambda p: {"q": p.q.int()}, flashkit.DTypeError, "q.dtype"),
    "float mask": (lambda p: {"mask": torch.zeros(5, 5, requires_grad=True)}, flashkit.DTypeError, "mask.dtype"),
    "one on meta": (lambda p: {"k": p.k.to("meta")}, flashkit.OptionError, "k.device"),
    "a bias on meta": (lambda p: {"bias": torch.zeros(5, 5, device="meta")}, flashkit.OptionError, "bias.device"),
    "a shape on meta": (lambda p: {"q": p.q.to("meta"), "k": p.k.to("meta")[..., :4], "v": p.v.to("meta")}, flashkit.DimensionError, "k.shape"),
    "causal": (lambda p: {"causal": "no"}, flashkit.OptionError, "causal"),
    "causal number": (lambda p: {"causal": 2}, flashkit.OptionError, "causal"),
    "return_lse": (lambda p: {"return_lse": "no"}, flashkit.OptionError, "return_lse"),
    "window": (lambda p: {"window": 3}, flashkit.OptionError, "window"),
    "one side": (lambda p: {"window": (3,)}, flashkit.OptionError, "window"),
    "half a key": (lambda p: {"window": (1.5, 0)}, flashkit.OptionError, "window"),
    "a side below -1": (lambda p: {"window": (-2, 0)}, flashkit.OptionError, "window"),
    "shift": (lambda p: {"shift": 1.5}, flashkit.OptionError, "shift"),
    "scale": (lambda p: {"scale": "1"}, flashkit.OptionError, "scale"),
    "dropout": (lambda p: {"dropout": None}, flashkit.OptionError, "dropout"),
    "seed": (lambda p: {"seed": 1.5, "dropout": 0.5}, flashkit.OptionError, "seed"),
    "float seed": (lambda p: {"seed": torch.tensor(1.5), "dropout": 0.5}, flashkit.DTypeError, "seed"),
    "two seeds": (lambda p: {"seed": torch.tensor([1, 2]), "dropout": 0.5}, flashkit.DTypeError, "seed"),
    "backend": (lambda p: {"backend": 5}, flashkit.OptionError, "backend"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong(p, name):
    changes, error, field = WRONG[name]
    with pytest.raises(error) as caught:
        ft.attention(**{"q": p.q, "k": p.k, "v": p.v} | changes(p))
    assert caught.value.field == field and str(caught.value).startswith("flashkit: ")


class Wrapper(torch.Tensor):
    """A tensor whose memory is another's."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, f, types, args=(), keywords=None):
        return f(*(x.inner if isinstance(x, Wrapper) else x for x in args), **(keywords or {}))


# Errors of flashkit.attention, which is not a PyTorch operator.
ARRAYS = {
    "dual": (lambda p, f: dual(f, p.q), flashkit.UnsupportedError),
    "jvp": (lambda p, f: jvp(f, (p.q,), (p.one,)), flashkit.UnsupportedError),
    "grad": (lambda p, f: grad(lambda q: f(q).sum())(p.q), flashkit.OptionError),
    "grad of a constant": (lambda p, f: grad(lambda q: (torch.no_grad()(f)(q) * q).sum())(p.q), flashkit.StrideError),
    "vmap": (lambda p, f: vmap(f)(p.three), flashkit.StrideError),
    "fake": (lambda p, f: f(FakeTensorMode().from_tensor(p.q)), flashkit.StrideError),
    "wrapper": (lambda p, f: f(Wrapper(p.q)), flashkit.StrideError),
}


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.filterwarnings("ignore:Accessing the data pointer")
def test_attention_of_arrays_refuses(p, name):
    call, error = ARRAYS[name]
    with pytest.raises(error) as caught:
        call(p, lambda q: flashkit.attention(q, p.k, p.v))
    assert caught.value.field == "q"
    if name == "dual":
        o, lse = flashkit.attention(p.q, p.k, p.v, return_lse=True)
        for f in (lambda x: flashkit.merge(o, lse, x, lse)[0], lambda x: flashkit.attention_backward(x, p.q, p.k, p.v, o, lse).d_q):
            with pytest.raises(flashkit.UnsupportedError, match="tangent"):
                dual(f, o)
    if name == "wrapper":
        assert torch.equal(p.ours(Wrapper(p.q)), p.ours(p.q))


def test_out_counts_as_a_change_in_place(p):
    for name, shape in (("out", (1, 2, 5, 8)), ("lse", (1, 2, 5))):
        given, w = torch.ones(shape), torch.ones(shape, requires_grad=True)
        y = (w * given).sum()
        flashkit.attention(p.q, p.k, p.v, **{name: given})
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()
    with torch.inference_mode():
        flashkit.attention(p.q, p.k, p.v, out=torch.ones(1, 2, 5, 8))
