"""The reference is what the code's types say now, and docs/http.md names settings and metrics as they are."""

import re
from pathlib import Path
from typing import get_args

from pillion.actors.gateway.reference import reference
from pillion.actors.gateway.routes import ROUTES
from pillion.runtime.config import REASONING_PARSERS, ToolParserName

DOCS = Path(__file__).parents[3] / "docs"
TEXT = (DOCS / "http.md").read_text()
WORDS = set(re.findall(r"`([^`\n]+)`", TEXT))


def test_the_reference_is_up_to_date() -> None:
    assert (DOCS / "http-reference.md").read_text() == reference(), "run: make docs"


def test_the_reference_names_every_route_and_field() -> None:
    text = reference()
    for route in ROUTES:
        assert f"`{route.method} {route.path.replace(':path', '')}`" in text
        for kind in (route.body, route.answer, *route.events):
            if kind is not None:
                assert f"### {kind.__name__}\n" in text
                for field in kind.__struct_encode_fields__:
                    assert f"| `{field}`" in text


def test_every_link_of_the_reference_leads_somewhere() -> None:
    text = reference()
    titles = {title.lower() for title in re.findall(r"^### (\w+)$", text, re.MULTILINE)}
    assert set(re.findall(r"\(#(\w+)\)", text)) <= titles


def test_routes_that_the_text_names_exist() -> None:
    paths = {route.path for route in ROUTES}
    named = {word for word in WORDS if word.startswith(("/v1/", "/metrics", "/ready"))}
    assert named
    assert named <= paths


def test_the_parsers_are_named() -> None:
    parsers = {*get_args(ToolParserName), *REASONING_PARSERS} - {"auto"}
    assert parsers <= WORDS
