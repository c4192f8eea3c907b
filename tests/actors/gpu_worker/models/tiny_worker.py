"""A worker from a configuration, as its process starts one, and plans for it by hand."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiny_models import SIZES

from pillion.actors.gpu_worker.start_up import start_worker
from pillion.actors.gpu_worker.worker import Worker
from pillion.messages.codec import pack_ids, unpack_ids, unpack_int64
from pillion.messages.sampling import TokenSampling
from pillion.messages.steps import NewSequence, StepOutput, StepPlan
from pillion.runtime.clock import NS_PER_S
from pillion.runtime.config import EngineConfig

BLOCKS_EACH = 8


def tiny_config(
    folder: Path, device: str, sizes: dict[str, Any] | None = None, **fields: Any
) -> EngineConfig:
    """Of a tiny model with random weights, whose config.json is written to the folder; `sizes` replace some of it."""
    content = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **SIZES,
        **(sizes or {}),
    }
    (folder / "config.json").write_text(json.dumps(content))
    settings: dict[str, Any] = {
        "dtype": "float32",
        "max_num_seqs": 4,
        "max_num_batched_tokens": 128,
        "max_model_len": 64,
        "block_size": 8,
        "num_kv_blocks": 4 * BLOCKS_EACH,
    }
    return EngineConfig(
        model=str(folder),
        model_path=str(folder),
        device=device,
        load_format="dummy",
        **(settings | fields),
    )


@dataclass
class TinyWorker:
    """The scheduler's side of a worker: a sequence has the id of its slot, and blocks for all that it may hold."""

    worker: Worker
    next_plan_id: int = 0
    generation: int = 0
    outputs: list[StepOutput] = field(default_factory=list)

    @classmethod
    def start(cls, config: EngineConfig) -> "TinyWorker":
        """Loads the model, captures its steps and runs one."""
        worker, _ = start_worker(config, 1, lambda phase: None)
        return cls(worker)

    def run(
        self,
        rows: Sequence[tuple[int, ...]],
        new: Sequence[NewSequence] = (),
        *,
        repeat: int = 1,
        released: Sequence[int] = (),
        fresh: bool = False,
    ) -> list[StepOutput]:
        """Runs a plan until the worker rests. Rows are (slot,) to decode or (slot, start, end) to prefill."""
        self.give(rows, new, repeat=repeat, released=released, fresh=fresh)
        return self.rest()

    def rest(self) -> list[StepOutput]:
        """Runs what was given until the worker rests, or ends; it may want to be back later."""
        while not self.worker.finished and self.worker.tick(0) == 0:
            pass
        sent = self.worker.outgoing
        found = [
            message
            for receiver, message in sent
            if receiver == "scheduler" and isinstance(message, StepOutput)
        ]
        sent.clear()
        self.outputs += found
        return found

    def idle(self) -> None:
        """Nothing comes for as long as the worker has something to do by itself."""
        now = 0
        while self.worker.tick(now) is not None:
            now += NS_PER_S

    def give(
        self,
        rows: Sequence[tuple[int, ...]],
        new: Sequence[NewSequence] = (),
        *,
        repeat: int = 1,
        released: Sequence[int] = (),
        fresh: bool = False,
    ) -> None:
        """Gives a plan to the worker, and runs nothing."""
        plan_id, self.next_plan_id = self.next_plan_id, self.next_plan_id + 1
        plan = StepPlan(
            epoch=1,
            plan_id=plan_id,
            repeat=repeat,
            slots=pack_ids(row[0] for row in rows),
            generations=pack_ids(self.generation for _ in rows),
            starts=pack_ids(row[1] if len(row) == 3 else -1 for row in rows),
            num_tokens=pack_ids(row[2] - row[1] if len(row) == 3 else 1 for row in rows),
            new_sequences=list(new),
            released_slots=pack_ids(released),
            fresh=fresh,
        )
        self.worker.on_message(plan, 0)

    def new(self, slot: int, tokens: Sequence[int], sampling: TokenSampling) -> NewSequence:
        """A sequence for a free slot."""
        first = slot * BLOCKS_EACH
        return NewSequence(
            sequence_id=slot,
            slot=slot,
            generation=self.generation,
            token_ids=pack_ids(tokens),
            num_prompt_tokens=len(tokens),
            num_computed_tokens=0,
            block_ids=[pack_ids(range(first, first + BLOCKS_EACH))],
            sampling=sampling,
        )

    def tokens(self, slot: int) -> list[int]:
        """All that was said so far of the sequence in this slot."""
        found = []
        for output in self.outputs:
            left = iter(unpack_ids(output.token_ids))
            for owner, count in zip(
                unpack_int64(output.sequence_ids), unpack_ids(output.num_tokens), strict=True
            ):
                own = [next(left) for _ in range(count)]
                found += own if owner == slot else []
        return found
