"""The requests of a chaos run: every kind that a client may send, drawn from a seed."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pillion.messages.sampling import SamplingParams

_SUBJECTS: Final = (
    "The old lighthouse", "A small dog", "The river", "My neighbour", "An engineer", "The last train",
    "A curious child", "The mountain", "Her garden", "The capital of France", "A good recipe", "Winter",
)  # fmt: skip
_VERBS: Final = (
    "is known for", "never forgets", "was built by", "dreams of", "lives near", "can be reached by",
    "begins with", "is", "would like", "has lost",
)  # fmt: skip
_QUESTIONS: Final = (
    "Name a river in Europe.", "What is 7 plus 5?", "Say hello in French.", "Which colour has the sky?",
    "Give me one short fact about cats.", "How many days has a week?",
)  # fmt: skip
_TRUNKS: Final = tuple(
    f"These are the rules of the {place}. Be kind to everybody, close the doors, water the plants twice a"
    " week, and write down whatever you borrow, with the date and your name, in the book at the entrance."
    for place in ("house", "library", "workshop")
)


@dataclass(frozen=True, slots=True)
class ChaosRequest:
    """One request. What it is to give does not depend on anything but itself."""

    index: int
    kind: str
    params: SamplingParams
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    stream: bool = True
    cancel_after: int | None = None  # tokens after which its client leaves
    cache_salt: str = ""


@dataclass(slots=True)
class _Draft:
    """A request while it is drawn."""

    params: dict[str, Any]
    prompt: str | None
    messages: list[dict[str, Any]] | None = None
    stream: bool = True
    cancel_after: int | None = None


def _greedy(chance: random.Random, draft: _Draft) -> None:
    draft.stream = chance.random() < 0.7


def _seeded(chance: random.Random, draft: _Draft) -> None:
    draft.params |= {"temperature": 0.8, "top_p": 0.9, "seed": chance.randrange(2**40)}


def _samples(chance: random.Random, draft: _Draft) -> None:
    _seeded(chance, draft)
    draft.params["n"] = chance.choice((2, 3))
    draft.params["stop"] = chance.choice((None, ["."]))  # the samples end at different times
    draft.stream = chance.random() < 0.7


def _penalties(chance: random.Random, draft: _Draft) -> None:
    draft.params |= {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2}
    if chance.random() < 0.5:
        _seeded(chance, draft)


def _stop_strings(chance: random.Random, draft: _Draft) -> None:
    draft.params |= {
        "stop": chance.sample([" the", ".", "\n", " of a", "ing ", ", and"], 2),
        "include_stop_str_in_output": chance.random() < 0.3,
        "min_tokens": chance.choice((0, 3)),
    }


def _logprobs(chance: random.Random, draft: _Draft) -> None:
    draft.params |= {"logprobs": 2}
    if chance.random() < 0.4:
        draft.params["prompt_logprobs"] = 1
    if chance.random() < 0.5:
        _seeded(chance, draft)


def _cancelled(chance: random.Random, draft: _Draft) -> None:
    draft.params |= {"ignore_eos": True, "max_tokens": 24}
    draft.cancel_after = chance.randrange(12)


def _shared_prefix(chance: random.Random, draft: _Draft) -> None:
    draft.prompt = f"{chance.choice(_TRUNKS)} {draft.prompt}"


def _chat(chance: random.Random, draft: _Draft) -> None:
    draft.messages = [{"role": "user", "content": chance.choice(_QUESTIONS)}]
    draft.prompt = None


_KINDS: Final[dict[str, Callable[[random.Random, _Draft], None]]] = {
    "greedy": _greedy,
    "seeded": _seeded,
    "samples": _samples,
    "penalties": _penalties,
    "stop strings": _stop_strings,
    "logprobs": _logprobs,
    "cancelled": _cancelled,
    "shared prefix": _shared_prefix,
    "chat": _chat,
}


def distinct_requests(seed: int, count: int, max_tokens: int) -> list[ChaosRequest]:
    """So many requests, the kinds in turn; answers have up to `max_tokens` tokens."""
    chance = random.Random(f"load {seed}")
    kinds = list(_KINDS.items())
    requests = []
    for index in range(count):
        kind, shape = kinds[index % len(kinds)]
        draft = _Draft(
            params={"temperature": 0.0, "max_tokens": chance.randint(max_tokens // 3, max_tokens)},
            prompt=f"{chance.choice(_SUBJECTS)} {chance.choice(_VERBS)}",
        )
        shape(chance, draft)
        requests.append(
            ChaosRequest(
                index=index,
                kind=kind,
                params=SamplingParams(**draft.params),
                prompt=draft.prompt,
                messages=draft.messages,
                stream=draft.stream,
                cancel_after=draft.cancel_after,
                cache_salt=chance.choice(("", "", f"salt {index}")),
            )
        )
    return requests


def in_random_order(seed: int, distinct: list[ChaosRequest], count: int) -> list[ChaosRequest]:
    """`count` requests: each of these as often as the others, in an order of its own."""
    requests = [distinct[number % len(distinct)] for number in range(count)]
    random.Random(f"order {seed}").shuffle(requests)
    return requests
