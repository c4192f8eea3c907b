"""Sampling settings with defaults, and a sampler that is fed on the host."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from pillion.actors.gpu_worker.sampling.sampler import Sampled, Sampler
from pillion.messages.sampling import TokenSampling


def make_sampling(**fields: Any) -> TokenSampling:
    """Greedy, without end, unless said otherwise."""
    defaults: dict[str, Any] = {
        "temperature": 0.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "seed": 0,
        "stop_token_ids": [],
        "min_tokens": 0,
        "max_tokens": 1000,
        "logprobs": None,
        "prompt_logprobs": None,
        "logit_bias": {},
        "allowed_token_ids": [],
        "bad_words": [],
    }
    return TokenSampling(**(defaults | fields))


@dataclass
class SamplerRig:
    """A sampler on the CPU whose slots' tokens the test knows."""

    vocab_size: int
    max_num_seqs: int = 8
    preallocate: bool | None = None
    tokens: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sampler = Sampler(
            self.vocab_size, self.max_num_seqs, 512, torch.device("cpu"), self.preallocate
        )

    def add(
        self,
        slot: int,
        prompt: Sequence[int] = (1, 2),
        produced: Sequence[int] = (),
        **fields: Any,
    ) -> None:
        """Seats a sequence."""
        self.tokens[slot] = [*prompt, *produced]
        tokens = np.array(self.tokens[slot], dtype=np.int32)
        self.sampler.add(slot, make_sampling(**fields), tokens, len(prompt))

    def sample(self, logits: torch.Tensor, slots: Sequence[int]) -> Sampled:
        """One step without remembering its tokens; `logits` stay as they are."""
        slots_np = np.array(slots, dtype=np.int32)
        positions = torch.tensor([len(self.tokens[slot]) for slot in slots], dtype=torch.int64)
        return self.sampler.sample(
            logits.clone(), torch.from_numpy(slots_np.astype(np.int64)), slots_np, positions
        )

    def observe(
        self, slots: Sequence[int], tokens: Sequence[int], valid: Sequence[bool] | None = None
    ) -> None:
        """Tells the sampler what these slots got."""
        flags = [True] * len(slots) if valid is None else list(valid)
        for slot, token, flag in zip(slots, tokens, flags, strict=True):
            if flag:
                self.tokens[slot].append(token)
        self.sampler.observe(
            torch.tensor(slots, dtype=torch.int64),
            torch.tensor(tokens, dtype=torch.int32),
            torch.tensor(flags, dtype=torch.bool),
        )

    def step(self, logits: torch.Tensor, slots: Sequence[int]) -> list[int]:
        """Samples and remembers."""
        tokens: list[int] = self.sample(logits, slots).token_ids.tolist()
        self.observe(slots, tokens)
        return tokens


@pytest.fixture
def make_rig() -> Callable[..., SamplerRig]:
    """Makes a sampler of a vocabulary's size."""
    return SamplerRig


@pytest.fixture(name="make_sampling")
def make_sampling_fixture() -> Callable[..., TokenSampling]:
    """Makes settings from the fields that matter."""
    return make_sampling
