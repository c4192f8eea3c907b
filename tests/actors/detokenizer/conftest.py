"""Fixtures of the text edge's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from edge_rig import CHATML, EdgeRig, byte_level_tokenizer

from pillion.actors.detokenizer.chat_template import ChatTemplate
from pillion.actors.detokenizer.text_model import TextModel, read_text_model
from pillion.actors.detokenizer.tokenizer import Tokenizer
from pillion.runtime.model_source import ModelSource


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """The small byte-level tokenizer."""
    return byte_level_tokenizer()


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> TextModel:
    """The text side of SmolLM2-135M-Instruct."""
    return read_text_model(ModelSource(kind="gguf", path=smollm2_path, name="smollm2"))


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2: TextModel) -> Tokenizer:
    """Its vocabulary."""
    return smollm2.tokenizer


@pytest.fixture(scope="session")
def text_model(tokenizer: Tokenizer) -> TextModel:
    """The small tokenizer with a ChatML template."""
    end = tokenizer.token_id("<|im_end|>")
    assert end is not None
    return TextModel(
        tokenizer=tokenizer,
        end_ids=frozenset([end]),
        chat_template=ChatTemplate({"default": CHATML}, {"eos_token": "<|im_end|>"}),
    )


@pytest.fixture
def rig(text_model: TextModel) -> Iterator[EdgeRig]:
    """An edge that is ready, with one client; nothing may be open when the test ends."""
    rig = EdgeRig(text_model)
    rig.connect()
    yield rig
    rig.edge.close_session(1)
    rig.turn()
    assert rig.edge.gauges["open_requests"] == 0
