"""How decode attention is cut without being told."""

import pytest

pytest.importorskip("triton")

from pillion.kernels.paged_attention.triton_decode import _MOST_PROGRAMS, best_setting, parts_of


@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_splits_fit_the_scratch_memory(head_dim: int) -> None:
    for num_pairs in range(1, 5000):
        setting = best_setting(num_pairs, head_dim)
        assert setting.splits <= setting.most_splits
        assert setting.most_splits == 1 or num_pairs * setting.most_splits <= _MOST_PROGRAMS


@pytest.mark.parametrize(
    ("num_kv_heads", "head_dim", "early"),
    [(8, 128, {8, 16, 32, 64}), (8, 64, {8, 16}), (3, 64, {16, 32})],
)
def test_the_launch_behind_is_let_in_where_that_was_faster(
    num_kv_heads: int, head_dim: int, early: set[int]
) -> None:
    steps = (1, 8, 16, 32, 64, 128, 256)
    found = {rows for rows in steps if best_setting(rows * num_kv_heads, head_dim).early}
    assert found == early


def test_query_heads_are_cut_equally_and_only_if_a_program_cannot_take_all() -> None:
    assert {parts_of(group) for group in range(1, 17)} == {1}
    assert [parts_of(group) for group in (17, 18, 24, 32, 48, 71)] == [17, 2, 2, 2, 3, 71]
