#!/usr/bin/env python3
"""Compare flashrun's values with PyTorch's on random problems with random features.

    make torch-values
    python torch_values.py bin/flashrun [--problems 500] [--seed 1] [--only 17] [--backend simd/fwd_avx2]

A problem draws its shape, type and band, and each feature by chance: scale, softcap, bias,
mask, ALiBi, sink, dropout; sequences that are padded, packed or, for keys, in pages; a
first part of the keys that is continued. PyTorch computes it in float64, which is taken
for the truth, and again in the problem's own type, in two ways: by scaled_dot_product_attention where
that can, else by the formulas with softmax, and autograd; and by the formulas of
FlashAttention, whose backward pass is given O and LSE and not the weights, as ours is. A
third way is those formulas in float64, but of O and LSE as they are stored: O in the
problem's type, LSE the nearest float32 below or above. It is what a backward pass that
makes no error at all gives. The gradients are those of sum(O*DO) + sum(LSE*DLSE), of bias
and sink too. Of problems of unequal lengths each sequence is computed by itself.

An output passes if its largest error is at most twice that of PyTorch in the same type on
the same input, or four roundings of the largest element. PyTorch's error is the largest of
these ways and of 64 orders of rows, keys and the elements of a head, which change what is
rounded and not what is computed: that of one order, in a tensor of few elements, is an accident.
It only grows, so that no more orders are computed than it takes to pass, at least four. One line is
printed for each problem that fails, a table of the ratios to what was computed, and how many pass, also
beside one order with softmax alone. The exit status is 1 if any fails.
"""

import argparse
import sys

import numpy as np
import torch
import torch.nn.functional

import flashrun

TYPES = {"f32": (torch.float32, 2**-24), "f16": (torch.float16, 2**-11), "bf16": (torch.bfloat16, 2**-8)}
LEAVES = ("q", "k", "v", "bias", "sink")  # inputs that have gradients
ORDERS = 64  # with this number, PyTorch itself rarely fails in one more order
ROWS, KEYS = ("q", "do", "dlse", "o", "lse"), ("k", "v")


def philox(seed, c):
    """Philox4x32-7 of four arrays of counters: Salmon et al., 2011, section 3.3."""
    mask, key = np.uint64(0xFFFFFFFF), [seed & 0xFFFFFFFF, seed >> 32]
    c = [np.asarray(x, np.uint64) for x in np.broadcast_arrays(*c)]
    for _ in range(7):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(b >> np.uint64(32)) ^ c[1] ^ np.uint64(key[0]), b & mask, (a >> np.uint64(32)) ^ c[3] ^ np.uint64(key[1]), a & mask]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c)


def kept(p, seed, b, heads, rows, keys):
    """Return [heads, rows, keys]: whether dropout keeps the weight of a pair of sequence b."""
    h, i, j = np.ogrid[:heads, :rows, :keys]
    words = philox(seed, [j >> 3, i, h, np.uint64(b)])
    word = np.take_along_axis(words, np.broadcast_to(j & 3, words.shape[1:])[None], axis=0)[0]
    number = word >> np.asarray(j % 8 // 4 * 16, np.uint64) & np.uint64(0xFFFF)
    return number >= np.uint64(dropped(p))


def dropped(p):
    """Return how many of the 2^16 numbers drop a weight."""
    return min(int(np.floor(float(np.float32(p)) * 2**16 + 0.5)), 2**16 - 1)


class Problem:
    """A random problem: what it asks for, and its tensors, padded, as float32 that its type holds."""

    def __init__(self, seed):
        self.r = r = np.random.default_rng(seed)
        chance = lambda p: r.random() < p
        self.dtype = str(r.choice(["f32", "f32", "f32", "f16", "bf16"]))
        self.b, self.g, self.n = int(r.integers(1, 4)), int(r.integers(1, 4)), int(r.choice([1, 1, 3, 17, 64, int(r.integers(1, 100))]))
        self.h, self.m = self.g * int(r.integers(1, 4)), int(r.integers(1, 150))
        self.d = int(r.choice([8, 16, 32, 64, 72, int(r.integers(1, 40))]))
        self.dv = self.d if chance(0.7) else int(r.integers(1, 80))
        self.left, self.right = [(-1, -1), (-1, 0), (int(r.integers(0, 40)), int(r.integers(0, 40)))][int(r.integers(3))]
        self.top_left, self.shift = chance(0.3), int(r.integers(-5, 6)) if chance(0.3) else 0
        self.scale = float(np.float32(r.uniform(0.05, 1))) if chance(0.3) else None
        self.softcap = float(np.float32(r.uniform(0.5, 30))) if chance(0.3) else 0.0
        self.dropout = float(np.float32(r.uniform(0.05, 0.6))) if chance(0.25) else 0.0
        self.seed = int(r.integers(0, 2**63))
        self.q_side = str(r.choice(["full", "full", "padded", "packed"]))
        self.kv_side = str(r.choice(["full", "full", "padded", "packed", "paged"]))
        self.page = int(r.integers(1, 20))
        self.carry = chance(0.1)
        self.backward = self.kv_side != "paged" and not self.carry
        self.lens()
        self.tensors(chance)

    def lens(self):
        r = self.r
        length = lambda side, most: np.full(self.b, most) if side == "full" else r.integers(0, most + 1, self.b)
        self.q_lens, self.kv_lens = length(self.q_side, self.n), length(self.kv_side, self.m)
        for side, lens in ((self.q_side, self.q_lens), (self.kv_side, self.kv_lens)):
            if side == "packed" and not lens.any():  # all lengths are 0, so there is no bias to draw
                lens[0] = 1
        if self.q_side == "packed":
            self.n = max(1, int(self.q_lens.max()))
        if self.kv_side == "packed":
            self.m = max(1, int(self.kv_lens.max()))
        if self.kv_side == "paged":
            self.m = -(-self.m // self.page) * self.page

    def tensors(self, chance):
        r = self.r
        noise = lambda *shape: torch.from_numpy(r.standard_normal(shape)).to(TYPES[self.dtype][0]).double()
        self.x = x = {
            "q": noise(self.b, self.h, self.n, self.d) * float(r.choice([1, 1, 4])), "k": noise(self.b, self.g, self.m, self.d),
            "v": noise(self.b, self.g, self.m, self.dv) + float(r.integers(0, 2)), "do": noise(self.b, self.h, self.n, self.dv),
        }
        x["v"] = x["v"].to(TYPES[self.dtype][0]).double()
        pairs = lambda: [1 if chance(0.4) else n for n in (self.b, self.h, self.n)] + [self.m]
        if chance(0.3):
            x["bias"] = noise(*pairs())
            if chance(0.3):
                x["bias"][torch.from_numpy(r.random(x["bias"].shape) < 0.2)] = -torch.inf
        if chance(0.3):
            x["mask"] = torch.from_numpy(r.random(pairs()) < 0.8)
        if chance(0.3):
            slopes = 2.0 ** -r.integers(1, 9, (self.b if chance(0.3) else 1, self.h))
            x["slopes"] = torch.from_numpy(slopes)
        if chance(0.3):
            x["sink"] = noise(self.h)
        if self.backward and chance(0.4):
            x["dlse"] = noise(self.b, self.h, self.n)
        if self.carry:
            x["o"], x["lse"] = noise(self.b, self.h, self.n, self.dv), noise(self.b, self.h, self.n)
            x["lse"][torch.from_numpy(r.random(x["lse"].shape) < 0.2)] = -torch.inf  # these rows saw none of the earlier keys

    def __str__(self):
        window = "" if (self.left, self.right) == (-1, -1) else f" window {self.left},{self.right}"
        parts = [f"b{self.b}-h{self.h}-g{self.g}-n{self.n}-m{self.m}-d{self.d}-dv{self.dv}-{self.dtype}{window}"]
        parts += ["top-left"] * self.top_left + [f"shift {self.shift}"] * bool(self.shift)
        parts += [f"{name} {value:.3g}" for name, value in (("scale", self.scale), ("softcap", self.softcap), ("dropout", self.dropout)) if value]
        parts += [name for name in ("bias", "mask", "slopes", "sink", "dlse") if name in self.x]
        return ", ".join(parts + [f"q {self.q_side}", f"kv {self.kv_side}"] + ["carry"] * self.carry)

    def flags(self):
        side = lambda n: "inf" if n < 0 else str(n)
        flags = ["--dtype", self.dtype]
        if (self.left, self.right) != (-1, -1):
            flags += ["--window", f"{side(self.left)},{side(self.right)}"]
        flags += ["--top-left"] * self.top_left + ["--shift", self.shift]
        for name, value in (("scale", self.scale), ("softcap", self.softcap), ("dropout", self.dropout)):
            if value:
                flags += [f"--{name}", repr(value)]
        if self.dropout:
            flags += ["--dropout-seed", self.seed]
        return flags + ["--pass", "fwd,bwd"] * self.backward + ["--carry"] * self.carry


def visible(p, b, n, m):
    """Return [H, n, m]: which keys the rows of sequence b see, and each pair's distance from the diagonal."""
    i, j = torch.arange(n)[:, None], torch.arange(m)[None, :]
    distance = j - i - (p.shift + (0 if p.top_left else m - n))
    seen = torch.ones(n, m, dtype=torch.bool)
    if p.left >= 0:
        seen &= distance >= -p.left
    if p.right >= 0:
        seen &= distance <= p.right
    seen = seen.expand(p.h, n, m)
    if "mask" in p.x:
        seen = seen & of(p.x["mask"], b, p, n, m)
    return seen, distance.abs()


def of(t, b, p, n, m):
    """Return the [H, n, m] that sequence b has of a bias or a mask."""
    t = t[min(b, t.shape[0] - 1)]
    return t[:, : min(n, t.shape[1]), :m].expand(p.h, n, m)


def stored(p, o, lse, toward):
    """Return O and LSE, in float64, as a backward pass gets them: LSE rounded toward an infinity."""
    near = lse.detach().numpy().astype(np.float32)
    wrong = near > lse.detach().numpy() if toward < 0 else near < lse.detach().numpy()
    near[wrong] = np.nextafter(near[wrong], np.float32(toward))
    return o.detach().to(TYPES[p.dtype][0]).double(), torch.from_numpy(near).double()


def sequence(p, x, b, n, m, flash, toward, shuffle):
    """Return O and LSE of sequence b in the type of x, and a number whose gradients are those of the problem. Sums over rows and keys have the order that shuffle gives."""
    rows, keys = torch.from_numpy(shuffle(n)), torch.from_numpy(shuffle(m))
    pairs = lambda t: t[..., rows, :][..., keys]
    q, k, v = x["q"][b][:, rows], x["k"][b][:, keys], x["v"][b][:, keys]
    seen, distance = (pairs(t) for t in visible(p, b, n, m))
    scale = p.scale or p.d**-0.5
    k_all, v_all = (t.repeat_interleave(p.h // p.g, dim=0) for t in (k, v))
    s = q @ k_all.mT * scale
    if p.softcap:
        s = p.softcap * torch.tanh(s / p.softcap)
    if "bias" in x:
        s = s + (bias := pairs(of(x["bias"], b, p, n, m)))
    if "slopes" in x:
        slopes = x["slopes"][min(b, x["slopes"].shape[0] - 1)]
        s = s - slopes[:, None, None] * distance
    s = s.masked_fill(~seen, -torch.inf)
    if "sink" in x:
        s = torch.cat([s, x["sink"][:, None, None].expand(p.h, n, 1)], dim=-1)
    if p.carry:  # the earlier keys act as one more key, whose value is their o
        s = torch.cat([s, x["lse"][b][:, rows, None]], dim=-1)
    dead = (s == -torch.inf).all(dim=-1, keepdim=True)
    s = s.masked_fill(dead, 0)
    lse = torch.logsumexp(s, dim=-1, keepdim=True)
    weights = torch.exp(s - lse) if flash else torch.softmax(s, dim=-1)
    weights = weights.masked_fill(dead, 0)
    keep = 1
    if p.dropout:
        keep = pairs(torch.from_numpy(kept(p.dropout, p.seed, b, p.h, n, m))) / torch.tensor(1 - dropped(p.dropout) / 2**16, dtype=q.dtype)
    o = (weights[..., :m] * keep) @ v_all
    if p.carry:
        o = o + weights[..., -1:] * x["o"][b][:, rows]
    if not (flash or p.softcap or p.dropout or p.carry or "slopes" in x or "sink" in x or dead.any()):
        mask = seen if "bias" not in x else bias.masked_fill(~seen, -torch.inf)
        o = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask[None], scale=scale, enable_gqa=True)[0]
    do, dlse = x["do"][b][:, rows], x["dlse"][b][:, rows, None].masked_fill(dead, 0) if "dlse" in x else torch.zeros_like(lse)
    if flash:  # the formulas of FlashAttention (2022), appendix B: dS from O and LSE, and not from the weights
        o_in, lse_in = stored(p, o, lse, toward) if toward else (o, lse)
        weights = torch.exp(s - lse_in).masked_fill(dead, 0)
        dp = torch.nn.functional.pad((do @ v_all.mT) * keep, (0, s.shape[-1] - m))
        ds = weights * (dp - (do * o_in).sum(dim=-1, keepdim=True) + dlse)
        loss = (s.masked_fill(weights == 0, 0) * ds.detach()).sum() + (((weights[..., :m] * keep).detach() @ v_all) * do).sum()
    else:
        loss = (o * do).sum() + (lse * dlse).sum()
    back = torch.argsort(rows)
    return o[:, back], lse.masked_fill(dead, -torch.inf)[:, back, 0], loss


def by_torch(p, dtype, flash=False, order=0, toward=0):
    """Return all outputs, padded, computed by PyTorch in a type, as float64.

    Order 0 is that of the input. With an infinity to round LSE toward, the backward pass gets O and LSE as they are stored.
    """
    shuffle = np.random.default_rng(order).permutation if order else np.arange
    orders = {"d": torch.from_numpy(shuffle(p.d)), "dv": torch.from_numpy(shuffle(p.dv))}
    orders = {name: orders["d" if name in ("q", "k", "dq", "dk") else "dv"] for name in ("q", "k", "v", "o", "do", "dq", "dk", "dv")}
    x = {name: t[..., orders[name]] if name in orders else t.clone() for name, t in p.x.items()}
    x = {name: t if name == "mask" else t.to(dtype).requires_grad_(name in LEAVES) for name, t in x.items()}
    o, lse = torch.zeros(p.b, p.h, p.n, p.dv, dtype=dtype), torch.full((p.b, p.h, p.n), -torch.inf, dtype=dtype)
    loss = torch.zeros((), dtype=dtype)
    for b in range(p.b):
        n, m = int(p.q_lens[b]), int(p.kv_lens[b])
        if n == 0 or m == 0 and "sink" not in x and not p.carry:
            continue
        o_b, lse_b, part = sequence(p, x, b, n, m, flash, toward, shuffle)
        o[b, :, :n], lse[b, :, :n], loss = o_b.detach(), lse_b.detach(), loss + part
    out = {"o": o, "lse": lse}
    if p.backward:
        if loss.requires_grad:
            loss.backward()
        for name in LEAVES:
            if name in x:
                out["d" + name] = torch.zeros_like(x[name]) if x[name].grad is None else x[name].grad
    out = {name: t[..., torch.argsort(orders[name])] if name in orders else t for name, t in out.items()}
    return {name: t.detach().double().numpy() for name, t in out.items()}


def pack(t, lens):
    """Return the sequences of t [B, H, N, ...] one after the other, with rows of NaN around them, and their starts."""
    starts = np.concatenate([[1], 1 + np.cumsum(lens)]).astype(np.int32)
    packed = np.full((1, t.shape[1], int(starts[-1]) + 2, *t.shape[3:]), np.nan, np.float32)
    for b, n in enumerate(lens):
        packed[0, :, starts[b] : starts[b] + n] = t[b, :, :n]
    return packed, starts


def unpack(t, lens, most, filler):
    """Return packed sequences as [B, H, most, ...], with the filler behind them."""
    out = np.full((len(lens), t.shape[1], most, *t.shape[3:]), filler, np.float64)
    starts = 1 + np.concatenate([[0], np.cumsum(lens)])
    for b, n in enumerate(lens):
        out[b, :, :n] = t[0, :, starts[b] : starts[b] + n]
    return out


def paginate(p, x):
    """Put K and V into a pool of pages in any order, one of which nobody needs."""
    w = p.m // p.page
    table = p.r.permutation(p.b * w + 1)[: p.b * w].astype(np.int32).reshape(p.b, w)
    for name in KEYS:
        t = x[name]
        pool = np.full((p.b * w + 1, p.g, p.page, t.shape[3]), np.nan, np.float32)
        for b in range(p.b):
            for i in range(w):
                pool[table[b, i]] = t[b, :, i * p.page : (i + 1) * p.page]
        x[name] = pool
    x["pages"], x["kv_lens"] = table, p.kv_lens.astype(np.int32)


def inputs(p):
    """Return the tensors as arrays, as the problem lays its sequences out, with NaN in what no row may read."""
    x = {name: t.numpy() if t.dtype == torch.bool else t.numpy().astype(np.float32) for name, t in p.x.items()}
    for b in range(p.b):
        for names, lens in ((ROWS, p.q_lens), (KEYS, p.kv_lens)):
            for name in names:
                if name in x:
                    x[name][b, :, lens[b] :] = np.nan
    if not p.backward:
        x.pop("do")
    if p.q_side == "packed":
        for name in ROWS:
            if name in x:
                x[name], x["q_starts"] = pack(x[name], p.q_lens)
    elif p.q_side == "padded":
        x["q_lens"] = p.q_lens.astype(np.int64)
    if p.kv_side == "paged":
        paginate(p, x)
    elif p.kv_side == "packed":
        for name in KEYS:
            x[name], x["kv_starts"] = pack(x[name], p.kv_lens)
    elif p.kv_side == "padded":
        x["kv_lens"] = p.kv_lens.astype(np.int64)
    return x


def outputs(p, out):
    """Return what was computed from such inputs, padded, as float64."""
    if p.q_side == "packed":
        for name, filler in (("o", 0), ("lse", -np.inf), ("dq", 0)):
            if name in out:
                out[name] = unpack(out[name], p.q_lens, p.n, filler)
    if p.kv_side == "packed" and p.backward:
        for name in ("dk", "dv"):
            out[name] = unpack(out[name], p.kv_lens, p.m, 0)
    return {name: t.astype(np.float64) for name, t in out.items()}


def error(got, want):
    """Return the largest error: infinite where only one is not finite."""
    if got.shape != want.shape:
        return np.inf
    with np.errstate(invalid="ignore"):
        difference = np.where(got == want, 0, np.abs(got - want))
    return float(np.nan_to_num(difference, nan=np.inf).max(initial=0))


def compare(p, ours):
    """Return, for every output, the error of what ours computes, PyTorch's with softmax, the largest of its ways, and four roundings."""
    dtype, rounding = TYPES[p.dtype]
    truth, got = by_torch(p, torch.float64), outputs(p, ours(p, inputs(p)))
    if sorted(truth) != sorted(got):
        raise flashrun.Refused(f"outputs {sorted(got)} and not {sorted(truth)}")
    floor = {name: 4 * (2**-24 if name in ("lse", "dsink") else rounding) * np.abs(t[np.isfinite(t)]).max(initial=0) for name, t in truth.items()}
    off, most, softmax = {name: error(got[name], t) for name, t in truth.items()}, dict.fromkeys(truth, 0.0), None
    for order in range(ORDERS):
        own = [by_torch(p, dtype, flash, order) for flash in (False, True)]
        if not order:
            own += [by_torch(p, torch.float64, flash=True, toward=toward) for toward in (-np.inf, np.inf)]
        errors = {name: [error(x[name], t) for x in own] for name, t in truth.items()}
        softmax, most = softmax or {name: e[0] for name, e in errors.items()}, {name: max(most[name], *e) for name, e in errors.items()}
        if order >= 3 and all(off[name] <= max(2 * most[name], floor[name]) for name in truth):
            break
    return {name: (off[name], softmax[name], most[name], floor[name]) for name in truth}


def options(doc):
    """Return a parser of what the comparison takes."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=500)
    parser.add_argument("--seed", type=int, default=int(np.random.default_rng().integers(2**31)))
    parser.add_argument("--only", type=int, help="the problem of this number alone")
    parser.add_argument("--backend", default="auto", help="backend or kernel, as flashrun takes it")
    return parser


def run(args, ours):
    """Compare ours on all problems, print what the description says, and return whether all passed."""
    numbers = range(args.problems) if args.only is None else [args.only]
    print(f"seed {args.seed}, PyTorch {torch.__version__}")
    passed, strict, ratios = 0, 0, {}
    for i in numbers:
        p = Problem([args.seed, i])
        try:
            rows = compare(p, ours)
        except flashrun.Refused as reason:
            print(f"FAIL --seed {args.seed} --only {i}: {p}: {reason}")
            continue
        bad = []
        for name, (off, softmax, most, roundings) in rows.items():
            allowed = max(2 * most, roundings)
            if allowed > 0:
                ratios.setdefault(name, []).append(off / allowed)
            if not off <= allowed:
                bad.append(f"{name} is off by {off:.3g}, PyTorch by {softmax:.3g}, or {most:.3g} at most, {roundings:.3g} are four roundings")
        passed += not bad
        strict += all(off <= max(2 * softmax, roundings) for off, softmax, _, roundings in rows.values())
        if bad:
            print(f"FAIL --seed {args.seed} --only {i}: {p}: {'; '.join(bad)}")
    for name, list_of in ratios.items():
        print(f"{name:6} {len(list_of):4} problems, error over what is allowed: median {np.median(list_of):.2f}, largest {max(list_of):.2f}")
    print(f"{passed} of {len(numbers)} passed; {strict} of them beside softmax alone")
    return passed == len(numbers)


def main():
    parser = options(__doc__)
    parser.add_argument("flashrun")
    args = parser.parse_args()
    sys.exit(not run(args, lambda p, x: flashrun.run(args.flashrun, x, [*p.flags(), "--backend", args.backend])))


if __name__ == "__main__":
    main()
