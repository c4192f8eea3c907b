"""Every message of every inbox: it survives the wire, and nothing but messages passes."""

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from pillion.messages import inboxes
from pillion.messages.base import EdgeMessage, RingMessage
from pillion.messages.codec import Codec
from pillion.messages.control import Shutdown
from pillion.messages.steps import StepPlan

RING = {
    "scheduler": inboxes.SchedulerInbox,
    "kv_manager": inboxes.KvManagerInbox,
    "gpu_worker": inboxes.WorkerInbox,
    "detokenizer": inboxes.DetokenizerInbox,
    "gateway": inboxes.GatewayInbox,
    "launcher": inboxes.LauncherInbox,
}
EDGE = {
    "client to daemon": inboxes.ClientToDaemon,
    "daemon to client": inboxes.DaemonToClient,
    "control request": inboxes.ControlRequest,
    "control reply": inboxes.ControlReply,
}
UNIONS: dict[str, Any] = RING | EDGE
MESSAGES = sorted({kind for union in UNIONS.values() for kind in get_args(union)}, key=str)

TEXT = st.text(max_size=8)
INT64 = st.integers(-(2**63), 2**63 - 1)


def values(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """What a field of this type may hold."""
    match kind:
        case inspect.AnyType():
            return st.none() | st.booleans() | INT64 | TEXT | st.lists(TEXT, max_size=2)
        case inspect.NoneType():
            return st.none()
        case inspect.BoolType():
            return st.booleans()
        case inspect.IntType():
            return INT64
        case inspect.FloatType():
            return st.floats(allow_nan=False)
        case inspect.StrType():
            return TEXT
        case inspect.BytesType():
            return st.binary(max_size=8)
        case inspect.LiteralType():
            return st.sampled_from(kind.values)
        case inspect.UnionType():
            return st.one_of(*(values(member) for member in kind.types))
        case inspect.ListType():
            return st.lists(values(kind.item_type), max_size=3)
        case inspect.TupleType():
            return st.tuples(*(values(member) for member in kind.item_types))
        case inspect.DictType():
            return st.dictionaries(values(kind.key_type), values(kind.value_type), max_size=3)
        case inspect.StructType():
            return messages(kind.cls)
    raise AssertionError(f"no strategy for {kind}: add one")


def messages(kind: type[msgspec.Struct]) -> st.SearchStrategy[msgspec.Struct]:
    """Messages of a type, optional fields left out at random."""
    if kind.__name__ == "SamplingParams":  # it refuses most values; tests of its own cover them
        return st.builds(kind, temperature=st.floats(0, 2), max_tokens=st.integers(1, 100))
    (info,) = inspect.multi_type_info([kind])
    assert isinstance(info, inspect.StructType)
    required = {field.name: values(field.type) for field in info.fields if field.required}
    optional = {field.name: values(field.type) for field in info.fields if not field.required}
    return st.fixed_dictionaries(required, optional=optional).map(lambda fields: kind(**fields))


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_a_message_survives_every_wire_that_carries_it(kind: type[msgspec.Struct]) -> None:
    codecs = [Codec[Any](union) for union in UNIONS.values() if kind in get_args(union)]
    assert codecs

    @settings(max_examples=25, deadline=None)
    @given(message=messages(kind))
    def check(message: msgspec.Struct) -> None:
        for codec in codecs:
            received = codec.decode(codec.encode(message))
            assert type(received) is kind
            assert received == message

    check()


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_messages_are_immutable_and_named_in_the_code(kind: type[msgspec.Struct]) -> None:
    config = kind.__struct_config__
    assert config.frozen
    assert config.tag == kind.__name__
    assert issubclass(kind, RingMessage | EdgeMessage)
    assert kind.__doc__
    # Positions are what a ring message is on the wire; names are what an edge message is.
    assert config.array_like == issubclass(kind, RingMessage)


@pytest.mark.parametrize("name", RING)
def test_ring_inboxes_carry_ring_messages_and_edges_edge_messages(name: str) -> None:
    assert all(issubclass(kind, RingMessage) for kind in get_args(RING[name]))
    for union in EDGE.values():
        assert all(issubclass(kind, EdgeMessage) for kind in get_args(union))


@pytest.mark.parametrize("name", UNIONS)
@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=60))
def test_random_bytes_are_refused_by_one_kind_of_error(name: str, data: bytes) -> None:
    codec: Codec[Any] = Codec(UNIONS[name])
    try:
        message = codec.decode(data)
    except msgspec.DecodeError:
        return
    assert type(message) in get_args(UNIONS[name])


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_a_message_cut_short_or_meant_for_someone_else_is_refused(
    kind: type[msgspec.Struct],
) -> None:
    @settings(max_examples=5, deadline=None)
    @given(message=messages(kind))
    def check(message: msgspec.Struct) -> None:
        for union in UNIONS.values():
            codec: Codec[Any] = Codec(union)
            data = codec.encode(message)
            if kind not in get_args(union):
                with pytest.raises(msgspec.DecodeError):
                    codec.decode(data)
            for cut in range(len(data)):
                with pytest.raises(msgspec.DecodeError):
                    codec.decode(data[:cut])

    check()


def test_an_appended_field_does_not_break_older_peers() -> None:
    """A newer sender's extra field is ignored, an older sender's missing field takes its default."""

    class Plan(RingMessage, frozen=True, tag="Plan"):
        epoch: int

    class NewerPlan(RingMessage, frozen=True, tag="Plan"):
        epoch: int
        extra: int = 7

    older, newer = Codec[Plan](Plan), Codec[NewerPlan](NewerPlan)
    assert older.decode(newer.encode(NewerPlan(epoch=1, extra=2))) == Plan(epoch=1)
    assert newer.decode(older.encode(Plan(epoch=1))) == NewerPlan(epoch=1, extra=7)


def test_every_message_between_actors_that_has_an_epoch_says_whose() -> None:
    between_actors = {
        kind
        for name, union in RING.items()
        if name != "launcher"
        for kind in get_args(union)
        if "epoch" in kind.__struct_fields__
    }
    for kind in between_actors:
        fields = {"actor": "scheduler", "epoch": 7} | {
            field.name: None
            for field in msgspec.structs.fields(kind)
            if field.required and field.name not in ("actor", "epoch")
        }
        message = kind(**{name: fields[name] for name in kind.__struct_fields__ if name in fields})
        life = inboxes.life_in(message)
        assert life is not None, kind
        assert life[0] in RING
        assert life[1] == 7
        assert life in inboxes.lives_in(message)
    assert inboxes.life_in(Shutdown()) is None
    assert inboxes.lives_in(Shutdown()) == ()


def test_a_plan_gives_word_of_the_edge_too() -> None:
    plan = StepPlan(
        epoch=3,
        plan_id=1,
        repeat=1,
        slots=b"",
        generations=b"",
        starts=b"",
        num_tokens=b"",
        edge_epoch=5,
    )
    assert inboxes.lives_in(plan) == (("scheduler", 3), ("detokenizer", 5))
