"""Grammars that are compiled and followed, by llguidance."""

import re
from array import array
from collections.abc import Iterable
from typing import Any, Final

import llguidance
import numpy as np
import numpy.typing as npt
from llguidance.gbnf_to_lark import GbnfToLarkError, any_to_lark

from pillion.actors.detokenizer.grammars.call_rules import LABEL
from pillion.actors.detokenizer.grammars.source import GrammarSource
from pillion.messages.ids import ErrorCode

_WORD_BITS: Final = 32
_WORD_BYTES: Final = 4
# Counted, not timed, so that a grammar works on every machine or on none.
_LIMITS: Final = llguidance.LLParserLimits(
    max_items_in_row=2_000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=100_000,
    step_max_items=50_000,
    max_lexer_states=50_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)
_MAX_ERROR_CHARS: Final = 400
_FULL_BYTE: Final = 0xFF
_DEAD_END: Final = "NoExtension"  # and the beginning of a similar one
_BAD_SCHEMA: Final = re.compile(
    r"at (?P<line>[0-9]+)\([0-9]+\): failed to compile JSON schema: (?P<why>.*?)\n *[0-9]+ \|",
    re.DOTALL,
)
_BAD_REGEX: Final = re.compile(
    r"at 1\([0-9]+\): invalid regex .*\nerror: (?P<why>[^\n]*)\n", re.DOTALL
)
# What the library says of a sequence that outgrows its limits, in one way or another.
_LIMIT_WORDS: Final = ("(limit ", "max is", "fuel", "lexer error")
_SIMPLER: Final = "Write fewer alternatives in one place, and no rule that leads back to itself without an alternative"


class GrammarError(Exception):
    """A grammar cannot be compiled or followed. Message and code are for the client."""

    def __init__(self, message: str, code: ErrorCode = "invalid_request") -> None:
        super().__init__(message)
        self.code: ErrorCode = code


class Matcher:
    """Follows one sequence."""

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        vocab_size: int,
        end_ids: Iterable[int],
        opening_ids: Iterable[int],
    ) -> None:
        self.num_tokens = 0
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._num_mask_bytes = -(-vocab_size // _WORD_BITS) * _WORD_BYTES
        self._end_ids = np.array(list(end_ids), dtype=np.int64)
        self._opening_ids = np.array(list(opening_ids), dtype=np.int64)

    @property
    def is_complete(self) -> bool:
        """Whether the grammar is satisfied and nothing can follow."""
        return bool(self._matcher.is_stopped() and self._matcher.is_accepting())

    def advance(self, token_ids: bytes) -> None:
        """Takes packed tokens. Raises GrammarError for one that does not fit or that takes too much."""
        for token_id in array("i", token_ids):
            if not self._matcher.consume_token(token_id):
                raise _failure(self._matcher, token_id)
            self.num_tokens += 1

    def mask(self) -> bytes:
        """Which tokens may come next. Raises GrammarError if there is none."""
        data = bytearray(self._matcher.compute_bitmask())
        if self._matcher.is_error():
            raise _failure(self._matcher)
        accepting = self._matcher.is_accepting()
        del data[self._num_mask_bytes :]
        bits = np.frombuffer(data, dtype=np.uint8)
        if self._vocab_size % 8:
            # The artificial end stands behind the vocabulary.
            bits[self._vocab_size // 8] &= _FULL_BYTE >> (8 - self._vocab_size % 8)
        if accepting:
            _allow(bits, self._end_ids)
        if self.num_tokens == 0:
            _allow(bits, self._opening_ids)
        if not bits.any():
            raise GrammarError("no token of the model can spell what must follow")
        return bytes(data)


class GrammarEngine:
    """Grammars over one vocabulary.

    The matching library wants one end-of-sequence token, so the vocabulary gets one more, behind the others,
    which stands for every token that may end a sequence.
    """

    def __init__(self, tokens: list[bytes], special_ids: list[int]) -> None:
        self._vocab_size = len(tokens)
        wrapper = llguidance.TokenizerWrapper(_Vocabulary([*tokens, b"<end>"], special_ids))
        self._tokenizer = llguidance.LLTokenizer(
            wrapper, n_vocab=len(tokens) + 1, eos_token=len(tokens)
        )

    def compile(self, source: GrammarSource) -> llguidance.LLMatcher:
        """A matcher at the beginning, to be copied. Raises GrammarError, with what is wrong."""
        try:
            matcher = self._matcher(_grammar(source))
        except (ValueError, TypeError, RecursionError) as error:
            raise GrammarError(_shortened(str(error))) from error
        if matcher.is_error():
            said = matcher.get_error()
            raise GrammarError(
                _of_regex(said, source)
                or _of_schema(said, source.text)
                or self._blaming(source, said)
            )
        return matcher

    def start(
        self,
        compiled: llguidance.LLMatcher,
        end_ids: Iterable[int],
        opening_ids: Iterable[int] = (),
    ) -> Matcher:
        """A sequence's own matcher.

        `end_ids` may end it where the grammar is complete; `opening_ids` may come in place of its first token.
        """
        return Matcher(compiled.deep_copy(), self._vocab_size, end_ids, opening_ids)

    def _matcher(self, grammar: Any) -> llguidance.LLMatcher:
        return llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=_LIMITS)

    def _blaming(self, source: GrammarSource, why: str) -> str:
        """The complaint, about the one of its parts that is no good where a source has parts."""
        labels = [line for line in source.parts.split("\n") if line.startswith(LABEL)]
        if len(labels) == 1:
            return _about(labels[0], why)
        if labels:
            parts = self._matcher(llguidance.LLMatcher.grammar_from_lark(source.parts))
            return _of_schema(parts.get_error(), source.parts) or _shortened(why)
        return _shortened(why)

    def check(self, source: GrammarSource) -> None:
        """Compiles and begins. Raises GrammarError for what does not work or matches nothing."""
        matcher = self.start(self.compile(source), ())
        if not matcher.is_complete:
            try:
                matcher.mask()
            except GrammarError as error:
                raise GrammarError(self._blaming(source, str(error))) from error


class _Vocabulary:
    """What llguidance asks of a tokenizer."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes], special_ids: list[int]) -> None:
        self.eos_token_id = len(tokens) - 1
        self.tokens = tokens
        self.special_token_ids = [*special_ids, self.eos_token_id]
        special = frozenset(self.special_token_ids)
        self._ids = {
            token: token_id for token_id, token in enumerate(tokens) if token_id not in special
        }
        self._longest = max(map(len, self._ids), default=1)

    def __call__(self, text: bytes) -> list[int]:
        """The longest token first, again and again; bytes without a token are left out."""
        token_ids = []
        start = 0
        while start < len(text):
            for end in range(min(start + self._longest, len(text)), start, -1):
                token_id = self._ids.get(text[start:end])
                if token_id is not None:
                    token_ids.append(token_id)
                    break
            start = end if end > start else start + 1
        return token_ids


def _allow(bits: npt.NDArray[np.uint8], token_ids: npt.NDArray[np.int64]) -> None:
    np.bitwise_or.at(bits, token_ids // 8, (1 << token_ids % 8).astype(np.uint8))


def _grammar(source: GrammarSource) -> Any:
    match source.kind:
        case "json":
            options: Any = {"whitespace_flexible": bool(source.whitespace)}
            if source.whitespace:
                options["whitespace_pattern"] = source.whitespace
            return llguidance.LLMatcher.grammar_from_json_schema(source.text, overrides=options)
        case "regex":
            # Digits are those that a program reads as numbers.
            pattern = llguidance.regex_to_lark(source.text, use_ascii="d")
            return llguidance.LLMatcher.grammar_from_lark(f"start: /{pattern}/")
        case "gbnf":
            try:
                return llguidance.LLMatcher.grammar_from_lark(any_to_lark(source.text))
            except GbnfToLarkError as error:
                raise GrammarError(_shortened(str(error))) from error
        case "lark":
            return llguidance.LLMatcher.grammar_from_lark(source.text)


def _of_regex(said: str, source: GrammarSource) -> str | None:
    """What is wrong with a regular expression, without the expression, which may be long."""
    bad = _BAD_REGEX.match(said) if source.kind == "regex" else None
    return _shortened(f"invalid regex: {bad['why']}") if bad else None


def _of_schema(said: str, text: str) -> str | None:
    """The complaint about a schema in a grammar of our own making, without that grammar."""
    bad = _BAD_SCHEMA.match(said)
    if bad is None:
        return None
    above = text.split("\n")[: int(bad["line"])]
    labels = [line for line in above if line.startswith(LABEL)]
    if not labels:
        return None
    return _about(labels[-1], bad["why"])


def _about(label: str, why: str) -> str:
    return _shortened(f"the schema of {label.removeprefix(LABEL)} cannot be kept to: {why}")


def _failure(matcher: llguidance.LLMatcher, token_id: int | None = None) -> GrammarError:
    """What has gone wrong with a matcher, after this token if any."""
    said = _shortened(matcher.get_error())
    if said.startswith(_DEAD_END):
        return GrammarError("no text matches it")
    if any(word in said for word in _LIMIT_WORDS):
        return GrammarError(f"following it takes too much: {said}. {_SIMPLER}")
    if token_id is None:
        return GrammarError(said)
    # Although the masks had only tokens that do.
    return GrammarError(f"token {token_id} does not fit the grammar: {said}", "internal")


def _shortened(text: str) -> str:
    text = " ".join(text.replace("<non-verbose/>", "").split())
    return text if len(text) <= _MAX_ERROR_CHARS else text[:_MAX_ERROR_CHARS] + "..."
