"""The real worker around a tiny model, and what it answers to one request with nothing beside it."""

from dataclasses import replace

import torch
from ring_engine import EngineSizes

from pillion.actors.gpu_worker.device import Device
from pillion.actors.gpu_worker.kv_cache import KvCache
from pillion.actors.gpu_worker.limits import WorkerLimits
from pillion.actors.gpu_worker.model_executor import Model, ModelExecutor, ModelOutput
from pillion.actors.gpu_worker.models.loader import LoadedModel, num_weights
from pillion.actors.gpu_worker.stages import Stages
from pillion.actors.gpu_worker.step_inputs import StepInputs
from pillion.messages.codec import pack_ids, unpack_ids
from pillion.messages.sampling import TokenSampling
from pillion.messages.steps import NewSequence, StepOutput, StepPlan

# Batches round differently than single rows: about 1e-6 of a logit in float32. Where so little decides, either
# answer is right, and so is one that this much more noise brings about.
NOISE = 1e-4
NUM_NOISY_RUNS = 60

# produced tokens, finish code
Answer = tuple[list[int], int]


def make_stages(
    loaded: LoadedModel, device: Device, sizes: EngineSizes, *, with_graphs: bool
) -> Stages:
    """The worker's stages; every KV block is poisoned, so that whatever is read too far shows."""
    config = loaded.config
    kv_cache = KvCache(
        sizes.num_blocks,
        config.num_layers,
        config.num_kv_heads,
        sizes.block_size,
        config.head_dim,
        loaded.dtype,
        device.device,
    )
    limits = WorkerLimits(
        sizes.max_num_seqs, sizes.max_num_batched_tokens, sizes.max_model_len, sizes.num_blocks
    )
    weights = num_weights(config) if with_graphs else None
    stages = Stages.build(
        device, loaded.model, config.vocab_size, kv_cache, limits, graphs_for_weights=weights
    )
    if stages.capturer is not None:
        stages.capturer.capture_all()
    kv_cache.tensor.fill_(float("nan"))
    return stages


class _NoisyExecutor(ModelExecutor):
    """Moves every logit a little."""

    def __init__(self, model: Model, kv_cache: KvCache) -> None:
        super().__init__(model, kv_cache)
        self.noise = 0.0

    def execute(self, inputs: StepInputs, logits: torch.Tensor | None = None) -> ModelOutput:
        output = super().execute(inputs, logits)
        if self.noise and output.logits is not None:
            output.logits.add_(torch.randn_like(output.logits), alpha=self.noise)
        return output


class LoneWorker:
    """One request at a time, one step after the other, no graphs: stands where the fake edge has its fake model."""

    def __init__(self, loaded: LoadedModel, device: Device, sizes: EngineSizes) -> None:
        self.vocab_size, self.max_model_len = loaded.config.vocab_size, sizes.max_model_len
        self._num_blocks = -(-sizes.max_model_len // sizes.block_size)
        alone = replace(
            sizes,
            max_num_seqs=1,
            num_blocks=self._num_blocks,
            max_num_batched_tokens=sizes.max_model_len,
        )
        stages = make_stages(loaded, device, alone, with_graphs=False)
        self._executor = _NoisyExecutor(loaded.model, stages.kv_cache)
        self._worker = replace(stages, executor=self._executor).worker(1, steps_in_flight=1)
        self._plan_id = 0
        self._answers: dict[bytes, Answer] = {}

    def alone(self, prompt: list[int], sampling: TokenSampling) -> Answer:
        """The produced tokens and the finish code."""
        key = pack_ids(prompt) + repr(sampling).encode()
        if key not in self._answers:
            self._answers[key] = self._run(prompt, sampling)
        tokens, finish = self._answers[key]
        return list(tokens), finish

    def as_well(self, prompt: list[int], sampling: TokenSampling, said: list[int]) -> Answer | None:
        """An answer that begins with `said` and differs from `alone` by no more than noise; None: there is none."""
        self._executor.noise = NOISE
        try:
            for _ in range(NUM_NOISY_RUNS):
                tokens, finish = self._run(prompt, sampling)
                if tokens[: len(said)] == said:
                    return tokens, finish
        finally:
            self._executor.noise = 0.0
        return None

    def _run(self, prompt: list[int], sampling: TokenSampling) -> Answer:
        new = NewSequence(
            sequence_id=1,
            slot=0,
            generation=self._plan_id,
            token_ids=pack_ids(prompt),
            num_prompt_tokens=len(prompt),
            num_computed_tokens=0,
            block_ids=[pack_ids(range(self._num_blocks))],
            sampling=sampling,
        )
        generation = self._plan_id
        outputs = self._step([0], len(prompt), generation, new=[new])
        outputs += self._step([-1], 1, generation, repeat=self.max_model_len)
        tokens = [token for output in outputs for token in unpack_ids(output.token_ids)]
        finish = [code for output in outputs for code in output.finish]
        self._step([], 0, generation, released=[0])
        return tokens, finish[-1]

    def _step(
        self,
        starts: list[int],
        num_tokens: int,
        generation: int,
        *,
        repeat: int = 1,
        new: list[NewSequence] | None = None,
        released: list[int] | None = None,
    ) -> list[StepOutput]:
        plan_id, self._plan_id = self._plan_id, self._plan_id + 1
        plan = StepPlan(
            epoch=1,
            plan_id=plan_id,
            repeat=repeat,
            slots=pack_ids([0] * len(starts)),
            generations=pack_ids([generation] * len(starts)),
            starts=pack_ids(starts),
            num_tokens=pack_ids([num_tokens] * len(starts)),
            new_sequences=new or [],
            released_slots=pack_ids(released or []),
        )
        self._worker.on_message(plan, 0)
        while self._worker.tick(0) is not None:
            pass
        sent = self._worker.outgoing
        outputs = [output for receiver, output in sent if receiver == "scheduler"]
        sent.clear()
        return outputs  # type: ignore[return-value]
