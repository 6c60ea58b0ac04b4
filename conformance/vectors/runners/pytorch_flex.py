"""PyTorch's FlexAttention: compiled on the GPU, or in eager mode on the CPU. Install: torch, numpy."""

import torch
from torch.nn.attention.flex_attention import AuxRequest, flex_attention

import judge

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
GPU = torch.cuda.is_available()
torch.set_default_device("cuda" if GPU else "cpu")
torch.set_num_threads(1)
if GPU:
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 1 << 20
    flex_attention = torch.compile(flex_attention, dynamic=True, fullgraph=True)


@judge.runner(f"PyTorch {torch.__version__.split('+')[0]} FlexAttention, {'compiled on the GPU' if GPU else 'eager'}",
              "gqa v_dim scale window top_left shift alibi bias mask ragged softcap dlse", "f32 f16 bf16" if GPU else "f32 bf16")
@torch.no_grad()
def flex(q, k, v, **case):
    # The compiled kernel has at least 16 head dims, so zeros fill the rest.
    pad = lambda x: torch.nn.functional.pad(x, (0, max(0, 16 - x.shape[3]))) if GPU else x
    q, k, v = (pad(torch.tensor(x).to(DTYPES[case["dtype"]])) for x in (q, k, v))
    mask, bias = (None if x is None else torch.tensor(x) for x in (judge.visible(case), judge.added(case)))
    shape = (case["batch"], case["heads"], case["q_len"], case["kv_len"])
    bias, softcap = None if bias is None else bias.broadcast_to(shape).contiguous(), torch.tensor(case["softcap"])
    capped = case["softcap"] != 0

    def score(s, b, h, i, j):
        s = softcap * torch.tanh(s / softcap) if capped else s
        s = s if bias is None else s + bias[b, h, i, j]
        return s if mask is None else torch.where(mask[b, h, i, j], s, -torch.inf)

    o, aux = flex_attention(q, k, v, score_mod=score, scale=case["scale"], enable_gqa=case["heads"] != case["kv_heads"], return_aux=AuxRequest(lse=True))
    return {"o": o[..., : case["v_dim"]].float().cpu().numpy(), "lse": aux.lse.float().cpu().numpy()}
