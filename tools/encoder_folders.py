#!/usr/bin/env python3
"""Model folders as makers write them, with what the makers' software computes, for nn/encoder.

    python encoder_folders.py FOLDER [--seed N] [--only REGEX] [--drawn N] [--sample]

For each case it writes FOLDER/NAME, a model with random weights of small shape, and
FOLDER/NAME.json: texts, and the vectors, scores or classes that sentence-transformers and
transformers compute in float64 from the same files, or that a reader must refuse the folder.
Without --seed the seed is the time. TestFolders of nn/encoder compares. --sample makes one
case of each kind, for CI.
"""

import argparse
import json
import logging
import os
import pathlib
import re
import shutil
import time
import warnings

os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
warnings.simplefilter("ignore")

import torch  # noqa: E402
import transformers as hf  # noqa: E402
from sentence_transformers import CrossEncoder, SentenceTransformer  # noqa: E402

import encoder_cases as cases  # noqa: E402
import encoder_files as files  # noqa: E402
import encoder_parts as parts  # noqa: E402

QUERY = "How is the weather in the harbour?"
SINGLE = dict(device="cpu", model_kwargs={"dtype": torch.float32})
SAMPLE = r"family-\w+|old-(bert|qwen3)|pool-(max|some|cls-old)|dense-two|limit-20-30-17|prompt-default-xlmr|lower-case-cased|vocab-bert|weights-(gamma-prefix|shards|lfs|bin|html)|pool-unknown-mode|key-unknown|lora-beside-weights|score-(bert|xlmr-saved)|classify-multi"


def embed(folder, settings):
    model = SentenceTransformer(str(folder), **SINGLE)
    if "max_tokens" in settings:
        model.max_seq_length = settings["max_tokens"]
    return torch.tensor(model.double().encode(parts.TEXTS, prompt_name=settings.get("prompt"), show_progress_bar=False))


def score(folder, settings):
    model = CrossEncoder(str(folder), **SINGLE)
    return torch.tensor(model.double().predict([(settings.get("query", QUERY), t) for t in parts.TEXTS], show_progress_bar=False))


def heads(folder, auto):
    """Logits of each text alone."""
    model, t = auto.from_pretrained(folder, dtype=torch.float32).double().eval(), hf.AutoTokenizer.from_pretrained(folder)
    limit = min(t.model_max_length, model.config.max_position_embeddings)
    ids = [t(text, truncation=True, max_length=limit, return_tensors="pt") for text in parts.TEXTS]
    with torch.no_grad():
        return model.config, [model(**i).logits[0] for i in ids]


def classify(folder, settings):
    """What the pipeline text-classification of transformers gives with top_k=None."""
    c, logits = heads(folder, hf.AutoModelForSequenceClassification)
    if c.problem_type == "regression":
        act = lambda x: x
    elif c.problem_type == "multi_label_classification" or c.num_labels == 1:
        act = torch.sigmoid
    else:
        act = lambda x: x.softmax(-1)
    return torch.stack([act(x) for x in logits]), [c.id2label[i] for i in range(c.num_labels)]


def tag(folder, settings):
    c, logits = heads(folder, hf.AutoModelForTokenClassification)
    return [x.softmax(-1) for x in logits], [c.id2label[i] for i in range(c.num_labels)]


def answer(c, folder):
    """What the case's file holds."""
    out = dict(kind=c.kind, must=c.must, words=c.words, texts=parts.TEXTS, query=c.settings.get("query", QUERY), settings=c.settings)
    if c.must == "refuse":
        return out
    try:
        values = dict(embed=embed, score=score, classify=classify, tag=tag)[c.kind](folder, c.settings)
    except Exception as err:
        first = str(err).strip().split("\n")[0][:200]
        print(f"{c.name}: the makers' software stops: {type(err).__name__}: {first}")
        return dict(out, must="either" if c.must == "either" else "refuse", words=[], makers=first)
    values, labels = values if isinstance(values, tuple) else (values, [])
    rows = lambda x: [[float(f"{v:.9g}") for v in row] for row in x.tolist()]
    if c.kind == "tag":
        return dict(out, tags=[rows(x) for x in values], labels=labels)
    return dict(out, values=rows(values.reshape(len(parts.TEXTS), -1)), labels=labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", default="")
    parser.add_argument("--drawn", type=int, default=20)
    parser.add_argument("--sample", action="store_true")
    parser.add_argument("--keep", action="store_true", help="make only what is missing")
    args = parser.parse_args()
    for name in ("transformers", "sentence_transformers", "peft"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    hf.utils.logging.set_verbosity(50)
    hf.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    files.compositions(args.drawn)
    want = re.compile(SAMPLE if args.sample else args.only or ".*")
    made = [c for c in cases.CASES if (want.fullmatch(c.name) if args.sample else want.search(c.name))]
    assert len({c.name for c in cases.CASES}) == len(cases.CASES), "two cases of one name"
    print(f"seed {args.seed}, {len(made)} folders", flush=True)
    args.folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for c in made:
        folder = args.folder / c.name
        if args.keep and (args.folder / f"{c.name}.json").exists():
            continue
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            c.write(cases.Draw(folder, f"{args.seed}:{c.name}"))
        except Exception as err:
            print(f"{c.name}: cannot be made: {type(err).__name__}: {str(err).strip().splitlines()[0][:300] if str(err) else ''}")
            shutil.rmtree(folder)
            failed += 1
            continue
        (args.folder / f"{c.name}.json").write_text(json.dumps(dict(answer(c, folder), seed=args.seed)), "ascii")
    print(f"{len(made) - failed} made, {failed} not")


main()
