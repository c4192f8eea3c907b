"""Parameters that leave no token are refused with all their names; those that leave one are not."""

from typing import Any

import pytest

from pillion.actors.detokenizer.contradictions import check_some_token_is_left
from pillion.messages.sampling import SamplingParams
from pillion.runtime.errors import InvalidRequest

ENDS = frozenset({2})


def check(bad_words: list[list[int]] | None = None, **fields: Any) -> None:
    check_some_token_is_left(SamplingParams(**fields), ENDS, bad_words or [])


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"allowed_token_ids": [5], "logit_bias": {5: -100.0}}, ["logit_bias"]),
        ({"allowed_token_ids": [5, 6], "bad_words": [[5], [6]]}, ["bad_words"]),
        ({"allowed_token_ids": [2], "min_tokens": 1}, ["min_tokens"]),
        (
            {"allowed_token_ids": [2, 5, 6], "min_tokens": 1, "bad_words": [[5]]}
            | {"logit_bias": {6: -100.0, 7: 1.0}},
            ["bad_words", "logit_bias", "min_tokens"],
        ),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else "",
)
def test_all_fields_of_a_contradiction_are_named(fields: dict[str, Any], named: list[str]) -> None:
    with pytest.raises(InvalidRequest, match="contradict each other") as refusal:
        check(**fields)
    assert refusal.value.param == "allowed_token_ids"
    everything = {"bad_words", "logit_bias", "min_tokens"}
    assert {name for name in everything if name in str(refusal.value)} == set(named)


@pytest.mark.parametrize(
    "fields",
    [
        {"allowed_token_ids": [2]},
        {"allowed_token_ids": [2, 5], "min_tokens": 3},
        {"allowed_token_ids": [5], "logit_bias": {5: -99.0}},
        {"allowed_token_ids": [5], "bad_words": [[4, 5]]},
        {"logit_bias": {5: -100.0}, "bad_words": [[6]], "min_tokens": 1},
    ],
    ids=str,
)
def test_what_leaves_a_token_is_fine(fields: dict[str, Any]) -> None:
    check(**fields)
