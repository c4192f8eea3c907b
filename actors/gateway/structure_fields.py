"""The form that an answer must have, by the names that OpenAI and vLLM have for it."""

from typing import Any, Final

import msgspec

from pillion.actors.gateway.http_errors import invalid
from pillion.actors.gateway.openai_requests import SamplingFields
from pillion.messages.structured_outputs import StructuredOutputsParams

# What the client protocol calls it.
STRUCTURE: Final = "structured_outputs"
# vLLM's older fields, and what they are in `structured_outputs`.
_OLDER: Final = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
_RESPONSE_FORMAT: Final = "response_format"


def structure_field(request: SamplingFields) -> str | None:
    """The field that asks for a form. Raises HttpError 400 if several do."""
    given = [name for name in (STRUCTURE, *_OLDER) if getattr(request, name) is not None]
    if request.response_format and request.response_format.get("type") != "text":
        given.append(_RESPONSE_FORMAT)
    if len(given) > 1:
        raise invalid(f"{' and '.join(given)} exclude each other", given[-1])
    return given[0] if given else None


def structure_of(request: SamplingFields) -> StructuredOutputsParams | None:
    """The form that is asked for. Raises HttpError 400 naming the field."""
    name = structure_field(request)
    if name is None:
        return None
    if name == _RESPONSE_FORMAT:
        return _of_response_format(request.response_format or {})
    value = getattr(request, name)
    fields = value if name == STRUCTURE else {_OLDER[name]: value}
    known = StructuredOutputsParams.__struct_fields__
    if unknown := sorted(set(fields).difference(known)):
        raise invalid(f"{name} has no field {unknown[0]!r:.80}, it takes {', '.join(known)}", name)
    try:
        return StructuredOutputsParams(**_flat(fields, name))
    except (ValueError, TypeError) as error:
        said = str(error)
        if name != STRUCTURE:
            said = said.replace(f"{STRUCTURE}.{_OLDER[name]}", name)
        raise invalid(said, name) from error


def structure_of_format(
    form: dict[str, Any] | None, place: str, param: str
) -> StructuredOutputsParams | None:
    """The form that an object with a `type` and a `schema` asks for. Raises HttpError 400."""
    kind = form.get("type") if form else "text"
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputsParams(json_object=True)
    if kind != "json_schema":
        raise invalid(
            f"{place}.type must be text, json_object or json_schema, got {kind!r:.80}", param
        )
    schema = (form or {}).get("schema")
    if not isinstance(schema, dict):
        raise invalid(
            f"{place}.schema must be a JSON schema, which is an object, got {schema!r:.80}", param
        )
    return StructuredOutputsParams(**_flat({"json": schema}, param))


def _of_response_format(form: dict[str, Any]) -> StructuredOutputsParams | None:
    """As above, where the schema is one level deeper."""
    if form.get("type") != "json_schema":
        return structure_of_format(form, _RESPONSE_FORMAT, _RESPONSE_FORMAT)
    described = form.get("json_schema")
    schema = described.get("schema") if isinstance(described, dict) else None
    place = f"{_RESPONSE_FORMAT}.json_schema"
    return structure_of_format({**form, "schema": schema}, place, _RESPONSE_FORMAT)


def _flat(fields: dict[str, Any], param: str) -> dict[str, Any]:
    """With a schema as text: however deep it is, it travels well."""
    schema = fields.get("json")
    if not isinstance(schema, dict):
        return fields
    try:
        return {**fields, "json": msgspec.json.encode(schema).decode()}
    except RecursionError as error:
        raise invalid(f"{param}: the JSON schema is nested too deeply", param) from error
