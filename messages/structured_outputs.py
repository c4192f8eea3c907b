"""The structure that an answer must have, as a client asks for it."""

from typing import Any, Final

import msgspec

from pillion.messages.value_checks import shown

_STRUCTURES: Final = ("json", "regex", "choice", "grammar", "json_object")


class StructuredOutputsParams(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What the answer must look like; exactly one of json, regex, choice, grammar and json_object.

    Whether the structure itself makes sense is found out when it is compiled, by the text edge.
    """

    json: str | dict[str, Any] | bool | None = None  # a JSON schema
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None  # in GBNF ("root ::= ...") or in llguidance's dialect of Lark
    json_object: bool | None = None
    disable_any_whitespace: bool = False  # of json and json_object: none between the tokens
    whitespace_pattern: str | None = None  # likewise: the regex of what may stand there

    def __post_init__(self) -> None:
        self.verify()

    @property
    def kind(self) -> str:
        """The name of the structure that is given."""
        return next(name for name in _STRUCTURES if getattr(self, name) not in (None, False))

    def verify(self) -> None:
        """Raises ValueError unless exactly one structure is given."""
        given = [name for name in _STRUCTURES if getattr(self, name) is not None]
        if self.json_object is False:
            given.remove("json_object")
        if self.json is False:
            raise ValueError("structured_outputs.json is false: no answer matches that schema")
        if len(given) != 1:
            raise ValueError(
                f"structured_outputs takes exactly one of {', '.join(_STRUCTURES)},"
                f" got {' and '.join(given) or 'none'}"
            )
        if self.choice is not None and not (
            isinstance(self.choice, list | tuple)
            and self.choice
            and all(isinstance(each, str) and each for each in self.choice)
        ):
            raise ValueError(
                "structured_outputs.choice takes a list of non-empty strings, at least one,"
                f" got {shown(self.choice)}"
            )
        for name in ("regex", "grammar", "whitespace_pattern"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise ValueError(f"structured_outputs.{name} must be a string, got {shown(value)}")
        if not isinstance(self.json, str | dict | bool | None):
            raise ValueError(f"structured_outputs.json takes a JSON schema, got {shown(self.json)}")
