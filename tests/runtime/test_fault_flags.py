"""How a test says which fault it wants, and that nobody else can."""

from pathlib import Path

import pytest

from pillion.runtime.config import EngineConfig, from_json, make_config
from pillion.runtime.errors import ConfigError
from pillion.runtime.fault_flags import FaultFlag, fault_flags_of


def test_an_actor_finds_its_own_flags() -> None:
    flags = ("gpu_worker:raise_in_layer=1:step=5:times=2", "scheduler:spin")
    config = from_json(EngineConfig(model="m", fault_flags=flags).to_json())
    assert fault_flags_of(config, "gpu_worker") == [
        FaultFlag("gpu_worker", "raise_in_layer", 1, {"step": 5, "times": 2})
    ]
    assert fault_flags_of(config, "scheduler") == [FaultFlag("scheduler", "spin", None, {})]
    assert fault_flags_of(config, "kv_manager") == []


@pytest.mark.parametrize("flag", ["", "gpu_worker", ":spin", "gpu_worker:", "a:b=c", "a:b=1:step"])
def test_a_malformed_flag_is_refused(flag: str) -> None:
    with pytest.raises(ConfigError, match="fault_flags"):
        FaultFlag.parse(flag)


def test_a_configuration_file_cannot_have_them(tmp_path: Path) -> None:
    file = tmp_path / "pillion.toml"
    file.write_text('model = "m"\nfault_flags = ["scheduler:spin"]\n')
    with pytest.raises(ConfigError, match="fault_flags is not a setting"):
        make_config({}, file)
