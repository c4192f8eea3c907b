"""Pillion: an engine that serves large language models from the seat behind an application."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pillion.messages.sampling import SamplingParams
    from pillion.messages.structured_outputs import StructuredOutputsParams
    from pillion.runtime.client import AsyncClient, Client
    from pillion.runtime.llm import LLM
    from pillion.runtime.outputs import CompletionOutput, RequestOutput

__version__ = "0.1.0"

_HOMES = {
    "LLM": "pillion.runtime.llm",
    "Client": "pillion.runtime.client",
    "AsyncClient": "pillion.runtime.client",
    "SamplingParams": "pillion.messages.sampling",
    "StructuredOutputsParams": "pillion.messages.structured_outputs",
    "RequestOutput": "pillion.runtime.outputs",
    "CompletionOutput": "pillion.runtime.outputs",
}

__all__ = [
    "LLM",
    "AsyncClient",
    "Client",
    "CompletionOutput",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Imports a public name on first use, so that `import pillion` costs nothing."""
    import importlib

    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pillion' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
