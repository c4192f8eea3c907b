"""Tokenizers and templates from the files of a model directory."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pillion.actors.detokenizer.text_model import TextModel, load_text_model, read_text_model
from pillion.actors.detokenizer.tokenizer_files import TokenizerFiles
from pillion.runtime.config import EngineConfig
from pillion.runtime.errors import ModelError
from pillion.runtime.model_source import ModelSource
from pillion.runtime.process import child_environment


@pytest.fixture
def directory(tmp_path: Path, text_model: TextModel) -> Path:
    """A directory with the small tokenizer."""
    text_model.tokenizer._backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    return tmp_path


def write(directory: Path, name: str, value: Any) -> None:
    (directory / name).write_text(json.dumps(value))


def read(directory: Path) -> TextModel:
    return read_text_model(ModelSource(kind="directory", path=directory, name="x"))


def test_a_directory_is_read(directory: Path, text_model: TextModel) -> None:
    end = text_model.tokenizer.token_id("<|im_end|>")
    write(
        directory,
        "tokenizer_config.json",
        {"eos_token": {"content": "<|im_end|>"}, "chat_template": "{{ eos_token }}!"},
    )
    model = read(directory)
    assert model.end_ids == {7, end}
    assert model.chat_template.render([{"role": "user", "content": "x"}]) == "<|im_end|>!"
    assert model.tokenizer.encode("hello", True) == text_model.tokenizer.encode("hello", True)
    write(directory, "generation_config.json", {"eos_token_id": [8, 9]})
    assert read(directory).end_ids == {8, 9, end}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"chat_template.jinja": "jinja", "chat_template.json": '{"chat_template": "json"}'},
            "jinja",
        ),
        ({"chat_template.json": '{"chat_template": "json"}'}, "json"),
        (
            {
                "tokenizer_config.json": json.dumps(
                    {
                        "chat_template": [
                            {"name": "other", "template": "o"},
                            {"name": "default", "template": "d"},
                        ]
                    }
                )
            },
            "d",
        ),
    ],
)
def test_places_of_templates(directory: Path, files: dict[str, str], expected: str) -> None:
    for name, text in files.items():
        (directory / name).write_text(text)
    assert read(directory).chat_template.render([{"role": "user", "content": "x"}]) == expected


def test_add_bos_token_is_followed(directory: Path, text_model: TextModel) -> None:
    start = text_model.tokenizer.token_id("<|im_start|>")
    settings = {"bos_token": "<|im_start|>", "add_bos_token": True}
    write(directory, "tokenizer_config.json", settings)
    model = read(directory)
    assert model.tokenizer.encode("a", True) == [start, 97]
    assert model.tokenizer.encode("a", False) == [97]
    model.tokenizer._backend.save(str(directory / "tokenizer.json"))
    write(directory, "tokenizer_config.json", {**settings, "add_bos_token": False})
    assert read(directory).tokenizer.encode("a", True) == [97]


def test_truncation_in_the_file_is_not_followed(directory: Path, text_model: TextModel) -> None:
    content = json.loads((directory / "tokenizer.json").read_text())
    content["truncation"] = {
        "direction": "Right",
        "max_length": 4,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    write(directory, "tokenizer.json", content)
    assert len(read(directory).tokenizer.encode("q" * 100, True)) == 100


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b"{"),
        ("tokenizer.json", b'{"version": "1.0"}'),
        ("tokenizer_config.json", b"[1]"),
        ("generation_config.json", b"\xff"),
        ("chat_template.jinja", b"\xff"),
    ],
)
def test_files_that_are_broken_are_named(directory: Path, name: str, content: bytes) -> None:
    (directory / name).write_bytes(content)
    with pytest.raises(ModelError, match=name):
        read(directory)


def test_a_directory_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        TokenizerFiles(tmp_path).tokenizer()


def test_the_tokenizer_may_come_from_elsewhere(
    directory: Path, smollm2_path: Path, text_model: TextModel
) -> None:
    (directory / "config.json").unlink()
    config = EngineConfig(model=str(smollm2_path), tokenizer=str(directory))
    assert load_text_model(config).tokenizer.encode("hello", True) == text_model.tokenizer.encode(
        "hello", True
    )


def test_transformers_is_the_last_resort(tmp_path: Path) -> None:
    vocab = {"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}
    write(tmp_path, "vocab.json", vocab)
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    write(
        tmp_path,
        "tokenizer_config.json",
        {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>"},
    )
    write(tmp_path, "config.json", {"model_type": "gpt2"})
    model = read(tmp_path)
    assert model.tokenizer.encode("abb", True) == [2, 1]
    assert model.end_ids == {3}


def test_the_usual_way_needs_no_heavy_library(directory: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from pillion.actors.detokenizer.text_model import read_text_model\n"
        "from pillion.runtime.model_source import ModelSource\n"
        f"read_text_model(ModelSource(kind='directory', path=Path({str(directory)!r}), name='x'))\n"
        "print({'torch', 'transformers'} & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "set()"
