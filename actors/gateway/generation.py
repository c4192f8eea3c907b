"""What one HTTP request for text has had so far."""

from pillion.messages.codec import num_ids
from pillion.messages.text import GenerateChunk, TraceContext


class Generation:
    """Counts its tokens."""

    def __init__(self, trace: TraceContext | None) -> None:
        self.trace = trace  # goes with each prompt
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.num_output_tokens = 0

    def note_chunk(self, chunk: GenerateChunk) -> None:
        """Something has come."""
        self.num_output_tokens += num_ids(chunk.token_ids)
        if chunk.usage is not None:
            self.num_prompt_tokens += chunk.usage.prompt_tokens
            self.num_cached_tokens += chunk.usage.cached_tokens
