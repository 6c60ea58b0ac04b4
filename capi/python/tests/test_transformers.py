"""Models of transformers with attention "fkit" beside the same models with eager attention in float64."""

import ast
import copy
import inspect
import pathlib

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import flashkit  # noqa: E402
import flashkit.transformers as ft  # noqa: E402

transformers.logging.set_verbosity_error()

SIZES = dict(
    vocab_size=99, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
    max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=98, attention_dropout=0.0,
)  # fmt: skip
ENCODER = dict(
    vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
)
PAIR = dict(vocab_size=99, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=2, encoder_ffn_dim=48, decoder_ffn_dim=48)
CAUSAL, PLAIN, SEQ2SEQ = transformers.AutoModelForCausalLM, transformers.AutoModel, transformers.AutoModelForSeq2SeqLM
MODELS = {
    "Llama": (CAUSAL, SIZES),
    "Mistral": (CAUSAL, SIZES | dict(sliding_window=5)),
    "Gemma2": (CAUSAL, SIZES | dict(sliding_window=6, query_pre_attn_scalar=8, attn_logit_softcapping=1.5)),
    "Gemma3Text": (CAUSAL, SIZES | dict(sliding_window=6)),
    "GptOss": (CAUSAL, SIZES | dict(sliding_window=6, num_local_experts=2, num_experts_per_tok=1)),
    "GPT2": (CAUSAL, dict(vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=64, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0, eos_token_id=98)),
    "Bert": (PLAIN, ENCODER),
    "ModernBert": (PLAIN, SIZES | dict(local_attention=6, num_hidden_layers=3, cls_token_id=1, sep_token_id=2)),
    # Its default, ReLU, has no derivative at 0, and float32 may be on the other side of 0 than float64.
    "T5": (SEQ2SEQ, dict(feed_forward_proj="gelu", vocab_size=99, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.0, decoder_start_token_id=0)),
    "Bart": (SEQ2SEQ, PAIR | dict(dropout=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=98, decoder_start_token_id=1, forced_eos_token_id=None)),
    "ViT": (PLAIN, ENCODER | dict(image_size=16, patch_size=4)),
}


def build(name, implementation, seed):
    auto, sizes = MODELS[name]
    torch.manual_seed(seed)
    noise = 0.1 if name == "T5" else 0.2  # T5 does not scale its scores, which must stay small
    config = getattr(transformers, f"{name}Config")(**copy.deepcopy(sizes))
    model = auto.from_config(config, attn_implementation=implementation, **({"experts_implementation": "eager"} if name == "GptOss" else {}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(noise * torch.randn_like(parameter))  # biases and sinks too
    return model.eval()


@pytest.fixture
def seed(rng):
    return int(rng.integers(2**31))


EAGER = "Gemma2", "GptOss"  # sdpa refuses these models


def inputs(name, rng, padding):
    x = torch.from_numpy(rng.integers(2, 98, (3, 13)))
    mask = torch.ones_like(x)
    if padding == "left":
        mask[0, :4] = mask[1, :1] = 0
    elif padding == "right":
        mask[0, -2:] = mask[1, -1:] = 0
    if name == "ViT":
        return {"pixel_values": torch.from_numpy(rng.standard_normal((2, 3, 16, 16))).float()}, None
    given = {"input_ids": x, "attention_mask": mask}
    if MODELS[name][0] is SEQ2SEQ:
        return given | {"decoder_input_ids": torch.from_numpy(rng.integers(2, 98, (3, 5)))}, None
    return given, mask.bool()


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_values(name, rng, seed, padded):
    ours, theirs = build(name, ft.NAME, seed), build(name, "eager" if name in EAGER else "sdpa", seed).double()
    # In float64, eager attention is NaN in rows that see no key.
    given, rows = inputs(name, rng, None if not padded else "right" if name in EAGER else "left")
    outputs = []
    for model in (ours, theirs):
        y = model(**{k: x.to(model.dtype) if x.is_floating_point() else x for k, x in given.items()})[0]
        y = y if rows is None else y[rows]  # padded rows have no result
        weights = torch.cos(torch.arange(y.numel(), dtype=y.dtype)).view_as(y)
        (y * weights).sum().backward()
        outputs.append((y.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}))
    (a, grads), (b, expected) = outputs
    assert (a - b).abs().max() <= 2e-5 * b.abs().max()
    assert grads.keys() == expected.keys()
    largest = max(g.abs().max() for g in expected.values())
    for n, g in grads.items():
        assert (g - expected[n]).abs().max() <= 1e-4 * largest, n


@pytest.mark.parametrize("name", ["Llama", "GPT2", "T5", *EAGER])
def test_generate(name, rng, seed):
    given, _ = inputs(name, rng, "left")
    given.pop("decoder_input_ids", None)
    tokens = lambda which: build(name, which, seed).generate(**given, max_new_tokens=8, do_sample=False)
    assert torch.equal(tokens(ft.NAME), tokens("eager"))


def test_static_cache(rng, seed):
    given, _ = inputs("Llama", rng, None)
    model = build("Llama", ft.NAME, seed)
    tokens = lambda **more: model.generate(**given, max_new_tokens=6, do_sample=False, disable_compile=True, **more)
    assert torch.equal(tokens(cache_implementation="static"), tokens())


def test_compile(rng, seed):
    torch._dynamo.reset()
    model, (given, _) = build("Gemma2", ft.NAME, seed), inputs("Gemma2", rng, "left")
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        assert (compiled(**given)[0] - model(**given)[0]).abs().max() < 1e-5


def test_float_mask_and_sdpa_agree(randn):
    q, k, v, mask = randn(2, 4, 5, 8), randn(2, 2, 7, 8), randn(2, 2, 7, 8), randn(2, 1, 5, 7)
    module = torch.nn.Module()
    module.num_key_value_groups = 2
    sdpa = transformers.AttentionInterface()["sdpa"]
    for given in (mask, mask > 0, mask.expand(2, 4, 5, 7), None):
        got, _ = ft.attention_forward(module, q, k, v, given, is_causal=False)
        assert (got - sdpa(module, q, k, v, given, is_causal=False)[0]).abs().max() < 1e-5
    one, _ = ft.attention_forward(module, q[:1], k, v, None, is_causal=False)
    assert torch.equal(one, ft.attention_forward(module, q[:1].expand_as(q), k, v, None, is_causal=False)[0])


def test_keywords_of_every_model():
    """All keywords that models write in calls of attention functions are known; these change results, and are refused."""
    found, folder = set(), pathlib.Path(inspect.getfile(transformers)).parent / "models"
    for path in folder.glob("*/modeling_*.py"):
        for text in path.read_text().split("= attention_interface(")[1:]:
            end = next(i for i in range(len(text)) if text[: i + 1].count("(") - text[: i + 1].count(")") < 0)
            found |= {keyword.arg for keyword in ast.parse(f"f({text[: end + 1]}").body[0].value.keywords if keyword.arg}
    assert len(found) > 10
    handled = inspect.signature(ft.attention_forward).parameters.keys() | ft._IGNORED
    assert found - handled <= {"block_indices", "indices", "sinks"}, found - handled


def test_refused(randn, seed):
    q, k = randn(1, 2, 3, 8), randn(1, 2, 5, 8)
    call = lambda *x, **rest: ft.attention_forward(torch.nn.Module(), *x, **rest)
    for name, refused in (
        ("indices", lambda: call(q, q, q, None, indices=q)),
        ("cache", lambda: call(q, q, q, None, cache=object())),
        ("output_attentions", lambda: call(q, q, q, None, output_attentions=True)),
        ("attention_mask", lambda: call(q, k, k, None)),
    ):
        with pytest.raises(flashkit.UnsupportedError) as caught:
            refused()
        assert caught.value.field == name and str(caught.value).startswith(f"flashkit: {name}: ")
    bloom = transformers.BloomForCausalLM._from_config(transformers.BloomConfig(vocab_size=99, hidden_size=32, n_layer=1, n_head=4), attn_implementation=ft.NAME)
    with pytest.raises(flashkit.UnsupportedError, match="BloomConfig takes no attention functions"):
        bloom(input_ids=torch.tensor([[3, 4]]))
