#!/usr/bin/env python3
"""Check every stored number of the golden vectors against NumPy float64.

    python check_vectors.py [FOLDER]

FOLDER holds the *.safetensors.gz files. Without it the script takes
conformance/testdata of this repository. Nothing here comes from the Go code. The
formulas are those of the papers:

  Milakov, Gimelshein, Online normalizer calculation for softmax, 2018, section 2
  (softmax with the maximum subtracted). Dao, Fu, Ermon, Rudra, Re,
  FlashAttention, 2022, section 2.2 (attention) and appendix B.2 (gradients).

A number is good when |stored - computed| <= 1e-6 * max(1, |computed|). An LSE of
a row without keys must be exactly -inf. Every other output must be finite. The
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
PROBLEM = re.compile(
    r"b(?P<B>\d+)-h(?P<H>\d+)-g(?P<G>\d+)-n(?P<N>\d+)-m(?P<M>\d+)-d(?P<D>\d+)(-dv(?P<DV>\d+))?"
    r"-(f32|f16|bf16)"
    r"((?P<causal>-causal)|-window(?P<L>\d+|inf)\.(?P<R>\d+|inf))?"
    r"(?P<topleft>-topleft)?"
    r"(-scale(?P<scale>\d+(\.\d+)?))?",
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
    p.offset = 0 if part["topleft"] else p.M - p.N
    p.shapes = {
        "q": (p.B, p.H, p.N, p.D), "k": (p.B, p.G, p.M, p.D), "v": (p.B, p.G, p.M, p.DV),
        "o": (p.B, p.H, p.N, p.DV), "lse": (p.B, p.H, p.N),
    }
    p.shapes.update({"d" + key: shape for key, shape in p.shapes.items()})
    return p


def visible(p, i):
    """The keys lo <= j < hi that row i sees: i+off-L <= j <= i+off+R."""
    return max(0, i + p.offset - p.left), min(p.M, i + p.offset + p.right + 1)


def attention(p, x):
    """Compute the outputs from the inputs x. Return them and which rows see no key.

    One row at a time, on the keys that it sees. Other keys are never read, so NaN there
    cannot matter. b batch, h query head, j key, d and e elements of a row of K and V.
    """
    group = p.H // p.G  # query head h reads key/value head h // group
    k, v = (np.repeat(x[name], group, axis=1) for name in "kv")
    out = {"o": np.zeros(p.shapes["o"]), "lse": np.full(p.shapes["lse"], -np.inf)}
    dq, dk, dv = np.zeros(p.shapes["dq"]), np.zeros_like(k), np.zeros_like(v)
    empty = np.zeros(p.N, dtype=bool)

    for i in range(p.N):
        lo, hi = visible(p, i)
        if lo >= hi:  # no key: O = 0, LSE = -inf, all gradients 0
            empty[i] = True
            continue
        q_i, k_i, v_i = x["q"][:, :, i], k[:, :, lo:hi], v[:, :, lo:hi]

        # S = scale Q K^T,  P = softmax(S),  O = P V,  LSE = ln(sum(exp(S)))
        s = p.scale * np.einsum("bhd,bhjd->bhj", q_i, k_i)
        m = s.max(axis=-1, keepdims=True)
        weight = np.exp(s - m)
        total = weight.sum(axis=-1, keepdims=True)
        prob = weight / total
        out["o"][:, :, i] = np.einsum("bhj,bhje->bhe", prob, v_i)
        out["lse"][:, :, i] = (m + np.log(total))[..., 0]

        # The loss is L = sum(O * dO) + sum(LSE * dLSE).
        # O = P V           gives  dV = P^T dO  and  dP = dO V^T.
        # P = softmax(S)    gives  dS = P * (dP - rowsum(P * dP)),
        #                   as  dP_j / dS_k = P_j (delta_jk - P_k).
        # LSE = ln sum exp  adds   P * dLSE,  as  dLSE / dS_k = P_k.
        # S = scale Q K^T   gives  dQ = scale dS K  and  dK = scale dS^T Q.
        do_i = x["do"][:, :, i]
        dv[:, :, lo:hi] += np.einsum("bhj,bhe->bhje", prob, do_i)
        dprob = np.einsum("bhe,bhje->bhj", do_i, v_i)
        ds = prob * (dprob - (prob * dprob).sum(axis=-1, keepdims=True))
        if "dlse" in x:
            ds += prob * x["dlse"][:, :, i, None]
        ds *= p.scale
        dq[:, :, i] = np.einsum("bhj,bhjd->bhd", ds, k_i)
        dk[:, :, lo:hi] += np.einsum("bhj,bhd->bhjd", ds, q_i)

    # A key/value head collects the gradients of its group of query heads.
    collect = lambda t: t.reshape(p.B, p.G, group, *t.shape[2:]).sum(axis=2)
    out.update(dq=dq, dk=collect(dk), dv=collect(dv))
    return out, empty


def noise(case, tensor, shape):
    """Multiples of 1/16 from -2 to 31/16: the top six bits of a hashed counter."""
    seed = 2166136261
    for byte in f"{case}/{tensor}".encode("utf-8"):  # FNV-1a
        seed = (seed ^ byte) * 16777619 % 2**32
    # Products and sums of uint32 arrays wrap around, as they must here.
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
        elif key not in METADATA:
            raise ValueError(f"unknown metadata key {key!r}")
    for key in METADATA:
        if not isinstance(metadata.get(key), str):
            raise ValueError(f"metadata key {key!r} is missing")
    if metadata["case"] != stem or metadata["inputs"] not in ("noise", "stored"):
        raise ValueError(f"case {metadata['case']!r}, inputs {metadata['inputs']!r}")


def check_tensors(p, tensors, stored_inputs):
    """Check names and shapes."""
    required = {"o", "lse", "dq", "dk", "dv"}.union({"q", "k", "v", "do"} if stored_inputs else ())
    optional = {"dlse"} if stored_inputs else set()
    if required - tensors.keys():
        raise ValueError(f"missing tensors: {sorted(required - tensors.keys())}")
    if tensors.keys() - required - optional:
        raise ValueError(f"unknown tensors: {sorted(tensors.keys() - required - optional)}")
    for name, values in tensors.items():
        if values.shape != p.shapes[name]:
            raise ValueError(f"{name}: shape {values.shape}, want {p.shapes[name]}")


def worst_number(stored, computed, must_be_minus_inf):
    """Describe the worst bad number of a tensor. Return None when all are good."""
    gap = np.abs(stored - computed)
    allowed = TOLERANCE * np.maximum(1, np.abs(computed))
    close = np.isfinite(stored) & np.isfinite(computed) & (gap <= allowed)
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
        stored_inputs = metadata["inputs"] == "stored"
        check_tensors(p, tensors, stored_inputs)
        x = tensors if stored_inputs else {
            name: noise(metadata["case"], name, p.shapes[name]) for name in ("q", "k", "v", "do")}
        if match := PATTERNS.fullmatch(metadata["case"]):
            p = parse_problem("b8-h8-g8-" + match[1])
            x, tensors = ({name: spread(values) for name, values in of.items()} for of in (x, tensors))
        with np.errstate(all="ignore"):  # what is not finite becomes a complaint below
            out, empty = attention(p, x)
            found = {name: worst_number(tensors[name], values, empty if name == "lse" else False)
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
