"""Faults on demand: what `EngineConfig.fault_flags` says, in parts. For tests of what happens then."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from pillion.runtime.errors import ConfigError

if TYPE_CHECKING:
    from pillion.runtime.config import EngineConfig

# What process_faults.py does in any actor; every other fault is that of one actor alone.
PROCESS_FAULTS: Final = frozenset(
    {
        "exit_at_start",
        "delay_load",
        "fail_load",
        "stop_loop",
        "spin_loop",
        "raise_in_loop",
        "delay_message",
        "drop_message",
    }
)


@dataclass(frozen=True, slots=True)
class FaultFlag:
    """One fault of one actor: `gpu_worker:raise_in_layer=1:step=5` is "raise_in_layer" of 1 under step=5."""

    actor: str
    fault: str
    value: int | None
    # When it happens; what they mean is the fault's business.
    conditions: dict[str, int]

    @classmethod
    def parse(cls, flag: str) -> Self:
        """Raises ConfigError for one that is not written `actor:fault[=number][:condition=number]...`."""
        actor, *parts = flag.split(":")
        values: dict[str, int | None] = {}
        for part in parts:
            name, equals, value = part.partition("=")
            try:
                values[name] = int(value) if equals else None
            except ValueError as error:
                raise ConfigError(f"fault_flags takes numbers, got {part!r} in {flag!r}") from error
        if not actor or not parts or "" in values:
            raise ConfigError(f"fault_flags takes actor:fault[=number]:..., got {flag!r}")
        fault, *_ = values
        value_of_fault = values.pop(fault)
        conditions = {name: value for name, value in values.items() if value is not None}
        if len(conditions) < len(values):
            raise ConfigError(f"fault_flags needs a number for each condition, got {flag!r}")
        return cls(actor, fault, value_of_fault, conditions)


def fault_flags_of(config: "EngineConfig", actor: str) -> list[FaultFlag]:
    """The flags of faults that are this actor's own. Raises ConfigError for one that is malformed."""
    return [flag for flag in all_flags_of(config, actor) if flag.fault not in PROCESS_FAULTS]


def all_flags_of(config: "EngineConfig", actor: str) -> list[FaultFlag]:
    """The same with the faults that any actor's process can have."""
    flags = [FaultFlag.parse(flag) for flag in config.fault_flags]
    return [flag for flag in flags if flag.actor == actor]
