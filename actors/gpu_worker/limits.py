"""How much a worker takes on: sequences, tokens per step, and a KV pool that fits the memory."""

from dataclasses import dataclass, replace
from typing import Final

from pillion.runtime.config import EngineConfig
from pillion.runtime.errors import ConfigError

# A step of this size keeps two cores busy for one or two seconds; a GPU wants far more to be busy at all.
CPU_MAX_NUM_SEQS: Final = 32
CPU_MAX_NUM_BATCHED_TOKENS: Final = 1024
# Where each token is a forward pass of its own a step of many lasts too long for those beside it.
LONE_MAX_NUM_BATCHED_TOKENS: Final = 32
CUDA_MAX_NUM_SEQS: Final = 256
CUDA_MAX_NUM_BATCHED_TOKENS: Final = 8192

# Of the memory that is free, a CPU daemon takes a modest share: it is a guest on that machine.
CPU_KV_SHARE: Final = 0.25
CPU_KV_MOST_BYTES: Final = 4 << 30


@dataclass(frozen=True, slots=True)
class KvShape:
    """What one block of all layers holds."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    bytes_per_number: int

    @property
    def block_bytes(self) -> int:
        """Keys and values of block_size tokens in all layers."""
        numbers = self.num_layers * 2 * self.num_kv_heads * self.block_size * self.head_dim
        return numbers * self.bytes_per_number

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that a sequence of this length needs."""
        return -(-num_tokens // self.block_size)


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """What the worker's tables are made for."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    num_blocks: int


def cpu_kv_bytes(config: EngineConfig, shape: KvShape, free_bytes: int) -> int:
    """Memory for the KV pool of a CPU worker, when `free_bytes` of the machine's memory are free.

    Raises ConfigError with the sum if the setting asks for more than there is.
    """
    if config.num_kv_blocks is not None:
        wanted, setting = config.num_kv_blocks * shape.block_bytes, "num_kv_blocks"
    elif config.kv_cache_bytes is not None:
        wanted, setting = config.kv_cache_bytes, "kv_cache_bytes"
    else:
        modest = min(int(free_bytes * CPU_KV_SHARE), CPU_KV_MOST_BYTES)
        # A length that was asked for is worth more memory than the modest share, if it is there.
        length = config.max_model_len or config.block_size
        wanted = max(modest, shape.blocks_for(length) * shape.block_bytes)
        setting = "max_model_len"
    if wanted > free_bytes:
        raise ConfigError(
            f"{setting}: the KV cache would take {_mib(wanted)} ({wanted // shape.block_bytes} blocks"
            f" of {shape.block_bytes} bytes), but {_mib(free_bytes)} of memory are free"
        )
    return wanted


@dataclass(frozen=True, slots=True)
class DeviceLedger:
    """What the memory of a CUDA device is for, before the KV pool gets the rest."""

    total_bytes: int
    # with the weights; before they are loaded: what others hold, and the weights by their number
    used_bytes: int
    # of a largest step, and of the captured steps
    workspace_bytes: int = 0
    graphs_bytes: int = 0

    def left_bytes(self, fraction: float) -> int:
        """For the KV pool; below 0 if nothing is left."""
        taken = self.used_bytes + self.workspace_bytes + self.graphs_bytes
        return int(self.total_bytes * fraction) - taken


def refuse_what_cannot_fit(config: EngineConfig, shape: KvShape, ledger: DeviceLedger) -> None:
    """Before weights are read: `ledger` counts them by their number, and no step was measured yet.

    Raises ConfigError with the sum if not even the weights and the least KV pool have room.
    """
    least = shape.block_bytes * shape.blocks_for(config.max_model_len or 1)
    if config.num_kv_blocks is not None:
        least = config.num_kv_blocks * shape.block_bytes
    elif config.kv_cache_bytes is not None:
        least = config.kv_cache_bytes
    left = ledger.left_bytes(config.memory_fraction)
    if least > left:
        raise ConfigError(
            f"memory_fraction: {config.memory_fraction} of {_mib(ledger.total_bytes)}, less"
            f" {_mib(ledger.used_bytes)} for the weights and what others hold, leave {_mib(left)}; the"
            f" KV cache needs at least {_mib(least)}"
        )


def cuda_kv_bytes(config: EngineConfig, shape: KvShape, ledger: DeviceLedger) -> int:
    """Memory for the KV pool of a CUDA worker after weights are loaded and a largest step was measured.

    Raises ConfigError with the sum if nothing is left, or less than the setting asks for.
    """
    left = ledger.left_bytes(config.memory_fraction)
    if config.num_kv_blocks is not None:
        wanted = config.num_kv_blocks * shape.block_bytes
    else:
        wanted = left if config.kv_cache_bytes is None else config.kv_cache_bytes
    if wanted > left or left < shape.block_bytes:
        raise ConfigError(
            f"memory_fraction: {config.memory_fraction} of {_mib(ledger.total_bytes)}, less"
            f" {_mib(ledger.used_bytes)} in use with the weights, {_mib(ledger.workspace_bytes)} for a step"
            f" and {_mib(ledger.graphs_bytes)} for graphs, leave {_mib(left)} for the KV cache, and it needs"
            f" {_mib(max(wanted, shape.block_bytes))}"
        )
    return wanted


def worker_limits(
    config: EngineConfig, shape: KvShape, max_positions: int, kv_bytes: int, *, is_cuda: bool
) -> WorkerLimits:
    """The worker's limits with a KV pool of at most this size.

    Unless it is set, max_model_len is what the model was made for, or what fits the pool if that is
    less. Raises ConfigError naming the setting that cannot be kept.
    """
    num_blocks = kv_bytes // shape.block_bytes
    pool_tokens = num_blocks * shape.block_size
    if num_blocks == 0:
        raise ConfigError(
            f"kv_cache_bytes: a KV block has {shape.block_bytes} bytes, but the KV cache only {kv_bytes}"
        )
    if config.max_model_len is None:
        max_model_len = min(max_positions, pool_tokens)
    else:
        max_model_len = config.max_model_len
    if max_model_len > max_positions:
        raise ConfigError(
            f"max_model_len is {max_model_len}, but the model was made for {max_positions} positions"
        )
    if max_model_len > pool_tokens or max_model_len < 2:
        raise ConfigError(
            f"max_model_len: one sequence of {max_model_len} tokens needs"
            f" {shape.blocks_for(max(max_model_len, 2))} KV blocks of {shape.block_bytes} bytes,"
            f" but {_mib(kv_bytes)} hold {num_blocks}"
        )
    max_num_seqs = config.max_num_seqs or (CUDA_MAX_NUM_SEQS if is_cuda else CPU_MAX_NUM_SEQS)
    most_tokens = CUDA_MAX_NUM_BATCHED_TOKENS if is_cuda else CPU_MAX_NUM_BATCHED_TOKENS
    if config.batch_invariant:
        most_tokens = LONE_MAX_NUM_BATCHED_TOKENS
    max_num_batched_tokens = config.max_num_batched_tokens or max(max_num_seqs, most_tokens)
    if max_num_batched_tokens < max_num_seqs:
        raise ConfigError(
            f"max_num_batched_tokens is {max_num_batched_tokens}, but {max_num_seqs} sequences"
            " (max_num_seqs) decode one token each per step"
        )
    return WorkerLimits(max_num_seqs, max_num_batched_tokens, max_model_len, num_blocks)


def probe_limits(config: EngineConfig, shape: KvShape, max_positions: int) -> WorkerLimits:
    """Limits as if memory had no end, with a pool just large enough for a largest step."""
    limits = worker_limits(config, shape, max_positions, 1 << 62, is_cuda=True)
    num_tokens = min(limits.max_num_batched_tokens, limits.max_model_len)
    return replace(limits, num_blocks=shape.blocks_for(num_tokens) + limits.max_num_seqs)


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"
