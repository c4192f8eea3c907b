"""What steps take with nothing around the worker: no scheduler, no sockets, no host between two replays.

Run as a module it prints one line of JSON, so that the command line needs no torch of its own.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch

from pillion.actors.gpu_worker.cuda_graphs import CapturedStep
from pillion.actors.gpu_worker.device import choose_device
from pillion.actors.gpu_worker.sampling.step_end import End
from pillion.actors.gpu_worker.stages import Stages
from pillion.actors.gpu_worker.start_up import start_stages
from pillion.actors.gpu_worker.warm_up import GREEDY
from pillion.actors.gpu_worker.worker import Worker
from pillion.messages.codec import pack_ids
from pillion.messages.control import EngineGeometry
from pillion.messages.steps import NewSequence, StepOutput, StepPlan
from pillion.runtime.clock import NS_PER_MS, now_ns
from pillion.runtime.config import EngineConfig, from_json
from pillion.runtime.errors import ConfigError, InvariantBroken, PillionError

_EPOCH: Final = 1
# Before the clock runs, so that it finds the device busy and its clocks up.
_WARM_REPLAYS: Final = 5


@dataclass(frozen=True, slots=True)
class Rows:
    """Sequences to seat: so many, each with this prompt and room for this answer."""

    num_rows: int
    num_prompt_tokens: int
    num_answer_tokens: int

    @property
    def num_tokens(self) -> int:
        """Of one sequence, at most."""
        return self.num_prompt_tokens + self.num_answer_tokens


class BareSteps:
    """A worker and the plans that a scheduler would send it, by hand."""

    def __init__(self, stages: Stages, geometry: EngineGeometry, steps_in_flight: int) -> None:
        self._stages = stages
        if stages.capturer is not None:
            stages.capturer.capture_all()
        self._geometry = geometry
        self._worker: Worker = stages.worker(_EPOCH, steps_in_flight)
        self._rng = np.random.default_rng(0)
        self._next_plan_id = 0
        self._generation = 0  # of every slot alike

    @torch.inference_mode()
    def replay_ms(self, rows: Rows, repeats: int) -> list[float]:
        """Time per step of replaying the decode graph of so many rows, back to back, until the answers' end.

        Raises ConfigError where no graph was captured for them.
        """
        found = []
        for _ in range(repeats):
            self.seat(rows)
            graph = self.graph(rows.num_rows)
            # Two tokens of each answer are known by now.
            num_replays = rows.num_answer_tokens - _WARM_REPLAYS - 2
            self.replay(graph, rows.num_rows, _WARM_REPLAYS)
            start, end = _timing_event(), _timing_event()
            start.record()
            self.replay(graph, rows.num_rows, num_replays)
            end.record()
            end.synchronize()
            found.append(start.elapsed_time(end) / num_replays)
            self.release(rows)
        return found

    def prefill_ms(self, num_tokens: int, repeats: int) -> list[float]:
        """From a plan with one prompt to its first token in the host's hands, on an idle device."""
        rows, found = Rows(1, num_tokens, 2), []
        for _ in range(repeats):
            started_ns = now_ns()
            self.seat(rows)
            found.append((now_ns() - started_ns) / NS_PER_MS)
            self.release(rows)
        return found

    def replay(self, graph: CapturedStep, num_rows: int, num_replays: int) -> None:
        """So many greedy steps, launched back to back."""
        for _ in range(num_replays):
            graph.replay(num_rows)
            graph.replay_end(End.GREEDY)

    def graph(self, num_rows: int) -> CapturedStep:
        """The graph of these decode rows, with its slots set; the rows have decoded once."""
        plan = self._plan(range(num_rows), [-1] * num_rows, [1] * num_rows)
        self._run(plan)
        # Only to find the graph: nothing of this step is launched.
        preparer = self._stages.input_preparer
        graph = preparer.prepare(preparer.rows(plan, 1)).graph
        if graph is None:
            raise ConfigError(f"no graph was captured for a step of {num_rows} decode rows")
        return graph

    def seat(self, rows: Rows) -> None:
        """Prefills all rows, as many prompts a step as a step may hold."""
        limits = self._geometry
        per_plan = limits.max_num_batched_tokens // rows.num_prompt_tokens
        self._check(rows, per_plan)
        for first in range(0, rows.num_rows, per_plan):
            slots = range(first, min(first + per_plan, rows.num_rows))
            lengths = [rows.num_prompt_tokens] * len(slots)
            new = [self._new_sequence(slot, rows) for slot in slots]
            self._run(self._plan(slots, [0] * len(slots), lengths, new))

    def _check(self, rows: Rows, per_plan: int) -> None:
        limits = self._geometry
        (group,) = limits.kv_groups
        for what, wanted, most in (
            ("rows", rows.num_rows, limits.max_num_seqs),
            ("tokens of a prompt in one step", 1 if per_plan else rows.num_prompt_tokens,
             limits.max_num_batched_tokens),
            ("tokens of a sequence", rows.num_tokens, limits.max_model_len),
            ("KV blocks", rows.num_rows * self._blocks_each(rows), group.num_blocks),
        ):  # fmt: skip
            if wanted > most:
                raise ConfigError(f"{wanted} {what} were asked for, the engine has {most}")

    def _blocks_each(self, rows: Rows) -> int:
        (group,) = self._geometry.kv_groups
        return -(-rows.num_tokens // group.block_size_tokens)

    def _new_sequence(self, slot: int, rows: Rows) -> NewSequence:
        first_block = slot * self._blocks_each(rows)
        # In one go: prefills are timed with this.
        tokens = self._rng.integers(
            self._geometry.vocab_size, size=rows.num_prompt_tokens, dtype=np.int32
        )
        return NewSequence(
            sequence_id=slot,
            slot=slot,
            generation=self._generation,
            token_ids=tokens.tobytes(),
            num_prompt_tokens=len(tokens),
            num_computed_tokens=0,
            block_ids=[pack_ids(range(first_block, first_block + self._blocks_each(rows)))],
            sampling=GREEDY,
        )

    def release(self, rows: Rows) -> None:
        """Frees the slots of rows that were seated."""
        self._run(self._plan((), (), (), released=range(rows.num_rows)))
        self._generation += 1

    def _plan(
        self,
        slots: Any,
        starts: Any,
        num_tokens: Any,
        new_sequences: list[NewSequence] | None = None,
        released: Any = (),
    ) -> StepPlan:
        plan_id, self._next_plan_id = self._next_plan_id, self._next_plan_id + 1
        return StepPlan(
            epoch=_EPOCH,
            plan_id=plan_id,
            repeat=1,
            slots=pack_ids(slots),
            generations=pack_ids([self._generation] * len(slots)),
            starts=pack_ids(starts),
            num_tokens=pack_ids(num_tokens),
            new_sequences=new_sequences or [],
            released_slots=pack_ids(released),
        )

    def _run(self, plan: StepPlan) -> None:
        """Until the plan's output is there."""
        self._worker.on_message(plan, 0)
        while self._worker.tick(0) is not None:
            pass
        failed = [
            error
            for _, output in self._worker.outgoing
            if isinstance(output, StepOutput)
            for error in output.errors.values()
        ]
        self._worker.outgoing.clear()
        if failed:
            raise InvariantBroken(failed[0])


def _timing_event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def measure(
    config: EngineConfig,
    batches: Sequence[int],
    rows: Rows,
    prefills: Sequence[int],
    repeats: int,
    prefill_repeats: int,
) -> dict[str, Any]:
    """Milliseconds of each decode graph's replay and of each prefill, all repeats.

    `rows` says how long the sequences of every batch are. Raises ConfigError for graphs on a device without.
    """
    if batches and choose_device(config.device).type != "cuda":
        raise ConfigError("bare replays are of CUDA graphs, and this device is a CPU")
    stages, geometry = start_stages(config, _EPOCH, lambda phase: None)
    bare = BareSteps(stages, geometry, config.steps_in_flight)
    return {
        "device": geometry.device,
        "replay_ms": {
            batch: bare.replay_ms(replace(rows, num_rows=batch), repeats) for batch in batches
        },
        "prefill_ms": {
            # The first one of a length loads kernels.
            num_tokens: bare.prefill_ms(num_tokens, prefill_repeats + 1)[1:]
            for num_tokens in prefills
        },
    }


def main() -> int:
    """Measures what is asked for with the engine of `--config`. Returns the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True, help="an EngineConfig as JSON")
    parser.add_argument("--batch", type=int, nargs="*", default=[])
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=512)
    parser.add_argument("--prefill", type=int, nargs="*", default=[])
    parser.add_argument("--repeats", type=int, default=3, help="of each batch")
    parser.add_argument("--prefill-repeats", type=int, default=3)
    arguments = parser.parse_args()
    rows = Rows(1, arguments.input_len, arguments.output_len)
    try:
        found = measure(
            from_json(arguments.config.encode()),
            arguments.batch,
            rows,
            arguments.prefill,
            arguments.repeats,
            arguments.prefill_repeats,
        )
    except PillionError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
