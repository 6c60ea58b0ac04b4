#!/usr/bin/env python3
"""Time models of transformers with random weights: flashkit beside PyTorch's attention.

    python tools/models.py [--device cuda] [--shapes 1x16 8x512] [--hidden 512] [--layers 3]

A shape is BATCHxROWS. The sides take turns in one process: PyTorch's scaled_dot_product_attention,
replace_sdpa() and, for Llama, attn_implementation="fkit". A number is the least of the rounds' mean
time of a forward pass in milliseconds. The last column is the largest difference of the outputs,
divided by the largest output. In float32, Llama must generate the same tokens with replace_sdpa().
"""

import argparse
import contextlib
import os
import time

import torch
import transformers
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, ModernBertConfig, ModernBertModel

import flashkit.torch
import flashkit.transformers


def models(hidden, layers):
    """Return a function for each name, which makes the model for an attention function."""
    heads, rows = hidden // 64, 1 << 15
    same = dict(hidden_size=hidden, num_attention_heads=heads, num_hidden_layers=layers, vocab_size=1000, max_position_embeddings=rows)
    llama = LlamaConfig(intermediate_size=hidden * 8 // 3, num_key_value_heads=max(1, heads // 4), **same)
    bert = BertConfig(intermediate_size=4 * hidden, **same)
    modern = ModernBertConfig(intermediate_size=hidden * 3 // 2, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2, **same)
    return {
        "Llama": lambda attention: LlamaForCausalLM._from_config(llama, attn_implementation=attention),
        "BERT": lambda attention: BertModel._from_config(bert, attn_implementation=attention),
        "ModernBERT": lambda attention: ModernBertModel._from_config(modern, attn_implementation=attention),
    }


def measure(sides, rounds, least, wait):
    """Return each side's least mean time of a call in milliseconds, of rounds that last about least seconds."""
    best, calls = dict.fromkeys(sides, float("inf")), 1
    for round in range(-1, rounds):  # round -1 warms up
        for name, f in sides.items():
            wait()
            start = time.perf_counter()
            for _ in range(calls):
                f()
            wait()
            t = (time.perf_counter() - start) / calls
            if round >= 0:
                best[name] = min(best[name], t * 1e3)
        if round < 0:
            calls = max(1, int(least / t))
    return best


def output(model, tokens, replaced):
    """Return the model's first output, and the calls that flashkit computed."""
    with torch.inference_mode(), flashkit.torch.replace_sdpa() if replaced else contextlib.nullcontext() as report:
        return model(input_ids=tokens)[0], report.calls if replaced else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shapes", nargs="+", default=["1x16", "8x512"])
    parser.add_argument("--types", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--models", nargs="+", default=["Llama", "BERT", "ModernBERT"])
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--least", type=float, default=0.2, help="seconds of a round")
    args = parser.parse_args()
    threads = int(os.environ.get("GOMAXPROCS") or os.cpu_count() or 1)
    torch.set_num_threads(threads)
    wait = torch.cuda.synchronize if args.device.startswith("cuda") else lambda: None
    print(f"flashkit {flashkit.__version__}, PyTorch {torch.__version__}, transformers {transformers.__version__}, {args.device}, {threads} threads, hidden {args.hidden}, {args.layers} layers\n")
    print("| model | type | shape | PyTorch ms | replace_sdpa | ratio | fkit | ratio | calls | difference |\n|---|---|---|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    for name in args.models:
        for kind in args.types:
            torch.manual_seed(1)
            with torch.random.fork_rng():
                model = models(args.hidden, args.layers)[name]("sdpa").to(args.device, getattr(torch, kind)).eval()
            other = models(args.hidden, args.layers)[name]("fkit").to(args.device, getattr(torch, kind)).eval()
            other.load_state_dict(model.state_dict())
            for shape in args.shapes:
                tokens = torch.randint(3, 1000, [int(n) for n in shape.split("x")], device=args.device)
                want, _ = output(model, tokens, False)
                got, calls = output(model, tokens, True)
                error = ((got - want).abs().max() / want.abs().max()).item()
                sides = {"PyTorch": lambda: model(input_ids=tokens), "replaced": lambda: model(input_ids=tokens), "fkit": lambda: other(input_ids=tokens)}
                inside = sides["replaced"]

                def replaced():
                    with flashkit.torch.replace_sdpa():
                        inside()

                with torch.inference_mode():
                    t = measure(sides | {"replaced": replaced}, args.rounds, args.least, wait)
                row = f"{t['PyTorch']:.2f} | {t['replaced']:.2f} | {t['PyTorch'] / t['replaced']:.2f} | {t['fkit']:.2f} | {t['PyTorch'] / t['fkit']:.2f}"
                print(f"| {name} | {kind} | {shape} | {row} | {calls} | {error:.1e} |", flush=True)
            if name == "Llama" and kind == "float32":
                generate = lambda: model.generate(tokens[:1, :16], max_new_tokens=16, do_sample=False, pad_token_id=0)
                theirs = generate()
                with flashkit.torch.replace_sdpa():
                    ours = generate()
                assert torch.equal(theirs, ours), (theirs, ours)


if __name__ == "__main__":
    main()
