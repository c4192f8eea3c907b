"""Tokenizers, special tokens and chat templates from the files of a model directory."""

from pathlib import Path
from typing import Any, Final

import msgspec
import tokenizers

from pillion.actors.detokenizer.gguf_tokenizer import framing
from pillion.runtime.errors import ModelError

_SPECIAL_TOKENS: Final = (
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
)


class TokenizerFiles:
    """What a model directory says about its text side. Raises ModelError for a file that cannot be read."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._settings = self._json("tokenizer_config.json")
        self._special_map = self._json("special_tokens_map.json")

    def tokenizer(self) -> tokenizers.Tokenizer:
        """The tokenizer of tokenizer.json; without that file, what transformers can make of the others."""
        path = self.directory / "tokenizer.json"
        if path.is_file():
            try:
                backend = tokenizers.Tokenizer.from_file(str(path))
            except (
                Exception
            ) as error:  # the library raises plain Exception for anything wrong in the file
                raise ModelError(f"cannot read {path}: {error}") from error
        else:
            backend = self._converted()
        self._begin_as_set(backend)
        return backend

    def special_tokens(self) -> dict[str, str]:
        """Names of special tokens as chat templates use them."""
        found: dict[str, str] = {}
        for name in _SPECIAL_TOKENS:
            for source in (self._settings, self._special_map):
                token = source.get(name)
                if isinstance(token, dict):
                    token = token.get("content")
                if isinstance(token, str):
                    found[name] = token
                    break
        return found

    def end_ids(self, backend: tokenizers.Tokenizer) -> frozenset[int]:
        """Ids that end an answer: those of generation_config.json or config.json, and the eos_token."""
        ids: set[int] = set()
        for name in ("generation_config.json", "config.json"):
            value = self._json(name).get("eos_token_id")
            listed = value if isinstance(value, list) else [value]
            ids.update(each for each in listed if isinstance(each, int))
            if ids:
                break
        token = self.special_tokens().get("eos_token")
        token_id = None if token is None else backend.token_to_id(token)
        if token_id is not None:
            ids.add(token_id)
        return frozenset(ids)

    def chat_templates(self) -> dict[str, str]:
        """Chat templates by name; the usual one is called "default"."""
        path = self.directory / "chat_template.jinja"
        if path.is_file():
            try:
                return {"default": path.read_text(encoding="utf-8")}
            except (OSError, UnicodeDecodeError) as error:
                raise ModelError(f"cannot read {path}: {error}") from error
        for settings in (self._json("chat_template.json"), self._settings):
            template = settings.get("chat_template")
            if isinstance(template, str):
                return {"default": template}
            if isinstance(template, list):
                return _named(template)
        return {}

    def _converted(self) -> tokenizers.Tokenizer:
        if not any((self.directory / name).is_file() for name in _TRANSFORMERS_READS):
            raise ModelError(
                f"{self.directory} has no tokenizer.json: set `tokenizer` to a directory that has one"
            )
        # The one way to transformers, slow and large: only for checkpoints older than tokenizer.json.
        import transformers

        try:
            found = transformers.AutoTokenizer.from_pretrained(
                self.directory, trust_remote_code=False, local_files_only=True
            )
        except Exception as error:  # whatever goes wrong in there, it is the checkpoint's files
            raise ModelError(
                f"{self.directory} has no tokenizer.json and transformers cannot make one: {error}"
            ) from error
        if not hasattr(found, "backend_tokenizer"):
            raise ModelError(
                f"{self.directory} has no tokenizer.json and its tokenizer, {type(found).__name__}, has no fast form"
            )
        return found.backend_tokenizer

    def _begin_as_set(self, backend: tokenizers.Tokenizer) -> None:
        """add_bos_token, where it is set, overrules what tokenizer.json does with a raw prompt."""
        wanted = self._settings.get("add_bos_token")
        token = self.special_tokens().get("bos_token")
        token_id = None if token is None else backend.token_to_id(token)
        if not isinstance(wanted, bool) or token is None or token_id is None:
            return
        begins = backend.encode("a", add_special_tokens=True).ids[:1] == [token_id]
        if wanted != begins:
            backend.post_processor = framing((token, token_id) if wanted else None, None)

    def _json(self, name: str) -> dict[str, Any]:
        path = self.directory / name
        try:
            return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            raise ModelError(f"cannot read {path}: {error}") from error


_TRANSFORMERS_READS: Final = (
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tekken.json",
    "sentencepiece.bpe.model",
)


def _named(templates: list[Any]) -> dict[str, str]:
    return {
        each["name"]: each["template"]
        for each in templates
        if isinstance(each, dict)
        and isinstance(each.get("name"), str)
        and isinstance(each.get("template"), str)
    }
