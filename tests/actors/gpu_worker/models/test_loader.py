"""Choices that the loader makes, random weights, and what is counted."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_writer import write_gguf
from tiny_models import CPU, Runner, config_of, load, make_reference, random_tokens, source_of

from pillion.actors.gpu_worker.models import loader
from pillion.actors.gpu_worker.models.hf_config import read_hf_config
from pillion.actors.gpu_worker.models.loader import (
    choose_branch_dtype,
    choose_dtype,
    load_model,
    num_weights,
    open_checkpoint,
)
from pillion.runtime.errors import ConfigError

CUDA = torch.device("cuda")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    make_reference("llama").save_pretrained(path)
    return path


def test_dummy_weights_need_only_the_configuration(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((directory / "config.json").read_bytes())
    tokens = random_tokens(10)
    first, again, other = (
        Runner(load(tmp_path, load_format="dummy", seed=seed)).run(0, tokens, [10])
        for seed in (0, 0, 1)
    )
    assert torch.isfinite(first).all()
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_dummy_weights_are_as_wide_as_the_configuration_says(
    directory: Path, tmp_path: Path
) -> None:
    config = json.loads((directory / "config.json").read_text())
    for deviation in (0.02, 0.005):
        fields = config | {"initializer_range": deviation}
        (tmp_path / "config.json").write_text(json.dumps(fields))
        checkpoint = open_checkpoint(config_of(load_format="dummy"), source_of(tmp_path))
        weight, gain = torch.empty(100, 200), torch.empty(200)
        checkpoint.tensor("weight", (100, 200)).copy_to(weight)
        checkpoint.tensor("norm", (200,)).copy_to(gain)
        assert 0.97 * deviation < weight.std() < 1.03 * deviation
        assert gain.eq(1).all()


def test_each_thread_that_reads_weights_launches_on_their_device(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[str] = set()

    def note(device: torch.device) -> None:
        assert device == CPU
        threads.add(threading.current_thread().name.partition("_")[0])

    monkeypatch.setattr(loader, "make_current", note)
    load(directory)
    assert threads == {"load"}


def test_the_format_must_go_with_the_source(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="load_format is gguf"):
        open_checkpoint(config_of(load_format="gguf"), source_of(directory))
    path = tmp_path / "tiny.gguf"
    write_gguf(make_reference("llama"), path)
    with pytest.raises(ConfigError, match="load_format is safetensors"):
        open_checkpoint(config_of(load_format="safetensors"), source_of(path))
    assert open_checkpoint(config_of(load_format="gguf"), source_of(path)).config.num_layers == 3


@pytest.mark.parametrize(
    ("setting", "device", "stored", "chosen"),
    [
        ("auto", CPU, torch.bfloat16, torch.float32),
        ("bfloat16", CPU, torch.float32, torch.bfloat16),
        ("auto", CUDA, torch.float16, torch.float16),
        ("auto", CUDA, torch.float32, torch.bfloat16),
        ("auto", CUDA, None, torch.bfloat16),
        ("float32", CUDA, torch.bfloat16, torch.float32),
    ],
)
def test_the_type_of_activations(
    setting: Any, device: torch.device, stored: Any, chosen: torch.dtype, directory: Path
) -> None:
    config = read_hf_config(directory)
    object.__setattr__(config, "dtype", stored)
    assert choose_dtype(setting, device, config) == chosen


@pytest.mark.parametrize("has_bfloat16", [True, False])
def test_the_type_of_what_lies_between_norm_and_residual(
    has_bfloat16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "works", lambda form: has_bfloat16)
    faster = torch.bfloat16 if has_bfloat16 else torch.float32
    assert choose_branch_dtype("auto", CPU, torch.float32) == faster
    assert choose_branch_dtype("float32", CPU, torch.float32) == torch.float32
    assert choose_branch_dtype("auto", CUDA, torch.float16) == torch.float16


@pytest.mark.parametrize("name", ["llama", "llama_bias_tied", "qwen3"])
def test_weights_are_counted(name: str, tmp_path: Path) -> None:
    reference = make_reference(name)
    reference.save_pretrained(tmp_path)
    matrices = sum(each.numel() for each in reference.parameters() if each.ndim == 2)
    assert num_weights(read_hf_config(tmp_path)) == matrices
    loaded = load(tmp_path, dtype="bfloat16")
    assert loaded.dtype == torch.bfloat16
    biases = sum(value.numel() for key, value in reference.named_parameters() if "bias" in key)
    everything = sum(each.numel() for each in reference.parameters())
    assert loaded.weights_bytes == 2 * (everything - biases)
    # Of the embedding table a row reads one line, unless it is the head too.
    config = read_hf_config(tmp_path)
    table = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
    assert loaded.row_bytes == 2 * (num_weights(config) - table)


@pytest.mark.parametrize("dtype", ["bfloat16", "auto"])
def test_lower_precision_stays_near_float32(dtype: str, directory: Path) -> None:
    tokens = random_tokens(40)
    exact = Runner(load(directory)).run(0, tokens, [40])
    loaded = load(directory, dtype=dtype)
    rough = Runner(loaded).run(0, tokens, [20, 17, 1, 1, 1])
    assert rough.dtype == torch.float32
    assert not torch.equal(rough, exact)
    # Logits of random weights have a standard deviation of about 13 here; bfloat16 keeps 8 bits.
    assert float((rough - exact).abs().mean() / exact.std()) < 0.05


def test_the_number_of_threads_is_left_as_it_was(directory: Path) -> None:
    before = torch.get_num_threads()
    load(directory)
    assert torch.get_num_threads() == before


def test_float32_results_do_not_depend_on_the_batch(directory: Path) -> None:
    loaded = load_model(config_of(), source_of(directory), CPU)
    sequences = [random_tokens(12, seed) for seed in range(3)]
    together = Runner(loaded)
    together.step([(index, tokens[:11]) for index, tokens in enumerate(sequences)])
    batched = together.step([(index, tokens[11:]) for index, tokens in enumerate(sequences)])
    for tokens, logits in zip(sequences, batched, strict=True):
        alone = Runner(loaded).run(0, tokens, [11, 1])[-1:]
        torch.testing.assert_close(logits, alone, rtol=1e-5, atol=1e-5)
