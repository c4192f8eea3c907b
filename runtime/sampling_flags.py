"""Command line flags for the fields of SamplingParams, made from the class itself."""

import argparse
import json
from types import UnionType
from typing import Any, Final, get_args, get_origin

import msgspec

from pillion.messages.sampling import SamplingParams
from pillion.messages.structured_outputs import StructuredOutputsParams
from pillion.runtime.errors import InvalidRequest

# What the commands take unless told otherwise: people read their answers, and 1 makes small models ramble.
DEFAULT_TEMPERATURE: Final = 0.7

# A command that prints text needs text.
_NOT_FLAGS: Final = frozenset({"detokenize"})
# A conversation goes on from one answer, and shows its text alone.
NOT_IN_CHATS: Final = frozenset({"n", "logprobs", "prompt_logprobs"})

HELP: Final = {
    "n": "samples of the prompt",
    "presence_penalty": "against tokens that the answer has already",
    "frequency_penalty": "the same, for each time that it has them",
    "repetition_penalty": "above 1: against tokens of prompt and answer",
    "temperature": "0 is greedy",
    "top_p": "sample from the likeliest tokens of this total probability",
    "top_k": "sample from so many likeliest tokens; 0: all",
    "min_p": "drop tokens below this share of the likeliest one's probability",
    "seed": "repeats the same answer",
    "stop": "string that ends the answer; may be given several times",
    "stop_token_ids": "token ids that end the answer, as 1,2,3",
    "bad_words": "string that the answer must not have; may be given several times",
    "include_stop_str_in_output": "leave the stop string at the end of the answer",
    "ignore_eos": "go on behind the end-of-sequence token",
    "max_tokens": "most tokens of the answer; 0: as many as fit",
    "min_tokens": "tokens before which the answer may not end",
    "logprobs": "log-probabilities of so many likeliest tokens (with --json)",
    "prompt_logprobs": "the same for the prompt's tokens (with --json)",
    "skip_special_tokens": "leave special tokens out of the text",
    "spaces_between_special_tokens": "put spaces between special tokens",
    "truncate_prompt_tokens": "keep only so many last tokens of the prompt",
    "logit_bias": 'JSON object of token ids and what is added to their logits: {"42": -100}',
    "allowed_token_ids": "token ids that alone may be sampled, as 1,2,3",
    "structured_outputs": 'JSON object with the form of the answer: {"regex": "yes|no"}, {"json": SCHEMA}',
}


def add_sampling_flags(
    parser: argparse.ArgumentParser, without: frozenset[str] = frozenset(), **defaults: Any
) -> None:
    """One flag per field but these; `defaults` replace those of SamplingParams in the help and in the result."""
    group = parser.add_argument_group("sampling")
    parser.set_defaults(sampling_defaults=defaults)
    for field in msgspec.structs.fields(SamplingParams):
        if field.name not in _NOT_FLAGS | without:
            default = defaults.get(field.name, field.default)
            _add_flag(group, field.name, field.type, default)


def sampling_params_of(arguments: argparse.Namespace) -> SamplingParams:
    """The sampling parameters that the flags say. Raises InvalidRequest naming the field."""
    given = {
        field.name: getattr(arguments, field.name, None)
        for field in msgspec.structs.fields(SamplingParams)
    }
    fields = dict(arguments.sampling_defaults)
    fields.update({name: value for name, value in given.items() if value is not None})
    return make_sampling_params(fields)


def make_sampling_params(fields: dict[str, Any]) -> SamplingParams:
    """Sampling parameters from fields that a person typed. Raises InvalidRequest naming the field."""
    if fields.get("max_tokens") == 0:
        fields = {**fields, "max_tokens": None}
    try:
        return msgspec.convert(fields, SamplingParams, strict=False)
    except (ValueError, TypeError) as error:
        raise InvalidRequest(str(error)) from error


def parse_setting(name: str, text: str) -> Any:
    """The value of a conversation's setting as a person types it. Raises InvalidRequest for a name that is none."""
    kinds = {
        field.name: field.type
        for field in msgspec.structs.fields(SamplingParams)
        if field.name not in _NOT_FLAGS | NOT_IN_CHATS
    }
    if name not in kinds:
        raise InvalidRequest(f"there is no setting {name!r}; there are {', '.join(sorted(kinds))}")
    if str in _members(kinds[name]):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"{name} cannot be {text!r:.80}") from error


def _add_flag(group: Any, name: str, kind: Any, default: Any) -> None:
    flag = "--" + name.replace("_", "-")
    help_text = HELP[name]
    if default not in (None, "", False):
        help_text += f" (default: {default})"
    members = _members(kind)
    if bool in members:
        group.add_argument(
            flag, action=argparse.BooleanOptionalAction, default=None, help=help_text
        )
    elif list[str] in members:
        group.add_argument(flag, action="append", metavar="TEXT", help=help_text)
    elif list[int] in members:
        group.add_argument(flag, type=_integers, metavar="IDS", help=help_text)
    elif dict[int, float] in members or StructuredOutputsParams in members:
        group.add_argument(flag, type=_json_object, metavar="JSON", help=help_text)
    else:
        number = next(member for member in members if member is not type(None))
        group.add_argument(flag, type=number, metavar=number.__name__.upper(), help=help_text)


def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) is UnionType else (kind,)


def _integers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers as 1,2,3, got {text!r}") from None


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object, got {text!r}")
    return value
