"""`LLM`: a model in this process's hands, served by a private daemon that ends with it."""

import os
import secrets
import shutil
import sys
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, NoReturn, Self

import msgspec

from pillion.messages.sampling import SamplingParams
from pillion.messages.text import EmbeddingChunk, GenerateRequest
from pillion.runtime.client import Client
from pillion.runtime.client_requests import RequestOptions, generate_requests
from pillion.runtime.config import EngineConfig, make_config
from pillion.runtime.daemon import DaemonProcess, locate_model, start_daemon
from pillion.runtime.daemon_tokenizer import DaemonTokenizer
from pillion.runtime.errors import (
    ConfigError,
    DaemonUnavailable,
    InvalidRequest,
    PillionError,
    RequestError,
)
from pillion.runtime.llm_arguments import engine_fields
from pillion.runtime.outputs import RequestOutput
from pillion.runtime.prompts import ManyPrompts, Messages, OnePrompt
from pillion.runtime.request_progress import RequestProgress

# The daemon gives up by itself after start_timeout_s and says why; this is for a launcher that does not.
_START_SLACK_S: Final = 10.0
_LOG_TAIL_BYTES: Final = 4096


class LLM:
    """Generates text with a model that no one else uses.

    A daemon of its own runs the model in other processes, so this works in notebooks, inside a running event
    loop, in threads and in scripts without a main guard. It ends with `shutdown`, with the `with` block,
    when the object is dropped, and when this process ends in any way whatever. Arguments have the names of
    vLLM's `LLM` and of Pillion's EngineConfig; what has no meaning here warns, what is not supported is
    refused. Raises ConfigError or ModelError before anything heavy starts, PillionError with the first
    cause if the daemon does not come up.
    """

    def __init__(self, model: str, **arguments: Any) -> None:
        fields = {"allow_request_templates": True, **engine_fields(model, arguments, stacklevel=2)}
        config = make_config({**fields, "name": f"llm-{os.getpid()}-{secrets.token_hex(4)}"})
        self.config: EngineConfig = locate_model(config, progress=sys.stderr.isatty())
        daemon = start_daemon(self.config, private=True)
        try:
            daemon.wait_ready(self.config.start_timeout_s + _START_SLACK_S)
            self._client = Client(daemon.directory.client_socket, client_name="LLM")
        except BaseException as error:
            if isinstance(error, PillionError):
                _note_log(error, daemon)
            _remove_daemon(daemon)
            raise
        self._daemon = daemon
        self._shutdown = weakref.finalize(self, _end_daemon, self._client, daemon, os.getpid())
        _living.add(self)

    @property
    def client(self) -> Client:
        """The client that talks to the daemon: for streams, single requests and status."""
        return self._client

    def generate(
        self,
        prompts: OnePrompt | ManyPrompts | None = None,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        prompt_token_ids: list[int] | list[list[int]] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        *,
        priority: int | Sequence[int] | None = None,
        lora_request: None = None,
    ) -> list[RequestOutput]:
        """Completes each prompt: text, token ids, or dicts with either; the answers have their order.

        `sampling_params` is one for all or one for each, by default SamplingParams(). A prompt that cannot be
        run raises InvalidRequest with its index, and none of the others runs on. A sample that fails inside
        the daemon ends with finish_reason "error" and says why in `error`.
        """
        _refuse_lora(lora_request)
        options: RequestOptions = {"return_prompt_token_ids": True}
        requests, _ = generate_requests(
            self._client.next_request_id,
            prompts,
            _or_default(sampling_params),
            prompt_token_ids,
            None,
            options,
            stream=False,
        )
        return self._run(_with_priorities(requests, priority), use_tqdm)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation or many through the model's chat template; otherwise as `generate`."""
        _refuse_lora(lora_request)
        options: RequestOptions = {
            "return_prompt_token_ids": True,
            "chat_template": chat_template,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "tools": tools,
            "chat_template_kwargs": chat_template_kwargs,
        }
        requests, _ = generate_requests(
            self._client.next_request_id,
            None,
            _or_default(sampling_params),
            None,
            messages,
            options,
            stream=False,
        )
        return self._run(requests, use_tqdm)

    def get_tokenizer(self) -> DaemonTokenizer:
        """The model's tokenizer and chat template."""
        return DaemonTokenizer(self._client)

    def get_default_sampling_params(self) -> SamplingParams:
        """What `generate` uses when no sampling parameters are given; a new object each time."""
        return SamplingParams()

    def embed(self, prompts: str | list[str] | list[list[int]]) -> EmbeddingChunk:
        """The vectors of prompts. Raises RequestError("unsupported") for models that only generate."""
        return self._client.embed([prompts] if isinstance(prompts, str) else prompts)

    def encode(self, prompts: str | list[str] | list[list[int]]) -> EmbeddingChunk:
        """As `embed`."""
        return self.embed(prompts)

    def score(self, *inputs: Any, **options: Any) -> NoReturn:
        """Raises RequestError("unsupported")."""
        raise RequestError("scoring needs a pooling model, which is not supported", "unsupported")

    def classify(self, *inputs: Any, **options: Any) -> NoReturn:
        """Raises RequestError("unsupported")."""
        raise RequestError(
            "classification needs a pooling model, which is not supported", "unsupported"
        )

    def shutdown(self) -> None:
        """Ends the daemon, and open requests with an error; returns when its processes are gone."""
        self._shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown()

    def _run(
        self, requests: Sequence[GenerateRequest], use_tqdm: bool | Callable[..., Any]
    ) -> list[RequestOutput]:
        # Nobody else asks this daemon, so it has room for what it may queue.
        window = max(1, self.config.max_queued_requests)
        with RequestProgress(len(requests), use_tqdm) as progress:
            try:
                return self._client.run_batch(requests, window=window, on_finished=progress.add)
            except DaemonUnavailable as error:
                _note_log(error, self._daemon)
                raise


def _end_daemon(client: Client, daemon: DaemonProcess, owner_pid: int) -> None:
    if os.getpid() != owner_pid:
        return  # a forked child ends: the daemon is its parent's
    client.close()
    _remove_daemon(daemon)


def _remove_daemon(daemon: DaemonProcess) -> None:
    daemon.stop()
    daemon.close()
    # A daemon that has failed leaves its directory, for its log. Nobody could name this one to read it.
    shutil.rmtree(daemon.directory.root, ignore_errors=True)


def _note_log(error: PillionError, daemon: DaemonProcess) -> None:
    """Puts the end of the daemon's log under the error: it is gone when the daemon is removed."""
    try:
        with daemon.directory.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
            tail = log.read().decode(errors="replace")
    except OSError:
        return
    error.add_note(f"The daemon's log ends so:\n{tail.rstrip()}")


_living: "weakref.WeakSet[LLM]" = weakref.WeakSet()


def _abandon_daemons() -> None:
    for llm in list(_living):
        llm._daemon.abandon_after_fork()


os.register_at_fork(after_in_child=_abandon_daemons)


def _or_default(params: Any) -> Any:
    return SamplingParams() if params is None else params


def _refuse_lora(lora_request: Any) -> None:
    if lora_request is not None:
        raise ConfigError("lora_request is not supported yet: LoRA adapters are not supported")


def _with_priorities(
    requests: list[GenerateRequest], priority: int | Sequence[int] | None
) -> list[GenerateRequest]:
    if priority is None:
        return requests
    each = [priority] * len(requests) if isinstance(priority, int) else list(priority)
    if len(each) != len(requests):
        raise InvalidRequest(
            f"priority must be one number or as many as prompts ({len(requests)}), got {len(each)}",
            "priority",
        )
    return [
        msgspec.structs.replace(request, priority=value)
        for request, value in zip(requests, each, strict=True)
    ]
