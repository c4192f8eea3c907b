"""The first frames of a connection: Hello there and Welcome back."""

from pillion.messages.text import PROTOCOL_VERSION, Hello, RequestFailed, Welcome
from pillion.runtime.client_requests import encode_frame, error_of
from pillion.runtime.errors import DaemonUnavailable


def hello_frame(client_name: str, fairness_key: str) -> bytes:
    """The first frame of a client."""
    return encode_frame(
        Hello(
            protocol_version=PROTOCOL_VERSION,
            client_name=client_name,
            fairness_key=fairness_key,
        )
    )


def check_welcome(reply: object) -> Welcome:
    """The Welcome if the daemon gave one. Raises the error that it gave instead."""
    if isinstance(reply, Welcome):
        if reply.protocol_version != PROTOCOL_VERSION:
            raise DaemonUnavailable(
                f"the daemon speaks version {reply.protocol_version} of the client protocol and this"
                f" client version {PROTOCOL_VERSION}: use the same pillion on both sides"
            )
        return reply
    if isinstance(reply, RequestFailed):
        if reply.code == "unavailable":
            raise DaemonUnavailable(reply.message)
        raise error_of(reply)
    raise DaemonUnavailable(f"the daemon did not greet but sent {type(reply).__name__}")
