"""gpu.py --groups forms,ranges: softcap, sinks, ALiBi, masks, biases and ranges of keys, compared with FlexAttention and cuDNN.

FlexAttention is compiled for the form: masks become block masks, sinks use its log-sum-exp, other forms are score_mod
functions. PyTorch's cuDNN and efficient backends take forms that are masks or biases. cuDNN's frontend (1.20 or newer) takes
the forms for which it has an argument. The backward pass of a bias includes the bias's gradient, unless the peer cannot
compute it. "lens" is flashkit with sequence lengths in place of a padding mask; cuDNN's frontend gets lengths, too.
"""

import math

import gpu_peers

FORM_PEERS = ["flex", "cudnn", "efficient", "frontend"]
KEYS = ["padding", "holes", "blocks"]  # masks of keys that are the same for all rows
FORMS = ["softcap", "sink", "alibi", "mask", *KEYS, "bias"]
RANGES = ["documents", "uneven", "prefix", "window"]  # ranges of keys: 8 equal documents, 8 others, a prefix of a quarter, a window of a quarter with 4 sinks
CAP = 30.0


class Form:
    """A problem with one of FORMS."""

    peers = FORM_PEERS

    def __init__(self, form, name):
        self.form, self.name, self.p = form, name, gpu_peers.Problem(name)
        self.dtype = self.p.dtype

    def __str__(self):
        return f"{self.name} {self.form}"

    def flops(self, backward):
        if self.form not in RANGES:
            return self.p.flops(backward)
        return self.p.flops(backward) * self.share()

    def ends(self):
        """Return the ends of each row's ranges: first key, key after the last, and so on."""
        n = self.p.q_len
        if self.form == "prefix":
            return [[0, max(n // 4, i + 1)] for i in range(n)]
        if self.form == "window":
            return [[0, min(4, max(0, i + 1 - n // 4)), max(0, i + 1 - n // 4), i + 1] for i in range(n)]
        lengths = [n // 8] * 8 if self.form == "documents" else [n * x // 64 for x in (5, 13, 2, 17, 1, 11, 8, 7)]
        starts = [sum(lengths[:i]) for i in range(8)]
        return [[s, s + x] for s, x in zip(starts, lengths) for _ in range(x)]

    def share(self):
        """Return the share of the problem's pairs that the ranges show."""
        p, pairs, all_ = self.p, 0, 0
        for i, row in enumerate(self.ends()):
            lo, hi = max(0, i + p.lo), min(p.kv_len, i + p.hi + 1)
            all_ += max(0, hi - lo)
            pairs += sum(max(0, min(b, hi) - max(a, lo)) for a, b in zip(row[::2], row[1::2]))
        return pairs / all_

    def made(self, torch):
        """Return the form's arguments as keywords of flashkit.attention."""
        p = self.p
        if self.form in RANGES:
            return {"ranges": torch.tensor(self.ends(), device="cuda", dtype=torch.int32)[None, None]}
        single = dict(device="cuda", dtype=torch.float32)
        if self.form == "softcap":
            return {"softcap": CAP}
        if self.form == "sink":
            return {"sink": torch.randn(p.heads, **single)}
        if self.form == "alibi":
            return {"slopes": torch.tensor([2 ** (-8 * (h + 1) / p.heads) for h in range(p.heads)], **single)}
        if self.form == "mask":  # a mask of 64x64 squares: a square is visible with probability 3/4, the diagonal's pairs always
            squares = torch.rand(p.batch, 1, -(-p.q_len // 64), -(-p.kv_len // 64), device="cuda") < 0.75
            mask = squares.repeat_interleave(64, 2).repeat_interleave(64, 3)[:, :, : p.q_len, : p.kv_len].contiguous()
            mask |= torch.eye(p.q_len, p.kv_len, device="cuda", dtype=torch.bool)
            return {"mask": mask}
        if self.form == "holes":  # hides a key with probability 1/10, but not the first, so that each row sees a key
            mask = torch.rand(p.batch, 1, 1, p.kv_len, device="cuda") >= 0.1
            mask[..., 0] = True
            return {"mask": mask}
        if self.form == "blocks":  # hides every other run of 128 keys
            return {"mask": (torch.arange(p.kv_len, device="cuda") // 128 % 2 == 0).expand(p.batch, 1, 1, -1).contiguous()}
        if self.form == "padding":  # shows the keys up to each sequence's length; the lengths add up to half of all keys
            most = [p.kv_len * (2 * b + 1) // (2 * p.batch) for b in range(p.batch)]
            return {"mask": (torch.arange(p.kv_len, device="cuda")[None] < torch.tensor(most, device="cuda")[:, None])[:, None, None].contiguous()}
        return {"bias": torch.randn(1, p.heads, p.q_len, p.kv_len, device="cuda", dtype=torch.bfloat16)}

    def score(self, torch, s, h, i, j, b=None):
        """Return the scores s after the form's change. Indices of head h, row i and key j broadcast."""
        x = self.given
        if self.form == "softcap":
            return CAP * torch.tanh(s / CAP)
        if self.form == "alibi":
            return s - x["slopes"][h] * (i + (self.p.kv_len - self.p.q_len) - j).abs()
        return s + x["bias"][0, h, i, j] if self.form == "bias" else s

    def seen(self, b, i, j):
        """Return whether rows i see keys j, or None if all pairs are visible."""
        p, on = self.p, None
        if p.hi < p.kv_len - 1 or p.lo > 1 - p.q_len:
            on = (j >= i + p.lo) & (j <= i + p.hi)
        if "ranges" in self.given:
            r = self.given["ranges"]
            end = lambda e: r[0, 0, i, e]
            within = (j >= end(0)) & (j < end(1))
            if r.shape[-1] == 4:
                within = within | (j >= end(2)) & (j < end(3))
            return within if on is None else on & within
        if "mask" not in self.given:
            return on
        m = self.given["mask"][b, 0, i if self.form == "mask" else 0, j]
        return m if on is None else on & m

    def calls(self, torch, way, peers):
        kit, p, back = gpu_peers.flashkit(), self.p, way == "backward"
        x = self.x = gpu_peers.tensors(torch, p)
        self.given = self.made(torch)
        q, k, v, do = x
        o, lse = gpu_peers.unwritten(torch, *do.shape, dtype=do.dtype), gpu_peers.unwritten(torch, p.batch, p.heads, p.q_len, dtype=torch.float32)
        options = dict(gpu_peers.window(p), **self.given)
        forward = lambda: kit.attention(q, k, v, out=o, lse=lse, **options)
        backward = lambda: kit.attention_backward(do, q, k, v, o, lse, d_bias=self.form == "bias", d_sink=self.form == "sink", **options)
        forward()
        calls, results = {"flashkit": backward if back else forward}, {"flashkit": list(backward())[:3] if back else o}
        if self.form == "padding":
            calls["flashkit-lens"], results["flashkit-lens"] = self.by_lengths(torch, back)
        for peer in peers:
            leaves = [t.detach().requires_grad_(back) for t in x[:3]]
            try:
                if peer == "frontend":
                    calls[peer], results[peer] = Scored(torch).backward(self, x) if back else Scored(torch).forward(self, x)[:2]
                    calls[peer]()
                    continue
                run = getattr(self, "sdpa" if peer in gpu_peers.PEERS else peer)(torch, leaves, peer)
                if back:
                    out, wanted = run(), leaves + [t for t in self.leaves if t.requires_grad]
                    calls[peer] = lambda out=out, wanted=wanted: torch.autograd.grad(out, wanted, do, retain_graph=True)
                    results[peer] = list(calls[peer]())[:3]
                else:
                    calls[peer] = gpu_peers.without_gradients(torch, run)
                    results[peer] = calls[peer]()
            except Exception as e:
                gpu_peers.excuse(peer, e)
                calls.pop(peer, None), results.pop(peer, None)
        return calls, results, {}

    def by_lengths(self, torch, back):
        """Return a call with sequence lengths in place of the padding mask, and its result."""
        kit, (q, k, v, do) = gpu_peers.flashkit(), self.x
        o, lse = gpu_peers.unwritten(torch, *do.shape, dtype=do.dtype), gpu_peers.unwritten(torch, *do.shape[:3], dtype=torch.float32)
        options = dict(gpu_peers.window(self.p), top_left=True, kv_lens=self.given["mask"].sum(-1).flatten().int().cpu().numpy())
        forward = lambda: kit.attention(q, k, v, out=o, lse=lse, **options)
        backward = lambda: kit.attention_backward(do, q, k, v, o, lse, **options)
        forward()
        return (backward, list(backward())[:3]) if back else (forward, o)

    def sdpa(self, torch, leaves, peer):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        p = self.p
        if self.form not in ("mask", *KEYS, "bias"):
            raise gpu_peers.Unable("has no such form")
        given = self.given.get("bias", self.given.get("mask"))
        if p.hi < p.kv_len - 1:
            i, j = torch.arange(p.q_len, device="cuda")[:, None], torch.arange(p.kv_len, device="cuda")[None]
            on = j <= i + p.hi
            given = given.masked_fill(~on, -math.inf) if self.form == "bias" else given & on
        self.leaves = [given.detach().requires_grad_(self.form == "bias" and leaves[0].requires_grad)]
        given = self.leaves[0].expand(p.batch, -1, -1, -1)
        backend = getattr(SDPBackend, gpu_peers.PEERS[peer])

        def call():
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(*leaves, attn_mask=given, enable_gqa=p.heads != p.kv_heads)

        return call

    def flex(self, torch, leaves, _):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        p, x = self.p, dict(self.given)
        masked = p.hi < p.kv_len - 1 or "mask" in x or "ranges" in x
        block = create_block_mask(lambda b, h, i, j: self.seen(b, i, j), p.batch if "mask" in x else None, None, p.q_len, p.kv_len, device="cuda") if masked else None
        self.leaves = []
        if self.form == "bias":
            self.leaves = [x["bias"].detach().requires_grad_(leaves[0].requires_grad)]
            self.given = dict(x, bias=self.leaves[0])
        torch._dynamo.reset()  # without a reset, torch.compile stops compiling after eight forms
        compiled = torch.compile(flex_attention, dynamic=False)
        score = (lambda s, b, h, i, j: self.score(torch, s, h, i, j)) if self.form in ("softcap", "alibi", "bias") else None
        options = dict(score_mod=score, block_mask=block, enable_gqa=p.heads != p.kv_heads)
        if self.form != "sink":
            return lambda: compiled(*leaves, **options)
        self.leaves = [x["sink"].detach().requires_grad_(leaves[0].requires_grad)]

        @torch.compile(dynamic=False)
        def sunk(q, k, v, sink):
            o, lse = flex_attention(q, k, v, return_lse=True, **options)
            return (o * torch.sigmoid(lse - sink[None, :, None])[..., None]).to(o.dtype)

        return lambda: sunk(*leaves, self.leaves[0])

    def errors(self, torch, results, gradients):
        """Return the relative errors of O in rows of the last head, or of the gradients of its group."""
        p, x = self.p, self.x
        group, kv = p.heads // p.kv_heads, p.kv_heads - 1
        k, v = x[1][-1, kv].double(), x[2][-1, kv].double()
        off = lambda got, want: ((got.double() - want).norm() / want.norm()).item()
        heads = range(kv * group, p.heads) if gradients else [p.heads - 1]
        dk, dv, dq, found = torch.zeros_like(k), torch.zeros_like(v), None, {}
        for h in heads:
            every = range(0, p.q_len, 2048) if gradients else [0]
            dq = torch.empty(p.q_len, p.dim, device="cuda", dtype=torch.float64)
            for at in every:
                rows = torch.arange(at, min(p.q_len, at + 2048), device="cuda") if gradients else torch.arange(0, p.q_len, max(1, p.q_len // 100), device="cuda")
                q = x[0][-1, h][rows].double().requires_grad_(gradients)
                kk, vv = k.clone().requires_grad_(gradients), v.clone().requires_grad_(gradients)
                i, j = rows[:, None], torch.arange(p.kv_len, device="cuda")[None]
                s = self.score(torch, q @ kk.T * p.dim**-0.5, h, i, j)
                on = self.seen(p.batch - 1, i, j)
                s = s if on is None else s.masked_fill(~on, -math.inf)
                if self.form == "sink":
                    s = torch.cat([s, self.given["sink"][h].double().expand(len(rows), 1)], -1)
                o = torch.softmax(s, -1)[:, : p.kv_len] @ vv
                if not gradients:
                    return {key: off(r[-1, -1][rows], o) for key, r in results.items()}
                g = torch.autograd.grad(o, (q, kk, vv), x[3][-1, h][rows].double())
                dq[rows], dk, dv = g[0], dk + g[1], dv + g[2]
        for key, g in results.items():
            found[key] = max(off(g[0][-1, -1], dq), off(g[1][-1, kv], dk), off(g[2][-1, kv], dv))
        return found


class Scored(gpu_peers.Frontend):
    """cuDNN's frontend on problems with a form."""

    def form(self, g, c):
        """Return the form's keywords for a graph of either pass, and {graph tensor: PyTorch tensor} of their values."""
        p, options, pack = c.p, self.mask(c.p), {}

        def given(t):
            named = g.tensor_like(t)
            pack[named] = t
            return named

        if c.form == "bias":
            options["bias"] = given(c.given["bias"].detach())
        elif c.form == "sink":
            options["sink_token"] = given(c.given["sink"].reshape(1, -1, 1, 1))
        elif c.form == "padding":
            column = lambda t: given(t.int().reshape(-1, 1, 1, 1).contiguous())
            lens = c.given["mask"].sum(-1)
            options.update(use_padding_mask=True, seq_len_q=column(self.torch.full_like(lens, p.q_len)), seq_len_kv=column(lens))
        elif c.form == "alibi" and options:
            options["use_alibi_mask"] = True
        elif c.form == "softcap":
            options.update(self.softcap(g, pack))
        else:
            raise gpu_peers.Unable("has no such form")
        return options, pack

    def softcap(self, g, pack):
        value = lambda: g.tensor(dim=[1, 1, 1, 1], stride=[1, 1, 1, 1], is_pass_by_value=True, data_type=self.cudnn.data_type.FLOAT)
        number = lambda x: self.torch.full((1, 1, 1, 1), x, dtype=self.torch.float32)
        lower, upper, single, kept = value(), value(), dict(compute_data_type=self.cudnn.data_type.FLOAT), {}
        pack.update({lower: number(1 / CAP), upper: number(CAP)})

        def score(graph, s):
            kept["s"] = graph.mul(a=s, b=lower, **single)
            return graph.mul(a=graph.tanh(input=kept["s"], **single), b=upper, **single)

        def back(graph, ds):
            ds = graph.mul(a=ds, b=upper, **single)
            return graph.mul(a=graph.tanh_backward(loss=ds, input=kept["s"], **single), b=lower, **single)

        return {"score_mod": score, "score_mod_bprop": back}

    def forward(self, c, x):
        g = self.graph(c.p)
        options, pack = self.form(g, c)
        options.pop("score_mod_bprop", None)
        q, k, v = (g.tensor_like(t) for t in x[:3])
        o, stats = g.sdpa(name="sdpa", q=q, k=k, v=v, generate_stats=True, attn_scale=c.p.dim**-0.5, **options)
        out = gpu_peers.unwritten(self.torch, *x[3].shape, dtype=x[3].dtype)
        sums = self.torch.empty(c.p.batch, c.p.heads, c.p.q_len, 1, device="cuda", dtype=self.torch.float32)
        o.set_output(True).set_dim(out.size()).set_stride(out.stride())
        stats.set_output(True).set_data_type(self.cudnn.data_type.FLOAT)
        return self.call(g, {**pack, q: x[0], k: x[1], v: x[2], o: out, stats: sums}), out, sums

    def backward(self, c, x):
        call, o, sums = self.forward(c, x)
        call()
        g = self.graph(c.p)
        options, pack = self.form(g, c)
        for gradient, of in (("dBias", "bias"), ("dSink_token", "sink_token")):
            if of in options:
                t = gpu_peers.unwritten(self.torch, *pack[options[of]].shape, dtype=pack[options[of]].dtype)
                options[gradient] = g.tensor_like(t)
                pack[options[gradient]] = t
        named = {key: g.tensor_like(t) for key, t in zip(("q", "k", "v", "o", "dO", "stats"), (*x[:3], o, x[3], sums))}
        made = g.sdpa_backward(name="sdpa_backward", attn_scale=c.p.dim**-0.5, **named, **options)
        out = [gpu_peers.unwritten(self.torch, *t.shape, dtype=t.dtype) for t in x[:3]]
        for a, b in zip(made, out):
            a.set_output(True).set_dim(b.size()).set_stride(b.stride())
        pack.update(zip(named.values(), (*x[:3], o, x[3], sums)))
        return self.call(g, {**pack, **dict(zip(made, out))}), out


def form_cells():
    square = ["b4-h16-g16-n4096-m4096-d128-bf16", "b4-h32-g32-n4096-m4096-d64-bf16"]
    return [Form(form, name) for name in [n + mask for n in square for mask in ("", "-causal")] + ["b4-h32-g8-n2048-m2048-d128-bf16"] for form in FORMS]


def range_cells():
    square = ["b4-h16-g16-n4096-m4096-d128-bf16", "b4-h16-g16-n4096-m4096-d64-bf16", "b1-h32-g8-n16384-m16384-d128-bf16"]
    return [Form(form, name + mask) for name in square for form, mask in (("documents", ""), ("documents", "-causal"), ("uneven", "-causal"), ("prefix", ""), ("window", ""))]
