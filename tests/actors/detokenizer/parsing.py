"""Drives parsers with a text in pieces, as an edge and its client do."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise

from pillion.actors.detokenizer.parsed_output import OutputParser, ParsedOutput


@dataclass
class Found:
    """All that a client gets."""

    content: str = ""
    reasoning: str = ""
    names: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    complete: bool = False

    @property
    def calls(self) -> list[tuple[str, str]]:
        return list(zip(self.names, self.arguments, strict=True))


MakeParser = Callable[[ParsedOutput], OutputParser]


def parse(make: MakeParser, pieces: Sequence[str], *, max_calls: int | None = None) -> Found:
    """Takes after each piece what is new, and joins it as clients do."""
    output = ParsedOutput(lambda index: f"id{index}", max_calls)
    parser = make(output)
    found = Found()
    for piece in pieces:
        parser.push(piece)
        _join(found, output)
    parser.finish()
    output.finish()
    _join(found, output)
    assert not output.has_news
    found.complete = output.calls_complete
    return found


def _join(found: Found, output: ParsedOutput) -> None:
    parts = output.take()
    found.content += parts.text
    found.reasoning += parts.reasoning
    for call in parts.tool_calls:
        if call.name:
            assert call.index == len(found.names)
            found.names.append(call.name)
            found.ids.append(call.id)
            found.arguments.append("")
        found.arguments[call.index] += call.arguments


def cuttings(text: str, most_cuts: int = 2) -> Iterator[list[str]]:
    """The text in every way of cutting it that often, and character by character."""
    yield list(text)
    places = range(1, len(text))
    for count in range(most_cuts + 1):
        for cuts in combinations(places, count):
            edges = [0, *cuts, len(text)]
            yield [text[start:end] for start, end in pairwise(edges)]
