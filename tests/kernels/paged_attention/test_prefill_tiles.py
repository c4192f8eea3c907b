"""How the prefill rows of a step are cut for a CUDA device."""

import torch

from pillion.kernels.paged_attention import prefill_tiles
from pillion.kernels.paged_attention.rows import WHOLE_TOKENS, WholePrompt


def test_long_prompts_from_their_first_token_come_last() -> None:
    long = WHOLE_TOKENS + 100
    query_lens, seq_lens = (long, 40, long, long), (long, 40, long + 16, long)
    tiles = prefill_tiles(query_lens, seq_lens, 3, torch.zeros(7), torch.from_numpy)
    assert tiles.whole_prompts == (WholePrompt(3, 3, long), WholePrompt(6, 3 + 2 * long + 40, long))
    pieces = -(-long // tiles.num_queries)
    assert tiles.num_whole_tiles == 2 * pieces
    others = tiles.without_whole_prompts()
    # The one that goes on from a cached prefix is cut like the short one.
    assert others.rows.tolist() == [5] * pieces + [4]
    assert others.starts.tolist()[:2] == [(pieces - 1) * 128, (pieces - 2) * 128]
    assert not others.whole_prompts
    assert others.without_whole_prompts().rows.tolist() == others.rows.tolist()


def test_prompts_below_the_limit_are_not_taken_in_one_go() -> None:
    short = WHOLE_TOKENS - 1
    tiles = prefill_tiles((short,), (short,), 0, torch.zeros(1), torch.from_numpy)
    assert not tiles.whole_prompts
    assert len(tiles.rows) == -(-short // 128)
