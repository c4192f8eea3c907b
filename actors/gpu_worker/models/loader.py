"""Loads a model: opens its files, decides types, and builds the transformer layer by layer."""

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch

from pillion.actors.gpu_worker.device import make_current
from pillion.actors.gpu_worker.layers.decoder_layer import (
    Attention,
    DecoderLayer,
    FeedForward,
    HeadNorms,
    HeadShape,
)
from pillion.actors.gpu_worker.layers.rotary import RotaryEmbedding
from pillion.actors.gpu_worker.models.checkpoint import Checkpoint
from pillion.actors.gpu_worker.models.dummy_checkpoint import DummyCheckpoint
from pillion.actors.gpu_worker.models.gguf_checkpoint import GgufCheckpoint
from pillion.actors.gpu_worker.models.hf_config import read_hf_config
from pillion.actors.gpu_worker.models.model_config import DTYPES, ModelConfig
from pillion.actors.gpu_worker.models.safetensors_checkpoint import SafetensorsCheckpoint
from pillion.actors.gpu_worker.models.transformer import Transformer
from pillion.actors.gpu_worker.quantization.builders import LinearBuilder, choose_builder, stack
from pillion.actors.gpu_worker.quantization.cpu_forms import works
from pillion.actors.gpu_worker.quantization.linear import Linear
from pillion.runtime.config import DtypeName, EngineConfig
from pillion.runtime.errors import ConfigError
from pillion.runtime.model_source import ModelSource

_MAX_READING_THREADS: Final = 8


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is ready to run."""

    model: Transformer
    config: ModelConfig
    dtype: torch.dtype  # of activations
    weights_bytes: int
    row_bytes: int  # of weights, that a step of one row reads


def open_checkpoint(config: EngineConfig, source: ModelSource) -> Checkpoint:
    """Opens a model's files without reading a weight. Its `config` says how large everything will be.

    Raises ModelError for files that are broken or of a kind that is not supported, and ConfigError if
    `load_format` doesn't go with the source.
    """
    is_gguf = source.kind == "gguf"
    if config.load_format == "dummy":
        shape = GgufCheckpoint(source.path).config if is_gguf else read_hf_config(source.path)
        return DummyCheckpoint(shape, config.seed)
    if config.load_format == ("safetensors" if is_gguf else "gguf"):
        raise ConfigError(
            f"load_format is {config.load_format}, but {source.path} is another format"
        )
    return GgufCheckpoint(source.path) if is_gguf else SafetensorsCheckpoint(source.path)


def choose_dtype(setting: DtypeName, device: torch.device, config: ModelConfig) -> torch.dtype:
    """The type of the activations.

    "auto" is float32 on a CPU, where products may still use bfloat16 weights (see AdaptiveLinear); on a
    CUDA device it is the type of the weights if that has 16 bits, else bfloat16.
    """
    if setting != "auto":
        return DTYPES[setting]
    if device.type == "cpu":
        return torch.float32
    return config.dtype if config.dtype == torch.float16 else torch.bfloat16


def choose_branch_dtype(
    setting: DtypeName, device: torch.device, dtype: torch.dtype
) -> torch.dtype:
    """The type of the KV cache and of all that is computed between a norm and the residual stream.

    It is that of the activations, unless "auto" leaves room for a faster one: on a CPU with instructions
    for bfloat16, products and attention take that type.
    """
    if setting == "auto" and device.type == "cpu" and works("packed_bfloat16"):
        return torch.bfloat16
    return dtype


def load_model(
    config: EngineConfig,
    source: ModelSource,
    device: torch.device,
    dtype: torch.dtype | None = None,
    checkpoint: Checkpoint | None = None,
) -> LoadedModel:
    """Reads the weights tensor by tensor: memory peaks at about the weights and one tensor per thread.

    `dtype`: of the activations, None: as `choose_dtype` says. `checkpoint`: what `open_checkpoint` gave.
    Raises ModelError naming the file and the tensor that is missing, misshapen or unreadable.
    """
    if checkpoint is None:
        checkpoint = open_checkpoint(config, source)
    shape = checkpoint.config
    if dtype is None:
        dtype = choose_dtype(config.dtype, device, shape)
    is_auto = config.dtype == "auto"
    builder = choose_builder(dtype, device, num_weights(shape), is_auto=is_auto)
    branch_dtype = choose_branch_dtype(config.dtype, device, dtype)
    assembly = _Assembly(checkpoint, builder, dtype, branch_dtype, device)
    with _reading_threads(device) as pool, torch.inference_mode():
        model = assembly.transformer(pool)
    return LoadedModel(model, shape, dtype, assembly.num_bytes, assembly.row_bytes)


def num_weights(config: ModelConfig) -> int:
    """Numbers in all matrices of the model, embedding table and head included."""
    tables = 1 if config.tie_word_embeddings else 2
    table_weights = tables * config.vocab_size * config.hidden_size
    return config.num_layers * layer_weights(config) + table_weights


def layer_weights(config: ModelConfig) -> int:
    """Numbers in the matrices of one layer."""
    num_heads = 2 * config.num_q_heads + 2 * config.num_kv_heads
    return config.hidden_size * (num_heads * config.head_dim + 3 * config.intermediate_size)


@contextmanager
def _reading_threads(device: torch.device) -> Iterator[Executor]:
    """Threads that read and convert whole weights for a device, each on its own.

    Threads inside torch's operations would meet after every one of the many short operations, which on
    a machine that does anything else beside takes many times longer.
    """
    num_threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(
        min(num_threads, _MAX_READING_THREADS),
        thread_name_prefix="load",
        initializer=_begin_reading,
        initargs=(device,),
    )
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(
            num_threads
        )  # threads that torch sees later start with the last setting


def _begin_reading(device: torch.device) -> None:
    torch.set_num_threads(1)
    make_current(device)


class _Assembly:
    """Puts one transformer together."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        builder: LinearBuilder,
        dtype: torch.dtype,
        branch_dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_bytes = self.row_bytes = 0
        self._checkpoint = checkpoint
        self._config = checkpoint.config
        self._builder = builder
        self._dtype = dtype
        self._branch_dtype = branch_dtype
        self._device = device
        self._linears: list[Linear] = []

    def transformer(self, pool: Executor) -> Transformer:
        config = self._config
        table_name, table_shape = (
            "model.embed_tokens.weight",
            (config.vocab_size, config.hidden_size),
        )
        pending_table = pool.submit(
            self._tensor, table_name, table_shape, self._builder.embedding_dtype
        )
        num_samples = self._builder.num_sample_layers(layer_weights(config))
        layers = list(pool.map(self._layer, range(min(num_samples, config.num_layers))))
        self._builder.settle()
        layers += pool.map(self._layer, range(len(layers), config.num_layers))
        table = pending_table.result()
        if config.tie_word_embeddings:
            head = self._builder.build_tied(table)
            self._linears.append(head)
        else:
            head = self._product(
                ["lm_head"], [config.vocab_size], config.hidden_size, has_bias=False
            )
        final_norm = self._norm("model.norm", config.hidden_size)
        self._builder.settle()
        self.num_bytes += sum(linear.num_bytes for linear in self._linears)
        self.row_bytes = sum(linear.row_bytes for linear in self._linears)
        rotary = RotaryEmbedding(config.rope, config.head_dim, self._device, config.max_positions)
        return Transformer(
            table, layers, final_norm, head, rotary, config.rms_norm_eps, self._dtype
        )

    def _layer(self, index: int) -> DecoderLayer:
        config = self._config
        hidden, ffn = config.hidden_size, config.intermediate_size
        q_size = config.num_q_heads * config.head_dim
        kv_size = config.num_kv_heads * config.head_dim
        prefix = f"model.layers.{index}"
        qkv = [f"{prefix}.self_attn.{name}_proj" for name in "qkv"]
        gate_up = [f"{prefix}.mlp.gate_proj", f"{prefix}.mlp.up_proj"]
        attention = Attention(
            qkv=self._product(qkv, [q_size, kv_size, kv_size], hidden, has_bias=config.qkv_bias),
            output=self._product(
                [f"{prefix}.self_attn.o_proj"], [hidden], q_size, has_bias=config.output_bias
            ),
            heads=HeadShape(config.num_q_heads, config.num_kv_heads, config.head_dim),
            head_norms=self._head_norms(prefix) if config.qk_norm else None,
            sliding_window=config.sliding_windows[index],
            eps=config.rms_norm_eps,
        )
        feed_forward = FeedForward(
            gate_up=self._product(gate_up, [ffn, ffn], hidden, has_bias=config.mlp_bias),
            down=self._product(
                [f"{prefix}.mlp.down_proj"], [hidden], ffn, has_bias=config.mlp_bias
            ),
        )
        return DecoderLayer(
            attention_norm=self._norm(f"{prefix}.input_layernorm", hidden),
            attention=attention,
            feed_forward_norm=self._norm(f"{prefix}.post_attention_layernorm", hidden),
            feed_forward=feed_forward,
            eps=config.rms_norm_eps,
        )

    def _head_norms(self, prefix: str) -> HeadNorms:
        head_dim = self._config.head_dim
        return HeadNorms(
            query=self._norm(f"{prefix}.self_attn.q_norm", head_dim),
            key=self._norm(f"{prefix}.self_attn.k_norm", head_dim),
        )

    def _norm(self, name: str, size: int) -> torch.Tensor:
        return self._tensor(f"{name}.weight", (size,), self._branch_dtype)

    def _product(
        self, names: list[str], out_sizes: list[int], in_size: int, *, has_bias: bool
    ) -> Linear:
        """Several matrices that are applied to the same input, as one product."""
        sizes = list(zip(names, out_sizes, strict=True))
        parts = [
            self._checkpoint.tensor(f"{name}.weight", (out_size, in_size))
            for name, out_size in sizes
        ]
        with torch.inference_mode():  # the mode belongs to a thread
            bias = None
            if has_bias:
                biases = [self._checkpoint.tensor(f"{name}.bias", (size,)) for name, size in sizes]
                bias = stack(biases, self._branch_dtype, self._device)
            linear = self._builder.build(parts, bias)
        self._linears.append(linear)
        return linear

    def _tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        with torch.inference_mode():
            tensor = stack([self._checkpoint.tensor(name, shape)], dtype, self._device)
        self.num_bytes += tensor.nbytes
        return tensor
