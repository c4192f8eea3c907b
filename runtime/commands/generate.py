"""`pillion generate`: completes one prompt and streams the text."""

import argparse
import sys
from contextlib import ExitStack
from typing import Final

import msgspec

from pillion.runtime.cli import EXIT_INTERRUPTED
from pillion.runtime.client import Client
from pillion.runtime.client_requests import RequestOptions
from pillion.runtime.errors import InvalidRequest
from pillion.runtime.request_stream import RequestStream
from pillion.runtime.sampling_flags import (
    DEFAULT_TEMPERATURE,
    add_sampling_flags,
    sampling_params_of,
)

DEFAULT_MAX_TOKENS: Final = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The prompt, whom to ask, and one flag for each sampling parameter."""
    parser.add_argument(
        "prompt", nargs="?", default="-", metavar="PROMPT", help="text, or - for standard input"
    )
    add_daemon_choice(parser)
    parser.add_argument("--chat", action="store_true", help="ask the prompt as a user's message")
    parser.add_argument("--system", metavar="TEXT", help="system message, implies --chat")
    parser.add_argument(
        "--json", action="store_true", help="print the whole output as JSON at its end"
    )
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="end the answer then")
    add_sampling_flags(parser, max_tokens=DEFAULT_MAX_TOKENS, temperature=DEFAULT_TEMPERATURE)


def add_daemon_choice(parser: argparse.ArgumentParser) -> None:
    """Which daemon to ask, or which model to start a private one for."""
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--name", default="default", help="name of the daemon (default: default)")
    choice.add_argument(
        "--model", metavar="MODEL", help="start a private daemon for this model, for this call"
    )


def connect(arguments: argparse.Namespace, stack: ExitStack) -> Client:
    """A client of the chosen daemon; leaving the stack closes it and ends a private daemon."""
    if arguments.model is None:
        client = stack.enter_context(Client(arguments.name, client_name="pillion"))
        if not client.welcome.ready:
            print("the daemon is still loading its model, waiting for it", file=sys.stderr)
        return client
    from pillion.runtime.llm import LLM

    return stack.enter_context(LLM(arguments.model)).client


def run(arguments: argparse.Namespace) -> int:
    """Prints the answer as it comes. Ctrl-C cancels it and gives exit status 130."""
    params = sampling_params_of(arguments)
    prompt = _prompt_of(arguments)
    options: RequestOptions = {"timeout": arguments.timeout}
    with ExitStack() as stack:
        client = connect(arguments, stack)
        if arguments.chat or arguments.system is not None:
            messages = _messages(arguments.system, prompt)
            stream = client.chat(messages, params, stream=True, **options)
        else:
            stream = client.generate(prompt, params, stream=True, **options)
        try:
            _show(stack.enter_context(stream), params.n, arguments.json)
        except KeyboardInterrupt:
            stream.close()
            if not arguments.json:
                print()
            return EXIT_INTERRUPTED
    return 0


def _show(stream: RequestStream, num_samples: int, as_json: bool) -> None:
    """Prints deltas as they come; JSON, and several samples, only when they are complete."""
    if not as_json and num_samples == 1:
        for new in stream:
            for sample in new.outputs:
                print(sample.text, end="", flush=True)
        print()
        return
    for _ in stream:
        pass
    if as_json:
        sys.stdout.buffer.write(msgspec.json.encode(stream.output) + b"\n")
        sys.stdout.flush()
        return
    for sample in stream.output.outputs:
        print(f"[{sample.index}] {sample.text}")


def _prompt_of(arguments: argparse.Namespace) -> str:
    if arguments.prompt != "-":
        return str(arguments.prompt)
    if sys.stdin.isatty():
        print("type the prompt, then Ctrl-D", file=sys.stderr)
    text = sys.stdin.read()
    if not text:
        raise InvalidRequest("the prompt on standard input is empty", "prompt")
    # A shell's echo and an editor end the text with a newline that is no part of it.
    return text.removesuffix("\n")


def _messages(system: str | None, prompt: str) -> list[dict[str, str]]:
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": prompt}]
