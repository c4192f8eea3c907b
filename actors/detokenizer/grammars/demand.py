"""What a request demands of the form of its answers, whichever of its fields says so."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pillion.actors.detokenizer.answer_plan import AnswerPlan
from pillion.actors.detokenizer.grammars.call_rules import json_rule, labelled_schemas, refusal
from pillion.actors.detokenizer.grammars.source import (
    MAX_SOURCE_CHARS,
    PARAM,
    WHITESPACE,
    GrammarSource,
    source_of,
)
from pillion.actors.detokenizer.grammars.strict_calls import strict_grammar
from pillion.actors.detokenizer.tokenizer import Tokenizer
from pillion.messages.sampling import SamplingParams
from pillion.messages.structured_outputs import StructuredOutputsParams
from pillion.runtime.errors import InvalidRequest, RequestError

_TOOLS: Final = "tools"


@dataclass(frozen=True, slots=True)
class GrammarDemand:
    """A grammar for the answer, and the tokens with which something else may begin."""

    source: GrammarSource
    param: str  # the field that asks for it
    may_reason: bool  # the model may choose to, with one of these
    reasoning_ids: list[int]
    call_ids: list[int]


def demand_of(
    tokenizer: Tokenizer, params: SamplingParams, answer: AnswerPlan | None
) -> GrammarDemand | None:
    """The demand of a request; calls that must come have the say over the form of a text.

    Raises RequestError if the model's tokens do not allow it.
    """
    source, param = _source(tokenizer, params.structured_outputs, answer)
    if source is None:
        return None
    if not tokenizer.can_spell:
        raise RequestError(
            f"{param}: the form of an answer can only be given where tokens are pieces of text on their own,"
            " and this model's are not",
            "unsupported",
            param,
        )
    if answer is None:
        return GrammarDemand(source, param, False, [], [])
    openings = answer.reasoning_openings
    return GrammarDemand(
        source=source,
        param=param,
        may_reason=bool(openings),
        reasoning_ids=_ids(tokenizer, openings),
        call_ids=[] if param == _TOOLS else _ids(tokenizer, answer.call_openings),
    )


def _source(
    tokenizer: Tokenizer, structure: StructuredOutputsParams | None, answer: AnswerPlan | None
) -> tuple[GrammarSource | None, str]:
    """The grammar, if any is asked for, and the field that asks for it."""
    forced = None if answer is None else answer.tools.json_schema
    if answer is not None and answer.tools.may_be_strict:
        return _with_strict_calls(tokenizer, answer, structure), _TOOLS
    if answer is not None and forced is not None:
        return _forced_calls(forced, answer.tools.functions), _TOOLS
    return None if structure is None else source_of(structure), PARAM


def _forced_calls(schema: dict[str, Any], functions: Sequence[dict[str, Any]]) -> GrammarSource:
    """The grammar of an answer that calls and does nothing else."""
    text = json.dumps(schema, ensure_ascii=False)
    if len(text) > MAX_SOURCE_CHARS:
        raise InvalidRequest(
            f"{_TOOLS}: the schemas together may have {MAX_SOURCE_CHARS} characters, got {len(text)}",
            _TOOLS,
        )
    return GrammarSource(
        kind="json", text=text, whitespace=WHITESPACE, parts=labelled_schemas(functions)
    )


def _with_strict_calls(
    tokenizer: Tokenizer, answer: AnswerPlan, structure: StructuredOutputsParams | None
) -> GrammarSource:
    """The grammar of calls that hold to their schemas, around text or beside a form of the answer."""
    rule = None
    if structure is not None:
        form = source_of(structure)
        schema = json.loads(form.text) if form.kind == "json" else None
        if not isinstance(schema, dict):
            raise refusal("the form of the answer beside it is no JSON schema")
        rule = json_rule(schema, form.whitespace)

    def special_id(marker: str) -> int | None:
        token_id = tokenizer.token_id(marker)
        return token_id if token_id in tokenizer.special_ids else None

    functions = answer.tools.functions
    text = strict_grammar(answer.tool_format.name, functions, special_id, rule)
    if len(text) > MAX_SOURCE_CHARS:
        raise refusal(f"the schemas together have more than {MAX_SOURCE_CHARS} characters")
    return GrammarSource(kind="lark", text=text)


def _ids(tokenizer: Tokenizer, markers: Iterable[str]) -> list[int]:
    """Of markers that are one token; others cannot be told from text at their beginning."""
    found = (tokenizer.token_id(marker) for marker in markers)
    return [token_id for token_id in found if token_id is not None]
