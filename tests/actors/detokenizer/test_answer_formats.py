"""Which format a model has: by its chat template, or by configuration."""

from typing import get_args

import pytest

from pillion.actors.detokenizer.answer_formats import (
    REASONING_FORMATS,
    TOOL_FORMATS,
    reasoning_format,
    tool_format,
)
from pillion.runtime.config import REASONING_PARSERS, EngineConfig, ToolParserName
from pillion.runtime.errors import ConfigError

# What the templates of each family have that no other has.
TEMPLATES = [
    ('within <tool_call></tool_call> XML tags: {\\"name\\": <function-name>', "hermes"),
    ("'<tool_call>\\n<function=' + name + '>\\n<parameter=' + key", "qwen3_coder"),
    ("{{ '[TOOL_CALLS] [' }}", "mistral"),
    ("'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type']", "deepseek"),
    ("{{- '<|python_tag|>' + tool_call.name + '.call(' }}", "llama3_json"),
    (
        """'Respond in the format {"name": function name, "parameters": dictionary of argument name"}'""",
        "llama3_json",
    ),
    ("should return [func_name1(params_name1=params_value1)]", "pythonic"),
    ("{{ '<|python_start|>' }}", "pythonic"),
    ("<|start|>assistant<|channel|>final<|message|>", "gpt_oss"),
    ("{{ tools | tojson }}", "json"),
    ("", "json"),
]


@pytest.mark.parametrize(("template", "name"), TEMPLATES)
def test_the_template_shows_the_format_of_calls(template: str, name: str) -> None:
    assert tool_format("auto", [template]) is TOOL_FORMATS[name]
    assert tool_format("mistral", [template]) is TOOL_FORMATS["mistral"]


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("content.split('</think>')", "qwen3"),
        ("[THINK]{{ x }}[/THINK]", "mistral"),
        ("<|channel|>analysis", "gpt_oss"),
        ("{{ messages }}", None),
    ],
)
def test_the_template_shows_how_reasoning_is_marked(template: str, name: str | None) -> None:
    assert reasoning_format("auto", [template]) is (name and REASONING_FORMATS[name])
    assert reasoning_format("none", [template]) is None
    assert reasoning_format("deepseek_r1", [template]) is REASONING_FORMATS["deepseek_r1"]


def test_markers_of_the_users_own() -> None:
    found = reasoning_format("<a> </a>", ["</think>"])
    assert found is not None
    assert (found.start, found.end) == ("<a>", "</a>")


def test_the_configuration_knows_the_same_names() -> None:
    assert set(get_args(ToolParserName)) == {"auto", *TOOL_FORMATS}
    assert set(REASONING_PARSERS) == {"auto", "none", *REASONING_FORMATS}


@pytest.mark.parametrize("setting", ["", "qwen", "<a> <b> <c>"])
def test_what_is_no_parser_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match="reasoning_parser must be auto, none"):
        EngineConfig(model="m", reasoning_parser=setting)
