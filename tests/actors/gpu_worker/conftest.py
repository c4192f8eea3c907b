"""A whole worker around a tiny model whose attention is real, so that every token depends on all before it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch

from pillion.actors.gpu_worker.block_tables import BlockTables
from pillion.actors.gpu_worker.captured_inputs import CapturedInputs
from pillion.actors.gpu_worker.cuda_graphs import GraphTable
from pillion.actors.gpu_worker.device import Device
from pillion.actors.gpu_worker.eager_inputs import EagerInputs
from pillion.actors.gpu_worker.faults import FaultyExecutor
from pillion.actors.gpu_worker.input_preparer import InputPreparer
from pillion.actors.gpu_worker.kv_cache import KvCache
from pillion.actors.gpu_worker.late_graphs import LateGraphs
from pillion.actors.gpu_worker.output_processor import OutputProcessor
from pillion.actors.gpu_worker.plan_queue import PlanQueue
from pillion.actors.gpu_worker.request_states import RequestStates
from pillion.actors.gpu_worker.sampling.sampler import Sampler
from pillion.actors.gpu_worker.stages import Stages
from pillion.actors.gpu_worker.step_faults import FailedSteps
from pillion.actors.gpu_worker.step_inputs import AttentionInputs
from pillion.actors.gpu_worker.step_pipeline import StepPipeline
from pillion.actors.gpu_worker.warm_up import self_test
from pillion.actors.gpu_worker.worker import Worker
from pillion.kernels.paged_attention import paged_attention
from pillion.kernels.rotary_kv_write import rotary_kv_write
from pillion.messages.codec import pack_ids, unpack_ids, unpack_int64
from pillion.messages.sampling import TokenSampling
from pillion.messages.steps import NewSequence, StepOutput, StepPlan
from pillion.runtime.fault_flags import FaultFlag

VOCAB_SIZE = 97
NUM_LAYERS = 2
NUM_Q_HEADS, NUM_KV_HEADS, HEAD_DIM = 6, 2, 8
MAX_NUM_SEQS = 6
MAX_MODEL_LEN = 64
BLOCK_SIZE = 4
NUM_BLOCKS = 100
POISON = 96  # a token whose embedding is NaN, and which the model never answers


class TinyModel:
    """Two layers of attention with residuals, a tied head, and seeded random weights."""

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(11)
        hidden_size = NUM_Q_HEADS * HEAD_DIM
        qkv_size = (NUM_Q_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM

        def weight(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=random) * shape[-1] ** -0.5

        self.embedding = weight(VOCAB_SIZE, hidden_size) * 5
        self.embedding[POISON] = float("nan")
        self.head = weight(VOCAB_SIZE, hidden_size) * 5
        self.qkv = [weight(qkv_size, hidden_size) for _ in range(NUM_LAYERS)]
        self.out = [weight(hidden_size, hidden_size) for _ in range(NUM_LAYERS)]
        angles = torch.arange(MAX_MODEL_LEN)[:, None] * 10000 ** -(torch.arange(4) / 4)
        self.cos_sin = torch.stack([angles.cos(), angles.sin()], dim=1)
        self.num_logit_rows: list[int] = []

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: KvCache,
        attention: AttentionInputs,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        hidden = self.embedding[input_ids]
        cos_sin = self.cos_sin[positions]
        for layer in range(NUM_LAYERS):
            qkv = (hidden @ self.qkv[layer].T).view(len(input_ids), -1, HEAD_DIM)
            q, k, v = qkv.split([NUM_Q_HEADS, NUM_KV_HEADS, NUM_KV_HEADS], dim=1)
            layer_kv = kv_cache.layer(layer)
            q = rotary_kv_write(
                q, k, v, cos_sin, layer_kv, attention.slot_mapping, pool_rows=attention.pool_rows
            )
            attended = paged_attention(q, layer_kv, attention, HEAD_DIM**-0.5)
            hidden = hidden + attended.flatten(1) @ self.out[layer].T
        return hidden if wanted is None else hidden[wanted]

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.num_logit_rows.append(len(hidden))
        return self._head(hidden)

    def greedy(self, token_ids: list[int], num_new: int) -> list[int]:
        """The answer by definition: everything computed again for each token, without a cache."""
        tokens = list(token_ids)
        for _ in range(num_new):
            tokens.append(int(self.logits(tokens)[-1].argmax()))
        return tokens[len(token_ids) :]

    def logits(self, tokens: list[int]) -> torch.Tensor:
        """[len(tokens), vocab_size], dense."""
        hidden = self.embedding[tokens]
        cos, sin = self.cos_sin[: len(tokens), None, 0], self.cos_sin[: len(tokens), None, 1]

        def rotate(x: torch.Tensor) -> torch.Tensor:
            first, second = x.chunk(2, dim=-1)
            return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

        causal = torch.ones(len(tokens), len(tokens)).tril().bool()
        for layer in range(NUM_LAYERS):
            qkv = (hidden @ self.qkv[layer].T).view(len(tokens), -1, HEAD_DIM)
            q, k, v = qkv.split([NUM_Q_HEADS, NUM_KV_HEADS, NUM_KV_HEADS], dim=1)
            k, v = rotate(k).repeat_interleave(3, dim=1), v.repeat_interleave(3, dim=1)
            scores = torch.einsum("ihd,jhd->hij", rotate(q), k) * HEAD_DIM**-0.5
            weights = scores.masked_fill(~causal, float("-inf")).softmax(-1)
            attended = torch.einsum("hij,jhd->ihd", weights, v)
            hidden = hidden + attended.flatten(1) @ self.out[layer].T
        return self._head(hidden)

    def _head(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = hidden @ self.head.T
        logits[:, POISON] += -1e4
        return logits


def sampling(**fields: Any) -> TokenSampling:
    """Greedy, without end, unless said otherwise."""
    defaults: dict[str, Any] = {
        "temperature": 0.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "seed": 0,
        "stop_token_ids": [],
        "min_tokens": 0,
        "max_tokens": 1000,
        "logprobs": None,
        "prompt_logprobs": None,
        "logit_bias": {},
        "allowed_token_ids": [],
        "bad_words": [],
    }
    return TokenSampling(**(defaults | fields))


@dataclass
class Rig:
    """A worker and the scheduler's side of it, by hand."""

    model: TinyModel
    kv_cache: KvCache
    states: RequestStates
    worker: Worker
    next_plan_id: int = 0
    next_block: int = 0
    epoch: int = 1
    outputs: list[StepOutput] = field(default_factory=list)
    generations: dict[int, int] = field(default_factory=dict)

    def blocks(self, num_tokens: int) -> list[int]:
        """Fresh block ids for this many tokens."""
        first = self.next_block
        self.next_block += -(-num_tokens // BLOCK_SIZE)
        assert self.next_block <= NUM_BLOCKS
        return list(range(first, self.next_block))

    def new(
        self,
        slot: int,
        token_ids: list[int],
        *,
        generation: int = 0,
        num_prompt: int | None = None,
        num_computed: int = 0,
        blocks: list[int] | None = None,
        **fields: Any,
    ) -> NewSequence:
        """A sequence with id 1000 + 10 * slot + generation and blocks for all that it may ever hold."""
        return NewSequence(
            sequence_id=1000 + 10 * slot + generation,
            slot=slot,
            generation=generation,
            token_ids=pack_ids(token_ids),
            num_prompt_tokens=len(token_ids) if num_prompt is None else num_prompt,
            num_computed_tokens=num_computed,
            block_ids=[pack_ids(self.blocks(MAX_MODEL_LEN) if blocks is None else blocks)],
            sampling=sampling(**fields),
        )

    def plan(
        self,
        rows: list[tuple[int, ...]],
        *,
        new: list[NewSequence] | None = None,
        released: list[int] | None = None,
        appends: list[tuple[int, int]] | None = None,
        repeat: int = 1,
        generations: dict[int, int] | None = None,
        fresh: bool = False,
    ) -> StepPlan:
        """Rows are (slot,) to decode or (slot, start, end) to prefill."""
        plan_id, self.next_plan_id = self.next_plan_id, self.next_plan_id + 1
        self.generations.update({sequence.slot: sequence.generation for sequence in new or []})
        known = self.generations | (generations or {})
        return StepPlan(
            epoch=self.epoch,
            plan_id=plan_id,
            repeat=repeat,
            slots=pack_ids(row[0] for row in rows),
            generations=pack_ids(known[row[0]] for row in rows),
            starts=pack_ids(row[1] if len(row) == 3 else -1 for row in rows),
            num_tokens=pack_ids(row[2] - row[1] if len(row) == 3 else 1 for row in rows),
            append_slots=pack_ids(slot for slot, _ in appends or []),
            append_groups=pack_ids(0 for _ in appends or []),
            append_blocks=pack_ids(block for _, block in appends or []),
            new_sequences=new or [],
            released_slots=pack_ids(released or []),
            fresh=fresh,
        )

    def run(self, *plans: StepPlan) -> list[StepOutput]:
        """Gives the plans to the worker at once and runs it dry; the new outputs."""
        for plan in plans:
            self.worker.on_message(plan, 0)
        return self.run_dry()

    def run_dry(self) -> list[StepOutput]:
        """Ticks until the worker wants to sleep; the new outputs."""
        for _ in range(10_000):
            if self.worker.tick(0) is None or self.worker.finished:
                break
        else:
            raise AssertionError("the worker never comes to rest")
        sent = self.worker.outgoing
        outputs = [message for receiver, message in sent if receiver == "scheduler"]
        to_edge = [message for receiver, message in sent if receiver == "detokenizer"]
        assert to_edge == [output for output in outputs if output.times is not None]
        assert all(isinstance(output, StepOutput) for output in outputs)
        self.worker.outgoing.clear()
        self.outputs += outputs  # type: ignore[arg-type]
        return outputs  # type: ignore[return-value]

    def step(self, rows: list[tuple[int, ...]], **fields: Any) -> list[StepOutput]:
        """Plans and runs."""
        return self.run(self.plan(rows, **fields))

    def tokens(self, sequence_id: int) -> list[int]:
        """All tokens that the worker answered for a sequence, checked to be without gap or repetition."""
        tokens: list[int] = []
        next_position: int | None = None
        for output in self.outputs:
            left = unpack_ids(output.token_ids)
            for owner, position, num_tokens in zip(
                unpack_int64(output.sequence_ids),
                unpack_ids(output.positions),
                unpack_ids(output.num_tokens),
                strict=True,
            ):
                own, left = left[:num_tokens], left[num_tokens:]
                if owner == sequence_id and own:
                    assert next_position in (None, position)
                    next_position = position + num_tokens
                    tokens += own
        return tokens


def make_rig(
    steps_in_flight: int = 1,
    fault_flags: tuple[str, ...] = (),
    late_graphs: LateGraphs | None = None,
) -> Rig:
    """A fresh worker; every KV block is poisoned, so that whatever is read too far shows."""
    cpu = torch.device("cpu")
    device = Device(cpu)
    model = TinyModel()
    kv_cache = KvCache(
        NUM_BLOCKS, NUM_LAYERS, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM, torch.float32, cpu
    )
    kv_cache.tensor.fill_(float("nan"))
    states = RequestStates(device, MAX_NUM_SEQS, MAX_MODEL_LEN)
    blocks = BlockTables(device, MAX_NUM_SEQS, MAX_MODEL_LEN, BLOCK_SIZE, NUM_BLOCKS)
    flags = [FaultFlag.parse(flag) for flag in fault_flags]
    executor = FaultyExecutor(model, kv_cache, flags)
    sampler = Sampler(VOCAB_SIZE, MAX_NUM_SEQS + 1, MAX_MODEL_LEN, cpu)
    graphs = GraphTable()
    eager = EagerInputs(device, states, blocks, kv_cache, graphs)
    captured = CapturedInputs(device, states, blocks)
    input_preparer = InputPreparer(device, states, blocks, graphs, eager, captured)
    output_processor = OutputProcessor(device, states, sampler, executor.compute_logits, VOCAB_SIZE)
    stages = Stages(device, states, input_preparer, executor, output_processor, None, kv_cache)
    plans = PlanQueue()
    steps = StepPipeline(
        1,
        device,
        states,
        input_preparer,
        executor,
        output_processor,
        FailedSteps(partial(self_test, stages)),
        on_failed=plans.await_fresh,
        late_graphs=late_graphs,
    )
    worker = Worker(plans, steps, output_processor, steps_in_flight, late_graphs)
    return Rig(model=model, kv_cache=kv_cache, states=states, worker=worker)


@pytest.fixture
def rig() -> Rig:
    """A fresh worker that collects each step at once."""
    return make_rig()


@pytest.fixture(name="make_rig")
def make_rig_fixture() -> Callable[..., Rig]:
    """For tests that need several workers."""
    return make_rig
