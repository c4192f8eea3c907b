"""How models write reasoning and tool calls: which formats there are, and which one a model has."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from pillion.actors.detokenizer.parsed_output import OutputParser, ParsedOutput
from pillion.actors.detokenizer.reasoning import harmony
from pillion.actors.detokenizer.tool_calls import deepseek, mistral, pythonic, xml_calls
from pillion.actors.detokenizer.tool_calls.bare_json import BareJsonParser
from pillion.actors.detokenizer.tool_calls.deepseek import DeepSeekParser
from pillion.actors.detokenizer.tool_calls.marked_json import MarkedJsonParser
from pillion.actors.detokenizer.tool_calls.mistral import MistralParser
from pillion.actors.detokenizer.tool_calls.pythonic import PythonicParser
from pillion.actors.detokenizer.tool_calls.xml_calls import XmlCallsParser
from pillion.actors.detokenizer.tool_use import ToolUse

TOOL_CALL: Final = ("<tool_call>", "</tool_call>")
THINK: Final = ("<think>", "</think>")
MISTRAL_THINK: Final = ("[THINK]", "[/THINK]")
PYTHON_TAG: Final = "<|python_tag|>"


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A way to write calls. `markers` are shown to the parser also where they are special tokens."""

    name: str
    parser: Callable[[ParsedOutput, ToolUse], OutputParser]
    markers: tuple[str, ...] = ()
    id_length: int = 29


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Reasoning between markers in front of the answer."""

    name: str
    start: str
    end: str
    # The model need not write the start marker: where the prompt says nothing, it begins with reasoning.
    opens_itself: bool = False


TOOL_FORMATS: Final = {
    each.name: each
    for each in (
        ToolFormat("hermes", lambda output, _: MarkedJsonParser(output, *TOOL_CALL), TOOL_CALL),
        ToolFormat(
            "qwen3_coder",
            lambda output, tools: XmlCallsParser(output, tools.functions),
            (xml_calls.CALL, xml_calls.CALL_END),
        ),
        ToolFormat(
            "llama3_json",
            lambda output, tools: BareJsonParser(output, tools.names, PYTHON_TAG),
            (PYTHON_TAG,),
        ),
        ToolFormat("mistral", lambda output, _: MistralParser(output), mistral.MARKERS, 9),
        ToolFormat(
            "pythonic",
            lambda output, tools: PythonicParser(output, tools.names),
            (pythonic.START, pythonic.END),
        ),
        ToolFormat("deepseek", lambda output, _: DeepSeekParser(output), deepseek.MARKERS),
        ToolFormat(
            "gpt_oss",
            lambda output, _: harmony.HarmonyParser(output, calls=True),
            harmony.MARKERS,
        ),
        ToolFormat("json", lambda output, tools: BareJsonParser(output, tools.names)),
    )
}
REASONING_FORMATS: Final = {
    each.name: each
    for each in (
        ReasoningFormat("qwen3", *THINK),
        ReasoningFormat("deepseek_r1", *THINK, opens_itself=True),
        ReasoningFormat("mistral", *MISTRAL_THINK),
        # Its parser reads reasoning, answer and calls in one.
        ReasoningFormat("gpt_oss", harmony.CHANNEL, harmony.END),
    )
}
# What a template says -> the format of the calls; the first that fits counts.
_SIGNS_OF_TOOLS: Final = (
    (harmony.CHANNEL, "gpt_oss"),
    (deepseek.CALLS_BEGIN, "deepseek"),
    (mistral.CALLS, "mistral"),
    (xml_calls.PARAMETER, "qwen3_coder"),
    (TOOL_CALL[0], "hermes"),
    (pythonic.START, "pythonic"),
    ("[func_name1(", "pythonic"),
    (PYTHON_TAG, "llama3_json"),
    ('"parameters": dictionary', "llama3_json"),
)


def tool_format(setting: str, templates: Iterable[str]) -> ToolFormat:
    """The format of this name; with "auto" the one that the chat templates show."""
    if setting != "auto":
        return TOOL_FORMATS[setting]
    text = "\n".join(templates).replace('\\"', '"')
    found = next((name for sign, name in _SIGNS_OF_TOOLS if sign in text), "json")
    return TOOL_FORMATS[found]


def reasoning_format(setting: str, templates: Iterable[str]) -> ReasoningFormat | None:
    """The format of this name or of these two markers; with "auto" the one that the chat templates show."""
    if setting == "none":
        return None
    if setting in REASONING_FORMATS:
        return REASONING_FORMATS[setting]
    if setting != "auto":
        start, end = setting.split()
        return ReasoningFormat("markers", start, end)
    text = "\n".join(templates)
    if harmony.CHANNEL in text:
        return REASONING_FORMATS["gpt_oss"]
    if MISTRAL_THINK[1] in text:
        return REASONING_FORMATS["mistral"]
    if THINK[1] in text:
        return REASONING_FORMATS["qwen3"]
    return None
