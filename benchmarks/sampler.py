"""Times the ends of steps, from logits to updated slots: launched one by one in torch, and captured.

usage: sampler.py [--rows 1,8,64,256] [--vocab 49152,128256]

All rows of a step ask for the same. The logits fall with the logarithm of the rank, as a language model's do; "flat"
ones are normal, so that a nucleus has some ten thousand tokens. Milliseconds between two ends that follow each other,
medians; a greedy end has always been captured.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from pillion.actors.gpu_worker.captured_ends import CapturedEnds, EndCapturer
from pillion.actors.gpu_worker.device import Device
from pillion.actors.gpu_worker.request_states import RequestStates
from pillion.actors.gpu_worker.sampling import logprobs, token_choice
from pillion.actors.gpu_worker.sampling.sampler import Sampler
from pillion.actors.gpu_worker.sampling.step_end import End, EndRows
from pillion.actors.gpu_worker.table_writes import TableWrites
from pillion.kernels.sample import reference as sample_reference
from pillion.kernels.token_logprobs import reference as logprobs_reference
from pillion.kernels.update_rows import update_rows
from pillion.messages.codec import pack_ids
from pillion.messages.sampling import TokenSampling
from pillion.messages.steps import NewSequence

MAX_MODEL_LEN = 4096
NEUTRAL: dict[str, Any] = {
    "temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "presence_penalty": 0.0,
    "frequency_penalty": 0.0, "repetition_penalty": 1.0, "stop_token_ids": [], "min_tokens": 0,
    "max_tokens": MAX_MODEL_LEN, "logprobs": None, "prompt_logprobs": None, "logit_bias": {},
    "allowed_token_ids": [], "bad_words": [],
}  # fmt: skip
FILTERS: dict[str, Any] = {"temperature": 0.8, "top_k": 50, "top_p": 0.9}
EVERYTHING: dict[str, Any] = FILTERS | {
    "min_p": 0.01, "presence_penalty": 0.2, "frequency_penalty": 0.1, "repetition_penalty": 1.1,
    "stop_token_ids": [3], "min_tokens": 2000, "logprobs": 5, "bad_words": [[5], [6, 7]],
    "logit_bias": dict.fromkeys(range(0, 600, 2), 1.0),
    "allowed_token_ids": list(range(0, 40_000)),
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature": {"temperature": 1.0},
    "top-k + top-p": FILTERS,
    "top-p": {"temperature": 1.0, "top_p": 0.9},
    "top-p, flat": {"temperature": 1.0, "top_p": 0.9},
    "everything, 5 logprobs": EVERYTHING,
}


def torch_sample(*args: Any, all_greedy: bool, any_filter: bool, **fields: Any) -> Any:
    """As `pillion.kernels.sample.sample` was on a CUDA device: a row is sorted for its filters."""
    if all_greedy:
        return sample_reference.greedy(*args)
    return sample_reference.sample(*args, any_filter=any_filter, **fields)


token_choice.sample = torch_sample  # type: ignore[assignment]
logprobs.token_logprobs = logprobs_reference.token_logprobs


class Rows:
    """Sequences that ask for the same, and a step's logits."""

    def __init__(self, fields: dict[str, Any], num_rows: int, vocab: int, *, flat: bool) -> None:
        device = torch.device("cuda", 0)
        self.states = RequestStates(Device(device), num_rows, MAX_MODEL_LEN)
        self.sampler = Sampler(vocab, num_rows + 1, MAX_MODEL_LEN, device)
        tokens = np.arange(1, 9, dtype=np.int32)
        new = [
            NewSequence(
                sequence_id=slot, slot=slot, generation=0, token_ids=pack_ids(tokens),
                num_prompt_tokens=4, num_computed_tokens=0, block_ids=[],
                sampling=TokenSampling(**(NEUTRAL | fields), seed=slot),
            )
            for slot in range(num_rows)
        ]  # fmt: skip
        writes = TableWrites(Device(device).upload, self.states.tables())
        self.states.add(new, writes)
        writes.flush()
        for each in new:
            self.sampler.add(each.slot, each.sampling, tokens, each.num_prompt_tokens)
        self.slots_np = np.arange(num_rows, dtype=np.int32)
        slots = torch.arange(num_rows, device=device)
        valid = torch.ones(num_rows, dtype=torch.bool, device=device)
        self.rows = EndRows(slots, valid, torch.ones_like(slots))
        generator = torch.Generator(device).manual_seed(0)
        noise = torch.randn(num_rows, vocab, device=device, generator=generator)
        self.source = noise
        if not flat:
            self.source = -1.8 * torch.log(1.0 + noise.argsort(-1).argsort(-1))
        self.logits = self.source.clone()
        capturer = EndCapturer(self.states, self.sampler, torch.cuda.graph_pool_handle())
        self.ends = CapturedEnds(capturer, self.logits, self.rows)

    def refill(self) -> None:
        """An end may change its logits."""
        self.logits.copy_(self.source)

    def one_by_one(self) -> None:
        """As the output processor does where a step is no graph."""
        self.refill()
        states, (slots, valid, advance) = self.states, self.rows
        states.num_computed.index_add_(0, slots, advance)
        failed = ~self.logits.amax(-1).isfinite()
        known = states.num_known[slots]
        sampled = self.sampler.sample(self.logits, slots, self.slots_np, known)
        positions, finish = update_rows(
            slots, sampled.token_ids, valid, failed, states.token_table,
            states.num_known, states.max_total, states.finished, states.stop_ids,
        )  # fmt: skip
        self.sampler.observe(slots, sampled.token_ids, valid & ~failed)
        columns = (sampled.token_ids, positions, finish, valid)
        torch.stack([column.to(torch.int32) for column in columns])

    def captured(self, end: End) -> None:
        """As the output processor does where a step is a graph."""
        self.refill()
        self.sampler.tables()
        self.ends.replay(end)


def median_ms(run: Callable[[], None], repeats: int) -> float:
    """Of `repeats` runs back to back, seven times."""
    run()
    run()
    torch.cuda.synchronize()
    found = []
    for _ in range(7):
        began = time.perf_counter()
        for _ in range(repeats):
            run()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - began) / repeats * 1e3)
    return statistics.median(found)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default="1,8,64,256")
    parser.add_argument("--vocab", default="49152,128256")
    a = parser.parse_args()
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    print(f"{'vocab':>7} {'rows':>4}  {'case':22} {'before':>8} {'after':>8} {'capture':>8}  ms")
    grid = itertools.product(map(int, a.vocab.split(",")), map(int, a.rows.split(",")), CASES)
    for vocab, num_rows, name in grid:
        rows = Rows(CASES[name], num_rows, vocab, flat=name.endswith("flat"))
        end = rows.sampler.end_for(rows.slots_np)
        refill_ms = median_ms(rows.refill, 20)
        before = "-"
        if end is not End.GREEDY:
            before = f"{median_ms(rows.one_by_one, 3) - refill_ms:.3f}"
        rows.ends.capture(end)  # compiles, the first time
        torch.cuda.synchronize()
        began = time.perf_counter()
        rows.ends.capture(end)
        capture_ms = (time.perf_counter() - began) * 1e3
        after_ms = median_ms(lambda rows=rows, end=end: rows.captured(end), 20) - refill_ms
        cells = f"{before:>8} {after_ms:8.3f} {capture_ms:8.1f}"
        print(f"{vocab:7} {num_rows:4}  {name:22} {cells}", flush=True)


if __name__ == "__main__":
    main()
