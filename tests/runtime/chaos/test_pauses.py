"""How long a stream waited after a blow."""

from pillion.messages.sampling import SamplingParams
from pillion.runtime.chaos.answers import Answer
from pillion.runtime.chaos.load import ChaosRequest
from pillion.runtime.chaos.pauses import pauses_s, quantile
from pillion.runtime.chaos.strikes import Blow

S = 10**9


def stream(*arrivals_s: float) -> Answer:
    request = ChaosRequest(0, "greedy", SamplingParams(), prompt="p")
    return Answer(request, [], arrivals_ns=[int(second * S) for second in arrivals_s])


def blow(actor: str, second: float, stops: bool = False) -> Blow:
    return Blow(actor, stops, int(second * S))


def test_the_longest_wait_behind_the_blow_counts() -> None:
    # What was on its way still comes; then there is nothing for two seconds.
    assert pauses_s([blow("w", 1.0)], [stream(0.5, 1.1, 3.1, 3.2)]) == {"w": [2.0]}
    # A wait that had begun before counts from the blow.
    assert pauses_s([blow("w", 1.0)], [stream(0.0, 2.0)]) == {"w": [1.0]}


def test_streams_that_did_not_run_do_not_count() -> None:
    streams = [stream(2.0, 3.0), stream(0.0, 0.5), stream(1.0)]
    assert pauses_s([blow("w", 1.0)], streams) == {}


def test_blows_that_fall_together_are_left_out() -> None:
    streams = [stream(0.0, 4.0, 5.0, 6.0, 7.0)]
    blows = [blow("a", 1.0), blow("b", 2.0), blow("c", 5.5, stops=True)]
    assert pauses_s(blows, streams) == {"c (stopped)": [1.0]}


def test_quantiles() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile(list(map(float, range(100))), 0.99) == 99.0
    assert quantile([1.0], 0.99) == 1.0
