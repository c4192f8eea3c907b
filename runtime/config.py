"""The one configuration: TOML file, command line flags and Python arguments are the same fields."""

import math
import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from msgspec import Meta

from pillion.runtime.errors import ConfigError
from pillion.runtime.http_settings import is_http_url, parse_http_address

LoadFormat = Literal["auto", "safetensors", "gguf", "dummy"]
DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
ToolParserName = Literal[
    "auto",
    "hermes",
    "qwen3_coder",
    "llama3_json",
    "mistral",
    "pythonic",
    "deepseek",
    "gpt_oss",
    "json",
]

MAX_GATEWAYS: Final = 64
MAX_CPU_THREADS: Final = 1024
REASONING_PARSERS: Final = ("auto", "none", "qwen3", "deepseek_r1", "mistral", "gpt_oss")


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set. None and "auto" mean: chosen from the model and the device."""

    model: Annotated[str, Meta(description="directory, .gguf file, hub id or alias")]
    name: Annotated[str, Meta(description="name of the daemon, by which clients find it")] = (
        "default"
    )
    served_model_name: Annotated[
        str | None, Meta(description="model name that clients see, if not the model's own")
    ] = None
    tokenizer: Annotated[
        str | None,
        Meta(description="where tokenizer and chat template come from, if not the model"),
    ] = None
    device: Annotated[str, Meta(description='"auto", "cpu", "cuda" or "cuda:0"')] = "auto"
    dtype: Annotated[DtypeName, Meta(description="type of weights and activations")] = "auto"
    load_format: Annotated[
        LoadFormat, Meta(description='how weights are stored; "dummy" makes random ones')
    ] = "auto"
    max_model_len: Annotated[
        int | None, Meta(description="longest sequence in tokens, prompt and answer together")
    ] = None
    max_num_seqs: Annotated[int | None, Meta(description="sequences that run at once")] = None
    max_num_batched_tokens: Annotated[
        int | None, Meta(description="most tokens of one step, prefill and decode together")
    ] = None
    block_size: Annotated[int, Meta(description="tokens per KV block")] = 16
    num_kv_blocks: Annotated[
        int | None, Meta(description="KV blocks; overrides kv_cache_bytes and memory_fraction")
    ] = None
    kv_cache_bytes: Annotated[
        int | None, Meta(description="memory of the KV cache; overrides memory_fraction")
    ] = None
    memory_fraction: Annotated[
        float, Meta(description="of a CUDA device's memory, weights and workspace included")
    ] = 0.9
    tuning_seconds: Annotated[
        float,
        Meta(
            description="that a first start on a CUDA device may take longer to choose the fastest kernels for this"
            " model; later starts remember, 0: no choice"
        ),
    ] = 20.0
    enable_prefix_caching: Annotated[
        bool, Meta(description="share the KV blocks of equal prompt beginnings")
    ] = True
    batch_invariant: Annotated[
        bool,
        Meta(
            description="compute each token alone: answers are the same to the last bit whatever else runs or is"
            " cached, and prompts take as long as answers"
        ),
    ] = False
    max_queued_requests: Annotated[
        int, Meta(description="open requests beyond max_num_seqs before new ones are refused")
    ] = 1024
    max_repeat: Annotated[int, Meta(description="steps that one plan may grant")] = 64
    steps_in_flight: Annotated[
        int, Meta(description="steps launched before the first one's output is awaited")
    ] = 2
    cpu_threads: Annotated[
        int | None, Meta(description="threads of the CPU device, if not all cores")
    ] = None
    allow_request_templates: Annotated[
        bool, Meta(description="let clients send chat templates of their own")
    ] = False
    tool_parser: Annotated[
        ToolParserName,
        Meta(description="how the model writes tool calls, if its chat template does not show it"),
    ] = "auto"
    reasoning_parser: Annotated[
        str,
        Meta(
            description="how the model marks reasoning: none, qwen3, deepseek_r1, mistral, gpt_oss, or a"
            " start and an end marker with a space between"
        ),
    ] = "auto"
    drain_s: Annotated[
        float, Meta(description="seconds that open requests get when the daemon stops")
    ] = 10.0
    start_timeout_s: Annotated[
        float, Meta(description="seconds after which a start that is not ready fails")
    ] = 600.0
    max_restarts: Annotated[
        int, Meta(description="restarts of an actor within restart_period_s before the daemon ends")
    ] = 5
    restart_period_s: Annotated[
        float, Meta(description="seconds for which a restart counts against max_restarts")
    ] = 60.0
    stall_limit_s: Annotated[
        float, Meta(description="seconds without a sign of life after which an actor is replaced")
    ] = 10.0
    step_limit_s: Annotated[
        float,
        Meta(
            description="stall limit of a step, counted anew at each of the model's layers; raise it for a"
            " model with layers that take longer"
        ),
    ] = 30.0
    seed: Annotated[int, Meta(description="base of the seeds of requests that bring none")] = 0
    http: Annotated[
        str | None,
        Meta(description="HOST:PORT of the HTTP server; a port alone means this machine"),
    ] = None
    http_uds: Annotated[
        str | None, Meta(description="Unix socket path at which the HTTP server listens")
    ] = None
    http_gateways: Annotated[
        int, Meta(description="processes that serve HTTP, all of them the same sockets")
    ] = 1
    api_key: Annotated[
        str | None,
        Meta(description="key that HTTP clients must send; process lists show it, a file does not"),
    ] = None
    api_key_file: Annotated[
        str | None, Meta(description="file with the keys that HTTP clients may send, one a line")
    ] = None
    otlp_endpoint: Annotated[
        str | None,
        Meta(
            description="URL of an OpenTelemetry collector (OTLP over HTTP) that gets traces of requests;"
            " default: OTEL_EXPORTER_OTLP_ENDPOINT"
        ),
    ] = None
    # Where the model was found on this machine: whoever starts a daemon sets it (runtime/daemon.py).
    model_path: Annotated[str | None, Meta(extra={"internal": True})] = None
    # Faults on demand, for tests (runtime/fault_flags.py).
    fault_flags: Annotated[tuple[str, ...], Meta(extra={"internal": True})] = ()

    def __post_init__(self) -> None:
        _positive("max_model_len", self.max_model_len)
        _positive("max_num_seqs", self.max_num_seqs)
        _positive("max_num_batched_tokens", self.max_num_batched_tokens)
        _positive("num_kv_blocks", self.num_kv_blocks)
        _positive("kv_cache_bytes", self.kv_cache_bytes)
        _positive("max_repeat", self.max_repeat)
        _positive("steps_in_flight", self.steps_in_flight)
        _between("cpu_threads", self.cpu_threads, MAX_CPU_THREADS)
        _between("http_gateways", self.http_gateways, MAX_GATEWAYS)
        for name in (
            "tuning_seconds",
            "drain_s",
            "start_timeout_s",
            "restart_period_s",
            "stall_limit_s",
            "step_limit_s",
        ):
            if not math.isfinite(getattr(self, name)):
                raise ConfigError(f"{name} must be a finite number, got {getattr(self, name)}")
        if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", self.device):
            raise ConfigError(f"device must be auto, cpu, cuda or cuda:N, got {self.device!r:.80}")
        if self.block_size not in (8, 16, 32, 64, 128):
            raise ConfigError(f"block_size must be 8, 16, 32, 64 or 128, got {self.block_size}")
        if not 0.05 <= self.memory_fraction <= 0.99:
            raise ConfigError(
                f"memory_fraction must be between 0.05 and 0.99, got {self.memory_fraction}"
            )
        if self.max_queued_requests < 0:
            raise ConfigError(
                f"max_queued_requests must be at least 0, got {self.max_queued_requests}"
            )
        if self.tuning_seconds < 0:
            raise ConfigError(f"tuning_seconds must be at least 0, got {self.tuning_seconds}")
        if self.drain_s < 0 or self.start_timeout_s <= 0:
            raise ConfigError("drain_s must be at least 0 and start_timeout_s above 0")
        if self.max_restarts < 0 or self.restart_period_s <= 0:
            raise ConfigError("max_restarts must be at least 0 and restart_period_s above 0")
        if self.stall_limit_s <= 0 or self.step_limit_s < self.stall_limit_s:
            raise ConfigError("stall_limit_s must be above 0 and step_limit_s not below it")
        if self.http is not None:
            parse_http_address(self.http)
        if (
            self.reasoning_parser not in REASONING_PARSERS
            and len(self.reasoning_parser.split()) != 2
        ):
            raise ConfigError(
                f"reasoning_parser must be {', '.join(REASONING_PARSERS)}, or a start and an end marker with"
                f" a space between, got {self.reasoning_parser!r}"
            )
        if self.api_key == "":
            raise ConfigError("api_key must not be empty")
        if self.otlp_endpoint is not None and not is_http_url(self.otlp_endpoint):
            raise ConfigError(
                "otlp_endpoint must be a URL such as http://127.0.0.1:4318,"
                f" got {self.otlp_endpoint!r:.80}"
            )

    @property
    def serves_http(self) -> bool:
        """Whether the daemon has a gateway."""
        return self.http is not None or self.http_uds is not None

    def refuse_http_settings(self) -> None:
        """For a daemon that serves no HTTP. Raises ConfigError naming the setting that would be in vain."""
        for name in ("api_key", "api_key_file", "http_gateways"):
            if getattr(self, name) not in (None, 1):
                raise ConfigError(
                    f"{name} is in vain: nothing serves HTTP without http or http_uds"
                )

    def to_json(self) -> bytes:
        """The bytes from which an actor reads its configuration."""
        return msgspec.json.encode(self)


def from_json(data: bytes) -> EngineConfig:
    """Reads what `EngineConfig.to_json` wrote."""
    return msgspec.json.decode(data, type=EngineConfig)


def make_config(fields: dict[str, Any], file: Path | None = None) -> EngineConfig:
    """A configuration from a TOML file and fields that override it; None fields do not.

    Raises ConfigError naming the field that is unknown or has a wrong type.
    """
    merged: dict[str, Any] = {}
    if file is not None:
        import tomllib  # only a start with a file needs it

        try:
            merged.update(tomllib.loads(file.read_text()))
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"cannot read the configuration file {file}: {error}") from error
        if "fault_flags" in merged:
            raise ConfigError(f"{file}: fault_flags is not a setting")
    merged.update({name: value for name, value in fields.items() if value is not None})
    if "model" not in merged:
        raise ConfigError("model is missing: name a directory, a .gguf file, a hub id or smollm2")
    names = {field.name for field in msgspec.structs.fields(EngineConfig)}
    for name in merged.keys() - names:
        import difflib  # only a mistake needs it

        near = difflib.get_close_matches(name, names, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"{name} is not a setting{hint}")
    try:
        return msgspec.convert(merged, EngineConfig)
    except msgspec.ValidationError as error:
        where = f"{file}: " if file is not None else ""
        raise ConfigError(f"{where}{_described(error, merged)}") from error


def _described(error: msgspec.ValidationError, merged: dict[str, Any]) -> str:
    from pillion.runtime.type_errors import complaint_of  # only a mistake needs it

    complaint = complaint_of(error, merged)
    for field in msgspec.structs.fields(EngineConfig):
        choices = get_args(get_args(field.type)[0])
        if complaint.path == field.name and choices and str(error).startswith("Invalid enum"):
            return f"{field.name} must be {' or '.join(choices)}, got {merged[field.name]!r:.80}"
    return complaint.message


def _positive(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise ConfigError(f"{name} must be at least 1, got {value}")


def _between(name: str, value: int | None, most: int) -> None:
    if value is not None and not 1 <= value <= most:
        raise ConfigError(f"{name} must be between 1 and {most}, got {value}")
