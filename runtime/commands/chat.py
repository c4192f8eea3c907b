"""`pillion chat`: a conversation in the terminal, or line by line through a pipe."""

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

import msgspec

from pillion.messages.sampling import SamplingParams
from pillion.runtime.client import Client
from pillion.runtime.commands.generate import add_daemon_choice, connect
from pillion.runtime.errors import InvalidRequest, PillionError, RequestError
from pillion.runtime.sampling_flags import (
    DEFAULT_TEMPERATURE,
    NOT_IN_CHATS,
    add_sampling_flags,
    make_sampling_params,
    parse_setting,
    sampling_params_of,
)

_HELP: Final = """\
/reset            forget the conversation
/system TEXT      start over with this system message; without a text: with none
/set NAME VALUE   change a sampling parameter, e.g. /set temperature 0.2
/set              show those that differ from their defaults
/help             this
/exit             end (or Ctrl-D)
Ctrl-C ends an answer; what it said until then stays in the conversation."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Whom to talk to, and one flag for each sampling parameter."""
    add_daemon_choice(parser)
    parser.add_argument("--system", metavar="TEXT", help="system message")
    add_sampling_flags(parser, NOT_IN_CHATS, max_tokens=0, temperature=DEFAULT_TEMPERATURE)


def run(arguments: argparse.Namespace) -> int:
    """Talks until the input ends. The exit status is 1 if a message went unanswered, else 0."""
    params = sampling_params_of(arguments)
    with ExitStack() as stack:
        client = connect(arguments, stack)
        chat = Chat(client, arguments.system, params)
        if sys.stdin.isatty():
            _prepare_terminal(client)
            return _converse(chat, lambda: input("> "), interactive=True)
        return _converse(chat, _read_line, interactive=False)


class Chat:
    """A conversation: what has been said and how to go on."""

    def __init__(self, client: Client, system: str | None, params: SamplingParams) -> None:
        self._client = client
        self._system = system
        self.params = params
        self.messages: list[dict[str, Any]] = []
        self.reset()

    def reset(self) -> None:
        """Forgets everything but the system message."""
        self.messages = []
        if self._system is not None:
            self.messages.append({"role": "system", "content": self._system})

    def command(self, line: str) -> str | None:
        """Carries out a line that begins with a slash. Returns what to print; None: end the chat.

        Raises InvalidRequest for a command or a setting that does not exist.
        """
        name, _, rest = line.partition(" ")
        rest = rest.strip()
        match name:
            case "/exit" | "/quit":
                return None
            case "/help":
                return _HELP
            case "/reset":
                self.reset()
                return "the conversation is forgotten"
            case "/system":
                self._system = rest or None
                self.reset()
                return "the conversation starts over"
            case "/set":
                return self._set(rest)
        raise InvalidRequest(f"there is no command {name}; /help shows those that there are")

    def answer(self, text: str, show: Callable[[str], None]) -> None:
        """Says this and shows the answer as it comes; both join the conversation.

        KeyboardInterrupt ends the answer and is passed on; what came until then stays. Raises PillionError if
        there is no answer, and then the conversation is as before.
        """
        self.messages.append({"role": "user", "content": text})
        said = ""
        try:
            with self._client.chat(self.messages, self.params, stream=True) as stream:
                for new in stream:
                    for sample in new.outputs:
                        said += sample.text
                        show(sample.text)
        except PillionError:
            self.messages.pop()
            raise
        except KeyboardInterrupt:
            self._keep(said)
            raise
        self._keep(said)

    def _keep(self, said: str) -> None:
        if said:
            self.messages.append({"role": "assistant", "content": said})
        else:
            self.messages.pop()

    def _set(self, rest: str) -> str:
        fields = msgspec.to_builtins(self.params)  # those that differ from their defaults
        if not rest:
            return "\n".join(f"{name} = {value}" for name, value in fields.items()) or "defaults"
        name, _, text = rest.partition(" ")
        value = parse_setting(name, text.strip())
        self.params = make_sampling_params({**fields, name: value})
        return f"{name} = {getattr(self.params, name)}"


def _converse(chat: Chat, read: Callable[[], str], *, interactive: bool) -> int:
    status = 0
    while True:
        try:
            line = read()
        except EOFError:
            return status
        except KeyboardInterrupt:
            if not interactive:
                raise
            print()
            continue
        if not line.strip():
            continue
        try:
            if line.startswith("/"):
                reply = chat.command(line.strip())
                if reply is None:
                    return status
                print(reply)
            else:
                chat.answer(line, lambda text: print(text, end="", flush=True))
                print()
        except KeyboardInterrupt:
            print()
            if not interactive:
                raise
        except RequestError as error:
            status = 1
            print(f"error: {error}", file=sys.stderr)


def _read_line() -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")


def _prepare_terminal(client: Client) -> None:
    try:
        import readline  # noqa: F401  # its import gives input() editing and history
    except ImportError:
        pass  # some Pythons are built without it; input() then works plainly
    print(f"{client.welcome.model_name}; /help shows the commands, Ctrl-D ends", file=sys.stderr)
