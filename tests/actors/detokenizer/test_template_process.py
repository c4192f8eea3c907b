"""Templates of clients, rendered in a process of their own."""

import time

import pytest

from pillion.actors.detokenizer import template_process
from pillion.actors.detokenizer.template_process import MAX_TEMPLATE_CHARS, render_apart
from pillion.runtime.errors import InvalidRequest

VARIABLES = {"messages": [{"role": "user", "content": "hé"}]}


def test_a_template_is_rendered() -> None:
    assert render_apart("{{ messages[0].content }}!", VARIABLES) == "hé!"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{% for %}", "cannot be compiled"),
        ("{{ raise_exception('no') }}", "no"),
        ("x" * (MAX_TEMPLATE_CHARS + 1), str(MAX_TEMPLATE_CHARS)),
        (r"{{ '\ud800' }}", "not valid Unicode"),
        ("{{ ''.__class__.__base__.__subclasses__() }}", "unsafe"),
    ],
)
def test_what_is_wrong_is_said(source: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as failure:
        render_apart(source, VARIABLES)
    assert failure.value.param == "chat_template"


def test_the_kernel_stops_what_the_guard_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    # A child that does not even start to render stands for one that cannot be stopped from inside.
    monkeypatch.setattr(template_process, "WALL_LIMIT_S", 0.2)
    monkeypatch.setattr(
        template_process, "_COMMAND", (*template_process._COMMAND[:1], "-c", "while True: pass")
    )
    started = time.monotonic()
    with pytest.raises(InvalidRequest, match="too much time or memory"):
        render_apart("x", VARIABLES)
    assert time.monotonic() - started < 5
