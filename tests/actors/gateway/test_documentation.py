"""docs/http.md names every route, field and metric that the code has, and no route or field that it lacks."""

import re
from pathlib import Path

import msgspec
import pytest

from pillion.actors.gateway import openai_replies, openai_requests
from pillion.actors.gateway.app import ROUTES
from pillion.actors.gateway.metrics import Metrics
from pillion.actors.gateway.metrics_page import metrics_page
from pillion.actors.gateway.openai_requests import (
    ChatCompletionRequest,
    CompletionRequest,
    SamplingFields,
)

TEXT = (Path(__file__).parents[3] / "docs" / "http.md").read_text()
WORDS = set(re.findall(r"`([^`\n]+)`", TEXT))


def structs(module: object) -> list[type[msgspec.Struct]]:
    found = [
        each
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, msgspec.Struct)
    ]
    assert found
    return found


def documented_fields(title: str) -> set[str]:
    """The first column of the table below a heading."""
    section = re.split(r"^##+ ", TEXT.split(title + "\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    rows = [row for row in section.splitlines() if row.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def test_routes() -> None:
    rows = set(re.findall(r"^\| `((?:GET|POST) [^`]+)` \|", TEXT, re.MULTILINE))
    assert rows == {f"{spec.method} {spec.path.replace(':path', '')}" for spec in ROUTES}


@pytest.mark.parametrize(
    ("title", "fields"),
    [
        ("### Fields of both kinds of completions", set(SamplingFields.__struct_fields__)),
        (
            "### `POST /v1/chat/completions`",
            set(ChatCompletionRequest.__struct_fields__) - set(SamplingFields.__struct_fields__),
        ),
        (
            "### `POST /v1/completions`",
            set(CompletionRequest.__struct_fields__) - set(SamplingFields.__struct_fields__),
        ),
    ],
)
def test_fields_of_requests(title: str, fields: set[str]) -> None:
    assert documented_fields(title) == fields


@pytest.mark.parametrize("module", [openai_requests, openai_replies])
def test_every_field_is_named(module: object) -> None:
    missing = {
        f"{struct.__name__}.{name}"
        for struct in structs(module)
        for name in struct.__struct_encode_fields__
        if name not in WORDS and f"usage.{name}" not in WORDS
    }
    assert missing == set()


def test_metrics_under_vllms_names() -> None:
    page = metrics_page(Metrics(), None, "m", ready=True).decode()
    names = set(re.findall(r"^# TYPE (vllm:\w+)", page, re.MULTILINE))
    assert names <= WORDS
