"""SamplingParams: names and defaults that users know, and a clear refusal of everything that makes no sense."""

import inspect
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillion.messages.sampling import (
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_N,
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    SamplingParams,
    TokenSampling,
)


def test_names_and_defaults_are_those_that_vllm_users_know() -> None:
    signature = inspect.signature(SamplingParams)
    defaults = {name: parameter.default for name, parameter in signature.parameters.items()}
    known = {
        "n": 1,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "seed": None,
        "stop": None,
        "stop_token_ids": None,
        "bad_words": None,
        "include_stop_str_in_output": False,
        "ignore_eos": False,
        "max_tokens": 16,
        "min_tokens": 0,
        "logprobs": None,
        "prompt_logprobs": None,
        "detokenize": True,
        "skip_special_tokens": True,
        "spaces_between_special_tokens": True,
        "truncate_prompt_tokens": None,
        "logit_bias": None,
        "allowed_token_ids": None,
    }
    assert {name: defaults[name] for name in known} == known


@pytest.mark.parametrize("name", ["best_of", "heat", "guided_decoding"])
def test_an_unknown_name_is_a_type_error_that_names_it(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        SamplingParams(**{name: 1})
    with pytest.raises(msgspec.ValidationError, match=name):
        msgspec.json.decode(f'{{"{name}": 1}}', type=SamplingParams)


ACCEPTED: list[dict[str, Any]] = [
    {"temperature": 1},
    {"temperature": 0},
    {"temperature": 1e-300},
    {"temperature": 100},
    {"top_k": -1},
    {"top_k": 2**31 - 1},
    {"top_p": 1},
    {"top_p": 1e-300},
    {"min_p": 1},
    {"n": MAX_N},
    {"presence_penalty": -2, "frequency_penalty": 2},
    {"repetition_penalty": 0.01},
    {"repetition_penalty": 100},
    {"seed": 0},
    {"seed": -(2**63)},
    {"seed": 2**63 - 1},
    {"stop": "x"},
    {"stop": []},
    {"stop": ["x"] * MAX_STOP_STRINGS},
    {"stop": "x" * MAX_STOP_STRING_CHARS},
    {"stop_token_ids": list(range(MAX_STOP_TOKEN_IDS))},
    {"bad_words": ["x"] * MAX_BAD_WORDS},
    {"max_tokens": None},
    {"max_tokens": 3, "min_tokens": 3},
    {"max_tokens": None, "min_tokens": 1000},
    {"logprobs": 0},
    {"logprobs": MAX_LOGPROBS, "prompt_logprobs": MAX_LOGPROBS},
    {"logit_bias": {}},
    {"logit_bias": dict.fromkeys(range(MAX_LOGIT_BIAS), -100)},
    {"allowed_token_ids": list(range(2000))},
    {"detokenize": False},
]


@pytest.mark.parametrize("fields", ACCEPTED, ids=lambda fields: f"{fields}"[:60])
def test_accepts_and_survives_the_wire(fields: dict[str, Any]) -> None:
    params = SamplingParams(**fields)
    for name, value in fields.items():
        assert getattr(params, name) == value
    encoded = msgspec.msgpack.encode(params)
    assert msgspec.msgpack.decode(encoded, type=SamplingParams) == params
    assert msgspec.json.decode(msgspec.json.encode(params), type=SamplingParams) == params


# What is refused, and what the message must say.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"n": 0}, "n must be between 1 and 128"),
    ({"n": 10**9}, "n must be between 1 and 128"),
    ({"n": True}, "n must be an integer"),
    ({"n": 1.5}, "n must be an integer"),
    ({"temperature": 999999}, "temperature must be between 0 and 100"),
    ({"temperature": -1e-9}, "temperature must be between"),
    ({"temperature": math.nan}, "temperature must be between"),
    ({"temperature": math.inf}, "temperature must be between"),
    ({"temperature": 10**400}, "temperature must be between"),
    ({"temperature": "1"}, "temperature must be a number"),
    ({"temperature": None}, "temperature must be a number"),
    ({"temperature": True}, "temperature must be a number"),
    ({"temperature": 1j}, "temperature must be a number"),
    ({"top_p": -1}, "top_p must be between 0 and 1"),
    ({"top_p": 0}, "top_p must be above 0"),
    ({"top_p": 1.0001}, "top_p must be between"),
    ({"top_k": -2}, "top_k must be between -1"),
    ({"top_k": 2**31}, "top_k must be between"),
    ({"top_k": 1.0}, "top_k must be an integer"),
    ({"min_p": -0.1}, "min_p must be between"),
    ({"min_p": math.nan}, "min_p must be between"),
    ({"repetition_penalty": 0}, "repetition_penalty must be between 0.01 and 100"),
    ({"repetition_penalty": math.inf}, "repetition_penalty must be between"),
    ({"presence_penalty": 2.1}, "presence_penalty must be between -2 and 2"),
    ({"frequency_penalty": -3}, "frequency_penalty must be between -2 and 2"),
    ({"seed": 10**20}, "seed must be between"),
    ({"seed": "100"}, "seed must be an integer"),
    ({"seed": 1.0}, "seed must be an integer"),
    ({"seed": 10**5000}, "seed must be between .* got an integer of 16610 bits"),
    ({"max_tokens": 0}, "max_tokens must be between 1"),
    ({"max_tokens": -5}, "max_tokens must be between"),
    ({"min_tokens": -1}, "min_tokens must be between 0"),
    ({"min_tokens": 17}, "min_tokens must be at most max_tokens .16., got 17"),
    ({"logprobs": -1}, "logprobs=-1 .* not supported"),
    ({"prompt_logprobs": -1}, "prompt_logprobs=-1 .* not supported"),
    ({"logprobs": MAX_LOGPROBS + 1}, "logprobs must be between 0 and 64"),
    ({"logprobs": True}, "logprobs must be an integer"),
    ({"prompt_logprobs": -2}, "prompt_logprobs must be between"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens must be between 1"),
    ({"stop": 5}, "stop must be a string or a list"),
    ({"stop": ""}, "stop takes non-empty strings"),
    ({"stop": ["a", ""]}, "stop takes non-empty strings"),
    ({"stop": ["a", 5]}, "stop takes non-empty strings, got 5"),
    ({"stop": ["a"] * (MAX_STOP_STRINGS + 1)}, "stop takes at most 64 strings, got 65"),
    ({"stop": "x" * (MAX_STOP_STRING_CHARS + 1)}, "at most 1024 characters, got 1025"),
    ({"stop": "a", "detokenize": False}, "stop needs detokenize=True"),
    ({"bad_words": "damn"}, "bad_words must be a list of strings"),
    ({"bad_words": [""]}, "bad_words takes non-empty strings"),
    ({"bad_words": ["a"] * (MAX_BAD_WORDS + 1)}, "bad_words takes at most 256"),
    ({"stop_token_ids": [-1]}, "stop_token_ids takes token ids from 0 to 2147483647, got -1"),
    (
        {"stop_token_ids": [2**31]},
        "stop_token_ids takes token ids from 0 to 2147483647, got 2147483648",
    ),
    ({"stop_token_ids": 7}, "stop_token_ids must be a list"),
    ({"stop_token_ids": [0] * (MAX_STOP_TOKEN_IDS + 1)}, "stop_token_ids takes at most 128"),
    ({"allowed_token_ids": []}, "allowed_token_ids must name at least one"),
    (
        {"allowed_token_ids": ["1"]},
        "allowed_token_ids takes token ids from 0 to 2147483647, got '1'",
    ),
    ({"logit_bias": [1, 2]}, "logit_bias must map token ids to numbers"),
    ({"logit_bias": {"abc": 1}}, "logit_bias takes token ids from 0 to 2147483647, got 'abc'"),
    ({"logit_bias": {-1: 1}}, "logit_bias takes token ids from 0 to 2147483647, got -1"),
    ({"logit_bias": {5: 101}}, r"logit_bias\[5\] must be between -100 and 100, got 101"),
    ({"logit_bias": {5: math.nan}}, r"logit_bias\[5\] must be between"),
    ({"logit_bias": {5: "1"}}, r"logit_bias\[5\] must be a number"),
    ({"logit_bias": dict.fromkeys(range(1025), 0)}, "logit_bias takes at most 1024"),
    ({"ignore_eos": 1}, "ignore_eos must be true or false, got 1"),
    ({"skip_special_tokens": "no"}, "skip_special_tokens must be true or false"),
]


@pytest.mark.parametrize(
    ("fields", "message"),
    REFUSED,
    ids=lambda value: f"{value:.60}" if isinstance(value, str) else "",
)
def test_refuses_by_name_with_the_limit(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        SamplingParams(**fields)
    assert len(str(caught.value)) < 250


def test_what_was_changed_afterwards_is_verified_again() -> None:
    params = SamplingParams()
    params.temperature = -1
    with pytest.raises(ValueError, match="temperature"):
        params.verify()


def test_the_wire_is_verified_too() -> None:
    with pytest.raises(msgspec.ValidationError, match="top_p must be between"):
        msgspec.json.decode(b'{"top_p": 7}', type=SamplingParams)
    with pytest.raises(msgspec.ValidationError, match="seed"):
        msgspec.json.decode(b'{"seed": "100"}', type=SamplingParams)
    decoded = msgspec.json.decode(b'{"logit_bias": {"191222": -100}}', type=SamplingParams)
    assert decoded.logit_bias == {191222: -100.0}


def test_numbers_of_numpy_become_numbers_of_python() -> None:
    params = SamplingParams(
        temperature=np.float32(0.5),
        top_p=np.float64(0.25),
        top_k=np.int64(3),  # type: ignore[arg-type]
        seed=np.uint64(7),  # type: ignore[arg-type]
        stop_token_ids=[np.int32(4)],  # type: ignore[list-item]
        logit_bias={np.int64(9): np.float16(1.5)},  # type: ignore[dict-item]
    )
    plain = SamplingParams(
        temperature=0.5, top_p=0.25, top_k=3, seed=7, stop_token_ids=[4], logit_bias={9: 1.5}
    )
    assert params == plain
    assert type(params.temperature) is type(params.top_p) is float
    assert type(params.top_k) is type(params.seed) is int
    assert msgspec.msgpack.encode(params) == msgspec.msgpack.encode(plain)


@pytest.mark.parametrize("value", [np.array([0.5]), np.array(0.5), np.bool_(True), "0.5", [0.5]])
def test_arrays_and_other_things_are_no_numbers(value: Any) -> None:
    with pytest.raises(ValueError, match="temperature must be a number"):
        SamplingParams(temperature=value)


def test_tuples_are_lists_and_a_seed_of_minus_one_is_none() -> None:
    params = SamplingParams(stop=("a", "b"), stop_token_ids=(1,), bad_words=("x",), seed=-1)  # type: ignore[arg-type]
    assert (params.stop, params.stop_token_ids, params.bad_words) == (["a", "b"], [1], ["x"])
    assert params.seed is None


def test_stop_strings_are_always_a_list() -> None:
    assert SamplingParams().stop_strings == []
    assert SamplingParams(stop="a").stop_strings == ["a"]
    assert SamplingParams(stop=["a", "b"]).stop_strings == ["a", "b"]


def test_a_clone_shares_nothing() -> None:
    params = SamplingParams(stop=["a"], logit_bias={1: 2.0}, allowed_token_ids=[1])
    clone = params.clone()
    assert clone == params
    clone.stop.append("b")  # type: ignore[union-attr]
    clone.logit_bias[2] = 1.0  # type: ignore[index]
    clone.temperature = 0.3
    assert (params.stop, params.logit_bias, params.temperature) == (["a"], {1: 2.0}, 1.0)


def test_repr_says_what_was_asked_for() -> None:
    text = repr(SamplingParams(temperature=0.5, stop="END"))
    assert text.startswith("SamplingParams(")
    assert "temperature=0.5" in text
    assert "stop='END'" in text


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["temperature", "top_p", "min_p", "repetition_penalty", "top_k", "seed", "n"]),
    st.one_of(
        st.floats(allow_nan=True, allow_infinity=True),
        st.integers(),
        st.text(max_size=5),
        st.none(),
        st.booleans(),
        st.lists(st.integers(), max_size=2),
    ),
)
def test_any_value_is_taken_or_refused_by_name(name: str, value: Any) -> None:
    params, failure = None, ""
    try:
        params = SamplingParams(**{name: value})
    except ValueError as error:
        failure = str(error)
    if params is None:
        assert name in failure
    else:
        encoded = msgspec.msgpack.encode(params)
        assert msgspec.msgpack.decode(encoded, type=SamplingParams) == params


@pytest.mark.parametrize(
    ("fields", "used"),
    [
        ({}, False),
        ({"presence_penalty": 0.1}, True),
        ({"frequency_penalty": -0.1}, True),
        ({"repetition_penalty": 1.1}, True),
    ],
)
def test_token_sampling_knows_whether_it_has_penalties(
    fields: dict[str, float], used: bool
) -> None:
    neutral = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}
    sampling = TokenSampling(
        **(neutral | fields),
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        seed=1,
        stop_token_ids=[],
        min_tokens=0,
        max_tokens=1,
        logprobs=None,
        prompt_logprobs=None,
        logit_bias={},
        allowed_token_ids=[],
        bad_words=[],
    )
    assert sampling.uses_penalties is used
