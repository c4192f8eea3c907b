"""Each engine behind the same two calls, in a process and a site of its own.

Engines run at their defaults but for what the comparison asks: random weights, the shape's context length, no
prefix reuse, no tokenizer where an engine can do without, and a KV cache of a given size where several
engines share a card.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

# Of engines and their servers: no calls home, no look-ups. vLLM's faster sampler, which is for top-k and top-p alone,
# needs a package that a site may lack.
ENVIRONMENTS = {
    "vllm": {
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    },
    "sglang": {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"},
}


@dataclass(frozen=True)
class Setting:
    """What an engine is built for."""

    folder: Path
    max_model_len: int
    device: str
    kv_tokens: int | None  # None: as much as the engine takes by itself
    kv_bytes: int | None  # the same in bytes of 16-bit keys and values


class Engine(Protocol):
    """An engine with its model loaded."""

    def version(self) -> str: ...

    def generate(self, prompts: list[list[int]], num_outputs: list[int]) -> list[int]:
        """Greedy answers of exactly these lengths; the lengths that came."""


class Pillion:
    def __init__(self, setting: Setting) -> None:
        import pillion

        self._pillion = pillion
        fields: dict[str, Any] = {"kv_cache_bytes": setting.kv_bytes, "device": setting.device}
        if setting.kv_bytes is not None:
            fields["memory_fraction"] = 0.98  # what others hold counts as in use
        self._llm = pillion.LLM(
            str(setting.folder),
            load_format="dummy",
            max_model_len=setting.max_model_len,
            enable_prefix_caching=False,
            **{name: value for name, value in fields.items() if value is not None},
        )

    def version(self) -> str:
        return str(self._pillion.__version__)

    def generate(self, prompts: list[list[int]], num_outputs: list[int]) -> list[int]:
        params = [
            self._pillion.SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True)
            for n in num_outputs
        ]
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        return [len(output.outputs[0].token_ids) for output in outputs]


class Vllm:
    def __init__(self, setting: Setting) -> None:
        import vllm

        self._vllm = vllm
        shared: dict[str, Any] = {}
        if setting.kv_bytes is not None:
            # The share is only what must be free at the start; the bytes say what the cache takes.
            shared = {"kv_cache_memory_bytes": setting.kv_bytes, "gpu_memory_utilization": 0.05}
        self._llm = vllm.LLM(
            str(setting.folder),
            load_format="dummy",
            skip_tokenizer_init=True,
            max_model_len=setting.max_model_len,
            enable_prefix_caching=False,
            **shared,
        )

    def version(self) -> str:
        return str(self._vllm.__version__)

    def generate(self, prompts: list[list[int]], num_outputs: list[int]) -> list[int]:
        params = [
            self._vllm.SamplingParams(
                temperature=0.0, max_tokens=n, ignore_eos=True, detokenize=False
            )
            for n in num_outputs
        ]
        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = self._llm.generate(requests, params, use_tqdm=False)
        return [len(output.outputs[0].token_ids) for output in outputs]


class Sglang:
    def __init__(self, setting: Setting) -> None:
        import sglang
        from sglang.srt.entrypoints.engine import Engine as SglangEngine

        self._sglang = sglang
        shared: dict[str, Any] = {}
        if setting.kv_tokens is not None:
            shared = {"max_total_tokens": setting.kv_tokens, "mem_fraction_static": 0.95}
        self._engine = SglangEngine(
            model_path=str(setting.folder),
            load_format="dummy",
            skip_tokenizer_init=True,
            context_length=setting.max_model_len,
            disable_radix_cache=True,
            **shared,
        )

    def version(self) -> str:
        return str(self._sglang.__version__)

    def generate(self, prompts: list[list[int]], num_outputs: list[int]) -> list[int]:
        params = [{"temperature": 0, "ignore_eos": True, "max_new_tokens": n} for n in num_outputs]
        outputs = self._engine.generate(input_ids=prompts, sampling_params=params)
        return [len(output["output_ids"]) for output in outputs]


ENGINES: dict[str, Callable[[Setting], Engine]] = {
    "pillion": Pillion,
    "vllm": Vllm,
    "sglang": Sglang,
}
