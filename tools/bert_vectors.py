#!/usr/bin/env python3
"""A tiny random BERT, and what transformers computes with it, for the tests of nn/bert.

    python bert_vectors.py FOLDER

It writes tiny.safetensors, the weights in float32, and tiny.json: the config, and for each
activation and each sequence alone its ids, its types, its last hidden states and the mean
of these divided by its length, computed in float64.
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertModel

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
    save_file({name: p.float().contiguous() for name, p in model.state_dict().items()}, folder / "tiny.safetensors")
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
    config = json.dumps(SHAPE | dict(hidden_act="gelu"))
    (folder / "tiny.json").write_text(f'{{"config": {config},\n"cases": [\n{lines}\n]}}\n', encoding="ascii")


main(pathlib.Path(sys.argv[1]))
