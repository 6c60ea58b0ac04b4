"""Time PyTorch's context parallel for comparison with flashrun ring, on the GPUs of one machine.

    torchrun --nproc-per-node 2 bench/peers/context_parallel.py 32/8,128,32768,causal 16/16,64,32768,none

A cell is heads/KV heads, head dim, tokens of all ranks together, mask. Inputs are bfloat16,
of batch 1. The script prints a JSON object for each cell: the fastest combination of PyTorch's
kernels and ways to rotate keys, and the seconds of the forward pass and of both passes. These
are medians of the slowest rank's times. A cell that differs from an earlier one only in its tokens
is timed once, with the combinations that were fastest there.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import _attention as cp
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel

RUNS = int(os.environ.get("RUNS", "5"))
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def slowest(values, device):
    """Return the median over the runs of the slowest rank's time."""
    t = torch.tensor(values, device=device)
    dist.all_reduce(t, op=dist.ReduceOp.MAX)
    return t.median(dim=0).values.tolist()


def measure(mesh, device, heads, kv, dim, tokens, causal, runs):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, h, tokens, dim, device=device, dtype=torch.bfloat16) for h in (heads, kv, kv))
    do = torch.randn(1, heads, tokens // mesh.size(), dim, device=device, dtype=torch.bfloat16)
    with context_parallel(mesh, buffers=[q, k, v], buffer_seq_dims=[2, 2, 2], no_restore_buffers={q, k, v}):
        if not causal:
            options._cp_options.enable_load_balance = False
        inputs = [x.detach().requires_grad_() for x in (q, k, v)]
        times = []
        for _ in range(runs + 2):
            events = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
            dist.barrier()
            torch.cuda.synchronize()
            events[0].record()
            out = F.scaled_dot_product_attention(*inputs, is_causal=causal, enable_gqa=heads != kv)
            events[1].record()
            out.backward(do)
            events[2].record()
            torch.cuda.synchronize()
            for x in inputs:
                x.grad = None
            times.append([events[0].elapsed_time(events[1]) / 1e3, events[0].elapsed_time(events[2]) / 1e3])
    return slowest(times[2:], device)


def main():
    global options
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    options = sys.modules[cp.set_rotate_method.__module__]
    fastest = {}
    for cell in sys.argv[1:]:
        head, dim, tokens, mask = cell.split(",")
        heads, kv = map(int, head.split("/"))
        best, failed = {}, {}
        earlier = fastest.get((head, dim, mask))
        for name, backend in BACKENDS.items():
            for rotate in ("alltoall", "allgather"):
                if earlier and name + " " + rotate not in earlier:
                    continue
                cp.set_rotate_method(rotate)
                try:
                    with sdpa_kernel(backend):
                        forward, both = measure(mesh, device, heads, kv, int(dim), int(tokens), mask == "causal", 1 if earlier else RUNS)
                except (RuntimeError, NotImplementedError, AssertionError, TypeError, ValueError) as error:
                    failed[name + " " + rotate] = str(error)[:200]
                    continue
                for what, seconds in (("forward_seconds", forward), ("seconds", both)):
                    if what not in best or seconds < best[what][0]:
                        best[what] = [seconds, name + " " + rotate]
        fastest[head, dim, mask] = {x[1] for x in best.values()}
        if rank == 0:
            print(json.dumps({"cell": cell, "torch": torch.__version__, **best, **({"failed": failed} if failed else {})}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
