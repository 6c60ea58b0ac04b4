#!/usr/bin/env python3
"""Tiny random encoders with post-norm, and what transformers computes with them, for nn/encoder.

    python postnorm_vectors.py FOLDER

For BERT it writes tiny/model.safetensors, the weights in float32, and tiny.json: the config, and for
each activation and each sequence alone its ids, its types, its last hidden states and the mean
of these divided by its length, computed in float64. For each other family it writes
NAME.safetensors and NAME.json: the config of a sequence classifier, and for each sequence its
ids, the last and the mean of its hidden states, and its logits.
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import (
    AutoModelForSequenceClassification, BertConfig, BertModel, DistilBertConfig, MPNetConfig, RobertaConfig, XLMRobertaConfig,
)

SHAPE = dict(
    model_type="bert", vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=56,
    max_position_embeddings=40, type_vocab_size=2, layer_norm_eps=1e-12,
)
LENGTHS = (7, 1, 40, 2, 19)


def main(folder):
    torch.manual_seed(1)
    model = BertModel(BertConfig(**SHAPE, hidden_act="gelu", attn_implementation="eager"))
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.normal_(0, 0.3)
            if name.endswith("LayerNorm.weight"):
                p.add_(1)
    save_file({name: p.float().contiguous() for name, p in model.state_dict().items()}, folder / "tiny" / "model.safetensors")
    cases = []
    for act in ("gelu", "gelu_new", "relu"):
        exact = BertModel(BertConfig(**SHAPE, hidden_act=act, attn_implementation="eager")).double().eval()
        exact.load_state_dict({name: p.double() for name, p in model.state_dict().items()})
        for n in LENGTHS:
            ids, types = torch.randint(0, SHAPE["vocab_size"], (1, n)), torch.randint(0, 2, (1, n))
            with torch.no_grad():
                hidden = exact(input_ids=ids, token_type_ids=types).last_hidden_state[0]
            mean = hidden.mean(0)
            number = lambda x: [float(f"{v:.9g}") for v in x.flatten().tolist()]
            cases.append(dict(act=act, ids=ids[0].tolist(), types=types[0].tolist(), hidden=number(hidden), vector=number(mean / mean.norm())))
    lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
    (folder / "tiny" / "config.json").write_text(json.dumps(SHAPE | dict(hidden_act="gelu")) + "\n", encoding="ascii")
    config = json.dumps(SHAPE | dict(hidden_act="gelu"))
    (folder / "tiny.json").write_text(f'{{"config": {config},\n"cases": [\n{lines}\n]}}\n', encoding="ascii")


SMALL = dict(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)
FAMILIES = {
    "distilbert": DistilBertConfig(vocab_size=40, dim=16, n_layers=2, n_heads=2, hidden_dim=24, max_position_embeddings=50),
    "mpnet": MPNetConfig(**SMALL, max_position_embeddings=200),
    "roberta": RobertaConfig(**SMALL, max_position_embeddings=50, type_vocab_size=1, layer_norm_eps=1e-5),
    "xlm-roberta": XLMRobertaConfig(**SMALL, max_position_embeddings=50, type_vocab_size=1, pad_token_id=4),
}


def others(folder):
    torch.manual_seed(2)
    for name, config in FAMILIES.items():
        config._attn_implementation = "eager"
        config.num_labels = 3
        model = AutoModelForSequenceClassification.from_config(config).eval()
        with torch.no_grad():
            for key, p in model.named_parameters():
                p.normal_(0, 0.3)
                if "norm" in key.lower() and key.endswith("weight"):
                    p.add_(1)
        model.save_pretrained(folder)
        (folder / "model.safetensors").rename(folder / f"{name}.safetensors")
        model.double()
        cases = []
        for n in (5, 1, 195 if name == "mpnet" else 44, 20):
            ids = torch.randint(0, 40, (1, n))  # padding tokens in the text, too
            with torch.no_grad():
                out = model(input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True)
            number = lambda x: [float(f"{v:.7g}") for v in x.flatten().tolist()]
            cases.append(dict(ids=ids[0].tolist(), last=number(out.hidden_states[-1][0, -1]), mean=number(out.hidden_states[-1][0].mean(0)), logits=number(out.logits[0])))
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").unlink()
        lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
        (folder / f"{name}.json").write_text(f'{{"config": {json.dumps(config)},\n"cases": [\n{lines}\n]}}\n', encoding="ascii")


main(pathlib.Path(sys.argv[1]))
others(pathlib.Path(sys.argv[1]))
