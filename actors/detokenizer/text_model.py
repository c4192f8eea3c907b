"""Everything that the text edge knows about a model: vocabulary, ends of answers, chat template."""

from dataclasses import dataclass, replace
from pathlib import Path

from pillion.actors.detokenizer.answer_formats import (
    TOOL_FORMATS,
    ReasoningFormat,
    ToolFormat,
    reasoning_format,
    tool_format,
)
from pillion.actors.detokenizer.chat_template import ChatTemplate
from pillion.actors.detokenizer.gguf_tokenizer import (
    gguf_end_ids,
    gguf_special_tokens,
    gguf_tokenizer,
)
from pillion.actors.detokenizer.tokenizer import Tokenizer
from pillion.actors.detokenizer.tokenizer_files import TokenizerFiles
from pillion.runtime.config import EngineConfig
from pillion.runtime.gguf_file import GgufFile
from pillion.runtime.model_source import ModelSource, resolve_model


@dataclass(frozen=True, slots=True)
class TextModel:
    """The text side of a model."""

    tokenizer: Tokenizer
    end_ids: frozenset[int]  # ids that end an answer unless the client ignores them
    chat_template: ChatTemplate
    tool_format: ToolFormat = TOOL_FORMATS["json"]
    reasoning_format: ReasoningFormat | None = None


def load_text_model(config: EngineConfig) -> TextModel:
    """Reads tokenizer and chat template of `config.tokenizer`, else of `config.model`.

    Raises ModelError, naming the file and what is wrong with it.
    """
    if config.tokenizer is not None and Path(config.tokenizer).is_dir():
        model = _read_directory(Path(config.tokenizer))  # it need not hold a model
    else:
        model = read_text_model(resolve_model(config.tokenizer or config.model))
    templates = model.chat_template.sources
    return replace(
        model,
        tool_format=tool_format(config.tool_parser, templates),
        reasoning_format=reasoning_format(config.reasoning_parser, templates),
    )


def read_text_model(source: ModelSource) -> TextModel:
    """Reads tokenizer and chat template of a model on disk. Raises ModelError."""
    if source.kind == "gguf":
        file = GgufFile(source.path)
        template = file.string("tokenizer.chat_template")
        return TextModel(
            tokenizer=Tokenizer(gguf_tokenizer(file)),
            end_ids=gguf_end_ids(file),
            chat_template=ChatTemplate(
                {} if template is None else {"default": template}, gguf_special_tokens(file)
            ),
        )
    return _read_directory(source.path)


def _read_directory(path: Path) -> TextModel:
    files = TokenizerFiles(path)
    backend = files.tokenizer()
    return TextModel(
        tokenizer=Tokenizer(backend),
        end_ids=files.end_ids(backend),
        chat_template=ChatTemplate(files.chat_templates(), files.special_tokens()),
    )
