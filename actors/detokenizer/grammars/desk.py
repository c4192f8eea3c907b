"""The edge's side of grammars: what the grammar process is asked, and what has come of it. No process in here."""

from array import array
from dataclasses import dataclass, field
from typing import Final

from pillion.actors.detokenizer.grammars.calls import (
    AdvanceGrammar,
    CloseGrammar,
    CompileGrammar,
    GrammarCall,
    OpenGrammar,
    TokenMask,
)
from pillion.actors.detokenizer.grammars.source import GrammarSource
from pillion.messages.codec import pack_ids
from pillion.messages.ids import RequestId, SequenceId
from pillion.messages.requests import RequestScheduled
from pillion.messages.steps import TokenMasks
from pillion.runtime.clock import NS_PER_S

# A process that says nothing for so long is stuck and replaced.
ANSWER_LIMIT_NS: Final = 10 * NS_PER_S
# Processes that may end over one sequence's mask before it is held to be the cause.
MAX_STRIKES: Final = 2
COMPILE_LOST: Final = "compiling it ended the grammar process: it takes too much memory or time"
MASK_LOST: Final = "following the grammar ended the grammar process twice"
_WORD_BITS: Final = 32
_WORD_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Seat:
    """Where the worker keeps a sequence."""

    scheduler_epoch: int
    slot: int
    generation: int


@dataclass(slots=True, eq=False)
class FollowedGrammar:
    """A sequence with a grammar, which holds for its answer: not for reasoning, and not for tool calls."""

    sequence_id: SequenceId
    source: GrammarSource
    param: str  # the field of the request that asks for it
    end_ids: list[int]
    num_prompt_tokens: int
    token_ids: "array[int]"  # the sample's own, all that it has produced
    # Whether the answer may or may not begin with reasoning; if so, with one of these tokens.
    may_reason: bool = False
    reasoning_ids: list[int] = field(default_factory=list)
    # Tokens that may begin the answer and make it a tool call.
    call_ids: list[int] = field(default_factory=list)
    opened_at: int | None = (
        None  # tokens in front of those that the grammar process knows; None: of none
    )
    seat: Seat | None = None
    mask: bytes = b""  # for the position behind `token_ids`; empty while it is not known
    is_asked: bool = False  # a mask is awaited
    strikes: int = 0

    def start(self, thinks: bool, num_thoughts: int) -> int | None:
        """The grammar's first token in `token_ids`; None: as far as it is known, all is allowed.

        `thinks`: what comes next may be reasoning. `num_thoughts`: tokens that may have been.
        """
        token_ids = self.token_ids
        start: int | None = num_thoughts
        if self.may_reason and (not token_ids or token_ids[0] not in self.reasoning_ids):
            start = 0
        elif thinks:
            start = None
        is_call = start is not None and start < len(token_ids) and token_ids[start] in self.call_ids
        return None if is_call else start


@dataclass(slots=True)
class LostGrammars:
    """Who has to pay for a grammar process that is gone."""

    request_ids: list[RequestId] = field(default_factory=list)
    sequence_ids: list[SequenceId] = field(default_factory=list)


class GrammarDesk:
    """Keeps what it takes to go on with another grammar process when one is lost.

    `calls` are for the grammar process; whoever drives this takes and clears them.
    """

    def __init__(self) -> None:
        self.calls: list[GrammarCall] = []
        self.vocab_size = 0
        self._compiling: dict[RequestId, GrammarSource] = {}
        self._followed: dict[SequenceId, FollowedGrammar] = {}
        self._to_send: dict[SequenceId, FollowedGrammar] = {}
        self._heard = False  # something since the last `watch`
        self._quiet_since_ns: int | None = None

    @property
    def num_followed(self) -> int:
        """Sequences with a grammar."""
        return len(self._followed)

    def param(self, sequence_id: SequenceId) -> str:
        """The field that asks for the grammar of an open sequence."""
        return self._followed[sequence_id].param

    def compile(self, request_id: RequestId, source: GrammarSource) -> None:
        """Asks whether a grammar works."""
        self._compiling[request_id] = source
        self.calls.append(CompileGrammar(request_id=request_id, source=source))

    def forget(self, request_id: RequestId) -> bool:
        """Whether somebody still waited for this grammar; nobody does from now on."""
        self._heard = True
        return self._compiling.pop(request_id, None) is not None

    def follow(self, grammar: FollowedGrammar, thinks: bool, num_thoughts: int) -> None:
        """A sequence with a grammar, perhaps with tokens that it has from an earlier life."""
        self._followed[grammar.sequence_id] = grammar
        self._place(grammar, 0, thinks, num_thoughts)

    def advance(
        self, sequence_id: SequenceId, num_new: int, thinks: bool, num_thoughts: int
    ) -> None:
        """The sequence has that many more tokens."""
        grammar = self._followed.get(sequence_id)
        if grammar is not None:
            grammar.mask = b""
            self._to_send.pop(sequence_id, None)
            self._place(grammar, num_new, thinks, num_thoughts)

    def close(self, sequence_id: SequenceId) -> None:
        """The sequence is over."""
        grammar = self._followed.pop(sequence_id, None)
        self._to_send.pop(sequence_id, None)
        if grammar is not None and grammar.opened_at is not None:
            self.calls.append(CloseGrammar(sequence_id=sequence_id))

    def on_scheduled(self, message: RequestScheduled) -> None:
        """The sequence has a slot, where its masks are awaited."""
        grammar = self._followed.get(message.sequence_id)
        if grammar is None or message.slot < 0:
            return
        grammar.seat = Seat(message.epoch, message.slot, message.generation)
        if grammar.mask:
            self._to_send[grammar.sequence_id] = grammar

    def unseat(self) -> None:
        """The slots that are known are of an engine that is gone; its successor names others."""
        self._to_send.clear()
        for grammar in self._followed.values():
            grammar.seat = None

    def on_mask(self, reply: TokenMask) -> bool:
        """Takes a mask; False if it is not of the newest position of an open sequence."""
        self._heard = True
        grammar = self._followed.get(reply.sequence_id)
        if grammar is None or grammar.opened_at is None:
            return False
        is_newest = reply.num_tokens == len(grammar.token_ids) - grammar.opened_at
        if is_newest or reply.error is not None:
            grammar.is_asked = False
            grammar.strikes = 0
            if reply.mask:
                self._set_mask(grammar, reply.mask)
        return is_newest or reply.error is not None

    def lose_process(self) -> LostGrammars:
        """The process is gone: whoever may be the cause fails, the others are asked for again."""
        lost = LostGrammars()
        self.calls.clear()
        self._heard = True
        compiling, self._compiling = self._compiling, {}
        for request_id, source in compiling.items():
            # They are compiled one by one, in this order.
            if source == next(iter(compiling.values())):
                lost.request_ids.append(request_id)
                self._compiling[request_id] = source
            else:
                self.compile(request_id, source)
        for grammar in self._followed.values():
            if grammar.opened_at is None:
                continue
            grammar.strikes += grammar.is_asked
            if grammar.strikes >= MAX_STRIKES:
                lost.sequence_ids.append(grammar.sequence_id)
            else:
                self._open(grammar, grammar.opened_at)
        return lost

    def watch(self, now_ns: int) -> int | None:
        """Notes how long the process has owed an answer; returns when it will be stuck."""
        if not (self._compiling or any(each.is_asked for each in self._followed.values())):
            self._quiet_since_ns = None
            return None
        if self._quiet_since_ns is None or self._heard:
            self._quiet_since_ns = now_ns
            self._heard = False
        return self._quiet_since_ns + ANSWER_LIMIT_NS

    def is_stuck(self, now_ns: int) -> bool:
        """Whether the process has owed an answer for too long: it is to be replaced."""
        since_ns = self._quiet_since_ns
        return since_ns is not None and now_ns - since_ns >= ANSWER_LIMIT_NS

    def take_masks(self) -> list[TokenMasks]:
        """What the worker is to be told now, one message per life of the scheduler."""
        by_epoch: dict[int, list[tuple[Seat, FollowedGrammar]]] = {}
        for grammar in self._to_send.values():
            if grammar.seat is not None:
                rows = by_epoch.setdefault(grammar.seat.scheduler_epoch, [])
                rows.append((grammar.seat, grammar))
        self._to_send.clear()
        return [
            TokenMasks(
                epoch=epoch,
                slots=pack_ids(seat.slot for seat, _ in rows),
                generations=pack_ids(seat.generation for seat, _ in rows),
                positions=pack_ids(
                    grammar.num_prompt_tokens + len(grammar.token_ids) for _, grammar in rows
                ),
                masks=b"".join(grammar.mask for _, grammar in rows),
            )
            for epoch, rows in by_epoch.items()
        ]

    def _place(
        self, grammar: FollowedGrammar, num_new: int, thinks: bool, num_thoughts: int
    ) -> None:
        """Asks for the mask behind the newest token, or knows it."""
        start = grammar.start(thinks, num_thoughts)
        if start is None:
            if grammar.opened_at is not None:
                self.calls.append(CloseGrammar(sequence_id=grammar.sequence_id))
                grammar.opened_at = None
                grammar.is_asked = False
            self._allow_all(grammar)
        elif grammar.opened_at == start:
            new = grammar.token_ids[len(grammar.token_ids) - num_new :].tobytes()
            self.calls.append(AdvanceGrammar(sequence_id=grammar.sequence_id, token_ids=new))
            grammar.is_asked = True
        else:
            self._open(grammar, start)

    def _open(self, grammar: FollowedGrammar, start: int) -> None:
        grammar.opened_at = start
        self.calls.append(
            OpenGrammar(
                sequence_id=grammar.sequence_id,
                source=grammar.source,
                token_ids=grammar.token_ids[start:].tobytes(),
                end_ids=grammar.end_ids,
                opening_ids=grammar.call_ids + (grammar.reasoning_ids if start == 0 else []),
            )
        )
        grammar.is_asked = True

    def _allow_all(self, grammar: FollowedGrammar) -> None:
        num_words = -(-self.vocab_size // _WORD_BITS)
        self._set_mask(grammar, b"\xff" * (num_words * _WORD_BYTES))

    def _set_mask(self, grammar: FollowedGrammar, mask: bytes) -> None:
        grammar.mask = mask
        if grammar.seat is not None:
            self._to_send[grammar.sequence_id] = grammar
