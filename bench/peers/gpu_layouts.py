"""gpu.py --groups packed,paged: packed sequences of different lengths, and keys in pages.

Packed: all sequences are in tensors [tokens, heads, D]. There are four kinds of lengths: equal, uniform, log-uniform, and one
long sequence among short ones. The peers are PyTorch's varlen_attn, cuDNN's frontend with ragged offsets, and
FlashAttention-4. "even" is flashkit on dense tensors, with the same number of sequences, all of one length, and about the same
number of pairs. Its time is scaled to exactly the same number of pairs.

Paged: a decode step over pools [pages, page, heads, D], whose pages are in random order. "contiguous" is flashkit on the same
memory as [B, M, heads, D]. The peers are varlen_attn with a page table, cuDNN's frontend, FlashInfer (PyPI:
flashinfer-python), and FlashAttention-4, if they support the page size.
"""

import inspect
import math
import random

import gpu_peers

PACKED_PEERS = ["varlen", "frontend", "fa4"]
PAGED_PEERS = ["varlen", "frontend", "flashinfer", "fa4"]
KINDS = ["equal", "uniform", "log-uniform", "one-long"]


def lengths(kind, count, most, seed=1):
    """Return random lengths of a kind. The first is `most`, the longest."""
    r = random.Random(seed)
    draw = {"equal": lambda: most, "uniform": lambda: r.randint(1, most), "log-uniform": lambda: int(most ** r.random()),
            "one-long": lambda: r.randint(1, most // 16)}[kind]
    return [most] + [draw() for _ in range(count - 1)]


def starts(lens):
    at = [0]
    for n in lens:
        at.append(at[-1] + n)
    return at


class Packed:
    """Self-attention of packed sequences."""

    peers = PACKED_PEERS

    def __init__(self, kind, count, most, heads, kv_heads, dim, mask="", seed=1):
        self.kind, self.lens, self.mask = kind, lengths(kind, count, most, seed), mask
        self.heads, self.kv_heads, self.dim, self.dtype = heads, kv_heads, dim, "bf16"
        self.starts = starts(self.lens)
        self.p = self.problem(count, most)

    def problem(self, batch, n):
        return gpu_peers.Problem(f"b{batch}-h{self.heads}-g{self.kv_heads}-n{n}-m{n}-d{self.dim}-bf16" + ("-" + self.mask if self.mask else ""))

    def __str__(self):
        p = self.p
        return f"b{p.batch}-h{p.heads}-g{p.kv_heads}-n{p.q_len}-m{p.q_len}-d{p.dim}-bf16" + ("-" + self.mask if self.mask else "") + "-ragged " + self.kind

    def compiled(self):
        """Return a key that is equal for problems with the same compiled kernels."""
        return "packed", self.heads // self.kv_heads, self.dim, self.mask

    def flops(self, backward):
        return sum(self.problem(1, n).flops(backward) for n in self.lens)

    def even(self):
        """Return a dense problem of equal lengths, and the ratio of the packed problem's pairs to its pairs."""
        q = self.problem(len(self.lens), max(1, round(math.sqrt(sum(n * n for n in self.lens) / len(self.lens)))))
        return q, self.flops(False) / q.flops(False)

    def tensors(self, torch):
        new = lambda heads: torch.randn(self.starts[-1], heads, self.dim, device="cuda", dtype=torch.bfloat16)
        return new(self.heads), new(self.kv_heads), new(self.kv_heads), new(self.heads)

    def ours(self, torch, x):
        kit, q, k, v, do = gpu_peers.flashkit(), *(t[None] for t in x)
        o, lse = gpu_peers.unwritten(torch, *q.shape, dtype=q.dtype), gpu_peers.unwritten(torch, 1, self.heads, self.starts[-1], dtype=torch.float32)
        options = dict(gpu_peers.window(self.p), q_starts=self.starts, kv_starts=self.starts, layout="bshd")
        return lambda: kit.attention(q, k, v, out=o, lse=lse, **options), lambda: kit.attention_backward(do, q, k, v, o, lse, **options), o

    def ours_even(self, torch):
        q, scale = self.even()
        x = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in gpu_peers.tensors(torch, q)]
        forward, backward, _ = gpu_peers.ours(torch, q, x)
        forward()
        return forward, backward, scale

    def varlen(self, torch, x):
        from torch.nn.attention.varlen import varlen_attn

        at, most = torch.tensor(self.starts, device="cuda", dtype=torch.int32), max(self.lens)
        takes = inspect.signature(varlen_attn).parameters
        options = {"enable_gqa": True} if "enable_gqa" in takes and self.heads != self.kv_heads else {}
        if self.mask:
            options.update({"window_size": (-1, 0)} if "window_size" in takes else {"is_causal": True})
        return lambda: varlen_attn(x[0], x[1], x[2], at, at, most, most, **options)

    def fa4(self, torch, x):
        at, most = torch.tensor(self.starts, device="cuda", dtype=torch.int32), max(self.lens)
        return gpu_peers.fa4_varlen(*x[:3], cu_seqlens_q=at, cu_seqlens_k=at, max_seqlen_q=most, max_seqlen_k=most, causal=bool(self.mask))

    def calls(self, torch, way, peers):
        """Return {name: call} and {name: result} of a pass, and {name: factor of the time}."""
        x = self.x = self.tensors(torch)
        forward, backward, o = self.ours(torch, x)
        forward()
        even = self.ours_even(torch)
        back = way == "backward"
        calls = {"flashkit": backward if back else forward, "flashkit-even": even[1] if back else even[0]}
        results = {"flashkit": [g[0] for g in list(backward())[:3]] if back else o[0]}
        for peer in peers:
            try:
                if peer == "frontend":
                    calls[peer], results[peer] = Ragged(torch).backward(self, x) if back else Ragged(torch).forward(self, x)[:2]
                    calls[peer]()
                elif back:
                    leaves = [t.detach().requires_grad_() for t in x[:3]]
                    out = getattr(self, peer)(torch, leaves)()
                    calls[peer] = lambda out=out, leaves=leaves: torch.autograd.grad(out, leaves, x[3], retain_graph=True)
                    results[peer] = list(calls[peer]())
                else:
                    calls[peer] = gpu_peers.without_gradients(torch, getattr(self, peer)(torch, x))
                    results[peer] = calls[peer]()
            except Exception as e:  # cuDNN raises exceptions of its own types
                gpu_peers.excuse(peer, e)
                calls.pop(peer, None), results.pop(peer, None)
        return calls, results, {"flashkit-even": even[2]}

    def errors(self, torch, results, gradients):
        """Return {name: largest error of all sequences}."""
        worst = dict.fromkeys(results, 0.0)
        cut = lambda t, a, b: t[a:b].transpose(0, 1)[None]
        for a, b in zip(self.starts, self.starts[1:]):
            x = [cut(t, a, b) for t in self.x]
            part = {key: [cut(t, a, b) for t in r] if gradients else cut(r, a, b) for key, r in results.items()}
            for key, e in gpu_peers.errors(torch, self.problem(1, b - a), x, part, gradients).items():
                worst[key] = e if e != e else max(worst[key], e)
        return worst


class Ragged(gpu_peers.Frontend):
    """cuDNN's frontend on packed sequences and on pages."""

    def numbers(self, g, values, wide=False):
        """Return a tensor with a column of numbers, and its tensor in the graph."""
        t = self.torch.tensor(values, device="cuda", dtype=self.torch.int64 if wide else self.torch.int32).reshape(-1, 1, 1, 1)
        return t, g.tensor_like(t)

    def sides(self, g, c):
        """Return the graph tensors that packed tensors share, lengths and {heads: offsets}, and {graph tensor: PyTorch tensor}."""
        lens = self.numbers(g, c.lens)
        wide = {heads: self.numbers(g, [s * heads * c.dim for s in c.starts], True) for heads in {c.heads, c.kv_heads}}
        return lens[1], {h: w[1] for h, w in wide.items()}, {t: x for x, t in (lens, *wide.values())}

    def place(self, c, heads):
        most = max(c.lens)
        return [len(c.lens), heads, most, c.dim], [most * heads * c.dim, c.dim, heads * c.dim, 1]

    def given(self, g, c, heads, offsets):
        dim, stride = self.place(c, heads)
        t = g.tensor(dim=dim, stride=stride, data_type=self.cudnn.data_type.BFLOAT16)
        t.set_ragged_offset(offsets[heads])
        return t

    def made(self, t, c, heads, offsets):
        dim, stride = self.place(c, heads)
        t.set_output(True).set_dim(dim).set_stride(stride)
        t.set_ragged_offset(offsets[heads])

    def forward(self, c, x):
        g = self.graph(c)
        lens, offsets, pack = self.sides(g, c)
        q, k, v = self.given(g, c, c.heads, offsets), self.given(g, c, c.kv_heads, offsets), self.given(g, c, c.kv_heads, offsets)
        o, stats = g.sdpa(name="sdpa", q=q, k=k, v=v, generate_stats=True, attn_scale=c.dim**-0.5, use_padding_mask=True, seq_len_q=lens, seq_len_kv=lens, **self.mask(c.p))
        out = gpu_peers.unwritten(self.torch, *x[3].shape, dtype=x[3].dtype)
        sums = self.torch.empty(len(c.lens), c.heads, max(c.lens), 1, device="cuda", dtype=self.torch.float32)
        self.made(o, c, c.heads, offsets)
        stats.set_output(True).set_data_type(self.cudnn.data_type.FLOAT).set_dim(sums.size()).set_stride(sums.stride())
        return self.call(g, {**pack, q: x[0], k: x[1], v: x[2], o: out, stats: sums}), out, sums

    def backward(self, c, x):
        call, o, sums = self.forward(c, x)
        call()
        g = self.graph(c)
        lens, offsets, pack = self.sides(g, c)
        named = {key: self.given(g, c, heads, offsets) for key, heads in (("q", c.heads), ("k", c.kv_heads), ("v", c.kv_heads), ("o", c.heads), ("dO", c.heads))}
        named["stats"] = g.tensor_like(sums)
        made = g.sdpa_backward(name="sdpa_backward", attn_scale=c.dim**-0.5, use_padding_mask=True, seq_len_q=lens, seq_len_kv=lens,
                               max_total_seq_len_q=c.starts[-1], max_total_seq_len_kv=c.starts[-1], **named, **self.mask(c.p))
        out = [gpu_peers.unwritten(self.torch, *t.shape, dtype=t.dtype) for t in x[:3]]
        for t, heads in zip(made, (c.heads, c.kv_heads, c.kv_heads)):
            self.made(t, c, heads, offsets)
        tensors = dict(zip(("q", "k", "v", "o", "dO", "stats"), (*x[:3], o, x[3], sums)))
        return self.call(g, {**pack, **{named[key]: t for key, t in tensors.items()}, **dict(zip(made, out))}), out

    def paged(self, c, q, k, v, table):
        """Return a call of a decode step over pools of pages, and its O."""
        g, data = self.graph(c), self.cudnn.data_type.BFLOAT16
        pool = lambda t: g.tensor(dim=[t.shape[0], t.shape[2], t.shape[1], t.shape[3]], stride=[t.stride(0), t.stride(2), t.stride(1), 1], data_type=data)
        one, n = self.numbers(g, [1] * c.batch), self.numbers(g, [c.keys] * c.batch)
        pages = table[:, None, :, None].contiguous()
        named = [g.tensor_like(q.transpose(1, 2)), pool(k), pool(v), g.tensor_like(pages), g.tensor_like(pages)]
        o, _ = g.sdpa(name="sdpa", q=named[0], k=named[1], v=named[2], generate_stats=False, attn_scale=c.dim**-0.5, use_padding_mask=True,
                      seq_len_q=one[1], seq_len_kv=n[1], paged_attention_k_table=named[3], paged_attention_v_table=named[4], paged_attention_max_seq_len_kv=c.keys)
        out = gpu_peers.unwritten(self.torch, *q.shape, dtype=q.dtype)
        o.set_output(True).set_dim(out.transpose(1, 2).size()).set_stride(out.transpose(1, 2).stride())
        return self.call(g, {**dict(zip(named, (q, k, v, pages, pages))), one[1]: one[0], n[1]: n[0], o: out}), out


class Paged:
    """A decode step over keys in pages."""

    peers = PAGED_PEERS

    def __init__(self, batch, heads, kv_heads, keys, page, dim=128):
        self.batch, self.heads, self.kv_heads, self.keys, self.page, self.dim, self.dtype = batch, heads, kv_heads, keys, page, dim, "bf16"

    def __str__(self):
        return f"b{self.batch}-h{self.heads}-g{self.kv_heads}-n1-m{self.keys}-d{self.dim}-bf16-ragged-page{self.page}"

    def compiled(self):
        return "paged", self.heads // self.kv_heads, self.dim, self.page

    def flops(self, _):
        return 4 * self.batch * self.heads * self.keys * self.dim

    def calls(self, torch, _, peers):
        kit, b, m = gpu_peers.flashkit(), self.batch, self.keys
        new = lambda *shape: torch.empty(*shape, self.dim, device="cuda", dtype=torch.bfloat16).normal_()
        width = m // self.page
        self.q, self.k, self.v = new(b, 1, self.heads), new(b * width, self.page, self.kv_heads), new(b * width, self.page, self.kv_heads)
        self.table = torch.randperm(b * width, device="cuda").int().reshape(b, width)
        flat = [t.view(b, m, self.kv_heads, self.dim) for t in (self.k, self.v)]
        made = lambda: (gpu_peers.unwritten(torch, *self.q.shape, dtype=self.q.dtype), gpu_peers.unwritten(torch, b, self.heads, 1, dtype=torch.float32))
        (o, lse), (o2, lse2), lens = made(), made(), torch.full((b,), m, device="cuda", dtype=torch.int32)
        calls = {"flashkit": lambda: kit.attention(self.q, self.k, self.v, kv_lens=lens, pages=self.table, layout="bshd", out=o, lse=lse),
                 "flashkit-contiguous": lambda: kit.attention(self.q, *flat, layout="bshd", out=o2, lse=lse2)}
        results = {"flashkit": o, "flashkit-contiguous": o2}
        for call in calls.values():
            call()
        for peer in peers:
            try:
                calls[peer], results[peer] = getattr(self, peer)(torch)
            except Exception as e:
                gpu_peers.excuse(peer, e)
        return calls, results, {}

    def varlen(self, torch):
        from torch.nn.attention.varlen import varlen_attn

        takes = inspect.signature(varlen_attn).parameters
        name = "block_table" if "block_table" in takes else "page_table"
        if name not in takes:
            raise gpu_peers.Unable("varlen_attn takes no table of pages")
        at = torch.arange(self.batch + 1, device="cuda", dtype=torch.int32)
        used = torch.full((self.batch,), self.keys, device="cuda", dtype=torch.int32)
        options = {name: self.table, "seqused_k": used, **({"enable_gqa": True} if "enable_gqa" in takes else {})}
        call = gpu_peers.without_gradients(torch, lambda: varlen_attn(self.q[:, 0], self.k, self.v, at, None, 1, self.keys, **options))
        return call, call()[:, None]

    def frontend(self, torch):
        call, o = Ragged(torch).paged(self, self.q, self.k, self.v, self.table)
        call()
        return call, o

    def fa4(self, torch):
        used = torch.full((self.batch,), self.keys, device="cuda", dtype=torch.int32)
        call = gpu_peers.without_gradients(torch, gpu_peers.fa4_varlen(self.q, self.k, self.v, seqused_k=used, page_table=self.table))
        return call, call()

    def flashinfer(self, torch):
        import flashinfer

        space = torch.empty(128 << 20, device="cuda", dtype=torch.uint8)
        step = flashinfer.BatchDecodeWithPagedKVCacheWrapper(space, "NHD", use_tensor_cores=True, backend="fa2")
        at = torch.arange(self.batch + 1, dtype=torch.int32) * (self.keys // self.page)
        last = torch.full((self.batch,), self.page, dtype=torch.int32)
        step.plan(at, self.table.flatten(), last, self.heads, self.kv_heads, self.dim, self.page, q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16)
        call = lambda: step.run(self.q[:, 0], (self.k, self.v))
        return call, call()[:, None]

    def errors(self, torch, results, _):
        """Return the errors of the last head of the last sequence."""
        found = {}
        for key, o in results.items():
            pages = slice(-(self.keys // self.page), None) if key == "flashkit-contiguous" else self.table[-1].long()
            k, v = (t[pages][:, :, -1].reshape(self.keys, self.dim).double() for t in (self.k, self.v))
            want = torch.softmax(self.q[-1, 0, -1].double() @ k.T * self.dim**-0.5, -1) @ v
            found[key] = ((o[-1, 0, -1].double() - want).norm() / want.norm()).item()
        return found


def packed_cells():
    cells = []
    for kind in KINDS:
        for heads, kv_heads, dim in ((16, 16, 128), (32, 8, 128), (32, 32, 64)):
            cells += [Packed(kind, *((4, 4096) if kind == "equal" else (8, 4096) if kind == "uniform" else (32, 4096)), heads, kv_heads, dim, mask) for mask in ("", "causal")]
    return cells


def paged_cells():
    shapes = [(b, m) for m in (1024, 4096, 16384, 131072) for b in (1, 8, 32, 128)]  # the largest has 64 GiB of keys and values
    return [Paged(b, heads, 8, m, page) for page in (16, 64, 1) for heads in (32, 64) for b, m in shapes if page > 1 or b in (1, 32) and m != 4096]


def random_cells(seed, count):
    """Return random packed and paged cells, for which no kernel was tuned."""
    r, cells = random.Random(seed), []
    for i in range(count):
        group = 2 ** r.randrange(4)
        if i % 2 == 0:
            most = r.randrange(300, 8000)
            heads = group * 2 ** r.randrange(1, 4)
            cells.append(Packed(r.choice(KINDS[1:]), max(2, min(64, 40000 // most * r.randrange(1, 4))), most, heads, heads // group, r.choice((64, 96, 128)), r.choice(("", "causal")), seed + i))
        else:
            page, kv_heads = 2 ** r.randrange(9), r.choice((4, 8))
            keys = page * max(1, int(2 ** r.uniform(9, 15)) // page)
            cells.append(Paged(max(1, min(128, int(2 ** r.uniform(0, 20)) // keys)), kv_heads * group, kv_heads, keys, page))
    return cells
