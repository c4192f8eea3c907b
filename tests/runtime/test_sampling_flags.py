"""The command line's sampling flags follow SamplingParams field by field."""

import argparse
from typing import Any

import pytest

from pillion.messages.sampling import SamplingParams
from pillion.messages.structured_outputs import StructuredOutputsParams
from pillion.runtime.errors import InvalidRequest
from pillion.runtime.sampling_flags import (
    HELP,
    add_sampling_flags,
    make_sampling_params,
    parse_setting,
    sampling_params_of,
)

CASES: list[tuple[list[str], str, Any]] = [
    (["--n", "2"], "n", 2),
    (["--presence-penalty", "0.5"], "presence_penalty", 0.5),
    (["--frequency-penalty", "0.5"], "frequency_penalty", 0.5),
    (["--repetition-penalty", "1.5"], "repetition_penalty", 1.5),
    (["--temperature", "0"], "temperature", 0.0),
    (["--top-p", "0.5"], "top_p", 0.5),
    (["--top-k", "5"], "top_k", 5),
    (["--min-p", "0.1"], "min_p", 0.1),
    (["--seed", "7"], "seed", 7),
    (["--stop", "a", "--stop", "b"], "stop", ["a", "b"]),
    (["--stop-token-ids", "1,2"], "stop_token_ids", [1, 2]),
    (["--bad-words", "a"], "bad_words", ["a"]),
    (["--include-stop-str-in-output"], "include_stop_str_in_output", True),
    (["--ignore-eos"], "ignore_eos", True),
    (["--max-tokens", "9"], "max_tokens", 9),
    (["--max-tokens", "0"], "max_tokens", None),
    (["--min-tokens", "1"], "min_tokens", 1),
    (["--logprobs", "3"], "logprobs", 3),
    (["--prompt-logprobs", "3"], "prompt_logprobs", 3),
    (["--no-skip-special-tokens"], "skip_special_tokens", False),
    (["--no-spaces-between-special-tokens"], "spaces_between_special_tokens", False),
    (["--truncate-prompt-tokens", "4"], "truncate_prompt_tokens", 4),
    (["--logit-bias", '{"4": -1.5}'], "logit_bias", {4: -1.5}),
    (["--allowed-token-ids", "4"], "allowed_token_ids", [4]),
    (
        ["--structured-outputs", '{"regex": "a"}'],
        "structured_outputs",
        StructuredOutputsParams(regex="a"),
    ),
]


def parse(*arguments: str, **defaults: Any) -> SamplingParams:
    parser = argparse.ArgumentParser()
    add_sampling_flags(parser, **defaults)
    return sampling_params_of(parser.parse_args(arguments))


@pytest.mark.parametrize(("arguments", "name", "value"), CASES)
def test_flags(arguments: list[str], name: str, value: Any) -> None:
    params = parse(*arguments)
    assert getattr(params, name) == value
    setattr(params, name, getattr(SamplingParams(), name))
    assert params == SamplingParams()


def test_every_field_is_covered() -> None:
    fields = set(SamplingParams.__struct_fields__) - {"detokenize"}
    assert set(HELP) == fields
    assert {name for _, name, _ in CASES} == fields


def test_defaults() -> None:
    assert parse() == SamplingParams()
    assert parse(max_tokens=256).max_tokens == 256
    assert parse("--max-tokens", "3", max_tokens=256).max_tokens == 3
    assert parse(max_tokens=0).max_tokens is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temperature", "-1"], "temperature must be between"),
        (["--top-p", "nan"], "top_p"),
        (["--n", "100000"], "n must be between"),
        (["--stop", ""], "stop takes non-empty strings"),
        (["--logit-bias", '{"a": 1}'], "logit_bias"),
    ],
)
def test_values_that_make_no_sense(arguments: list[str], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        parse(*arguments)


@pytest.mark.parametrize(
    "arguments", [["--logit-bias", "5"], ["--stop-token-ids", "a"], ["--temperature", "hot"]]
)
def test_values_of_the_wrong_kind(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(*arguments)
    assert arguments[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("temperature", "0.5", 0.5),
        ("max_tokens", "null", None),
        ("stop", "END", "END"),
        ("stop", "5", "5"),
        ("ignore_eos", "true", True),
        ("stop_token_ids", "[1, 2]", [1, 2]),
    ],
)
def test_settings_that_a_person_types(name: str, text: str, value: Any) -> None:
    params = make_sampling_params({name: parse_setting(name, text)})
    assert getattr(params, name) == value


def test_settings_that_are_none() -> None:
    with pytest.raises(InvalidRequest, match=r"no setting 'heat'; there are .*temperature"):
        parse_setting("heat", "1")
    with pytest.raises(InvalidRequest, match="no setting 'detokenize'"):
        parse_setting("detokenize", "false")
    with pytest.raises(InvalidRequest, match="no setting 'n'"):
        parse_setting("n", "2")
    with pytest.raises(InvalidRequest, match="temperature cannot be 'hot'"):
        parse_setting("temperature", "hot")
