"""What is wrong with a field, in words for those who wrote it."""

from typing import Any, Literal

import msgspec
import pytest

from pillion.runtime.type_errors import complaint_of


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    number: float | None = None
    flag: bool = False


class Outer(msgspec.Struct):
    name: str
    ids: list[int] | bytes = b""
    inner: Inner | None = None
    bias: dict[int, float] = {}
    kind: Literal["a", "b"] = "a"


CASES: list[tuple[Any, str | None, str]] = [
    ({}, "name", "name is missing"),
    ({"name": 7}, "name", "name must be a string, got 7"),
    ({"name": None}, "name", "name must be a string, got null"),
    ({"name": "n", "ids": 3}, "ids", "ids must be bytes or a list, got 3"),
    ({"name": "n", "ids": [1, "x"]}, "ids", "ids[1] must be an integer, got 'x'"),
    ({"name": "n", "ids": [[1]]}, "ids", "ids[0] must be an integer, got a list"),
    ({"name": "n", "inner": []}, "inner", "inner must be an object, got a list"),
    ({"name": "n", "inner": {"number": "1"}}, "inner", "inner.number must be a number, got '1'"),
    ({"name": "n", "inner": {"flag": 1}}, "inner", "inner.flag must be true or false, got 1"),
    ({"name": "n", "inner": {"figure": 1}}, "inner", "inner has no field 'figure'"),
    ({"name": "n", "bias": {1: "x"}}, "bias", "a value of bias must be a number, got a string"),
    ({"name": "n", "bias": {"x": 1}}, "bias", "a key of bias must be an integer, got a string"),
    ({"name": "n", "kind": "c"}, "kind", "kind cannot be 'c'"),
    ([], None, "it must be an object, got a list"),
]


@pytest.mark.parametrize(("data", "field", "message"), CASES, ids=lambda value: str(value)[:40])
def test_the_field_is_named_with_what_it_wants_and_what_it_got(
    data: Any, field: str | None, message: str
) -> None:
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.convert(data, Outer)
    complaint = complaint_of(error.value, data)
    assert (complaint.field, complaint.message) == (field, message)


def test_a_value_is_shown_in_few_words() -> None:
    data = {"name": "n", "inner": {"number": "x" * 10_000}}
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.convert(data, Outer)
    assert len(complaint_of(error.value, data).message) < 150
