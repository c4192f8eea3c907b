"""How many tokens one HTTP request has had."""

from pillion.messages.codec import num_ids
from pillion.messages.text import GenerateChunk


class RequestTokens:
    """Counts what comes."""

    def __init__(self) -> None:
        self.num_prompt = 0
        self.num_cached = 0
        self.num_output = 0

    def note_chunk(self, chunk: GenerateChunk) -> None:
        """Something has come."""
        self.num_output += num_ids(chunk.token_ids)
        if chunk.usage is not None:
            self.num_prompt += chunk.usage.prompt_tokens
            self.num_cached += chunk.usage.cached_tokens
