"""What the kernels of a step take: decode graphs per number of rows, and prefill steps, beside the card's limit.

usage: profile_steps.py MODEL_DIR [--decode 1,8,64,256] [--context 384] [--prefill 1x8192,16x512] [--json FILE]

Weights are random. `step` is the time without a profiler; `kernels` the sum of what each kernel took under one, so that
`step` less `kernels` is gaps between kernels (or, where negative, kernels that overlap). `limit`: the larger of reading
weights and KV once and of the products, at rates measured on the same card. Bytes of KV are those of `--context`.
"""

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from pillion.actors.gpu_worker.bare_steps import BareSteps, Rows
from pillion.actors.gpu_worker.start_up import start_stages
from pillion.runtime.bench.limits import DeviceLimits, measure_limits
from pillion.runtime.config import make_config

REPLAYS = 20
NAME_WIDTH = 60


class Profiles:
    """Runs cases on one engine and keeps what was found."""

    def __init__(self, folder: str, fields: dict[str, Any], top: int) -> None:
        config = make_config({"model": folder, "load_format": "dummy", **fields}, None)
        stages, self.geometry = start_stages(config, 1, lambda phase: None)
        self.bare = BareSteps(stages, self.geometry, config.steps_in_flight)
        self.limits: DeviceLimits = measure_limits(self.geometry, None)
        settings = json.loads((Path(folder) / "config.json").read_text())
        # Of a model whose queries are as wide as its hidden state: layers x heads x head size.
        self.attention_width = settings["num_hidden_layers"] * settings["hidden_size"]
        self.top = top
        self.found: list[dict[str, Any]] = []

    def decode(self, num_rows: int, context: int) -> None:
        """Replays of the graph of so many rows that hold so many tokens."""
        rows = Rows(num_rows, context, 4 * REPLAYS)
        step_ms = statistics.median(self.bare.replay_ms(rows, 3))
        self.bare.seat(rows)
        graph = self.bare.graph(num_rows)
        kernels = _kernels(lambda: self.bare.replay(graph, num_rows, REPLAYS), REPLAYS)
        self.bare.release(rows)
        limit_s = self.limits.step_s(self.geometry, num_rows, num_rows * (context + 2 * REPLAYS))
        self._report(f"decode {num_rows} x {context}", step_ms, kernels, limit_s)

    def prefill(self, num_rows: int, length: int) -> None:
        """Steps with whole prompts."""
        rows = Rows(num_rows, length, 2)
        times = []
        for _ in range(4):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            self.bare.seat(rows)
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
            self.bare.release(rows)
        kernels = _kernels(lambda: self.bare.seat(rows), 1)
        self.bare.release(rows)
        limit_s = self.limits.step_s(self.geometry, num_rows * length, num_rows * length)
        attention = 2 * num_rows * length**2 * self.attention_width
        limit_s += attention / self.limits.flop_per_s
        self._report(
            f"prefill {num_rows} x {length}", statistics.median(times[1:]), kernels, limit_s
        )

    def _report(
        self, case: str, step_ms: float, kernels: list[tuple[str, int, float]], limit_s: float
    ) -> None:
        total_ms = sum(us for _, _, us in kernels) / 1e3
        print(
            f"\n{case}: step {step_ms:.3f} ms, kernels {total_ms:.3f} ms, limit {limit_s * 1e3:.3f} ms"
        )
        for name, count, us in kernels[: self.top]:
            print(f"  {us:9.1f} us {count:4d} x {us / count:8.2f}  {name[:NAME_WIDTH]}", flush=True)
        self.found.append(
            {"case": case, "step_ms": step_ms, "limit_ms": limit_s * 1e3, "kernels": kernels}
        )


def _kernels(run: Any, steps: int) -> list[tuple[str, int, float]]:
    """(name, launches per step, microseconds per step) of what `run` has the device do, longest first."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    us: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            us[event.name] += event.device_time / steps
            counts[event.name] += 1
    found = [(name, max(1, round(counts[name] / steps)), us[name]) for name in us]
    return sorted(found, key=lambda kernel: -kernel[2])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--decode", default="")
    parser.add_argument("--context", type=int, default=384)
    parser.add_argument("--prefill", default="", help="such as 16x512,1x8192: prompts x tokens")
    parser.add_argument("--top", type=int, default=10, help="kernels shown")
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    longest = max([a.context, *(int(case.split("x")[1]) for case in a.prefill.split(",") if case)])
    profiles = Profiles(a.model, {"max_model_len": longest + 8 * REPLAYS}, a.top)
    for num_rows in filter(None, a.decode.split(",")):
        profiles.decode(int(num_rows), a.context)
    for case in filter(None, a.prefill.split(",")):
        num_rows, length = map(int, case.split("x"))
        profiles.prefill(num_rows, length)
    if a.json:
        a.json.write_text(json.dumps(profiles.found))


if __name__ == "__main__":
    main()
