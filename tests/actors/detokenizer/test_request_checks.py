"""Refusals that need no decoder: each names the field and the limit, and nothing reaches the scheduler."""

from typing import Any

import pytest
from edge_rig import VOCAB_SIZE, EdgeRig

from pillion.actors.detokenizer.text_model import TextModel
from pillion.messages.requests import NewRequest
from pillion.messages.sampling import SamplingParams

CHAT = [{"role": "user", "content": "hi"}]
PARSED = {"parse_output": True}


def tool(name: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({}, "prompt", "exactly one of prompt, messages, prompt_token_ids"),
    ({"prompt": "x", "messages": CHAT}, "messages", "prompt and messages"),
    ({"prompt": ""}, "prompt", "empty"),
    ({"prompt_token_ids": []}, "prompt_token_ids", "at least one"),
    ({"prompt_token_ids": b""}, "prompt_token_ids", "at least one"),
    ({"prompt_token_ids": b"abc"}, "prompt_token_ids", "3 bytes"),
    ({"prompt_token_ids": [1, -1]}, "prompt_token_ids", "got -1 at index 1"),
    ({"prompt_token_ids": [VOCAB_SIZE]}, "prompt_token_ids", f"0 to {VOCAB_SIZE - 1}"),
    ({"prompt_token_ids": [2**63]}, "prompt_token_ids", "9223372036854775808"),
    ({"prompt_token_ids": b"\xff\xff\xff\xff"}, "prompt_token_ids", "got -1"),
    ({"prompt": "x", "priority": 2**40}, "priority", "2147483647"),
    ({"prompt": "x", "deadline_ms": 0}, "deadline_ms", "between 1 and"),
    ({"prompt": "x", "cache_salt": "s" * 2000}, "cache_salt", "1024"),
    ({"prompt": "x", "client_request_id": ""}, "client_request_id", "1 to 256"),
    ({"prompt": "x", "client_request_id": "i" * 300}, "client_request_id", "got 300"),
    ({"prompt": "x", "tools": [{}]}, "tools", "needs messages"),
    ({"prompt": "x", "continue_final_message": True}, "continue_final_message", "needs messages"),
    ({"messages": []}, "messages", "at least one"),
    ({"messages": [{}]}, "messages", "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages", "no content"),
    ({"messages": [{"role": "user", "content": 7}]}, "messages", "messages[0].content"),
    ({"messages": CHAT, **PARSED, "tools": [{"type": "function"}]}, "tools", "tools[0]"),
    ({"messages": CHAT, **PARSED, "tools": [tool(7)]}, "tools", "1 to 256 characters, got 7"),
    ({"messages": CHAT, **PARSED, "tools": [tool("f", parameters=1)]}, "tools", "JSON schema"),
    ({"messages": CHAT, **PARSED, "tools": [tool("f")] * 2}, "tools", "two functions of one name"),
    ({"messages": CHAT, **PARSED, "tool_choice": "required"}, "tool_choice", "needs tools"),
    ({"messages": CHAT, **PARSED, "tool_choice": "any"}, "tool_choice", "'any'"),
    ({"messages": CHAT, **PARSED, "tool_choice": {"type": "function"}}, "tool_choice", "function"),
    (
        {
            "messages": CHAT,
            **PARSED,
            "tools": [tool("f")],
            "tool_choice": {"type": "function", "function": {"name": "g"}},
        },
        "tool_choice",
        "names 'g'",
    ),
    ({"messages": CHAT, "tool_choice": "none"}, "tool_choice", "needs parse_output"),
    ({"prompt": "x", **PARSED}, "parse_output", "needs messages"),
    (
        {"messages": CHAT, **PARSED, "sampling_params": {"detokenize": False}},
        "parse_output",
        "detokenize",
    ),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages", "tool_calls[0]"),
    ({"messages": [{"role": "assistant", "tool_calls": 7}]}, "messages", "must be a list"),
    ({"messages": CHAT, "chat_template": "{{ 1 }}"}, "chat_template", "allow_request_templates"),
    (
        {"messages": CHAT, "chat_template_kwargs": {"chat_template": "{{ 1 }}"}},
        "chat_template_kwargs",
        "chat_template",
    ),
    (
        {"messages": CHAT, "chat_template_kwargs": {"messages": []}},
        "chat_template_kwargs",
        "messages",
    ),
    ({"prompt": "y" * 65}, "prompt", "the model takes 64"),
    ({"prompt": "y" * 100_000}, "prompt", "100000 bytes"),
]
PARAMS: list[tuple[dict[str, Any], str, str]] = [
    ({"stop_token_ids": [VOCAB_SIZE]}, "stop_token_ids", str(VOCAB_SIZE - 1)),
    ({"allowed_token_ids": [1, VOCAB_SIZE]}, "allowed_token_ids", "index 1"),
    ({"logit_bias": {VOCAB_SIZE: 1.0}}, "logit_bias", str(VOCAB_SIZE - 1)),
    ({"bad_words": [" "]}, "bad_words", "has 0"),
    ({"bad_words": ["q" * 100]}, "bad_words", "1 to 32 tokens"),
    ({"max_tokens": 1000, "min_tokens": 64}, "min_tokens", "room for 63"),
]


@pytest.mark.parametrize(("fields", "param", "said"), REFUSED)
def test_refused_requests(rig: EdgeRig, fields: dict[str, Any], param: str, said: str) -> None:
    failure = rig.refused(**fields)
    assert failure.param == param
    assert said in failure.message
    rig.generate()


@pytest.mark.parametrize(("params", "param", "said"), PARAMS)
def test_refused_parameters(rig: EdgeRig, params: dict[str, Any], param: str, said: str) -> None:
    failure = rig.refused(prompt="x", sampling_params=params)
    assert (failure.code, failure.param) == ("invalid_request", param)
    assert said in failure.message
    rig.generate()


def test_the_last_id_of_the_vocabulary_is_fine(rig: EdgeRig) -> None:
    last = VOCAB_SIZE - 1
    params = SamplingParams(
        logit_bias={last: -99.0}, allowed_token_ids=[last], stop_token_ids=[last]
    )
    admitted = rig.generate(prompt_token_ids=[last], sampling_params=params)
    assert admitted.sampling.allowed_token_ids == [last]
    assert last in admitted.sampling.stop_token_ids


def test_bad_words_become_tokens_with_and_without_a_space(rig: EdgeRig) -> None:
    params = SamplingParams(bad_words=["the", " the", "zq"])
    admitted = rig.generate(sampling_params=params)
    tokenizer = rig.model.tokenizer
    assert admitted.sampling.bad_words == [
        tokenizer.encode(word, False) for word in ("the", " the", "zq", " zq")
    ]


def test_a_long_text_to_be_truncated_is_tokenized(rig: EdgeRig) -> None:
    params = SamplingParams(truncate_prompt_tokens=5)
    admitted = rig.generate(prompt="y" * 100_000, sampling_params=params)
    assert len(admitted.prompt_token_ids) == 20


def test_a_chat_is_rendered_and_gets_no_further_special_tokens(rig: EdgeRig) -> None:
    admitted = rig.generate(messages=CHAT)
    assert len(admitted.prompt_token_ids) // 4 > 10


def test_a_request_template_where_it_is_allowed(text_model: TextModel) -> None:
    rig = EdgeRig(text_model, allow_request_templates=True)
    rig.connect()
    template = "{% for message in messages %}[{{ message.content }}]{% endfor %}"
    admitted = rig.generate(messages=CHAT, chat_template=template)
    assert admitted.prompt_token_ids == rig.generate("p", prompt="[hi]").prompt_token_ids
    failure = rig.refused(
        messages=CHAT,
        chat_template="{% for x in range(999) %}{% for y in range(999) %}"
        "{% for z in range(999) %}{% endfor %}{% endfor %}{% endfor %}",
    )
    assert (failure.code, failure.param) == ("invalid_request", "chat_template")
    assert not rig.take_ring(NewRequest)
