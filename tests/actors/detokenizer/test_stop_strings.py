"""Stop strings: the same result whatever the pieces, and never a part of one shown."""

import random

from hypothesis import given
from hypothesis import strategies as st

from pillion.actors.detokenizer.stop_strings import StopMatcher

LETTERS = st.text(alphabet="ab", max_size=40)
STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=6), min_size=1, max_size=4)


def specification(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text before the stop string that is complete first, the longest of those."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


def feed(pieces: list[str], stops: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    shown = ""
    for piece in pieces:
        text, stop = matcher.push(piece)
        shown += text
        if stop is not None:
            return shown, stop
    return shown + matcher.flush(), None


@given(LETTERS, STOPS, st.integers())
def test_any_cut_gives_the_same(text: str, stops: list[str], seed: int) -> None:
    expected = specification(text, stops)
    assert feed([text], stops) == expected
    assert feed(list(text), stops) == expected
    chance = random.Random(seed)
    borders = sorted(chance.choices(range(len(text) + 1), k=5))
    pieces = [text[a:b] for a, b in zip([0, *borders], [*borders, len(text)], strict=True)]
    assert feed(pieces, stops) == expected


@given(LETTERS, STOPS)
def test_held_back_is_exactly_what_may_still_become_a_stop(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown, seen = "", ""
    for character in text:
        seen += character
        certain, stop = matcher.push(character)
        if stop is not None:
            return
        shown += certain
        held = seen[len(shown) :]
        longest = max(
            (
                length
                for each in stops
                for length in range(1, len(each))
                if seen.endswith(each[:length])
            ),
            default=0,
        )
        assert len(held) == longest


def test_plain_text_is_not_delayed() -> None:
    matcher = StopMatcher(["\n\nUser:", "END"])
    for word in ["The", " quick", " brown", " fox", ".\n"]:
        certain, stop = matcher.push(word)
        assert (certain, stop) == (word.rstrip("\n"), None)
    assert matcher.push("A") == ("\nA", None)


def test_many_long_stops_cost_little() -> None:
    stops = ["a" * 1000 + chr(ord("b") + index) for index in range(20)]
    matcher = StopMatcher(stops)
    text = "a" * 5000
    shown = "".join(matcher.push(text[at : at + 7])[0] for at in range(0, len(text), 7))
    assert shown == "a" * (5000 - 1000)
    assert matcher.flush() == "a" * 1000
