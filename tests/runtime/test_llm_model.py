"""`LLM` and the command line with a real daemon and the small real model."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from pillion import LLM, SamplingParams
from pillion.runtime.errors import InvalidRequest
from pillion.runtime.paths import RunDir, daemon_pid
from pillion.runtime.process import child_environment

pytestmark = pytest.mark.model

SMALL: dict[str, Any] = {
    "max_model_len": 256,
    "max_num_seqs": 4,
    "kv_cache_bytes": 64_000_000,
    "dtype": "float32",
    "cpu_threads": 1,  # more would wait for each other where tests run side by side
}
GREEDY = SamplingParams(temperature=0, max_tokens=4)


@pytest.fixture(scope="module")
def runtime_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("r")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PILLION_RUNTIME_DIR", str(root))
        yield root


@pytest.fixture(scope="module")
def llm(runtime_root: Path, smollm2_path: Path) -> Iterator[LLM]:
    with LLM(str(smollm2_path), **SMALL) as llm:
        yield llm
    assert list(runtime_root.iterdir()) == []


def test_answers_in_order(llm: LLM) -> None:
    prompts = ["The capital of France is", "Water boils at 100 degrees"] * 5
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    texts = [output.outputs[0].text for output in outputs]
    assert texts[0].startswith(" Paris.")
    assert texts == texts[:2] * 5
    assert all(output.finished for output in outputs)
    assert outputs[0].prompt_token_ids == llm.get_tokenizer().encode(prompts[0])


def test_token_ids_give_the_text_that_their_text_gives(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("The capital of France is")
    (by_ids,) = llm.generate([ids], GREEDY, use_tqdm=False)
    (by_text,) = llm.generate("The capital of France is", GREEDY, use_tqdm=False)
    assert by_ids.outputs[0].token_ids == by_text.outputs[0].token_ids
    assert llm.get_tokenizer().decode(by_ids.outputs[0].token_ids) == by_ids.outputs[0].text


def test_a_chat_is_its_rendered_prompt(llm: LLM) -> None:
    messages = [{"role": "user", "content": "Say hi."}]
    rendered = llm.get_tokenizer().apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    assert rendered.endswith("<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\n")
    (chat,) = llm.chat(messages, GREEDY, use_tqdm=False)
    (plain,) = llm.generate(rendered, GREEDY, use_tqdm=False)
    assert chat.prompt_token_ids == plain.prompt_token_ids
    assert chat.outputs[0].token_ids == plain.outputs[0].token_ids
    (own,) = llm.chat(
        messages, GREEDY, use_tqdm=False, chat_template="{{ messages[0]['content'] }}"
    )
    assert own.prompt_token_ids == llm.get_tokenizer().encode("Say hi.")


def test_logprobs(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=3, logprobs=2, prompt_logprobs=1)
    (output,) = llm.generate("The capital of France is", params, use_tqdm=False)
    (sample,) = output.outputs
    assert sample.logprobs is not None
    assert [next(iter(entry)) for entry in sample.logprobs] == sample.token_ids
    assert all(
        entry[token].rank == 1
        for entry, token in zip(sample.logprobs, sample.token_ids, strict=True)
    )
    assert output.prompt_logprobs is not None
    assert output.prompt_token_ids is not None
    assert output.prompt_logprobs[0] is None
    for entry, token in zip(output.prompt_logprobs[1:], output.prompt_token_ids[1:], strict=True):
        assert entry is not None
        assert token in entry


def test_a_bad_prompt_among_good_ones(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match=r"prompt 1: .*49152"):
        llm.generate([[1], [49152], [2]], use_tqdm=False)
    with pytest.raises(InvalidRequest, match=r"prompt 0: .*max_model_len"):
        llm.generate(["word " * 300, "fine"], use_tqdm=False)
    (output,) = llm.generate("The capital of France is", GREEDY, use_tqdm=False)
    assert output.outputs[0].text.startswith(" Paris.")


def test_leaving_a_stream_frees_its_place(llm: LLM) -> None:
    endless = SamplingParams(max_tokens=200, ignore_eos=True)
    for _ in range(SMALL["max_num_seqs"] + 1):
        with llm.client.generate("Once", endless, stream=True) as stream:
            next(stream)
    (output,) = llm.generate("The capital of France is", GREEDY, use_tqdm=False)
    assert output.outputs[0].text.startswith(" Paris.")


KILLED = """
import sys
from pillion import LLM, SamplingParams
llm = LLM(sys.argv[1], max_model_len=256, kv_cache_bytes=64_000_000, cpu_threads=1)
print(llm.config.name, flush=True)
llm.generate("Once", SamplingParams(max_tokens=200, ignore_eos=True))
"""


def test_nothing_is_left_of_a_killed_process(
    runtime_root: Path, smollm2_path: Path, llm: LLM
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(smollm2_path)],
        env=child_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdout is not None
    with child.stdout:
        name = child.stdout.readline().strip()
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    directory = RunDir(runtime_root / name)
    wait_until("the run directory is gone", 5.0, lambda: not directory.root.exists())
    assert daemon_pid(directory) is None
