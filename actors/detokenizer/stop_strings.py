"""Stop strings: found across token borders, and never shown in part."""

from collections.abc import Sequence


class StopMatcher:
    """Looks for the first of several strings in a text that comes in pieces.

    Of strings that end at the same character the longest counts. The result does not depend on how the
    text is cut into pieces. Held back is only what may still become a stop string. The work per character
    is constant (Knuth-Morris-Pratt).
    """

    __slots__ = ("_failures", "_first", "_held", "_matched", "_stops")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = sorted(set(stops), key=len, reverse=True)
        self._failures = [_failure_function(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)  # characters of each stop at the end of the text
        self._first = frozenset(stop[0] for stop in self._stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """The text that is certainly before any stop string, and the stop string if one is complete."""
        if not self._held and self._first.isdisjoint(text):
            return text, None
        text = self._held + text
        for end in range(len(self._held), len(text)):
            stop = self._advance(text[end])
            if stop is not None:
                self._held = ""
                return text[: end + 1 - len(stop)], stop
        cut = len(text) - max(self._matched)
        self._held = text[cut:]
        return text[:cut], None

    def flush(self) -> str:
        """The text that is still held back, when no more comes."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> str | None:
        found = None
        for index, stop in enumerate(self._stops):
            count = self._matched[index]
            failure = self._failures[index]
            while count and stop[count] != character:
                count = failure[count - 1]
            if stop[count] == character:
                count += 1
            if count == len(stop):
                found = found or stop
                count = failure[count - 1]
            self._matched[index] = count
        return found


def _failure_function(pattern: str) -> list[int]:
    """For each prefix the length of its longest border, the proper prefix that is also its suffix."""
    failure = [0] * len(pattern)
    count = 0
    for index in range(1, len(pattern)):
        while count and pattern[index] != pattern[count]:
            count = failure[count - 1]
        if pattern[index] == pattern[count]:
            count += 1
        failure[index] = count
    return failure
