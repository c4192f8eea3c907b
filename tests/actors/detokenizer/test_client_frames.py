"""Malformed frames: an answer that names what is wrong, and a connection that goes on."""

import random
from typing import Any

import msgspec
import pytest
from edge_rig import EdgeRig
from hypothesis import given, settings
from hypothesis import strategies as st

from pillion.actors.detokenizer.client_frames import MalformedFrame, decode_frame
from pillion.actors.detokenizer.text_model import TextModel
from pillion.messages.requests import NewRequest
from pillion.messages.sampling import SamplingParams
from pillion.messages.text import GenerateRequest, RequestFailed

WRONG: list[tuple[dict[str, Any], str | None, str]] = [
    ({"prompt": 5}, "prompt", "prompt must be a string, got 5"),
    ({"prompt": "x", "sampling_params": {"n": 0}}, "n", "between 1 and 128"),
    ({"prompt": "x", "sampling_params": {"n": "1"}}, "n", "n must be an integer, got '1'"),
    ({"prompt": "x", "sampling_params": {"warmth": 1}}, "sampling_params", "no field 'warmth'"),
    ({"prompt": "x", "sampling_params": {"seed": 10**19}}, "seed", "seed"),
    ({"prompt": "x", "sampling_params": {"seed": "100"}}, "seed", "an integer, got '100'"),
    ({"prompt": "x", "sampling_params": {"temperature": 999999}}, "temperature", "100"),
    ({"prompt": "x", "sampling_params": {"top_p": -1}}, "top_p", "between 0 and 1"),
    ({"prompt": "x", "sampling_params": {"repetition_penalty": 0}}, "repetition_penalty", "0.01"),
    ({"prompt": "x", "sampling_params": {"temperature": float("nan")}}, "temperature", "nan"),
    (
        {"prompt": "x", "sampling_params": {"logit_bias": {"abc": 1}}},
        "logit_bias",
        "a key of logit_bias must be an integer",
    ),
    ({"prompt": "x", "sampling_params": {"stop_token_ids": [1] * 1000}}, "stop_token_ids", "128"),
    ({"prompt": "x", "sampling_params": {"allowed_token_ids": []}}, "allowed_token_ids", "empty"),
    (
        {"prompt_token_ids": [[]]},
        "prompt_token_ids",
        "prompt_token_ids[0] must be an integer, got a list",
    ),
    ({"prompt": "x", "priority": "high"}, "priority", "an integer, got 'high'"),
    ({"messages": {"role": "user"}}, "messages", "a list, got an object"),
    ({"prompt": "x", "stream": "yes"}, "stream", "true or false, got 'yes'"),
]


@pytest.mark.parametrize(("fields", "param", "said"), WRONG)
def test_a_wrong_field_is_named(
    rig: EdgeRig, fields: dict[str, Any], param: str | None, said: str
) -> None:
    failure = rig.refused(**fields)
    assert (failure.client_request_id, failure.code) == ("bad", "invalid_request")
    assert failure.param is not None
    assert failure.param.startswith(str(param))
    assert said in failure.message
    rig.generate()


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"\x00",
        b"not msgpack at all",
        msgspec.msgpack.encode([1, 2, 3]),
        msgspec.msgpack.encode({"type": "Nonsense", "client_request_id": "n"}),
        msgspec.msgpack.encode({"client_request_id": "n"}),
        msgspec.msgpack.encode(GenerateRequest(client_request_id="n", prompt="x"))[:-1],
        b"\x91" * 100_000,
        b"\x81\xa4type" + b"\x91" * 2000 + b"\xc0",
    ],
)
def test_noise_is_answered_and_hurts_nobody(rig: EdgeRig, frame: bytes) -> None:
    rig.send(1, frame)
    (failure,) = rig.take()
    assert isinstance(failure, RequestFailed)
    assert failure.code == "invalid_request"
    assert rig.hung_up == []
    rig.generate()


def test_the_request_id_is_recovered_where_it_can_be() -> None:
    with pytest.raises(MalformedFrame) as failure:
        decode_frame(msgspec.msgpack.encode({"type": "Nonsense", "client_request_id": "n"}))
    assert failure.value.client_request_id == "n"
    with pytest.raises(MalformedFrame) as failure:
        decode_frame(msgspec.msgpack.encode({"type": "Nonsense", "client_request_id": 7}))
    assert failure.value.client_request_id == ""


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text()
    | st.binary()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)
FIELDS = st.sampled_from([*GenerateRequest.__struct_fields__, "type"])
PARAMS = st.dictionaries(st.sampled_from(SamplingParams.__struct_fields__), SCALARS, max_size=3)


@pytest.fixture(scope="module")
def open_rig(text_model: TextModel) -> EdgeRig:
    """An edge for many examples."""
    rig = EdgeRig(text_model, max_queued_requests=1_000_000, allow_request_templates=False)
    rig.connect()
    return rig


@settings(max_examples=100)
@given(st.dictionaries(FIELDS, VALUES, max_size=5), PARAMS | st.none())
def test_any_request_is_admitted_or_refused(
    open_rig: EdgeRig, fields: dict[str, Any], params: dict[str, Any] | None
) -> None:
    rig = open_rig
    frame = {"type": "GenerateRequest", "client_request_id": "fuzz", "prompt": "x", **fields}
    if params is not None:
        frame["sampling_params"] = params
    rig.send(1, msgspec.msgpack.encode(frame))
    replies, admitted = rig.take(), rig.take_ring(NewRequest)
    if admitted:
        assert not replies
        rig.run(admitted[0], [97])
        assert len(rig.take()) >= 1
        for index in range(1, admitted[0].n):
            rig.run(admitted[0], [97], index=index)
        rig.take()
    else:
        assert len(replies) <= 1
    assert rig.edge.gauges["open_requests"] == 0


def test_random_bytes_and_damaged_frames(open_rig: EdgeRig) -> None:
    rig, chance = open_rig, random.Random(3)
    good = msgspec.msgpack.encode(
        GenerateRequest(
            client_request_id="g",
            prompt="hello",
            sampling_params=SamplingParams(n=2, stop=["a", "b"], seed=4),
        )
    )
    for _ in range(3000):
        damaged = bytearray(good if chance.random() < 0.9 else chance.randbytes(40))
        for _ in range(chance.randrange(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        rig.send(1, bytes(damaged[: chance.randrange(len(damaged) + 1)]))
        for admitted in rig.take_ring(NewRequest):
            for index in range(admitted.n):
                rig.run(admitted, [97], index=index)
        rig.take()
    assert rig.edge.gauges["open_requests"] == 0
    rig.generate()
