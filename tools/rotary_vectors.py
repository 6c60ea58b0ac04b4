"""Writes tiny models with rotary attention, and the hidden states that transformers computes.

    rotary_vectors.py FOLDER [SEED]

Each case is a folder with config.json and model.safetensors, as transformers saves them. The file of
weights also holds the token IDs of some sequences (test.ids), the sequences' starts (test.starts),
the last hidden states (test.hidden) and a classifier's logits (test.logits). With SEED, the weights, the IDs and the lengths are random.
"""

import json
import pathlib
import sys

import safetensors.torch
import torch
import transformers

SMALL = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=4, num_attention_heads=2,
             max_position_embeddings=512, pad_token_id=0)
# The window of ModernBERT is two-sided, and small beside the sequences.
MODERN = dict(SMALL, model_type="modernbert", local_attention=8)
NOMIC = dict(SMALL, model_type="nomic_bert", num_hidden_layers=2)
QWEN = dict(SMALL, model_type="qwen3", num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_hidden_layers=2)
GEMMA = dict(SMALL, model_type="gemma3_text", num_key_value_heads=1, head_dim=12, num_hidden_layers=3, sliding_window=8,
             query_pre_attn_scalar=10, layer_types=["sliding_attention", "full_attention", "sliding_attention"])
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=128, rope_theta=1e6)
LLAMA = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64, rope_theta=5e5)

# For each case, the arguments of the config and the keys by which config.json then differs, as in
# files of earlier versions of transformers. None removes a key.
CASES = {
    "modernbert": (dict(MODERN, num_labels=3), {}),
    "modernbert-biases": (dict(MODERN, num_labels=1, classifier_pooling="mean", classifier_bias=True, classifier_activation="relu", norm_bias=True, attention_bias=True, mlp_bias=True, hidden_activation="gelu_pytorch_tanh", num_hidden_layers=2), {}),
    "modernbert-old": (dict(MODERN, layer_types=["full_attention", "sliding_attention"] * 2,
                            rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 8e4}, "sliding_attention": {"rope_type": "default", "rope_theta": 5e3}}),
                       dict(layer_types=None, rope_parameters=None, global_attn_every_n_layers=2, global_rope_theta=8e4, local_rope_theta=5e3,
                            position_embedding_type="absolute", reference_compile=True)),
    "nomicbert": (dict(NOMIC, num_labels=2), {}),
    "nomicbert-first": (NOMIC, dict.fromkeys("""hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act hidden_dropout_prob
                        attention_probs_dropout_prob max_position_embeddings layer_norm_eps rope_parameters head_dim classifier_dropout""".split())
                        | dict(n_embd=16, n_layer=2, n_head=2, n_inner=24, n_positions=512, activation_function="swiglu", causal=False, layer_norm_epsilon=1e-12,
                               qkv_proj_bias=False, rotary_emb_base=1000, rotary_emb_fraction=1.0, rotary_emb_scale_base=None, use_flash_attn=True,
                               auto_map={"AutoModel": "modeling_hf_nomic_bert.NomicBertModel"})),
    "qwen3": (QWEN, {}),
    "qwen3-window": (dict(QWEN, use_sliding_window=True, sliding_window=5, max_window_layers=1, attention_bias=True, rope_parameters=YARN), {}),
    "qwen3-old": (dict(QWEN, rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=1e6)),
                  dict(rope_parameters=None, rope_theta=1e6, rope_scaling={"type": "linear", "factor": 2.0}, layer_types=None)),
    "qwen3-llama3": (dict(QWEN, rope_parameters=LLAMA), {}),
    "gemma3": (GEMMA, {}),
    "gemma3-both-sides": (dict(GEMMA, use_bidirectional_attention=True, sliding_window=9), {}),
    "gemma3-old": (dict(GEMMA, layer_types=None, num_hidden_layers=4, sliding_window_pattern=2,
                        rope_parameters={"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}, "sliding_attention": {"rope_type": "default", "rope_theta": 5e3}}),
                   dict(rope_parameters=None, rope_theta=1e6, rope_local_base_freq=5e3, rope_scaling={"rope_type": "linear", "factor": 8.0}, layer_types=None, sliding_window_pattern=2)),
}


def randomize(model):
    for name, p in model.named_parameters():
        if p.dim() == 1:
            p.data.add_(torch.randn_like(p), alpha=0.2)
        else:
            p.data.normal_(std=0.9 / p.shape[1] ** 0.5)
        p.data = p.data.bfloat16().float()


def write(folder, keys, old, lengths):
    keys = dict(keys)
    config = transformers.CONFIG_MAPPING[keys.pop("model_type")](**keys)
    config._attn_implementation = "eager"
    auto = transformers.AutoModelForSequenceClassification if "num_labels" in keys else transformers.AutoModel
    model = auto.from_config(config).eval()
    randomize(model)
    model.save_pretrained(folder)
    file = folder / "config.json"
    text = json.loads(file.read_text())
    text = {k: v for k, v in {**text, **old}.items() if v is not None or k not in old}
    file.write_text(json.dumps(text, indent=1) + "\n")
    first = "n_embd" in old
    check = model if first else auto.from_pretrained(folder, attn_implementation="eager").eval()
    for a, b in zip(model.parameters(), check.parameters()):
        assert torch.equal(a, b)
    ids = [torch.randint(1, config.vocab_size, (n,)) for n in lengths]
    with torch.no_grad():
        hidden = [check.base_model(input_ids=x[None]).last_hidden_state[0] for x in ids]
        logits = [check(input_ids=x[None]).logits for x in ids] if "num_labels" in keys else None
    assert config.num_hidden_layers > 0 and all(h.isfinite().all() for h in hidden)
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    if logits:
        weights["test.logits"] = torch.cat(logits)
    weights["test.ids"] = torch.cat(ids).int()
    weights["test.starts"] = torch.tensor([0, *lengths]).cumsum(0).int()
    weights["test.hidden"] = torch.cat(hidden).contiguous()
    safetensors.torch.save_file(weights, folder / "model.safetensors")
    print(folder.name, tuple(weights["test.hidden"].shape), float(weights["test.hidden"].abs().max()))


def main():
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    torch.manual_seed(seed)
    lengths = [3, 1, 41, 6] if seed == 0 else [1, *torch.randint(1, 300, (6,)).tolist()]
    for name, (keys, old) in CASES.items():
        folder = pathlib.Path(sys.argv[1]) / name
        folder.mkdir(parents=True, exist_ok=True)
        write(folder, keys, old, lengths)


if __name__ == "__main__":
    main()
