"""Structured output with real processes and the small real model: answers parse, neighbours stay as they were."""

import asyncio
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pillion import LLM, AsyncClient, Client, SamplingParams, StructuredOutputsParams
from pillion.runtime.errors import InvalidRequest

pytestmark = pytest.mark.model

SMALL: dict[str, Any] = {
    "max_model_len": 512,
    "max_num_seqs": 8,
    "kv_cache_bytes": 64_000_000,
    "dtype": "float32",
    "cpu_threads": 1,
}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "likes": {"type": "array", "items": {"enum": ["tea", "coffee"]}, "maxItems": 2},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}
CHAT = [{"role": "user", "content": "Describe a person."}]
FREE = SamplingParams(temperature=0, max_tokens=12)


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


@pytest.fixture
def name(llm: LLM, runtime_root: Path) -> str:
    """The daemon's, for clients."""
    (directory,) = runtime_root.iterdir()
    return directory.name


def constrained(**fields: Any) -> SamplingParams:
    structure = fields.pop("structure", {"json": SCHEMA})
    defaults: dict[str, Any] = {"temperature": 1.0, "seed": 1, "max_tokens": 100}
    return SamplingParams(structured_outputs=structure, **(defaults | fields))


def answers(llm: LLM, params: Any, n: int = 1) -> list[Any]:
    outputs = llm.chat([CHAT] * n, params, use_tqdm=False)
    return [sample for output in outputs for sample in output.outputs]


def check_person(text: str) -> None:
    person = json.loads(text)
    assert list(person) == ["name", "age", "likes"]
    assert 0 <= person["age"] <= 150
    assert set(person["likes"]) <= {"tea", "coffee"}


def test_every_sample_of_a_schema_parses(llm: LLM) -> None:
    for sample in answers(llm, constrained(n=4)):
        assert sample.finish_reason == "stop"
        check_person(sample.text)


def test_all_kinds_of_structure(llm: LLM) -> None:
    kinds = {
        r"(\d{2}\.){3}\d{2}": {"regex": r"(\d{2}\.){3}\d{2}"},
        "tea|coffee": {"choice": ["tea", "coffee"]},
        r"<[a-z]+>": {"grammar": 'root ::= "<" [a-z]+ ">"'},
        r"a+b": {"grammar": 'start: "a"+ "b"'},
    }
    params = [constrained(structure=structure) for structure in kinds.values()]
    for pattern, sample in zip(kinds, answers(llm, params, n=len(kinds)), strict=True):
        assert sample.finish_reason in ("stop", "length")
        assert sample.finish_reason == "length" or re.fullmatch(pattern, sample.text)
    (sample,) = answers(llm, constrained(structure={"json_object": True}, max_tokens=60))
    assert sample.text.startswith("{")
    assert sample.finish_reason == "length" or isinstance(json.loads(sample.text), dict)


def test_frequencies_are_those_of_what_is_allowed(llm: LLM) -> None:
    """Of two first tokens, each comes as often as the free distribution has it, among the two."""
    words = [" red", " blue"]
    tokenizer = llm.get_tokenizer()
    assert all(len(tokenizer.encode(word)) == 1 for word in words)
    prompt = "Her favourite colour is"
    (free,) = llm.generate(
        prompt, SamplingParams(temperature=0, max_tokens=1, logprobs=64), use_tqdm=False
    )
    (top,) = free.outputs[0].logprobs
    by_text = {entry.decoded_token: entry.logprob for entry in top.values()}
    odds = [2.718281828 ** by_text[word] for word in words]
    n = 120
    (output,) = llm.generate(
        prompt, constrained(structure={"choice": words}, n=n, logprobs=0), use_tqdm=False
    )
    texts = [sample.text for sample in output.outputs]
    assert set(texts) <= set(words)
    expected = odds[0] / sum(odds)
    spread = (expected * (1 - expected) / n) ** 0.5
    assert abs(texts.count(words[0]) / n - expected) < 4 * spread + 1e-9


def test_stops_lengths_and_log_probabilities_go_with_it(llm: LLM) -> None:
    structure = {"regex": "[a-z ]+"}
    (stopped,) = answers(llm, constrained(structure=structure, stop=["e"]))
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", "e")
    (cut,) = answers(llm, constrained(structure=structure, max_tokens=5, ignore_eos=True))
    assert (cut.finish_reason, len(cut.token_ids)) == ("length", 5)
    (told,) = answers(llm, constrained(structure={"regex": "[0-9]{4}"}, logprobs=2))
    assert len(told.logprobs) == len(told.token_ids)
    (early,) = answers(llm, constrained(structure={"choice": ["a"]}, min_tokens=20))
    assert (early.text, early.finish_reason) == ("a", "stop")


def test_rows_without_a_grammar_say_what_they_say_alone(llm: LLM) -> None:
    prompts = ["The capital of France is", "Water boils at", "One, two, three,"]
    alone = [out.outputs[0].text for out in llm.generate(prompts, FREE, use_tqdm=False)]
    mixed = []
    params: list[SamplingParams] = []
    for prompt in prompts:
        mixed += [prompt, "A person:"]
        params += [FREE, constrained()]
    outputs = llm.generate(mixed, params, use_tqdm=False)
    assert [out.outputs[0].text for out in outputs[::2]] == alone
    for output in outputs[1::2]:
        check_person(output.outputs[0].text)


@pytest.mark.parametrize(
    "structure",
    [{"regex": "["}, {"regex": "a?" * 500_000}, {"json": {"type": 7}}, {"json": {"$ref": "#"}}],
    ids=["regex", "long", "type", "self"],
)
def test_bad_structures_are_refused_and_hurt_nobody(llm: LLM, structure: Any) -> None:
    with pytest.raises(InvalidRequest, match="structured_outputs"):
        answers(llm, constrained(structure=structure))
    (sample,) = answers(llm, constrained(structure={"choice": ["fine"]}))
    assert sample.text == "fine"


def test_a_grammar_that_outgrows_its_limits_is_refused_and_hurts_nobody(name: str) -> None:
    endless = constrained(structure={"grammar": 'root ::= "a" root'})
    with Client(name) as client:
        person = client.chat(CHAT, constrained(), stream=True)
        texts = [next(person).outputs[0].text]
        with pytest.raises(InvalidRequest, match="Write fewer alternatives") as caught:
            client.generate("a", endless)
        assert caught.value.param == "structured_outputs"
        texts += [part.outputs[0].text for part in person]
    check_person("".join(texts))


def test_clients_stream_it(name: str) -> None:
    with Client(name) as client:
        texts = [part.outputs[0].text for part in client.chat(CHAT, constrained(), stream=True)]
    check_person("".join(texts))

    async def ask() -> str:
        async with AsyncClient(name) as client:
            params = constrained(structure=StructuredOutputsParams(json=SCHEMA))
            output = await client.chat(CHAT, params)
            return str(output.outputs[0].text)

    check_person(asyncio.run(ask()))


def grammar_process(runtime_root: Path) -> psutil.Process:
    (directory,) = runtime_root.iterdir()
    for process in psutil.process_iter(["cmdline", "ppid"]):
        command = process.info["cmdline"] or []
        if "pillion.actors.detokenizer.grammars.process" in command:
            parent = psutil.Process(process.info["ppid"]).cmdline()
            if any(str(directory) in argument for argument in parent):
                return process
    raise AssertionError("there is no grammar process")


def test_answers_survive_their_grammar_process(llm: LLM, name: str, runtime_root: Path) -> None:
    with Client(name) as client:
        texts = []
        for part in client.chat(CHAT, constrained(), stream=True):
            texts.append(part.outputs[0].text)
            if len(texts) == 3:
                os.kill(grammar_process(runtime_root).pid, signal.SIGKILL)
    check_person("".join(texts))
