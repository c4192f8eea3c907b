"""What the fuzzer sends over one connection: bodies, headers, uploads in chunks, several requests at once, noise."""

import json
import random
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st

from pillion.actors.gateway.routes import ROUTES

POSTS: Final = [spec.path for spec in ROUTES if spec.method == "POST"]
GETS: Final = [spec.path.replace("{model:path}", "m") for spec in ROUTES if spec.method == "GET"]
BODIES: Final = {spec.path: spec.body for spec in ROUTES if spec.body is not None}


@dataclass(frozen=True)
class Sent:
    """All bytes of a connection, and how many requests they are, each of which is answered; None: not good HTTP."""

    data: bytes
    num_requests: int | None = None
    leaves: bool = False  # without waiting for an answer


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from(["", "auto", "required", "json_schema", "object", "[", "(?P<", "word"])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
schemas = st.recursive(
    st.sampled_from([{}, {"type": "integer"}, {"type": "string", "maxLength": 3}, {"enum": ["a"]}])
    | st.sampled_from([{"type": 7}, {"$ref": "#"}, {"type": "array", "minItems": 2**40}, {"a": 1}]),
    lambda inner: st.builds(
        lambda inner, extra: {"type": "object", "properties": {"a": inner}, **extra},
        inner,
        st.sampled_from(
            [{}, {"required": ["a"]}, {"required": 3}, {"additionalProperties": False}]
        ),
    ),
    max_leaves=4,
)
structures = st.one_of(
    st.builds(lambda schema: {"json": schema}, schemas),
    st.sampled_from(["a+", "[", "(?P<", "a{99999}", "(a|b)*c", "\\"]).map(
        lambda text: {"regex": text}
    ),
    st.lists(st.text(max_size=4), max_size=3).map(lambda texts: {"choice": texts}),
    st.sampled_from(['root ::= "a"', "root ::= root", "start: /a+/", "start: b", "::="]).map(
        lambda text: {"grammar": text}
    ),
)
tools = st.lists(
    st.builds(
        lambda schema, strict, flat: (
            {"type": "function", "name": "f", "parameters": schema, "input_schema": schema}
            if flat
            else {"type": "function", "function": {"name": "f", "parameters": schema, **strict}}
        ),
        schemas,
        st.sampled_from([{}, {"strict": True}, {"strict": 3}]),
        st.booleans(),
    ),
    max_size=2,
)
choices = st.sampled_from(
    ["auto", "none", "required", {"type": "function", "function": {"name": "f"}}]
) | st.sampled_from([{"type": "any"}, {"type": "tool", "name": "f"}, {"type": "function"}])
messages = st.lists(
    st.builds(
        lambda role, content, more: {"role": role, "content": content, **more},
        st.sampled_from(["user", "assistant", "system", "tool", "none"]),
        st.text(max_size=8) | values | st.just([{"type": "text", "text": "word"}]),
        st.sampled_from([{}, {"tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]),
    ),
    max_size=3,
)
_LIKELY: Final[dict[str, Any]] = {
    "messages": messages,
    "tools": tools,
    "tool_choice": choices,
    "structured_outputs": structures,
    "response_format": st.builds(
        lambda schema: {"type": "json_schema", "json_schema": {"schema": schema}}, schemas
    ),
    "guided_json": schemas,
    "stop": st.sampled_from(["a", ["a", "b"], [""], 7]),
    "prompt": st.sampled_from(["word", [1, 2], [[1], "a"], [-1], [2**63], []]),
    "n": st.integers(-1, 3),
    "logprobs": st.sampled_from([True, 1, -1, 99]),
    "stream": st.booleans(),
    "echo": st.booleans(),
}
# What some route cannot do without.
_NEEDED: Final[dict[str, Any]] = {
    "messages": [{"role": "user", "content": "word"}],
    "prompt": "word",
    "input": "word",
    "tokens": [1, 2],
    "max_tokens": 5,
    "max_output_tokens": 5,
}


def _nearly(path: str) -> st.SearchStrategy[Any]:
    """Bodies that are nearly right reach deeper than those that are all wrong."""
    names = BODIES[path].__struct_fields__
    given = {name: st.just(_NEEDED[name]) for name in names if name in _NEEDED}
    if path == "/tokenize":
        del given["messages"]
    wild = {name: _LIKELY.get(name, values) for name in names}
    several = st.lists(st.sampled_from(names), max_size=4, unique=True)
    return several.flatmap(
        lambda chosen: st.fixed_dictionaries(given | {name: wild[name] for name in chosen})
    )


def _head(path: str, *lines: bytes, method: bytes = b"POST") -> bytes:
    return b"\r\n".join(
        [method + b" " + path.encode() + b" HTTP/1.1", b"host: a", *lines, b"", b""]
    )


def post(path: str, body: bytes, *lines: bytes) -> bytes:
    """A request with this body."""
    return _head(path, b"content-length: %d" % len(body), *lines) + body


def _in_chunks(body: bytes, seed: int, extension: bytes, trailer: bytes) -> bytes:
    rng = random.Random(seed)
    parts = []
    while body:
        size = min(len(body), rng.choice([1, 2, 3, 10, 100]))
        parts.append(b"%x%s\r\n%s\r\n" % (size, extension, body[:size]))
        body = body[size:]
    return b"".join([*parts, b"0\r\n", trailer, b"\r\n"])


encoded = st.sampled_from(POSTS).flatmap(
    lambda path: (_nearly(path) | values).map(lambda body: (path, json.dumps(body).encode()))
)
bodies = encoded.map(lambda pair: Sent(post(*pair), 1))

_HUGE: Final = [
    b"[" * 100_000,
    b'{"messages":' * 100_000,
    b'{"prompt": "%s"}' % (b"word " * 100_000),
    b'{"prompt": [%s1]}' % (b"1," * 100_000),
    b'{"prompt": "a", "seed": %s}' % (b"9" * 100_000),
    b'{"prompt": "a", "x": {%s"z": 1}}' % b"".join(b'"%d": [],' % n for n in range(20_000)),
    b'{"messages": [%s{}]}' % (b'{"role": "user", "content": "a"},' * 10_000),
    b'{"a":"\xff"}',
    b'{"a":"\\ud800"}',
    b'{"prompt":"\\ud800"}',
    b"NaN",
    b"",
]
raw_bodies = st.builds(
    lambda path, body: Sent(post(path, body), 1),
    st.sampled_from(POSTS),
    st.binary(max_size=60) | st.sampled_from(_HUGE),
)

_names = st.sampled_from(
    [b"x-request-id", b"authorization", b"x-api-key", b"content-type", b"accept-encoding", b"traceparent", b"cookie"]
)  # fmt: skip
_odd = st.sampled_from(
    [
        b"expect: 100-continue",
        b"transfer-encoding: gzip",
        b"content-length: -1",
        b"content-length: 9" + b"9" * 30,
        b"connection: upgrade\r\nupgrade: websocket",
        b"host: b",
        b": x",
        b"no colon",
        b"x" * 70_000,
        b"a: " + b"b" * 70_000,
    ]
)
headers = st.builds(
    lambda pair, lines: Sent(post(*pair, *lines)),
    encoded,
    st.lists(
        st.tuples(_names, st.binary(max_size=20)).map(b": ".join) | _odd, min_size=1, max_size=4
    ),
)
chunked = st.builds(
    lambda pair, seed, extension, trailer: Sent(
        _head(pair[0], b"transfer-encoding: chunked")
        + _in_chunks(pair[1], seed, extension, trailer),
        1,
    ),
    encoded,
    st.integers(0, 2**32),
    st.sampled_from([b"", b";a=b"]),
    st.sampled_from([b"", b"a: b\r\n"]),
)
broken_chunks = st.builds(
    lambda size, data: Sent(_head("/tokenize", b"transfer-encoding: chunked") + size + data),
    st.sampled_from([b"zz\r\n", b"-1\r\n", b"f" * 17 + b"\r\n", b"5\r\n", b"\r\n", b"0\r\n"]),
    st.binary(max_size=20),
)
_gets = st.sampled_from([*GETS, "/nowhere", "/v1/%2e%2e/%00"]).map(
    lambda path: _head(path, method=b"GET")
)
pipelined = st.lists(encoded.map(lambda pair: post(*pair)) | _gets, min_size=2, max_size=6).map(
    lambda requests: Sent(b"".join(requests), len(requests))
)
cut = st.builds(
    lambda pair, at, noise: Sent(post(*pair)[:at] + noise, leaves=True),
    encoded,
    st.integers(0, 400),
    st.binary(max_size=30),
)
anything = st.one_of(bodies, bodies, raw_bodies, headers, chunked, broken_chunks, pipelined, cut)
