"""Writes docs/http-reference.md: every route and every field, from the types that the routes use.

python -m pillion.actors.gateway.reference > docs/http-reference.md
"""

from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import inspect

from pillion.actors.gateway.routes import ROUTES, RouteSpec

Kind = type[msgspec.Struct]

_HEAD: Final = """# Reference of the HTTP server

Generated from the server's own types by `make docs`; what belongs together is explained in [http.md](http.md).
Bodies are JSON objects. In what is sent, fields with * must be there, and null is as if a field were left out.
In what comes back, fields with ? are absent where there is nothing to say.
"""
_WORDS: Final[dict[type[inspect.Type], str]] = {
    inspect.AnyType: "anything",
    inspect.NoneType: "null",
    inspect.BoolType: "boolean",
    inspect.IntType: "integer",
    inspect.FloatType: "number",
    inspect.StrType: "string",
}


def reference() -> str:
    """The whole document."""
    sections = [_HEAD, _routes()]
    bodies, answers = _Structs(), _Structs()
    for route in ROUTES:
        if route.body is not None:
            bodies.add(route.body)
        for answer in (route.answer, *route.events):
            if answer is not None:
                answers.add(answer)
    sections.append("## What is sent\n")
    sections += [_section(each, sent=True) for each in bodies.found]
    sections.append("## What comes back\n")
    sections += [_section(each, sent=False) for each in answers.found if each not in bodies.found]
    return "\n".join(sections)


class _Structs:
    """Structs in the order in which a reader meets them."""

    def __init__(self) -> None:
        self.found: list[Kind] = []

    def add(self, kind: Kind) -> None:
        if kind in self.found:
            return
        base = _base(kind)
        if base is not None:
            self.add(base)
        self.found.append(kind)
        info = inspect.type_info(kind)
        assert isinstance(info, inspect.StructType)
        for field in info.fields:
            for each in _inside(field.type):
                self.add(each)


def _routes() -> str:
    rows = [
        "| route | what it does | body | answer | events of a stream |",
        "|---|---|---|---|---|",
    ]
    return "\n".join(["## Routes\n", *rows, *map(_route, ROUTES), ""])


def _route(route: RouteSpec) -> str:
    name = f"`{route.method} {route.path.replace(':path', '')}`"
    text = (route.serve.__doc__ or "").partition("\n")[0].rstrip(".")
    kinds = [
        " ".join(_link(each) for each in group if each is not None)
        for group in ((route.body,), (route.answer,), route.events)
    ]
    return f"| {' | '.join([name, text, *kinds])} |"


def _section(kind: Kind, *, sent: bool) -> str:
    base = _base(kind)
    inherited = set() if base is None else set(base.__struct_fields__)
    lines = [f"### {kind.__name__}\n", (kind.__doc__ or "").strip(), ""]
    if base is not None:
        lines += [
            f"The fields of {_link(base)}, and:"
            if kind.__struct_fields__ != base.__struct_fields__
            else f"The fields of {_link(base)}.",
            "",
        ]
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    rows = [_field(field, sent) for field in info.fields if field.name not in inherited]
    if info.tag is not None:
        rows.insert(0, f"| `{info.tag_field}` | `{info.tag}` | |")
    if rows:
        lines += ["| field | type | meaning |", "|---|---|---|", *rows, ""]
    return "\n".join(lines)


def _field(field: inspect.Field, sent: bool) -> str:
    kind, text = field.type, ""
    if isinstance(kind, inspect.Metadata):
        text = str((kind.extra_json_schema or {}).get("description", ""))
        kind = kind.type
    if sent:
        mark = "*" if field.required else ""
        if isinstance(kind, inspect.UnionType):
            others = tuple(each for each in kind.types if not isinstance(each, inspect.NoneType))
            kind = others[0] if len(others) == 1 else inspect.UnionType(others)
    else:
        mark = "" if field.required or field.default is not msgspec.NODEFAULT else "?"
    return f"| `{field.encode_name}`{mark} | {_type(kind)} | {text} |"


def _type(kind: inspect.Type) -> str:
    match kind:
        case inspect.Metadata(type=inner):
            return _type(inner)
        case inspect.StructType(cls=struct):
            return _link(struct)
        case inspect.ListType(item_type=item):
            text = _type(item)
            return f"list of ({text})" if " or " in text else f"list of {text}"
        case inspect.DictType(value_type=inspect.AnyType()):
            return "object"
        case inspect.DictType(value_type=value):
            return f"object of {_type(value)}"
        case inspect.LiteralType(values=values):
            return " or ".join(f"`{value}`" for value in values)
        case inspect.UnionType(types=types):
            return " or ".join(_type(each) for each in types)
        case _:
            return _WORDS[type(kind)]


def _inside(kind: inspect.Type) -> Iterator[Kind]:
    """The structs that a type holds."""
    match kind:
        case inspect.Metadata(type=inner) | inspect.ListType(item_type=inner):
            yield from _inside(inner)
        case inspect.DictType(value_type=inner):
            yield from _inside(inner)
        case inspect.UnionType(types=types):
            for each in types:
                yield from _inside(each)
        case inspect.StructType(cls=struct):
            yield struct
        case _:
            pass


def _base(kind: Kind) -> Kind | None:
    base = kind.__base__
    return base if base is not msgspec.Struct and isinstance(base, type(msgspec.Struct)) else None


def _link(kind: Kind) -> str:
    return f"[{kind.__name__}](#{kind.__name__.lower()})"


if __name__ == "__main__":
    print(reference(), end="")
