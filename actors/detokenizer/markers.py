"""Markers in a text that comes in pieces."""

from collections.abc import Sequence


def find_marker(text: str, markers: Sequence[str]) -> tuple[int, str | None]:
    """Where the first marker begins, and which it is; the longest if two begin there.

    Without one: where the end of the text may be the beginning of one, and None; what is before that
    place certainly belongs to no marker.
    """
    found: tuple[int, str | None] = (len(text), None)
    if not any(marker[0] in text for marker in markers):
        return found  # nearly every token
    for marker in markers:
        at = text.find(marker)
        if at >= 0 and (at < found[0] or (at == found[0] and len(marker) > len(found[1] or ""))):
            found = (at, marker)
    if found[1] is not None:
        return found
    longest = max(map(len, markers), default=1)
    for start in range(max(len(text) - longest + 1, 0), len(text)):
        tail = text[start:]
        if any(marker.startswith(tail) for marker in markers):
            return start, None
    return len(text), None
