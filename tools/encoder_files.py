"""More folders of encoder_folders.py: settings, tokenizers, weights, adapters, heads, and compositions drawn anew."""

import json
import shutil
import struct

import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder

import encoder_parts as parts
from encoder_cases import ACTS, CASES, MODES, Draw, case, lower_folder, nothing, rename, simple, spread  # noqa: F401

# Lengths, prompts, case.

BERTS = ("bert", "distilbert", "nomic")
ANY = tuple(parts.FAMILIES)


def limits(sentence, model, cut=None):
    """Set max_seq_length, model_max_length and the truncation of tokenizer.json; None: leave out."""

    def change(d):
        d.edit("sentence_bert_config.json", **({} if sentence is None else {"max_seq_length": sentence}))
        d.edit("tokenizer_config.json", drop=["model_max_length"] if model is None else [], **({} if model is None else {"model_max_length": model}))
        if cut:
            d.tokenizer(lambda t: t.update(truncation={"direction": "Right", "max_length": cut, "strategy": "LongestFirst", "stride": 0},
                                           padding={"strategy": {"Fixed": cut}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}))

    return change


HUGE = 1000000000000000019884624838656
for s, m, cut in ((20, None, None), (20, 30, None), (40, 30, None), (None, 12, None), (None, HUGE, None), (None, None, None), (18, HUGE, None), (None, 30, 17), (20, 30, 17), (None, None, 17)):
    simple(f"limit-{s or 'none'}-{'huge' if m == HUGE else m or 'none'}-{cut or 'none'}", limits(s, m, cut), among=("bert", "distilbert") if (s, m) == (None, HUGE) else ("bert", "mpnet", "distilbert"))
simple("limit-none-huge-mpnet", limits(None, HUGE), "either", family="mpnet")
simple("limit-null", lambda d: d.edit("sentence_bert_config.json", max_seq_length=None))
simple("limit-beyond-positions", limits(500, None), "either", ["max_seq_length"], among=("bert", "distilbert"))
simple("limit-roberta-positions", limits(None, 512), "either", among=("roberta", "xlmr"), max_position_embeddings=60)
simple("limit-roberta-within", limits(58, 512), among=("roberta", "xlmr"), max_position_embeddings=60)
simple("limit-two", limits(2, None), "either", among=("bert",))
simple("limit-option", nothing, among=ANY, settings=dict(max_tokens=9))
simple("limit-processing-kwargs", lambda d: d.edit("sentence_bert_config.json", processing_kwargs={"text": {"max_length": 7}}), "either", ["processing_kwargs"])
simple("limit-processor-kwargs", lambda d: d.edit("sentence_bert_config.json", processor_kwargs={"model_max_length": 7}), "either", ["processor_kwargs"])
simple("truncation-left", lambda d: d.edit("tokenizer_config.json", truncation_side="left"), "either", ["truncation_side"], among=("bert", "roberta"))
for name in ("roberta", "distilbert", "xlm-roberta"):
    simple(f"settings-{name}-name", lambda d, n=name: (d.old(), (d.dir / "sentence_bert_config.json").rename(d.dir / f"sentence_{n}_config.json"), d.edit(f"sentence_{n}_config.json", max_seq_length=11)), "either", among=("roberta", "distilbert"))

PROMPTS = {"query": "Query about boats: ", "document": "", "task": "task: x | "}
for f in ("bert", "xlmr", "qwen3", "gemma3", "modernbert"):
    simple(f"prompt-default-{f}", nothing, family=f, prompts=PROMPTS, default="query")
simple("prompt-none", nothing, prompts=PROMPTS)
simple("prompt-by-name", nothing, prompts=PROMPTS, among=ANY, settings=dict(prompt="task"))
simple("prompt-empty-over-default", nothing, prompts=PROMPTS, default="query", settings=dict(prompt="document"))
simple("prompt-default-absent", lambda d: d.edit("config_sentence_transformers.json", default_prompt_name="absent"), "refuse", ["config_sentence_transformers.json", "default_prompt_name", "absent"], prompts=PROMPTS)
simple("prompt-null", lambda d: d.edit("config_sentence_transformers.json", prompts={"query": None}, default_prompt_name="query"), "either")
for name in ("cosine", "dot", "euclidean", "manhattan"):
    simple(f"similarity-{name}", lambda d, n=name: d.edit("config_sentence_transformers.json", similarity_fn_name=n))
simple("truncate-dim", lambda d: d.edit("config_sentence_transformers.json", truncate_dim=5), "either", ["truncate_dim"])
simple("sentence-unknown-key", lambda d: d.edit("config_sentence_transformers.json", vector_scale=2), "refuse", ["config_sentence_transformers.json", "vector_scale"])
simple("sentence-sparse", lambda d: d.edit("config_sentence_transformers.json", model_type="SparseEncoder"), "refuse", ["config_sentence_transformers.json", "model_type", "SparseEncoder"])
simple("transformer-unknown-key", lambda d: d.edit("sentence_bert_config.json", do_upper_case=True), "refuse", ["sentence_bert_config.json", "do_upper_case"])
simple("transformer-config-kwargs", lambda d: d.edit("sentence_bert_config.json", config_kwargs={"hidden_act": "relu"}), "either", ["config_kwargs"], family="bert", hidden_act="gelu")
simple("transformer-other-task", lambda d: d.edit("sentence_bert_config.json", transformer_task="fill-mask"), "refuse", ["sentence_bert_config.json", "transformer_task"])
for f in parts.FAMILIES:
    simple(f"lower-case-{f}", lambda d: d.edit("sentence_bert_config.json", do_lower_case=True), family=f)


def cased(d):
    d.tokenizer(lambda t: t["normalizer"].update(lowercase=False))
    d.edit("tokenizer_config.json", do_lower_case=False)


simple("lower-case-cased", lambda d: (cased(d), d.edit("sentence_bert_config.json", do_lower_case=True)), among=BERTS)
simple("lower-case-config-alone", lambda d: (cased(d), d.edit("tokenizer_config.json", do_lower_case=True)), "either", among=BERTS)
simple("lower-case-file-alone", lambda d: (cased(d), d.edit("tokenizer_config.json", drop=["do_lower_case"])), "either", among=BERTS)
simple("accents-kept", lambda d: d.edit("tokenizer_config.json", strip_accents=False), "either", among=BERTS)

# Tokenizers.

simple("tokenizer-json-alone", lambda d: d.remove("tokenizer_config.json"), "either", among=ANY)
simple("tokenizer-special-map", lambda d: d.put("special_tokens_map.json", {"cls_token": "[CLS]", "sep_token": {"content": "[SEP]", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}, "mask_token": "[MASK]", "pad_token": "[PAD]", "unk_token": "[UNK]"}), among=BERTS)
for f in BERTS:
    simple(f"vocab-{f}", Draw.words, family=f, must="equal" if f == "bert" else "either")
simple("vocab-alone", lambda d: (d.words(), d.remove("tokenizer_config.json")), "either", family="bert")
simple("vocab-cased", lambda d: (d.words(), d.edit("tokenizer_config.json", do_lower_case=False)), family="bert")
simple("vocab-blank-line", lambda d: (d.words(), d.write("vocab.txt", (d.dir / "vocab.txt").read_text("utf-8") + "\n")), "either", family="bert")
simple("vocab-crlf", lambda d: (d.words(), d.write("vocab.txt", (d.dir / "vocab.txt").read_text("utf-8").replace("\n", "\r\n"))), "either", family="bert")
simple("vocab-japanese", lambda d: (d.words(), d.edit("tokenizer_config.json", tokenizer_class="BertJapaneseTokenizer", word_tokenizer_type="mecab")), "refuse", ["tokenizer_config.json", "tokenizer_class", "BertJapaneseTokenizer"], family="bert")
simple("vocab-added", lambda d: (d.words(), d.put("added_tokens.json", {"lovely": 3})), "either", family="bert")
simple("tokenizer-none", lambda d: d.remove("tokenizer.json"), "refuse", ["tokenizer.json"], among=("roberta", "qwen3"))
simple("tokenizer-sentencepiece-alone", lambda d: (d.remove("tokenizer.json"), d.write("sentencepiece.bpe.model", b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\2")), "refuse", ["tokenizer.json"], family="xlmr")


def merges(d):
    model = d.read("tokenizer.json")["model"]
    d.put("vocab.json", model["vocab"])
    d.write("merges.txt", "#version: 0.2\n" + "".join(" ".join(m) + "\n" for m in model["merges"]))
    d.remove("tokenizer.json")


simple("tokenizer-merges", merges, "either", ["tokenizer.json"], among=("roberta", "qwen3"))


def added(content, **flags):
    def change(t):
        size = max(max(t["model"]["vocab"].values()) if isinstance(t["model"]["vocab"], dict) else len(t["model"]["vocab"]) - 1, *(a["id"] for a in t["added_tokens"])) + 1
        plain = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=False)
        t["added_tokens"].append({"id": size, "content": content, **plain, **flags})

    return lambda d: d.tokenizer(change)


for flags in ({}, {"lstrip": True}, {"rstrip": True}, {"normalized": True}, {"single_word": True}, {"special": True}):
    name = next(iter(flags), "plain")
    simple(f"added-{name}", added("OAT" if flags.get("normalized") else "oat", **flags), among=("bert", "roberta", "xlmr", "modernbert", "gemma3"), vocab_size=800)
simple("added-beyond-embedding", added("oat"), "refuse", among=("bert", "roberta", "qwen3"), vocab_size=420)
simple("vocab-size-smaller", nothing, "refuse", ["vocab_size"], among=("bert", "qwen3"), vocab_size=200)
NORMALIZERS = {
    "lowercase": {"type": "Lowercase"}, "nfkc": {"type": "NFKC"}, "nfkd-strip": {"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "StripAccents"}]}, "strip": {"type": "Strip", "strip_left": True, "strip_right": True},
    "replace": {"type": "Replace", "pattern": {"String": "l"}, "content": "r"}, "replace-regex": {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}, "prepend": {"type": "Prepend", "prepend": "a"}, "none": None,
}
for name, value in NORMALIZERS.items():
    # The class PreTrainedTokenizerFast takes tokenizer.json as it is.
    simple(f"normalizer-{name}", lambda d, v=value: (d.tokenizer(lambda t: t.update(normalizer=v)), d.edit("tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")), "either", among=("bert", "modernbert", "qwen3"))
    simple(f"normalizer-{name}-class", lambda d, v=value: d.tokenizer(lambda t: t.update(normalizer=v)), "either", among=("bert", "roberta", "qwen3", "gemma3", "xlmr"))
simple("normalizer-unknown", lambda d: d.tokenizer(lambda t: t.update(normalizer={"type": "Rot13"})), "refuse", ["tokenizer.json", "normalizer", "Rot13"])
simple("tokenizer-unknown-key", lambda d: d.tokenizer(lambda t: t["model"].update(subword_scale=2)), "refuse", ["tokenizer.json", "subword_scale"], family="bert")
simple("tokenizer-dropout", lambda d: d.tokenizer(lambda t: t["model"].update(dropout=0.5)), "refuse", ["tokenizer.json", "dropout"], family="roberta")
simple("tokenizer-type", lambda d: d.tokenizer(lambda t: t["model"].update(type="WordLevel")), "refuse", ["tokenizer.json", "WordLevel"], family="bert")
simple("tokenizer-not-json", lambda d: d.write("tokenizer.json", "{"), "refuse", ["tokenizer.json"])
simple("tokenizer-add-eos", lambda d: d.edit("tokenizer_config.json", add_eos_token=True), "either", ["add_eos_token"], among=("qwen3", "gemma3"))
simple("tokenizer-no-bos", lambda d: d.edit("tokenizer_config.json", add_bos_token=False), "either", ["add_bos_token"], among=("gemma3",))
simple("tokenizer-unknown-class", lambda d: d.edit("tokenizer_config.json", tokenizer_class="MyTokenizer", auto_map={"AutoTokenizer": ["my.MyTokenizer", None]}), "either", ["tokenizer_config.json", "tokenizer_class", "MyTokenizer"])
TRIM = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}  # as in multilingual-e5
simple("tokenizer-trims-spaces", lambda d: d.tokenizer(lambda t: t.update(normalizer={"type": "Sequence", "normalizers": [t["normalizer"], TRIM]}, pre_tokenizer={"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True})), family="xlmr")
simple("tokenizer-other-cls", lambda d: d.edit("tokenizer_config.json", cls_token="[MASK]"), "either", family="bert")

# The config of the transformer.

simple("key-unknown", lambda d: d.edit("config.json", attention_scale_factor=2.0), "refuse", ["config.json", "attention_scale_factor"], among=ANY)
simple("key-act-absent", lambda d: d.edit("config.json", drop=["hidden_act"]), family="bert", hidden_act="gelu")
simple("key-eps-absent", lambda d: d.edit("config.json", drop=["layer_norm_eps"]), among=("bert", "roberta", "mpnet"), layer_norm_eps=1e-12)
simple("key-pad-absent", lambda d: d.edit("config.json", drop=["pad_token_id"]), "equal", among=("roberta", "xlmr"))
simple("key-act-unknown", lambda d: d.edit("config.json", hidden_act="snake"), "refuse", ["config.json", "hidden_act", "snake"], family="bert")
simple("key-type-absent", lambda d: d.edit("config.json", drop=["model_type"]), "refuse", ["config.json", "model_type"])
for kind in ("albert", "t5", "clip", "new", "eurobert"):
    simple(f"key-type-{kind}", lambda d, k=kind: d.edit("config.json", model_type=k), "refuse", ["config.json", "model_type", kind])
simple("key-relative", lambda d: d.edit("config.json", position_embedding_type="relative_key"), "either", ["position_embedding_type"], family="bert")
simple("key-absolute", lambda d: d.edit("config.json", position_embedding_type="absolute"), among=("bert", "roberta", "xlmr"))
simple("key-pruned", lambda d: d.edit("config.json", pruned_heads={"0": [1]}), "either", ["pruned_heads"], family="bert")
simple("key-quantized", lambda d: d.edit("config.json", quantization_config={"quant_method": "gptq", "bits": 4}), "refuse", ["config.json", "quantization_config"])
simple("key-auto-map", lambda d: d.edit("config.json", auto_map={"AutoModel": "modeling.MyModel"}), "either", ["auto_map"])
simple("key-heads", lambda d: d.edit("config.json", num_attention_heads=5), "refuse", ["num_attention_heads"], among=("bert", "mpnet"), hidden_size=48, num_attention_heads=3)
simple("key-layers-more", lambda d: d.edit("config.json", num_hidden_layers=9), "refuse", ["layer"], among=("bert", "mpnet", "roberta"))
simple("key-layers-fewer", lambda d: d.edit("config.json", num_hidden_layers=1), among=("bert", "mpnet", "roberta"))
simple("key-wrong-kind", lambda d: d.edit("config.json", num_hidden_layers="two"), "refuse", ["config.json", "num_hidden_layers"], among=("bert", "mpnet"))
simple("key-inner", lambda d: d.edit("config.json", intermediate_size=41), "refuse", [], among=("bert", "mpnet"))
simple("key-published-bert", lambda d: (d.old(), d.edit("config.json", gradient_checkpointing=False, directionality="bidi", pooler_fc_size=768, pooler_num_attention_heads=12, pooler_num_fc_layers=3, pooler_size_per_head=128, pooler_type="first_token_transform", output_past=True, classifier_dropout=None, finetuning_task=None, summary_type="first")), "either", family="bert")
simple("config-absent", lambda d: d.remove("config.json"), "refuse", ["config.json"])
simple("config-not-json", lambda d: d.write("config.json", "not json"), "refuse", ["config.json"])

# Weights.

HEADS = {"bert": "bert.", "distilbert": "distilbert.", "mpnet": "mpnet.", "roberta": "roberta.", "xlmr": "roberta.", "modernbert": "model.", "qwen3": "model.", "gemma3": "model."}
for f in parts.FAMILIES:
    for dtype in (torch.float16, torch.bfloat16):
        simple(f"weights-{f}-{str(dtype)[6:]}", lambda d, t=dtype: (d.weights(lambda n, x: (n, x.to(t))), d.edit("config.json", dtype=str(t)[6:])), family=f)
    if f in HEADS:
        simple(f"weights-{f}-prefix", lambda d, p=HEADS[f]: d.weights(lambda n, x: (p + n, x)), family=f)
    simple(f"weights-{f}-more", lambda d: d.weights(lambda n, x: (n, x)) or save_more(d), family=f)


def save_more(d):
    """Tensors that encoders do not need: position ids, a head for pretraining, a type without a name in Go."""
    path = d.dir / "model.safetensors"
    named = {"bert": "cls.predictions.bias"}.get(d.config.model_type, "lm_head.weight")
    extra = {named: torch.zeros(3)} | ({"embeddings.position_ids": torch.arange(96)[None]} if d.config.model_type in ("bert", "roberta", "xlm-roberta", "mpnet") else {})
    save_file({**load_file(path), **extra}, path, metadata={"format": "pt"})


def gamma(n, t):
    return n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"), t


def shards(d):
    tensors = sorted(load_file(d.dir / "model.safetensors").items())
    d.remove("model.safetensors")
    place, of = {}, 3
    for i in range(of):
        name = f"model-{i + 1:05d}-of-{of:05d}.safetensors"
        save_file(dict(tensors[i::of]), d.dir / name, metadata={"format": "pt"})
        place |= {n: name for n, _ in tensors[i::of]}
    d.put("model.safetensors.index.json", {"metadata": {"total_size": 1, "total_parameters": 2}, "weight_map": place})


def odd_type(d, name="unneeded"):
    """Append a tensor of type F4, as the safetensors library 0.8 allows."""
    raw = (d.dir / "model.safetensors").read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    header, data = json.loads(raw[8 : 8 + n]), raw[8 + n :]
    header[name] = {"dtype": "F4", "shape": [4], "data_offsets": [len(data), len(data) + 2]}
    text = json.dumps(header).encode()
    d.write("model.safetensors", struct.pack("<Q", len(text)) + text + data + b"\0\0")


def replace(d, name, tensor):
    d.weights(lambda n, t: ((n, tensor(t)) if n.endswith(name) else (n, t)))


simple("weights-gamma", lambda d: d.weights(gamma), family="bert")
simple("weights-gamma-prefix", lambda d: d.weights(lambda n, t: ("bert." + gamma(n, t)[0], t)), family="bert")
simple("weights-pretraining", lambda d: d.weights(lambda n, t: ("bert." + gamma(n, t)[0], t)) or save_more(d), family="bert")
simple("weights-no-pooler", lambda d: d.weights(lambda n, t: None if "pooler" in n else (n, t)), among=("bert", "roberta", "mpnet"))
simple("weights-shards", shards, among=ANY)
simple("weights-shards-half", lambda d: (d.weights(lambda n, x: (n, x.half())), shards(d)), among=ANY)
simple("weights-mixed", lambda d: d.weights(lambda n, x: (n, x.half() if x.dim() > 1 else x)), among=ANY)
simple("weights-f64", lambda d: d.weights(lambda n, x: (n, x.double())), "either", among=ANY)
simple("weights-f4-unneeded", odd_type, "equal", among=ANY)
simple("weights-i8", lambda d: replace(d, "query.weight", lambda t: t.to(torch.int8)), "refuse", ["query.weight", "I8"], among=("bert", "roberta"))
simple("weights-missing", lambda d: d.weights(lambda n, t: None if n.endswith("layer.1.output.dense.weight") else (n, t)), "refuse", ["layer.1.output.dense.weight"], among=("bert", "roberta", "mpnet"))
simple("weights-wrong-shape", lambda d: replace(d, "layer.1.output.dense.weight", lambda t: t[:, :-1].clone()), "refuse", ["layer.1.output.dense.weight"], among=("bert", "roberta"))
simple("weights-both-names", lambda d: d.weights(lambda n, t: (n, t)) or save_file({**load_file(d.dir / "model.safetensors"), **{"bert." + n: t + 1 for n, t in load_file(d.dir / "model.safetensors").items()}}, d.dir / "model.safetensors"), "either", family="bert")
simple("weights-lfs", lambda d: d.write("model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:" + "5" * 64 + "\nsize 90868376\n"), "refuse", ["model.safetensors", "git lfs"], among=ANY)
simple("weights-lfs-tokenizer", lambda d: d.write("tokenizer.json", "version https://git-lfs.github.com/spec/v1\noid sha256:" + "5" * 64 + "\nsize 9086\n"), "refuse", ["tokenizer.json", "git lfs"], among=ANY)
simple("weights-bin", lambda d: (d.remove("model.safetensors"), d.write("pytorch_model.bin", b"PK\3\4")), "refuse", ["pytorch_model.bin", "safetensors"], among=ANY)
simple("weights-html", lambda d: d.write("model.safetensors", "<!DOCTYPE html>\n<html><head><title>Access denied</title></head></html>\n"), "refuse", ["model.safetensors", "HTML"], among=ANY)
simple("weights-html-config", lambda d: d.write("config.json", "<!doctype html><html></html>"), "refuse", ["config.json", "HTML"], among=ANY)
simple("weights-empty", lambda d: d.write("model.safetensors", ""), "refuse", ["model.safetensors"], among=ANY)
simple("weights-cut", lambda d: d.write("model.safetensors", (d.dir / "model.safetensors").read_bytes()[:-100]), "refuse", ["model.safetensors", "the file is cut"], among=ANY)
simple("weights-none", lambda d: d.remove("model.safetensors"), "refuse", ["model.safetensors"], among=ANY)
simple("weights-onnx", lambda d: (d.remove("model.safetensors"), (d.dir / "onnx").mkdir(), d.write("onnx/model.onnx", b"\x08\x07")), "refuse", ["model.safetensors"], among=ANY)
simple("weights-shard-absent", lambda d: (shards(d), d.remove("model-00002-of-00003.safetensors")), "refuse", ["model-00002-of-00003.safetensors"], among=ANY)
simple("weights-shard-outside", lambda d: (shards(d), d.edit("model.safetensors.index.json", weight_map={n: "../" + f for n, f in d.read("model.safetensors.index.json")["weight_map"].items()})), "refuse", ["model.safetensors.index.json"], among=ANY)

# Adapters.


def lora(name, must="equal", words=(), family=None, drop_base=None, change=nothing, **settings):
    @case(f"lora-{name}", must, "embed", words)
    def write(d):
        import peft

        f = d.base(family, among=("bert", "roberta", "mpnet", "qwen3", "modernbert"))
        base = d.dir.with_name(d.dir.name + ".base")
        base.mkdir()
        for file in ("config.json", "model.safetensors"):
            shutil.copy(d.dir / file, base / file)
        targets = {"bert": ["query", "value"], "roberta": ["query", "key", "dense"], "mpnet": ["q", "v", "o"], "qwen3": ["q_proj", "v_proj", "down_proj"], "modernbert": ["Wqkv", "Wo"], "distilbert": ["q_lin", "v_lin"]}[f]
        tuned = peft.get_peft_model(hf.AutoModel.from_pretrained(base), peft.LoraConfig(**{"r": 4, "lora_alpha": 7, "target_modules": targets, "init_lora_weights": False, **settings}))
        tuned.peft_config["default"].base_model_name_or_path = str(base.resolve())
        tuned.save_pretrained(d.dir)
        if drop_base:
            d.remove("model.safetensors", "config.json")
        change(d)


lora("beside-weights")
lora("base-elsewhere", "either", ["adapter_config.json", "base_model_name_or_path"], drop_base=True)
lora("base-unknown", "refuse", ["adapter_config.json", "some/model"], drop_base=True, change=lambda d: d.edit("adapter_config.json", base_model_name_or_path="some/model"))
lora("rank", r=2, lora_alpha=8)
lora("rslora", use_rslora=True)
lora("pattern", "either", family="bert", rank_pattern={"layer.0.attention.self.query": 2}, alpha_pattern={"value": 3})
lora("dora", "either", ["use_dora"], family="bert", use_dora=True)
lora("bias", "either", ["bias"], family="bert", bias="lora_only")
lora("saved-modules", "either", ["modules_to_save"], family="bert", modules_to_save=["LayerNorm"])
lora("half", change=lambda d: d.weights(lambda n, t: (n, t.half()), "adapter_model.safetensors"), must="either")
lora("loha", "refuse", ["adapter_config.json", "peft_type", "LOHA"], change=lambda d: d.edit("adapter_config.json", peft_type="LOHA"))
lora("no-weights", "refuse", ["adapter_model.safetensors"], change=lambda d: d.remove("adapter_model.safetensors"))
lora("unknown-key", "refuse", ["adapter_config.json", "lora_twist"], change=lambda d: d.edit("adapter_config.json", lora_twist=3))

# Heads.

RERANKERS = ("bert", "distilbert", "mpnet", "roberta", "xlmr", "modernbert")
CLASSES = RERANKERS + ("qwen3", "gemma3")


def head(name, kind, change=nothing, must="equal", words=(), among=RERANKERS, family=None, saved=False, task="AutoModelForSequenceClassification", settings=None, **changes):
    @case(name, must, kind, words, **(settings or {}))
    def write(d):
        f = family or d.rng.choice(among)
        d.plain(f, task, **changes)
        if saved:
            model = CrossEncoder(str(d.dir), device="cpu")
            model.save_pretrained(str(d.dir), create_model_card=False)
        change(d)


for f in CLASSES:
    head(f"score-{f}", "score", family=f, num_labels=1)
    head(f"score-{f}-saved", "score", family=f, num_labels=1, saved=True)
    head(f"classify-{f}", "classify", family=f, num_labels=3)
    if f != "gemma3":
        head(f"tag-{f}", "tag", family=f, num_labels=4, task="AutoModelForTokenClassification", must="either")
ACT = "torch.nn.modules.linear.Identity"
head("score-identity", "score", lambda d: d.edit("config.json", sentence_transformers={"activation_fn": ACT, "version": "4.1.0"}), num_labels=1)
head("score-sigmoid", "score", lambda d: d.edit("config.json", sentence_transformers={"activation_fn": "torch.nn.modules.activation.Sigmoid", "version": "4.1.0"}), num_labels=1)
head("score-tanh", "score", lambda d: d.edit("config.json", sentence_transformers={"activation_fn": "torch.nn.modules.activation.Tanh", "version": "4.1.0"}), "either", ["activation_fn", "Tanh"], num_labels=1)
head("score-old-identity", "score", lambda d: d.edit("config.json", sbert_ce_default_activation_function=ACT), num_labels=1)
head("score-old-sigmoid", "score", lambda d: d.edit("config.json", sbert_ce_default_activation_function="torch.nn.modules.activation.Sigmoid"), num_labels=1)
head("score-old-null", "score", lambda d: d.edit("config.json", sbert_ce_default_activation_function=None), num_labels=1)
head("score-foreign", "score", lambda d: d.edit("config.json", sentence_transformers={"activation_fn": "custom.Act"}), "either", ["custom.Act"], num_labels=1)
head("score-saved-identity", "score", lambda d: d.edit("config_sentence_transformers.json", activation_fn=ACT), saved=True, num_labels=1)
head("score-saved-prompt", "score", lambda d: d.edit("config_sentence_transformers.json", prompts={"q": "rank: "}, default_prompt_name="q"), "either", ["default_prompt_name"], saved=True, num_labels=1)
head("score-long-query", "score", settings=dict(query=parts.LONG), num_labels=1)
head("score-empty-query", "score", settings=dict(query=""), num_labels=1)
head("score-half", "score", lambda d: d.weights(lambda n, t: (n, t.half())), num_labels=1)
head("score-shards", "score", shards, num_labels=1)
head("score-no-head", "score", lambda d: d.weights(lambda n, t: None if "classifier" in n else (n, t)), "refuse", ["classifier"], among=("bert", "roberta", "distilbert"), num_labels=1)
head("score-many", "score", must="refuse", num_labels=3)
head("classify-multi", "classify", num_labels=3, problem_type="multi_label_classification")
head("classify-single", "classify", num_labels=2, problem_type="single_label_classification")
head("classify-regression", "classify", num_labels=2, problem_type="regression", must="either")
head("classify-one", "classify", num_labels=1, must="either")
head("classify-unknown-problem", "classify", lambda d: d.edit("config.json", problem_type="ranking"), "refuse", ["config.json", "problem_type", "ranking"], num_labels=3)
head("classify-names", "classify", id2label={0: "sunny", 1: "stormy", 2: "ß ü"}, label2id={"sunny": 0, "stormy": 1, "ß ü": 2})
head("classify-no-names", "classify", lambda d: d.edit("config.json", drop=["id2label", "label2id"], num_labels=3), num_labels=3, must="either")
head("classify-mean", "classify", family="modernbert", num_labels=3, classifier_pooling="mean")
head("classify-act", "classify", family="modernbert", num_labels=3, classifier_activation="silu", classifier_bias=True, must="either")
head("embed-of-classifier", "embed", num_labels=3, must="either")
head("score-of-encoder", "score", task="AutoModel", must="refuse", among=("bert", "roberta"))
head("embed-of-masked", "embed", task="AutoModelForMaskedLM", among=("bert", "roberta", "xlmr", "distilbert", "mpnet", "modernbert"), must="either")

# Compositions.


def compose(d):
    rng = d.rng
    f = rng.choice(ANY)
    dense = [(rng.choice([ACTS[a] for a in ("tanh", "identity", "relu", "gelu", "sigmoid")]), rng.choice([7, 24, 33])) for _ in range(rng.choice([0, 0, 1, 2]))]
    prompts = rng.choice([None, {"query": "query: ", "passage": "Represent this: "}])
    d.base(f, pooling=tuple(rng.sample(MODES, rng.choice([1, 1, 2, 3]))), dense=dense, prompts=prompts, default=rng.choice([None, "query", "passage"]) if prompts else None)
    if rng.random() < 0.4 and f != "nomic":
        d.old()
    if rng.random() < 0.3:
        d.edit("sentence_bert_config.json", max_seq_length=rng.choice([5, 17, 50]))
    if rng.random() < 0.2:
        d.edit("sentence_bert_config.json", do_lower_case=True)
    kind = rng.choice([torch.float32, torch.float32, torch.float16, torch.bfloat16])
    prefix = HEADS.get(f, "") if rng.random() < 0.3 else ""
    d.weights(lambda n, t: (prefix + n, t.to(kind)))
    if rng.random() < 0.3:
        shards(d)
    if rng.random() < 0.3:
        rename("1_Pooling", "1_Other")(d)


def compositions(count):
    for i in range(count):
        case(f"drawn-{i}")(compose)
