"""cuDNN's graph API on the GPU: sdpa and sdpa_backward. Install: nvidia-cudnn-frontend, torch, numpy."""

from importlib.metadata import version

import cudnn
import torch

import judge

DTYPES = {"f16": (torch.float16, cudnn.data_type.HALF), "bf16": (torch.bfloat16, cudnn.data_type.BFLOAT16)}
FLOAT = cudnn.data_type.FLOAT
handle = cudnn.create_handle()
torch.set_default_device("cuda")


def execute(kind, build, feeds, outputs):
    """Build a graph of one node and run it. build gets the graph and its tensors, and returns the outputs' tensors."""
    graph = cudnn.pygraph(io_data_type=kind, intermediate_data_type=FLOAT, compute_data_type=FLOAT, handle=handle)
    symbols = {name: graph.tensor_like(x) for name, x in feeds.items()}
    results = build(graph, symbols)
    for symbol, x in zip(results, outputs):
        symbol.set_output(True).set_dim(list(x.shape)).set_stride(list(x.stride())).set_data_type(FLOAT if x.dtype == torch.float32 else kind)
    try:
        graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    except cudnn.cudnnGraphNotSupportedError as error:
        raise judge.Unsupported("cuDNN: " + str(error).strip().split("\n")[0][:120]) from error
    pack = {symbols[name]: x for name, x in feeds.items()} | dict(zip(results, outputs))
    graph.execute(pack, torch.empty(max(1, graph.get_workspace_size()), dtype=torch.uint8), handle=handle)
    torch.cuda.synchronize()


@judge.runner(f"cuDNN {cudnn.backend_version()} sdpa, frontend {version('nvidia-cudnn-frontend')}", "gqa v_dim scale window top_left bias ragged sink", "f16 bf16")
def attention(q, k, v, **case):
    if case["bias"] is not None and case["bias_dtype"] != case["dtype"]:
        raise judge.Unsupported("no bias of another type")
    if 0 in q.shape + k.shape or max(case["dim"], case["v_dim"]) > 256 or case["dim"] % 8 or case["v_dim"] % 8:
        raise judge.Unsupported("no empty tensors; head dims are multiples of 8 up to 256")
    if min(case["left"] or 0, case["right"] or 0) < 0:
        raise judge.Unsupported("no band that leaves out the diagonal")
    dtype, kind = DTYPES[case["dtype"]]
    feeds = {name: torch.tensor(x).to(dtype) for name, x in (("q", q), ("k", k), ("v", v), ("bias", case["bias"])) if x is not None}
    options, names = {"attn_scale": case["scale"]}, [("bias", "bias")] * (case["bias"] is not None)
    if case["q_lens"] is not None:
        feeds |= {name: torch.tensor(case[name]).reshape(-1, 1, 1, 1) for name in ("q_lens", "kv_lens")}
        options["use_padding_mask"], names = True, names + [("seq_len_q", "q_lens"), ("seq_len_kv", "kv_lens")]
    if case["sink"] is not None:
        feeds["sink"], names = torch.tensor(case["sink"]).reshape(1, -1, 1, 1), names + [("sink_token", "sink")]
    if case["left"] is not None or case["right"] is not None:
        align = cudnn.diagonal_alignment
        options |= {"diagonal_alignment": align.TOP_LEFT if case["top_left"] else align.BOTTOM_RIGHT, "diagonal_band_right_bound": case["right"]}
        options["diagonal_band_left_bound"] = None if case["left"] is None else case["left"] + 1  # the bound counts the diagonal
    o, stats = torch.empty(*q.shape[:3], case["v_dim"], dtype=dtype), torch.empty(*q.shape[:3], 1)
    given = lambda t: options | {option: t[name] for option, name in names}
    execute(kind, lambda graph, t: graph.sdpa(name="sdpa", q=t["q"], k=t["k"], v=t["v"], generate_stats=True, **given(t)), feeds, [o, stats])
    out = {"o": o.float().cpu().numpy(), "lse": stats[..., 0].cpu().numpy()}
    feeds |= {"o": o, "dO": torch.tensor(case["do"]).to(dtype), "stats": stats}
    grads = [torch.empty_like(feeds[name]) for name in "qkv"]
    named = lambda t: {name: t[name] for name in ("q", "k", "v", "o", "dO", "stats")}
    execute(kind, lambda graph, t: graph.sdpa_backward(name="backward", **named(t), **given(t)), feeds, grads)
    return out | {name: x.float().cpu().numpy() for name, x in zip(("dq", "dk", "dv"), grads)}
