"""The events of a streamed response."""

from pillion.actors.gateway.answers import PromptChunk
from pillion.actors.gateway.events import AnswerShape, named_event
from pillion.actors.gateway.http_errors import HttpError
from pillion.actors.gateway.response_builder import ResponseBuilder
from pillion.actors.gateway.responses_replies import Response


class ResponseStream(AnswerShape):
    """Encodes what the builder tells; the last event has the whole response."""

    def __init__(self, begun: Response) -> None:
        self._builder = ResponseBuilder(begun)

    def events(self, chunks: list[PromptChunk]) -> bytes:
        """The events of what is new."""
        for _, chunk in chunks:
            self._builder.add(chunk)
        return self._encoded()

    def end(self) -> bytes:
        """What follows the last chunk."""
        self._builder.finish()
        return self._encoded()

    def error(self, error: HttpError) -> bytes:
        """The response as far as it came, and why it is not whole."""
        self._builder.fail(error)
        return self._encoded()

    def _encoded(self) -> bytes:
        events, self._builder.events = self._builder.events, []
        return b"".join([named_event(event.type, event) for event in events])
