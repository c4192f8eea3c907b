"""The end of a step whose tokens were sampled: everything that follows from them, in one launch."""

import torch

from pillion.kernels.edit_logits import Edited
from pillion.kernels.sampled_step import reference
from pillion.kernels.sampled_step.reference import SlotTables

__all__ = ["SlotTables", "sampled_step"]


def sampled_step(
    token_ids: torch.Tensor,
    best: torch.Tensor,
    slots: torch.Tensor,
    valid: torch.Tensor,
    advance: torch.Tensor,
    tables: SlotTables,
    columns: torch.Tensor,
    *,
    features: torch.Tensor | None = None,
    edited: Edited | None = None,
    token_counts: torch.Tensor | None = None,
    recent: torch.Tensor | None = None,
) -> None:
    """Updates the slots as `update_rows` does, with failed = the row's largest logit, before edits, is not finite.

    The last four come together, if logits were edited: a row whose bans have left nothing takes the best of what was
    banned, and penalties and bad words remember the token.

    token_ids     [n] int32
    best          [n] float32; largest logit that was sampled from
    slots         [n] int64
    valid         [n] bool; False: nothing is sampled for this row
    advance       [n] int64; by how much num_computed goes on, 0 for masked rows
    columns       [4, n] int32: token, position, finish code, whether the row counts
    features      [n] int32; bits of `edit_logits`, 0 for masked rows
    token_counts  [at least num_slots, vocab] int16; as kernels.penalties says
    recent        [at least num_slots, t] int32; the last output tokens, the newest at the end

    Writes: token_ids, columns, token_counts, recent; of the tables all but max_total and stop_ids.
    """
    edits = None
    if features is not None and edited is not None:
        if token_counts is None or recent is None:
            raise ValueError("edited logits come with the tables that remember tokens")
        edits = reference.Edits(features, edited, token_counts, recent)
    if slots.is_cuda:
        from pillion.kernels.sampled_step import triton_impl

        implementation = triton_impl.sampled_step
    else:
        implementation = reference.sampled_step
    implementation(token_ids, best, slots, valid, advance, tables, columns, edits)
