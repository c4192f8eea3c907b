"""The tuning of a worker's start: what earlier starts have found, or a measurement, in the time that it may take."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import torch

from pillion.actors.gpu_worker.compile_ahead import COMPILING_SHARE
from pillion.actors.gpu_worker.models.loader import LoadedModel
from pillion.actors.gpu_worker.models.model_config import ModelConfig
from pillion.actors.gpu_worker.tuning.bench import ModelBench
from pillion.actors.gpu_worker.tuning.cache import read_tuned, write_tuned
from pillion.actors.gpu_worker.tuning.checking import right_candidates
from pillion.actors.gpu_worker.tuning.forms import Card
from pillion.actors.gpu_worker.tuning.plan import TuningPlan, plan_tuning
from pillion.actors.gpu_worker.tuning.timing import raise_clocks
from pillion.actors.gpu_worker.tuning.tuner import table_of, tune
from pillion.kernels.fused_linear.tiles import use_tuned
from pillion.runtime.clock import NS_PER_S, now_ns
from pillion.runtime.config import EngineConfig

logger = logging.getLogger(__name__)


def tuning_left(
    config: EngineConfig, model: ModelConfig, dtype: torch.dtype, device: torch.device
) -> TuningPlan | None:
    """What is to be tuned, None if nothing. What an earlier start has found is used from now on."""
    use_tuned({})
    plan = plan_tuning(config, model, dtype, Card.of(device))
    tuned = None if plan is None else read_tuned(plan, config.tuning_seconds)
    if plan is None or tuned is None:
        return plan
    use_tuned(table_of(plan, tuned.chosen))
    return None


@torch.inference_mode()
def run_tuning(
    plan: TuningPlan, loaded: LoadedModel, findings: Sequence[str], seconds: float
) -> None:
    """Measures the candidates that `check_part` has found right; keeps the outcome, which is used from now on."""
    model = loaded.model
    if not model.fused_layers:
        return
    raise_clocks(model.fused_layers[0].qkv.weight.device)
    began_ns = now_ns()
    limit_ns = began_ns + int((1 - COMPILING_SHARE) * seconds * NS_PER_S)
    right, all_checked = right_candidates(plan, findings)
    bench = ModelBench(plan, model, loaded.weights_bytes)
    tuned, all_timed = tune(plan, right, bench, lambda: now_ns() > limit_ns)
    del bench
    torch.cuda.empty_cache()
    if not (all_checked and all_timed):
        tuned = replace(tuned, short_s=seconds)
        logger.info(
            "not everything was tried in %g s (tuning_seconds): the rest stays untuned", seconds
        )
    use_tuned(table_of(plan, tuned.chosen))
    write_tuned(plan, tuned)
    logger.info(
        "tuned for %s in %.1f s; microseconds of a layer before and after: %s",
        plan.card.name,
        (now_ns() - began_ns) / NS_PER_S,
        ", ".join(
            f"{rows} rows {b:.1f} {a:.1f}" for rows, (b, a) in sorted(tuned.layer_us.items())
        ),
    )
