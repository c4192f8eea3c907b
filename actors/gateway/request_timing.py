"""When one HTTP request's tokens came, and how many."""

from pillion.messages.codec import num_ids
from pillion.messages.text import GenerateChunk
from pillion.runtime.clock import NS_PER_MS, now_ns


class RequestTiming:
    """Times of one request on this machine's monotonic clock, in nanoseconds; 0: not yet."""

    def __init__(self) -> None:
        self.started_ns = now_ns()
        self.first_token_ns = 0
        self.last_token_ns = 0
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.num_output_tokens = 0
        self.finish_reasons: list[str] = []

    def note_chunk(self, chunk: GenerateChunk) -> None:
        """Something has come."""
        count = num_ids(chunk.token_ids)
        if count:
            self.last_token_ns = now_ns()
            self.num_output_tokens += count
            if not self.first_token_ns:
                self.first_token_ns = self.last_token_ns
        if chunk.finish_reason is not None:
            self.finish_reasons.append(chunk.finish_reason)
        if chunk.times is not None and self.first_token_ns:
            # An answer that is not streamed comes at once; the daemon knows when it began.
            began_ns = self.started_ns + int(chunk.times.first_token_ms * NS_PER_MS)
            self.first_token_ns = min(self.first_token_ns, began_ns)
        if chunk.usage is not None:
            self.num_prompt_tokens += chunk.usage.prompt_tokens
            self.num_cached_tokens += chunk.usage.cached_tokens
