"""Every row of the table of LLM's arguments, and what is in no row."""

import warnings
from typing import Any

import pytest

from pillion.runtime.config import EngineConfig, make_config
from pillion.runtime.errors import ConfigError
from pillion.runtime.llm_argument_table import ARGUMENTS, Meaningless, Refused, Setting
from pillion.runtime.llm_arguments import engine_fields

SETTINGS = {name: row for name, row in ARGUMENTS.items() if isinstance(row, Setting)}
REFUSED = {name: row for name, row in ARGUMENTS.items() if isinstance(row, Refused)}
MEANINGLESS = {name: row for name, row in ARGUMENTS.items() if isinstance(row, Meaningless)}

# name, value, the EngineConfig field and its value
SETTING_CASES: list[tuple[str, Any, str, Any]] = [
    ("dtype", "half", "dtype", "float16"),
    ("dtype", "float", "dtype", "float32"),
    ("dtype", "bfloat16", "dtype", "bfloat16"),
    ("max_model_len", 128, "max_model_len", 128),
    ("max_model_len", -1, "max_model_len", None),
    ("served_model_name", "a", "served_model_name", "a"),
    ("served_model_name", ["a"], "served_model_name", "a"),
    ("gpu_memory_utilization", 0.5, "memory_fraction", 0.5),
    ("kv_cache_memory_bytes", 2**20, "kv_cache_bytes", 2**20),
    ("num_gpu_blocks_override", 7, "num_kv_blocks", 7),
    ("device", "cpu", "device", "cpu"),
    ("block_size", 32, "block_size", 32),
    ("block_size", "auto", "block_size", 16),
    ("otlp_traces_endpoint", "http://127.0.0.1:4318", "otlp_endpoint", "http://127.0.0.1:4318"),
]
# Fields that bear the same name here and there.
SHARED_CASES: list[tuple[str, Any]] = [
    ("tokenizer", "/somewhere"),
    ("max_num_seqs", 3),
    ("max_num_batched_tokens", 64),
    ("enable_prefix_caching", False),
    ("seed", 5),
    ("load_format", "dummy"),
    ("cpu_threads", 2),
    ("max_queued_requests", 9),
]


def fields_of(**arguments: Any) -> dict[str, Any]:
    return engine_fields("m", arguments, stacklevel=1)


@pytest.mark.parametrize(("name", "value", "field", "expected"), SETTING_CASES)
def test_settings_reach_the_configuration(name: str, value: Any, field: str, expected: Any) -> None:
    assert getattr(make_config(fields_of(**{name: value})), field) == expected


def test_every_setting_has_a_case() -> None:
    assert {case[0] for case in SETTING_CASES} == set(SETTINGS)
    assert {row.field for row in SETTINGS.values()} <= set(EngineConfig.__struct_fields__)


@pytest.mark.parametrize(("name", "value"), SHARED_CASES)
def test_own_fields_pass_under_their_names(name: str, value: Any) -> None:
    assert getattr(make_config(fields_of(**{name: value})), name) == value


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused_arguments(name: str) -> None:
    for accepted in (None, *REFUSED[name].accepted):
        assert fields_of(**{name: accepted}) == {"model": "m"}
    with pytest.raises(ConfigError, match=rf"LLM\({name}='what users want'\) is not supported: "):
        fields_of(**{name: "what users want"})


@pytest.mark.parametrize("name", sorted(MEANINGLESS))
def test_arguments_without_a_meaning_warn(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"LLM\({name}=\.\.\.\) has no effect"):
        assert fields_of(**{name: True}) == {"model": "m"}
    assert fields_of(**{name: None}) == {"model": "m"}


def test_the_warning_points_at_the_caller() -> None:
    def user() -> None:
        engine_fields("m", {"swap_space": 4}, stacklevel=1)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        user()
    assert caught[0].filename == __file__
    assert caught[0].lineno == user.__code__.co_firstlineno + 1


def test_no_row_shadows_a_field_of_our_own() -> None:
    assert not set(EngineConfig.__struct_fields__) & (set(REFUSED) | set(MEANINGLESS))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tensor_parallel_size": 2}, "tensor_parallel_size=2"),
        ({"tensor_parallel_size": True}, "tensor_parallel_size=True"),
        ({"trust_remote_code": True}, "never runs code that comes with a model"),
        ({"trust_remote_code": 0}, "trust_remote_code=0"),
        ({"enable_lora": True}, "LoRA"),
        ({"quantization": "awq"}, "GGUF"),
        ({"served_model_name": ["a", "b"]}, "served_model_name: exactly one name"),
        ({"gpu_memory_utilization": 0.5, "memory_fraction": 0.6}, "set the same thing"),
    ],
)
def test_the_message_says_why(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fields_of(**arguments)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("max_modellen", "did you mean max_model_len"),
        ("gpu_mem_utilization", "did you mean gpu_memory_utilization"),
        ("xyzzy", "unexpected argument 'xyzzy'$"),
        ("name", "use Client to talk to one"),
        ("model_path", "takes no argument"),
    ],
)
def test_unknown_names(name: str, message: str) -> None:
    for value in (1, None):
        with pytest.raises(TypeError, match=message):
            fields_of(**{name: value})


def test_a_revision_joins_the_hub_id() -> None:
    assert engine_fields("org/name", {"revision": "v2"}, stacklevel=1) == {"model": "org/name@v2"}


def test_a_torch_dtype() -> None:
    class TorchDtype:
        """Stands in for torch.bfloat16, whose import takes seconds."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __str__(self) -> str:
            return f"torch.{self._name}"

    assert fields_of(dtype=TorchDtype("bfloat16"))["dtype"] == "bfloat16"
    with pytest.raises(ConfigError, match="dtype"):
        make_config(fields_of(dtype=TorchDtype("int8")))


@pytest.mark.parametrize(
    ("arguments", "field"),
    [({"max_num_seqs": 0}, "max_num_seqs"), ({"max_num_seqs": "many"}, "max_num_seqs")],
)
def test_wrong_values_are_refused_by_the_configuration(
    arguments: dict[str, Any], field: str
) -> None:
    with pytest.raises(ConfigError, match=field):
        make_config(fields_of(**arguments))
