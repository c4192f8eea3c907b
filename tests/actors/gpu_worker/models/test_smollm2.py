"""The small real model against transformers with the weights that we dequantized, in float32."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_models import CPU, Runner, load, reference_logits

from pillion.actors.detokenizer.gguf_tokenizer import gguf_tokenizer
from pillion.actors.gpu_worker.models.gguf_checkpoint import GgufCheckpoint
from pillion.actors.gpu_worker.models.loader import LoadedModel
from pillion.actors.gpu_worker.quantization.builders import stack
from pillion.runtime.gguf_file import GgufFile

pytestmark = pytest.mark.model

PROMPTS = (
    "The capital of France is",
    "<|im_start|>user\nWrite a haiku about rain.<|im_end|>\n<|im_start|>assistant\n",
    "def fibonacci(n):\n    ",
    "今天天气很好，",
    "12345 + 67890 = ",
)
NUM_NEW_TOKENS = 24


@pytest.fixture(scope="module")
def loaded(smollm2_path: Path) -> LoadedModel:
    return load(smollm2_path)


@pytest.fixture(scope="module")
def reference(smollm2_path: Path) -> Any:
    """transformers' own Llama, filled from the file tensor by tensor."""
    checkpoint = GgufCheckpoint(smollm2_path)
    config = checkpoint.config
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_q_heads,
            num_key_value_heads=config.num_kv_heads,
            max_position_embeddings=config.max_position_embeddings,
            rms_norm_eps=config.rms_norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope.theta},
            tie_word_embeddings=True,
        )
    ).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            stored = checkpoint.tensor(name, tuple(parameter.shape))
            parameter.copy_(stack([stored], torch.float32, CPU))
    return model


def greedy(loaded: LoadedModel, prompt: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The next tokens, and the logits that they were chosen by."""
    runner = Runner(loaded)
    logits = [runner.step([(0, prompt)])[0][-1:]]
    while len(logits) < NUM_NEW_TOKENS:
        logits.append(runner.step([(0, logits[-1].argmax(-1))])[0])
    stacked = torch.cat(logits)
    return stacked.argmax(-1), stacked


@pytest.mark.parametrize("text", PROMPTS, ids=range(len(PROMPTS)))
def test_greedy_tokens_equal_transformers(
    text: str, loaded: LoadedModel, reference: Any, smollm2_path: Path
) -> None:
    prompt = torch.tensor(gguf_tokenizer(GgufFile(smollm2_path)).encode(text).ids)
    tokens, logits = greedy(loaded, prompt)
    # One pass over prompt and answer shows what transformers would have chosen at every step.
    expected = reference_logits(reference, torch.cat((prompt, tokens[:-1])))[len(prompt) - 1 :]
    assert tokens.tolist() == expected.argmax(-1).tolist()
    differences = (logits.log_softmax(-1) - expected.log_softmax(-1)).abs()
    assert float(differences.max()) < 1e-3


def test_auto_stays_near_float32(loaded: LoadedModel, smollm2_path: Path) -> None:
    tokens = torch.tensor(gguf_tokenizer(GgufFile(smollm2_path)).encode(PROMPTS[1] * 3).ids)
    exact = Runner(loaded).run(0, tokens, [len(tokens)]).log_softmax(-1)
    auto = load(smollm2_path, dtype="auto")
    sizes = [len(tokens) - 9, 5, 1, 1, 1, 1]
    rough = Runner(auto).run(0, tokens, sizes).log_softmax(-1)
    chosen = exact.argmax(-1, keepdim=True)
    # Of the likeliest token's log-probability; bfloat16 weights and activations alone give about as much.
    assert float((rough - exact).gather(1, chosen).abs().mean()) < 0.05
