"""Server-sent events of a streamed answer."""

from typing import Any, Final

import msgspec

from pillion.actors.gateway.answers import Answers, PromptChunk
from pillion.actors.gateway.exchange import ClientGone, Exchange, Headers
from pillion.actors.gateway.http_errors import HttpError, http_error_of

DONE: Final = b"data: [DONE]\n\n"

_ENCODER: Final = msgspec.json.Encoder()


def event(value: Any) -> bytes:
    """One event of OpenAI's streams."""
    return b"data: " + _ENCODER.encode(value) + b"\n\n"


def named_event(name: str, value: Any) -> bytes:
    """One event of streams that name their events."""
    return b"event: " + name.encode() + b"\ndata: " + _ENCODER.encode(value) + b"\n\n"


class AnswerShape:
    """Turns chunks into the events of one API. A route's own shape overrides all of these."""

    def events(self, chunks: list[PromptChunk]) -> bytes:
        """The events of what is new."""
        raise NotImplementedError

    def end(self) -> bytes:
        """What follows the last chunk."""
        raise NotImplementedError

    def error(self, error: HttpError) -> bytes:
        """What a stream that has begun ends with when its request fails."""
        return event(error.as_dict("openai")) + DONE


async def stream_answers(
    exchange: Exchange,
    answers: Answers,
    shape: AnswerShape,
    headers: Headers = (),
    renamed: dict[str, str] | None = None,
) -> None:
    """Streams answers. A failure before the first chunk is raised, so that it gets a status of its own.

    A later one is told in the stream, with fields `renamed` as in `http_error_of`, and raised too; then the
    exchange's status is set already.
    """
    chunks = await answers.next()
    await exchange.start_events(headers)
    try:
        while chunks:
            await exchange.send_events(shape.events(chunks))
            chunks = await answers.next()
    except ClientGone:
        raise
    except Exception as error:
        told = http_error_of(error, renamed)
        await exchange.send_events(shape.error(told))
        await exchange.end_events()
        raise
    await exchange.send_events(shape.end())
    await exchange.end_events()
