"""Small models with random weights and small vocabularies, for encoder_folders.py.

Each family has a tokenizer of the class that its makers use, with a vocabulary trained on the
sentences below, and a configuration drawn anew. Weights are spread so widely that every setting
shows in the vectors.
"""

import functools
import io
import json
import math
import re

import sentencepiece
import torch
import transformers as hf
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

SENTENCES = """The weather is lovely today, and the harbour is full of small boats.
Nobody told the engineers that the bridge had been closed since Tuesday.
How do I return a parcel? You can return it within 30 days, free of charge.
Attention needs memory that grows with the square of the length, unless it is computed in tiles.
Café, naïve, über, Ærøskøbing: letters with marks, ¡olé!
Привет, мир! Сегодня хорошая погода, и лодки стоят в гавани.
你好，世界。今天天气很好，港口里有很多小船。
こんにちは、世界。今日はいい天気ですね。港に船がたくさんあります。
안녕하세요 세계. 오늘은 날씨가 좋습니다.
नमस्ते दुनिया, आज मौसम अच्छा है।
مرحبا بالعالم، الطقس جميل اليوم.
שלום עולם, מזג האוויר נעים היום.
สวัสดีชาวโลก วันนี้อากาศดี
Γειά σου Κόσμε, ο καιρός είναι καλός σήμερα.
func main() { fmt.Println("hello, world") } // 1234567890
x_1 = 3.14159 * (a + b) / 2; if x_1 >= 0: return [None, True]""".split("\n")

LONG = " ".join(SENTENCES[i % 5] for i in range(40))

TEXTS = SENTENCES[:1] + SENTENCES[4:14] + [
    "", " ", "pneumono" * 20 + " a", "  two  spaces,\ta tab\nand\u00a0a line ", "ABC Éclair İSTANBUL ﬁ ½ Ⅷ", "e\u0301 n\u0303 \u1100\u1161\u11a8 zero\u200bwidth",
    "\U0001f600 \U0001f680\U0001f469\u200d\U0001f4bb unknown \U00012000", "a [MASK] and </s> <eos> <pad> [PAD] [SEP] <|endoftext|> here", LONG,
]
assert len(TEXTS) == 20


@functools.cache
def wordpieces(special, lower, size=420):
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(lowercase=lower)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.train_from_iterator(SENTENCES, trainers.WordPieceTrainer(vocab_size=size, special_tokens=list(special), show_progress=False))
    return t.get_vocab()


@functools.cache
def byte_pairs(special, size=420):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    t.train_from_iterator(SENTENCES, trainers.BpeTrainer(vocab_size=size, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False))
    return parts_of_bpe(t)


def parts_of_bpe(t):
    model = json.loads(t.to_str())["model"]
    return model["vocab"], [tuple(m) for m in model["merges"]]


def field(message, number):
    """The last value of a field of bytes in a protocol buffer."""
    at, found = 0, b""

    def varint(at):
        x = shift = 0
        while True:
            b = message[at]
            at, x, shift = at + 1, x | (b & 127) << shift, shift + 7
            if b < 128:
                return x, at

    while at < len(message):
        key, at = varint(at)
        if key & 7 == 2:
            n, at = varint(at)
            found = message[at : at + n] if key >> 3 == number else found
            at += n
        elif key & 7 == 0:
            _, at = varint(at)
        else:
            at += 4 if key & 7 == 5 else 8
    return found


@functools.cache
def sentence_pieces():
    """Pieces with scores, in the order of XLM-R, and the charsmap of nmt_nfkc."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(SENTENCES), model_writer=out, vocab_size=330, hard_vocab_limit=False, character_coverage=0.98, minloglevel=2)
    sp = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
    vocab = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    vocab += [(sp.id_to_piece(i), sp.get_score(i)) for i in range(3, len(sp))] + [("<mask>", 0.0)]
    return vocab, field(field(out.getvalue(), 3), 2)


@functools.cache
def byte_fallback_pairs(special):
    t = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    t.normalizer = normalizers.Replace(" ", "▁")
    every = [*special] + [f"<0x{i:02X}>" for i in range(256)]
    t.train_from_iterator([s for i, s in enumerate(SENTENCES) if i not in (9, 11)], trainers.BpeTrainer(vocab_size=640, special_tokens=every, show_progress=False))
    vocab, merges = parts_of_bpe(t)
    return vocab, merges


def template(t, single, pair=None):
    names = {w: t.convert_tokens_to_ids(w) for w in re.findall(r"[^\s:]*[\[<][^\s:]*[\]>]", single + " " + (pair or ""))}
    t._tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair or single + " " + single.replace("$A", "$B"), special_tokens=list(names.items()))
    return t


def tokenizer(family, rng):
    """The tokenizer of a family as its makers' class writes it."""
    bert = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    if family in ("bert", "distilbert", "nomic"):
        lower = rng.random() < 0.7
        made = {"bert": hf.BertTokenizer, "nomic": hf.BertTokenizer, "distilbert": hf.DistilBertTokenizer}[family]
        return made(vocab=wordpieces(bert, lower), do_lower_case=lower, strip_accents=rng.choice([None, None, True, False]), tokenize_chinese_chars=rng.random() < 0.8)
    if family == "mpnet":
        vocab = wordpieces(("<s>", "<pad>", "</s>", "<unk>", "[UNK]", "<mask>"), True)
        return hf.MPNetTokenizer(vocab=vocab)
    if family == "roberta":
        vocab, merges = byte_pairs(("<s>", "<pad>", "</s>", "<unk>", "<mask>"))
        return hf.RobertaTokenizer(vocab=vocab, merges=merges, add_prefix_space=rng.random() < 0.3)
    if family == "xlmr":
        vocab, charsmap = sentence_pieces()
        return hf.XLMRobertaTokenizer(vocab=vocab, _spm_precompiled_charsmap=charsmap)
    if family == "modernbert":
        vocab, merges = byte_pairs(("<|padding|>", "<|endoftext|>") + bert)
        t = Tokenizer(models.BPE(vocab=vocab, merges=merges))
        t.normalizer, t.pre_tokenizer = normalizers.NFC(), pre_tokenizers.ByteLevel(add_prefix_space=False)
        t = hf.PreTrainedTokenizerFast(tokenizer_object=t, unk_token="[UNK]", sep_token="[SEP]", pad_token="[PAD]", cls_token="[CLS]", mask_token="[MASK]", model_input_names=["input_ids", "attention_mask"])
        return template(t, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]")
    if family == "qwen3":
        vocab, merges = byte_pairs(("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
        t = hf.Qwen2Tokenizer(vocab=vocab, merges=merges)
        t._tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
            single="$A:0 <|endoftext|>:0", pair="$A:0 <|endoftext|>:0 $B:1 <|endoftext|>:1", special_tokens=[("<|endoftext|>", 0)])])
        return t
    assert family == "gemma3", family
    vocab, merges = byte_fallback_pairs(("<pad>", "<eos>", "<bos>", "<unk>", "<mask>"))
    return template(hf.GemmaTokenizer(vocab=vocab, merges=merges), "<bos> $A <eos>", "<bos> $A <eos> <bos> $B <eos>")


ACTIVATIONS = ["gelu", "gelu", "gelu_new", "relu", "silu", "gelu_pytorch_tanh"]


def config(family, t, rng, **changes):
    """A configuration of small shape."""
    size, heads = rng.choice([8, 16]), rng.choice([2, 3, 4])
    hidden, layers, act = size * heads, rng.choice([2, 3]), rng.choice(ACTIVATIONS)
    inner, vocab = rng.choice([37, 56, 96]), len(t) + rng.choice([0, 0, 5])
    shape = dict(vocab_size=vocab, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=inner)
    old = dict(shape, hidden_act=act, max_position_embeddings=96, layer_norm_eps=rng.choice([1e-12, 1e-5]))
    wide = dict(shape, num_hidden_layers=rng.choice([4, 7]), max_position_embeddings=256)
    group = dict(num_key_value_heads=rng.choice([g for g in (1, heads, heads // 2 or 1) if heads % g == 0]), head_dim=rng.choice([8, 16]))
    theta = lambda: {"rope_type": "default", "rope_theta": rng.choice([500.0, 10000.0, 160000.0])}
    make = {
        "bert": lambda: (hf.BertConfig, dict(old, pad_token_id=t.pad_token_id)),
        "distilbert": lambda: (hf.DistilBertConfig, dict(vocab_size=vocab, dim=hidden, n_layers=layers, n_heads=heads, hidden_dim=inner, activation=rng.choice(["gelu", "relu"]), max_position_embeddings=96)),
        "mpnet": lambda: (hf.MPNetConfig, dict(old, max_position_embeddings=98)),
        "roberta": lambda: (hf.RobertaConfig, dict(old, max_position_embeddings=98, type_vocab_size=1)),
        "xlmr": lambda: (hf.XLMRobertaConfig, dict(old, max_position_embeddings=98, type_vocab_size=1)),
        "nomic": lambda: (hf.NomicBertConfig, dict(old, hidden_act="silu", max_position_embeddings=256, rope_parameters=theta())),
        "modernbert": lambda: (hf.ModernBertConfig, dict(wide, hidden_activation=rng.choice(["gelu", "gelu", "silu"]), local_attention=rng.choice([8, 16]), pad_token_id=t.pad_token_id, cls_token_id=t.cls_token_id, sep_token_id=t.sep_token_id, bos_token_id=t.cls_token_id, eos_token_id=t.sep_token_id)),
        "qwen3": lambda: (hf.Qwen3Config, dict(wide, **group, pad_token_id=t.pad_token_id, rope_parameters=theta())),
        "gemma3": lambda: (hf.Gemma3TextConfig, dict(wide, **group, num_hidden_layers=7, sliding_window=rng.choice([8, 9, 24]), query_pre_attn_scalar=rng.choice([16, 24]), use_bidirectional_attention=rng.random() < 0.6)),
    }
    made, values = make[family]()
    return made(**{**values, **changes})


def spread(model, seed):
    """Weights at which softmax, activations and norms all matter, in float32."""
    torch.manual_seed(seed)
    plus = 0.0 if "gemma" in model.config.model_type else 1.0
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1:
                p.normal_(0, 0.4 if "embed" in name.lower() else 1 / math.sqrt(p.shape[-1]))
            elif "norm" in name.lower() and name.endswith("weight"):
                p.normal_(plus, 0.2)
            else:
                p.normal_(0, 0.1)
    return model.float().eval()


FAMILIES = ["bert", "distilbert", "mpnet", "roberta", "xlmr", "nomic", "modernbert", "qwen3", "gemma3"]
LASTING = {"qwen3": "lasttoken", "gemma3": "mean", "modernbert": "cls"}


def build(folder, family, rng, task="AutoModel", limit=None, **changes):
    """Write a model and its tokenizer as transformers saves them, and return its config."""
    t = tokenizer(family, rng)
    t.model_max_length = limit or rng.choice([24, 33, 48])
    c = config(family, t, rng, **changes)
    model = spread(getattr(hf, task).from_config(c), rng.randrange(1 << 30))
    model.save_pretrained(folder)
    t.save_pretrained(folder)
    return c
