"""The linear layers and attention of a decode step as one CUDA graph: tunes each product, then times the chain.

usage: decode_chain.py [--shapes 135m,1b,8b] [--rows 1,8] [--context 384] [--json FILE]

Prints per shape and rows the best configuration of each product with its bandwidth, and the whole chain's
time with and without programmatic dependent launch, beside cuBLAS products alone.
"""

import argparse
import itertools
import json
import multiprocessing as mp
import os
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "src"))

SHAPES = {
    "8b": dict(hidden=4096, layers=32, heads=32, kv=8, dim=128, ffn=14336, vocab=128256),
    "1b": dict(hidden=2048, layers=16, heads=32, kv=8, dim=64, ffn=8192, vocab=128256),
    "135m": dict(hidden=576, layers=30, heads=9, kv=3, dim=64, ffn=1536, vocab=49152),
}
KINDS = ("qkv", "o", "gate_up", "down", "head")


def dims(s, kind):
    q, kv = s["heads"] * s["dim"], s["kv"] * s["dim"]
    return {
        "qkv": (q + 2 * kv, s["hidden"]),
        "o": (s["hidden"], q),
        "gate_up": (2 * s["ffn"], s["hidden"]),
        "down": (s["hidden"], s["ffn"]),
        "head": (s["vocab"], s["hidden"]),
    }[kind]


def candidates(s, kind, rows):
    n, k = dims(s, kind)
    if rows == 1:
        tiles = [(4, 512), (4, 1024), (8, 256), (8, 512), (8, 1024), (16, 256), (16, 512), (32, 256)]
        if k <= 600:
            tiles = [(2, 1024), (4, 1024), (8, 1024), (4, 256), (8, 256), (16, 256), (16, 64), (32, 64), (16, 1024)]
        if k == 1536:
            tiles = [(2, 512), (4, 512), (8, 512), (2, 2048), (4, 2048), (8, 256), (4, 256)]
        return [(bn, bk, w, st) for (bn, bk), w, st in itertools.product(tiles, (2, 4, 8), (2, 4))
                if bn * bk // (32 * w) >= 4 and bn * bk // (32 * w) <= 128]
    tiles = [(16, 128), (16, 256), (32, 64), (32, 128), (32, 256), (64, 64), (64, 128), (64, 256), (128, 64), (128, 128)]
    return [(bn, bk, w, st) for (bn, bk), w, st in itertools.product(tiles, (4, 8) if s["hidden"] > 600 else (2, 4), (2, 4, 6))
            if bn * bk * 2 * st <= 150_000]


class Chain:
    def __init__(self, key, rows, context, layers=None):
        import torch

        self.torch, self.s, self.rows = torch, SHAPES[key], rows
        s = self.s
        self.layers = layers or s["layers"]
        g = dict(device="cuda", dtype=torch.bfloat16)
        self.w = {}
        for kind in KINDS:
            n, k = dims(s, kind)
            count = 1 if kind == "head" else self.layers
            self.w[kind] = [torch.randn(n, k, **g) * k**-0.5 for _ in range(count)]
        h = s["hidden"]
        self.gain = torch.rand(h, **g) + 0.5
        self.x = torch.randn(rows, h, **g)
        self.q = torch.randn(rows, s["heads"] * s["dim"], **g)
        self.attn = torch.randn(rows, s["heads"] * s["dim"], **g)
        self.act = torch.randn(rows, s["ffn"], **g)
        self.logits = torch.empty(rows, s["vocab"], device="cuda", dtype=torch.float32)
        blocks = (context + 64) // 16 + 1
        self.kv = torch.randn(rows * blocks + 1, self.layers, 2, s["kv"], 16, s["dim"], **g)
        self.table = (torch.randperm(rows * blocks, device="cuda").int() + 1).view(rows, blocks)
        self.seq_lens = torch.full((rows,), context, device="cuda", dtype=torch.int32)
        self.positions = self.seq_lens.long() - 1
        self.slots = self.table[:, (context - 1) // 16].long() * 16 + (context - 1) % 16
        freq = 1.0 / 10000 ** (torch.arange(0, s["dim"], 2, device="cuda") / s["dim"])
        a = torch.arange(8192, device="cuda")[:, None] * freq[None]
        self.cos_sin = torch.cat((a.cos(), a.sin()), dim=1).float()
        splits = 1
        while rows * s["kv"] * splits < 132 and splits < 16:
            splits *= 2
        self.set_splits(splits)

    def set_splits(self, splits):
        torch, s, rows = self.torch, self.s, self.rows
        self.splits, dim = splits, s["dim"]
        self.partial = torch.empty(rows * s["kv"] * self.splits * 16 * dim, device="cuda")
        self.stats = torch.empty(rows * s["kv"] * self.splits * 32, device="cuda")
        self.arrivals = torch.zeros(rows * s["kv"], device="cuda", dtype=torch.int32)

    def product(self, kind, layer, cfg, pdl=False):
        import triton

        from pillion.kernels.skinny_linear import triton_impl as t

        bn, bk, warps, stages = cfg
        s, rows = self.s, self.rows
        n, k = dims(s, kind)
        w = self.w[kind][layer]
        padded = 1 if rows == 1 else 8 if rows <= 8 else 16
        common = dict(K=k, ROWS=padded, BLOCK_K=bk, STAGES=stages, PDL=pdl, num_warps=warps, launch_pdl=pdl)
        if kind == "qkv":
            kv = self.kv[:, layer]
            half = s["dim"] // 2
            bh = min(bn, half) if rows == 1 else min(max(bn // 2, 16), half)
            grid = (triton.cdiv(half, bh) * (s["heads"] + 2 * s["kv"]),)
            t.skinny_qkv_kernel[grid](
                self.x, w, self.gain, None, self.cos_sin, self.positions, self.slots, self.q, kv, rows,
                self.x.stride(0), self.q.stride(0), kv.stride(0), kv.stride(1), kv.stride(2), 1e-5,
                NUM_Q_HEADS=s["heads"], NUM_KV_HEADS=s["kv"], HEAD_DIM=s["dim"], BLOCK_SIZE=16, BLOCK_H=bh,
                BIAS=False, **common)
            return
        x, out, norm, gated, res = {
            "o": (self.attn, self.x, False, False, True),
            "gate_up": (self.x, self.act, True, True, False),
            "down": (self.act, self.x, False, False, True),
            "head": (self.x, self.logits, True, False, False),
        }[kind]
        n_out = n // 2 if gated else n
        grid = (triton.cdiv(n_out, bn),)
        t.skinny_linear_kernel[grid](
            x, w, self.gain, None, out, out, rows, n_out, x.stride(0), out.stride(0), 1e-5,
            BLOCK_N=bn, NORM=norm, GATED=gated, BIAS=False, RESIDUAL=res, **common)

    def attention(self, layer, pdl=False, block_t=64, warps=4, stages=2):
        from pillion.kernels.paged_attention import triton_decode as t

        s = self.s
        kv = self.kv[:, layer]
        t.decode_attention_kernel[(self.rows, s["kv"], self.splits)](
            self.q, kv, self.table, self.seq_lens, self.attn, self.partial, self.stats, self.arrivals,
            s["dim"] ** -0.5 * 1.4426950408889634, self.q.stride(0), self.attn.stride(0), self.table.stride(0),
            kv.stride(0), kv.stride(1), kv.stride(2), NUM_KV_HEADS=s["kv"], GROUP=s["heads"] // s["kv"],
            HEAD_DIM=s["dim"], PADDED_DIM=s["dim"], BLOCK_SIZE=16, BLOCK_T=block_t, SPLITS=self.splits,
            STAGES=stages, PDL=pdl, num_warps=warps, launch_pdl=pdl)

    def step(self, cfgs, pdl, att=(64, 4, 2), attention=True):
        for layer in range(self.layers):
            self.product("qkv", layer, cfgs["qkv"], pdl)
            if attention:
                self.attention(layer, pdl, *att)
            self.product("o", layer, cfgs["o"], pdl)
            self.product("gate_up", layer, cfgs["gate_up"], pdl)
            self.product("down", layer, cfgs["down"], pdl)
        self.product("head", 0, cfgs["head"], pdl)

    def check(self, cfgs, pdl):
        """Relative errors of each product and of attention against torch in float32."""
        torch = self.torch
        s, errors = self.s, {}

        def norm(x):
            x = x.float()
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.gain.float()

        def err(name, got, want):
            errors[name] = float((got.float() - want).norm() / want.norm())

        x = self.x.clone()
        y = norm(x) @ self.w["qkv"][0].float().T
        q, k, v = y.split([s["heads"] * s["dim"], s["kv"] * s["dim"], s["kv"] * s["dim"]], -1)

        def rope(z, heads):
            z = z.view(self.rows, heads, s["dim"])
            c = self.cos_sin[self.positions][:, None]
            cos, sin = c.chunk(2, -1)
            a, b = z.chunk(2, -1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

        self.product("qkv", 0, cfgs["qkv"], pdl)
        err("q", self.q.view(self.rows, s["heads"], -1), rope(q, s["heads"]))
        flat = self.kv[:, 0]
        got_k = flat[self.slots // 16, 0, :, self.slots % 16]
        got_v = flat[self.slots // 16, 1, :, self.slots % 16]
        err("k", got_k, rope(k, s["kv"]))
        err("v", got_v, v.view(self.rows, s["kv"], -1))
        self.attn.fill_(float("nan"))
        self.attention(0, pdl)
        n = int(self.seq_lens[0])
        keys = flat[self.table.long()]
        keys = keys.permute(2, 0, 3, 1, 4, 5).reshape(2, self.rows, s["kv"], -1, s["dim"])[:, :, :, :n].float()
        qh = self.q.view(self.rows, s["kv"], -1, s["dim"]).float()
        p = (qh @ keys[0].transpose(-1, -2) * s["dim"] ** -0.5).softmax(-1)
        err("attn", self.attn.view_as(qh), p @ keys[1])
        before = self.x.clone()
        self.product("o", 0, cfgs["o"], pdl)
        err("o", self.x, before.float() + self.attn.float() @ self.w["o"][0].float().T)
        gate, up = (norm(self.x) @ self.w["gate_up"][0].float().T).chunk(2, -1)
        self.product("gate_up", 0, cfgs["gate_up"], pdl)
        err("gate_up", self.act, torch.nn.functional.silu(gate) * up)
        before = self.x.clone()
        self.product("down", 0, cfgs["down"], pdl)
        err("down", self.x, before.float() + self.act.float() @ self.w["down"][0].float().T)
        self.logits.fill_(float("nan"))
        self.product("head", 0, cfgs["head"], pdl)
        err("head", self.logits, norm(self.x) @ self.w["head"][0].float().T)
        self.x.copy_(x)
        return errors


def graph_ms(torch, fn, reps=20):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        fn()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fn()
    for _ in range(2):
        graph.replay()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(reps + 1)]
    marks[0].record()
    for i in range(reps):
        graph.replay()
        marks[i + 1].record()
    torch.cuda.synchronize()
    return statistics.median(marks[i].elapsed_time(marks[i + 1]) for i in range(reps))


def compile_one(job):
    key, rows, kind, cfgs = job
    try:
        chain = compile_one.chains.get((key, rows))
        if chain is None:
            compile_one.chains.clear()
            chain = compile_one.chains[key, rows] = Chain(key, rows, 64, layers=1)
        for cfg in cfgs:
            try:
                chain.product(kind, 0, cfg)
            except Exception as error:
                print("compile", key, rows, kind, cfg, repr(error)[:200], flush=True)
        chain.torch.cuda.synchronize()
    except Exception as error:
        print("job", job[:3], repr(error)[:300], flush=True)


compile_one.chains = {}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--shapes", default="135m,1b,8b")
    ap.add_argument("--rows", default="1,8")
    ap.add_argument("--context", type=int, default=384)
    ap.add_argument("--json")
    a = ap.parse_args()
    keys, rowss = a.shapes.split(","), [int(r) for r in a.rows.split(",")]
    t0 = time.time()
    jobs = []
    for key in keys:
        for rows in rowss:
            for kind in KINDS:
                cfgs = candidates(SHAPES[key], kind, rows)
                jobs += [(key, rows, kind, cfgs[i::3]) for i in range(3)]
    with mp.get_context("spawn").Pool(14) as pool:
        pool.map(compile_one, jobs, chunksize=1)
    print(f"compiled {sum(len(j[3]) for j in jobs)} variants in {time.time() - t0:.0f} s", flush=True)
    import torch

    result = {}
    for key in keys:
        for rows in rowss:
            chain = Chain(key, rows, a.context)
            best, table = {}, {}
            for kind in KINDS:
                n, k = dims(chain.s, kind)
                count = len(chain.w[kind])
                rowsof = []
                for cfg in candidates(chain.s, kind, rows):
                    try:
                        ms = graph_ms(torch, lambda: [chain.product(kind, i, cfg) for i in range(count)], 6)
                        rowsof.append((ms, cfg))
                    except Exception as error:
                        print("time", key, rows, kind, cfg, repr(error)[:120], flush=True)
                rowsof.sort()
                best[kind] = rowsof[0][1]
                table[kind] = rowsof[:4]
                xs = {kk: torch.randn(rows, kk, device="cuda", dtype=torch.bfloat16) for kk in (k,)}
                ref = graph_ms(torch, lambda: [torch.nn.functional.linear(xs[k], chain.w[kind][i]) for i in range(count)], 6)
                gb = n * k * 2 * count / 1e9
                print(f"{key} rows={rows} {kind:8s} best {rowsof[0][0] / count * 1e3:8.2f} us {gb / rowsof[0][0]:6.2f} TB/s {rowsof[0][1]}"
                      f"  2nd {rowsof[1][0] / count * 1e3:.2f} {rowsof[1][1]}  cublas {ref / count * 1e3:.2f} us", flush=True)
            try:
                print("errors", {k: f"{v:.1e}" for k, v in chain.check(best, False).items()}, flush=True)
                print("errors pdl", {k: f"{v:.1e}" for k, v in chain.check(best, True).items()}, flush=True)
            except Exception as error:
                print("check failed", repr(error)[:500], flush=True)
            times = {}
            for name, pdl, attention in (("plain", False, True), ("pdl", True, True), ("plain no attention", False, False), ("pdl no attention", True, False)):
                try:
                    times[name] = graph_ms(torch, lambda: chain.step(best, pdl, attention=attention), 20)
                except Exception as error:
                    times[name] = repr(error)[:200]
            for splits, att in itertools.product((1, 2, 4, 8, 16), ((16, 1, 2), (32, 2, 2), (64, 4, 2), (128, 4, 2), (128, 8, 2))):
                try:
                    chain.set_splits(splits)
                    ms = graph_ms(torch, lambda: [chain.attention(i, False, *att) for i in range(chain.layers)], 10)
                    times[f"attention x{splits} {att} us"] = round(ms * 1e3 / chain.layers, 2)
                except Exception as error:
                    times[f"pdl att {att}"] = repr(error)[:100]
            print(f"== {key} rows={rows} context={a.context} splits={chain.splits}", times, f"t={time.time() - t0:.0f}s", flush=True)
            result[f"{key}/{rows}"] = {"best": best, "table": table, "times": times}
            if a.json:
                with open(a.json, "w") as f:
                    json.dump(result, f, indent=1)
            del chain
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
