"""Tiny random checkpoints made by transformers, and a way to run ours on them step by step."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from pillion.actors.gpu_worker.kv_cache import KvCache
from pillion.actors.gpu_worker.models.loader import LoadedModel, load_model
from pillion.actors.gpu_worker.step_inputs import AttentionInputs
from pillion.runtime.config import EngineConfig, make_config
from pillion.runtime.model_source import ModelSource

CPU = torch.device("cpu")
BLOCK_SIZE = 8
BLOCKS_PER_SEQUENCE = 16

SIZES: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
}
# The settings that set a family apart from the others, in the spelling of transformers 5.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"head_dim": 24},
    "llama_bias_tied": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "mistral": {"sliding_window": 8},
    "qwen2": {"num_key_value_heads": 4},
    "qwen2_windows": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    "qwen3": {"tie_word_embeddings": True},
    "qwen3_bias": {"attention_bias": True},
}


def make_reference(name: str, **settings: Any) -> Any:
    """A random model of transformers; also its norms and biases are random."""
    torch.manual_seed(len(name))
    model_type = name.partition("_")[0]
    config = transformers.AutoConfig.for_model(model_type, **(SIZES | FAMILIES[name] | settings))
    if model_type == "qwen2":
        del config.head_dim  # an unknown field that the family ignores
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).eval().float()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name:
                parameter.uniform_(0.5, 1.5)
            elif parameter_name.endswith("bias"):
                parameter.normal_(0, 0.5)
    return model


def source_of(directory: Path) -> ModelSource:
    kind = "directory" if directory.is_dir() else "gguf"
    return ModelSource(kind=kind, path=directory, name="tiny")


def config_of(**fields: Any) -> EngineConfig:
    return make_config({"model": "tiny", "dtype": "float32"} | fields)


def load(path: Path, device: torch.device = CPU, **fields: Any) -> LoadedModel:
    return load_model(config_of(**fields), source_of(path), device)


@dataclass
class Runner:
    """Runs sequences through a loaded model: chunks of any size, several sequences in one step."""

    loaded: LoadedModel
    device: torch.device = CPU
    num_sequences: int = 3
    computed: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        config = self.loaded.config
        num_blocks = self.num_sequences * BLOCKS_PER_SEQUENCE
        self.kv_cache = KvCache(
            num_blocks,
            config.num_layers,
            config.num_kv_heads,
            BLOCK_SIZE,
            config.head_dim,
            self.loaded.dtype,
            self.device,
        )
        self.kv_cache.tensor.fill_(float("nan"))  # what nobody wrote must not matter
        # Shuffled, so that a sequence's blocks are not neighbours.
        order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(1))
        self.tables = order.view(self.num_sequences, BLOCKS_PER_SEQUENCE).to(torch.int32)

    def step(self, chunks: Sequence[tuple[int, torch.Tensor]]) -> list[torch.Tensor]:
        """The next tokens of some sequences; logits [len(chunk), vocab_size] of each.

        Chunks of one token come first: they run as decode rows.
        """
        logits = self._logits(chunks, None)
        return list(logits.split([len(tokens) for _, tokens in chunks]))

    def step_of(
        self, chunks: Sequence[tuple[int, torch.Tensor]], wanted: Sequence[int]
    ) -> torch.Tensor:
        """The same, but only the logits of these tokens of the step, [len(wanted), vocab_size]."""
        indices = torch.tensor(list(wanted), dtype=torch.int64, device=self.device)
        return self._logits(chunks, indices)

    def _logits(
        self, chunks: Sequence[tuple[int, torch.Tensor]], wanted: torch.Tensor | None
    ) -> torch.Tensor:
        lengths = [len(tokens) for _, tokens in chunks]
        starts = [self.computed.get(sequence, 0) for sequence, _ in chunks]
        ends = [start + length for start, length in zip(starts, lengths, strict=True)]
        num_decode = sum(length == 1 for length in lengths)
        assert all(length == 1 for length in lengths[:num_decode])
        tables = torch.stack([self.tables[sequence] for sequence, _ in chunks])
        positions = torch.cat([torch.arange(*span) for span in zip(starts, ends, strict=True)])
        rows = torch.arange(len(chunks)).repeat_interleave(torch.tensor(lengths))
        blocks = tables[rows, positions // BLOCK_SIZE].long()
        attention = AttentionInputs(
            query_start_loc=torch.tensor([0, *lengths]).cumsum(0).int().to(self.device),
            seq_lens=torch.tensor(ends, dtype=torch.int32, device=self.device),
            block_table=tables.to(self.device),
            slot_mapping=(blocks * BLOCK_SIZE + positions % BLOCK_SIZE).to(self.device),
            num_decode_rows=num_decode,
            max_query_len=max(lengths),
            max_seq_len=max(ends),
            max_decode_seq_len=max(ends[:num_decode], default=0),
            prefill_query_lens=tuple(lengths[num_decode:]),
            prefill_seq_lens=tuple(ends[num_decode:]),
        )
        input_ids = torch.cat([tokens for _, tokens in chunks]).to(self.device)
        model = self.loaded.model
        positions = positions.to(self.device)
        hidden = model.forward(input_ids, positions, self.kv_cache, attention, wanted)
        for (sequence, _), end in zip(chunks, ends, strict=True):
            self.computed[sequence] = end
        return model.compute_logits(hidden).cpu()

    def run(self, sequence: int, tokens: torch.Tensor, chunk_sizes: Sequence[int]) -> torch.Tensor:
        """All logits of a sequence that is computed in chunks of these sizes."""
        assert sum(chunk_sizes) == len(tokens)
        parts = [self.step([(sequence, chunk)])[0] for chunk in tokens.split(list(chunk_sizes))]
        return torch.cat(parts)


def random_tokens(length: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, SIZES["vocab_size"], (length,), generator=generator)


def reference_logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(tokens.unsqueeze(0)).logits[0]
    return logits
