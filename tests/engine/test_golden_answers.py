"""The whole engine on the real model against answers of implementations that are not ours.

golden_answers.json holds greedy answers in float32: ids by llama.cpp's tokenizer, tokens and log-probabilities
by transformers (make_golden_answers.py).
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pillion import LLM, RequestOutput, SamplingParams

pytestmark = pytest.mark.model

GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "golden_answers.json").read_text()
)
LONGEST = max(range(len(GOLDEN)), key=lambda index: len(GOLDEN[index]["prompt_token_ids"]))
SHORT = [g for g in GOLDEN if len(g["prompt_token_ids"]) < 100]
NUM_TOKENS = 48
LOGPROB_TOLERANCE = 1e-3


def greedy(**fields: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, **fields)


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in outputs]


def expected(golden: list[dict[str, Any]]) -> list[list[int]]:
    return [g["token_ids"] for g in golden]


def prompts(golden: list[dict[str, Any]]) -> list[list[int]]:
    return [g["prompt_token_ids"] for g in golden]


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> Iterator[LLM]:
    with LLM(str(smollm2_path), dtype="float32", cpu_threads=1, kv_cache_bytes=512 << 20) as engine:
        yield engine


def test_there_are_prompts_of_many_kinds() -> None:
    assert len(GOLDEN) >= 20
    assert len(GOLDEN[LONGEST]["prompt_token_ids"]) >= 1400


def test_text_becomes_the_ids_of_llama_cpp(llm: LLM) -> None:
    for golden in GOLDEN:
        if "chat" in golden:
            ids = llm.client.tokenize(messages=[{"role": "user", "content": golden["chat"]}])
        else:
            ids = llm.client.tokenize(golden["prompt"])
        assert ids == golden["prompt_token_ids"], golden.get("chat") or golden["prompt"]


def test_batched_answers_and_logprobs(llm: LLM) -> None:
    outputs = llm.generate(prompts(GOLDEN), greedy(logprobs=5), use_tqdm=False)
    assert tokens(outputs) == expected(GOLDEN)
    for output, golden in zip(outputs, GOLDEN, strict=True):
        logprobs = output.outputs[0].logprobs
        assert logprobs is not None
        got = [
            step[token].logprob for step, token in zip(logprobs, golden["token_ids"], strict=True)
        ]
        assert got == pytest.approx(golden["logprobs"], abs=LOGPROB_TOLERANCE)
        top = {token: entry.logprob for token, entry in logprobs[0].items()}
        for token, logprob in golden["first_top"]:
            assert top[token] == pytest.approx(logprob, abs=LOGPROB_TOLERANCE)


def test_alone(llm: LLM) -> None:
    for golden in SHORT[::3]:
        (output,) = llm.generate([golden["prompt_token_ids"]], greedy(), use_tqdm=False)
        assert list(output.outputs[0].token_ids) == golden["token_ids"]


def test_with_prefix_cache_hits(llm: LLM) -> None:
    """The long prompt was computed before: its blocks are found, and the answer is the same."""
    golden = [GOLDEN[LONGEST]]
    llm.generate(prompts(golden), greedy(), use_tqdm=False)
    outputs = llm.generate(prompts(golden), greedy(), use_tqdm=False)
    assert tokens(outputs) == expected(golden)
    length = len(golden[0]["prompt_token_ids"])
    assert outputs[0].num_cached_tokens is not None
    assert length - 16 <= outputs[0].num_cached_tokens < length


def test_samples_of_one_request_agree(llm: LLM) -> None:
    golden = SHORT[0]
    (output,) = llm.generate([golden["prompt_token_ids"]], greedy(n=3), use_tqdm=False)
    assert [list(sample.token_ids) for sample in output.outputs] == [golden["token_ids"]] * 3


def test_prompt_logprobs_are_those_of_the_answer(llm: LLM) -> None:
    """The answer's log-probabilities, read again as those of a prompt."""
    golden = SHORT[1]
    prompt = golden["prompt_token_ids"] + golden["token_ids"]
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=2)
    (output,) = llm.generate([prompt], params, use_tqdm=False)
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == len(prompt)
    assert output.prompt_logprobs[0] is None
    start = len(golden["prompt_token_ids"])
    got = []
    for position in range(start, len(prompt)):
        entries = output.prompt_logprobs[position]
        assert entries is not None
        got.append(entries[prompt[position]].logprob)
        assert entries[prompt[position]].rank == 1
    assert got == pytest.approx(golden["logprobs"], abs=LOGPROB_TOLERANCE)


def test_seeds_do_not_depend_on_company(llm: LLM) -> None:
    """Seeded samples are the same alone and among others, in any order."""
    params = [
        SamplingParams(temperature=0.9, top_p=0.95, seed=number, max_tokens=16)
        for number in range(len(SHORT))
    ]
    together = tokens(llm.generate(prompts(SHORT), params, use_tqdm=False))
    order = list(range(len(SHORT)))
    random.Random(0).shuffle(order)
    shuffled = llm.generate(
        [SHORT[i]["prompt_token_ids"] for i in order], [params[i] for i in order], use_tqdm=False
    )
    assert tokens(shuffled) == [together[i] for i in order]
    alone = llm.generate([SHORT[4]["prompt_token_ids"]], params[4], use_tqdm=False)
    assert tokens(alone) == [together[4]]


def test_chunks_of_16_tokens_and_single_grants(smollm2_path: Path) -> None:
    with LLM(
        str(smollm2_path),
        dtype="float32",
        cpu_threads=1,
        max_num_seqs=16,
        max_num_batched_tokens=16,
        max_repeat=1,
        kv_cache_bytes=256 << 20,
    ) as engine:
        some = [g for g in GOLDEN if len(g["prompt_token_ids"]) < 500][::2]
        assert tokens(engine.generate(prompts(some), greedy(), use_tqdm=False)) == expected(some)


def test_forced_preemption(smollm2_path: Path) -> None:
    """A pool too small for all that run: some are thrown out and computed again."""
    with LLM(
        str(smollm2_path),
        dtype="float32",
        cpu_threads=1,
        max_model_len=256,
        num_kv_blocks=30,
        enable_prefix_caching=False,
    ) as engine:
        assert tokens(engine.generate(prompts(SHORT), greedy(), use_tqdm=False)) == expected(SHORT)
        actors = {actor.name: actor for actor in engine.client.status().actors}
        assert actors["scheduler"].counters["preemptions"] > 0
