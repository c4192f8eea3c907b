"""The model families: what distinguishes them within the one transformer of `transformer.py`.

To add a family of this kind, add a line here; `hf_config.py` and `gguf_config.py` look here.
"""

from dataclasses import dataclass
from typing import Final, Literal

# "setting": as the configuration's attention_bias or mlp_bias says, for all products of that part.
Bias = Literal["none", "qkv", "setting"]
# Which layers see a window only. "all": every layer, if sliding_window is set. "upper": layers from
# max_window_layers on, if use_sliding_window is set.
Window = Literal["none", "all", "upper"]


@dataclass(frozen=True, slots=True)
class Family:
    """A family as Hugging Face and llama.cpp define it."""

    architecture: str  # in config.json
    gguf_architecture: str  # in GGUF metadata
    attention_bias: Bias
    mlp_bias: Bias = "none"
    qk_norm: bool = False
    window: Window = "none"


FAMILIES: Final = (
    Family("LlamaForCausalLM", "llama", attention_bias="setting", mlp_bias="setting"),
    Family("MistralForCausalLM", "llama", attention_bias="none", window="all"),
    Family("Qwen2ForCausalLM", "qwen2", attention_bias="qkv", window="upper"),
    Family("Qwen3ForCausalLM", "qwen3", attention_bias="setting", qk_norm=True, window="upper"),
)
