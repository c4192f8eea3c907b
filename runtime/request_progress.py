"""The progress bar of many requests."""

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from pillion.runtime.clock import NS_PER_S, now_ns
from pillion.runtime.outputs import RequestOutput


class RequestProgress:
    """Counts finished requests and shows how fast tokens come; as a `with` block."""

    def __init__(self, num_requests: int, use_tqdm: bool | Callable[..., Any]) -> None:
        """`use_tqdm` may be something that makes bars as tqdm does; False shows nothing."""
        self._bar: Any = None
        self._started_ns = now_ns()
        self._num_prompt_tokens = 0
        self._num_output_tokens = 0
        if not use_tqdm:
            return
        from tqdm.auto import tqdm

        make_bar: Any = tqdm if use_tqdm is True else use_tqdm
        self._bar = make_bar(
            total=num_requests, desc="Processed prompts", unit="prompt", dynamic_ncols=True
        )

    def add(self, output: RequestOutput) -> None:
        """One more request has finished."""
        if self._bar is None:
            return
        self._num_prompt_tokens += len(output.prompt_token_ids or ())
        self._num_output_tokens += sum(len(sample.token_ids) for sample in output.outputs)
        seconds = max(1e-9, (now_ns() - self._started_ns) / NS_PER_S)
        self._bar.postfix = (
            f"input {self._num_prompt_tokens / seconds:.0f} tok/s,"
            f" output {self._num_output_tokens / seconds:.0f} tok/s"
        )
        self._bar.update(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
