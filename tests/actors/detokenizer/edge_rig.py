"""A small tokenizer and a driver for the text edge that stand in for model, sockets and scheduler."""

from typing import Any

import msgspec
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from pillion.actors.detokenizer.text_edge import TextEdge
from pillion.actors.detokenizer.text_model import TextModel
from pillion.actors.detokenizer.token_table import BYTE_OF_CHARACTER
from pillion.actors.detokenizer.tokenizer import Tokenizer
from pillion.messages.base import RingMessage
from pillion.messages.codec import (
    Codec,
    pack_floats,
    pack_ids,
    pack_int64,
    unpack_floats,
    unpack_ids,
)
from pillion.messages.control import EngineGeometry
from pillion.messages.inboxes import DaemonToClient, DetokenizerInbox, SchedulerInbox
from pillion.messages.requests import NewRequest
from pillion.messages.steps import PromptLogprobs, SampledLogprobs, StepOutput
from pillion.messages.text import GenerateChunk, GenerateRequest, Hello, RequestFailed
from pillion.runtime.config import EngineConfig

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = (
    "the",
    "Ġthe",
    "ing",
    "Ġa",
    "an",
    "Ġan",
    "Ġand",
    "er",
    "Ġw",
    "Ġwor",
    "ld",
    "Ġworld",
    "he",
    "lo",
)


def byte_level_tokenizer() -> Tokenizer:
    """Every byte, a few words, and three special tokens: ids 0 to 255 are the bytes themselves."""
    alphabet = sorted(BYTE_OF_CHARACTER, key=BYTE_OF_CHARACTER.__getitem__)
    vocab = {character: token_id for token_id, character in enumerate(alphabet)}
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        left = word[0]
        for character in word[1:]:
            joined = left + character
            if joined not in vocab:
                vocab[joined] = len(vocab)
                merges.append((left, character))
            left = joined
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [
            AddedToken(name, special=True, normalized=False)
            for name in ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
        ]
    )
    return Tokenizer(backend)


def geometry(vocab_size: int, max_model_len: int = 64, max_num_seqs: int = 4) -> EngineGeometry:
    """What a worker would report."""
    return EngineGeometry(
        epoch=1,
        model_name="small",
        architecture="fake",
        device="cpu",
        dtype="float32",
        vocab_size=vocab_size,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=64,
        kv_groups=[],
        weights_bytes=0,
        kv_bytes=0,
    )


VOCAB_SIZE = 400


class EdgeRig:
    """Drives one text edge: plays its clients, its threads, its scheduler and its worker.

    All messages pass through the codecs that the wire uses. Time is `now_ns`, changed by the tests.
    """

    def __init__(
        self,
        model: TextModel,
        ready: bool = True,
        epoch: int = 1,
        max_model_len: int = 64,
        **config: Any,
    ) -> None:
        self.model = model
        self.edge = TextEdge(epoch, EngineConfig(model="small", **config), "0.0")
        self.now_ns = 1_000_000_000
        self.to_ring: list[tuple[str, RingMessage]] = []
        self.replies: dict[int, list[DaemonToClient]] = {}
        self.hung_up: list[int] = []
        self.held_jobs: list[Any] = []
        self.hold_jobs = False
        self.next_tick_ns: int | None = None
        self._step_id = 0
        self._client_codec: Codec[Any] = Codec(DaemonToClient)
        self._edge_codec: Codec[Any] = Codec(DetokenizerInbox)
        self._scheduler_codec: Codec[Any] = Codec(SchedulerInbox)
        if ready:
            self.edge.on_model(model)
            self.ring(geometry(VOCAB_SIZE, max_model_len))

    def connect(self, session_id: int = 1, fairness_key: str = "") -> None:
        """A client that has said Hello."""
        self.edge.open_session(session_id, self.now_ns)
        self.send(session_id, Hello(protocol_version=1, fairness_key=fairness_key))
        self.take(session_id)

    def send(self, session_id: int, message: Any) -> None:
        """A frame of a client: a message, or bytes as they are."""
        payload = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)
        self.edge.on_frame(session_id, payload, self.now_ns)
        self.turn()

    def ring(self, *messages: RingMessage) -> None:
        """Messages of other actors."""
        for message in messages:
            self.edge.on_message(
                self._edge_codec.decode(msgspec.msgpack.encode(message)), self.now_ns
            )
        self.turn()

    def turn(self) -> None:
        """One turn of the loop, as the shell does it."""
        self.next_tick_ns = self.edge.tick(self.now_ns)
        for destination, message in self.edge.outgoing:
            data = msgspec.msgpack.encode(message)
            if destination == "scheduler":
                message = self._scheduler_codec.decode(data)
            self.to_ring.append((destination, message))
        self.edge.outgoing.clear()
        for session_id, reply in self.edge.sessions.replies:
            decoded = self._client_codec.decode(msgspec.msgpack.encode(reply))
            self.replies.setdefault(session_id, []).append(decoded)
        self.edge.sessions.replies.clear()
        self.hung_up += self.edge.sessions.hang_ups
        self.edge.sessions.hang_ups.clear()
        jobs = list(self.edge.jobs)
        self.edge.jobs.clear()
        if self.hold_jobs:
            self.held_jobs += jobs
        elif jobs:
            self.run_jobs(jobs)

    def run_jobs(self, jobs: list[Any] | None = None) -> None:
        """Runs jobs that were held back, or these."""
        if jobs is None:
            jobs, self.held_jobs = self.held_jobs, []
        for job in jobs:
            job.run()
            self.edge.on_job_done(job)
        self.turn()

    def take(self, session_id: int = 1) -> list[Any]:
        """What the client has received since the last call."""
        return self.replies.pop(session_id, [])

    def take_ring(self, kind: type[Any]) -> list[Any]:
        """Messages of this kind that left for the ring since the last call."""
        found = [message for _, message in self.to_ring if isinstance(message, kind)]
        self.to_ring = [entry for entry in self.to_ring if not isinstance(entry[1], kind)]
        return found

    def generate(
        self, client_request_id: str = "r", session_id: int = 1, **fields: Any
    ) -> NewRequest:
        """Sends a request that must be admitted."""
        if not {"prompt", "messages", "prompt_token_ids"} & set(fields):
            fields["prompt"] = "hello world"
        self.send(session_id, GenerateRequest(client_request_id=client_request_id, **fields))
        admitted = self.take_ring(NewRequest)
        assert len(admitted) == 1, self.replies
        return admitted[0]

    def refused(self, session_id: int = 1, **fields: Any) -> RequestFailed:
        """Sends a request that must be refused."""
        fields = {"client_request_id": "bad", **fields}
        self.send(session_id, {"type": "GenerateRequest", **fields})
        replies = self.take(session_id)
        assert len(replies) == 1, replies
        assert isinstance(replies[0], RequestFailed)
        assert not self.take_ring(NewRequest)
        return replies[0]

    def step(self, *rows: tuple[int, int, list[int], int], **fields: Any) -> None:
        """A StepOutput with rows of (sequence id, position, tokens, finish code)."""
        self.ring(self.step_output(*rows, **fields))

    def step_output(self, *rows: tuple[int, int, list[int], int], **fields: Any) -> StepOutput:
        """The message of `step`."""
        self._step_id += 1
        defaults = {"epoch": 1, "step_id": self._step_id, "plan_id": self._step_id, "execution": 0}
        return StepOutput(
            **{**defaults, **fields},
            sequence_ids=pack_int64(row[0] for row in rows),
            slots=pack_ids([0] * len(rows)),
            generations=pack_ids([0] * len(rows)),
            positions=pack_ids(row[1] for row in rows),
            num_tokens=pack_ids(len(row[2]) for row in rows),
            token_ids=pack_ids(token_id for row in rows for token_id in row[2]),
            finish=bytes(row[3] for row in rows),
        )

    def run(
        self, admitted: NewRequest, token_ids: list[int], finish: int = 2, index: int = 0
    ) -> None:
        """The worker gives a sample these tokens, one a step; the last one ends it."""
        start = len(admitted.prompt_token_ids) // 4
        for place, token_id in enumerate(token_ids):
            code = finish if place == len(token_ids) - 1 else 0
            self.step((admitted.request_id + index, start + place, [token_id], code))


def joined(chunks: list[GenerateChunk], index: int = 0) -> tuple[str, list[int], GenerateChunk]:
    """Text and tokens of a sample, checked to join without gap, and its last chunk."""
    text, token_ids = "", []
    last = None
    for chunk in chunks:
        assert isinstance(chunk, GenerateChunk), chunk
        if chunk.index != index:
            continue
        assert last is None or last.finish_reason is None, "a chunk follows the last one"
        assert chunk.offset == len(token_ids)
        text += chunk.text
        token_ids += unpack_ids(chunk.token_ids)
        last = chunk
    assert last is not None
    return text, token_ids, last


def sampled_logprobs(rows: list[tuple[int, list[int], list[float], int]]) -> SampledLogprobs:
    """Columns from (row, ids, log-probabilities, rank)."""
    return SampledLogprobs(
        num_top=len(rows[0][1]) - 1,
        rows=pack_ids(row[0] for row in rows),
        token_ids=pack_ids(token_id for row in rows for token_id in row[1]),
        logprobs=pack_floats(value for row in rows for value in row[2]),
        ranks=pack_ids(row[3] for row in rows),
    )


def prompt_logprobs(sequence_id: int, start: int, ids: list[list[int]]) -> PromptLogprobs:
    """A part of a prompt's log-probabilities: -0.5 for each own token, rank = position."""
    width = len(ids[0])
    return PromptLogprobs(
        sequence_id=sequence_id,
        start=start,
        num_top=width - 1,
        token_ids=pack_ids(token_id for row in ids for token_id in row),
        logprobs=pack_floats([-0.5] * width * len(ids)),
        ranks=pack_ids(range(start, start + len(ids))),
    )


def floats(data: bytes) -> list[float]:
    """Packed float32 as a list."""
    return unpack_floats(data)
