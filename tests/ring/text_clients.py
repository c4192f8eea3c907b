"""The real text edge and its clients, who outlive it: what is open they send again with what they have."""

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pillion.actors.detokenizer.text_edge import TextEdge
from pillion.actors.detokenizer.text_model import TextModel
from pillion.messages.base import RingMessage
from pillion.messages.codec import Codec
from pillion.messages.inboxes import DaemonToClient, DetokenizerInbox
from pillion.messages.text import (
    PROTOCOL_VERSION,
    CancelRequest,
    GenerateChunk,
    GenerateRequest,
    Hello,
    Welcome,
)
from pillion.runtime.config import EngineConfig
from pillion.runtime.connection_end import ConnectionLost
from pillion.runtime.errors import InvariantBroken, RequestError
from pillion.runtime.outputs import RequestOutput
from pillion.runtime.request_assembly import RequestAssembly
from pillion.runtime.resumable import Resumable

NUM_SESSIONS = 3


@dataclass(slots=True)
class Asked:
    """One request as its client sees it."""

    session_id: int
    resumable: Resumable
    assembly: RequestAssembly
    error: str | None = None
    was_cancelled: bool = False
    num_lives: int = 1  # of the edge, that it was sent to

    @property
    def output(self) -> RequestOutput:
        """Its answer so far."""
        return self.assembly.output


@dataclass(slots=True)
class TextClients:
    """An Edge of ring_engine.py. Sockets between edge and clients lose what is in them when the edge dies."""

    model: TextModel
    seed: int
    outgoing: list[tuple[str, RingMessage]] = field(default_factory=list)
    finished: bool = False
    asked: dict[str, Asked] = field(default_factory=dict)
    _open: dict[str, Asked] = field(default_factory=dict)
    _edge: TextEdge = field(init=False)
    _chance: random.Random = field(init=False)
    _codec: Codec[Any] = field(init=False)
    _on_the_way: deque[tuple[int, DaemonToClient]] = field(default_factory=deque)
    _to_send: list[tuple[int, Any]] = field(default_factory=list)
    _now_ns: int = 0

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._codec = Codec(DaemonToClient)

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return len(self._open)

    def begin(self, epoch: int, peer_epochs: dict[str, int]) -> None:
        """Another life of the edge; every client connects again."""
        config = EngineConfig(model="small", max_queued_requests=10_000)
        self._edge = TextEdge(epoch, config, "0.0", peer_epochs=peer_epochs)
        self.outgoing = self._edge.outgoing
        self._edge.on_model(self.model)
        self._on_the_way.clear()
        self._to_send.clear()
        for session_id in range(NUM_SESSIONS):
            self._edge.open_session(session_id, self._now_ns)
            hello = Hello(protocol_version=PROTOCOL_VERSION, fairness_key=str(session_id % 2))
            self._to_send.append((session_id, hello))
        for asked in self._open.values():
            again = asked.resumable.request
            if epoch > 1:
                asked.num_lives += 1
                # In earnest a client gives up after so many losses in a row; here only time is simulated.
                asked.resumable._num_losses = 0
                again = asked.resumable.again(ConnectionLost("died"), self._now_ns)
            self._to_send.append((asked.session_id, again))

    def ask(self, request: GenerateRequest) -> None:
        """A client sends a request at the edge's next turn."""
        request_id = request.client_request_id
        params = request.sampling_params
        asked = Asked(
            session_id=len(self.asked) % NUM_SESSIONS,
            resumable=Resumable(request, self._now_ns),
            assembly=RequestAssembly(request_id, params.n if params else 1, None),
        )
        self.asked[request_id] = self._open[request_id] = asked
        self._to_send.append((asked.session_id, asked.resumable.request))

    def cancel_one(self) -> None:
        """A client gives one of its open requests up."""
        if self._open:
            request_id = self._chance.choice(sorted(self._open))
            asked = self._open[request_id]
            asked.was_cancelled = True
            self._to_send.append((asked.session_id, CancelRequest(client_request_id=request_id)))

    def on_message(self, message: DetokenizerInbox, now_ns: int) -> None:
        """Something of the ring."""
        self._now_ns = now_ns
        self._edge.on_message(message, now_ns)

    def tick(self, now_ns: int) -> int | None:
        """A turn of the edge, as its shell does it."""
        self._now_ns = now_ns
        edge = self._edge
        for session_id, message in self._to_send:
            edge.on_frame(session_id, msgspec.msgpack.encode(message), now_ns)
        self._to_send.clear()
        while edge.jobs:
            job = edge.jobs.pop()
            job.run()
            edge.on_job_done(job)
        wake_ns = edge.tick(now_ns)
        self._on_the_way += edge.sessions.replies
        edge.sessions.replies.clear()
        if edge.sessions.hang_ups:
            raise InvariantBroken(f"the edge hangs up on {edge.sessions.hang_ups}")
        for _ in range(self._chance.randint(0, len(self._on_the_way))):
            self._receive(*self._on_the_way.popleft())
        return now_ns + 1_000_000 if self._on_the_way else wake_ns

    def _receive(self, session_id: int, reply: DaemonToClient) -> None:
        reply = self._codec.decode(msgspec.msgpack.encode(reply))
        if isinstance(reply, Welcome):
            return
        asked = self._open[reply.client_request_id]
        if asked.session_id != session_id:
            raise InvariantBroken(f"session {session_id} gets {reply}")
        if isinstance(reply, GenerateChunk):
            asked.resumable.note(reply)
        try:
            asked.assembly.take(reply)
        except RequestError as error:
            asked.error = str(error)
        if asked.error is not None or asked.assembly.ended:
            del self._open[reply.client_request_id]
