"""A device whose times a test makes up."""

from collections.abc import Callable
from dataclasses import dataclass, field

from pillion.actors.gpu_worker.tuning.plan import Candidate
from pillion.kernels.fused_linear.tiles import Table


@dataclass
class FakeBench:
    """Every form takes 10 us, but where a test says otherwise."""

    us: Callable[[Candidate], float] = lambda candidate: 10.0
    layers: tuple[float, float, float] = (50.0, 40.0, 0.004)
    timed: list[Candidate] = field(default_factory=list)
    compared: list[tuple[int, Table]] = field(default_factory=list)

    def microseconds(self, candidate: Candidate) -> float:
        self.timed.append(candidate)
        return self.us(candidate)

    def compare_layers(self, rows: int, table: Table) -> tuple[float, float, float]:
        self.compared.append((rows, table))
        return self.layers
