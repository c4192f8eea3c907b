"""The environment in which chat templates are rendered: Hugging Face's dialect of Jinja, with limits.

Jinja's sandbox keeps a template from reaching Python. It does not keep one from working for hours or
filling the memory, so each rendering has a budget here: loops, calls, filters and joined texts draw on it.
"""

import functools
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from datetime import datetime
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_TEXT_CHARS: Final = 16 * 1024 * 1024  # of a rendered chat and of any text on the way to it
MAX_STEPS: Final = 1_000_000  # loop turns, calls, filters of one rendering
MAX_NUMBER: Final = 1_000_000  # as an argument, a factor or a width
_RARE_AND_COSTLY: Final = ("center", "wordwrap", "urlize", "xmlattr", "random", "pprint")
_WIDE_FORMAT: Final = re.compile(r"%[^%a-zA-Z]*(\d{5}|\*)|\{[^{}]*\d{5}")
_WRITING_FILTERS: Final = frozenset(
    (
        "join",
        "string",
        "e",
        "escape",
        "forceescape",
        "urlencode",
        "trim",
        "upper",
        "lower",
        "title",
        "capitalize",
        "striptags",
        "safe",
        "wordcount",
        "truncate",
        "indent",
        "replace",
    )
)
_GROWING_METHODS: Final = ("expandtabs", "translate")


class TemplateLimitReached(jinja2.TemplateError):
    """A rendering took more time or memory than a chat template needs."""


class _Budget(threading.local):
    """What the rendering on this thread may still spend."""

    steps: int = 0
    deadline_s: float = 0.0

    def spend(self, steps: int) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise TemplateLimitReached(f"more than {MAX_STEPS} steps")
        if time.monotonic() > self.deadline_s:
            raise TemplateLimitReached("its time is over")


class GuardedEnvironment(ImmutableSandboxedEnvironment):
    """Compiles templates whose renderings stay within limits. Safe to use from several threads."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[LoopControlExtension, _GenerationExtension],
            optimized=False,  # it evaluates constant expressions while it compiles, outside any budget
            finalize=self._finalized,
        )
        self._budget = _Budget()
        for name in _RARE_AND_COSTLY:
            del self.filters[name]
        for name, function in self.filters.items():
            self.filters[name] = self._guarded(name, function)
        self.filters["tojson"] = self._to_json
        self.globals.pop("lipsum")
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def render_within(
        self, template: jinja2.Template, variables: dict[str, Any], limit_s: float
    ) -> str:
        """Renders. Raises TemplateLimitReached after `limit_s` seconds or beyond the limits of size."""
        self._budget.steps = MAX_STEPS
        self._budget.deadline_s = time.monotonic() + limit_s
        return template.render(variables)

    # What compiled templates call.

    def counted(self, values: Iterable[Any]) -> Iterable[Any]:
        """What a loop runs over, charged to the budget."""
        if isinstance(values, Sized):
            self._budget.spend(len(values))
            return values
        return self._counted_one_by_one(values)

    def joined(self, *parts: object) -> str:
        """The `~` operator."""
        return self.concat(str(self._finalized(part)) for part in parts)

    def concat(self, parts: Iterable[str]) -> str:
        """Joins what a template, a macro or a block has written."""
        written: list[str] = []
        num_chars = 0
        for part in parts:
            num_chars += len(part)
            if num_chars > MAX_TEXT_CHARS:
                raise TemplateLimitReached(f"more than {MAX_TEXT_CHARS} characters")
            written.append(part)
        self._budget.spend(1)
        return "".join(written)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Every call in a template."""
        self = __self
        self._budget.spend(1)
        self._check_arguments((*args, *kwargs.values()))
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            self._check_method(owner, __obj.__name__, args)
        return self._checked(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """The operators that can make something large of something small."""
        if operator == "**":
            _refuse_beyond(abs(left), 1000)
            _refuse_beyond(abs(right), 100)
        elif operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, Sized):
                    _refuse_beyond(len(one) * max(int(other), 0), MAX_NUMBER)
        elif operator == "%" and isinstance(left, str):
            self._check_format(left, right if isinstance(right, tuple) else (right,))
        elif operator == "+" and isinstance(left, Sized) and isinstance(right, Sized):
            _refuse_beyond(len(left) + len(right), MAX_TEXT_CHARS)
        return self._checked(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """What the sandbox makes of `str.format` and `str.format_map`."""
        wrapper = super().wrap_str_format(value)
        if wrapper is None:
            return None
        text: str = value.__self__
        sandboxed = wrapper

        def guarded(*args: Any, **kwargs: Any) -> str:
            self._check_format(text, (*args, *kwargs.values()))
            return sandboxed(*args, **kwargs)

        return guarded

    def _generate(
        self,
        source: nodes.Template,
        name: str | None,
        filename: str | None,
        defer_init: bool = False,
    ) -> str:
        return super()._generate(_Instrument().visit(source), name, filename, defer_init)

    def _counted_one_by_one(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self._budget.spend(1)
            yield value

    def _guarded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)  # keeps the marks by which Jinja passes context or environment
        def guarded(*args: Any, **kwargs: Any) -> Any:
            self._budget.spend(1)
            values = (*args, *kwargs.values())
            self._check_arguments(values)
            texts = [value for value in values if isinstance(value, str)]
            if name == "format" and texts:
                self._check_format(texts[0], values[1:])
            elif name == "indent" and texts:
                widths = [value for value in values if isinstance(value, int)]
                _refuse_beyond((texts[0].count("\n") + 1) * max(widths, default=4), MAX_TEXT_CHARS)
            elif name == "replace" and len(texts) > 2:
                self._check_method(texts[0], "replace", tuple(texts[1:]))
            if name in _WRITING_FILTERS:
                self._spend_size([value for value in values if not isinstance(value, Context)])
            return self._checked(function(*args, **kwargs))

        return guarded

    def _check_arguments(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, int) and abs(value) > MAX_NUMBER:
                raise TemplateLimitReached(f"a number beyond {MAX_NUMBER} as an argument")

    def _check_method(self, text: str, name: str, args: tuple[Any, ...]) -> None:
        if name in _GROWING_METHODS:
            raise TemplateLimitReached(f"the method {name} is not for chat templates")
        if name in ("format", "format_map"):
            self._check_format(text, args)
        elif name == "replace" and len(args) > 1 and isinstance(args[0], str):
            _refuse_beyond(text.count(args[0]) * len(args[1]), MAX_TEXT_CHARS)
        elif name == "join":
            self._spend_size([text, *args])

    def _check_format(self, text: str, args: Iterable[Any]) -> None:
        if _WIDE_FORMAT.search(text):
            raise TemplateLimitReached("a very wide or variable width in a format")
        longest = max((len(arg) for arg in args if isinstance(arg, Sized)), default=1)
        _refuse_beyond((text.count("%") + text.count("{")) * longest, MAX_TEXT_CHARS)

    def _checked(self, result: Any) -> Any:
        if isinstance(result, Sized) and not isinstance(result, range):
            _refuse_beyond(len(result), MAX_TEXT_CHARS)
        return result

    def _finalized(self, value: Any) -> Any:
        """What is about to be written."""
        if not isinstance(value, str):
            self._spend_size(value)
        return value

    def _spend_size(self, value: Any) -> None:
        """Charges for all that would be seen if a value were written out, shared parts each time."""
        num_chars = 0
        waiting = [value]
        while waiting:
            each = waiting.pop()
            if isinstance(each, str):
                num_chars += len(each)
                _refuse_beyond(num_chars, MAX_TEXT_CHARS)
            elif isinstance(each, dict):
                waiting.extend(each.keys())
                waiting.extend(each.values())
            elif isinstance(each, list | tuple | set):
                waiting.extend(each)
            self._budget.spend(1)

    def _to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """As transformers has it: no escapes of HTML, non-ASCII characters as they are."""
        self._spend_size(value)
        if isinstance(indent, int):
            _refuse_beyond(indent, 16)
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )


class _Instrument(NodeTransformer):
    """Puts the budget into loops and into the `~` operator."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = _environment_call("counted", node.iter, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        self.generic_visit(node)
        return _environment_call("joined", *node.nodes, lineno=node.lineno)


class _GenerationExtension(Extension):
    """Accepts `{% generation %}`, by which training code marks what the assistant said."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment_call(name: str, *args: nodes.Node, lineno: int) -> nodes.Call:
    method = nodes.EnvironmentAttribute(name, lineno=lineno)
    return nodes.Call(method, list(args), [], None, None, lineno=lineno)


def _refuse_beyond(size: int, limit: int) -> None:
    if size > limit:
        raise TemplateLimitReached(f"something of size {size:.4g} where {limit} is the limit")


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(str(message))


def _strftime_now(layout: str) -> str:
    if len(layout) > 100 or re.search(r"%[-_0^#+]*\d", layout):
        raise TemplateLimitReached("a date layout of more than 100 characters or with a width")
    return datetime.now().strftime(layout)
