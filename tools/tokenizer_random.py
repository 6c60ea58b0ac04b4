#!/usr/bin/env python3
"""Random tokenizer.json files and texts through nn/tokenizer and Hugging Face's tokenizers.

    python tokenizer_random.py IDS_PROGRAM [--files N] [--texts N] [--seed S]

IDS_PROGRAM is nn/tokenizer/ids, built. Each file is composed of random normalizers, pre-tokenizers,
added tokens and post-processors over WordPiece. Half of the texts are hostile. The vocabulary has
most characters of the normalized texts, so that ids show all characters in their order. Ids and
types must be equal, for texts and pairs, with and without truncation.
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

from tokenizers import Tokenizer

from wordpiece_random import decode, general, hostile

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ADDED = ["<x>", "<x> y", "x", "ab", " ", "  ", "É", "é", "e\u0301", "İ", "[MASK]x", "的", "_", "don't", "A B", "\u0301", "ﬁ", "-", "the", "Ａ"]
DELIMITERS = [" ", "e", "é", "_", "的", "\u0301", "-"]
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]


def normalizer(r, depth=0):
    flag = lambda: r.random() < 0.5
    kinds = [
        lambda: dict(type="BertNormalizer", clean_text=flag(), handle_chinese_chars=flag(), strip_accents=r.choice([None, True, False]), lowercase=flag()),
        lambda: dict(type=r.choice(["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt"])),
        lambda: dict(type=r.choice(["NFC", "NFD", "NFKC", "NFKD"])),
        lambda: dict(type="Strip", strip_left=flag(), strip_right=flag()),
        lambda: dict(type="Replace", pattern=dict(String=r.choice(ADDED + ["e", "``"])), content=r.choice(["", " ", "é", "xx"])),
        lambda: dict(type="Prepend", prepend=r.choice(["_", "▁", "x ", "\u0301"])),
        lambda: dict(type="ByteLevel"),
    ]
    if depth < 2 and r.random() < 0.3:
        return dict(type="Sequence", normalizers=[normalizer(r, depth + 1) for _ in range(r.randrange(4))])
    return r.choices(kinds, [4, 3, 2, 1, 2, 1, 0.5])[0]()


def pre_tokenizer(r, depth=0):
    kinds = [
        lambda: dict(type=r.choice(["BertPreTokenizer", "Whitespace", "WhitespaceSplit"])),
        lambda: dict(type="Punctuation", behavior=r.choice(BEHAVIORS)),
        lambda: dict(type="Digits", individual_digits=r.random() < 0.5),
        lambda: dict(type="CharDelimiterSplit", delimiter=r.choice(DELIMITERS)),
    ]
    if depth < 2 and r.random() < 0.3:
        return dict(type="Sequence", pretokenizers=[pre_tokenizer(r, depth + 1) for _ in range(r.randrange(4))])
    return r.choices(kinds, [3, 2, 1, 1])[0]()


def template(r, texts):
    pieces = [dict(Sequence=dict(id=t, type_id=r.randrange(3))) for t in texts]
    for _ in range(r.randrange(4)):
        pieces.insert(r.randrange(len(pieces) + 1), dict(SpecialToken=dict(id=r.choice(["[CLS]", "[SEP]", "two"]), type_id=r.randrange(3))))
    return pieces


def post_processor(r, ids):
    pair = lambda token: [token, ids[token]]
    tokens = dict(id="two", ids=[ids["[SEP]"], ids["[MASK]"]], tokens=["[SEP]", "[MASK]"])
    one = lambda token: dict(id=token, ids=[ids[token]], tokens=[token])
    special = {"[CLS]": one("[CLS]"), "[SEP]": one("[SEP]"), "two": tokens}
    kinds = [
        lambda: dict(type="TemplateProcessing", single=template(r, "A"), pair=template(r, r.choice(["AB", "AB", "BA"])), special_tokens=special),
        lambda: dict(type="BertProcessing", sep=pair("[SEP]"), cls=pair("[CLS]")),
        lambda: dict(type="RobertaProcessing", sep=pair("[SEP]"), cls=pair("[CLS]"), trim_offsets=True, add_prefix_space=False),
        lambda: dict(type="ByteLevel", add_prefix_space=True, trim_offsets=False, use_regex=True),
        lambda: None,
    ]
    x = r.choices(kinds, [4, 2, 2, 1, 1])[0]()
    if x and r.random() < 0.2:
        level = dict(type="ByteLevel", add_prefix_space=True, trim_offsets=True, use_regex=True)
        return dict(type="Sequence", processors=r.choice([[x, level], [level, x]]) if x["type"] != "ByteLevel" else [x])
    return x


def added_tokens(r, ids, normalize):
    tokens, flag, texts = [], lambda: r.random() < 0.3, {""}
    next_id = len(ids)
    for content in [*SPECIAL, *r.sample(ADDED, r.randrange(6))]:
        if normalize(content) in texts:
            continue  # the reference takes any of equal tokens, at random; ours refuses them
        texts.add(normalize(content))
        special = content in SPECIAL or flag()
        known = content in ids
        tokens.append(dict(id=ids[content] if known else next_id, content=content, single_word=flag(), lstrip=flag(), rstrip=flag(), normalized=flag() or flag(), special=special))
        next_id += not known
    return sorted(tokens, key=lambda t: t["id"]) if r.random() < 0.5 else tokens


def vocabulary(r, probe, texts, prefix):
    """Most characters of the normalized texts, at the beginning of a word and within, and some longer pieces."""
    tokens = set()
    for text in texts + DELIMITERS:
        if probe.normalizer:
            text = probe.normalizer.normalize_str(text)
        words = [text] if probe.pre_tokenizer is None else [w for w, _ in probe.pre_tokenizer.pre_tokenize_str(text)]
        for word in words:
            tokens.update(x for c in word for x in (c, prefix + c) if r.random() < 0.99)
            at = r.randrange(len(word) + 1)
            tokens.update([word[:at], prefix + word[at : at + 3]])
    tokens -= {""}
    return SPECIAL + sorted(tokens - set(SPECIAL))


def new_file(r, texts):
    maybe = lambda make: make(r) if r.random() < 0.85 else None
    prefix = r.choice(["##", "##", "##", "", "@", "▁"])
    spec = dict(version="1.0", truncation=None, padding=None, added_tokens=[], normalizer=maybe(normalizer), pre_tokenizer=maybe(pre_tokenizer), post_processor=None, decoder=None)
    probe = Tokenizer.from_str(json.dumps(dict(spec, model=dict(type="WordLevel", vocab={"[UNK]": 0}, unk_token="[UNK]"))))
    vocab = vocabulary(r, probe, texts, prefix)
    ids = {token: i for i, token in enumerate(vocab)}
    spec["added_tokens"] = added_tokens(r, ids, probe.normalizer.normalize_str if probe.normalizer else str)
    spec["post_processor"] = post_processor(r, ids)
    if r.random() < 0.3:
        spec["truncation"] = dict(direction=r.choice(["Left", "Right"]), max_length=99, strategy="LongestFirst", stride=0)
    spec["model"] = dict(type="WordPiece", unk_token="[UNK]", continuing_subword_prefix=prefix, max_input_chars_per_word=r.choice([100, 100, 10, 1]), vocab=ids)
    return spec


def new_texts(r, n):
    texts = []
    for i in range(n):
        text = decode((hostile if i % 2 else general)(r))
        for _ in range(r.randrange(4)):
            at = r.randrange(len(text) + 1)
            text = text[:at] + r.choice(["", " ", "a", "\u00a0"]) + r.choice(ADDED + SPECIAL) + r.choice(["", " ", "  ", "a", "\u3000"]) + text[at:]
        texts.append(text)
    return texts


def expected(spec, texts, most):
    t = Tokenizer.from_str(json.dumps(spec))
    added = t.num_special_tokens_to_add(False), t.num_special_tokens_to_add(True)
    direction = (spec["truncation"] or dict(direction="Right"))["direction"].lower()
    lines = []
    for i, text in enumerate(texts):
        pair = i % 4 == 3
        t.no_truncation()
        if most and most >= added[pair]:
            t.enable_truncation(max(most, max(added)), direction=direction)
            if most < max(added):
                continue
        try:
            e = t.encode(text, texts[i - 1]) if pair else t.encode(text)
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            continue  # the reference panics where two added tokens strip the same white space
        lines.append((text, texts[i - 1] if pair else None, e.ids, e.type_ids))
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--texts", type=int, default=100, help="texts of a file")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    errors = os.dup(2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the reference prints its panics
    script, want = [], []
    with tempfile.TemporaryDirectory() as folder:
        for i in range(args.files):
            r = random.Random(f"{args.seed}.{i}")
            texts = new_texts(r, args.texts)
            spec = new_file(r, texts)
            path = pathlib.Path(folder, f"{i}.json")
            path.write_text(json.dumps(spec))
            most = r.choice([0, 0, 6, 7, 16, 33])
            script += [f"open {path}", f"max {most}"]
            want.append(("open", i, spec, None, None))
            for text, other, ids, types in expected(spec, texts, most):
                script.append(text.encode().hex() + ("" if other is None else " " + other.encode().hex()))
                want.append((text, i, other, ids, types))
        out = subprocess.run([args.program], input="\n".join(script) + "\n", stdout=subprocess.PIPE, stderr=errors, check=True, text=True).stdout.splitlines()
    os.dup2(errors, 2)
    failures, count = 0, 0
    assert len(out) == len(want), (len(out), len(want))
    for line, (text, i, other, ids, types) in zip(out, want):
        if text == "open":
            spec = {k: v for k, v in other.items() if k != "model"}
            bad = not line.startswith("ok")
            shown = f"file {i} does not open: {line}"
        else:
            count += 1
            answer = " ".join(map(str, ids)) + ("" if other is None else "|" + " ".join(map(str, types)))
            bad = answer != line
            shown = f"file {i}: {ascii(text)} {ascii(other)}\n  got {line}\n want {answer}\n {ascii(spec)}"
        failures += bad
        if bad and failures <= 10:
            print(shown)
    print(f"seed {args.seed}: {args.files} files, {count} texts and pairs, {failures} differ")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
