"""Pillion beside transformers and llama.cpp on one CPU and one GGUF file, in turn.

usage: cpu_peers.py FILE.gguf [--engines pillion,transformers-float32,transformers-bfloat16,llama.cpp]
                    [--llama-python PATH] [--batches 1,8,32] [--rounds 3] [--output 128] [--json FILE]

Every engine is started once and stays; then each round measures each case on each engine in turn, so that a
machine that gets slower gets slower for all. Greedy, 128 random tokens in, no end of sequence. Decode: tokens
per second after the first token of all. Prefill: 1,024 tokens, the time to the first token. Start: process
start to first token, once per engine, files in the page cache.

transformers and accelerate (which it needs to read GGUF) in this interpreter; llama-cpp-python in
--llama-python (pip install llama-cpp-python; it compiles for some minutes).
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PREFILL_TOKENS = 1024
INPUT_TOKENS = 128
VOCAB = 49152


def prompt(rng: random.Random, num_tokens: int) -> list[int]:
    return [rng.randrange(3, VOCAB) for _ in range(num_tokens)]


class Pillion:
    def __init__(self, gguf: str, kind: str) -> None:
        from pillion import LLM

        dtype = kind or "auto"
        self.llm = LLM(gguf, dtype=dtype, max_num_seqs=32, enable_prefix_caching=False)

    def run(self, prompts: list[list[int]], num_output: int) -> tuple[float, float]:
        from pillion import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=num_output, ignore_eos=True)
        start = time.perf_counter()
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        end = time.perf_counter()
        if any(len(output.outputs[0].token_ids) != num_output for output in outputs):
            raise SystemExit("an answer is too short")
        return start, end


class Transformers:
    def __init__(self, gguf: str, kind: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.torch = torch
        path = Path(gguf)
        self.model = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=getattr(torch, kind or "float32")
        ).eval()

    def run(self, prompts: list[list[int]], num_output: int) -> tuple[float, float]:
        ids = self.torch.tensor(prompts)
        start = time.perf_counter()
        with self.torch.inference_mode():
            out = self.model.generate(
                ids,
                attention_mask=self.torch.ones_like(ids),
                max_new_tokens=num_output,
                min_new_tokens=num_output,
                do_sample=False,
            )
        end = time.perf_counter()
        if out.shape[1] != len(prompts[0]) + num_output:
            raise SystemExit("an answer is too short")
        return start, end


class LlamaCpp:
    def __init__(self, gguf: str, kind: str) -> None:
        import os

        import llama_cpp
        import numpy

        self.lib, self.numpy = llama_cpp, numpy
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(
            gguf.encode(), llama_cpp.llama_model_default_params()
        )
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = 32 * 512, 4096, 512
        params.kv_unified = True  # else a sequence has a 32nd of n_ctx, too little for the prefill
        params.n_seq_max = 32
        params.n_threads = params.n_threads_batch = os.cpu_count() or 1
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.batch = llama_cpp.llama_batch_init(4096, 0, 1)

    def _decode(self, rows: list[tuple[int, int, int, bool]]) -> None:
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wants_logits) in enumerate(rows):
            batch.token[i], batch.pos[i] = token, position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
            batch.logits[i] = wants_logits
        if self.lib.llama_decode(self.context, batch) != 0:
            raise SystemExit("llama_decode failed")

    def _best(self, row: int) -> int:
        logits = self.lib.llama_get_logits_ith(self.context, row)
        return int(self.numpy.ctypeslib.as_array(logits, (VOCAB,)).argmax())

    def run(self, prompts: list[list[int]], num_output: int) -> tuple[float, float]:
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)
        start = time.perf_counter()
        last: list[int] = []
        for sequence, ids in enumerate(prompts):
            end = len(ids) - 1
            self._decode([(t, i, sequence, i == end) for i, t in enumerate(ids)])
            last.append(self._best(end))
        for step in range(num_output - 1):
            position = len(prompts[0]) + step
            self._decode([(token, position, s, True) for s, token in enumerate(last)])
            last = [self._best(row) for row in range(len(last))]
        return start, time.perf_counter()


ENGINES = {"pillion": Pillion, "transformers": Transformers, "llama.cpp": LlamaCpp}


def serve(name: str, gguf: str) -> None:
    """The child: one engine, a case per line of standard input."""
    kind = name.partition("-")
    engine: Any = ENGINES[kind[0]](gguf, kind[2])
    rng = random.Random(1)
    engine.run([prompt(rng, 8)], 1)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        case = json.loads(line)
        prompts = [prompt(rng, case["input"]) for _ in range(case["batch"])]
        start, end = engine.run(prompts, 1)
        first_s = end - start
        seconds = first_s
        if case["output"] > 1:
            start, end = engine.run(prompts, case["output"])
            seconds = end - start - first_s
        print(json.dumps({"first_s": first_s, "decode_s": seconds}), flush=True)


class Child:
    def __init__(self, name: str, gguf: str, python: str) -> None:
        start = time.perf_counter()
        self.name = name
        self.process = subprocess.Popen(
            [python, "-P", __file__, gguf, "--serve", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.read()
        self.start_s = time.perf_counter() - start

    def read(self) -> dict[str, float]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"{self.name} ended with status {self.process.wait()}")

    def ask(self, batch: int, num_input: int, num_output: int) -> dict[str, float]:
        assert self.process.stdin is not None
        case = {"batch": batch, "input": num_input, "output": num_output}
        self.process.stdin.write(json.dumps(case) + "\n")
        self.process.stdin.flush()
        return self.read()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("gguf")
    parser.add_argument("--serve")
    parser.add_argument(
        "--engines", default="pillion,transformers-float32,transformers-bfloat16,llama.cpp"
    )
    parser.add_argument("--llama-python", default=sys.executable)
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    if a.serve:
        serve(a.serve, a.gguf)
        return
    names = a.engines.split(",")
    batches = [int(b) for b in a.batches.split(",")]
    children = []
    for name in names:
        python = a.llama_python if name.startswith("llama") else sys.executable
        children.append(Child(name, a.gguf, python))
        print(f"{name}: {children[-1].start_s:.1f} s to the first token", flush=True)
    found: dict[str, dict[str, list[float]]] = {name: {} for name in names}
    for number in range(a.rounds):
        for batch in batches:
            for child in children:
                answer = child.ask(batch, INPUT_TOKENS, a.output)
                rate = batch * (a.output - 1) / answer["decode_s"]
                found[child.name].setdefault(f"decode {batch}", []).append(rate)
                print(f"round {number + 1}: {child.name} decode {batch}: {rate:.1f}", flush=True)
        for child in children:
            answer = child.ask(1, PREFILL_TOKENS, 1)
            rate = PREFILL_TOKENS / answer["first_s"]
            found[child.name].setdefault("prefill 1024", []).append(rate)
            print(f"round {number + 1}: {child.name} prefill: {rate:.0f}", flush=True)
    cases = list(found[names[0]])
    print(f"\ntok/s, medians of {a.rounds} interleaved rounds (ratio to {names[0]})")
    print(" " * 24 + "".join(case.rjust(20) for case in cases))
    for name in names:
        cells = []
        for case in cases:
            rate = statistics.median(found[name][case])
            ratios = [x / y for x, y in zip(found[name][case], found[names[0]][case], strict=True)]
            cells.append(f"{rate:.0f} ({statistics.median(ratios):.2f})".rjust(20))
        print(name.rjust(24) + "".join(cells))
    if a.json:
        starts = {child.name: child.start_s for child in children}
        a.json.write_text(json.dumps({"start_s": starts, "tok_s": found}, indent=1) + "\n")
    for child in children:
        child.process.kill()


if __name__ == "__main__":
    main()
