"""From a configuration to a worker that has run a step."""

import ctypes
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import torch

from pillion.actors.gpu_worker.blueprint import Blueprint
from pillion.actors.gpu_worker.compile_ahead import Compilation, check_ahead, has_compiled
from pillion.actors.gpu_worker.cuda_graphs import GraphCapturer
from pillion.actors.gpu_worker.cuda_memory import (
    GraphMeter,
    held_bytes,
    measured_limits,
    total_bytes,
)
from pillion.actors.gpu_worker.device import (
    Device,
    available_cpu_threads,
    choose_device,
)
from pillion.actors.gpu_worker.faults import FaultyExecutor
from pillion.actors.gpu_worker.host_memory import free_memory_bytes
from pillion.actors.gpu_worker.kv_cache import KvCache
from pillion.actors.gpu_worker.late_graphs import LateGraphs
from pillion.actors.gpu_worker.limits import (
    DeviceLedger,
    WorkerLimits,
    cpu_kv_bytes,
    refuse_what_cannot_fit,
    worker_limits,
)
from pillion.actors.gpu_worker.models.loader import LoadedModel, load_model
from pillion.actors.gpu_worker.stages import Stages
from pillion.actors.gpu_worker.tuning.start import run_tuning, tuning_left
from pillion.actors.gpu_worker.warm_up import WARM_UP_TOKENS, self_test, warm_up
from pillion.actors.gpu_worker.worker import Worker
from pillion.messages.control import EngineGeometry, KvGroupGeometry
from pillion.runtime.config import EngineConfig
from pillion.runtime.fault_flags import fault_flags_of
from pillion.runtime.progress import Progress

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
    """A worker that has run a step, and captures between steps what is left; as `start_stages`."""
    stages, geometry = start_stages(config, epoch, end_phase, progress, compilation)
    test = partial(self_test, stages)
    return stages.worker(epoch, config.steps_in_flight, test, stages.late_graphs), geometry


def start_stages(
    config: EngineConfig,
    epoch: int,
    end_phase: Callable[[str], None],
    progress: Progress | None = None,
    compilation: Compilation | None = None,
) -> tuple[Stages, EngineGeometry]:
    """Loads the model, sizes the KV pool and runs a first step; `end_phase` hears what is done.

    Waits for `compilation`, whose processes use the device's memory, before the pool is sized. Starts one where
    products are to be tuned that no earlier start has tuned. With no kernel left to compile or tune, only small steps
    are captured.

    Each layer of a step that is no graph is stamped in `progress`: on a CPU it may take long, and on a CUDA device
    its kernels may have to be compiled.

    Raises ConfigError or ModelError for what cannot work, before the weights are read where that can be
    known.
    """
    device = _open_device(config)
    blueprint = Blueprint.read(config, device)
    plan = tuning_left(config, blueprint.model_config, blueprint.dtype, blueprint.device.device)
    if plan is not None and compilation is None:
        compilation = check_ahead(config)
    early = _limits_before_loading(blueprint, compiles_ahead=compilation is not None)
    end_phase("model files")

    loaded = load_model(
        config, blueprint.source, device.device, blueprint.dtype, blueprint.checkpoint
    )
    end_phase("weights")
    if compilation is not None:
        findings = compilation.wait()
        end_phase("kernels")
        if plan is not None:
            run_tuning(plan, loaded, findings, config.tuning_seconds)
            end_phase("tuning")
    limits, ledger = (early, None) if early is not None else measured_limits(blueprint, loaded)
    on_layer = progress.stamp_layer if progress is not None else None
    kv_cache = blueprint.kv_cache(limits.num_blocks, on_layer)
    captures = device.is_cuda and not config.batch_invariant
    stages = Stages.build(
        device,
        loaded.model,
        blueprint.model_config.vocab_size,
        kv_cache,
        limits,
        graphs_for_weights=blueprint.num_weights if captures else None,
        batch_invariant=config.batch_invariant,
        steps_in_flight=config.steps_in_flight,
    )
    end_phase("kv cache")

    warm_up(stages, limits, blueprint.shape.block_size, WARM_UP_TOKENS)
    end_phase("warm-up")
    if stages.capturer is not None and ledger is not None:
        meter = GraphMeter(device, ledger.graphs_bytes)
        is_all_compiled = compilation is None and has_compiled(config)
        late_graphs = capture_steps(stages.capturer, meter, is_all_compiled=is_all_compiled)
        stages = replace(stages, late_graphs=late_graphs)
        ledger = replace(ledger, graphs_bytes=meter.taken_bytes)
        end_phase("graphs")
    flags = fault_flags_of(config, "gpu_worker")
    if flags:
        stages = replace(stages, executor=FaultyExecutor(loaded.model, kv_cache, flags, epoch))
    return stages, _geometry(blueprint, epoch, loaded, limits, kv_cache, ledger)


def capture_steps(
    capturer: GraphCapturer, meter: GraphMeter, *, is_all_compiled: bool
) -> LateGraphs:
    """Captures what a worker is ready with; all, if a later capture might have to compile a kernel."""
    meter.measure(capturer.capture_first if is_all_compiled else capturer.capture_all)
    return LateGraphs(capturer, meter)


def _open_device(config: EngineConfig) -> Device:
    device = Device(choose_device(config.device))
    if not device.is_cuda:
        torch.set_num_threads(config.cpu_threads or available_cpu_threads())
        _keep_freed_memory()
    return device


def _limits_before_loading(blueprint: Blueprint, *, compiles_ahead: bool) -> WorkerLimits | None:
    """The limits of a CPU worker; None for a CUDA device, whose limits are measured when it has the weights.

    Raises ConfigError for what cannot fit.
    """
    config, shape, device = blueprint.config, blueprint.shape, blueprint.device
    if not device.is_cuda:
        kv_bytes = cpu_kv_bytes(config, shape, free_memory_bytes())
        max_positions = blueprint.model_config.max_positions
        return worker_limits(config, shape, max_positions, kv_bytes, is_cuda=False)
    # What the compiling processes hold is given back.
    held = 0 if compiles_ahead else held_bytes(device)
    weights_bytes = blueprint.num_weights * blueprint.dtype.itemsize
    refuse_what_cannot_fit(config, shape, DeviceLedger(total_bytes(device), held + weights_bytes))
    return None


def _geometry(
    blueprint: Blueprint,
    epoch: int,
    loaded: LoadedModel,
    limits: WorkerLimits,
    kv_cache: KvCache,
    ledger: DeviceLedger | None,
) -> EngineGeometry:
    shape = blueprint.shape
    group = KvGroupGeometry(
        kind="full_attention",
        num_layers=shape.num_layers,
        num_blocks=limits.num_blocks,
        block_size_tokens=shape.block_size,
        block_bytes=shape.block_bytes,
    )
    return EngineGeometry(
        epoch=epoch,
        model_name=blueprint.config.served_model_name or blueprint.source.name,
        architecture=loaded.config.architecture,
        device=str(blueprint.device.device),
        dtype=str(loaded.dtype).removeprefix("torch."),
        vocab_size=loaded.config.vocab_size,
        max_model_len=limits.max_model_len,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        kv_groups=[group],
        weights_bytes=loaded.weights_bytes,
        kv_bytes=kv_cache.num_bytes,
        num_parameters=blueprint.num_weights,
        step_read_bytes=loaded.row_bytes,
        workspace_bytes=ledger.workspace_bytes if ledger else 0,
        graphs_bytes=ledger.graphs_bytes if ledger else 0,
        device_bytes=ledger.total_bytes if ledger else 0,
    )


def _keep_freed_memory() -> None:
    """Asks the C library, if it is glibc, to keep what is freed for the next step."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT_PIECE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
