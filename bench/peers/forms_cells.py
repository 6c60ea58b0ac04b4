"""The cells of forms.py: which sides are timed together, and which ratios of their times are required."""

import dataclasses
import functools
import random

from forms_ggml import Ggml
from forms_problem import Form
from forms_sides import (Ours, Reading, onnx_added, onnx_attention, onnx_gqa, onnx_mha, shown, torch_added, torch_flex, torch_loop,
                         torch_math, torch_nested, torch_padded, torch_side)

SPEED = 1.3  # required speed, relative to the fastest peer
PEERS = {"PyTorch": shown(torch_side), "PyTorch math": shown(torch_math), "FlexAttention": torch_flex, "PyTorch float mask": shown(torch_added), "PyTorch nested": torch_nested, "PyTorch loop": torch_loop, "PyTorch padded": torch_padded,
         "ORT MHA": shown(onnx_mha), "ORT Attention": shown(onnx_attention),
         "ORT Attention float mask": shown(onnx_added), "ORT GQA": onnx_gqa}


@dataclasses.dataclass
class Line:
    """A required ratio of times: times[over] / times[what] * weight is at_least, or times[what] / times[over] * weight is at_most.

    If over has several sides, the fastest measured one counts."""

    what: str
    over: list
    at_least: float = 0
    at_most: float = 0
    weight: float = 1


@dataclasses.dataclass
class Group:
    """Sides that are timed in turns. makers are functions by label; each makes a side from a Session of forms.py."""

    part: str
    name: str
    threads: int
    makers: dict
    lines: list
    form: Form = None  # the form whose values are compared
    overhead: list = dataclasses.field(default_factory=list)  # (label, calls, grow, limit in seconds)


def beside(part, form, threads, ggml=False):
    """Return the group of a form: ours and all peers. With ggml, float32 forms also show ggml on float16 K and V, for which no ratio is required."""
    makers = {"ours": lambda s: Ours(s.program(threads), form, s.seed, s.limit, s.kernel, s.folder, s.tensors)}
    for name, make in PEERS.items():
        makers[name] = functools.partial(lambda make, s: make(form, s.tensors, threads), make)
    same = form.kv or form.dtype
    counted = list(makers)[1:] + [f"ggml {same}"] * ggml
    for kv in [same, "f16"][: (1 + (same == "f32")) * ggml]:
        makers[f"ggml {kv}"] = functools.partial(lambda kv, s: Ggml(s.ggml(), form, s.tensors, threads, kv), kv)
    return Group(part, form.spoken, threads, makers, [Line("ours", counted, at_least=SPEED)], form)


def alone(form, threads, hold=True, kernel="", like=""):
    return lambda s: Ours(s.program(threads), form, s.seed, s.limit, kernel or s.kernel, s.folder, hold=hold, like=s.sides.get(like))


def short(args, threads):
    """Yield short sequences with and without a key mask."""
    for dtype in ("f32", "bf16"):
        for d in (32, 64):
            for b in (1, 32):
                for n in (16, 32, 64, 128):
                    r = random.Random(f"{args.seed} {b} {n}")
                    plain = Form(b, 12, 12, n, n, d, dtype)
                    lens = tuple(r.randint(n // 2, n) for _ in range(b))
                    for form in (dataclasses.replace(plain, mask=(b, 1, 1, n), mask_lens=lens), plain):
                        group = beside("short", form, threads)
                        group.overhead = [("ours", 2000, False, 1.5e-6)] if (b, n) == (1, 16) else []
                        yield group


def masks(args, threads):
    """Yield masks and biases in both passes, and the same calls without them."""
    size = lambda n: max(16, n // 8) if args.small else n
    for dtype in ("f32", "bf16"):
        for b, h, n, d in ((8, 12, size(128), 64), (1, 12, size(512), 64), (1, 8, size(2048), 128)):
            for backward in (False, True):
                plain = Form(b, h, h, n, n, d, dtype, backward=backward)
                with_ = lambda **more: beside("masks", dataclasses.replace(plain, **more), threads)
                yield with_()
                yield with_(mask=(b, 1, 1, n))
                yield with_(mask=(b, 1, n, n))
                yield with_(mask=(b, h, n, n))
                yield with_(bias=(b, 1, 1, n))
                yield with_(bias=(1, h, n, n))
                if backward:
                    yield with_(bias=(1, h, n, n), bias_gradient=True)


def ranges(args, threads):
    """Yield ranges of keys in both passes."""
    n = 256 if args.small else 2048
    for dtype in ("f32", "bf16"):
        for d in (64, 128):
            for what, causal in (("documents", False), ("documents", True), ("prefix", False), ("window", False)):
                for backward in (False, True):
                    form = Form(1, 8, 8, n, n, d, dtype, backward=backward, causal=causal, ranges=what)
                    group = beside("ranges", form, threads)
                    group.lines[0].at_least = 2
                    yield group
                    if what == "documents":
                        yield as_packed(form, threads)


def as_packed(form, threads):
    """Return equal documents as ranges of one sequence, and the same documents as packed sequences."""
    size = form.n // 8
    packed = dataclasses.replace(form, b=8, n=size, m=size, ranges="", lens=(size,) * 8, packed=True)
    makers = {"ranges": lambda s: Ours(s.program(threads), form, s.seed, s.limit, s.kernel, s.folder, form.tensors(s.seed)), "packed": alone(packed, threads)}
    return Group("ranges", f"{form.spoken}, beside packed sequences", threads, makers, [Line("ranges", ["packed"], at_most=1.05)])


def rare(args, threads):
    """Yield softcap, sinks, ALiBi and packed sequences."""
    size = lambda n: max(16, n // 8) if args.small else n
    kinds = [{"softcap": 50.0}, {"sink": True}, {"softcap": 50.0, "sink": True}, {"alibi": True}]
    for dtype in ("f32", "f16", "bf16"):
        for kind in kinds:
            for h, g, n, d in ((8, 8, size(512), 64), (32, 8, size(1024), 128)):
                yield beside("rare", Form(1, h, g, n, n, d, dtype, causal=True, **kind), threads, ggml=True)
            yield beside("rare", Form(1, 32, 8, 1, size(8192), 128, dtype, causal=True, **kind), threads, ggml=True)
    for kind in kinds:  # a cache in a 16-bit type takes half the memory; ggml supports it too
        yield beside("rare", Form(1, 32, 8, 1, size(8192), 128, "f32", kv="f16", causal=True, **kind), threads, ggml=True)
    for dtype in ("f32", "f16", "bf16"):
        for causal in (False, True):
            r = random.Random(args.seed)
            lens = tuple(r.randint(8, size(512)) for _ in range(32))
            yield beside("rare", Form(32, 12, 12, max(lens), max(lens), 64, dtype, causal=causal, lens=lens, packed=True), threads, ggml=True)


def ragged(args, threads):
    """Yield sequences of unequal length, compared with equal lengths that have about the same number of pairs, and the cells of one_long."""
    b, most = (8, 256) if args.small else (32, 2048)
    r = random.Random(args.seed)
    draws = {"uniform": lambda: r.randint(8, most), "log-uniform": lambda: round(8 * (most / 8) ** r.random())}
    draws = {name: tuple(draw() for _ in range(b)) for name, draw in draws.items()}
    for dtype in ("f32", "bf16"):
        for backward in (False, True):
            for name, lens in draws.items():
                n, pairs = max(lens), sum(x * x for x in lens)
                equal = max(1, round((pairs / b) ** 0.5))
                form = Form(b, 12, 12, n, n, 64, dtype, backward=backward, lens=lens)
                makers = {"equal": alone(Form(b, 12, 12, equal, equal, 64, dtype, backward=backward), threads),
                          "packed": alone(dataclasses.replace(form, packed=True), threads), "padded": alone(form, threads)}
                weight = b * equal * equal / pairs
                lines = [Line(x, ["equal"], at_most=1.05, weight=weight) for x in ("packed", "padded")]
                yield Group("ragged", f"{name} {form.spoken}, {pairs} pairs", threads, makers, lines)
            yield one_long(b, most, dtype, backward, threads)


def one_long(b, most, dtype, backward, threads):
    """Return a group with a long sequence among short ones. The ideal time is the sum of two calls: the long sequence alone, and the short ones alone."""
    few = most // 32
    lens = (few,) * (b // 2) + (most,) + (few,) * (b - b // 2 - 1)
    form = Form(b, 12, 12, most, most, 64, dtype, backward=backward, lens=lens, packed=True)
    dense = lambda b, n: alone(Form(b, 12, 12, n, n, 64, dtype, backward=backward), threads)
    makers = {"packed": alone(form, threads), "padded": alone(dataclasses.replace(form, packed=False), threads),
              "long": dense(1, most), "short": dense(b - 1, few)}
    lines = [Line(x, ["long+short"], at_most=1.1) for x in ("packed", "padded")]
    return Group("ragged", f"one long, {form.spoken}", threads, makers, lines)


COSTS = {"alibi": ({"alibi": True}, 1.03), "sink": ({"sink": True}, 1.03), "key mask": ("key", 1.03), "padding": ("padding", 1.03),
         "softcap": ({"softcap": 30.0}, 1.1), "dropout": ({"dropout": 0.125}, 1.15), "bias": ("bias", 1.25), "mask": ("mask", 1.25)}


def costs(args, threads):
    """Yield calls with a feature, compared with the plain call of the same kernel, and mixed types, compared with a call in 16 bits."""
    h = 4
    for dtype in ("f32", "bf16"):
        for n in (128, 512) if args.small else (1024, 4096):
            for d in (64, 128):
                for backward in (False, True):
                    for causal in (False, True):
                        plain = Form(1, h, h, n, n, d, dtype, backward=backward, causal=causal)
                        shaped = {"key": {"mask": (1, 1, 1, n), "hidden": 0.1}, "padding": {"mask": (1, 1, 1, n), "hidden": 0},
                                  "bias": {"bias": (1, h, n, n)}, "mask": {"mask": (1, h, n, n), "hidden": 0.1}}
                        makers, lines = {}, []
                        for name, (what, most) in COSTS.items():
                            form = dataclasses.replace(plain, **(shaped[what] if isinstance(what, str) else what))
                            makers[name] = alone(form, threads)
                            makers[f"plain of {name}"] = functools.partial(plain_of, plain, threads, name)
                            lines.append(Line(name, [f"plain of {name}"], at_most=most))
                        if dtype == "f32" and not backward:
                            makers["kvbf16"] = alone(dataclasses.replace(plain, kv="bf16"), threads)
                            makers["bf16"] = alone(dataclasses.replace(plain, dtype="bf16"), threads)
                            lines.append(Line("kvbf16", ["bf16"], at_most=1.05))
                        yield Group("costs", plain.spoken, threads, makers, lines)


def plain_of(plain, threads, name, session):
    """Return the plain call of the kernel that a feature uses. Features with the same kernel share the call."""
    kernel = session.sides[name].kernel
    if kernel not in session.plain:
        session.plain[kernel] = alone(plain, threads, kernel=kernel)(session)
    return session.plain[kernel]


def decode(args, threads):
    """Yield decode with pages, with a cache in 16 bits, and with a growing cache.

    Pages use the memory of the contiguous cache, because times depend on the location of the memory."""
    size = lambda n: max(64, n // 16) if args.small else n
    for dtype in ("f32", "bf16", "f16"):
        for b, m in ((1, size(4096)), (1, size(32768)), (8, size(4096))):
            form = Form(b, 32, 8, 1, m, 128, dtype)
            paged = lambda page: alone(dataclasses.replace(form, page=page, kv_lens=(m,) * b), threads, like="contiguous")
            makers = {"contiguous": alone(form, threads), "page 16": paged(16), "page 1": paged(1)}
            lines = [Line("page 16", ["contiguous"], at_most=1.05), Line("page 1", ["contiguous"], at_most=1.25)]
            yield Group("decode", form.spoken, threads, makers, lines)
    for m in (size(32768), size(131072)):
        makers, lines = {}, []
        for name, form in {"kvbf16": Form(1, 32, 8, 1, m, 128, "f32", kv="bf16"), "kvf16": Form(1, 32, 8, 1, m, 128, "f32", kv="f16"),
                           "bf16": Form(1, 32, 8, 1, m, 128, "bf16"), "f32": Form(1, 32, 8, 1, m, 128, "f32")}.items():
            makers[name] = alone(form, threads)
            makers[f"reading {name}"] = functools.partial(lambda name, s: Reading(s.sides[name]), name)
            lines.append(Line(name, [f"reading {name}"], at_least=0.85))
        yield Group("decode", f"m {m}, rate beside reading K and V", threads, makers, lines)
    for h, g, d in ((1, 1, 32), (8, 2, 64)):
        form = Form(1, h, g, 1, size(16384), d, "bf16", kv_lens=(16,))
        for page in (0, 16):
            more = dataclasses.replace(form, page=page)
            steps = 500 if args.small else 10000
            yield Group("decode", f"growing {more.spoken}", threads, {"ours": alone(more, threads, hold=False)}, [], overhead=[("ours", steps, True, 1e-6)])


def int8(args, threads):
    """Yield decode over a cache in 8 bits, beside ONNX Runtime's. Its cache has one scale, so all scales of ours are equal."""
    for h, g in ((32, 8), (8, 8)):
        form = Form(1, h, g, 1, 2048 if args.small else 32768, 128, "f32", int8=128, causal=True)
        makers = {"ours": lambda s, form=form: Ours(s.program(threads), form, s.seed, s.limit, s.kernel, s.folder, s.tensors),
                  "ORT GQA": lambda s, form=form: onnx_gqa(form, s.tensors, threads)}
        yield Group("int8", form.spoken, threads, makers, [Line("ours", ["ORT GQA"], at_least=SPEED)], form)


PARTS = {"short": short, "masks": masks, "ranges": ranges, "rare": rare, "ragged": ragged, "costs": costs, "decode": decode, "int8": int8}
