"""The arguments of vLLM's `LLM`, and what each of them means here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pillion.messages.sampling import MAX_LOGPROBS


@dataclass(frozen=True, slots=True)
class Setting:
    """Sets a field of EngineConfig. `convert` raises ValueError with what is wrong with a value."""

    field: str
    convert: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True, slots=True)
class Refused:
    """Asks for something that Pillion does not do (yet); the accepted values ask for nothing."""

    reason: str
    accepted: tuple[Any, ...] = (False,)


@dataclass(frozen=True, slots=True)
class Meaningless:
    """Has no counterpart here: a DeprecationWarning says what to do instead."""

    advice: str


def _dtype(value: Any) -> str:
    name = str(value).removeprefix("torch.")
    return {"half": "float16", "float": "float32"}.get(name, name)


def _max_model_len(value: Any) -> Any:
    return None if value in (-1, "auto") else value


def _one_name(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return value
    if len(value) != 1:
        raise ValueError(f"exactly one name is supported, got {len(value)}")
    return value[0]


def _own_choice(value: Any) -> Any:
    return None if value == "auto" else value


_ONE_DEVICE: Final = "a daemon runs on one device so far"
_KV_DTYPE: Final = "dtype decides the type of the KV cache and of attention"
_TEXT_ONLY: Final = "only text models are supported so far"
_NO_LORA: Final = "LoRA adapters are not supported yet"
_NO_SPECULATION: Final = "speculative decoding is not supported yet"
_NO_OVERRIDES: Final = "the model's own configuration is used; edit its config.json instead"
_GRAPHS: Final = "Pillion decides by itself what runs in CUDA graphs; drop the argument"
_ONE_PROCESS_EACH: Final = (
    "Pillion runs the engine as supervised processes of its own; drop the argument"
)
_ALWAYS_ASYNC: Final = "the device never waits for the scheduler here; drop the argument"
_METRICS: Final = "`pillion status` and Client.status() show the counters; drop the argument"
_BACKEND: Final = "Pillion brings its own kernels and chooses among them; drop the argument"
_NO_TRANSFER: Final = "moving KV between daemons is not supported yet"

ARGUMENTS: Final[dict[str, Setting | Refused | Meaningless]] = {
    # Settings under another name or with other values.
    "dtype": Setting("dtype", _dtype),
    "max_model_len": Setting("max_model_len", _max_model_len),
    "served_model_name": Setting("served_model_name", _one_name),
    "gpu_memory_utilization": Setting("memory_fraction"),
    "kv_cache_memory_bytes": Setting("kv_cache_bytes"),
    "num_gpu_blocks_override": Setting("num_kv_blocks"),
    "device": Setting("device"),
    "block_size": Setting("block_size", _own_choice),
    "otlp_traces_endpoint": Setting("otlp_endpoint"),
    # Where the model comes from.
    "trust_remote_code": Refused(
        "Pillion never runs code that comes with a model; the model families are built in"
    ),
    "tokenizer_revision": Refused("name the tokenizer as org/name@revision", ()),
    "code_revision": Refused("Pillion never runs code that comes with a model", ()),
    "hf_token": Refused("set the environment variable HF_TOKEN or run `hf auth login`", ()),
    "download_dir": Refused("set HF_HOME to choose where hub models are kept", ()),
    "hf_config_path": Refused(_NO_OVERRIDES, ()),
    "hf_overrides": Refused(_NO_OVERRIDES, ({},)),
    "rope_scaling": Refused(_NO_OVERRIDES, ({},)),
    "rope_theta": Refused(_NO_OVERRIDES, ()),
    "config_format": Refused("configurations are read in the Hugging Face format", ("auto", "hf")),
    "model_impl": Refused("models run on Pillion's own code", ("auto",)),
    "model_loader_extra_config": Refused("weights are read by Pillion's own loader", ({},)),
    "ignore_patterns": Meaningless("only the files that loading needs are fetched; drop it"),
    "safetensors_load_strategy": Meaningless("weights are always memory-mapped; drop it"),
    "pt_load_map_location": Meaningless("weights are never unpickled; drop it"),
    "use_tqdm_on_load": Meaningless("a download shows its progress on a terminal; drop it"),
    "skip_tokenizer_init": Refused("the text edge always has a tokenizer"),
    "tokenizer_mode": Refused("tokenizers come from tokenizer.json or the GGUF file", ("auto",)),
    # What the model is for.
    "task": Refused("only generation is supported so far", ("auto", "generate")),
    "runner": Refused("only generation is supported so far", ("auto", "generate")),
    "convert": Refused("only generation is supported so far", ("auto", "none")),
    "pooler_config": Refused("only generation is supported so far", ()),
    "override_pooler_config": Refused("only generation is supported so far", ()),
    "generation_config": Refused(
        "a model's generation_config.json is not used; give SamplingParams", ("vllm",)
    ),
    "override_generation_config": Refused("give SamplingParams with each call", ({},)),
    "enable_prompt_embeds": Refused("prompts are text or token ids"),
    "logits_processors": Refused(
        "logits processors run in the worker and cannot be given as Python code", ([],)
    ),
    "logits_processor_pattern": Refused("there are no logits processors to choose from", ()),
    "structured_outputs_config": Meaningless("there is one implementation of grammars; drop it"),
    "guided_decoding_backend": Meaningless("there is one implementation of grammars; drop it"),
    "reasoning_parser_plugin": Refused(
        "reasoning_parser takes a format that is built in, or two markers", ("",)
    ),
    "enable_reasoning": Meaningless(
        "parse_output=True in a call of LLM.client takes reasoning off the text; drop it"
    ),
    "io_processor_plugin": Refused("there are no plugins", ()),
    "max_logprobs": Refused(
        f"up to {MAX_LOGPROBS} logprobs are always allowed", tuple(range(MAX_LOGPROBS + 1))
    ),
    "logprobs_mode": Refused(
        "logprobs are those of the model's own distribution", ("raw_logprobs",)
    ),
    # Numbers formats.
    "quantization": Refused(
        "quantized checkpoints are not supported yet, apart from GGUF files, which need no argument",
        (),
    ),
    "allow_deprecated_quantization": Refused("quantized checkpoints are not supported yet"),
    "kv_cache_dtype": Refused(_KV_DTYPE, ("auto",)),
    "calculate_kv_scales": Refused(_KV_DTYPE),
    "kv_cache_dtype_skip_layers": Refused(_KV_DTYPE, ([],)),
    "override_attention_dtype": Refused(_KV_DTYPE, ()),
    # More than one device or host.
    "tensor_parallel_size": Refused(_ONE_DEVICE, (1,)),
    "pipeline_parallel_size": Refused(_ONE_DEVICE, (1,)),
    "data_parallel_size": Refused(_ONE_DEVICE, (1,)),
    "data_parallel_size_local": Refused(_ONE_DEVICE, (1,)),
    "data_parallel_rank": Refused(_ONE_DEVICE, (0,)),
    "data_parallel_start_rank": Refused(_ONE_DEVICE, (0,)),
    "data_parallel_address": Refused(_ONE_DEVICE, ()),
    "data_parallel_rpc_port": Refused(_ONE_DEVICE, ()),
    "data_parallel_backend": Refused(_ONE_DEVICE, ("mp",)),
    "data_parallel_hybrid_lb": Refused(_ONE_DEVICE),
    "data_parallel_external_lb": Refused(_ONE_DEVICE),
    "prefill_context_parallel_size": Refused(_ONE_DEVICE, (1,)),
    "decode_context_parallel_size": Refused(_ONE_DEVICE, (1,)),
    "enable_expert_parallel": Refused(_ONE_DEVICE),
    "enable_eplb": Refused(_ONE_DEVICE),
    "eplb_config": Refused(_ONE_DEVICE, ({},)),
    "enable_dbo": Refused(_ONE_DEVICE),
    "nnodes": Refused(_ONE_DEVICE, (1,)),
    "node_rank": Refused(_ONE_DEVICE, (0,)),
    "master_addr": Refused(_ONE_DEVICE, ()),
    "master_port": Refused(_ONE_DEVICE, ()),
    "distributed_executor_backend": Refused(_ONE_DEVICE, ("uni", "mp")),
    "ray_workers_use_nsight": Refused(_ONE_DEVICE),
    "worker_use_ray": Refused(_ONE_DEVICE),
    "engine_use_ray": Refused(_ONE_DEVICE),
    "worker_cls": Refused("the worker is Pillion's own", ("auto",)),
    "worker_extension_cls": Refused("the worker is Pillion's own", ("",)),
    "scheduler_cls": Refused("the scheduler is Pillion's own", ()),
    # Other capabilities that are not there yet.
    "enable_lora": Refused(_NO_LORA),
    "max_loras": Refused(_NO_LORA, ()),
    "max_lora_rank": Refused(_NO_LORA, ()),
    "max_cpu_loras": Refused(_NO_LORA, ()),
    "lora_dtype": Refused(_NO_LORA, ("auto",)),
    "lora_extra_vocab_size": Refused(_NO_LORA, ()),
    "fully_sharded_loras": Refused(_NO_LORA),
    "default_mm_loras": Refused(_NO_LORA, ({},)),
    "qlora_adapter_name_or_path": Refused(_NO_LORA, ()),
    "enable_prompt_adapter": Refused("prompt adapters are not supported"),
    "speculative_config": Refused(_NO_SPECULATION, ({},)),
    "speculative_model": Refused(_NO_SPECULATION, ()),
    "num_speculative_tokens": Refused(_NO_SPECULATION, (0,)),
    "num_lookahead_slots": Refused(_NO_SPECULATION, (0,)),
    "limit_mm_per_prompt": Refused(_TEXT_ONLY, ({},)),
    "mm_processor_kwargs": Refused(_TEXT_ONLY, ({},)),
    "media_io_kwargs": Refused(_TEXT_ONLY, ({},)),
    "mm_processor_cache_gb": Refused(_TEXT_ONLY, (0,)),
    "allowed_local_media_path": Refused(_TEXT_ONLY, ("",)),
    "allowed_media_domains": Refused(_TEXT_ONLY, ([],)),
    "language_model_only": Meaningless("only the language model is ever loaded; drop it"),
    "cpu_offload_gb": Refused("weights are not offloaded to host memory", (0,)),
    "kv_offloading_size": Refused("KV is not offloaded to host memory yet", (0,)),
    "kv_offloading_backend": Refused("KV is not offloaded to host memory yet", ()),
    "kv_transfer_config": Refused(_NO_TRANSFER, ()),
    "kv_events_config": Refused(_NO_TRANSFER, ()),
    "ec_transfer_config": Refused(_NO_TRANSFER, ()),
    "enable_sleep_mode": Refused("sleeping is not supported yet"),
    "disable_sliding_window": Refused("a model's sliding window cannot be switched off"),
    "collect_detailed_traces": Refused("a trace always has the same spans", ()),
    "additional_config": Refused("there are no platform plugins", ({},)),
    # Always so, or decided by the engine itself.
    "enable_chunked_prefill": Refused(
        "prompts are always prefilled in chunks of at most max_num_batched_tokens; raise that",
        (True,),
    ),
    "use_v2_block_manager": Meaningless("there is one KV manager; drop the argument"),
    "swap_space": Meaningless(
        "preempted requests are computed again, nothing is swapped; drop the argument"
    ),
    "preemption_mode": Meaningless("preempted requests are computed again; drop the argument"),
    "enforce_eager": Meaningless(_GRAPHS),
    "compilation_config": Meaningless(_GRAPHS),
    "optimization_level": Meaningless(_GRAPHS),
    "max_seq_len_to_capture": Meaningless(_GRAPHS),
    "cuda_graph_sizes": Meaningless(_GRAPHS),
    "full_cuda_graph": Meaningless(_GRAPHS),
    "cudagraph_capture_sizes": Meaningless(_GRAPHS),
    "max_cudagraph_capture_size": Meaningless(_GRAPHS),
    "attention_backend": Meaningless(_BACKEND),
    "attention_config": Meaningless(_BACKEND),
    "kernel_config": Meaningless(_BACKEND),
    "moe_backend": Meaningless(_BACKEND),
    "disable_cascade_attn": Meaningless(_BACKEND),
    "disable_custom_all_reduce": Meaningless("there is one device, so nothing to reduce; drop it"),
    "max_parallel_loading_workers": Meaningless("weights are read in parallel anyway; drop it"),
    "async_scheduling": Meaningless(_ALWAYS_ASYNC),
    "num_scheduler_steps": Meaningless(_ALWAYS_ASYNC),
    "multi_step_stream_outputs": Meaningless(_ALWAYS_ASYNC),
    "disable_async_output_proc": Meaningless(_ALWAYS_ASYNC),
    "scheduler_delay_factor": Meaningless(_ALWAYS_ASYNC),
    "stream_interval": Meaningless("deltas are merged for slow readers only; drop the argument"),
    "scheduling_policy": Meaningless(
        "requests of equal priority share fairly and lower priorities go first; drop the argument"
    ),
    "max_num_partial_prefills": Meaningless("any number of prompts prefill at once; drop it"),
    "max_long_partial_prefills": Meaningless("any number of prompts prefill at once; drop it"),
    "long_prefill_token_threshold": Meaningless(
        "set max_num_batched_tokens, the token budget of a step"
    ),
    "disable_hybrid_kv_cache_manager": Meaningless("KV groups follow from the model; drop it"),
    "prefix_caching_hash_algo": Meaningless("the prefix index has one hash; drop the argument"),
    "tokenizer_pool_size": Meaningless(_ONE_PROCESS_EACH),
    "tokenizer_pool_type": Meaningless(_ONE_PROCESS_EACH),
    "tokenizer_pool_extra_config": Meaningless(_ONE_PROCESS_EACH),
    "disable_log_stats": Meaningless(_METRICS),
    "disable_log_requests": Meaningless(_METRICS),
    "enable_log_requests": Meaningless(_METRICS),
    "aggregate_engine_logging": Meaningless(_METRICS),
    "show_hidden_metrics_for_version": Meaningless(_METRICS),
    "kv_cache_metrics": Meaningless(_METRICS),
    "cudagraph_metrics": Meaningless(_METRICS),
    "profiler_config": Meaningless("`pillion bench` measures; drop the argument"),
    "shutdown_timeout": Meaningless("set drain_s"),
}
