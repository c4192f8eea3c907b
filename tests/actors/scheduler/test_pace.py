"""The share of a step that prompts get beside running streams."""

from pillion.actors.scheduler.pace import FIRST_TOKENS, LEAST_TOKENS, Pace
from pillion.messages.steps import StepTimes

MS = 1_000_000


def times(num_prefill: int, num_decode: int = 1) -> StepTimes:
    return StepTimes(
        prepare_ns=0,
        execute_ns=0,
        output_ns=0,
        num_prefill_tokens=num_prefill,
        num_decode_tokens=num_decode,
    )


class Device:
    """A worker that takes so long for a step, for prompts and for each token of them; never without a plan."""

    def __init__(
        self, pace: Pace, decode_ms: float, token_ms: float, fixed_ms: float = 0.0
    ) -> None:
        self.pace, self.decode_ms, self.token_ms = pace, decode_ms, token_ms
        self.fixed_ms = fixed_ms
        self.now_ns = 0

    def step(self, num_prefill: int = 0) -> float:
        """Milliseconds of the step."""
        sent_ns, step_ms = self.now_ns, self.decode_ms + num_prefill * self.token_ms
        step_ms += self.fixed_ms if num_prefill else 0
        self.now_ns += int(step_ms * MS)
        self.pace.note(times(num_prefill), sent_ns, self.now_ns)
        return step_ms


def test_a_long_prompt_lets_a_stream_go_on() -> None:
    pace = Pace(8192)
    device = Device(pace, decode_ms=4, token_ms=0.02)
    for _ in range(3):
        device.step()
    assert pace.tokens(1, 1) == FIRST_TOKENS - 1
    steps = [device.step(pace.tokens(1, 1)) for _ in range(20)]
    assert max(steps[2:]) < 2.2 * 4
    assert min(steps[2:]) > 1.8 * 4


def test_what_any_prompt_costs_is_not_taken_for_the_price_of_its_tokens() -> None:
    pace = Pace(8192)
    device = Device(pace, decode_ms=1.8, token_ms=0.0008, fixed_ms=0.6)
    for _ in range(3):
        device.step()
    steps = [device.step(pace.tokens(8, 1)) for _ in range(20)]
    assert pace.tokens(8, 1) > 1400
    assert max(steps) < 2.1 * 1.8


def test_pieces_do_not_shrink_where_that_makes_no_step_shorter() -> None:
    """A step with any prompt takes three times as long as one without."""
    pace = Pace(8192)
    device = Device(pace, decode_ms=0.5, token_ms=0.001, fixed_ms=1.0)
    for _ in range(3):
        device.step()
    steps = [device.step(pace.tokens(8, 1)) for _ in range(20)]
    assert 400 < pace.tokens(8, 1) < 600
    assert max(steps) < 0.5 + 1.6 * 1.0
    # Another crowd, for which prompts alone cost nothing.
    device.decode_ms, device.fixed_ms = 2.0, 0.0
    for _ in range(20):
        device.step()
    for _ in range(40):
        device.step(pace.tokens(8, 1))
    assert 1800 < pace.tokens(8, 1) < 2200


def test_a_crowd_shows_what_tokens_cost_before_streams_have_had_a_step_alone() -> None:
    pace = Pace(8192)
    device = Device(pace, decode_ms=1.7, token_ms=0.0006, fixed_ms=0.4)
    device.step(8192)
    for _ in range(5):
        assert pace.tokens(200, 30) == 8192
        device.step(8192)
    assert pace.tokens(230, 20) == FIRST_TOKENS  # steps of one size show no more
    steps = [device.step(pace.tokens(230, 20)) for _ in range(10)]
    assert pace.tokens(230, 20) > 1200
    assert max(steps) < 2 * 2.1
    # Then they have one, and two of them are what a step may take.
    for _ in range(3):
        device.step()
    device.step(pace.tokens(230, 20))
    assert 1.8 * 1.7 < device.step(pace.tokens(230, 20)) < 2.1 * 1.7


def test_the_first_pieces_of_a_prompt_are_small_whatever_earlier_ones_showed() -> None:
    """A device that takes up to 256 tokens as fast as the streams' steps, and more of them in another way."""
    pace = Pace(8192)
    device = Device(pace, decode_ms=0.57, token_ms=0.0007)

    def step(num_tokens: int) -> float:
        device.fixed_ms = 0.4 if num_tokens + 8 <= FIRST_TOKENS else 0.9
        return device.step(num_tokens)

    step(8)
    for _ in range(5):
        step(4000)  # a crowd
    for _ in range(3):
        slowest, left = 0.0, 4096
        for _ in range(30):
            step(0)
        assert pace.tokens(8, 1) <= FIRST_TOKENS - 8
        while left > 0:
            num_tokens = min(left, pace.tokens(8, 1))
            left -= num_tokens
            slowest = max(slowest, step(num_tokens))
    assert slowest < 3 * 0.57


def test_it_follows_a_prompt_whose_tokens_become_dearer() -> None:
    pace = Pace(8192)
    device = Device(pace, decode_ms=4, token_ms=0.01)
    device.step()
    device.step()
    for number in range(200):
        device.token_ms = 0.01 * (1 + number / 50)
        assert device.step(pace.tokens(1, 1)) < 3 * 4


def test_nothing_is_held_back_without_streams_or_where_many_prompts_wait() -> None:
    pace = Pace(8192)
    assert pace.tokens(0, 1) == 8192
    assert pace.tokens(1, 1) == FIRST_TOKENS - 1
    assert pace.tokens(64, 8) == FIRST_TOKENS - 64
    assert pace.tokens(64, 9) == 8192


def test_a_growing_context_is_not_taken_for_a_fixed_cost() -> None:
    pace = Pace(8192)
    device = Device(pace, decode_ms=4, token_ms=0.01)
    device.step()
    device.step()
    done, slowest = 0, 0.0
    while done < 32_768:
        num_tokens = pace.tokens(8, 1)
        device.token_ms = 0.01 + 2e-6 * done
        slowest = max(slowest, device.step(num_tokens))
        done += num_tokens
    assert slowest < 3 * 4


def test_a_step_that_was_held_up_once_changes_little() -> None:
    pace = Pace(8192)
    device = Device(pace, decode_ms=4, token_ms=0.02)
    device.step()
    device.step()
    for _ in range(20):
        device.step(pace.tokens(8, 1))
    device.fixed_ms = 1800
    device.step(pace.tokens(8, 1))
    device.fixed_ms = 0
    assert pace.tokens(8, 1) > 90
    assert all(device.step(pace.tokens(8, 1)) < 3 * 4 for _ in range(20))
    assert 180 < pace.tokens(8, 1) < 220


def test_a_step_of_streams_alone_that_was_held_up_changes_little() -> None:
    """As by the capture of a graph: the prompt that comes next goes in pieces as before."""
    pace = Pace(8192)
    device = Device(pace, decode_ms=4, token_ms=0.02)
    for _ in range(2):
        device.step()
    for _ in range(10):
        device.step(pace.tokens(8, 1))
    device.decode_ms = 60
    device.step()
    device.decode_ms = 4
    assert all(device.step(pace.tokens(8, 1)) < 3 * 4 for _ in range(10))
    # Streams that become slower for good are believed soon.
    device.decode_ms = 40
    for _ in range(10):
        device.step()
    for _ in range(10):
        device.step(pace.tokens(8, 1))
    assert pace.tokens(8, 1) > 1200


def test_answers_that_come_in_pairs_are_as_many_steps() -> None:
    """The second one of them takes no time."""
    pace = Pace(8192)
    device = Device(pace, decode_ms=0, token_ms=0.02)
    for number in range(1, 61):
        device.decode_ms = 8 * (number % 2)
        device.step()
    device.decode_ms = 4
    for _ in range(10):
        device.step(pace.tokens(8, 1))
    assert 150 < pace.tokens(8, 1) < 260


def test_pieces_grow_by_as_much_as_was_seen_before() -> None:
    """Cheap tokens of a small piece say little about those of a large one."""
    pace = Pace(8192)
    device = Device(pace, decode_ms=4, token_ms=1e-5)
    device.step()
    device.step()
    pieces = []
    for _ in range(5):
        pieces.append(pace.tokens(8, 1))
        device.step(pieces[-1])
    assert pieces == [248, 496, 992, 1984, 3968]


def test_tokens_have_a_price_where_larger_pieces_were_faster() -> None:
    pace = Pace(8192)
    device = Device(pace, decode_ms=4, token_ms=0.0)
    device.step()
    device.step()
    for num_tokens, device.fixed_ms in ((200, 3.0), (500, 2.0), (200, 3.0), (500, 2.0)):
        device.step(num_tokens)
    assert 500 < pace.tokens(8, 1) <= 1000


def test_never_less_than_the_least_nor_more_than_the_budget() -> None:
    slow, fast = Pace(8192), Pace(512)
    for pace, token_ms in ((slow, 3.0), (fast, 1e-5)):
        device = Device(pace, decode_ms=40, token_ms=token_ms)
        device.step()
        device.step()
        for _ in range(3):
            device.step(pace.tokens(1, 1))
    assert slow.tokens(1, 1) == LEAST_TOKENS
    assert fast.tokens(1, 1) == 512


def test_time_in_which_the_worker_had_no_plan_does_not_count() -> None:
    pace = Pace(8192)
    device = Device(pace, decode_ms=4, token_ms=0.02)
    for _ in range(5):
        device.step()
    device.now_ns += 10_000 * MS
    pace.note(times(0), device.now_ns - MS, device.now_ns)
    device.step(256)
    assert 180 < pace.tokens(1, 1) < 220


def test_steps_without_rows_teach_nothing() -> None:
    pace = Pace(8192)
    pace.note(None, 0, 5)
    pace.note(None, 0, 10)
    assert pace.tokens(1, 1) == FIRST_TOKENS - 1
