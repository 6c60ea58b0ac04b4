"""The problems of forms.py: a problem with features, its tensors, and its outputs in float64."""

import dataclasses
import json
import math

import torch

TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.bool: "BOOL", torch.int8: "I8", torch.int32: "I32"}
RANGES = ("documents", "prefix", "window")  # 8 equal documents, a prefix of a quarter, a window of a quarter and the first 4 keys
INT8_SCALE = 1 / 64  # of all elements of an int8 cache, as other libraries have one scale for a tensor
LEAVES = ("q", "k", "v", "bias")  # inputs that have gradients, if the problem has a backward pass


@dataclasses.dataclass(frozen=True)
class Form:
    """A pass of a problem. bias and mask are shapes; broadcast dimensions are 1."""

    b: int
    h: int
    g: int
    n: int
    m: int
    d: int
    dtype: str = "f32"
    kv: str = ""  # the type of K and V, if it differs from the type of Q
    int8: int = 0  # K and V are int8, with a scale for this number of elements
    backward: bool = False
    causal: bool = False
    softcap: float = 0
    alibi: bool = False
    sink: bool = False
    dropout: float = 0
    bias: tuple = ()
    bias_gradient: bool = False
    mask: tuple = ()
    hidden: float = 0.2  # fraction of a mask that hides keys
    ranges: str = ""  # one of RANGES
    mask_lens: tuple = ()  # number of keys that the mask shows in each sequence; it hides the later ones
    lens: tuple = ()  # sequence lengths of a ragged problem
    kv_lens: tuple = ()
    packed: bool = False
    page: int = 0

    @property
    def name(self):
        ragged = self.lens or self.kv_lens
        parts = [f"b{self.b}-h{self.h}-g{self.g}-n{self.n}-m{self.m}-d{self.d}-{self.dtype}"]
        parts += [f"kv{self.kv}"] * bool(self.kv) + ["causal"] * self.causal
        parts += [f"softcap{self.softcap:g}"] * bool(self.softcap) + ["alibi"] * self.alibi
        parts += ["bias"] * bool(self.bias) + ["mask"] * bool(self.mask) + ["sink"] * self.sink
        parts += [f"dropout{self.dropout:g}"] * bool(self.dropout)
        parts += [f"ranges{2 if self.ranges == 'window' else 1}"] * bool(self.ranges)
        parts += [f"int8group{self.int8}"] * bool(self.int8)
        parts += ["ragged"] * bool(ragged) + [f"page{self.page}"] * bool(self.page)
        return "-".join(parts)

    @property
    def spoken(self):
        """Return the name with the properties that it does not contain."""
        shape = lambda s: "x".join(map(str, s))
        more = [f"bias {shape(self.bias)}"] * bool(self.bias) + ["and its gradient"] * self.bias_gradient
        more += [f"mask {shape(self.mask)}"] * bool(self.mask) + ["padding"] * bool(self.mask_lens)
        more += [f"ranges: {self.ranges}"] * bool(self.ranges)
        more += ["packed"] * self.packed + ["bwd" if self.backward else "fwd"]
        return f"{self.name} {', '.join(more)}"

    def slopes(self):
        return torch.tensor([2.0 ** (-8 * (h + 1) / self.h) for h in range(self.h)])

    def ends(self):
        """Return the ends of each row's ranges: first key, key after the last, and so on."""
        n, part = self.n, self.n // 4
        if self.ranges == "prefix":
            return torch.tensor([[0, max(part, i + 1)] for i in range(n)])
        if self.ranges == "window":
            return torch.tensor([[0, min(4, max(0, i + 1 - part)), max(0, i + 1 - part), i + 1] for i in range(n)])
        return torch.tensor([[i - i % (n // 8), min(i - i % (n // 8) + n // 8, n)] for i in range(n)])

    def shown(self):
        """Return the pairs that the ranges and the causal mask show, [N, M]."""
        e, keys = self.ends()[:, :, None], torch.arange(self.m)
        shown = ((keys >= e[:, ::2]) & (keys < e[:, 1::2])).any(1)
        return shown.tril(self.m - self.n) if self.causal else shown

    def tensors(self, seed):
        """Return random tensors of shape [B, H, N, D] or, if packed, [1, H, rows, D]. The mask is bool, slopes and sink are float32."""
        r = torch.Generator().manual_seed(seed)
        kind, kv = TYPES[self.dtype], TYPES[self.kv or self.dtype]
        noise = lambda kind, *shape: torch.randn(*shape, generator=r).to(kind)
        batch, rows, keys = (1, sum(self.lens), sum(self.kv_lens or self.lens)) if self.packed else (self.b, self.n, self.m)
        x = {"q": noise(kind, batch, self.h, rows, self.d)}
        x |= {name: noise(kv, batch, self.g, keys, self.d) for name in "kv"}
        if self.int8:
            x |= {name: torch.randint(-127, 128, x[name].shape, generator=r, dtype=torch.int8) for name in "kv"}
            x |= {f"{name}scale": torch.full((batch, self.g, keys, -(-self.d // self.int8)), INT8_SCALE) for name in "kv"}
        if self.backward:
            x["do"] = noise(kind, batch, self.h, rows, self.d)
        if self.bias:
            x["bias"] = noise(kind, *self.bias)
        if self.mask_lens:
            x["mask"] = (torch.arange(self.m) < torch.tensor(self.mask_lens)[:, None])[:, None, None, :].expand(self.mask).contiguous()
        elif self.mask:
            x["mask"] = torch.rand(self.mask, generator=r) >= self.hidden
        if self.ranges:
            x["ranges"] = self.ends().to(torch.int32)[None, None]
        if self.alibi:
            x["slopes"] = self.slopes().reshape(1, self.h, 1, 1)
        if self.sink:
            x["sink"] = noise(torch.float32, 1, self.h, 1, 1)
        return x

    def starts(self):
        """Return the first row of each packed sequence, then the number of rows."""
        return [sum(self.lens[:i]) for i in range(len(self.lens) + 1)]

    def exact(self, x):
        """Return the outputs of the last sequence's last head in float64."""
        cut = lambda t: t[-1, -1].double()
        if self.packed:
            rows = slice(sum(self.lens[:-1]), None)
            cut = lambda t: t[-1, -1, rows].double()
        q, k, v = (cut(x[name]).requires_grad_(self.backward) for name in "qkv")
        if self.int8:
            k, v = k * INT8_SCALE, v * INT8_SCALE
        bias = x["bias"][-1, -1].double().requires_grad_(self.bias_gradient) if self.bias else None
        s = q @ k.T / math.sqrt(self.d)
        n, m = s.shape
        distance = (torch.arange(m)[None] - torch.arange(n)[:, None] - (m - n)).double()
        if self.softcap:
            s = self.softcap * torch.tanh(s / self.softcap)
        if self.bias:
            s = s + bias
        if self.alibi:
            s = s - x["slopes"][0, -1, 0, 0].double() * distance.abs()
        if self.mask:
            s = s.masked_fill(~x["mask"][-1, -1], -torch.inf)
        if self.causal:
            s = s.masked_fill(distance > 0, -torch.inf)
        if self.ranges:
            s = s.masked_fill(~self.shown(), -torch.inf)
        if self.sink:
            s = torch.cat([s, x["sink"][0, -1].double().expand(n, 1)], dim=1)
        o = torch.softmax(s, dim=1)[:, :m] @ v
        if not self.backward:
            return {"o": o}
        (o * cut(x["do"])).sum().backward()
        out = {"dq": q.grad, "dk": k.grad, "dv": v.grad}
        if self.bias_gradient and self.bias[0] in (1, self.b) and self.bias[1] == self.h and self.b == 1:
            out["dbias"] = bias.grad
        return out

    def head(self, values):
        """Return the part of a library's outputs that exact computes."""
        rows = slice(sum(self.lens[:-1]), None) if self.packed else slice(None)
        return {name: t[-1, -1] if name == "dbias" else t[-1, -1, rows] for name, t in values.items()}


def save(path, tensors):
    """Write tensors as a safetensors file; the machine must be little endian."""
    header, data, at = {}, [], 0
    for name, x in tensors.items():
        raw = x.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        header[name] = {"dtype": NAMES[x.dtype], "shape": list(x.shape), "data_offsets": [at, at + len(raw)]}
        data.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data))


def load(path):
    """Return the tensors of a safetensors file."""
    blob = bytearray(path.read_bytes())
    size = int.from_bytes(blob[:8], "little")
    kinds = {name: kind for kind, name in NAMES.items()}
    out = {}
    for name, x in json.loads(blob[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + at for at in x["data_offsets"])
        raw = torch.frombuffer(blob[begin:end], dtype=torch.uint8) if end > begin else torch.empty(0, dtype=torch.uint8)
        out[name] = raw.view(kinds[x["dtype"]]).reshape(x["shape"])
    return out
