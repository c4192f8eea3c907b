"""What becomes of each argument that users of vLLM pass to `LLM`: a setting, a warning or a refusal.

None means everywhere that an argument was not given. Nothing is ever ignored silently.
"""

import difflib
import warnings
from collections.abc import Mapping
from typing import Any, Final

from pillion.runtime.config import EngineConfig
from pillion.runtime.errors import ConfigError
from pillion.runtime.llm_argument_table import ARGUMENTS, Meaningless, Refused, Setting

_OWN_FIELDS: Final = frozenset(EngineConfig.__struct_fields__)
# Set by LLM itself.
_RESERVED: Final = frozenset({"model", "name", "model_path"})


def engine_fields(model: str, arguments: Mapping[str, Any], *, stacklevel: int) -> dict[str, Any]:
    """The EngineConfig fields that these arguments of `LLM` mean.

    Fields of EngineConfig pass under their own names. Warns at `stacklevel` about arguments without a
    meaning. Raises ConfigError for what is not supported, TypeError for an unknown name.
    """
    fields: dict[str, Any] = {"model": model}
    given_as: dict[str, str] = {}
    for name, value in arguments.items():
        if value is None:
            _check_known(name)
        elif name == "revision":
            fields["model"] = f"{model}@{value}"
        else:
            _apply(name, value, fields, given_as, stacklevel + 1)
    return fields


def _apply(
    name: str, value: Any, fields: dict[str, Any], given_as: dict[str, str], stacklevel: int
) -> None:
    match ARGUMENTS.get(name):
        case Meaningless(advice):
            warnings.warn(
                f"LLM({name}=...) has no effect in Pillion: {advice}",
                DeprecationWarning,
                stacklevel=stacklevel + 1,
            )
            return
        case Refused(reason, accepted):
            # True == 1 in Python, but enable_x=1 and size=True are not what these arguments take.
            same_kind = [
                one for one in accepted if isinstance(one, bool) == isinstance(value, bool)
            ]
            if value not in same_kind:
                raise ConfigError(f"LLM({name}={value!r:.80}) is not supported: {reason}")
            return
        case Setting(field, convert):
            try:
                value = convert(value)
            except ValueError as error:
                raise ConfigError(f"{name}: {error}") from error
        case None:
            _check_known(name)
            field = name
    if field in given_as:
        raise ConfigError(f"{name} and {given_as[field]} set the same thing: give one of them")
    given_as[field] = name
    if value is not None:
        fields[field] = value


def _check_known(name: str) -> None:
    if name in _RESERVED:
        raise TypeError(
            f"LLM() takes no argument {name!r}: it runs a daemon of its own; use Client to talk to one"
            " that has a name"
        )
    if name in ARGUMENTS or name in _OWN_FIELDS or name == "revision":
        return
    near = difflib.get_close_matches(name, sorted({*ARGUMENTS, *_OWN_FIELDS}), n=3, cutoff=0.6)
    guess = f"; did you mean {' or '.join(near)}?" if near else ""
    raise TypeError(f"LLM() got an unexpected argument {name!r}{guess}")
