"""The end of a step, from logits to updated slots, in launches that need nothing of the host: they can be captured."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import torch

from pillion.kernels.edit_logits import EditTables, edit_logits
from pillion.kernels.greedy_step import greedy_step
from pillion.kernels.row_settings import RowSettings, row_settings
from pillion.kernels.sample import sample
from pillion.kernels.sampled_step import SlotTables, sampled_step
from pillion.kernels.token_logprobs import write_logprobs
from pillion.messages.sampling import MAX_LOGPROBS


class End(Enum):
    """What the rows of a step need at the most."""

    GREEDY = "greedy"  # the best tokens
    SAMPLED = "sampled"  # temperature, filters and noise
    FULL = "full"  # edits of the logits and log-probabilities as well


class SamplerTables(NamedTuple):
    """What each slot asks of the sampler; the tensors never move."""

    # [num_slots, 3] float32; temperature, min-p, top-p
    shape: torch.Tensor
    # [num_slots, 2] int64; top-k (the vocabulary's size: off), seed
    integers: torch.Tensor
    # [num_slots, 2] int32; see Features
    features: torch.Tensor
    edits: EditTables


class EndRows(NamedTuple):
    """The rows of a step."""

    # [num_rows] int64
    slots: torch.Tensor
    # [num_rows] bool; False: masked
    valid: torch.Tensor
    # [num_rows] int64; tokens by which num_computed goes on
    advance: torch.Tensor


@dataclass(frozen=True, slots=True)
class EndResult:
    """What an end leaves for the host."""

    # [4, num_rows] int32: token, position, finish code, whether the row counts
    columns: torch.Tensor
    # of full ends; [1 + MAX_LOGPROBS, num_rows] int32 and float32: the sampled token, then the best
    logprob_ids: torch.Tensor
    logprobs: torch.Tensor
    # [num_rows] int32
    ranks: torch.Tensor

    @classmethod
    def empty(cls, end: End, num_rows: int, device: torch.device) -> "EndResult":
        """For so many rows."""
        width = 1 + MAX_LOGPROBS if end is End.FULL else 0

        def integers(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=torch.int32, device=device)

        logprobs = torch.empty((width, num_rows), dtype=torch.float32, device=device)
        return cls(integers(4, num_rows), integers(width, num_rows), logprobs, integers(num_rows))


def launch_end(
    end: End,
    logits: torch.Tensor,
    raw: torch.Tensor,
    rows: EndRows,
    slots: SlotTables,
    tables: SamplerTables,
    result: EndResult,
) -> None:
    """Does what `end` says for every row; a row costs what it asks for.

    logits: [num_rows, vocab] float32; token masks are applied already, unless the end is full. raw: as logits, used
    by full ends. Writes: logits, raw, result, the slots' state and what the sampler remembers of their tokens.
    """
    if end is End.GREEDY:
        greedy_step(logits, *rows, *slots, result.columns)
        return
    settings = row_settings(
        rows.slots, rows.valid, slots.num_known, tables.shape, tables.integers, tables.features
    )
    if end is End.SAMPLED:
        token_ids, best = _sample(logits, settings)
        sampled_step(token_ids, best, *rows, slots, result.columns)
        return
    edited = edit_logits(
        logits,
        raw,
        rows.slots,
        settings.positions,
        settings.features,
        settings.wants_logprobs,
        tables.edits,
    )
    token_ids, best = _sample(logits, settings)
    sampled_step(
        token_ids,
        best,
        *rows,
        slots,
        result.columns,
        features=settings.features,
        edited=edited,
        token_counts=tables.edits.token_counts,
        recent=tables.edits.recent,
    )
    write_logprobs(
        raw,
        settings.wants_logprobs,
        settings.num_top,
        token_ids,
        result.logprob_ids.T,
        result.logprobs.T,
        result.ranks,
    )


def _sample(logits: torch.Tensor, settings: RowSettings) -> tuple[torch.Tensor, torch.Tensor]:
    return sample(
        logits,
        settings.temperature,
        settings.min_p,
        settings.top_k,
        settings.top_p,
        settings.seeds,
        settings.positions,
    )
