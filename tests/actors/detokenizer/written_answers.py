"""Answers as models of each format write them, good and bad, and what is in them."""

from dataclasses import dataclass, field
from typing import Any

from pillion.actors.detokenizer.tool_use import ToolUse

WEATHER = '{"city": "Paris"}'
NESTED = (
    '{"code": "if (a) { b[\\"}\\"] = \'{\' }", "deep": {"list": [1, {"x": "\\\\"}], "no": null}}'
)
_OBJECT = {"type": "object"}
TOOLS = ToolUse(
    "auto",
    (
        {
            "name": "get_weather",
            "parameters": {
                "properties": {
                    "city": {"type": "string"},
                    "days": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                    "exact": {"type": "boolean"},
                    "place": {"$ref": "#/$defs/place"},
                },
                "$defs": {"place": _OBJECT},
            },
        },
        {"name": "run", "parameters": _OBJECT},
        {"name": "now"},
    ),
)
T, E = "<tool_call>", "</tool_call>"
DS_BEGIN, DS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
DC_BEGIN, DC_END, DS_SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"


@dataclass(frozen=True)
class Written:
    """A text, and what a parser must find in it."""

    form: str
    text: str
    content: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)  # name, arguments as JSON text
    reasoning: str = ""
    complete: bool = True  # whether the last call, if any, is

    @property
    def id(self) -> str:
        return f"{self.form}-{self.text[:40]}"


def hermes(name: str, arguments: str) -> str:
    return f'{T}\n{{"name": "{name}", "arguments": {arguments}}}\n{E}'


def coder(name: str, **parameters: str) -> str:
    values = (f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items())
    return f"{T}\n<function={name}>\n{''.join(values)}</function>\n{E}"


def v3(name: str, arguments: str) -> str:
    return f"{DC_BEGIN}function{DS_SEP}{name}\n```json\n{arguments}\n```{DC_END}"


def v31(name: str, arguments: str) -> str:
    return f"{DC_BEGIN}{name}{DS_SEP}{arguments}{DC_END}"


def bare(name: str, arguments: str, key: str = "parameters") -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


ANY_FORMAT = ["", "Hello.", "  two\n\nlines \n", "a < b [c] {d} `e`", "Ünï 🙂 <", "\n"]

CALLS = [
    *(
        Written(form, text, text)
        for form in (
            "hermes",
            "qwen3_coder",
            "llama3_json",
            "mistral",
            "pythonic",
            "deepseek",
            "json",
        )
        for text in ANY_FORMAT
    ),
    Written("hermes", hermes("get_weather", WEATHER), calls=[("get_weather", WEATHER)]),
    Written("hermes", hermes("run", NESTED), calls=[("run", NESTED)]),
    Written(
        "hermes",
        f"Let me look.\n\n{hermes('get_weather', WEATHER)}\n{hermes('now', '{}')}\nDone.\n",
        "Let me look.Done.\n",
        [("get_weather", WEATHER), ("now", "{}")],
    ),
    Written("hermes", f'{T}{{"arguments": {NESTED}, "name": "run"}}{E}', calls=[("run", NESTED)]),
    Written("hermes", f'{T}{{"name": "now"}}{E}', calls=[("now", "{}")]),
    Written("hermes", f'{T}{{"name": "now", "arguments": null}}{E}', calls=[("now", "{}")]),
    Written(
        "hermes",
        f'{T}{{"name": "get_weather", "arguments": "{{\\"city\\": \\"Paris\\"}}"}}{E}',
        calls=[("get_weather", WEATHER)],
    ),
    Written(
        "hermes",
        f'{T}{{"type": "function", "function": {bare("get_weather", WEATHER, "arguments")}}}{E}',
        calls=[("get_weather", WEATHER)],
    ),
    Written("hermes", f"{T}{bare('now', '{}')}}}{E}!", "!", [("now", "{}")]),
    Written(
        "hermes", f"{hermes('now', '{}')[: -len(E)]}{hermes('now', '{}')}", "", [("now", "{}")] * 2
    ),
    Written(
        "hermes",
        f'{T}{{"name": "run", "arguments": {{"html": "{E} {T}"}}}}{E}',
        calls=[("run", f'{{"html": "{E} {T}"}}')],
    ),
    Written("hermes", f"Write {T} and {E}.", f"Write {T} and {E}."),
    Written("hermes", f"{T}not json{E} then", f"{T}not json{E} then"),
    Written("hermes", f'{T}{{"na', f'{T}{{"na'),
    Written("hermes", f'{T}{{"name": "run", "arg', calls=[("run", "")], complete=False),
    Written(
        "hermes",
        f'{T}{{"name": "run", "arguments": {{"a": "b',
        calls=[("run", '{"a": "b')],
        complete=False,
    ),
    Written("hermes", "a <tool_", "a <tool_"),
    Written("qwen3_coder", coder("get_weather", city="Paris"), calls=[("get_weather", WEATHER)]),
    Written(
        "qwen3_coder",
        f"I look.\n{coder('get_weather', city='3', days='3', exact='True', place='[]')}\n{coder('now')}\nDone.",
        "I look.Done.",
        [
            ("get_weather", '{"city": "3", "days": 3, "exact": true, "place": "[]"}'),
            ("now", "{}"),
        ],
    ),
    Written(
        "qwen3_coder",
        coder("get_weather", days="None", place='{"a": "\n"}', city="\n two\nlines \n"),
        calls=[
            ("get_weather", '{"days": null, "place": {"a": "\\n"}, "city": "\\n two\\nlines \\n"}')
        ],
    ),
    Written(
        "qwen3_coder",
        coder("run", code='if a < b:\n    print("</p>")', other="3"),
        calls=[("run", '{"code": "if a < b:\\n    print(\\"</p>\\")", "other": "3"}')],
    ),
    Written("qwen3_coder", coder("other", a=""), calls=[("other", '{"a": ""}')]),
    Written(
        "qwen3_coder",
        f"{T}<function=run><parameter=a>1<parameter=b>2</function><function=now>{E}!",
        "!",
        [("run", '{"a": "1", "b": "2"}'), ("now", "{}")],
    ),
    Written(
        "qwen3_coder",
        "Well.\n<function=now>\n</function>\nThen <function=other></function>",
        "Well.Then <function=other></function>",
        [("now", "{}")],
    ),
    Written("qwen3_coder", f"Write {T} and <function=a b>.", f"Write {T} and <function=a b>."),
    Written("qwen3_coder", f"{T}<function=no", f"{T}<function=no"),
    Written("qwen3_coder", f"{T}<function=now>", calls=[("now", "")], complete=False),
    Written(
        "qwen3_coder",
        f"{T}<function=run><parameter=a>\nso far\n</para",
        calls=[("run", '{"a": "so far')],
        complete=False,
    ),
    Written(
        "qwen3_coder",
        f"{T}<function=get_weather><parameter=days>3",
        calls=[("get_weather", '{"days": ')],
        complete=False,
    ),
    Written("llama3_json", bare("get_weather", WEATHER), calls=[("get_weather", WEATHER)]),
    Written("llama3_json", f"<|python_tag|>{bare('run', NESTED)}", calls=[("run", NESTED)]),
    Written(
        "llama3_json",
        f"I see. <|python_tag|>{bare('run', NESTED)}; {bare('now', '{}')}",
        "I see.",
        [("run", NESTED), ("now", "{}")],
    ),
    Written("llama3_json", f"\n{bare('now', '{}')}\nand text", "and text", [("now", "{}")]),
    Written("llama3_json", '{"name": "John", "age": 3}', '{"name": "John", "age": 3}'),
    Written("llama3_json", '{"answer": [1, 2]} ', '{"answer": [1, 2]} '),
    Written("llama3_json", '<|python_tag|>print("x")', '<|python_tag|>print("x")'),
    Written(
        "llama3_json", '{"name": "run", "parameters": {"a"', "", [("run", '{"a"')], complete=False
    ),
    Written(
        "json",
        f"[{bare('get_weather', WEATHER, 'arguments')}, {bare('run', NESTED, 'arguments')}]",
        calls=[("get_weather", WEATHER), ("run", NESTED)],
    ),
    Written("json", f"```json\n{bare('now', '{}')}\n```\n", calls=[("now", "{}")]),
    Written("json", f"```\n[{bare('now', '{}')}]\n``` ok", "ok", [("now", "{}")]),
    Written("json", "```python\nprint()\n```", "```python\nprint()\n```"),
    Written("json", "[1, 2, 3]", "[1, 2, 3]"),
    Written("json", "[]", "[]"),
    Written("json", "[", "["),
    Written("json", "``", "``"),
    Written(
        "mistral",
        f"[TOOL_CALLS][{bare('get_weather', WEATHER, 'arguments')}, {bare('run', NESTED, 'arguments')}]",
        calls=[("get_weather", WEATHER), ("run", NESTED)],
    ),
    Written(
        "mistral",
        'Sure.[TOOL_CALLS] [{"name": "now", "arguments": {}, "id": "123456789"}]',
        "Sure.",
        [("now", "{}")],
    ),
    Written("mistral", f"[TOOL_CALLS]run[ARGS]{NESTED}", calls=[("run", NESTED)]),
    Written(
        "mistral",
        f"[TOOL_CALLS]get_weather[CALL_ID]123456789[ARGS]{WEATHER}[TOOL_CALLS]now{{}}",
        calls=[("get_weather", WEATHER), ("now", "{}")],
    ),
    Written("mistral", "[TOOL_CALLS] nothing of the kind", "[TOOL_CALLS] nothing of the kind"),
    Written("mistral", "[TOOL_CALLS]", "[TOOL_CALLS]"),
    Written("mistral", '[TOOL_CALLS][{"name": "r', '[TOOL_CALLS][{"name": "r'),
    Written("mistral", "[TOOL_CALLS]run[ARGS]", calls=[("run", "")], complete=False),
    Written("pythonic", '[get_weather(city="Paris")]', calls=[("get_weather", WEATHER)]),
    Written(
        "pythonic",
        "[run(a=[1, {'b': ')\"]'}], t=True, n=None, f=-1.5, j=true), now()]",
        calls=[
            ("run", '{"a": [1, {"b": ")\\"]"}], "t": true, "n": null, "f": -1.5, "j": true}'),
            ("now", "{}"),
        ],
    ),
    Written("pythonic", "<|python_start|>[now()]<|python_end|>", calls=[("now", "{}")]),
    Written("pythonic", "[other(a=1)]", "[other(a=1)]"),
    Written("pythonic", "[run(1)]", "[run(1)]"),
    Written("pythonic", "[run(a=open('x'))]", "[run(a=open('x'))]"),
    Written("pythonic", "[now(), run(a=", ", run(a=", [("now", "{}")]),
    Written("pythonic", "[1, 2]", "[1, 2]"),
    Written("pythonic", "[now()] and so on", "and so on", [("now", "{}")]),
    Written("deepseek", f"{DS_BEGIN}{v3('run', NESTED)}{DS_END}", calls=[("run", NESTED)]),
    Written(
        "deepseek",
        f"Well.\n{DS_BEGIN}{v3('get_weather', WEATHER)}\n{v3('now', '{}')}{DS_END}",
        "Well.",
        [("get_weather", WEATHER), ("now", "{}")],
    ),
    Written(
        "deepseek",
        f"{DS_BEGIN}{v31('run', NESTED)}{v31('now', '{}')}{DS_END}",
        calls=[("run", NESTED), ("now", "{}")],
    ),
    Written("deepseek", f"{DC_BEGIN}fun", f"{DC_BEGIN}fun"),
    Written("deepseek", f"{DS_BEGIN}{v3('run', NESTED)[:-20]}", calls=[("run", NESTED)]),
    Written("deepseek", f"{DC_BEGIN}{DC_END}x", f"{DC_BEGIN}{DC_END}x"),
]
