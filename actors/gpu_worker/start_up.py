"""From a configuration to a worker that has run a step."""

import ctypes
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import torch
from msgspec import structs

from pillion.actors.gpu_worker.compile_ahead import Compilation
from pillion.actors.gpu_worker.cuda_graphs import (
    GraphCapturer,
    expected_graph_bytes,
    mixed_shapes,
)
from pillion.actors.gpu_worker.device import (
    Device,
    available_cpu_threads,
    choose_device,
    free_memory_bytes,
)
from pillion.actors.gpu_worker.faults import FaultyExecutor
from pillion.actors.gpu_worker.kv_cache import KvCache
from pillion.actors.gpu_worker.limits import (
    DeviceLedger,
    KvShape,
    WorkerLimits,
    cpu_kv_bytes,
    cuda_kv_bytes,
    probe_limits,
    refuse_what_cannot_fit,
    worker_limits,
)
from pillion.actors.gpu_worker.models.loader import (
    LoadedModel,
    choose_branch_dtype,
    choose_dtype,
    load_model,
    num_weights,
    open_checkpoint,
)
from pillion.actors.gpu_worker.stages import Stages
from pillion.actors.gpu_worker.warm_up import self_test, warm_up
from pillion.actors.gpu_worker.worker import Worker
from pillion.messages.control import EngineGeometry, KvGroupGeometry
from pillion.runtime.config import EngineConfig
from pillion.runtime.fault_flags import fault_flags_of
from pillion.runtime.model_source import ModelSource, resolve_model
from pillion.runtime.progress import Progress

# Tokens of a warm-up prefill: enough to load every operator, few enough to take no time.
_WARM_UP_TOKENS: Final = 48

# Parameters of mallopt(3). What a step has freed, in pieces of up to 32 MiB (the most that glibc allows),
# is kept for the next step; to return it and have it mapped again page by page doubled the time of
# attention in a decode step of 32 rows.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_PIECE_BYTES: Final = 32 << 20
_KEPT_BYTES: Final = 512 << 20


def start_worker(
    config: EngineConfig,
    epoch: int,
    end_phase: Callable[[str], None],
    progress: Progress | None = None,
    compilation: Compilation | None = None,
) -> tuple[Worker, EngineGeometry]:
    """A worker that has run a step; as `start_stages`."""
    stages, geometry = start_stages(config, epoch, end_phase, progress, compilation)
    return stages.worker(epoch, config.steps_in_flight, partial(self_test, stages)), geometry


def start_stages(
    config: EngineConfig,
    epoch: int,
    end_phase: Callable[[str], None],
    progress: Progress | None = None,
    compilation: Compilation | None = None,
) -> tuple[Stages, EngineGeometry]:
    """Loads the model, sizes the KV pool and runs a first step; `end_phase` hears what is done.

    Waits for `compilation`, whose processes use the device's memory, before the pool is sized.

    Each layer of a step that is no graph is stamped in `progress`: on a CPU it may take long, and on a CUDA device
    its kernels may have to be compiled.

    Raises ConfigError or ModelError for what cannot work, before the weights are read where that can be
    known.
    """
    device = Device(choose_device(config.device))
    if not device.is_cuda:
        torch.set_num_threads(config.cpu_threads or available_cpu_threads())
        _keep_freed_memory()
    source = resolve_model(config.model_path or config.model)
    checkpoint = open_checkpoint(config, source)
    model_config = checkpoint.config
    dtype = choose_dtype(config.dtype, device.device, model_config)
    kv_dtype = choose_branch_dtype(config.dtype, device.device, dtype)
    shape = KvShape(
        num_layers=model_config.num_layers,
        num_kv_heads=model_config.num_kv_heads,
        head_dim=model_config.head_dim,
        block_size=config.block_size,
        bytes_per_number=kv_dtype.itemsize,
    )
    if not device.is_cuda:
        kv_bytes = cpu_kv_bytes(config, shape, free_memory_bytes())
        limits = worker_limits(config, shape, model_config.max_positions, kv_bytes, is_cuda=False)
    else:
        # What the compiling processes hold is given back.
        held_bytes = 0 if compilation is not None else _held_bytes(device)
        weights_bytes = num_weights(model_config) * dtype.itemsize
        before = DeviceLedger(_total_bytes(device), held_bytes + weights_bytes)
        refuse_what_cannot_fit(config, shape, before)
    end_phase("model files")

    loaded = load_model(config, source, device.device, dtype, checkpoint)
    end_phase("weights")
    if compilation is not None:
        compilation.wait()
        end_phase("kernels")
    ledger = None
    if device.is_cuda:
        limits, ledger = _measured_cuda_limits(config, shape, device, loaded)
    on_layer = progress.stamp_layer if progress is not None else None
    kv_cache = _kv_cache(shape, limits.num_blocks, kv_dtype, device, on_layer)
    stages = Stages.build(
        device,
        loaded.model,
        model_config.vocab_size,
        kv_cache,
        limits,
        graphs_for_weights=num_weights(model_config) if device.is_cuda else None,
    )
    end_phase("kv cache")

    warm_up(stages, limits, shape.block_size, _WARM_UP_TOKENS)
    end_phase("warm-up")
    if stages.capturer is not None and ledger is not None:
        ledger = replace(ledger, graphs_bytes=_capture(device, stages.capturer))
        end_phase("graphs")
    flags = fault_flags_of(config, "gpu_worker")
    if flags:
        stages = replace(stages, executor=FaultyExecutor(loaded.model, kv_cache, flags, epoch))
    geometry = _geometry(config, epoch, source, device, loaded, limits, shape, kv_cache)
    return stages, geometry if ledger is None else _with_ledger(geometry, ledger)


def _with_ledger(geometry: EngineGeometry, ledger: DeviceLedger) -> EngineGeometry:
    return structs.replace(
        geometry,
        workspace_bytes=ledger.workspace_bytes,
        graphs_bytes=ledger.graphs_bytes,
        device_bytes=ledger.total_bytes,
    )


def _total_bytes(device: Device) -> int:
    return torch.cuda.mem_get_info(device.device)[1]


def _held_bytes(device: Device) -> int:
    """Of the device's memory; what others hold counts."""
    free_bytes, total_bytes = torch.cuda.mem_get_info(device.device)
    return total_bytes - free_bytes


def _capture(device: Device, capturer: GraphCapturer) -> int:
    """Captures all steps; returns how much of the device's memory that took."""
    torch.cuda.empty_cache()
    before = _held_bytes(device)
    capturer.capture_all()
    torch.cuda.empty_cache()
    return max(0, _held_bytes(device) - before)


def _measured_cuda_limits(
    config: EngineConfig, shape: KvShape, device: Device, loaded: LoadedModel
) -> tuple[WorkerLimits, DeviceLedger]:
    """Limits with the pool that a largest step leaves room for; runs such a step with a pool of its own."""
    cuda, max_positions = torch.cuda, loaded.config.max_positions
    probe = probe_limits(config, shape, max_positions)
    total_bytes, used_bytes = _total_bytes(device), _held_bytes(device)
    before = cuda.memory_allocated(device.device)
    cuda.reset_peak_memory_stats(device.device)
    kv_cache = _kv_cache(shape, probe.num_blocks, loaded.dtype, device)
    stages = Stages.build(device, loaded.model, loaded.config.vocab_size, kv_cache, probe)
    warm_up(stages, probe, shape.block_size, probe.max_num_batched_tokens)
    cuda.synchronize(device.device)
    peak = cuda.max_memory_allocated(device.device)
    workspace_bytes = peak - before - kv_cache.num_bytes
    del stages, kv_cache
    cuda.empty_cache()
    shapes = mixed_shapes(
        probe.max_num_seqs, probe.max_num_batched_tokens, num_weights(loaded.config)
    )
    graphs_bytes = expected_graph_bytes(
        probe.max_num_seqs, shapes, loaded.config.num_layers, loaded.config.vocab_size
    )
    ledger = DeviceLedger(total_bytes, used_bytes, workspace_bytes, graphs_bytes)
    kv_bytes = cuda_kv_bytes(config, shape, ledger)
    return worker_limits(config, shape, max_positions, kv_bytes, is_cuda=True), ledger


def _kv_cache(
    shape: KvShape,
    num_blocks: int,
    dtype: torch.dtype,
    device: Device,
    on_layer: Callable[[], None] | None = None,
) -> KvCache:
    return KvCache(
        num_blocks=num_blocks,
        num_layers=shape.num_layers,
        num_kv_heads=shape.num_kv_heads,
        block_size=shape.block_size,
        head_dim=shape.head_dim,
        dtype=dtype,
        device=device.device,
        on_layer=on_layer,
    )


def _geometry(
    config: EngineConfig,
    epoch: int,
    source: ModelSource,
    device: Device,
    loaded: LoadedModel,
    limits: WorkerLimits,
    shape: KvShape,
    kv_cache: KvCache,
) -> EngineGeometry:
    group = KvGroupGeometry(
        kind="full_attention",
        num_layers=shape.num_layers,
        num_blocks=limits.num_blocks,
        block_size_tokens=shape.block_size,
        block_bytes=shape.block_bytes,
    )
    return EngineGeometry(
        epoch=epoch,
        model_name=config.served_model_name or source.name,
        architecture=loaded.config.architecture,
        device=str(device.device),
        dtype=str(loaded.dtype).removeprefix("torch."),
        vocab_size=loaded.config.vocab_size,
        max_model_len=limits.max_model_len,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        kv_groups=[group],
        weights_bytes=loaded.weights_bytes,
        kv_bytes=kv_cache.num_bytes,
        num_parameters=num_weights(loaded.config),
        step_read_bytes=loaded.row_bytes,
    )


def _keep_freed_memory() -> None:
    """Asks the C library, if it is glibc, to keep what is freed for the next step."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT_PIECE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
