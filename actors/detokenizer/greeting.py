"""The first frames of a connection: who the client is, and what this daemon offers."""

from typing import Final

from pillion.actors.detokenizer.client_sessions import ClientSessions, Session
from pillion.actors.detokenizer.preparation import Preparation
from pillion.messages.text import PROTOCOL_VERSION, Hello, Welcome
from pillion.runtime.config import EngineConfig
from pillion.runtime.errors import InvalidRequest, RequestError

MAX_FAIRNESS_KEY_CHARS: Final = 256


class Greeter:
    """Lets clients in that speak the same protocol."""

    def __init__(
        self,
        sessions: ClientSessions,
        preparation: Preparation,
        config: EngineConfig,
        version: str,
    ) -> None:
        self._sessions = sessions
        self._preparation = preparation
        self._config = config
        self._version = version

    def greet(self, session: Session, hello: Hello) -> None:
        """Answers with Welcome, or with a refusal and hangs up."""
        if session.greeted:
            error: RequestError = InvalidRequest("a second Hello on one connection")
            self._sessions.refuse(session.session_id, "", error)
            return
        if hello.protocol_version != PROTOCOL_VERSION:
            error = RequestError(
                f"protocol_version {hello.protocol_version} is not spoken here: pillion"
                f" {self._version} speaks {PROTOCOL_VERSION}",
                "unsupported",
                "protocol_version",
            )
            self._sessions.turn_away(session.session_id, error)
            return
        if len(hello.fairness_key) > MAX_FAIRNESS_KEY_CHARS:
            error = InvalidRequest(
                f"fairness_key may have {MAX_FAIRNESS_KEY_CHARS} characters, got"
                f" {len(hello.fairness_key)}",
                "fairness_key",
            )
            self._sessions.turn_away(session.session_id, error)
            return
        self._sessions.greet(session, hello.fairness_key)
        self._sessions.replies.append((session.session_id, self._welcome()))

    def _welcome(self) -> Welcome:
        geometry, model = self._preparation.geometry, self._preparation.model
        capabilities = ["generate", "logprobs", "prompt_logprobs", "tokenize"]
        if model is not None and model.chat_template:
            capabilities.append("chat")
        if model is not None and model.tokenizer.can_spell:
            capabilities.append("structured_outputs")
        if self._config.allow_request_templates:
            capabilities.append("request_templates")
        model_name = self._config.model if geometry is None else geometry.model_name
        return Welcome(
            protocol_version=PROTOCOL_VERSION,
            version=self._version,
            model_name=self._config.served_model_name or model_name,
            ready=self._preparation.ready,
            max_model_len=0 if geometry is None else geometry.max_model_len,
            vocab_size=0 if geometry is None else geometry.vocab_size,
            capabilities=capabilities,
        )
