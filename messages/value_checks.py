"""Single values of a client: made plain, and checked. A check raises ValueError with the name and what it takes."""

import numbers
from typing import Any, Final

MAX_TOKEN_ID: Final = 2**31 - 1  # that any vocabulary can have


def plain_number(value: Any) -> Any:
    """A Python float, if the value is a real number that fits one; else the value itself."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return value
    try:
        return float(value)
    except OverflowError:
        return value


def plain_integer(value: Any) -> Any:
    """A Python int, if the value is an integer of another library; else the value itself."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        return value
    return int(value)


def shown(value: Any) -> str:
    """The value for an error message, in a few words whatever its size."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    return f"{value!r:.80}"


def check_integer(name: str, value: Any, low: int, high: int) -> None:
    """An integer between these two."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be an integer, got {shown(value)}")
    if not low <= value <= high:
        raise ValueError(f"{name} must be between {low} and {high}, got {shown(value)}")


def check_number(name: str, value: Any, low: float, high: float) -> None:
    """A number between these two."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, got {shown(value)}")
    # Not a number lies between no two numbers.
    if not low <= value <= high:
        raise ValueError(f"{name} must be between {low:g} and {high:g}, got {shown(value)}")


def check_strings(name: str, values: Any, most: int, max_chars: int) -> None:
    """A list of at most so many strings, none empty or longer than that."""
    if not isinstance(values, list):
        raise ValueError(f"{name} must be a list of strings, got {shown(values)}")
    if len(values) > most:
        raise ValueError(f"{name} takes at most {most} strings, got {len(values)}")
    for value in values:
        if not isinstance(value, str) or not value:
            raise ValueError(f"{name} takes non-empty strings, got {shown(value)}")
        if len(value) > max_chars:
            raise ValueError(
                f"{name} takes strings of at most {max_chars} characters, got {len(value)}"
            )


def check_token_ids(name: str, values: Any, most: int | None) -> None:
    """None, or a list of at most so many token ids."""
    if values is None:
        return
    if not isinstance(values, list):
        raise ValueError(f"{name} must be a list of token ids, got {shown(values)}")
    if most is not None and len(values) > most:
        raise ValueError(f"{name} takes at most {most} token ids, got {len(values)}")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_TOKEN_ID:
            raise ValueError(f"{name} takes token ids from 0 to {MAX_TOKEN_ID}, got {shown(value)}")
