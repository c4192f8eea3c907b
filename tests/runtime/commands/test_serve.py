"""`pillion serve`: its flags are the configuration's fields."""

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import msgspec
import pytest

from pillion.runtime.commands import serve
from pillion.runtime.config import EngineConfig, make_config
from pillion.runtime.errors import ConfigError, ModelError, PillionError
from pillion.runtime.launch_report import LaunchRefused


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    return parser.parse_args(arguments)


VALUES = {
    "name": "other",
    "served_model_name": "s",
    "tokenizer": "t",
    "device": "cpu",
    "dtype": "bfloat16",
    "load_format": "gguf",
    "block_size": 32,
    "memory_fraction": 0.5,
    "drain_s": 2.5,
    "start_timeout_s": 9.0,
    "cpu_threads": 1,
    "http": "127.0.0.1:8000",
    "http_uds": "h.sock",
    "api_key": "key",
    "tool_parser": "hermes",
    "reasoning_parser": "qwen3",
    "api_key_file": "keys.txt",
    "otlp_endpoint": "http://collector:4318",
}


def test_every_setting_has_a_flag_and_the_flag_sets_it() -> None:
    for field in msgspec.structs.fields(EngineConfig):
        kind, meta = get_args(field.type)
        if field.name == "model" or (meta.extra or {}).get("internal"):
            continue
        flag = "--" + field.name.replace("_", "-")
        if kind is bool:
            value: object = not field.default
            arguments = [flag if value else "--no-" + flag[2:]]
        else:
            value = VALUES.get(field.name, 17)
            arguments = [flag, str(value)]
        fields = serve.given_fields(parse("m", *arguments))
        assert make_config(fields) == msgspec.structs.replace(
            EngineConfig(model="m"), **{field.name: value}
        )


def test_every_setting_says_what_it_is() -> None:
    for field in msgspec.structs.fields(EngineConfig):
        _, meta = get_args(field.type)
        assert (meta.extra or {}).get("internal") or meta.description, field.name


def test_flags_override_the_file_and_only_when_given(tmp_path: Path) -> None:
    file = tmp_path / "pillion.toml"
    file.write_text('model = "from file"\nmax_num_seqs = 3\nenable_prefix_caching = false\n')
    fields = serve.given_fields(parse("--config", str(file), "--max-num-seqs", "5"))
    config = make_config(fields, file)
    assert (config.model, config.max_num_seqs, config.enable_prefix_caching) == (
        "from file",
        5,
        False,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "model"),
        (["m", "--block-size", "17"], "block_size must be 8, 16, 32, 64 or 128"),
        (["m", "--memory-fraction", "nan"], "memory_fraction must be"),
        (["m", "--max-num-seqs", "0"], "max_num_seqs must be at least 1"),
        (["m", "--http-gateways", "65"], "http_gateways must be between 1 and 64, got 65"),
        (["m", "--http", "0", "--http-gateways", "0"], "http_gateways must be between 1 and 64"),
        (["m", "--cpu-threads", "1025"], "cpu_threads must be between 1 and 1024"),
        (["m", "--drain-s", "nan"], "drain_s must be a finite number, got nan"),
        (["m", "--start-timeout-s", "inf"], "start_timeout_s must be a finite number, got inf"),
        (["m", "--device", "tpu"], "device must be auto, cpu, cuda or cuda:N, got 'tpu'"),
        (["m", "--device", "cuda:"], "device must be auto, cpu, cuda or cuda:N"),
        (["m", "--otlp-endpoint", "collector:4318"], "otlp_endpoint must be a URL such as"),
        (["m", "--otlp-endpoint", "http://"], "otlp_endpoint must be a URL such as"),
        (["m", "--otlp-endpoint", "http://c:99999"], "otlp_endpoint must be a URL such as"),
        (["m", "--name", "a/b"], "name must be"),
        (["m", "--config", "/nonexistent.toml"], "cannot read the configuration file"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_before_anything_starts(
    arguments: list[str], message: str, runtime_root: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        serve.run(parse(*arguments))
    assert list(runtime_root.iterdir()) == []


@pytest.mark.parametrize("flags", [[], ["--daemon"]])
def test_a_model_that_does_not_exist_is_told_at_once(flags: list[str], runtime_root: Path) -> None:
    with pytest.raises(ModelError, match="/nonexistent"):
        serve.run(parse("/nonexistent/model", *flags))
    assert list(runtime_root.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (LaunchRefused("the port is taken"), "the port is taken"),
        (PillionError("no memory"), "no memory (see pillion logs --name n)"),
    ],
)
def test_who_is_sent_to_the_log_finds_something_there(
    error: PillionError, told: str, monkeypatch: pytest.MonkeyPatch, runtime_root: Path
) -> None:
    def wait_ready() -> None:
        raise error

    daemon = SimpleNamespace(wait_ready=wait_ready)
    monkeypatch.setattr(serve, "start_daemon", lambda _: daemon)
    monkeypatch.setattr(serve, "locate_model", lambda config, **_: config)
    with pytest.raises(PillionError) as caught:
        serve.run(parse("m", "--name", "n", "--daemon"))
    assert str(caught.value) == told
