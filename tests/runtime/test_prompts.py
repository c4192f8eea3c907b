"""The forms of prompts, and what is none."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillion.messages.codec import pack_ids, unpack_ids
from pillion.runtime import prompts as runtime_prompts
from pillion.runtime.errors import InvalidRequest
from pillion.runtime.prompts import Prompt, collect_prompts, pack_token_ids, parse_prompt

HELLO = [{"role": "user", "content": "hello"}]


def test_plain_ids_are_told_without_abstract_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("Iterable", "Mapping", "Sequence", "Integral"):
        monkeypatch.setattr(runtime_prompts, name, None)
    assert collect_prompts([1, 2]) == ([Prompt(token_ids=pack_ids([1, 2]))], False)


@pytest.mark.parametrize(
    ("prompts", "expected", "many"),
    [
        ("a", [Prompt(text="a")], False),
        ("", [Prompt(text="")], False),
        (["a", "b"], [Prompt(text="a"), Prompt(text="b")], True),
        (("a",), [Prompt(text="a")], True),
        ([], [], True),
        ([1, 2], [Prompt(token_ids=pack_ids([1, 2]))], False),
        ([[1], [2]], [Prompt(token_ids=pack_ids([1])), Prompt(token_ids=pack_ids([2]))], True),
        ([[]], [Prompt(token_ids=b"")], True),
        (["a", [1]], [Prompt(text="a"), Prompt(token_ids=pack_ids([1]))], True),
        (np.array([1, 2]), [Prompt(token_ids=pack_ids([1, 2]))], False),
        (np.array([[1, 2]]), [Prompt(token_ids=pack_ids([1, 2]))], True),
        ([np.array([1])], [Prompt(token_ids=pack_ids([1]))], True),
        ({"prompt": "a"}, [Prompt(text="a")], False),
        ({"prompt": "a", "cache_salt": "s"}, [Prompt(text="a", cache_salt="s")], False),
        ({"prompt": "a", "prompt_token_ids": [1]}, [Prompt(token_ids=pack_ids([1]))], False),
        ([{"messages": HELLO}], [Prompt(messages=HELLO)], True),
    ],
)
def test_forms(prompts: Any, expected: list[Prompt], many: bool) -> None:
    assert collect_prompts(prompts) == (expected, many)


def test_keywords() -> None:
    assert collect_prompts(None, [1]) == ([Prompt(token_ids=pack_ids([1]))], False)
    assert collect_prompts(None, [[1], [2]])[1]
    assert collect_prompts(None, None, HELLO) == ([Prompt(messages=HELLO)], False)
    assert collect_prompts(None, None, [HELLO, HELLO]) == ([Prompt(messages=HELLO)] * 2, True)
    for given_values in ((None, None, None), ("a", [1], None), ("a", None, HELLO)):
        with pytest.raises(InvalidRequest, match="exactly one of"):
            collect_prompts(*given_values)


@pytest.mark.parametrize(
    ("prompts", "message", "param"),
    [
        (3, "got int", "prompt"),
        (b"a", "got bytes", "prompt"),
        ([-1], "from 0 to 2147483647, .*got -1", "prompt_token_ids"),
        ([2**31], "got 2147483648", "prompt_token_ids"),
        ([2**63], "got 9223372036854775808", "prompt_token_ids"),
        ([1, True], "got True", "prompt_token_ids"),
        ([1, 2.5], r"got 2\.5", "prompt_token_ids"),
        ([1, "a"], "got 'a'", "prompt_token_ids"),
        (["a", None], "prompt 1: .*NoneType", "prompt"),
        (["a", [1, -1]], "prompt 1: .*got -1", "prompt_token_ids"),
        ({}, "exactly one of", "prompt"),
        ({"prompt": None}, "exactly one of", "prompt"),
        ({"prompt": 1}, "must be a string", "prompt"),
        ({"prompt_text": "a"}, "not 'prompt_text'", "prompt_text"),
        ({"prompt": "a", "messages": HELLO}, "exactly one of", "prompt"),
        ({"prompt": "a", "cache_salt": 1}, "cache_salt must be", "cache_salt"),
        ({"prompt_token_ids": "abc"}, "list of integers", "prompt_token_ids"),
        ({"messages": []}, "messages is empty", "messages"),
        ({"messages": "hi"}, "must be a list of messages", "messages"),
        ({"messages": ["hi"]}, r"messages\[0\] must be a dict", "messages"),
        ({"messages": [{"content": "no role"}]}, r"messages\[0\]", "messages"),
    ],
)
def test_what_is_no_prompt(prompts: Any, message: str, param: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        collect_prompts(prompts)
    assert caught.value.param == param


@given(st.lists(st.integers(0, 2**31 - 1)))
def test_token_ids_round_trip(ids: list[int]) -> None:
    assert unpack_ids(pack_token_ids(ids)) == ids
    assert parse_prompt(ids).token_ids == pack_ids(ids)


@settings(max_examples=50)
@given(
    st.lists(st.one_of(st.integers(), st.booleans(), st.floats(), st.text(max_size=2)), max_size=4)
)
def test_nothing_but_token_ids_is_packed(values: list[Any]) -> None:
    fine = all(type(value) is int and 0 <= value < 2**31 for value in values)
    if fine:
        assert unpack_ids(pack_token_ids(values)) == values
    else:
        with pytest.raises(InvalidRequest):
            pack_token_ids(values)
