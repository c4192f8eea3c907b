"""Greedy text of the real model on a CUDA device against float32 transformers (golden_answers.json).

PILLION_TEST_GGUF names the model's file where nothing can be fetched, or its parts in order, with ":" between.
"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pillion import LLM, RequestOutput, SamplingParams

GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "golden_answers.json").read_text()
)
PARTS = os.environ.get("PILLION_TEST_GGUF", "")
# Logits of the best two tokens that are further apart keep their order in bfloat16: over these answers its
# log-probabilities are off by 0.012 on average, by 0.23 at most.
CLEAR_MARGIN = 0.4

on_cuda = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(not PARTS, reason="needs the model: PILLION_TEST_GGUF names its file"),
]


def num_clear(golden: dict[str, Any]) -> int:
    """Tokens of an answer before the first that bfloat16 may choose otherwise."""
    unclear = (i for i, margin in enumerate(golden["margins"]) if margin < CLEAR_MARGIN)
    return next(unclear, len(golden["margins"]))


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's file, put together if it came in parts."""
    parts = [Path(part) for part in PARTS.split(":")]
    if len(parts) == 1:
        return parts[0]
    whole = tmp_path_factory.mktemp("model") / "SmolLM2-135M-Instruct.gguf"
    with whole.open("wb") as file:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, file)
    return whole


def start(gguf: Path, dtype: str) -> LLM:
    return LLM(
        str(gguf), dtype=dtype, device="cuda", max_num_batched_tokens=2048, kv_cache_bytes=1 << 30
    )


def answers(llm: LLM) -> list[list[int]]:
    prompts = [golden["prompt_token_ids"] for golden in GOLDEN]
    params = SamplingParams(temperature=0.0, max_tokens=48)
    return [
        list(output.outputs[0].token_ids)
        for output in llm.generate(prompts, params, use_tqdm=False)
    ]


@pytest.fixture(scope="class")
def llm(gguf: Path) -> Iterator[LLM]:
    with start(gguf, "bfloat16") as engine:
        yield engine


class TestBfloat16:
    pytestmark = on_cuda

    def test_the_text_is_that_of_float32_as_far_as_choices_are_clear(self, llm: LLM) -> None:
        found = answers(llm)
        for golden, tokens in zip(GOLDEN, found, strict=True):
            length = num_clear(golden)
            assert tokens[:length] == golden["token_ids"][:length]
        whole = sum(
            tokens == golden["token_ids"] for golden, tokens in zip(GOLDEN, found, strict=True)
        )
        print(f"{whole} of {len(GOLDEN)} answers are the same to their ends")
        assert whole >= 10

    def test_every_clear_choice_is_made_behind_the_same_text(self, llm: LLM) -> None:
        """The answers, read as prompts: each token is judged behind those that float32 has chosen."""
        prompts = [golden["prompt_token_ids"] + golden["token_ids"] for golden in GOLDEN]
        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1)
        errors: list[float] = []
        for golden, output in zip(
            GOLDEN, llm.generate(prompts, params, use_tqdm=False), strict=True
        ):
            errors += self._compare(golden, output)
        mean = sum(errors) / len(errors)
        print(f"log-probabilities are off by {mean:.3f} on average, {max(errors):.3f} at most")
        assert mean < 0.05

    def _compare(self, golden: dict[str, Any], output: RequestOutput) -> list[float]:
        """How far off the log-probabilities of an answer are."""
        assert output.prompt_logprobs is not None
        found = output.prompt_logprobs[len(golden["prompt_token_ids"]) :]
        errors = []
        for token, margin, expected, entries in zip(
            golden["token_ids"], golden["margins"], golden["logprobs"], found, strict=True
        ):
            assert entries is not None
            errors.append(abs(entries[token].logprob - expected))
            assert entries[token].rank == 1 or margin < CLEAR_MARGIN, (golden["token_ids"], token)
        return errors


class TestFloat32:
    pytestmark = on_cuda

    def test_the_text_is_that_of_transformers_to_the_last_token(self, gguf: Path) -> None:
        with start(gguf, "float32") as llm:
            assert answers(llm) == [golden["token_ids"] for golden in GOLDEN]


def test_most_choices_are_clear() -> None:
    margins = [margin for golden in GOLDEN for margin in golden["margins"]]
    clear = [margin >= CLEAR_MARGIN for margin in margins]
    assert sum(clear) > 0.8 * len(clear)
    assert sum(map(num_clear, GOLDEN)) > 90
