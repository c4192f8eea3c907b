"""Token ids from GGUF metadata against those that llama.cpp gives (golden_ids.json)."""

import json
import unicodedata
from pathlib import Path
from typing import Any

import gguf
import pytest

from pillion.actors.detokenizer.gguf_tokenizer import (
    gguf_end_ids,
    gguf_special_tokens,
    gguf_tokenizer,
)
from pillion.actors.detokenizer.text_model import TextModel
from pillion.actors.detokenizer.tokenizer import Tokenizer
from pillion.runtime.errors import ModelError
from pillion.runtime.gguf_file import GgufFile

GOLDEN: dict[str, Any] = json.loads(Path(__file__).with_name("golden_ids.json").read_text())
TEXTS: list[str] = GOLDEN["texts"]


def write_gguf(path: Path, model: str, fields: dict[str, Any]) -> GgufFile:
    """A GGUF file with this tokenizer metadata and no tensors."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    adders = {
        "pre": writer.add_tokenizer_pre,
        "tokens": writer.add_token_list,
        "merges": writer.add_token_merges,
        "scores": writer.add_token_scores,
        "token_type": writer.add_token_types,
        "bos": writer.add_bos_token_id,
        "eos": writer.add_eos_token_id,
        "eot": writer.add_eot_token_id,
        "unknown": writer.add_unk_token_id,
        "add_bos": writer.add_add_bos_token,
        "add_eos": writer.add_add_eos_token,
        "add_space_prefix": writer.add_add_space_prefix,
    }
    for name, value in fields.items():
        adders[name](value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(path)


def test_smollm2_gives_the_ids_of_llama_cpp(smollm2: TextModel) -> None:
    wrong = [
        text
        for text, ids in zip(TEXTS, GOLDEN["smollm"], strict=True)
        if smollm2.tokenizer.encode(text, True) != ids
    ]
    assert wrong == []


def test_smollm2_gives_the_texts_back(smollm2: TextModel) -> None:
    for text, ids in zip(TEXTS, GOLDEN["smollm"], strict=True):
        assert smollm2.tokenizer.decode(ids, False) == text


def test_special_tokens_as_text(smollm2: TextModel) -> None:
    backend = smollm2.tokenizer._backend
    plain = GOLDEN["smollm, special tokens as text"]
    backend.encode_special_tokens = True
    try:
        for index, ids in plain.items():
            assert backend.encode(TEXTS[int(index)]).ids == ids
    finally:
        backend.encode_special_tokens = False


@pytest.mark.parametrize("rule", ["gpt-2", "llama-bpe", "qwen2", "tekken", "smaug-bpe"])
def test_every_rule_for_words(smollm2_path: Path, rule: str) -> None:
    file = GgufFile(smollm2_path)
    file.metadata["tokenizer.ggml.pre"] = rule
    file.metadata["tokenizer.ggml.add_bos_token"] = False
    tokenizer = Tokenizer(gguf_tokenizer(file))
    wrong = []
    for index, text in enumerate(TEXTS):
        ids = GOLDEN[rule].get(str(index), GOLDEN["smollm"][index])
        # Qwen's own tokenizer composes characters first, which llama.cpp leaves out.
        if rule == "qwen2" and not unicodedata.is_normalized("NFC", text):
            continue
        if tokenizer.encode(text, True) != ids:
            wrong.append(text)
    assert wrong == []


def test_pieces_with_scores(tmp_path: Path) -> None:
    pieces = dict(GOLDEN["pieces"])
    expected = pieces.pop("ids")
    file = write_gguf(tmp_path / "x.gguf", "llama", {**pieces, "unknown": 0, "bos": 1, "eos": 2})
    tokenizer = Tokenizer(gguf_tokenizer(file))
    wrong = [
        text
        for text, ids in zip(TEXTS, expected, strict=True)
        if tokenizer.encode(text, False) != ids
    ]
    assert wrong == []
    assert tokenizer.encode("the", True) == [1, *tokenizer.encode("the", False)]
    assert tokenizer.decode(tokenizer.encode("the 好 of", False), True) == "the 好 of"


def test_special_ids_of_smollm2(smollm2: TextModel, smollm2_path: Path) -> None:
    assert smollm2.end_ids == {2}
    assert gguf_special_tokens(GgufFile(smollm2_path))["bos_token"] == "<|im_start|>"
    assert smollm2.tokenizer.decode([1, 28, 2], True) == ","
    assert smollm2.tokenizer.decode([1, 28, 2], False) == "<|im_start|>,<|im_end|>"


SMALL = {
    "tokens": ["a", "b", "<|eot_id|>", "<|end_of_text|>", "<|begin|>", "<tool>"],
    "merges": ["a b"],
    "token_type": [1, 1, 3, 3, 3, 4],
    "pre": "llama-bpe",
    "bos": 4,
    "eos": 3,
}


def test_ends_and_frames(tmp_path: Path) -> None:
    tokens = [*SMALL["tokens"], "ab"]
    fields = {**SMALL, "tokens": tokens, "token_type": [*SMALL["token_type"], 1]}
    file = write_gguf(tmp_path / "x.gguf", "gpt2", fields)
    tokenizer = Tokenizer(gguf_tokenizer(file))
    assert gguf_end_ids(file) == {2, 3}
    assert tokenizer.encode("ab<tool>a", True) == [4, 6, 5, 0]
    assert tokenizer.decode([5, 3], True) == "<tool>"
    framed = write_gguf(tmp_path / "y.gguf", "gpt2", {**fields, "add_bos": False, "add_eos": True})
    assert Tokenizer(gguf_tokenizer(framed)).encode("ab", True) == [6, 3]
    assert Tokenizer(gguf_tokenizer(framed)).encode("ab", False) == [6]


@pytest.mark.parametrize(
    ("model", "fields", "said"),
    [
        ("rwkv", {}, "rwkv"),
        ("gpt2", {"pre": "brand-new"}, "brand-new"),
        ("gpt2", {}, "tokenizer.ggml.pre is None"),
        ("gpt2", {"pre": "smollm"}, "tokenizer.ggml.tokens is missing"),
        ("gpt2", {"pre": "smollm", "tokens": ["a"], "token_type": [1, 1]}, "2 entries"),
        ("llama", {"tokens": ["a"]}, "a score for each token"),
        ("gpt2", {"pre": "smollm", "tokens": ["a"], "merges": ["ab"]}, "no pair"),
        ("gpt2", {"pre": "smollm", "tokens": ["a"], "merges": ["a b"]}, "merges"),
    ],
)
def test_what_cannot_be_read_is_named(
    tmp_path: Path, model: str, fields: dict[str, Any], said: str
) -> None:
    file = write_gguf(tmp_path / "x.gguf", model, fields)
    with pytest.raises(ModelError, match=said):
        gguf_tokenizer(file)


def test_a_special_id_that_is_none(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "x.gguf", "gpt2", {"tokens": ["a"], "eos": 2**32 - 1})
    assert gguf_end_ids(file) == frozenset()
