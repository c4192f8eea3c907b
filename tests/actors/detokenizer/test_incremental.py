"""Text that comes token by token is the text of all tokens together."""

import json
import random

import pytest
import tokenizers
from edge_rig import byte_level_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from pillion.actors.detokenizer.tokenizer import Tokenizer

BYTE_LEVEL = byte_level_tokenizer()
SCRIPTS = "Příliš žluťoučký kůň 你好，世界 こんにちは 안녕하세요 Привет мир שלום مرحبا नमस्ते 🙂👩‍👩‍👧‍👦🇨🇿 é é"


def stream(tokenizer: Tokenizer, ids: list[int], skip: bool) -> list[str]:
    """The parts of the text, the last one from `flush`."""
    text = tokenizer.stream(skip)
    return [*(text.push(token_id) for token_id in ids), text.flush()]


def byte_fallback_tokenizer(decoder: object) -> Tokenizer:
    """SentencePiece-like: words with a space mark, and a token for each byte."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocab.update({f"<0x{byte:02X}>": 3 + byte for byte in range(256)})
    for word in ("▁", "h", "i", "▁h", "▁hi", "é", "▁▁"):
        vocab[word] = len(vocab)
    model = models.BPE(
        vocab=vocab,
        merges=[("▁", "h"), ("▁h", "i"), ("▁", "▁")],
        unk_token="<unk>",
        byte_fallback=True,
        fuse_unk=True,
    )
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoder
    backend.add_special_tokens(["<s>", "</s>"])
    return Tokenizer(backend)


LLAMA = byte_fallback_tokenizer(
    decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
)


@given(st.lists(st.integers(0, 400), max_size=60), st.booleans())
def test_random_ids_of_a_byte_level_vocabulary(ids: list[int], skip: bool) -> None:
    parts = stream(BYTE_LEVEL, ids, skip)
    assert "".join(parts) == BYTE_LEVEL.decode(ids, skip)
    assert "".join(parts) == BYTE_LEVEL._backend.decode(ids, skip_special_tokens=skip)


@given(st.text(), st.booleans())
def test_text_survives_and_is_never_broken(text: str, skip: bool) -> None:
    ids = list(text.encode())  # byte by byte, which is what a model may do
    parts = stream(BYTE_LEVEL, ids, skip)
    assert "".join(parts) == text
    assert parts[-1] == ""
    if "�" not in text:
        assert "�" not in "".join(parts)


def test_every_script_byte_by_byte() -> None:
    for character in SCRIPTS:
        parts = stream(BYTE_LEVEL, list(character.encode()), True)
        assert parts[-2] == character
        assert "".join(parts[:-2]) == ""


def test_an_incomplete_tail_is_flushed_once() -> None:
    assert stream(BYTE_LEVEL, [0x61, 0xF0, 0x9F, 0x99], True) == ["a", "", "", "", "�"]
    text = BYTE_LEVEL.stream(True)
    text.push(0xF0)
    assert (text.flush(), text.flush()) == ("�", "")


def test_plain_text_is_not_delayed() -> None:
    ids = BYTE_LEVEL.encode("hello the world and", False)
    parts = stream(BYTE_LEVEL, ids, True)
    assert all(parts[:-1])
    assert parts[-1] == ""


def test_hidden_tokens_between_the_bytes_of_a_character() -> None:
    end = BYTE_LEVEL.token_id("<|im_end|>")
    assert end is not None
    first, second = "é".encode()
    assert stream(BYTE_LEVEL, [first, end, second], True) == ["", "", "é", ""]
    assert "".join(stream(BYTE_LEVEL, [first, end, second], False)) == "�<|im_end|>�"


@given(st.lists(st.integers(0, 265), max_size=40))
def test_random_ids_of_a_byte_fallback_vocabulary(ids: list[int]) -> None:
    parts = stream(LLAMA, ids, True)
    assert "".join(parts).removeprefix(" ") == LLAMA.decode(ids, True)


@given(st.text(alphabet="hi é你🙂 "))
def test_text_of_a_byte_fallback_vocabulary(text: str) -> None:
    ids = LLAMA.encode(text, False)
    assert LLAMA.decode(ids, True) == text
    assert LLAMA.decode(ids, True) == LLAMA._backend.decode(ids)
    assert "".join(stream(LLAMA, ids, True)) == (" " + text if text else "")


def test_a_metaspace_decoder_is_the_same() -> None:
    metaspace = byte_fallback_tokenizer(decoders.Metaspace())
    ids = metaspace.encode("hi  hi", False)
    assert metaspace.decode(ids, True) == "hi  hi"


def word_pieces() -> Tokenizer:
    """A decoder that looks at neighbours: no table, so the window is used."""
    vocab = {"[UNK]": 0, "sun": 1, "##ny": 2, "world": 3, "##s": 4, ".": 5}
    backend = tokenizers.Tokenizer(models.WordPiece(vocab=vocab, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    backend.add_tokens([AddedToken("<a>"), AddedToken("<b>")])
    return Tokenizer(backend)


@given(st.lists(st.integers(0, 9), max_size=30))
def test_other_decoders_through_a_window(ids: list[int]) -> None:
    tokenizer = word_pieces()
    assert "".join(stream(tokenizer, ids, True)) == tokenizer._backend.decode(ids)


@pytest.mark.parametrize(
    ("spaced", "expected"), [(True, "world <a> <b> world"), (False, "world <a><b> world")]
)
def test_spaces_between_added_tokens(spaced: bool, expected: str) -> None:
    tokenizer = word_pieces()
    text = tokenizer.stream(True, spaces_between=spaced)
    a, b = tokenizer.token_id("<a>"), tokenizer.token_id("<b>")
    assert a is not None
    assert b is not None
    assert "".join([*(text.push(each) for each in (3, a, b, 3)), text.flush()]) == expected


def test_a_window_does_not_grow_with_tokens_that_have_no_text() -> None:
    tokenizer = word_pieces()
    text = tokenizer.stream(True)
    for _ in range(1000):
        assert text.push(99) == ""
    assert len(text._ids) <= 32  # type: ignore[attr-defined]
    assert text.push(3) == "world"


def test_a_real_vocabulary_with_many_random_ids(smollm2_tokenizer: Tokenizer) -> None:
    chance = random.Random(5)
    backend = smollm2_tokenizer._backend
    for _ in range(300):
        ids = [chance.randrange(49152) for _ in range(1000)]
        assert "".join(stream(smollm2_tokenizer, ids, True)) == backend.decode(ids)


def test_decoder_state_is_what_the_table_reads() -> None:
    state = json.loads(decoders.ByteLevel().__getstate__())
    assert state["type"] == "ByteLevel"
