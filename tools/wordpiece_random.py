#!/usr/bin/env python3
"""Random texts through the WordPiece of nn/tokenizer and through Hugging Face tokenizers.

    python wordpiece_random.py IDS_PROGRAM [--texts N] [--seed S]

IDS_PROGRAM is nn/tokenizer/ids, built. Half of the texts are hostile: runs of
marks out of order, Hangul letters and their compatibility forms, ideographs, controls,
surrogates, bytes that are no UTF-8. The other half draws from all of Unicode and from words.
The vocabulary has a piece for every character that a word can have, so that ids show all
characters in their order, and some words.

All code points alone, between letters and between two marks out of order, are compared too. Any
difference is printed, and the exit code is 1.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = "the play ##ing un ##able straße café naïve Ελλάδος ОДИН don't 3.14 [MASK] [CLS] [mask] #hash @ ## x".split()
MARKS = [(0x300, 0x36F), (0x591, 0x5C7), (0x610, 0x61A), (0x64B, 0x65F), (0x93C, 0x94D), (0x9BE, 0x9CD), (0xE31, 0xE4E), (0xF71, 0xF84),
         (0x302A, 0x302F), (0x3099, 0x309A), (0x1D165, 0x1D172), (0x16FF0, 0x16FF1), (0x20D0, 0x20F0), (0x1AB0, 0x1ACE), (0x34F, 0x34F), (0xFE00, 0xFE2F)]
OTHERS = [(0x1100, 0x11FF), (0x3131, 0x318E), (0xFFA0, 0xFFDC), (0xAC00, 0xD7A3), (0xA960, 0xA97C), (0xD7B0, 0xD7FB),
          (0xC0, 0x17F), (0x1E00, 0x1FFE), (0x340, 0x344), (0x2126, 0x212B), (0x1D15E, 0x1D164), (0x1D1BB, 0x1D1C0), (0xFB1D, 0xFB4E),
          (0x3300, 0x33FF), (0xFF01, 0xFF9F), (0x2460, 0x24FF), (0xFB00, 0xFB06), (0x1D400, 0x1D7FF),
          (0x4E00, 0x4E20), (0xF900, 0xFAD9), (0x2F800, 0x2FA1D), (0x3041, 0x30FF), (0x2B820, 0x2B930), (0x3400, 0x4DBF),
          (0x200B, 0x200F), (0x2028, 0x202E), (0x2060, 0x206F), (0xFEFF, 0xFEFF), (0xE0001, 0xE007F), (0x80, 0xA0), (0xFFF0, 0xFFFF),
          (0xE000, 0xE010), (0x378, 0x379), (0x10FFFE, 0x10FFFF), (0x20, 0x7E), (0x61, 0x63), (0x41, 0x43), (0, 0x20)]
LAST = 0x30000  # end of the tested code points; few later code points are assigned


def hostile(r):
    out = bytearray()
    for _ in range(r.randint(1, 24)):
        low, high = r.choice(MARKS if r.random() < 0.5 else OTHERS)
        c = chr(r.randint(low, high))
        out += (c * (r.randint(1, 120) if r.random() < 0.02 else 1)).encode("utf-8", "surrogatepass")
        kind = r.randrange(30)
        if kind == 0:
            out.append(r.randrange(256))
        elif kind == 1:
            del out[-1]
        elif kind == 2:
            out += r.choice([b"[MASK]", b"[CLS]", b" ", b"ab", b"[", "e\u0301".encode()])
        elif kind == 3:
            out += chr(r.randint(0xD800, 0xDFFF)).encode("utf-8", "surrogatepass")
    return bytes(out)


def general(r):
    parts = []
    for _ in range(r.randint(1, 30)):
        x = r.random()
        if x < 0.3:
            parts.append(r.choice(WORDS))
        elif x < 0.5:
            parts.append(r.choice([" ", " ", "\t", ",", ".", "-"]))
        elif x < 0.7:
            parts.append(chr(r.randrange(0x20, 0x250)))
        elif x < 0.85:
            parts.append(chr(r.choice([r.randrange(0x250, 0x3000), r.randrange(0x3000, 0xD800), r.randrange(0xE000, 0x10000)])))
        else:
            parts.append(chr(r.randrange(0x10000, LAST)))
    return "".join(parts).encode()


def reference(vocab, lowercase):
    ids = {token: i for i, token in enumerate(vocab)}
    t = Tokenizer(WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    t.normalizer = BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lowercase)
    t.pre_tokenizer = BertPreTokenizer()
    t.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[(s, ids[s]) for s in ("[CLS]", "[SEP]")])
    t.add_special_tokens(SPECIAL)
    return t


def make_vocab():
    chars = {d for c in map(chr, [*range(0x21, 0xD800), *range(0xE000, LAST)]) for x in (c, c.lower()) for d in unicodedata.normalize("NFD", x)}
    tokens = [t for t in WORDS if t not in SPECIAL and len(t) > 1]
    for c in sorted(chars):
        if not c.isspace():
            tokens += [c, "##" + c]
    return SPECIAL + list(dict.fromkeys(t for t in tokens if t not in SPECIAL))


class Pair:
    """The two tokenizers, of which ours is another process."""

    def __init__(self, program, folder, vocab, lowercase):
        pathlib.Path(folder, "tokenizer_config.json").write_text(json.dumps(dict(do_lower_case=lowercase)))
        self.command = [program, folder]
        self.ref = reference(vocab, lowercase)

    def ours(self, texts):
        out = subprocess.run(self.command, input="".join(t.hex() + "\n" for t in texts).encode(), stdout=subprocess.PIPE, check=True).stdout
        return [[int(i) for i in line.split()] for line in out.splitlines()]

    def different(self, texts):
        want = [e.ids for e in self.ref.encode_batch([decode(t) for t in texts])]
        got = self.ours(texts)
        assert len(got) == len(texts)
        return [t for t, a, b in zip(texts, want, got) if a != b]


def decode(text):
    return text.decode("utf-8", "replace")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    vocab, failures = make_vocab(), 0
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "vocab.txt").write_bytes(("\n".join(vocab) + "\n").encode())
        for lowercase in (True, False):
            pair = Pair(args.program, folder, vocab, lowercase)
            everything = [chr(c) for c in [*range(1, 0xD800), *range(0xE000, 0x110000)]]
            bad = pair.different([f"a{c}b".encode() for c in everything])
            bad += pair.different([f"a\U0001D16D{c}\U0001D165b".encode() for c in everything])
            r, count = random.Random(args.seed), 0
            while count < args.texts:
                texts = [(hostile if i % 2 else general)(r) for i in range(min(20_000, args.texts - count))]
                count += len(texts)
                bad += pair.different(texts)
            failures += len(bad)
            for t in bad[:20]:
                print(f"differs: {ascii(decode(t))}")
            print(f"seed {args.seed}, {'uncased' if lowercase else 'cased'}: {len(everything)} code points, {count} texts, {len(bad)} differ")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
