"""The folders of encoder_folders.py: what current and older software saves, and what must be refused.

A case is a function of a Draw, which writes a folder. `must` says what a reader owes:
"equal" the vectors of the makers' software, "refuse" an error, "either" one of these two.
An error must contain every one of `words`.
"""

import json
import pathlib
import random
import shutil
from types import SimpleNamespace

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer import modules as st
from sentence_transformers.sentence_transformer.modules import Pooling

import encoder_parts as parts

CASES = []
MODES = Pooling.POOLING_MODES
OLD_KEYS = dict(zip(MODES, ["cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"]))


def case(name, must="equal", kind="embed", words=(), **settings):
    def add(write):
        CASES.append(SimpleNamespace(name=name, must=must, kind=kind, words=list(words), settings=settings, write=write))
        return write

    return add


class Draw:
    """A folder that is made, and the random choices for it."""

    def __init__(self, folder, seed):
        self.dir, self.rng, self.made = pathlib.Path(folder), random.Random(seed), False
        torch.manual_seed(self.rng.randrange(1 << 30))

    def base(self, family=None, *modules, pooling=None, normalize=None, among=("bert", "distilbert", "roberta", "mpnet"), dense=(), path=None, prompts=None, default=None, **changes):
        """Save a model of sentence-transformers: a transformer, a pooling, modules and perhaps Normalize."""
        family = family or self.rng.choice(among)
        plain = self.dir.with_suffix(".plain")
        self.config = parts.build(plain, family, self.rng, **changes)
        transformer = Transformer(str(plain))
        if pooling is None:
            pooling = parts.LASTING.get(family, "mean")
        chain = [transformer, Pooling(transformer.get_embedding_dimension(), pooling)]
        for act, out in dense:
            chain.append(spread(Dense(chain[-1].get_embedding_dimension(), out, bias=self.rng.random() < 0.7, activation_function=act)))
        for make in modules:
            chain.append(make(chain[-1].get_embedding_dimension() if hasattr(chain[-1], "get_embedding_dimension") else None))
        if normalize or (normalize is None and self.rng.random() < 0.5):
            chain.append(Normalize())
        model = SentenceTransformer(modules=chain, prompts=prompts, default_prompt_name=default, device="cpu")
        model.save(str(self.dir), create_model_card=False)
        shutil.rmtree(plain)
        return family

    def plain(self, family, task="AutoModel", **changes):
        """Save a model as transformers alone does, without settings of sentence-transformers."""
        self.config = parts.build(self.dir, family, self.rng, task, **changes)

    def read(self, name):
        return json.loads((self.dir / name).read_text("utf-8"))

    def put(self, name, value):
        path = self.dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value, ensure_ascii=False, indent=2), "utf-8")

    def edit(self, name, drop=(), **changes):
        value = {**(self.read(name) if (self.dir / name).exists() else {}), **changes}
        self.put(name, {k: v for k, v in value.items() if k not in drop})

    def tokenizer(self, change):
        value = self.read("tokenizer.json")
        change(value)
        self.put("tokenizer.json", value)

    def weights(self, change, name="model.safetensors"):
        """Replace the tensors: change maps a name and a tensor to a pair, or to None."""
        path = self.dir / name
        out = dict(filter(None, (change(n, t) for n, t in load_file(path).items())))
        save_file({n: t.contiguous() for n, t in out.items()}, path, metadata={"format": "pt"})

    def remove(self, *names):
        for name in names:
            (self.dir / name).unlink(missing_ok=True)

    def write(self, name, data):
        (self.dir / name).write_bytes(data if isinstance(data, bytes) else data.encode())

    def modules(self, change):
        chain = self.read("modules.json")
        self.put("modules.json", change(chain) or chain)

    def words(self):
        """Write vocab.txt in place of tokenizer.json."""
        vocab = self.read("tokenizer.json")["model"]["vocab"]
        self.write("vocab.txt", "".join(w + "\n" for w in sorted(vocab, key=vocab.get)))
        self.remove("tokenizer.json")

    def old(self):
        """Settings as sentence-transformers 2 and transformers 4 write them."""
        pooling = self.read("1_Pooling/config.json")
        modes = pooling["pooling_mode"]
        modes = [modes] if isinstance(modes, str) else modes
        keys = {"pooling_mode_" + key: mode in modes for mode, key in OLD_KEYS.items()}
        self.put("1_Pooling/config.json", {"word_embedding_dimension": pooling["embedding_dimension"], **keys, "include_prompt": pooling["include_prompt"]})
        limit = self.read("tokenizer_config.json")["model_max_length"]
        self.put("sentence_bert_config.json", {"max_seq_length": limit, "do_lower_case": False})
        self.edit("tokenizer_config.json", drop=["backend", "is_local", "local_files_only"], model_max_length=512)
        self.edit("config.json", drop=["dtype", "rope_parameters", "layer_types"], torch_dtype="float32", transformers_version="4.41.2", _name_or_path="old", use_cache=True,
                  **rotary(self.read("config.json")))
        self.modules(lambda chain: [{**m, "type": "sentence_transformers.models." + m["type"].rsplit(".", 1)[1]} for m in chain])
        self.edit("config_sentence_transformers.json", drop=["model_type"], __version__={"sentence_transformers": "2.2.2", "transformers": "4.41.2", "pytorch": "2.0.0"})


def rotary(config):
    """The keys of transformers 4 in place of rope_parameters and layer_types."""
    rope, kind = config.get("rope_parameters"), config["model_type"]
    if kind == "modernbert":
        return dict(global_rope_theta=rope["full_attention"]["rope_theta"], local_rope_theta=rope["sliding_attention"]["rope_theta"], global_attn_every_n_layers=3)
    if kind == "gemma3_text":
        return dict(rope_theta=rope["full_attention"]["rope_theta"], rope_local_base_freq=rope["sliding_attention"]["rope_theta"], rope_scaling=None, sliding_window_pattern=6)
    return dict(rope_theta=rope["rope_theta"], rope_scaling=None) if rope and kind == "qwen3" else {}


def spread(module):
    for p in module.parameters():
        torch.nn.init.normal_(p, 0, p.shape[-1] ** -0.5)
    return module


def simple(name, change, must="equal", words=(), among=("bert", "distilbert", "roberta", "mpnet"), family=None, kind="embed", settings=None, **base):
    """A case that changes one thing of a plain folder."""

    @case(name, must, kind, words, **(settings or {}))
    def write(d):
        d.base(family, among=among, **base)
        change(d)


nothing = lambda d: None

# Families, as saved today and by older software.

for f in parts.FAMILIES:
    simple(f"family-{f}", nothing, family=f)
    simple(f"family-{f}-again", nothing, family=f, pooling=tuple(MODES[i] for i in (0, 2, 5)))
    simple(f"old-{f}", Draw.old, family=f, **({"must": "either"} if f == "nomic" else {}))

BOTH = ("rope_parameters", "layer_types")
VARIED = {
    "bert": [dict(hidden_act=a) for a in ("gelu_new", "relu", "silu", "swish", "gelu_fast", "quick_gelu", "tanh", "gelu_10", "mish")] + [dict(type_vocab_size=1), dict(layer_norm_eps=0.1), dict(is_decoder=True)],
    "distilbert": [dict(activation="relu"), dict(sinusoidal_pos_embds=True)],
    "mpnet": [dict(relative_attention_num_buckets=64), dict(hidden_act="relu"), dict(layer_norm_eps=0.1)],
    "roberta": [dict(type_vocab_size=2), dict(hidden_act="gelu_new"), dict(pad_token_id=3), dict(is_decoder=True)],
    "xlmr": [dict(pad_token_id=0), dict(layer_norm_eps=0.1)],
    "nomic": [dict(hidden_act="gelu"), dict(head_dim=24), dict(type_vocab_size=1)],
    "modernbert": [dict(norm_bias=True), dict(attention_bias=True), dict(mlp_bias=True), dict(hidden_activation="relu"), dict(norm_eps=0.1), dict(layer_types=["sliding_attention"] * 3 + ["full_attention"], num_hidden_layers=4)],
    "qwen3": [dict(attention_bias=True), dict(use_sliding_window=True, sliding_window=7, max_window_layers=2), dict(is_causal=False), dict(rms_norm_eps=0.1), dict(tie_word_embeddings=True), dict(hidden_act="gelu")]
    + [dict(rope_parameters={"rope_theta": 1000.0, **r}) for r in ({"rope_type": "linear", "factor": 2.0}, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, {"rope_type": "dynamic", "factor": 2.0},
       {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}, {"rope_type": "default", "partial_rotary_factor": 0.5})],
    "gemma3": [dict(use_bidirectional_attention=b, sliding_window=w) for b in (True, False) for w in (8, 9)] + [dict(attention_bias=True), dict(attn_logit_softcapping=5.0), dict(rms_norm_eps=0.1), dict(hidden_activation="gelu"),
       dict(rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}, "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 10000.0}})],
}
PLAIN = {"hidden_act": ("gelu_new", "relu", "gelu", "silu", "swish"), "type_vocab_size": None, "layer_norm_eps": None, "norm_eps": None, "rms_norm_eps": None, "use_bidirectional_attention": None,
         "activation": None, "sinusoidal_pos_embds": None, "tie_word_embeddings": None, "num_hidden_layers": None, "layer_types": None, "sliding_window": None, "attention_bias": None, "use_sliding_window": None, "max_window_layers": None}
for f, rows in VARIED.items():
    for changes in rows:
        must = "equal" if all(k in PLAIN and (PLAIN[k] is None or v in PLAIN[k]) for k, v in changes.items()) else "either"
        key, value = next(iter(changes.items()))
        simple(f"config-{f}-{key}-{value.get('rope_type', 'both') if isinstance(value, dict) else value if isinstance(value, (str, int, float)) else len(value)}" + (f"-{changes['sliding_window']}" if "sliding_window" in changes else ""), nothing, must, family=f, **changes)

# Pooling.

for mode in MODES:
    simple(f"pool-{mode}", nothing, pooling=mode, normalize=False)
    simple(f"pool-{mode}-old", Draw.old, pooling=mode, normalize=False, among=("bert", "distilbert", "roberta"))
    simple(f"pool-{mode}-left", nothing, pooling=mode, normalize=False, among=("qwen3", "gemma3"))
    for without in (False, True):
        simple(f"pool-{mode}-prompt-{'out' if without else 'in'}", lambda d, w=without: d.edit("1_Pooling/config.json", include_prompt=not w), pooling=mode, normalize=False, among=("bert", "xlmr", "qwen3", "modernbert"),
               prompts={"query": "Find lovely boats: "}, default="query", must="either" if without else "equal")


@case("pool-some")
def some(d):
    d.base(pooling=tuple(d.rng.sample(MODES, d.rng.choice([2, 3]))), among=parts.FAMILIES)


@case("pool-some-old")
def some_old(d):
    d.base(pooling=tuple(m for m in MODES if d.rng.random() < 0.6) or ("max", "mean"), among=("bert", "roberta", "mpnet"))
    d.old()


def rename(old, new, path=None):
    def change(d):
        if (d.dir / old).exists():
            (d.dir / new).parent.mkdir(parents=True, exist_ok=True)
            (d.dir / old).rename(d.dir / new)
        d.modules(lambda chain: [{**m, "path": new} if m["path"] == old else m for m in chain])

    return change


def only_old(d):
    d.put("1_Pooling/config.json", {"word_embedding_dimension": d.read("1_Pooling/config.json")["embedding_dimension"], "pooling_mode_cls_token": True})


simple("pool-all-modes", nothing, pooling=MODES)
simple("pool-other-folder", rename("1_Pooling", "pool/deep"), pooling="cls")
simple("pool-list-of-one", lambda d: d.edit("1_Pooling/config.json", pooling_mode=["max"]))
simple("pool-old-key-alone", only_old)
simple("pool-no-mode", lambda d: d.edit("1_Pooling/config.json", drop=["pooling_mode"]), "either")
simple("pool-old-none-true", lambda d: (d.old(), d.edit("1_Pooling/config.json", **{"pooling_mode_" + k: False for k in OLD_KEYS.values()})), "either")
simple("pool-old-and-new", lambda d: d.edit("1_Pooling/config.json", pooling_mode="max", pooling_mode_cls_token=True), "either")
simple("pool-unknown-mode", lambda d: d.edit("1_Pooling/config.json", pooling_mode="attention"), "refuse", ["1_Pooling/config.json", "pooling_mode", "attention"])
simple("pool-unknown-key", lambda d: d.edit("1_Pooling/config.json", pooling_mode_attention_tokens=True), "refuse", ["1_Pooling/config.json", "pooling_mode_attention_tokens"])
simple("pool-wrong-width", lambda d: d.edit("1_Pooling/config.json", embedding_dimension=7), "either")
simple("pool-no-config", lambda d: d.remove("1_Pooling/config.json"), "refuse", ["1_Pooling"])

# Modules.

ACTS = dict(tanh=torch.nn.Tanh(), identity=torch.nn.Identity(), relu=torch.nn.ReLU(), gelu=torch.nn.GELU(), sigmoid=torch.nn.Sigmoid(), silu=torch.nn.SiLU(), leaky=torch.nn.LeakyReLU(), elu=torch.nn.ELU(), softmax=torch.nn.Softmax())
for name, act in ACTS.items():
    simple(f"dense-{name}", nothing, "equal" if name in ("tanh", "identity", "relu", "gelu", "sigmoid") else "either", dense=[(act, 13)])
IDENTITY = ACTS["identity"]
TWICE = [(IDENTITY, 50), (IDENTITY, 20)]


def swap(i, j):
    def change(chain):
        chain[i], chain[j] = chain[j], chain[i]

    return lambda d: d.modules(change)


def module(d, kind, path, config=None):
    d.modules(lambda chain: chain + [{"idx": len(chain), "name": str(len(chain)), "path": path, "type": kind}])
    if config is not None:
        d.put(path + "/config.json", config)


simple("no-normalize", nothing, normalize=False)
simple("dense-two", nothing, dense=TWICE, normalize=True, among=("gemma3", "bert"))
simple("dense-before-normalize-swapped", swap(2, 3), dense=[(ACTS["tanh"], 9)], normalize=True)
simple("dense-no-activation", lambda d: d.edit("2_Dense/config.json", drop=["activation_function"]), "either", dense=[(ACTS["tanh"], 9)])
simple("dense-old-name", lambda d: d.edit("2_Dense/config.json", activation_function="torch.nn.modules.linear.Identity"), dense=[(ACTS["tanh"], 9)])
simple("dense-foreign-activation", lambda d: d.edit("2_Dense/config.json", activation_function="custom.Act"), "either", dense=[(ACTS["relu"], 9)])
simple("dense-half", lambda d: d.weights(lambda n, t: (n, t.half()), "2_Dense/model.safetensors"), dense=[(ACTS["tanh"], 9)])
simple("dense-unknown-key", lambda d: d.edit("2_Dense/config.json", scale=2.0), "refuse", ["2_Dense/config.json", "scale"], dense=[(ACTS["tanh"], 9)])
simple("dense-wrong-width", lambda d: d.edit("2_Dense/config.json", in_features=5), "refuse", ["2_Dense", "in_features"], dense=[(ACTS["tanh"], 9)])
simple("dense-bin-alone", lambda d: (d.dir / "2_Dense/model.safetensors").rename(d.dir / "2_Dense/pytorch_model.bin"), "refuse", ["2_Dense", "pytorch_model.bin"], dense=[(ACTS["tanh"], 9)])
simple("dense-no-weights", lambda d: d.remove("2_Dense/model.safetensors"), "refuse", ["2_Dense", "model.safetensors"], dense=[(ACTS["tanh"], 9)])
simple("dense-other-input", lambda d: d.edit("2_Dense/config.json", module_output_name="other_embedding"), "either", dense=[(ACTS["tanh"], 9)], normalize=False)


@case("dense-residual", "either")
def residual(d):
    d.base("bert", lambda width: spread(Dense(width, width, activation_function=ACTS["tanh"], use_residual=True)))


@case("dense-first", "either")
def dense_first(d):
    d.base("bert")
    width = d.config.hidden_size
    (d.dir / "9_Dense").mkdir()
    spread(Dense(width, width, activation_function=ACTS["tanh"], module_input_name="token_embeddings")).save(str(d.dir / "9_Dense"))
    d.modules(lambda chain: chain[:1] + [{"idx": 1, "name": "1a", "path": "9_Dense", "type": "sentence_transformers.models.Dense"}] + chain[1:])


@case("module-layer-norm", "either", words=["LayerNorm"])
def layer_norm(d):
    d.base("bert", lambda width: spread(st.LayerNorm(width)), normalize=False)


@case("module-dropout", "either", words=["Dropout"])
def dropout(d):
    d.base("bert", lambda width: st.Dropout(0.5), normalize=False)


@case("module-weighted-layers", "refuse", words=["modules.json", "WeightedLayerPooling"])
def weighted(d):
    d.base("bert")
    d.modules(lambda chain: chain[:1] + [{"idx": 1, "name": "1", "path": "1_W", "type": "sentence_transformers.models.WeightedLayerPooling"}] + chain[1:])
    d.put("1_W/config.json", {"embedding_dimension": d.config.hidden_size, "layer_start": 2, "num_hidden_layers": 2})


for kind in ("custom_st.Transformer", "sentence_transformers.models.CNN", "sentence_transformers.models.Asym", "my.Normalize", "pylate.models.Dense.Dense"):
    simple("module-" + kind, lambda d, k=kind: module(d, k, "8_M", {}), "refuse", ["modules.json", kind])
simple("module-normalize-no-folder", lambda d: [shutil.rmtree(p) for p in d.dir.glob("*_Normalize")], normalize=True)
simple("module-normalize-twice", lambda d: module(d, "sentence_transformers.models.Normalize", "9_Normalize"), "either", normalize=True)
simple("module-normalize-tokens", lambda d: d.edit("2_Normalize/config.json", module_input_name="token_embeddings", module_output_name="token_embeddings"), "either", normalize=True)
simple("module-no-pooling", lambda d: d.modules(lambda chain: chain[:1]), "refuse", ["modules.json"])
simple("module-empty", lambda d: d.put("modules.json", []), "refuse", ["modules.json"])
simple("module-outside", lambda d: d.modules(lambda chain: [{**m, "path": "../" + m["path"]} if m["path"] else m for m in chain]), "refuse", ["modules.json", "path"])
simple("module-kwargs", lambda d: d.modules(lambda chain: [{**m, "kwargs": ["task"]} for m in chain]), "either")
simple("module-unknown-key", lambda d: d.modules(lambda chain: [{**m, "scale": 2} for m in chain]), "either")
simple("module-file-absent", lambda d: d.remove("modules.json"), "either", normalize=False, pooling="cls")


def lower_folder(name):
    def change(d):
        (d.dir / name).mkdir()
        for f in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "sentence_bert_config.json"):
            (d.dir / f).rename(d.dir / name / f)
        d.modules(lambda chain: [{**m, "path": name} if m["path"] == "" else m for m in chain])

    return change


simple("module-0-transformer", lower_folder("0_Transformer"))
simple("module-0-bert", lambda d: (d.old(), lower_folder("0_BERT")(d), d.modules(lambda chain: [{**chain[0], "type": "sentence_transformers.models.BERT"}] + chain[1:])), "either", family="bert")
