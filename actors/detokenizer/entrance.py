"""Who may come in, and under which number."""

from collections.abc import Sized
from typing import Final

from pillion.actors.detokenizer.client_sessions import Session
from pillion.actors.detokenizer.preparation import Preparation
from pillion.actors.detokenizer.request_checks import check_request_id
from pillion.messages.ids import first_request_id
from pillion.runtime.config import EngineConfig
from pillion.runtime.errors import InvalidRequest, RequestError

RETRY_AFTER_MS: Final = 1000
# A restarted edge counts from where its predecessor cannot have been.
_IDS_PER_EPOCH_BITS: Final = 32


class Entrance:
    """Requests and questions share one limit and one numbering."""

    def __init__(
        self,
        epoch: int,
        edge_index: int,
        config: EngineConfig,
        preparation: Preparation,
        requests: Sized,
        questions: Sized,
    ) -> None:
        """`requests` and `questions`: those that are open, whoever changes them."""
        self._config = config
        self._preparation = preparation
        self._requests = requests
        self._questions = questions
        self._next_id = first_request_id(edge_index) + ((epoch - 1) << _IDS_PER_EPOCH_BITS) + 1

    @property
    def num_open(self) -> int:
        """Requests and questions that are not over."""
        return len(self._requests) + len(self._questions)

    def check(self, session: Session, client_request_id: str, is_resumed: bool = False) -> None:
        """Raises RequestError if there is no room, or the client uses the id already."""
        check_request_id(client_request_id)
        if client_request_id in session.requests or client_request_id in session.questions:
            raise InvalidRequest(
                f"client_request_id {client_request_id!r:.80} is in use on this connection",
                "client_request_id",
            )
        geometry = self._preparation.geometry
        num_running = (
            (self._config.max_num_seqs or 1) if geometry is None else geometry.max_num_seqs
        )
        limit = self._config.max_queued_requests + num_running
        # Whoever was let in by an earlier edge has a place, also when new requests are here first.
        if self.num_open >= limit * (2 if is_resumed else 1):
            raise RequestError(
                f"{self.num_open} requests are open, which is the limit (max_queued_requests + max_num_seqs):"
                " try again later",
                "overloaded",
                retry_after_ms=RETRY_AFTER_MS,
            )

    def take_ids(self, count: int) -> int:
        """The first of so many ids that nobody else has."""
        first = self._next_id
        self._next_id += count
        return first
