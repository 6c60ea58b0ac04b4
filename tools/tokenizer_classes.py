#!/usr/bin/env python3
"""Classes of all characters, as Hugging Face's tokenizers have them.

    python tokenizer_classes.py FILE

The tokenizers library has several Unicode tables, of several ages. This script asks the library
for each code point and writes the answers to FILE as runs: the length of the run, a varint, and
the class, a byte of these bits.
"""

import pathlib
import sys

from tokenizers import normalizers, pre_tokenizers

PUNCTUATION, SPACE, CONTROL, NONSPACING, MARK, WORD, NUMERIC, NORMAL = (1 << i for i in range(8))

punctuation = pre_tokenizers.Punctuation().pre_tokenize_str
space = pre_tokenizers.WhitespaceSplit().pre_tokenize_str
word = pre_tokenizers.Whitespace().pre_tokenize_str
digits = pre_tokenizers.Digits().pre_tokenize_str
off = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
clean = normalizers.BertNormalizer(**{**off, "clean_text": True}).normalize_str
accents = normalizers.BertNormalizer(**{**off, "strip_accents": True}).normalize_str
marks = normalizers.StripAccents().normalize_str
nfd, nfkd = normalizers.NFD().normalize_str, normalizers.NFKD().normalize_str
# Marks of the least and the greatest combining class: no other class keeps its place in both.
LEAST, GREATEST = "\u0334", "\u0345"


def normal(c):
    """A character that has a decomposition or is a mark of a class other than 0."""
    return nfkd(c) != c or nfd(f"a{GREATEST}{c}") != f"a{GREATEST}{c}" or nfd(f"a{c}{LEAST}") != f"a{c}{LEAST}"


def bits(c):
    text = f"a{c}b"
    return (
        PUNCTUATION * (len(punctuation(text)) > 1)
        | SPACE * (len(space(text)) > 1)
        | CONTROL * (clean(text) == "ab")
        | NONSPACING * (accents(text) == "ab")
        | MARK * (marks(text) == "ab")
        | WORD * (len(word(text)) == 1)
        | NUMERIC * (len(digits(text)) > 1)
        | NORMAL * normal(c)
    )


def varint(n):
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


runs = []
for code in range(0x110000):
    x = 0 if 0xD800 <= code < 0xE000 else bits(chr(code))
    if runs and runs[-1][1] == x:
        runs[-1][0] += 1
    else:
        runs.append([1, x])
pathlib.Path(sys.argv[1]).write_bytes(b"".join(varint(n) + bytes([x]) for n, x in runs))
print(f"{len(runs)} runs")
