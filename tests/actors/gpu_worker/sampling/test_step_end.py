"""Ends of steps that look at nothing on the host, against the sampler that chooses rows there."""

import random
from typing import Any

import numpy as np
import pytest
import torch

from pillion.actors.gpu_worker.device import Device
from pillion.actors.gpu_worker.request_states import RequestStates
from pillion.actors.gpu_worker.sampling.sampler import Sampler
from pillion.actors.gpu_worker.sampling.step_end import End, EndResult, EndRows, launch_end
from pillion.actors.gpu_worker.table_writes import TableWrites
from pillion.kernels.update_rows import update_rows
from pillion.messages.codec import pack_ids
from pillion.messages.sampling import TokenSampling
from pillion.messages.steps import NewSequence, TokenMasks

CPU = torch.device("cpu")
VOCAB_SIZE = 96
NUM_SLOTS = 12
MAX_MODEL_LEN = 40


def fields(chance: random.Random, end: End) -> dict[str, Any]:
    """Settings of a sequence that this end is enough for."""
    found: dict[str, Any] = {"stop_token_ids": [3, 4], "max_tokens": chance.randrange(2, 30)}
    if end is not End.GREEDY and chance.random() < 0.7:
        found["temperature"] = chance.choice([1e-6, 0.5, 1.0, 3.0])
        found["top_p"] = chance.choice([1.0, 0.9])
        found["top_k"] = chance.choice([0, 5])
        found["min_p"] = chance.choice([0.0, 0.05])
        found["seed"] = chance.randrange(1000)
    if end is End.FULL:
        for name, make in (
            ("repetition_penalty", lambda: 1.3),
            ("frequency_penalty", lambda: 0.5),
            ("logit_bias", lambda: {token: chance.uniform(-9, 9) for token in range(0, 90, 7)}),
            ("allowed_token_ids", lambda: chance.sample(range(VOCAB_SIZE), 20)),
            ("bad_words", lambda: [[chance.randrange(5, 9)] * n for n in (1, 2, 3)] + [[7, 8]]),
            ("min_tokens", lambda: 4),
            ("logprobs", lambda: chance.randrange(4)),
            ("needs_masks", lambda: True),
        ):
            if chance.random() < 0.4:
                found[name] = make()
    return found


class Rig:
    """A sampler and the state of its slots."""

    def __init__(self, sampling: list[TokenSampling]) -> None:
        self.states = RequestStates(Device(CPU), NUM_SLOTS, MAX_MODEL_LEN)
        self.sampler = Sampler(VOCAB_SIZE, NUM_SLOTS + 1, MAX_MODEL_LEN, CPU, preallocate=True)
        new = [
            NewSequence(
                sequence_id=slot,
                slot=slot,
                generation=0,
                token_ids=pack_ids([5, 6, 7, slot]),
                num_prompt_tokens=3,
                num_computed_tokens=0,
                block_ids=[],
                sampling=each,
            )
            for slot, each in enumerate(sampling)
        ]
        writes = TableWrites(Device(CPU).upload, self.states.tables())
        self.states.add(new, writes)
        writes.flush()
        for each in new:
            tokens = np.frombuffer(each.token_ids, dtype=np.int32)
            self.sampler.add(each.slot, each.sampling, tokens, each.num_prompt_tokens)

    def mask(self, slots: list[int], masks: bytes) -> None:
        self.sampler.masks.take(
            TokenMasks(
                epoch=1,
                slots=pack_ids(slots),
                generations=pack_ids([0] * len(slots)),
                positions=pack_ids([0] * len(slots)),
                masks=masks,
            )
        )

    def by_sampler(
        self, logits: torch.Tensor, rows: EndRows, slots_np: Any
    ) -> tuple[torch.Tensor, Any]:
        states = self.states
        states.num_computed.index_add_(0, rows.slots, rows.advance)
        failed = ~logits.amax(-1).isfinite()
        sampled = self.sampler.sample(logits, rows.slots, slots_np, states.num_known[rows.slots])
        positions, finish = update_rows(
            rows.slots, sampled.token_ids, rows.valid, failed, states.token_table,
            states.num_known, states.max_total, states.finished, states.stop_ids,
        )  # fmt: skip
        self.sampler.observe(rows.slots, sampled.token_ids, rows.valid & ~failed)
        columns = (sampled.token_ids, positions, finish, rows.valid)
        return torch.stack([column.int() for column in columns]), sampled.logprobs

    def by_end(self, end: End, logits: torch.Tensor, rows: EndRows, slots_np: Any) -> EndResult:
        if end is not End.FULL:
            self.sampler.masks.apply(logits, rows.slots, slots_np)
        result = EndResult.empty(end, len(rows.slots), CPU)
        raw = torch.full_like(logits, torch.nan)
        tables = self.sampler.tables()
        launch_end(end, logits, raw, rows, self.states.tables(), tables, result)
        return result


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("end", End)
def test_ends_do_what_the_sampler_does(end: End, seed: int, make_sampling: Any) -> None:
    chance = random.Random(seed)
    sampling = [make_sampling(**fields(chance, end)) for _ in range(NUM_SLOTS)]
    one, other = Rig(sampling), Rig(sampling)
    generator = torch.Generator().manual_seed(seed)
    slots_np = np.array([*range(NUM_SLOTS), NUM_SLOTS, NUM_SLOTS], dtype=np.int32)
    slots = torch.from_numpy(slots_np.astype(np.int64))
    assert one.sampler.end_for(slots_np) is end
    num_logprobs = 0
    for _ in range(20):
        masks = torch.randint(0, 256, (NUM_SLOTS, VOCAB_SIZE // 8), generator=generator)
        for rig in (one, other):
            rig.mask(list(range(NUM_SLOTS)), masks.to(torch.uint8).numpy().tobytes())
        # As the input preparer: finished rows and padding are masked.
        valid = ~one.states.finished[slots]
        rows = EndRows(slots, valid, valid.long())
        logits = torch.randn(len(slots), VOCAB_SIZE, generator=generator) * 4
        if chance.random() < 0.1:
            logits[chance.randrange(NUM_SLOTS)] = torch.nan
        expected, logprobs = one.by_sampler(logits.clone(), rows, slots_np)
        result = other.by_end(end, logits.clone(), rows, slots_np)
        counts = expected[2] != 3  # a failed row's token means nothing
        assert torch.equal(result.columns[1:, valid], expected[1:, valid])
        assert torch.equal(result.columns[0, valid & counts], expected[0, valid & counts])
        for table, wanted in zip(other.states.tables(), one.states.tables(), strict=True):
            assert torch.equal(table[:-1], wanted[:-1])
        if (wanted_rows := other.sampler.logprobs.wanted(slots_np)) is None:
            assert logprobs is None
            continue
        rows_np, num_top = wanted_rows
        assert rows_np.tolist() == logprobs.rows_np.tolist()
        has_token = (valid & counts)[torch.from_numpy(rows_np).long()]
        columns = result.logprob_ids, result.logprobs, result.ranks
        ids, values, ranks = (
            column[..., rows_np.tolist()].movedim(-1, 0)[has_token] for column in columns
        )
        ids, values = ids[:, : 1 + num_top], values[:, : 1 + num_top]
        told = ids >= 0
        assert torch.equal(ids, logprobs.token_ids[has_token])
        assert torch.equal(values[told], logprobs.logprobs[has_token][told])
        assert torch.equal(ranks, logprobs.ranks[has_token])
        num_logprobs += len(ids)
    assert one.states.num_known.sum() > 4 * NUM_SLOTS + 30
    assert (num_logprobs > 0) == (end is End.FULL)


def test_the_next_tenant_of_a_slot_starts_without_features(make_sampling: Any) -> None:
    sampler = Sampler(VOCAB_SIZE, 2, MAX_MODEL_LEN, CPU)
    tokens = np.array([1], dtype=np.int32)
    slots_np = np.array([0, 1])
    sampler.add(0, make_sampling(logit_bias={1: 2.0}, logprobs=2), tokens, 1)
    assert sampler.tables().features.tolist() == [[4, 2], [0, -1]]
    assert sampler.end_for(slots_np) is End.FULL
    assert sampler.end_for(np.array([1])) is End.GREEDY
    assert sampler.end_for(slots_np) is End.FULL
    sampler.add(0, make_sampling(), tokens, 1)
    assert sampler.tables().features.tolist() == [[0, -1], [0, -1]]
    assert sampler.end_for(slots_np) is End.GREEDY
