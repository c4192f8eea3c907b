"""Captured steps that run ahead against the same plans, one step at a time and without graphs."""

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tiny_models import load, make_reference

from pillion.actors.gpu_worker.captured_ends import CapturedEnds
from pillion.actors.gpu_worker.device import Device
from pillion.actors.gpu_worker.forward_step import MaskPatience
from pillion.actors.gpu_worker.kv_cache import KvCache
from pillion.actors.gpu_worker.limits import WorkerLimits
from pillion.actors.gpu_worker.models.loader import LoadedModel, num_weights
from pillion.actors.gpu_worker.sampling.step_end import End, EndResult
from pillion.actors.gpu_worker.stages import Stages
from pillion.actors.gpu_worker.warm_up import WARM_UP_TOKENS, warm_up
from pillion.actors.gpu_worker.worker import Worker
from pillion.messages.codec import pack_ids, unpack_ids
from pillion.messages.sampling import TokenSampling
from pillion.messages.steps import (
    NewSequence,
    PromptLogprobs,
    SampledLogprobs,
    StepOutput,
    StepPlan,
    TokenMasks,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

# Seven captured steps: decode steps of 1 to 10 rows, and two with prefill rows.
LIMITS = WorkerLimits(
    max_num_seqs=10, max_num_batched_tokens=256, max_model_len=128, num_blocks=200
)
NUM_PLANS = 150
PLANS_OF_A_KIND = 25
PROMPT_LENGTHS = [1, 5, 30, 64]  # pieces of more than 64 tokens would be attended by another kernel
BLOCK_SIZE = 8
VOCAB_SIZE = 160
ANSWER_COLUMNS = (
    "sequence_ids", "slots", "generations", "positions", "num_tokens", "token_ids", "finish",
)  # fmt: skip


def sampling(chance: random.Random, end: End) -> TokenSampling:
    """Greedy most of the time, else all that this end is enough for."""
    full = end is End.FULL and chance.random() < 0.2
    sampled = full or (end is End.SAMPLED and chance.random() < 0.5)
    needs_masks = chance.random() < 0.3

    def some(count: int) -> list[int]:
        return chance.sample(range(VOCAB_SIZE), count) if full and chance.random() < 0.3 else []

    return TokenSampling(
        temperature=0.9 if sampled else 0.0,
        top_k=chance.choice([0, 20]) if sampled else 0,
        top_p=chance.choice([0.95, 1.0]) if sampled else 1.0,
        min_p=chance.choice([0.01, 0.0]) if sampled else 0.0,
        presence_penalty=chance.choice([0.0, 0.5]) if full else 0.0,
        frequency_penalty=0.2 if full else 0.0,
        repetition_penalty=1.1 if full else 1.0,
        seed=chance.randrange(1000),
        stop_token_ids=[7],
        min_tokens=chance.choice([0, 4]) if full else 0,
        max_tokens=chance.randrange(1, 40),
        logprobs=chance.choice([0, 2, 7]) if end is End.FULL and chance.random() < 0.2 else None,
        prompt_logprobs=2 if chance.random() < 0.1 else None,
        logit_bias=dict.fromkeys(some(5), 2.0),
        # Together with a mask they might leave nothing.
        allowed_token_ids=[] if needs_masks else some(60),
        bad_words=[word for word in (some(1), some(2)) if word],
        needs_masks=needs_masks,
    )


@dataclass
class Tenant:
    """A sequence in a slot, as the planner knows it."""

    slot: int
    generation: int
    blocks: list[int]
    num_prompt: int
    needs_masks: bool
    num_computed: int = 0
    num_known: int = 0
    ended: bool = False


@dataclass
class Planner:
    """Draws plans as a scheduler might make them, and learns from the outputs."""

    chance: random.Random
    next_plan_id: int = 0
    generation: int = 0
    num_masked: int = 0  # tokens of rows with masks
    tenants: dict[int, Tenant] = field(default_factory=dict)
    free_blocks: list[int] = field(default_factory=lambda: list(range(LIMITS.num_blocks)))

    def plan(self) -> StepPlan:
        chance = self.chance
        released = [slot for slot, t in self.tenants.items() if t.ended or chance.random() < 0.03]
        for slot in released:
            self.free_blocks += self.tenants.pop(slot).blocks
        new = []
        for slot in range(LIMITS.max_num_seqs):
            if slot not in self.tenants and slot not in released and chance.random() < 0.2:
                new.append(self.seat(slot))
        rows, budget = [], LIMITS.max_num_batched_tokens
        for slot, tenant in self.tenants.items():
            missing = tenant.num_known - tenant.num_computed
            if missing == 0 or (missing == 1 and tenant.num_known > tenant.num_prompt):
                rows.append((slot, -1, 1))
            else:
                length = missing if chance.random() < 0.7 else chance.randrange(1, missing + 1)
                if length > budget - LIMITS.max_num_seqs:
                    continue
                budget -= length
                rows.append((slot, tenant.num_computed, length))
                tenant.num_computed += length
        rows.sort(key=lambda row: row[1] >= 0)
        plan_id, self.next_plan_id = self.next_plan_id, self.next_plan_id + 1
        slots, starts, lengths = zip(*rows, strict=True) if rows else ((), (), ())
        return StepPlan(
            epoch=1,
            plan_id=plan_id,
            repeat=chance.randrange(1, 7),
            slots=pack_ids(slots),
            generations=pack_ids(self.tenants[slot].generation for slot in slots),
            starts=pack_ids(starts),
            num_tokens=pack_ids(lengths),
            new_sequences=new,
            released_slots=pack_ids(released),
        )

    def seat(self, slot: int) -> NewSequence:
        chance = self.chance
        # One kind after the other, so that there are steps for every end.
        params = sampling(chance, tuple(End)[self.next_plan_id // PLANS_OF_A_KIND % 3])
        tokens = [chance.randrange(VOCAB_SIZE) for _ in range(chance.choice(PROMPT_LENGTHS))]
        count = -(-LIMITS.max_model_len // BLOCK_SIZE)
        blocks, self.free_blocks = self.free_blocks[:count], self.free_blocks[count:]
        self.generation += 1
        self.tenants[slot] = Tenant(
            slot,
            self.generation,
            blocks,
            len(tokens),
            params.needs_masks,
            num_known=len(tokens),
        )
        return NewSequence(
            sequence_id=self.generation,
            slot=slot,
            generation=self.generation,
            token_ids=pack_ids(tokens),
            num_prompt_tokens=len(tokens),
            num_computed_tokens=0,
            block_ids=[pack_ids(blocks)],
            sampling=params,
        )

    def masks(self) -> TokenMasks:
        """For some of the rows that need one: a few tokens that depend on the position."""
        rows = [
            tenant
            for tenant in self.tenants.values()
            if tenant.needs_masks and self.chance.random() < 0.7
        ]
        data = b""
        for tenant in rows:
            allowed = allowed_tokens(tenant.generation, tenant.num_known)
            bits = sum(1 << token for token in allowed)
            data += bits.to_bytes(VOCAB_SIZE // 8, "little")
        return TokenMasks(
            epoch=1,
            slots=pack_ids(tenant.slot for tenant in rows),
            generations=pack_ids(tenant.generation for tenant in rows),
            positions=pack_ids(tenant.num_known for tenant in rows),
            masks=data,
        )

    def learn(self, outputs: list[StepOutput]) -> None:
        for output in outputs:
            finish = list(output.finish)
            positions = unpack_ids(output.positions)
            tokens = iter(unpack_ids(output.token_ids))
            counts = unpack_ids(output.num_tokens)
            for slot, position, code, count in zip(
                unpack_ids(output.slots), positions, finish, counts, strict=True
            ):
                token_id = next(tokens) if count else None
                tenant = self.tenants[slot]
                if tenant.needs_masks and token_id is not None:
                    assert token_id in allowed_tokens(tenant.generation, position)
                    self.num_masked += 1
                tenant.num_computed, tenant.num_known = position, position + 1
                tenant.ended = code != 0


def allowed_tokens(generation: int, position: int) -> set[int]:
    return set(random.Random(1000 * generation + position).sample(range(VOCAB_SIZE), 12))


def build(loaded: LoadedModel, *, with_graphs: bool) -> Worker:
    device = Device(torch.device("cuda", 0))
    config = loaded.config
    kv_cache = KvCache(
        LIMITS.num_blocks,
        config.num_layers,
        config.num_kv_heads,
        BLOCK_SIZE,
        config.head_dim,
        loaded.dtype,
        device.device,
    )
    stages = Stages.build(
        device,
        loaded.model,
        config.vocab_size,
        kv_cache,
        LIMITS,
        graphs_for_weights=num_weights(config) if with_graphs else None,
    )
    # As a start does: what the first steps take otherwise is how long they would wait for masks.
    warm_up(stages, LIMITS, BLOCK_SIZE, WARM_UP_TOKENS)
    if stages.capturer is not None:
        stages.capturer.capture_all()
    return stages.worker(1, steps_in_flight=2 if with_graphs else 1)


def run(worker: Worker, plan: StepPlan, masks: TokenMasks) -> list[StepOutput]:
    worker.on_message(masks, 0)
    worker.on_message(plan, 0)
    while worker.tick(0) is not None:
        pass
    outputs = [message for receiver, message in worker.outgoing if receiver == "scheduler"]
    worker.outgoing.clear()
    # One that runs ahead may find only afterwards that all rows of a step had ended.
    return [
        output
        for output in outputs
        if isinstance(output, StepOutput) and (output.sequence_ids or output.prompt_logprobs)
    ]


def assert_close(
    got: SampledLogprobs | PromptLogprobs, want: SampledLogprobs | PromptLogprobs
) -> None:
    """The same rows, with the same log-probabilities but for the last digits.

    A row that has ended while the next step was on its way may make an answer wider; it holds nothing there.
    """
    for found, expected in zip(told(got), told(want), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)


def told(logprobs: SampledLogprobs | PromptLogprobs) -> list[npt.NDArray[np.float32]]:
    """Of each row, what it asked for."""
    shape = (-1, 1 + logprobs.num_top)
    ids = np.frombuffer(logprobs.token_ids, np.int32).reshape(shape)
    values = np.frombuffer(logprobs.logprobs, np.float32).reshape(shape)
    return [row[there] for row, there in zip(values, ids >= 0, strict=True)]


@pytest.mark.parametrize("family_name", ["llama", "qwen3", "mistral"])
def test_graphs_that_run_ahead_answer_as_steps_one_by_one(
    family_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_reference(family_name).save_pretrained(tmp_path)
    loaded = load(tmp_path, torch.device("cuda", 0))
    ends: Counter[End] = Counter()
    replay = CapturedEnds.replay

    def counted(self: CapturedEnds, end: End) -> EndResult:
        ends[end] += 1
        return replay(self, end)

    monkeypatch.setattr(CapturedEnds, "replay", counted)
    # How long the clock lets rows wait for a mask is no difference between the two.
    monkeypatch.setattr(MaskPatience, "is_over", lambda *_: True)
    captured, plain = build(loaded, with_graphs=True), build(loaded, with_graphs=False)
    planner = Planner(random.Random(len(family_name)))
    num_tokens = num_with_logprobs = 0
    for _ in range(NUM_PLANS):
        plan, masks = planner.plan(), planner.masks()
        outputs, expected = run(captured, plan, masks), run(plain, plan, masks)
        assert len(outputs) == len(expected)
        for got, want in zip(outputs, expected, strict=True):
            for name in ANSWER_COLUMNS:
                assert getattr(got, name) == getattr(want, name), (plan.plan_id, name)
            assert (got.logprobs is None) == (want.logprobs is None)
            if got.logprobs is not None and want.logprobs is not None:
                num_with_logprobs += 1
                assert got.logprobs.rows == want.logprobs.rows
                assert_close(got.logprobs, want.logprobs)
            for got_prompt, want_prompt in zip(
                got.prompt_logprobs, want.prompt_logprobs, strict=True
            ):
                assert_close(got_prompt, want_prompt)
            num_tokens += len(got.token_ids) // 4
        planner.learn(outputs)
    assert num_tokens > 1000
    assert num_with_logprobs > 20
    assert planner.num_masked > 100
    assert all(ends[end] > 20 for end in End), ends


def test_a_model_in_bfloat16_lives_through_it_too(tmp_path: Path) -> None:
    """Its fused kernels round in another order than the plain ones, so tokens may differ: none may be lost."""
    make_reference("llama").save_pretrained(tmp_path)
    loaded = load(tmp_path, torch.device("cuda", 0), dtype="bfloat16")
    worker = build(loaded, with_graphs=True)
    planner = Planner(random.Random(3))
    for _ in range(NUM_PLANS):
        plan, masks = planner.plan(), planner.masks()
        outputs = run(worker, plan, masks)
        assert not any(output.errors for output in outputs)
        planner.learn(outputs)


@pytest.mark.parametrize("with_graphs", [True, False], ids=["captured", "one by one"])
def test_no_step_waits_for_the_device(with_graphs: bool, tmp_path: Path) -> None:
    """Neither what a plan changes nor a step: only collecting does, by an event."""
    make_reference("llama").save_pretrained(tmp_path)
    worker = build(load(tmp_path, torch.device("cuda", 0)), with_graphs=with_graphs)
    planner, num_steps = Planner(random.Random(5)), 0
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(NUM_PLANS):
            plan, masks = planner.plan(), planner.masks()
            outputs = run(worker, plan, masks)
            assert not worker.counters["failed_steps"]
            planner.learn(outputs)
            num_steps += len(outputs)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert num_steps > 100
