"""What the engine can hold, and which requests can never fit."""

from dataclasses import dataclass
from typing import Self

from pillion.messages.control import EngineGeometry
from pillion.runtime.config import EngineConfig
from pillion.runtime.errors import InvariantBroken


@dataclass(frozen=True, slots=True)
class Limits:
    """The sizes that bound a step and a request."""

    max_num_seqs: int  # slots
    max_num_batched_tokens: int  # tokens of one step, prefill and decode together
    max_model_len: int
    max_repeat: int
    steps_in_flight: int
    num_groups: int
    num_blocks: int  # of the smallest KV group
    block_size_tokens: int

    @classmethod
    def of(cls, config: EngineConfig, geometry: EngineGeometry) -> Self:
        """Joins what was configured with what the worker found. Raises InvariantBroken if it cannot work."""
        sizes = {group.block_size_tokens for group in geometry.kv_groups}
        if len(sizes) != 1:
            raise InvariantBroken(f"KV groups need one common block size, got {sorted(sizes)}")
        return cls(
            # Every running sequence needs a token of each step.
            max_num_seqs=min(geometry.max_num_seqs, geometry.max_num_batched_tokens),
            max_num_batched_tokens=geometry.max_num_batched_tokens,
            max_model_len=geometry.max_model_len,
            max_repeat=config.max_repeat,
            steps_in_flight=config.steps_in_flight,
            num_groups=len(geometry.kv_groups),
            num_blocks=min(group.num_blocks for group in geometry.kv_groups),
            block_size_tokens=sizes.pop(),
        )

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-num_tokens // self.block_size_tokens)

    def total_tokens(self, num_prompt_tokens: int, max_tokens: int) -> int:
        """Tokens at which a sequence ends at the latest."""
        return min(num_prompt_tokens + max_tokens, self.max_model_len)

    def refusal(self, num_prompt_tokens: int, max_tokens: int) -> str | None:
        """Why a request with these sizes can never run, with the sum; None if it can."""
        if num_prompt_tokens >= self.max_model_len:
            return (
                f"the prompt has {num_prompt_tokens} tokens, the model takes {self.max_model_len}"
                " for prompt and answer together: shorten the prompt"
            )
        total = self.total_tokens(num_prompt_tokens, max_tokens)
        pool_tokens = self.num_blocks * self.block_size_tokens
        if total <= pool_tokens:
            return None
        pool = (
            f"the KV cache holds {pool_tokens} tokens"
            f" ({self.num_blocks} blocks of {self.block_size_tokens})"
        )
        if num_prompt_tokens >= pool_tokens:
            return f"the prompt has {num_prompt_tokens} tokens and {pool}: shorten the prompt"
        answer = total - num_prompt_tokens
        return (
            f"{num_prompt_tokens} prompt tokens + {answer} of max_tokens = {total} tokens and {pool}:"
            f" lower max_tokens to {pool_tokens - num_prompt_tokens} or shorten the prompt"
        )
