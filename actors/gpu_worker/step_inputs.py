"""The tensors of one step: what InputPreparer makes and ModelExecutor and OutputProcessor read."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from pillion.kernels.paged_attention import DecodeGather, PrefillTiles

if TYPE_CHECKING:
    from pillion.actors.gpu_worker.cuda_graphs import CapturedStep


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """Rows of a step as attention sees them: decode rows first, then prefill rows.

    It is the `AttentionRows` that `pillion.kernels.paged_attention` asks for.
    """

    # [num_rows + 1] int32 device; first token of each row in input_ids
    query_start_loc: torch.Tensor
    # [num_rows] int32 device; KV length with this step's tokens, 0 for masked rows
    seq_lens: torch.Tensor
    # [num_rows, max_blocks_in_step] int32 device; entries beyond a row's blocks mean nothing
    block_table: torch.Tensor
    # [num_tokens] int64 device; block_id * block_size + offset, -1: do not write
    slot_mapping: torch.Tensor
    # rows 0 .. num_decode_rows - 1 have exactly one token each; in a captured step with prefill rows, those
    # of them that do not decode have KV length 0
    num_decode_rows: int
    # host upper bounds over all rows
    max_query_len: int
    max_seq_len: int
    # host upper bound over the decode rows, 0 without any
    max_decode_seq_len: int
    # tokens in this step and KV length of each prefill row
    prefill_query_lens: tuple[int, ...] = ()
    prefill_seq_lens: tuple[int, ...] = ()
    # for the kernel on a CUDA device
    prefill_tiles: PrefillTiles | None = None
    # for the torch reference, computed once for all layers
    gather: tuple[DecodeGather, ...] | None = None
    # [num_tokens * 2 * num_kv_heads] int64; the same for the write of keys and values
    pool_rows: torch.Tensor | None = None

    @property
    def has_prefill(self) -> bool:
        """Whether there are rows besides decode rows."""
        return self.prefill_tiles is not None or bool(self.prefill_query_lens)

    @property
    def is_captured(self) -> bool:
        """Of a step with prefill rows: whether it is a graph's, of which the host knows no row."""
        return not self.prefill_query_lens

    @property
    def has_whole_prompts(self) -> bool:
        """Whether there are long prompts that this step computes from their first token."""
        return self.prefill_tiles is not None and bool(self.prefill_tiles.whole_prompts)


@dataclass(frozen=True, slots=True)
class PromptLogprobRows:
    """Prompt positions of one prefill row whose log-probabilities were asked for."""

    sequence_id: int
    # the first position; predicted by the token before it
    start: int
    # index in input_ids of the token that predicts `start`
    first_token: int
    # the prompt's own tokens at start, start + 1, ...
    token_ids_np: npt.NDArray[np.int32]
    num_top: int


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Everything that one step reads. Rows that sample are the decode rows and the last prefill chunks."""

    # [num_tokens] int64 device
    input_ids: torch.Tensor
    # [num_tokens] int64 device
    positions: torch.Tensor
    attention: AttentionInputs
    # [num_rows] int64 device
    slots: torch.Tensor
    # [num_rows] int64 device; tokens by which a row's num_computed advances, 0 for masked rows
    advance: torch.Tensor
    # [num_sample_rows or more] int64 device; index in input_ids of each sampling row's last token, then of any
    logits_indices: torch.Tensor
    # [num_sample_rows] int64 device, and what the host knows of the same rows
    sample_slots: torch.Tensor
    # [num_sample_rows] bool device; False: masked, its token counts for nothing
    sample_valid: torch.Tensor
    sample_slots_np: npt.NDArray[np.int32]
    sample_generations_np: npt.NDArray[np.int32]
    sample_sequence_ids_np: npt.NDArray[np.int64]
    # padding left out
    num_decode_rows: int
    num_prefill_tokens: int
    # set if the step is captured: the tensors above are the graph's own, padded beyond the step's rows
    graph: "CapturedStep | None" = None
    prompt_logprobs: tuple[PromptLogprobRows, ...] = ()
    # [num_sample_rows] bool; None: every row samples, if the device doesn't mask it
    samples_np: npt.NDArray[np.bool_] | None = None

    @property
    def wanted_tokens(self) -> torch.Tensor | None:
        """[n] int64; those whose hidden states somebody reads. None: all."""
        return self.logits_indices if self.num_prefill_tokens and not self.prompt_logprobs else None
