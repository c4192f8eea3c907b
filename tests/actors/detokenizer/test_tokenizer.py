"""What the text edge asks of a tokenizer beside ids and text."""

import threading

import pytest

from pillion.actors.detokenizer.tokenizer import Tokenizer


def test_text_that_is_not_unicode_is_refused(tokenizer: Tokenizer) -> None:
    for text in ("\ud800", "\ud800" * 5000):
        with pytest.raises(ValueError, match="not valid Unicode"):
            tokenizer.encode(text, True)


def test_ids_that_cannot_be_are_refused(tokenizer: Tokenizer) -> None:
    for wrong in (-1, 2**40):
        with pytest.raises(ValueError, match="token ids must be"):
            tokenizer.decode([97, wrong], True)
    assert tokenizer.decode([97, 2**32 - 1], True) == "a"


def test_short_and_long_texts_are_tokenized_alike(smollm2_tokenizer: Tokenizer) -> None:
    text = "One two three 4567, and so on.\n" * 200
    whole = smollm2_tokenizer.encode(text, True)
    assert smollm2_tokenizer.decode(whole, True) == text
    part = smollm2_tokenizer.encode(text[: 31 * 20], True)
    assert whole[: len(part) - 1] == part[:-1]


def test_the_bound_of_tokens_holds(smollm2_tokenizer: Tokenizer) -> None:
    longest = " " * 10_000
    for text in (longest, "a" * 1000, "=" * 5000, "\n" * 5000):
        count = len(smollm2_tokenizer.encode(text, True))
        assert smollm2_tokenizer.min_tokens(len(text)) <= count
    assert smollm2_tokenizer.min_tokens(10**6) > 10_000


def test_other_threads_run_while_a_long_text_is_tokenized(smollm2_tokenizer: Tokenizer) -> None:
    turns = 0
    done = threading.Event()

    def tokenize() -> None:
        smollm2_tokenizer.encode("one two three four " * 20_000, True)
        done.set()

    thread = threading.Thread(target=tokenize)
    thread.start()
    while not done.wait(0.001):
        turns += 1
    thread.join()
    assert turns > 20


def test_single_tokens_have_a_text(tokenizer: Tokenizer) -> None:
    assert [tokenizer.token_text(token_id) for token_id in (97, 0xE5, 399)] == ["a", "�", ""]
    end = tokenizer.token_id("<|im_end|>")
    assert end is not None
    assert tokenizer.token_text(end) == "<|im_end|>"
    assert end in tokenizer.special_ids
    assert tokenizer.token_id("nothing like it") is None
