"""Models and cards that nothing is measured for."""

from typing import Any

import torch

from pillion.actors.gpu_worker.models.model_config import ModelConfig, RopeConfig
from pillion.actors.gpu_worker.tuning.forms import Card
from pillion.actors.gpu_worker.tuning.plan import TuningPlan, plan_tuning
from pillion.kernels.fused_linear.tiles import MEASURED_ON
from pillion.runtime.config import EngineConfig

H200 = Card(MEASURED_ON, (9, 0), 132, 232_448, 50 << 20)
A100 = Card("NVIDIA A100-SXM4-80GB", (8, 0), 108, 166_912, 40 << 20)


def model_config(**fields: Any) -> ModelConfig:
    """Of the shape of Qwen2.5-1.5B."""
    sizes: dict[str, Any] = {
        "architecture": "Qwen2ForCausalLM",
        "vocab_size": 151_936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_layers": 28,
        "num_q_heads": 12,
        "num_kv_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
        "rope": RopeConfig(1e6),
        "tie_word_embeddings": True,
        "qkv_bias": True,
        "output_bias": False,
        "mlp_bias": False,
        "qk_norm": False,
        "sliding_windows": (None,) * 28,
        "eos_token_ids": (0,),
        "dtype": torch.bfloat16,
    }
    return ModelConfig(**(sizes | fields))


def llama_8b(**fields: Any) -> ModelConfig:
    """A shape that the shipped table holds."""
    sizes = {
        "vocab_size": 128_256,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_q_heads": 32,
        "num_kv_heads": 8,
        "qkv_bias": False,
    }
    return model_config(**(sizes | fields))


def plan_for(
    model: ModelConfig | None = None,
    card: Card | None = H200,
    dtype: torch.dtype = torch.bfloat16,
    **fields: Any,
) -> TuningPlan | None:
    config = EngineConfig(model="tiny", **fields)
    return plan_tuning(config, model or model_config(), dtype, card)
