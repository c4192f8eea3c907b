"""The sampler on a CUDA device: the CPU's tokens, without a wait, and inside a graph."""

from typing import Any

import numpy as np
import pytest
import torch

from pillion.actors.gpu_worker.sampling.sampler import Sampled, Sampler, prompt_logprobs
from pillion.kernels.ban_tokens import ban_tokens
from pillion.kernels.ban_tokens.cases import CASES as BAN_CASES
from pillion.kernels.gumbel_noise.cases import CASES as NOISE_CASES
from pillion.kernels.gumbel_noise.reference import gumbel_noise, uniform_bits
from pillion.kernels.penalties import apply_penalties
from pillion.kernels.penalties.cases import CASES as PENALTY_CASES
from pillion.kernels.sample import sample
from pillion.kernels.sample.cases import CASES as SAMPLE_CASES
from pillion.kernels.sampling_threshold import sampling_threshold
from pillion.kernels.sampling_threshold.cases import CASES as THRESHOLD_CASES
from pillion.kernels.token_bitmask import apply_token_bitmask
from pillion.kernels.token_bitmask.cases import CASES as BITMASK_CASES
from pillion.kernels.token_logprobs import token_logprobs
from pillion.kernels.token_logprobs.cases import CASES as LOGPROB_CASES
from pillion.messages.codec import pack_ids
from pillion.messages.sampling import TokenSampling
from pillion.messages.steps import TokenMasks

pytestmark = [
    pytest.mark.gpu,
    # torch says that its watch for waits is a prototype.
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CPU = torch.device("cpu")
VOCAB_SIZE = 5003
NEUTRAL: dict[str, Any] = {
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
REQUESTS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 0.8, "seed": -7, "top_p": 0.9, "logprobs": 3},
    {"temperature": 1.2, "top_k": 40, "min_p": 0.01, "presence_penalty": 1.0},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "logprobs": 0},
    {"temperature": 1.0, "allowed_token_ids": list(range(0, VOCAB_SIZE, 9)), "top_p": 0.99},
    {"logit_bias": dict.fromkeys(range(0, 900, 3), 3.0), "bad_words": [[1], [3, 6, 9]]},
    {"temperature": 1.0, "min_tokens": 5, "stop_token_ids": [0, 17], "bad_words": [[2]]},
]


def device() -> torch.device:
    return torch.device("cuda", 0)


def make_sampler(where: torch.device) -> Sampler:
    sampler = Sampler(VOCAB_SIZE, len(REQUESTS) + 1, 64, where)
    for slot, fields in enumerate(REQUESTS):
        tokens = np.arange(10, 14, dtype=np.int32)
        sampler.add(slot, TokenSampling(**(NEUTRAL | fields)), tokens, 3)
    return sampler


def step(sampler: Sampler, where: torch.device, logits: torch.Tensor, number: int) -> Sampled:
    slots_np = np.arange(len(REQUESTS), dtype=np.int32)
    slots = torch.from_numpy(slots_np.astype(np.int64)).to(where)
    positions = torch.full((len(REQUESTS),), 4 + number, dtype=torch.int64, device=where)
    valid = torch.ones(len(REQUESTS), dtype=torch.bool, device=where)
    logits = logits.to(where)
    if where.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        sampled = sampler.sample(logits, slots, slots_np, positions)
        sampler.observe(slots, sampled.token_ids, valid)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sampled


def all_logits() -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(12, len(REQUESTS), VOCAB_SIZE, generator=generator) * 3


def test_gives_the_tokens_of_the_cpu_and_never_waits() -> None:
    on_cpu, on_cuda = make_sampler(CPU), make_sampler(device())
    for number, logits in enumerate(all_logits()):
        expected = step(on_cpu, CPU, logits.clone(), number)
        found = step(on_cuda, device(), logits, number)
        assert found.token_ids.tolist() == expected.token_ids.tolist()
        assert found.logprobs is not None
        assert expected.logprobs is not None
        torch.testing.assert_close(
            found.logprobs.logprobs.cpu(), expected.logprobs.logprobs, atol=1e-4, rtol=1e-4
        )
        assert torch.equal(found.logprobs.token_ids.cpu(), expected.logprobs.token_ids)
        assert torch.equal(found.logprobs.ranks.cpu(), expected.logprobs.ranks)


def masks_at(position: int, generator: np.random.Generator) -> tuple[TokenMasks, np.ndarray]:
    """A tenth of the vocabulary for each row, and the same as [rows, vocab] bool."""
    rows = range(len(REQUESTS))
    allowed = generator.random((len(rows), VOCAB_SIZE)) < 0.1
    allowed[:, position] = True
    bits = np.packbits(np.pad(allowed, ((0, 0), (0, -VOCAB_SIZE % 32))), axis=1, bitorder="little")
    message = TokenMasks(
        epoch=1,
        slots=pack_ids(rows),
        generations=pack_ids(0 for _ in rows),
        positions=pack_ids(position for _ in rows),
        masks=bits.tobytes(),
    )
    return message, allowed


def test_masked_rows_get_the_tokens_of_the_cpu_and_never_wait() -> None:
    samplers = make_sampler(CPU), make_sampler(device())
    for sampler in samplers:
        for slot, fields in enumerate(REQUESTS):
            settings = NEUTRAL | fields | {"needs_masks": True, "allowed_token_ids": []}
            tokens = np.arange(10, 14, dtype=np.int32)
            sampler.add(slot, TokenSampling(**settings), tokens, 3)
    generator = np.random.default_rng(4)
    for number, logits in enumerate(all_logits()):
        message, allowed = masks_at(4 + number, generator)
        for sampler in samplers:
            sampler.masks.take(message)
        expected = step(samplers[0], CPU, logits.clone(), number).token_ids.tolist()
        assert step(samplers[1], device(), logits, number).token_ids.tolist() == expected
        assert all(allowed[row, token] for row, token in enumerate(expected))


def test_prompt_logprobs_are_those_of_the_cpu() -> None:
    logits = torch.cat(list(all_logits()))
    token_ids = torch.arange(len(logits))
    expected = prompt_logprobs(logits, token_ids, 7)
    found = prompt_logprobs(logits.to(device()), token_ids.to(device()), 7)
    torch.testing.assert_close(found[1].cpu(), expected[1], atol=1e-4, rtol=1e-4)
    for number in (0, 2):
        assert torch.equal(found[number].cpu(), expected[number])


def test_runs_inside_a_graph() -> None:
    eager, captured = make_sampler(device()), make_sampler(device())
    # The rows that ask for log-probabilities are chosen on the host: a graph holds all of them or none.
    num_rows = len(REQUESTS)
    for sampler in (eager, captured):
        for slot, fields in enumerate(REQUESTS):
            tokens = np.arange(10, 14, dtype=np.int32)
            settings = NEUTRAL | fields | {"logprobs": 4}
            sampler.add(slot, TokenSampling(**settings), tokens, 3)
    slots_np = np.arange(num_rows, dtype=np.int32)
    slots = torch.arange(num_rows, device=device())
    logits = torch.zeros(num_rows, VOCAB_SIZE, device=device())
    positions = torch.full((num_rows,), 4, dtype=torch.int64, device=device())
    nobody = torch.zeros(num_rows, dtype=torch.bool, device=device())
    valid = nobody.clone()

    def run() -> Sampled:
        sampled = captured.sample(logits, slots, slots_np, positions)
        captured.observe(slots, sampled.token_ids, valid)
        return sampled

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sampled = run()
    valid.fill_(True)
    for number, values in enumerate(all_logits()):
        logits.copy_(values)
        positions.fill_(4 + number)
        graph.replay()
        expected = step(eager, device(), values, number)
        assert sampled.token_ids.tolist() == expected.token_ids.tolist()
        assert sampled.logprobs is not None
        assert expected.logprobs is not None
        assert torch.equal(sampled.logprobs.logprobs, expected.logprobs.logprobs)


@pytest.mark.parametrize("case", NOISE_CASES, ids=str)
def test_noise(case: Any) -> None:
    on_cpu, on_cuda = case.inputs(CPU), case.inputs(device())
    assert torch.equal(uniform_bits(*on_cuda).cpu(), uniform_bits(*on_cpu))
    torch.testing.assert_close(
        gumbel_noise(*on_cuda).cpu(), gumbel_noise(*on_cpu), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("case", THRESHOLD_CASES, ids=str)
def test_thresholds(case: Any) -> None:
    found = sampling_threshold(*case.inputs(device())).cpu()
    torch.testing.assert_close(found, sampling_threshold(*case.inputs(CPU)), atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("case", SAMPLE_CASES, ids=str)
def test_samples(case: Any) -> None:
    found = sample(**case.inputs(device()))
    expected = sample(**case.inputs(CPU))
    assert found[0].tolist() == expected[0].tolist()
    assert torch.equal(found[1].cpu(), expected[1])


@pytest.mark.parametrize("case", PENALTY_CASES, ids=str)
def test_penalties(case: Any) -> None:
    on_cpu, on_cuda = case.inputs(CPU), case.inputs(device())
    apply_penalties(*on_cpu)
    apply_penalties(*on_cuda)
    torch.testing.assert_close(on_cuda[0].cpu(), on_cpu[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("case", BITMASK_CASES, ids=str)
def test_bitmasks(case: Any) -> None:
    found, expected = case.inputs(device()), case.inputs(CPU)
    for inputs in (found, expected):
        apply_token_bitmask(inputs.logits, inputs.bitmask, inputs.rows, inputs.mask_rows)
    assert torch.equal(found.logits.cpu(), expected.logits)


@pytest.mark.parametrize("case", BAN_CASES, ids=str)
def test_bans(case: Any) -> None:
    on_cpu, on_cuda = case.inputs(CPU), case.inputs(device())
    expected, found = ban_tokens(*on_cpu), ban_tokens(*on_cuda)
    assert torch.equal(on_cuda[0].cpu(), on_cpu[0])
    for left, right in zip(found, expected, strict=True):
        assert torch.equal(left.cpu(), right)


@pytest.mark.parametrize("case", LOGPROB_CASES, ids=str)
def test_logprobs(case: Any) -> None:
    ids, logprobs, ranks = token_logprobs(*case.inputs(device()), case.num_top)
    _, expected, expected_ranks = token_logprobs(*case.inputs(CPU), case.num_top)
    assert ids.shape == logprobs.shape
    torch.testing.assert_close(logprobs.cpu(), expected, atol=1e-4, rtol=1e-5)
    assert torch.equal(ranks.cpu(), expected_ranks)
