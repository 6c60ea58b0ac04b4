#!/usr/bin/env python3
"""Check every stored number of the golden vectors against NumPy float64.

    python check_vectors.py [FOLDER]

FOLDER holds the *.safetensors.gz files. Without it the script takes
conformance/testdata of this repository. Nothing here comes from the Go code. The
formulas are those of the papers:

  Milakov, Gimelshein, Online normalizer calculation for softmax, 2018, section 2
  (softmax with the maximum subtracted). Dao, Fu, Ermon, Rudra, Re,
  FlashAttention, 2022, section 2.2 (attention) and appendix B.2 (gradients). Salmon,
  Moraes, Dror, Shaw, Parallel random numbers: as easy as 1, 2, 3, 2011, section 3.3
  (Philox4x32-7). Press, Smith, Lewis, Train short, test long, 2022 (ALiBi).

Features are in the terms of the README of the vectors. Pages are only a way to lie in
memory: such a vector is checked as one with lengths.

A number is good when |stored - computed| <= 1e-6 * max(1, |computed|). An LSE of
a row that gives no weight, and a row maximum without keys, must be exactly -inf, and what the formulas make NaN must be
NaN: a row with a score of NaN or +inf. Every other output must be finite. The
108 cases of the grid are made of the files of patterns, by the rule of the README;
for the largest of each file, which has the others in its corner, everything is
computed from all of its inputs and compared with the file's outputs, spread. The
exit status is 0 when all files pass, else 1 with one line for each bad tensor.
"""

import argparse
import gzip
import json
import math
import pathlib
import re
import sys
import zlib
from types import SimpleNamespace

import numpy as np

TOLERANCE = 1e-6
SUFFIX = ".safetensors.gz"
PATTERNS = re.compile(r"b1-h8-g8-(n(5|11|31)-m\2-d(8|32|64)-f32(-causal)?)", re.ASCII)
METADATA = ("case", "catches", "problem", "generator", "inputs")
FEATURES = ("softcap", "alibi", "bias", "mask", "ranges", "sink", "dropout", "origin", "int8group", "ragged", "page", "carry", "rowmax", "keymass", "kv")
PROBLEM = re.compile(
    r"b(?P<B>\d+)-h(?P<H>\d+)-g(?P<G>\d+)-n(?P<N>\d+)-m(?P<M>\d+)-d(?P<D>\d+)(-dv(?P<DV>\d+))?"
    r"-(f32|f16|bf16)(-kv(?P<kv>f16|bf16))?"
    r"((?P<causal>-causal)|-window(?P<L>\d+|inf)\.(?P<R>\d+|inf))?"
    r"(?P<topleft>-topleft)?"
    r"(-shift(?P<shift>-?[1-9]\d*))?"
    r"(-scale(?P<scale>\d+(\.\d+)?))?"
    r"(-softcap(?P<softcap>\d+(\.\d+)?))?"
    r"(?P<alibi>-alibi)?(?P<bias>-bias)?(?P<mask>-mask)?(-ranges(?P<ranges>[12]))?(?P<sink>-sink)?"
    r"(-dropout(?P<dropout>0\.\d+)(?P<origin>-origin)?)?(-int8group(?P<int8group>[1-9]\d*))?"
    r"(?P<ragged>-ragged)?(-page(?P<page>[1-9]\d*))?(?P<carry>-carry)?(?P<rowmax>-rowmax)?(?P<keymass>-keymass)?",
    re.ASCII,
)


def parse_problem(name):
    """Return the dimensions, the scale and the mask band that a name stands for."""
    match = PROBLEM.fullmatch(name)
    if match is None:
        raise ValueError(f"not a problem name: {name!r}")
    part = match.groupdict()
    p = SimpleNamespace(**{key: int(part[key]) for key in ("B", "H", "G", "N", "M", "D")})
    p.DV = int(part["DV"] or p.D)
    if min(p.H, p.G, p.D, p.DV) < 1 or p.H % p.G:
        raise ValueError(f"impossible dimensions: {name!r}")
    # A given scale is a float32 number. The default is not rounded.
    p.scale = float(np.float32(part["scale"])) if part["scale"] else 1 / math.sqrt(p.D)
    if p.scale == 0 or not math.isfinite(p.scale):
        raise ValueError(f"impossible scale: {name!r}")
    side = lambda text: math.inf if text in (None, "inf") else int(text)
    p.left = side(part["L"])
    p.right = 0 if part["causal"] else side(part["R"])
    p.topleft, p.shift = bool(part["topleft"]), int(part["shift"] or 0)
    for feature in FEATURES:
        setattr(p, feature, part[feature])
    p.softcap, p.dropout = (float(np.float32(part[name] or 0)) for name in ("softcap", "dropout"))
    p.plain = not any(part[feature] for feature in FEATURES + ("shift",))
    p.gradients = not (p.page or p.carry or p.kv or p.int8group or p.rowmax or p.keymass)
    groups = lambda dim: -(-dim // int(p.int8group or dim))
    p.shapes = {
        "q": (p.B, p.H, p.N, p.D), "k": (p.B, p.G, p.M, p.D), "v": (p.B, p.G, p.M, p.DV),
        "o": (p.B, p.H, p.N, p.DV), "lse": (p.B, p.H, p.N), "rowmax": (p.B, p.H, p.N), "keymass": (p.B, p.H, 1, p.M),
        "bias": (p.B, p.H, p.N, p.M), "mask": (p.B, p.H, p.N, p.M), "ranges": (p.B, p.H, p.N, 2 * int(p.ranges or 0)), "slopes": (p.B, p.H, 1, 1), "sink": (1, p.H, 1, 1),
        "kscale": (p.B, p.G, p.M, groups(p.D)), "vscale": (p.B, p.G, p.M, groups(p.DV)),
        "q_lens": (p.B, 1, 1, 1), "kv_lens": (p.B, 1, 1, 1), "earlier": (p.B, p.H, p.N, p.DV), "earlier_lse": (p.B, p.H, p.N, 1), "earlier_rowmax": (p.B, p.H, p.N, 1),
    }
    p.shapes.update({"d" + key: shape for key, shape in p.shapes.items()})
    return p


def philox(key, counter):
    """The four 32-bit words of Philox4x32-7."""
    low = 0xFFFFFFFF
    for _ in range(7):
        left, right = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = ((right >> 32) ^ counter[1] ^ key[0], right & low, (left >> 32) ^ counter[3] ^ key[1], left & low)
        key = ((key[0] + 0x9E3779B9) & low, (key[1] + 0xBB67AE85) & low)
    return counter


# Known answers that the authors of Philox publish with their code.
assert philox((0, 0), (0, 0, 0, 0)) == (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)
assert philox((0xA4093822, 0x299F31D0), (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)) == (
    0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A)


def kept(p, seed, b, h, i, keys):
    """What dropout multiplies the weights of these keys by: 0, or 1/(1-p), with p rounded to a multiple of 2^-16."""
    if not p.dropout:
        return np.ones(len(keys))
    least = min(math.floor(p.dropout * 2**16 + 0.5), 2**16 - 1)
    first = getattr(p, "first", (0, 0, 0, 0))  # first sequence, head, row and key
    b, h, i = b + first[0], h + first[1], i + first[2]
    numbers = []
    for j in (first[3] + int(key) for key in keys):
        word = philox((seed % 2**32, seed >> 32), (j // 8, i, h, b))[j % 4]
        numbers.append(word % 2**16 if j % 8 < 4 else word >> 16)
    return np.array([0 if number < least else 2**16 / (2**16 - least) for number in numbers])


def pair(x, b, h, i):
    """The numbers of row i in a tensor whose dimensions of length 1 repeat."""
    return x[tuple(0 if n == 1 else at for n, at in zip(x.shape, (b, h, i)))]


def attention(p, x, seed=0):
    """Compute the outputs from the inputs x. Return them and which rows give no weight.

    One row at a time, on the keys that it sees. Other keys are never read, so NaN there
    cannot matter.
    """
    names = ["o", "lse"]
    if p.gradients:
        names += ["dq", "dk", "dv"] + ["d" + name for name in ("bias", "sink") if name in x]
    names += [name for name in ("rowmax", "keymass") if getattr(p, name, None)]
    out = {name: np.zeros(x[name[1:]].shape if name in ("dbias", "dsink") else p.shapes[name]) for name in names}
    for name in {"lse", "rowmax"} & out.keys():
        out[name][...] = -np.inf
    for b in range(p.B):
        n, m = (int(x[name][b, 0, 0, 0]) if name in x else most for name, most in (("q_lens", p.N), ("kv_lens", p.M)))
        offset = p.shift + (0 if p.topleft else m - n)
        for h in range(p.H):
            for i in range(n):
                one_row(p, x, seed, out, b, h, i, i + offset, m)
    return out, out["lse"] == -np.inf


def one_row(p, x, seed, out, b, h, i, diagonal, m):
    """Fill in row i of head h of sequence b, which has m keys, and add its gradients."""
    g = h // (p.H // p.G)  # the key/value head
    keys = np.arange(m)  # row i sees the keys diagonal-left <= j <= diagonal+right
    keys = keys[(keys >= diagonal - p.left) & (keys <= diagonal + p.right)]
    if "mask" in x:
        keys = keys[pair(x["mask"], b, h, i)[keys] != 0]
    if "ranges" in x:
        ends = pair(x["ranges"], b, h, i).reshape(-1, 2)
        keys = keys[((keys[:, None] >= ends[:, 0]) & (keys[:, None] < ends[:, 1])).any(-1)]
    q, k, v = x["q"][b, h, i], x["k"][b, g, keys], x["v"][b, g, keys]

    # S = scale Q K^T, capped to c tanh(S / c), then bias and ALiBi.
    s, slope = p.scale * (k @ q), np.ones(len(keys))
    if p.softcap:
        t = np.tanh(s / p.softcap)
        s, slope = p.softcap * t, 1 - t * t
    if "bias" in x:
        s = s + pair(x["bias"], b, h, i)[keys]
    if "slopes" in x:
        steep = x["slopes"][b % len(x["slopes"]), h, 0, 0]
        s = s - (steep if np.isfinite(steep) else np.nan) * np.abs(keys - diagonal)

    # The row maximum has the scores alone, and that of earlier keys if there are some.
    if "rowmax" in out:
        tops = [s] + ([x["earlier_rowmax"][b, h, i]] if "earlier" in x and x["earlier_lse"][b, h, i, 0] != -np.inf else [])
        out["rowmax"][b, h, i] = np.max(np.concatenate(tops), initial=-np.inf)
        if np.any(s == np.inf):
            out["rowmax"][b, h, i] = np.nan

    # P = softmax of the scores, the sink, and the LSE of earlier keys. Scores weigh V, the
    # sink weighs nothing, and the LSE of earlier keys weighs their O. LSE = ln(sum(exp)).
    sink = x["sink"][0, h, 0, 0] if "sink" in x else -np.inf
    earlier = x["earlier_lse"][b, h, i, 0] if "earlier" in x else -np.inf
    logits = np.concatenate([s, [sink, earlier]])
    top = logits.max()
    if top == -np.inf:
        return  # O = 0, LSE = -inf, and no gradient
    total = np.exp(logits - top).sum()
    prob, of_sink, of_earlier = np.split(np.exp(logits - top) / total, [len(keys), len(keys) + 1])
    if "keymass" in out:
        out["keymass"][b, h, 0, keys] += prob
    keep = kept(p, seed, b, h, i, keys)
    out["o"][b, h, i] = (prob * keep) @ v if np.isfinite(total) else np.nan
    if "earlier" in x and of_earlier[0] != 0:
        out["o"][b, h, i] += of_earlier[0] * x["earlier"][b, h, i]
    out["lse"][b, h, i] = top + math.log(total)
    if not p.gradients:
        return

    # The loss is L = sum(O * dO) + sum(LSE * dLSE). Z are the dropout factors.
    # O = (P * Z) V    gives  dV = (P * Z)^T dO  and  dP = Z * (dO V^T).
    # P = softmax(S)   gives  dS = P * (dP - sum(P * dP)),  as  dP_j / dS_k = P_j (delta_jk - P_k),
    #                  also for the sink, whose dP is 0.
    # LSE              adds   P * dLSE,  as  dLSE / dS_k = P_k.
    # The bias is added to S, so its gradient is dS. S / c through tanh gives the slope.
    # S = scale Q K^T  gives  dQ = scale dS K  and  dK = scale dS^T Q.
    do = x["do"][b, h, i]
    dprob = keep * (v @ do)
    shift = (x["dlse"][b, h, i] if "dlse" in x else 0) - prob @ dprob
    ds = prob * (dprob + shift)
    if "sink" in x:
        out["dsink"][0, h, 0, 0] += of_sink[0] * shift
    if "bias" in x:
        pair(out["dbias"], b, h, i)[keys] += ds
    ds = ds * slope * p.scale
    out["dq"][b, h, i] = ds @ k
    out["dk"][b, g, keys] += np.outer(ds, q)
    out["dv"][b, g, keys] += np.outer(prob * keep, do)


def noise(case, tensor, shape):
    """Multiples of 1/16 from -2 to 31/16: the top six bits of a hashed counter."""
    seed = 2166136261
    for byte in f"{case}/{tensor}".encode("utf-8"):  # FNV-1a
        seed = (seed ^ byte) * 16777619 % 2**32
    # Products and sums of uint32 arrays wrap around, as the hash requires.
    h = np.arange(math.prod(shape), dtype=np.uint32) * np.uint32(0x9E3779B9) + np.uint32(seed)
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
    return ((h >> np.uint32(26)).astype(np.float64) - 32).reshape(shape) / 16


def spread(x):
    """The tensor [8, 8, ...] of the largest case, from the patterns [1, 8, ...] of a file.

    Head h of batch b is pattern 3 b + h, modulo 8, with the elements of every row
    rotated to the left by b. LSE has rows of one element.
    """
    return np.stack([np.stack([np.roll(x[0, (3 * b + h) % 8], -b, axis=-1) if x.ndim == 4 else x[0, (3 * b + h) % 8]
                               for h in range(8)]) for b in range(8)])


def unique(pairs):
    """A JSON object as a dict. A key that is there twice is an error."""
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key of the header is there twice")
    return dict(pairs)


def read_safetensors(blob):
    """Return (metadata, tensors): 8 bytes of length, a JSON header, the raw numbers."""
    size = int.from_bytes(blob[:8], "little")
    if len(blob) < 8 + size:
        raise ValueError("the file is cut short")
    header = json.loads(blob[8 : 8 + size].decode("utf-8"), object_pairs_hook=unique)
    body, end, tensors = blob[8 + size :], 0, {}
    metadata = header.pop("__metadata__", {})
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, stop = entry["data_offsets"]
        if entry["dtype"] != "F32" or begin != end or stop - begin != 4 * math.prod(entry["shape"]):
            raise ValueError(f"{name}: not F32, or its bytes do not follow the tensor before")
        numbers = np.frombuffer(body[begin:stop], "<f4").reshape(entry["shape"])
        tensors[name], end = numbers.astype(np.float64), stop
    if end != len(body):
        raise ValueError("the tensors do not fill the file")
    return metadata, tensors


def check_metadata(metadata, stem):
    for key, value in metadata.items():
        if key.startswith("bound_"):
            if not (0 < float(value) < math.inf):
                raise ValueError(f"{key}: {value!r} is not finite and positive")
        elif key not in METADATA + ("seed", "origin"):
            raise ValueError(f"unknown metadata key {key!r}")
    for key in METADATA:
        if not isinstance(metadata.get(key), str):
            raise ValueError(f"metadata key {key!r} is missing")
    if metadata["case"] != stem or metadata["inputs"] not in ("noise", "stored"):
        raise ValueError(f"case {metadata['case']!r}, inputs {metadata['inputs']!r}")


def check_tensors(p, metadata, tensors):
    """Check names, shapes, and what numbers there may be in tensors of features."""
    stored = metadata["inputs"] == "stored"
    if not stored and not p.plain:
        raise ValueError("a problem with features, and its inputs are not stored")
    if ("seed" in metadata) != (p.dropout != 0):
        raise ValueError("a seed belongs to dropout, and dropout to a seed")
    if ("origin" in metadata) != bool(p.origin):
        raise ValueError("the numbers of an origin belong to it, and it to them")
    required = {"o", "lse"}
    required |= {"q", "k", "v", "do"} if stored else set()
    required |= {name for name in ("bias", "mask", "ranges", "sink") if getattr(p, name)}
    required |= {"slopes"} if p.alibi else set()
    required |= {"earlier", "earlier_lse"} if p.carry else set()
    required |= {name for name in ("rowmax", "keymass") if getattr(p, name)}
    required |= {"kscale", "vscale"} if p.int8group else set()
    required |= {"earlier_rowmax"} if p.carry and p.rowmax else set()
    if p.gradients:
        required |= {"dq", "dk", "dv"} | {"d" + name for name in ("bias", "sink") if getattr(p, name)}
    optional = ({"dlse"} if stored else set()) | ({"q_lens", "kv_lens"} if p.ragged else set())
    if required - tensors.keys():
        raise ValueError(f"missing tensors: {sorted(required - tensors.keys())}")
    if tensors.keys() - required - optional:
        raise ValueError(f"unknown tensors: {sorted(tensors.keys() - required - optional)}")
    repeats = {"bias": 3, "dbias": 3, "mask": 3, "ranges": 2, "slopes": 1}  # number of dimensions that may be 1
    for name, values in tensors.items():
        for d, n in enumerate(values.shape):
            if len(values.shape) != len(p.shapes[name]) or n != p.shapes[name][d] and (n != 1 or d >= repeats.get(name, 0)):
                raise ValueError(f"{name}: shape {values.shape}, want {p.shapes[name]}")
    if p.bias and p.gradients and tensors["dbias"].shape != tensors["bias"].shape:
        raise ValueError("dbias has another shape than bias")
    for name in ("k", "v") if p.int8group else ():  # k and v are the products of integers and scales
        scales = np.repeat(tensors[name + "scale"], int(p.int8group), -1)[..., : tensors[name].shape[-1]]
        codes = np.divide(tensors[name], scales, out=np.zeros_like(scales), where=np.isfinite(scales) & (scales != 0))
        if not (np.isin(codes, np.arange(-128, 128)) & ((scales != 0) | (tensors[name] == 0))).all():
            raise ValueError(f"{name}: not all of its numbers are products of a scale and an int8")
    for name, most in (("mask", 1), ("ranges", p.M), ("q_lens", p.N), ("kv_lens", p.M)):
        if name in tensors and not np.isin(tensors[name], np.arange(most + 1)).all():
            raise ValueError(f"{name}: not all of its numbers are from 0 to {most}")


def worst_number(stored, computed, must_be_minus_inf):
    """Describe the worst bad number of a tensor. Return None when all are good."""
    gap = np.abs(stored - computed)
    allowed = TOLERANCE * np.maximum(1, np.abs(computed))
    close = np.isfinite(stored) & np.isfinite(computed) & (gap <= allowed)
    close |= np.isnan(stored) & np.isnan(computed)
    good = np.where(must_be_minus_inf, stored == -np.inf, close)
    if good.all():
        return None
    excess = np.nan_to_num(gap / allowed, nan=np.inf, posinf=np.inf)
    at = np.unravel_index(np.where(good, -1, excess).argmax(), stored.shape)
    return (f"difference {gap[at]:.3g} at {[int(n) for n in at]} (stored {stored[at]:.9g}, "
            f"computed {computed[at]:.9g}); {np.count_nonzero(~good)} of {good.size} are bad")


def check_file(path):
    """Return a list of complaints about one file. Empty means good."""
    try:
        metadata, tensors = read_safetensors(gzip.decompress(path.read_bytes()))
        check_metadata(metadata, path.name.removesuffix(SUFFIX))
        p = parse_problem(metadata["problem"])
        check_tensors(p, metadata, tensors)
        x = tensors if metadata["inputs"] == "stored" else {
            name: noise(metadata["case"], name, p.shapes[name]) for name in ("q", "k", "v", "do")}
        if match := PATTERNS.fullmatch(metadata["case"]):
            p = parse_problem("b8-h8-g8-" + match[1])
            x, tensors = ({name: spread(values) for name, values in of.items()} for of in (x, tensors))
        with np.errstate(all="ignore"):  # numbers that are not finite are reported below
            p.first = tuple(map(int, metadata.get("origin", "0 0 0 0").split()))
            out, empty = attention(p, x, int(metadata.get("seed", "0")))
            found = {name: worst_number(tensors[name], values, empty if name == "lse" else name == "rowmax" and values == -np.inf)
                     for name, values in out.items()}
        return [f"{name}: {text}" for name, text in found.items() if text]
    except (OSError, EOFError, zlib.error, MemoryError, ValueError, KeyError, TypeError, AttributeError) as err:
        return [f"{type(err).__name__}: {err}"]


def main():
    testdata = pathlib.Path(__file__).resolve().parent.parent / "conformance" / "testdata"
    parser = argparse.ArgumentParser(description="Check golden vectors in NumPy float64.")
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=testdata)
    folder = parser.parse_args().folder
    paths = sorted(folder.glob("*" + SUFFIX))
    if not paths:
        print(f"no *{SUFFIX} file in {folder}")
        return 1
    failed = 0
    for path in paths:
        complaints = check_file(path)
        failed += bool(complaints)
        for text in complaints:
            print(f"{path.name}: {text}")
    grid = 6 * sum(bool(PATTERNS.fullmatch(path.name.removesuffix(SUFFIX))) for path in paths)
    print(f"{len(paths) - failed} passed, {failed} failed; they hold {grid} cases of the grid")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
