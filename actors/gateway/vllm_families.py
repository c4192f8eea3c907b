"""The same numbers under the names of vLLM's metrics, so that dashboards made for it work.

Names, kinds and labels are those of vLLM 0.30, and a few that older dashboards query. docs/monitoring.md says
which are absent.
"""

from typing import Final

from pillion.actors.gateway.daemon_numbers import DaemonNumbers
from pillion.actors.gateway.engine_families import prompt_tokens
from pillion.actors.gateway.exposition import Exposition, histogram_samples
from pillion.messages.control import DaemonStatus
from pillion.messages.ids import FinishReason
from pillion.runtime.config import EngineConfig
from pillion.runtime.live_view import kv_blocks

# vLLM's name -> actor, histogram
HISTOGRAMS: Final = {
    "time_to_first_token_seconds": ("detokenizer", "first_token_seconds"),
    "inter_token_latency_seconds": ("detokenizer", "inter_token_seconds"),
    "request_time_per_output_token_seconds": ("detokenizer", "per_token_seconds"),
    "e2e_request_latency_seconds": ("detokenizer", "whole_seconds"),
    "request_queue_time_seconds": ("detokenizer", "queue_seconds"),
    "request_inference_time_seconds": ("detokenizer", "inference_seconds"),
    "request_prefill_time_seconds": ("detokenizer", "prefill_seconds"),
    "request_decode_time_seconds": ("detokenizer", "decode_seconds"),
    "request_prompt_tokens": ("detokenizer", "request_prompt_tokens"),
    "request_prefill_kv_computed_tokens": ("detokenizer", "request_computed_tokens"),
    "request_generation_tokens": ("detokenizer", "request_output_tokens"),
    "request_max_num_generation_tokens": ("detokenizer", "request_longest_output_tokens"),
    "request_params_n": ("detokenizer", "request_samples"),
    "request_params_max_tokens": ("detokenizer", "request_max_tokens"),
    "request_num_preemptions": ("scheduler", "preemptions"),
    "iteration_tokens_total": ("detokenizer", "step_tokens"),
    # In earlier versions the name of inter_token_latency_seconds.
    "time_per_output_token_seconds": ("detokenizer", "inter_token_seconds"),
}
# Our reasons -> vLLM's
REASONS: Final[dict[FinishReason, str]] = {
    "stop": "stop",
    "tool_calls": "stop",
    "length": "length",
    "abort": "abort",
    "timeout": "abort",
    "error": "error",
}
SLEEP_STATES: Final = ("awake", "weights_offloaded", "discard_all")


def write_vllm(page: Exposition, numbers: DaemonNumbers, config: EngineConfig, model: str) -> None:
    """All of them."""
    labels = {"model_name": model, "engine": "0"}
    _write_gauges(page, numbers, labels)
    _write_counters(page, numbers, labels)
    for name, (actor, own) in HISTOGRAMS.items():
        counts = numbers.histogram(actor, own)
        samples = () if counts is None else histogram_samples(counts, labels)
        page.family(f"vllm:{name}", "histogram", own.replace("_", " "), samples)
    info = _cache_config(numbers.status, config)
    page.one("vllm:cache_config_info", "gauge", "Settings of the KV cache", 1, info)


def _write_gauges(page: Exposition, numbers: DaemonNumbers, labels: dict[str, str]) -> None:
    waiting = numbers.gauge("scheduler", "waiting")
    page.one(
        "vllm:num_requests_running",
        "gauge",
        "Sequences that have a slot",
        numbers.gauge("scheduler", "running"),
        labels,
    )
    page.one("vllm:num_requests_waiting", "gauge", "Sequences without a slot", waiting, labels)
    page.family(
        "vllm:num_requests_waiting_by_reason",
        "gauge",
        "Sequences without a slot; none is ever deferred",
        [
            ("", {**labels, "reason": "capacity"}, waiting),
            ("", {**labels, "reason": "deferred"}, 0),
        ],
    )
    blocks = kv_blocks(numbers.gauges("kv_manager"), numbers.gauges("scheduler"))
    usage = blocks.used / blocks.total if blocks else 0.0
    for name in ("kv_cache_usage_perc", "gpu_cache_usage_perc"):
        page.one(f"vllm:{name}", "gauge", "Used part of the KV blocks, from 0 to 1", usage, labels)
    page.family(
        "vllm:engine_sleep_state",
        "gauge",
        "The engine never sleeps",
        [("", {**labels, "sleep_state": state}, int(state == "awake")) for state in SLEEP_STATES],
    )


def _write_counters(page: Exposition, numbers: DaemonNumbers, labels: dict[str, str]) -> None:
    cached, computed = prompt_tokens(numbers)["yes"], prompt_tokens(numbers)["no"]
    for name, value in (
        ("prompt_tokens", cached + computed),
        ("prompt_tokens_cached", cached),
        ("prefix_cache_queries", cached + computed),
        ("prefix_cache_hits", cached),
        ("gpu_prefix_cache_queries", cached + computed),
        ("gpu_prefix_cache_hits", cached),
        ("generation_tokens", numbers.total("scheduler", "generated_tokens")),
        ("num_preemptions", numbers.total("scheduler", "preemptions")),
    ):
        page.one(f"vllm:{name}_total", "counter", name.replace("_", " "), value, labels)
    page.family(
        "vllm:prompt_tokens_by_source_total",
        "counter",
        "Tokens of prompts by where their KV came from",
        [
            ("", {**labels, "source": "local_compute"}, computed),
            ("", {**labels, "source": "local_cache_hit"}, cached),
            ("", {**labels, "source": "external_kv_transfer"}, 0),
        ],
    )
    ended = dict.fromkeys(REASONS.values(), 0)
    finish_reasons = numbers.tally("detokenizer", "finish_reasons")
    for reason, their_reason in REASONS.items():
        ended[their_reason] += finish_reasons.get(reason, 0)
    page.family(
        "vllm:request_success_total",
        "counter",
        "Samples that have ended, by reason",
        [("", {**labels, "finished_reason": reason}, count) for reason, count in ended.items()],
    )


def _cache_config(status: DaemonStatus, config: EngineConfig) -> dict[str, str]:
    geometry = status.geometry
    num_blocks = sum(group.num_blocks for group in geometry.kv_groups) if geometry else 0
    return {
        "engine": "0",
        "block_size": str(config.block_size),
        "cache_dtype": geometry.dtype if geometry else "",
        "enable_prefix_caching": str(config.enable_prefix_caching),
        "gpu_memory_utilization": str(config.memory_fraction),
        "num_gpu_blocks": str(num_blocks),
    }
