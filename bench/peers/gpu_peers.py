"""Problems for gpu.py, and calls of flashkit and its peers that compute them on PyTorch's tensors on a GPU.

The peers are PyTorch's scaled_dot_product_attention with its flash, cuDNN and efficient backends; FlexAttention;
FlashAttention-4 (PyPI: flash-attn-4) and cuDNN's frontend (PyPI: nvidia-cudnn-frontend), if they are installed. "fold" is
the flash backend for decode, with the query heads of a group as rows. cuDNN's frontend supports masks that PyTorch's cuDNN
backend does not.
"""

import functools
import math
import os
import pathlib
import re
import sys

NAME = re.compile(r"b(\d+)-h(\d+)-g(\d+)-n(\d+)-m(\d+)-d(\d+)(?:-dv(\d+))?-(f32|f16|bf16)"
                  r"(?:-(causal)|-window(\d+|inf)\.(\d+|inf))?(-topleft)?(?:-scale([0-9.]+))?")
PEERS = {"default": None, "flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "math": "MATH"}
DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")  # FlashAttention-4 then caches compiled kernels on disk


class Unable(Exception):
    """A peer cannot express a problem."""


def excuse(peer, e):
    """Print why a peer failed, unless it cannot express the problem or is not installed."""
    if not isinstance(e, (Unable, ImportError)):
        print(f"    {peer}: {(str(e) or repr(e)).splitlines()[0][:150]}", flush=True)


class Problem:
    """A problem, parsed from its name."""

    def __init__(self, name):
        match = NAME.fullmatch(name)
        if not match:
            raise ValueError(f"{name}: not a problem's name")
        self.batch, self.heads, self.kv_heads, self.q_len, self.kv_len, self.dim = map(int, match.groups()[:6])
        dv, self.dtype, causal, left, right, top, scale = match.groups()[6:]
        self.v_dim = int(dv or self.dim)
        self.scale = float(scale) if scale else None
        side = lambda s: math.inf if s in (None, "inf") else int(s)
        left, right = side(left), 0 if causal else side(right)
        offset = 0 if top else self.kv_len - self.q_len
        self.lo, self.hi = offset - left, offset + right  # row i sees keys i+lo to i+hi

    def seen(self):
        """Return the number of visible keys of each row."""
        return [max(0, min(self.kv_len - 1, i + self.hi) - max(0, i + self.lo) + 1) for i in range(self.q_len)]

    def flops(self, backward):
        return (2.5 if backward else 1) * 2 * self.batch * self.heads * sum(self.seen()) * (self.dim + self.v_dim)

    def mask(self, torch):
        """Return the problem's mask as keyword arguments of scaled_dot_product_attention."""
        if self.lo <= 1 - self.q_len and self.hi >= self.kv_len - 1:
            return {}
        if self.lo <= 1 - self.q_len and self.hi == 0:
            return {"is_causal": True}
        if self.lo <= 1 - self.q_len and self.hi == self.kv_len - self.q_len and self.q_len <= self.kv_len:
            from torch.nn.attention.bias import causal_lower_right
            return {"attn_mask": causal_lower_right(self.q_len, self.kv_len)}
        i = torch.arange(self.q_len, device="cuda")[:, None]
        j = torch.arange(self.kv_len, device="cuda")[None]
        return {"attn_mask": (j >= i + self.lo) & (j <= i + self.hi)}


GROUP_PEERS = ["flash", "cudnn", "efficient", "fold", "flex", "fa4", "frontend"]
LAYOUT_PEERS = ["varlen", "flashinfer"]
ERRORS = (RuntimeError, ValueError, TypeError, AssertionError, NotImplementedError, ImportError, AttributeError)


def flashkit():
    """Return the package flashkit: the installed one or, if there is none, the one of this checkout with bin/capi/libflashkit.so."""
    try:
        import flashkit as found
    except ImportError:
        root = pathlib.Path(__file__).resolve().parents[2]
        sys.path.insert(0, str(root / "capi/python/src"))
        import flashkit as found
    return found


@functools.cache
def any_order():
    """Return a dispatcher that sums dQ in any order, like FlashAttention and cuDNN."""
    return flashkit().Dispatcher(any_order=True)


@functools.cache
def unpaired():
    """Return a dispatcher for forward passes that no backward pass follows, like flashkit.torch.attention without gradients.

    With an LSE, other dispatchers choose among the kernels that sum scores as the backward pass does, without decode_sm80."""
    return flashkit().Dispatcher(unpaired=True)


def tensors(torch, p):
    """Return q, k, v and do with normal random numbers."""
    new = lambda heads, rows, dim: torch.randn(p.batch, heads, rows, dim, device="cuda", dtype=getattr(torch, DTYPES[p.dtype]))
    return new(p.heads, p.q_len, p.dim), new(p.kv_heads, p.kv_len, p.dim), new(p.kv_heads, p.kv_len, p.v_dim), new(p.heads, p.q_len, p.v_dim)


def unwritten(torch, *shape, dtype):
    return torch.full(shape, math.nan, device="cuda", dtype=dtype)


def window(p):
    """Return the mask as keywords of flashkit: causal, or a window of the visible keys left and right of the diagonal."""
    offset = p.kv_len - p.q_len
    left, right = offset - p.lo, p.hi - offset
    if left == math.inf:
        return {"causal": True} if right == 0 else {}
    return {"window": (int(left), int(right))}


def ours(torch, p, x):
    """Return flashkit's forward call and backward call, and O."""
    kit = flashkit()
    q, k, v, do = x
    o, lse = unwritten(torch, *do.shape, dtype=do.dtype), unwritten(torch, p.batch, p.heads, p.q_len, dtype=torch.float32)
    options = dict(window(p), scale=p.scale)
    forward = lambda backend=None: kit.attention(q, k, v, out=o, lse=lse, backend=backend, **options)
    gradients = lambda backend=None: kit.attention_backward(do, q, k, v, o, lse, backend=backend, **options)
    return forward, gradients, o


def sdpa(torch, p, x, peer):
    """Return a call of one of PyTorch's backends."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    q, k, v, _ = x
    options = dict(p.mask(torch), scale=p.scale, enable_gqa=p.heads != p.kv_heads)
    if peer == "fold":
        if options.keys() & {"is_causal", "attn_mask"} or p.heads == p.kv_heads:
            raise ValueError("fold is for grouped heads without a mask")
        q, options = q.reshape(p.batch, p.kv_heads, -1, p.dim), {"scale": p.scale}
    backend = getattr(SDPBackend, PEERS["flash" if peer == "fold" else peer])

    def call():
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, **options)

    return call


def flex(torch, p, x):
    """Return a call of FlexAttention, compiled for the mask. Only for windows, because compilation takes long."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if "window" not in window(p):
        raise ValueError("flex is for windows")
    q, k, v, _ = x
    lo, hi = p.lo, p.hi
    mask = create_block_mask(lambda b, h, i, j: (j >= i + lo) & (j <= i + hi), None, None, p.q_len, p.kv_len, device="cuda")
    torch._dynamo.reset()  # without a reset, torch.compile stops compiling after eight shapes
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled(q, k, v, block_mask=mask, scale=p.scale, enable_gqa=p.heads != p.kv_heads)


def fa4(p, x):
    from flash_attn.cute import flash_attn_func

    if p.dtype == "f32":
        raise ValueError("FlashAttention-4 takes 16 bits")
    q, k, v = (t.transpose(1, 2) for t in x[:3])
    band = window(p)
    options = {"window_size": band["window"]} if "window" in band else band

    def call():
        o = flash_attn_func(q, k, v, softmax_scale=p.scale, **options)
        return (o[0] if isinstance(o, tuple) else o).transpose(1, 2)

    return call


def fa4_varlen(q, k, v, **options):
    """Return a call of FlashAttention-4 for sequences of different lengths."""
    from flash_attn.cute import flash_attn_varlen_func

    def call():
        o = flash_attn_varlen_func(q, k, v, **options)
        return o[0] if isinstance(o, tuple) else o

    return call


class Frontend:
    """cuDNN's frontend, with a handle on PyTorch's stream."""

    def __init__(self, torch):
        import cudnn

        self.torch, self.cudnn = torch, cudnn
        self.handle = cudnn.create_handle()
        cudnn.set_stream(handle=self.handle, stream=torch.cuda.current_stream().cuda_stream)

    def graph(self, p):
        if p.dtype == "f32":
            raise ValueError("cuDNN's attention takes 16 bits")
        io = {"bf16": self.cudnn.data_type.BFLOAT16, "f16": self.cudnn.data_type.HALF}[p.dtype]
        single = self.cudnn.data_type.FLOAT
        return self.cudnn.pygraph(io_data_type=io, intermediate_data_type=single, compute_data_type=single, handle=self.handle)

    def mask(self, p):
        band, at = window(p), self.cudnn.diagonal_alignment
        if not band:
            return {}
        options = {"diagonal_alignment": at.TOP_LEFT if p.q_len == p.kv_len else at.BOTTOM_RIGHT, "diagonal_band_right_bound": band.get("window", (0, 0))[1]}
        if "window" in band:
            options["diagonal_band_left_bound"] = band["window"][0] + 1
        return options

    def call(self, graph, pack):
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([self.cudnn.heur_mode.A, self.cudnn.heur_mode.FALLBACK])
        graph.check_support()
        graph.build_plans()
        space = self.torch.empty(max(1, graph.get_workspace_size()), device="cuda", dtype=self.torch.uint8)

        def run():
            self.cudnn.set_stream(handle=self.handle, stream=self.torch.cuda.current_stream().cuda_stream)  # the current stream differs while a CUDA graph is captured
            graph.execute(pack, space, handle=self.handle)

        return run

    def forward(self, p, x):
        """Return the call, O, and the statistics that the backward pass needs."""
        g = self.graph(p)
        q, k, v = (g.tensor_like(t) for t in x[:3])
        o, stats = g.sdpa(name="sdpa", q=q, k=k, v=v, generate_stats=True, attn_scale=p.scale or p.dim**-0.5, **self.mask(p))
        out = unwritten(self.torch, *x[3].shape, dtype=x[3].dtype)
        sums = self.torch.empty(p.batch, p.heads, p.q_len, 1, device="cuda", dtype=self.torch.float32)
        o.set_output(True).set_dim(out.size()).set_stride(out.stride())
        stats.set_output(True).set_data_type(self.cudnn.data_type.FLOAT)
        return self.call(g, {q: x[0], k: x[1], v: x[2], o: out, stats: sums}), out, sums

    def backward(self, p, x):
        """Return the call and the gradients."""
        call, o, sums = self.forward(p, x)
        call()
        g = self.graph(p)
        given = {"q": x[0], "k": x[1], "v": x[2], "o": o, "dO": x[3], "stats": sums}
        named = {key: g.tensor_like(t) for key, t in given.items()}
        made = g.sdpa_backward(name="sdpa_backward", attn_scale=p.scale or p.dim**-0.5, **named, **self.mask(p))
        out = [unwritten(self.torch, *t.shape, dtype=t.dtype) for t in x[:3]]
        for a, b in zip(made, out):
            a.set_output(True).set_dim(b.size()).set_stride(b.stride())
        return self.call(g, {**{named[key]: t for key, t in given.items()}, **dict(zip(made, out))}), out


def frontend(torch, p, x, way):
    try:
        return getattr(Frontend(torch), way)(p, x)
    except Exception as e:  # cuDNN's exceptions are not RuntimeErrors
        raise RuntimeError(f"cuDNN's frontend: {e}") from e


def peer_call(torch, p, x, peer):
    if peer in PEERS or peer == "fold":
        return sdpa(torch, p, x, peer)
    return flex(torch, p, x) if peer == "flex" else fa4(p, x)


def forward(torch, p, x, peers):
    """Return {name: call} and {name: O} of the forward pass, without peers that do not support the problem."""
    attend, _, o = ours(torch, p, x)
    call = lambda: attend(unpaired())
    call()
    calls, results = {"flashkit": call}, {"flashkit": o}
    for peer in peers:
        try:
            if peer == "frontend":
                calls[peer], results[peer] = frontend(torch, p, x, "forward")[:2]
                calls[peer]()
                continue
            run = peer_call(torch, p, x, peer)
            with torch.no_grad():
                results[peer] = run().reshape(o.shape)
        except ERRORS:
            results.pop(peer, None), calls.pop(peer, None)
            continue
        calls[peer] = without_gradients(torch, run)
    return calls, results


def without_gradients(torch, run):
    def call():
        with torch.no_grad():
            return run()

    return call


def backward(torch, p, x, peers):
    """Return {name: call} and {name: gradients of q, k and v} of the backward pass, without peers that do not support the problem."""
    first, call, _ = ours(torch, p, x)
    first()
    calls, results = {"flashkit": call, "flashkit-any": lambda: call(any_order())}, {}
    for key, run in calls.items():
        results[key] = list(run())[:3]
    do = x[3]
    for peer in peers:
        leaves = [t.detach().requires_grad_() for t in x[:3]]
        try:
            if peer == "frontend":
                calls[peer], results[peer] = frontend(torch, p, x, "backward")
                calls[peer]()
                continue
            o = peer_call(torch, p, (*leaves, do), peer)()
            run = lambda o=o, leaves=leaves: torch.autograd.grad(o, leaves, do.reshape(o.shape), retain_graph=True)
            results[peer] = list(run())
        except ERRORS:
            results.pop(peer, None), calls.pop(peer, None)
            continue
        calls[peer] = run
    return calls, results


def weights(torch, p, q, k, rows):
    """Return the attention weights of some rows in float64."""
    s = q[rows] @ k.T * (p.scale or p.dim**-0.5)
    i, j = rows[:, None], torch.arange(p.kv_len, device="cuda")[None]
    s = s.masked_fill(~((j >= i + p.lo) & (j <= i + p.hi)), -math.inf)
    return torch.softmax(s, dim=-1).nan_to_num(0.0)  # nan_to_num sets rows that see no key to 0


def errors(torch, p, x, results, gradients):
    """Return {name: error}: the norm of the difference from float64, relative to float64's norm.

    The error is for O in some rows of the last head. With gradients, it is the largest of the errors of dQ of the last
    head and of dK and dV of its KV head."""
    group, kv = p.heads // p.kv_heads, p.kv_heads - 1
    k, v = x[1][-1, kv].double(), x[2][-1, kv].double()
    scale = x[3][-1, -1].double().norm()  # for gradients that are 0, as dQ and dK are if each row sees one key
    off = lambda got, want: ((got.double() - want).norm() / (want.norm() or scale)).item()
    if not gradients:
        rows = torch.arange(0, p.q_len, max(1, p.q_len // 100), device="cuda")
        want = weights(torch, p, x[0][-1, -1].double(), k, rows) @ v
        return {key: off(o[-1, -1][rows], want) for key, o in results.items()}
    dk, dv, dq = torch.zeros_like(k), torch.zeros_like(v), None
    for h in range(kv * group, p.heads):
        q, do, dq = x[0][-1, h].double(), x[3][-1, h].double(), torch.empty(p.q_len, p.dim, device="cuda", dtype=torch.float64)
        for i in range(0, p.q_len, 2048):
            rows = torch.arange(i, min(p.q_len, i + 2048), device="cuda")
            w, dp = weights(torch, p, q, k, rows), do[rows] @ v.T
            dv += w.T @ do[rows]
            ds = w * (dp - (w * dp).sum(-1, keepdim=True)) * (p.scale or p.dim**-0.5)
            dq[rows], dk = ds @ k, dk + ds.T @ q[rows]
    return {key: max(off(g[0][-1, -1], dq), off(g[1][-1, kv], dk), off(g[2][-1, kv], dv)) for key, g in results.items()}
