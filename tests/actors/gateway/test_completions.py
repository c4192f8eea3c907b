"""POST /v1/completions: forms of prompts, echo, shapes."""

from typing import Any

import pytest
from gateway_rig import GatewayRig

from pillion.messages.codec import pack_ids


async def test_a_whole_answer_has_openais_shape(rig: GatewayRig) -> None:
    reply = (await rig.complete("two words")).json
    assert reply.pop("id").startswith("cmpl-")
    assert reply.pop("created") > 1_700_000_000
    assert reply == {
        "object": "text_completion",
        "model": "fake",
        "choices": [
            {
                "index": 0,
                "text": "two words ",
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 2},
        },
    }


async def test_sixteen_tokens_unless_told_otherwise(rig: GatewayRig) -> None:
    await rig.complete("word")
    await rig.complete("word", max_tokens=5, add_special_tokens=False)
    params = [request.sampling_params for request in rig.edge.requests]
    assert [one.max_tokens for one in params if one is not None] == [16, 5]
    assert [request.add_special_tokens for request in rig.edge.requests] == [True, False]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("a", ["a "]),
        (["a", "b c"], ["a ", "b c "]),
        ([2, 3], ["xx xxx "]),
        ([[2], [3, 1]], ["xx ", "xxx x "]),
        (["a", [3]], ["a ", "xxx "]),
    ],
)
async def test_prompts_in_every_form(
    rig: GatewayRig, prompt: Any, texts: list[str], stream: bool
) -> None:
    answer = await rig.complete(prompt, n=2, stream=stream)
    found: dict[int, str] = {}
    for part in answer.events[:-1] if stream else [answer.json]:
        for choice in part["choices"]:
            found[choice["index"]] = found.get(choice["index"], "") + choice["text"]
    # Two samples of the first prompt, then two of the second.
    assert found == dict(enumerate(text for text in texts for _ in range(2)))


async def test_token_ids_travel_packed(rig: GatewayRig) -> None:
    await rig.complete([2, 3])
    assert rig.edge.requests[0].prompt_token_ids == pack_ids([2, 3])


@pytest.mark.parametrize(
    "prompt",
    [
        [],
        [[]],
        [-1],
        [2**31],
        [2**63],
        [[1], []],
        [[1], [-1]],
        [1, "a"],
        ["a", 1],
        [True],
        {"a": 1},
        5,
        [None],
        [[1, "a"]],
        ["a"] * 1025,
    ],
)
async def test_prompts_that_make_no_sense(rig: GatewayRig, prompt: Any) -> None:
    answer = await rig.complete(prompt)
    assert answer.status == 400
    assert answer.error["param"] == "prompt"
    assert answer.error["message"].startswith("prompt")
    assert "prompt_token_ids" not in answer.error["message"]
    assert rig.edge.requests == []


async def test_many_prompts_do_not_fill_the_daemon(rig: GatewayRig) -> None:
    answer = await rig.complete([f"w{index} x" for index in range(300)])
    assert [choice["text"] for choice in answer.json["choices"]] == [
        f"w{index} x " for index in range(300)
    ]
    assert answer.json["usage"]["completion_tokens"] == 600
    assert rig.edge.most_in_flight < 150


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_puts_the_prompt_in_front(rig: GatewayRig, stream: bool) -> None:
    for prompt, text in (("a b", "a ba b "), ([2, 1], "xx xxx x ")):
        answer = await rig.complete(prompt, echo=True, stream=stream)
        parts = answer.events[:-1] if stream else [answer.json]
        assert "".join(part["choices"][0]["text"] for part in parts) == text


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_alone(rig: GatewayRig, stream: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if stream else {}
    answer = await rig.complete("a b", echo=True, max_tokens=0, stream=stream, **options)
    parts = answer.events[:-1] if stream else [answer.json]
    texts = [choice["text"] for part in parts for choice in part["choices"]]
    assert "".join(texts) == "a b"
    assert parts[-1]["usage"]["completion_tokens"] == 0
    params = rig.edge.requests[0].sampling_params
    assert params is not None
    assert params.max_tokens == 1


async def test_no_tokens_and_no_echo_is_refused(rig: GatewayRig) -> None:
    answer = await rig.complete("a", max_tokens=0)
    assert (answer.status, answer.error["param"]) == (400, "max_tokens")


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_are_columns_with_offsets(rig: GatewayRig, stream: bool) -> None:
    answer = await rig.complete("ab c", logprobs=1, stream=stream)
    parts = answer.events[:-1] if stream else [answer.json]
    columns = [part["choices"][0]["logprobs"] for part in parts]
    joined = {name: [each for column in columns for each in column[name]] for name in columns[0]}
    assert joined == {
        "text_offset": [0, 2],
        "token_logprobs": [-1.5, -1.5],
        "tokens": ["ab", "c"],
        "top_logprobs": [{"zero": -0.5, "ab": -1.5}, {"zero": -0.5, "c": -1.5}],
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_of_one_prompt_ends_all(rig: GatewayRig, stream: bool) -> None:
    answer = await rig.complete(["NEVER", "REFUSE"], stream=stream)
    if stream:
        assert answer.events[-2]["error"]["param"] == "prompt"
    else:
        assert (answer.status, answer.error["param"]) == (400, "prompt")
    await rig.edge_sees("the other prompt's cancel", lambda: len(rig.edge.cancelled) == 1)


async def test_suffix_is_refused(rig: GatewayRig) -> None:
    assert (await rig.complete("a", suffix="")).status == 200
    assert (await rig.complete("a", suffix="b")).error["param"] == "suffix"


async def test_best_of_the_same_number_changes_nothing(rig: GatewayRig) -> None:
    assert (await rig.complete("a", n=2, best_of=2)).status == 200
    answer = await rig.complete("a", n=2, best_of=3)
    assert (answer.status, answer.error["param"]) == (400, "best_of")
    assert "logprobs" in answer.error["message"], "it says what to do instead"
