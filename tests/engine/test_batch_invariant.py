"""The batch-invariant mode: an answer and its log-probabilities, to the last bit, whatever is cached or runs beside."""

import random
from collections.abc import Iterator

import pytest

from pillion import LLM, SamplingParams

WORDS = [
    "the",
    "moon",
    "sea",
    "river",
    "list",
    "count",
    "why",
    "print",
    "return",
    "7",
    "12",
    "(",
    ")",
    "{",
    "}",
    "and",
    "of",
    "a",
    "Why",
    "How",
]
NUM_PROMPTS = 30
GREEDY = SamplingParams(temperature=0.0, max_tokens=4, logprobs=3)
SEEDED = SamplingParams(temperature=0.9, top_p=0.95, seed=11, max_tokens=6, logprobs=3)

# tokens, and the log-probabilities at each of them
Answer = tuple[list[int], list[dict[int, float]]]

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("smollm2", batch_invariant=True, max_num_seqs=64, kv_cache_bytes=1 << 28) as engine:
        yield engine


def answers(llm: LLM, prompts: list[str], params: SamplingParams) -> list[Answer]:
    found = []
    for output in llm.generate(prompts, params, use_tqdm=False):
        sample = output.outputs[0]
        assert sample.logprobs is not None
        logprobs = [
            {token: entry.logprob for token, entry in position.items()}
            for position in sample.logprobs
        ]
        found.append((list(sample.token_ids), logprobs))
    return found


def random_prompts(seed: int, count: int, shortest: int, longest: int) -> list[str]:
    rng = random.Random(seed)
    return [
        " ".join(rng.choice(WORDS) for _ in range(rng.randint(shortest, longest)))
        for _ in range(count)
    ]


def test_cold_and_cached_answers_are_equal(llm: LLM) -> None:
    prompts = random_prompts(1, NUM_PROMPTS, 18, 30)
    cold = answers(llm, prompts, GREEDY)
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert all((output.num_cached_tokens or 0) >= 16 for output in outputs)
    assert answers(llm, prompts, GREEDY) == cold


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_an_answer_does_not_change_with_its_batch(llm: LLM, params: SamplingParams) -> None:
    (needle,) = random_prompts(2, 1, 12, 12)
    alone = answers(llm, [needle], params)[0]
    for size in (2, 7, 64):
        others = random_prompts(size, size - 1, 1, 6)
        place = size // 2
        batch = [*others[:place], needle, *others[place:]]
        assert answers(llm, batch, params)[place] == alone
