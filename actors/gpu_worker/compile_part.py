"""A part of the kernels of a start, compiled; see compile_ahead."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from pillion.actors.gpu_worker.compile_ahead import COMPILED, COMPILING_SHARE
from pillion.actors.gpu_worker.cuda_graphs import graph_sizes
from pillion.actors.gpu_worker.device import Device, choose_device
from pillion.actors.gpu_worker.kv_cache import KvCache
from pillion.actors.gpu_worker.limits import KvShape, probe_limits
from pillion.actors.gpu_worker.models.dummy_checkpoint import DummyCheckpoint
from pillion.actors.gpu_worker.models.loader import (
    LoadedModel,
    choose_dtype,
    load_model,
    num_weights,
    open_checkpoint,
)
from pillion.actors.gpu_worker.models.model_config import ModelConfig
from pillion.actors.gpu_worker.models.transformer import MOST_FUSED_TOKENS
from pillion.actors.gpu_worker.stages import Stages
from pillion.actors.gpu_worker.tuning.checking import check_part
from pillion.actors.gpu_worker.tuning.start import tuning_left
from pillion.actors.gpu_worker.warm_up import WARM_UP_TOKENS, warm_up
from pillion.kernels.fused_linear.tiles import padded_rows
from pillion.runtime.config import EngineConfig
from pillion.runtime.model_source import resolve_model

Job = Callable[[], None]


@torch.inference_mode()
def compile_part(
    config: EngineConfig,
    part: int,
    num_parts: int,
    report: Callable[[str], None],
    *,
    only_tuning: bool = False,
) -> None:
    """Runs every `num_parts`-th job from `part` on, with one layer of each kind, of random weights.

    First what each start needs, unless that is there and `only_tuning` is left to do.
    """
    device = Device(choose_device(config.device))
    source = resolve_model(config.model_path or config.model)
    whole = open_checkpoint(config, source).config
    dtype = choose_dtype(config.dtype, device.device, whole)
    plan = tuning_left(config, whole, dtype, device.device)
    # Layers with windows have kernels of their own. A tied head saves memory, and its kernels are those of any head.
    windows = tuple(dict.fromkeys(whole.sliding_windows))
    layers = replace(
        whole, num_layers=len(windows), sliding_windows=windows, tie_word_embeddings=True
    )
    loaded = load_model(config, source, device.device, dtype, DummyCheckpoint(layers, 0))
    if not only_tuning:
        for job in _jobs(config, device, loaded, num_weights(whole))[part::num_parts]:
            job()
        torch.cuda.synchronize()
    report(COMPILED)
    if plan is not None and loaded.model.fused_layers:
        seconds = COMPILING_SHARE * config.tuning_seconds
        check_part(plan, loaded.model, part, num_parts, seconds, report)


def _jobs(
    config: EngineConfig, device: Device, loaded: LoadedModel, num_weights: int
) -> Sequence[Job]:
    """Of a start, for a model of so many weights of which one layer of each kind is loaded.

    The jobs that take longest come first: the largest step with all of the sampler, then decode steps, each class of
    which has kernels of its own. Mixed steps share most of theirs. A batch-invariant engine captures nothing: its
    other job is the step of its warm-up.
    """
    model, dtype = loaded.config, loaded.dtype
    shape = KvShape(
        model.num_layers, model.num_kv_heads, model.head_dim, config.block_size, dtype.itemsize
    )
    limits = probe_limits(config, shape, model.max_positions)
    kv_cache = KvCache(
        limits.num_blocks,
        shape.num_layers,
        shape.num_kv_heads,
        shape.block_size,
        shape.head_dim,
        dtype,
        device.device,
    )
    invariant = config.batch_invariant
    build = partial(Stages.build, device, loaded.model, model.vocab_size, kv_cache, limits)
    stages = build(graphs_for_weights=None if invariant else num_weights)
    largest = partial(warm_up, stages, limits, shape.block_size, limits.max_num_batched_tokens)
    jobs: list[Job] = [largest, *_captures(stages, model)]
    if invariant:
        lone = build(batch_invariant=True)
        jobs.append(partial(warm_up, lone, limits, shape.block_size, WARM_UP_TOKENS))
    return jobs


def _captures(stages: Stages, model: ModelConfig) -> Sequence[Job]:
    """Of all captured steps; those that share most of their kernels in one job."""
    capturer = stages.capturer
    if capturer is None:
        return []
    like: defaultdict[object, list[Job]] = defaultdict(list)
    for num_rows in decode_sizes(stages.states.max_num_seqs, model):
        like[padded_rows(num_rows)].append(partial(capturer.capture_decode, num_rows))
    for shape in capturer.shapes:
        is_short = shape.num_tokens <= MOST_FUSED_TOKENS
        kernels = padded_rows(shape.num_tokens) if is_short else shape
        like[kernels].append(partial(capturer.capture_mixed, shape))
    return [capturer.warm_up_ends, *(partial(_run_all, jobs) for jobs in like.values())]


def decode_sizes(max_num_seqs: int, model: ModelConfig) -> list[int]:
    """Numbers of decode rows that between them have the attention kernels of all numbers up to max_num_seqs.

    A graph's rows are padded to its size, but beside prompts in a step that is no graph there may be any number.
    """
    from pillion.kernels.paged_attention.triton_decode import best_setting, parts_of

    num_heads = model.num_kv_heads * parts_of(model.num_q_heads // model.num_kv_heads)
    sizes = dict.fromkeys(graph_sizes(max_num_seqs))
    settings = {best_setting(size * num_heads, model.head_dim) for size in sizes}
    for num_rows in range(1, max_num_seqs + 1):
        setting = best_setting(num_rows * num_heads, model.head_dim)
        if setting not in settings:
            settings.add(setting)
            sizes[num_rows] = None
    return [*sizes]


def _run_all(jobs: Sequence[Job]) -> None:
    for job in jobs:
        job()
