"""How a step's prefill tokens are shared."""

from hypothesis import given
from hypothesis import strategies as st

from pillion.actors.scheduler.step_budget import prefill_chunks


def test_prompts_are_served_in_order_while_they_end() -> None:
    assert prefill_chunks([(0, 5), (0, 7), (0, 4)], 16) == [5, 7, 4]
    assert prefill_chunks([(0, 5), (0, 20), (0, 20)], 16) == [5, 11, 0]
    assert prefill_chunks([(0, 5)], 0) == [0]
    assert prefill_chunks([], 16) == []


def test_a_long_prompt_leaves_a_quarter_to_short_ones() -> None:
    assert prefill_chunks([(0, 100), (0, 3), (0, 2), (0, 1)], 16) == [12, 3, 0, 1]
    assert prefill_chunks([(0, 100), (0, 5)], 16) == [16, 0]


def test_but_not_to_worse_priorities() -> None:
    assert prefill_chunks([(0, 100), (1, 3)], 16) == [16, 0]
    assert prefill_chunks([(0, 2), (1, 100), (1, 3)], 16) == [2, 11, 3]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 60)), max_size=12).map(sorted),
    st.integers(0, 64),
)
def test_the_budget_is_used_up_and_never_exceeded(
    prompts: list[tuple[int, int]], budget: int
) -> None:
    chunks = prefill_chunks(prompts, budget)
    assert sum(chunks) == min(budget, sum(tokens for _, tokens in prompts))
    assert all(0 <= chunk <= tokens for chunk, (_, tokens) in zip(chunks, prompts, strict=True))
    if budget and prompts:
        assert chunks[0] > 0
