"""Arguments that a model writes as plain text, as the JSON that the function's schema asks for."""

import json
from typing import Any, Final

from pillion.actors.detokenizer.tool_calls.json_values import decoded

Types = frozenset[str]

_STRING: Final = "string"
# How models that know Python better than JSON write these.
_PYTHON_WORDS: Final[dict[str, Any]] = {"True": True, "False": False, "None": None}
_NOT_JSON: Final = object()
_MAX_DEPTH: Final = 16


def parameter_types(function: dict[str, Any]) -> dict[str, Types]:
    """The JSON types that each parameter of a function may have; none are known for an empty set."""
    root = function.get("parameters")
    properties = root.get("properties") if isinstance(root, dict) else None
    if not isinstance(properties, dict):
        return {}
    return {name: _types(schema, root, _MAX_DEPTH) for name, schema in properties.items()}


def is_text(types: Types) -> bool:
    """Whether a value is a string whatever it looks like."""
    return types <= {_STRING}


def value_json(text: str, types: Types) -> str:
    """The JSON of a value; a string, if it is nothing else that may come here."""
    word = text.strip()
    value = _PYTHON_WORDS[word] if word in _PYTHON_WORDS else _parsed(word)
    kinds = _kinds(value)
    if value is None and _STRING not in types:
        kinds.add(next(iter(types)))  # it stands for a value that is left out
    if not kinds & types:
        return json.dumps(text, ensure_ascii=False)
    if isinstance(value, float) and "number" not in types:
        value = int(value)
    return json.dumps(value, ensure_ascii=False)


def _parsed(word: str) -> Any:
    value = decoded(word)
    try:
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return _NOT_JSON
    return _NOT_JSON if value is None and word != "null" else value


def _kinds(value: Any) -> set[str]:
    match value:
        case bool():
            return {"boolean"}
        case None:
            return {"null"}
        case int():
            return {"integer", "number"}
        case float():
            return {"integer", "number"} if value.is_integer() else {"number"}
        case dict():
            return {"object"}
        case list():
            return {"array"}
        case _:
            return set()


def _types(schema: Any, root: Any, depth: int) -> Types:
    if not isinstance(schema, dict) or not depth:
        return frozenset()
    listed = schema.get("type")
    names = listed if isinstance(listed, list) else [listed]
    found = {name for name in names if isinstance(name, str)}
    constants = [schema["const"]] if "const" in schema else []
    for value in _listed(schema.get("enum")) + constants:
        found |= {_STRING} if isinstance(value, str) else _kinds(value)
    for key in ("anyOf", "oneOf", "allOf"):
        for inner in _listed(schema.get(key)):
            found |= _types(inner, root, depth - 1)
    reference = schema.get("$ref")
    if isinstance(reference, str):
        found |= _types(_at(root, reference), root, depth - 1)
    return frozenset(found)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _at(root: Any, reference: str) -> Any:
    """What a reference inside the schema points to."""
    place = root
    for key in reference.removeprefix("#/").split("/"):
        place = place.get(key) if isinstance(place, dict) else None
    return place
