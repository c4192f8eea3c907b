"""The steps that a start runs: what they ask for is what the memory of a largest step is measured by."""

from pathlib import Path

import pytest
import torch
from tiny_worker import tiny_config

from pillion.actors.gpu_worker.device import Download
from pillion.actors.gpu_worker.limits import WorkerLimits
from pillion.actors.gpu_worker.output_processor import OutputProcessor
from pillion.actors.gpu_worker.start_up import start_stages
from pillion.actors.gpu_worker.step_inputs import PromptLogprobRows
from pillion.actors.gpu_worker.warm_up import warm_up
from pillion.messages.sampling import MAX_LOGPROBS, TokenSampling

BLOCK_SIZE = 8
LIMITS = WorkerLimits(max_num_seqs=4, max_num_batched_tokens=60, max_model_len=64, num_blocks=32)


@pytest.mark.parametrize(
    ("num_tokens", "asks_for_prompt"), [(60, True), (59, False)], ids=["largest", "smaller"]
)
def test_a_largest_step_asks_for_everything(
    num_tokens: int, asks_for_prompt: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(tmp_path, "cpu", max_num_batched_tokens=LIMITS.max_num_batched_tokens)
    stages, _ = start_stages(config, 1, lambda phase: None)
    samplings: list[TokenSampling] = []
    prompts: list[tuple[int, int, int]] = []
    add, of_prompt = type(stages.states).add, OutputProcessor._prompt_logprobs

    def note_seated(self, new_sequences, writes) -> None:  # type: ignore[no-untyped-def]
        samplings.extend(new.sampling for new in new_sequences)
        add(self, new_sequences, writes)

    def note_prompt(self: OutputProcessor, rows: PromptLogprobRows, x: torch.Tensor) -> Download:
        prompts.append((len(rows.token_ids_np), rows.num_top, len(x)))
        return of_prompt(self, rows, x)

    monkeypatch.setattr(type(stages.states), "add", note_seated)
    monkeypatch.setattr(OutputProcessor, "_prompt_logprobs", note_prompt)
    warm_up(stages, LIMITS, BLOCK_SIZE, num_tokens)
    assert len(samplings) == LIMITS.max_num_seqs
    uses_all = [each.uses_penalties and each.logprobs is not None for each in samplings]
    assert uses_all == ([True] * 4 if asks_for_prompt else [True, False, False, False])
    # The first prompt has what the others leave, and its first token is nobody's prediction.
    assert prompts == ([(56, MAX_LOGPROBS, 60)] if asks_for_prompt else [])
    assert len(stages.states.occupied()) == 0
