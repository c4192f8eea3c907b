"""A text edge that speaks the client protocol and misbehaves as its prompts say.

An ordinary prompt is answered with its own words, one token and one chunk each (a request that is not
streamed: one chunk). Words in capitals make it do something else, see `_answer`.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from pillion.messages.codec import (
    FRAME_HEADER_BYTES,
    Codec,
    frame,
    frame_length,
    pack_floats,
    pack_ids,
    unpack_ids,
)
from pillion.messages.inboxes import ClientToDaemon
from pillion.messages.text import (
    PROTOCOL_VERSION,
    CancelRequest,
    DetokenizeReply,
    DetokenizeRequest,
    EmbedRequest,
    GenerateChunk,
    GenerateRequest,
    Hello,
    RequestFailed,
    RequestTimes,
    TokenizeReply,
    TokenizeRequest,
    TokenLogprobs,
    ToolCallDelta,
    Usage,
    Welcome,
)

DEADLINE_S = 10.0


class Session:
    """One connection."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._codec: Codec[ClientToDaemon] = Codec(ClientToDaemon)
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def send(self, *messages: Any) -> None:
        for message in messages:
            self._writer.write(frame(self._codec.encode(message)))
        await self._writer.drain()

    def send_bytes(self, data: bytes) -> None:
        self._writer.write(data)

    def hang_up(self) -> None:
        self._writer.transport.abort()


class FakeTextEdge:
    """Listens on a Unix socket from a thread of its own until `stop`."""

    def __init__(self, path: Path, *, greeting: str = "welcome") -> None:
        self.path = path
        self.greeting = greeting
        self.model_name = "fake"
        self.refuses = False  # as a daemon that is ending
        self.requests: list[GenerateRequest] = []
        self.hellos: list[Hello] = []
        self.cancelled: list[str] = []
        self.num_refused = 0
        self.hang_up_after: int | None = None  # so many more chunks of ordinary answers
        self.most_in_flight = 0
        self.num_closed = 0
        self._changed = threading.Condition()
        self._sessions: set[Session] = set()
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fake text edge")
        self._thread.start()
        assert self._listening.wait(DEADLINE_S)

    def stop(self) -> None:
        """Hangs up on everybody and ends."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(DEADLINE_S)
            assert not self._thread.is_alive()

    def drain(self) -> None:
        """From now on everything is refused; what is open ends."""

        async def refuse() -> None:
            self.refuses = True
            for session in list(self._sessions):
                for request_id, task in list(session.tasks.items()):
                    task.cancel()
                    await session.send(_refusal(request_id))

        asyncio.run_coroutine_threadsafe(refuse(), self._loop).result(DEADLINE_S)

    def hang_up_on_all(self) -> None:
        """Closes every connection, and goes on listening."""

        def hang_up() -> None:
            for session in self._sessions:
                session.hang_up()

        self._loop.call_soon_threadsafe(hang_up)

    def wait(self, what: str, holds: Callable[[], bool]) -> None:
        """Waits until something has been seen; fails with its name."""
        with self._changed:
            assert self._changed.wait_for(holds, DEADLINE_S), f"waited in vain for {what}"

    def _note(self, change: Callable[[], Any]) -> None:
        with self._changed:
            change()
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_unix_server(self._converse, self.path)
        self._listening.set()
        await self._stopping.wait()
        server.close()
        for session in self._sessions:
            session.hang_up()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = Session(writer)
        self._sessions.add(session)
        codec: Codec[ClientToDaemon] = Codec(ClientToDaemon)
        try:
            while True:
                length = frame_length(await reader.readexactly(FRAME_HEADER_BYTES))
                await self._on_message(session, codec.decode(await reader.readexactly(length)))
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self._sessions.discard(session)
            for task in session.tasks.values():
                task.cancel()
            with contextlib.suppress(OSError):
                writer.close()
            self._note(lambda: setattr(self, "num_closed", self.num_closed + 1))

    async def _on_message(self, session: Session, message: ClientToDaemon) -> None:
        match message:
            case Hello():
                self.hellos.append(message)
                await self._greet(session)
            case GenerateRequest(client_request_id=request_id) if self.refuses:
                self._note(lambda: self.requests.append(message))
                await session.send(_refusal(request_id))
            case GenerateRequest(client_request_id=request_id):
                task = asyncio.create_task(self._answer(session, message))
                session.tasks[request_id] = task
                task.add_done_callback(lambda _: session.tasks.pop(request_id, None))
                in_flight = sum(len(one.tasks) for one in self._sessions)
                self.most_in_flight = max(self.most_in_flight, in_flight)
                self._note(lambda: self.requests.append(message))
            case CancelRequest(client_request_id=request_id):
                self._note(lambda: self.cancelled.append(request_id))
                open_task = session.tasks.get(request_id)
                if open_task is not None:
                    open_task.cancel()
                    await session.send(
                        GenerateChunk(client_request_id=request_id, index=0, finish_reason="abort")
                    )
            case TokenizeRequest(client_request_id=request_id):
                text = message.prompt or str((message.messages or [{}])[-1].get("content"))
                await session.send(
                    TokenizeReply(
                        client_request_id=request_id,
                        token_ids=pack_ids(len(word) for word in text.split()),
                        max_model_len=100,
                        special_tokens={"eos_token": "<end>"},
                        chat_template="{{ messages }}",
                    )
                )
            case DetokenizeRequest(client_request_id=request_id) if max(message.token_ids) > 999:
                await session.send(
                    RequestFailed(
                        client_request_id=request_id,
                        code="invalid_request",
                        message=f"token_ids takes token ids from 0 to 999, got {message.token_ids}",
                        param="token_ids",
                    )
                )
            case DetokenizeRequest(client_request_id=request_id):
                text = " ".join("x" * token_id for token_id in message.token_ids)
                await session.send(DetokenizeReply(client_request_id=request_id, text=text))
            case EmbedRequest(client_request_id=request_id):
                await session.send(
                    RequestFailed(
                        client_request_id=request_id,
                        code="unsupported",
                        message="this model only generates",
                    )
                )

    async def _greet(self, session: Session) -> None:
        welcome = Welcome(
            protocol_version=PROTOCOL_VERSION,
            version="0",
            model_name=self.model_name,
            ready=True,
            max_model_len=100,
            vocab_size=1000,
            capabilities=[],
        )
        match self.greeting:
            case "welcome":
                await session.send(welcome)
            case "other version":
                await session.send(
                    Welcome(**{**_fields(welcome), "protocol_version": PROTOCOL_VERSION + 1})
                )
            case "refuse":
                await session.send(
                    RequestFailed(
                        client_request_id="", code="unavailable", message="the daemon is stopping"
                    )
                )
            case "hang up":
                session.hang_up()
            case "noise":
                session.send_bytes(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            case "silence":
                pass

    async def _answer(self, session: Session, request: GenerateRequest) -> None:
        request_id = request.client_request_id
        prompt = _text_of(request)
        command = prompt.split(" ")[0]
        if command in ("REFUSE", "BAD_GRAMMAR"):
            await session.send(
                RequestFailed(
                    client_request_id=request_id,
                    code="invalid_request",
                    message="prompt is not to its liking",
                    param="prompt" if command == "REFUSE" else "structured_outputs",
                )
            )
        elif command == "FULL" and self.num_refused < int(prompt.split(" ")[1]):
            self.num_refused += 1
            await session.send(
                RequestFailed(
                    client_request_id=request_id,
                    code="overloaded",
                    message="2 requests are open, which is all",
                    retry_after_ms=5,
                )
            )
        elif command in ("GAP", "TWICE"):
            offset = 5 if command == "GAP" else 0
            first = GenerateChunk(
                client_request_id=request_id, index=0, text="a", token_ids=pack_ids([1])
            )
            second = GenerateChunk(
                client_request_id=request_id,
                index=0,
                text="b",
                token_ids=pack_ids([2]),
                offset=offset,
                finish_reason="stop",
            )
            await session.send(first, second)
        elif command == "STRANGER":
            await session.send(
                GenerateChunk(client_request_id=request_id, index=7, finish_reason="stop")
            )
        elif command == "NEVER":
            if not num_received(request, 0):
                await session.send(
                    GenerateChunk(
                        client_request_id=request_id,
                        index=0,
                        text="so far",
                        token_ids=pack_ids([1]),
                    )
                )
            await asyncio.Event().wait()
        elif command == "MUTE":
            await asyncio.Event().wait()
        elif command == "HANGUP":
            session.hang_up()
        elif command == "NOISE":
            session.send_bytes(frame(b"\xc1not msgpack"))
        elif command == "HUGE":
            session.send_bytes(b"\xff\xff\xff\xff")
        elif command == "BREAK":
            await session.send(
                GenerateChunk(
                    client_request_id=request_id,
                    index=0,
                    text="until here",
                    token_ids=pack_ids([1]),
                    finish_reason="error",
                    error="a NaN in the logits",
                )
            )
        elif command == "OUTGROW":
            first = GenerateChunk(
                client_request_id=request_id, index=0, text="a", token_ids=pack_ids([1])
            )
            last = GenerateChunk(
                client_request_id=request_id,
                index=0,
                offset=1,
                finish_reason="error",
                error="structured_outputs: too many items",
                error_code="invalid_request",
                error_param="structured_outputs",
            )
            await session.send(*([first, last] if request.stream else [replace(last, offset=0)]))
        elif command == "THINK":
            await self._think(session, request)
        else:
            await self._echo(session, request, prompt.split())

    async def _think(self, session: Session, request: GenerateRequest) -> None:
        """Reasoning, text and two calls in eleven tokens; cut off by max_tokens as an engine does it."""
        parts: list[dict[str, Any]] = [
            {"reasoning": "Let "},
            {"reasoning": "me."},
            {"text": "I "},
            {"text": "look."},
            {"tool_calls": [ToolCallDelta(index=0, id="call_1", name="f")]},
            {},
            {"tool_calls": [ToolCallDelta(index=0, arguments='{"a": ')]},
            {"tool_calls": [ToolCallDelta(index=0, arguments="1}")]},
            {"tool_calls": [ToolCallDelta(index=1, id="call_2", name="g", arguments="{")]},
            {"tool_calls": [ToolCallDelta(index=1, arguments="}")]},
            {},
        ]
        params = request.sampling_params
        wanted = (params and params.max_tokens) or len(parts)
        finish = "tool_calls" if wanted >= len(parts) else "length"
        parts = parts[:wanted]
        last = len(parts) - 1
        first_ids = pack_ids([7, 8, 9]) if request.return_prompt_token_ids else None
        chunks = [
            GenerateChunk(
                client_request_id=request.client_request_id,
                index=0,
                token_ids=pack_ids([number]),
                offset=number,
                finish_reason=finish if number == last else None,  # type: ignore[arg-type]
                prompt_token_ids=None if number else first_ids,
                usage=_usage(["x"] * len(parts)) if number == last else None,
                times=_TIMES if number == last else None,
                **part,
            )
            for number, part in enumerate(parts)
        ]
        await session.send(*(chunks if request.stream else [_merged(chunks)]))

    async def _echo(self, session: Session, request: GenerateRequest, words: list[str]) -> None:
        params = request.sampling_params
        num_samples = params.n if params else 1
        for index in range(num_samples):
            if has_finished(request, index):
                continue
            offset = num_received(request, index)
            rest = words[offset:]
            pieces = [[word] for word in rest] if request.stream else [rest]
            for number, piece in enumerate(pieces):
                if self.hang_up_after == 0:
                    self.hang_up_after = None
                    session.hang_up()
                    return
                last = number == len(pieces) - 1
                is_first = not index and not offset
                await session.send(
                    GenerateChunk(
                        client_request_id=request.client_request_id,
                        index=index,
                        text="".join(word + " " for word in piece),
                        token_ids=pack_ids(len(word) for word in piece),
                        offset=offset,
                        finish_reason="stop" if last else None,
                        prompt_token_ids=(
                            pack_ids([7, 8, 9])
                            if request.return_prompt_token_ids and is_first
                            else None
                        ),
                        logprobs=_logprobs(piece) if params and params.logprobs else None,
                        usage=_usage(words) if last and index == num_samples - 1 else None,
                        times=_TIMES if last and index == num_samples - 1 else None,
                        num_cached_tokens=2 if is_first else None,
                        cache_miss_reason="short" if is_first else "",
                    )
                )
                offset += len(piece)
                if self.hang_up_after is not None:
                    self.hang_up_after -= 1
                await asyncio.sleep(0)


def _refusal(request_id: str) -> RequestFailed:
    return RequestFailed(
        client_request_id=request_id, code="unavailable", message="the daemon is stopping"
    )


@contextlib.contextmanager
def fake_launcher(client_socket: Path) -> Iterator[None]:
    """Somebody listens at the control socket beside it, so that the daemon seems to live."""
    with socket.socket(socket.AF_UNIX) as control:
        control.bind(str(client_socket.parent / "control.sock"))
        control.listen(64)
        yield


def num_received(request: GenerateRequest, index: int) -> int:
    """Tokens of a sample that the client says it has."""
    return len(request.resume.samples[index].token_ids) // 4 if request.resume else 0


def has_finished(request: GenerateRequest, index: int) -> bool:
    """Whether the client says that it has all of a sample."""
    return request.resume is not None and request.resume.samples[index].finish_reason is not None


_TIMES = RequestTimes(scheduled_ms=1.0, first_token_ms=2.0, finished_ms=3.0, first_step_ms=0.5)


def _fields(message: Any) -> dict[str, Any]:
    return {name: getattr(message, name) for name in message.__struct_fields__}


def _merged(chunks: list[GenerateChunk]) -> GenerateChunk:
    """The chunks as a client gets them that does not stream."""
    calls: list[ToolCallDelta] = []
    for call in (call for chunk in chunks for call in chunk.tool_calls):
        if call.id:
            calls.append(call)
        else:
            whole = calls[call.index].arguments + call.arguments
            calls[call.index] = msgspec.structs.replace(calls[call.index], arguments=whole)
    return msgspec.structs.replace(
        chunks[-1],
        text="".join(chunk.text for chunk in chunks),
        reasoning="".join(chunk.reasoning for chunk in chunks),
        tool_calls=calls,
        token_ids=b"".join(chunk.token_ids for chunk in chunks),
        offset=0,
        prompt_token_ids=chunks[0].prompt_token_ids,
    )


def _text_of(request: GenerateRequest) -> str:
    if request.prompt is not None:
        return request.prompt
    if request.messages is not None:
        return str(request.messages[-1]["content"])
    assert isinstance(request.prompt_token_ids, bytes)
    return " ".join("x" * token_id for token_id in unpack_ids(request.prompt_token_ids))


def _usage(words: list[str]) -> Usage:
    return Usage(
        prompt_tokens=3,
        completion_tokens=len(words),
        cached_tokens=2,
        cache_miss_reason="short",
    )


def _logprobs(piece: list[str]) -> TokenLogprobs:
    """The token itself has rank 2; the likeliest is token 0."""
    return TokenLogprobs(
        num_top=1,
        token_ids=pack_ids(token for word in piece for token in (len(word), 0)),
        logprobs=pack_floats(value for _ in piece for value in (-1.5, -0.5)),
        ranks=pack_ids(2 for _ in piece),
        decoded=[text for word in piece for text in (word, "zero")],
    )
