"""The model shapes that engines are compared on, and the requests of the mixed load.

Only sizes, which are public; every engine makes random weights for them.
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MIXED_REQUESTS = 256
MIXED_SHORTEST, MIXED_LONGEST = 100, 1024
PREFILL_PROMPTS, PREFILL_TOKENS = 16, 8192
NUM_BYTES = 256
# vLLM and SGLang fill random weights uniformly within 1e-3; these are as wide. What operands hold is a part of what a
# card spends on them, and long prompts run into its limit of power.
INITIALIZER_RANGE = 1e-3 / 3**0.5


@dataclass(frozen=True)
class Shape:
    name: str
    hidden_size: int
    num_layers: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tied: bool
    rope_theta: float
    rope_factor: float | None  # of the llama3 scaling
    max_positions: int
    max_model_len: int  # that every engine is given

    def config(self) -> dict[str, Any]:
        """The config.json of a checkpoint of this shape."""
        config: dict[str, Any] = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_q_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": self.max_positions,
            "rms_norm_eps": 1e-5,
            "rope_theta": self.rope_theta,
            "tie_word_embeddings": self.tied,
            "attention_bias": False,
            "mlp_bias": False,
            "torch_dtype": "bfloat16",
            "initializer_range": INITIALIZER_RANGE,
            "bos_token_id": 0,
            "eos_token_id": 0,
        }
        if self.rope_factor is not None:
            config["rope_scaling"] = {
                "rope_type": "llama3",
                "factor": self.rope_factor,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            }
        return config

    def kv_bytes(self, num_tokens: int) -> int:
        """Keys and values of so many tokens in 16 bits."""
        return num_tokens * self.num_layers * 2 * self.num_kv_heads * self.head_dim * 2


SHAPES = {
    "8b": Shape(
        "llama-3.1-8b", 4096, 32, 32, 8, 128, 14336, 128256, False, 500000.0, 8.0, 131072, 16384
    ),
    "1b": Shape(
        "llama-3.2-1b", 2048, 16, 32, 8, 64, 8192, 128256, True, 500000.0, 32.0, 131072, 16384
    ),
    "135m": Shape("smollm2-135m", 576, 30, 9, 3, 64, 1536, 49152, True, 100000.0, None, 8192, 8192),
    "tiny": Shape("tiny", 64, 2, 4, 2, 16, 128, 512, True, 10000.0, None, 2048, 2048),
}


def write_model(key: str, base: Path) -> Path:
    """A folder with config.json and a made-up tokenizer; no weights."""
    shape = SHAPES[key]
    folder = base / shape.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape.config(), indent=1))
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(shape.vocab_size)))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": shape.max_positions,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def random_prompts(seed: int, count: int, num_tokens: int, vocab_size: int) -> list[list[int]]:
    """Token ids; no prompt is the beginning of another but by accident."""
    rng = random.Random(seed)
    return [[rng.randrange(3, vocab_size) for _ in range(num_tokens)] for _ in range(count)]


def mixed_load(vocab_size: int, seed: int = 0) -> tuple[list[list[int]], list[int]]:
    """Prompts and answer lengths, both uniform between the shortest and the longest."""
    rng = random.Random(seed)

    def length() -> int:
        return rng.randint(MIXED_SHORTEST, MIXED_LONGEST)

    lengths = [(length(), length()) for _ in range(MIXED_REQUESTS)]
    prompts = [[rng.randrange(3, vocab_size) for _ in range(size)] for size, _ in lengths]
    return prompts, [output for _, output in lengths]


def _tokenizer(vocab_size: int) -> dict[str, Any]:
    """A byte-level tokenizer without merges: every byte of a text is one token, every other token a word."""
    printable = {b for span in (range(33, 127), range(161, 173), range(174, 256)) for b in span}
    others = iter(range(NUM_BYTES, 2 * NUM_BYTES))
    vocab = {chr(b) if b in printable else chr(next(others)): b for b in range(NUM_BYTES)}
    syllables = [first + second for first in "bcdfghjklmnprstvwz" for second in "aeiou"]
    for token_id in range(NUM_BYTES, vocab_size):
        word, rest = "", token_id
        while rest:
            rest, last = divmod(rest, len(syllables))
            word += syllables[last]
        vocab[f"\u0120{word}x"] = token_id
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocab,
            "merges": [],
        },
    }
