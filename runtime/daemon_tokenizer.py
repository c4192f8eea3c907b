"""The model's tokenizer as the daemon has it, for those who want token ids without a library of their own."""

from collections.abc import Sequence
from typing import Any, Literal, overload

from pillion.runtime.client import Client
from pillion.runtime.prompts import Messages


class DaemonTokenizer:
    """Encodes, decodes and renders chats exactly as generation does, by asking the daemon."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def vocab_size(self) -> int:
        """How many token ids the model has."""
        return self._client.welcome.vocab_size

    def __len__(self) -> int:
        return self.vocab_size

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text."""
        return self._client.tokenize(text, add_special_tokens=add_special_tokens)

    def decode(self, token_ids: int | Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        return self._client.detokenize(ids, skip_special_tokens=skip_special_tokens)

    @overload
    def apply_chat_template(
        self, messages: Messages, *, tokenize: Literal[True] = True, **options: Any
    ) -> list[int]: ...
    @overload
    def apply_chat_template(
        self, messages: Messages, *, tokenize: Literal[False], **options: Any
    ) -> str: ...

    def apply_chat_template(
        self,
        messages: Messages,
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        **template_kwargs: Any,
    ) -> list[int] | str:
        """A conversation as the model reads it: token ids, or with `tokenize=False` their text.

        Further keyword arguments go to the template.
        """
        token_ids = self._client.tokenize(
            messages=messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            chat_template_kwargs=template_kwargs or None,
        )
        return token_ids if tokenize else self.decode(token_ids)
