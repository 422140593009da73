#!/usr/bin/env python3
"""torch's kernels at the shapes of kernels_bench (tests/kernels/cuda/kernels_bench.cc), for the same GPU.

  torch_kernels.py [attention|rows|experts|sampler|optimizer ...]

One line a measurement: microseconds, median of several rounds of calls one after the other, over operands
that take turns so that L2 does not hold them. torch has no kernel for all that one of ours does: each line
says what it computes.
"""
import statistics, sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BF16, DEVICE = torch.bfloat16, "cuda"
L2_BYTES = 4 * 60 << 20


def measure(name, call, copies=1, note=""):
    """call(i) on operand set i % copies."""
    try:
        for i in range(3):
            call(i % copies)
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call(0)
        end.record()
        end.synchronize()
        calls = max(4, min(200, int(20 / max(begin.elapsed_time(end), 1e-3))))
        rounds = []
        for _ in range(5):
            begin.record()
            for i in range(calls):
                call(i % copies)
            end.record()
            end.synchronize()
            rounds.append(begin.elapsed_time(end) / calls * 1e3)
        print(f"{name}: {statistics.median(rounds):.1f} us {note}", flush=True)
    except (RuntimeError, AttributeError, TypeError) as error:
        print(f"{name}: does not run here ({str(error).splitlines()[0][:90]})", flush=True)


def copies_of(num_bytes):
    return max(1, min(16, L2_BYTES // max(num_bytes, 1) + 1))


def rand(*shape, dtype=BF16):
    return torch.randn(*shape, device=DEVICE, dtype=torch.float32).to(dtype)


def attention():
    shapes = [("30b-a3b", 32, 4, 128), ("8b", 32, 8, 128), ("smollm2", 9, 3, 64)]
    cases = [(0, b, 1, 1024) for b in (1, 8, 64, 512)] + [(1, 64, 1, 4096), (1, 256, 1, 4096), (2, 1024, 1, 300)]
    cases += [(0, 8, 1024, 1024), (0, 1, 8192, 8192), (0, 1, 32768, 32768)]
    for shape, batch, queries, keys in cases:
        name, heads, kv_heads, d = shapes[shape]
        n = copies_of(2 * batch * kv_heads * keys * d * 2)
        q = [rand(batch, heads, queries, d) for _ in range(n)]
        kv = [(rand(batch, kv_heads, keys, d), rand(batch, kv_heads, keys, d)) for _ in range(n)]
        pairs = batch * heads * (queries * keys / 2 if queries > 1 else keys)
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
            with sdpa_kernel(backend):
                measure(f"attention {name} {batch} x {queries} of {keys}, {backend.name.lower()}, keys not paged",
                        lambda i: F.scaled_dot_product_attention(q[i], *kv[i], is_causal=queries > 1, enable_gqa=True),
                        n, f"({4e-12 * pairs * d:.3f} TFLOP)")
        if queries == 1 or keys > 8192:
            continue
        grads = [x.requires_grad_() for x in (q[0], *kv[0])]
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
            with sdpa_kernel(backend):
                out = F.scaled_dot_product_attention(*grads, is_causal=True, enable_gqa=True)
                dout = torch.randn_like(out)
                measure(f"attention {name} {batch} x {queries} backward, {backend.name.lower()}",
                        lambda i: torch.autograd.grad(out, grads, dout, retain_graph=True))


def rows():
    for num, d in ((1, 2048), (512, 2048), (8192, 2048), (1024, 576)):
        n = copies_of(2 * num * d * 2)
        x, delta, w = [rand(num, d) for _ in range(n)], [rand(num, d) for _ in range(n)], rand(d)
        measure(f"rms_norm: {num} rows of {d}", lambda i: F.rms_norm(x[i], (d,), w, 1e-6), n)
        measure(f"add, then rms_norm: {num} rows of {d}",
                lambda i: F.rms_norm(x[i].add_(delta[i]), (d,), w, 1e-6), n)


def experts():
    num_experts, top_k, d, f = 128, 8, 2048, 768
    gate_up = rand(num_experts, 2 * f, d).transpose(1, 2)
    down = rand(num_experts, d, f).transpose(1, 2)
    for num in (1, 8, 64, 512, 8192):
        logits = rand(num, num_experts, dtype=torch.float32)

        def route(_):
            values, ids = torch.topk(logits, top_k)
            return torch.softmax(values, -1), ids

        measure(f"top 8 of 128, softmax (no lists): {num} rows", route)
        counts = torch.bincount(route(0)[1].flatten(), minlength=num_experts)
        offsets = torch.cumsum(counts, 0).to(torch.int32)
        x, hidden = rand(num * top_k, d), rand(num * top_k, f)  # sorted by expert already
        measure(f"grouped_mm gate and up, no SwiGLU, rows sorted before: {num} rows",
                lambda i: torch._grouped_mm(x, gate_up, offs=offsets))
        measure(f"grouped_mm down, rows sorted before: {num} rows",
                lambda i: torch._grouped_mm(hidden, down, offs=offsets))


def sampler():
    for num in (1, 64, 512):
        n = copies_of(num * 151936 * 2)
        logits = [rand(num, 151936) for _ in range(n)]

        def plain(i):
            p = torch.softmax(logits[i].float(), -1)
            return torch.multinomial(p, 1)

        def filtered(i):
            values, ids = torch.topk(logits[i].float(), 50)
            p = torch.softmax(values, -1)
            p = torch.where(torch.cumsum(p, -1) - p < 0.95, p, 0)
            return ids.gather(1, torch.multinomial(p, 1))

        measure(f"sampler, plain: {num} rows", plain, n)
        measure(f"sampler, top k 50 and top p: {num} rows", filtered, n)


def optimizer():
    n = 134_515_008
    p = torch.zeros(n, device=DEVICE).requires_grad_()
    p.grad = torch.randn(n, device=DEVICE)
    step = torch.optim.AdamW([p], fused=True)
    measure(f"AdamW, fused: {n} parameters, float32", lambda i: step.step())


def main():
    parts = {"attention": attention, "rows": rows, "experts": experts, "sampler": sampler, "optimizer": optimizer}
    for name in sys.argv[1:] or parts:
        if name not in parts:
            sys.exit(f"{name}: one of {', '.join(parts)}")
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    for name in sys.argv[1:] or parts:
        parts[name]()


main()
