"""The metrics that a PromQL expression names."""

import re
from typing import Final

_FUNCTION: Final = r"[a-zA-Z_]\w*\s*(?=\()"
_WORDS: Final = {
    "and",
    "or",
    "unless",
    "on",
    "ignoring",
    "group_left",
    "group_right",
    "by",
    "without",
    "bool",
}


def metrics_in(expression: str) -> set[str]:
    """Every name that is neither function, operator, label nor number; fails for unbalanced brackets."""
    for opening, closing in ("()", "{}", "[]"):
        assert expression.count(opening) == expression.count(closing), expression
    text = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", expression)  # labels and ranges
    text = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", text)
    text = re.sub(_FUNCTION, " ", text)
    return set(re.findall(r"(?<![\w.])[a-zA-Z_:][\w:]*", text)) - _WORDS
