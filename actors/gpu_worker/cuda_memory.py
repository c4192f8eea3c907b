"""What the memory of a CUDA device is for, by measurement."""

import logging
from collections.abc import Callable

import torch

from pillion.actors.gpu_worker.blueprint import Blueprint
from pillion.actors.gpu_worker.cuda_graphs import expected_graph_bytes, mixed_shapes
from pillion.actors.gpu_worker.device import Device
from pillion.actors.gpu_worker.limits import (
    DeviceLedger,
    WorkerLimits,
    cuda_kv_bytes,
    probe_limits,
    worker_limits,
)
from pillion.actors.gpu_worker.models.loader import LoadedModel
from pillion.actors.gpu_worker.stages import Stages
from pillion.actors.gpu_worker.warm_up import warm_up

logger = logging.getLogger(__name__)


def total_bytes(device: Device) -> int:
    """Of the device's memory."""
    return torch.cuda.mem_get_info(device.device)[1]


def held_bytes(device: Device) -> int:
    """Of the device's memory; what others hold counts."""
    free_bytes, all_bytes = torch.cuda.mem_get_info(device.device)
    return all_bytes - free_bytes


class GraphMeter:
    """What graphs take of the device's memory: one capture is measured apart from the other, as steps run between."""

    def __init__(self, device: Device, kept_bytes: int) -> None:
        """`kept_bytes`: what the KV cache has left for them."""
        self.taken_bytes = 0
        self._device = device
        self._kept_bytes = kept_bytes

    def measure(self, capture: Callable[[], None]) -> None:
        """Calls it, and counts what stays taken."""
        torch.cuda.empty_cache()
        before = held_bytes(self._device)
        capture()
        torch.cuda.empty_cache()
        self.taken_bytes += max(0, held_bytes(self._device) - before)

    def warn_if_more(self) -> None:
        """That it is more than was kept for them."""
        if self.taken_bytes > self._kept_bytes:
            logger.warning(
                "graphs took %.1f MiB of the device, %.1f MiB more than the KV cache has left for them",
                self.taken_bytes / 2**20,
                (self.taken_bytes - self._kept_bytes) / 2**20,
            )


def measured_limits(blueprint: Blueprint, loaded: LoadedModel) -> tuple[WorkerLimits, DeviceLedger]:
    """Limits with the pool that a largest step leaves room for; runs such a step with a pool of its own.

    What is in use is looked at behind that step: kernels and libraries that it has loaded stay.

    Raises ConfigError with the sum for settings that cannot be kept.
    """
    config, shape, device = blueprint.config, blueprint.shape, blueprint.device
    cuda, max_positions = torch.cuda, loaded.config.max_positions
    probe = probe_limits(config, shape, max_positions)
    cuda.reset_peak_memory_stats(device.device)
    kv_cache = blueprint.kv_cache(probe.num_blocks)
    stages = Stages.build(device, loaded.model, loaded.config.vocab_size, kv_cache, probe)
    warm_up(stages, probe, shape.block_size, probe.max_num_batched_tokens)
    cuda.synchronize(device.device)
    of_step = cuda.max_memory_allocated(device.device) - kv_cache.num_bytes
    del stages, kv_cache
    cuda.empty_cache()
    # Scratch memory of kernels and libraries stays, and is in use from now on.
    workspace_bytes = of_step - cuda.memory_allocated(device.device)
    shapes = mixed_shapes(probe.max_num_seqs, probe.max_num_batched_tokens, blueprint.num_weights)
    graphs_bytes = expected_graph_bytes(
        probe.max_num_seqs,
        shapes,
        loaded.config.num_layers,
        loaded.config.vocab_size,
        workspace_bytes / probe.max_num_batched_tokens,
    )
    ledger = DeviceLedger(total_bytes(device), held_bytes(device), workspace_bytes, graphs_bytes)
    kv_bytes = cuda_kv_bytes(config, shape, ledger)
    return worker_limits(config, shape, max_positions, kv_bytes, is_cuda=True), ledger
