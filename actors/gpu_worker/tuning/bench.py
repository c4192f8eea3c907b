"""Measures the products of a loaded model, with its own weights."""

from pillion.actors.gpu_worker.models.transformer import Transformer
from pillion.actors.gpu_worker.tuning.plan import Candidate, Product, TuningPlan
from pillion.actors.gpu_worker.tuning.trial import Trial, Weights
from pillion.actors.gpu_worker.tuning.whole_layers import WholeLayers
from pillion.kernels.fused_linear.tiles import Table


class ModelBench:
    """See `Bench`. The model has fused layers."""

    def __init__(self, plan: TuningPlan, model: Transformer, model_bytes: int) -> None:
        self._plan = plan
        self._model = model
        self._model_bytes = model_bytes
        self._weights: dict[str, Weights] = {}
        self._trial: tuple[Product, int, Trial] | None = None

    def microseconds(self, candidate: Candidate) -> float:
        """See `Bench.microseconds`."""
        product, rows, form = candidate
        if self._trial is None or self._trial[:2] != (product, rows):
            trial = Trial(self._plan, product, rows, self._weights_of(product))
            self._trial = product, rows, trial
        return self._trial[2].microseconds(form)

    def compare_layers(self, rows: int, table: Table) -> tuple[float, float, float]:
        """See `Bench.compare_layers`."""
        return WholeLayers(self._plan, self._model.fused_layers, rows).compare({}, table)

    def _weights_of(self, product: Product) -> Weights:
        if product.name not in self._weights:
            weights = Weights.of(product, self._model)
            cache_bytes = self._plan.card.cache_bytes
            self._weights[product.name] = weights.missing_the_cache(cache_bytes, self._model_bytes)
        return self._weights[product.name]
