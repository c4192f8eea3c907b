"""Which products of a model are to be tuned on a card, for how many rows, and among which forms."""

from dataclasses import dataclass
from typing import Final, NamedTuple

import torch

from pillion.actors.gpu_worker.cuda_graphs import graph_sizes
from pillion.actors.gpu_worker.layers.decoder_layer import HeadShape
from pillion.actors.gpu_worker.limits import CUDA_MAX_NUM_SEQS
from pillion.actors.gpu_worker.models.model_config import ModelConfig
from pillion.actors.gpu_worker.tuning.forms import Card, Form, forms_of, kernel_of
from pillion.kernels.fused_linear.tiles import (
    MEASURED,
    MEASURED_ON,
    Kind,
    Tile,
    measured_as,
    padded_rows,
)
from pillion.runtime.config import EngineConfig

# In this order: should time run out, what most daemons need has been tuned.
_ROW_CLASSES: Final = (1, 8, 64, 32, 16, 128, 256)

_TOGETHER: Final = (("output", "gated"), ("down", "qkv"), ("head",))


class Product(NamedTuple):
    """A product of every layer, or the head, with a weight [n, k]."""

    name: str  # "qkv", "output", "gated", "down" or "head"
    kind: Kind
    n: int
    k: int
    has_bias: bool = False


class Candidate(NamedTuple):
    """One way to do a product with so many padded rows."""

    product: Product
    rows: int
    form: Form


@dataclass(frozen=True, slots=True)
class TuningPlan:
    """The same in every process that has the same configuration, model and card."""

    card: Card
    dtype: torch.dtype
    heads: HeadShape
    # the products of a layer, and the head
    products: tuple[Product, ...]
    row_classes: tuple[int, ...]

    def is_fixed(self, product: Product) -> bool:
        """Whether the shipped table holds the product, measured on this very card."""
        return self.card.name == MEASURED_ON and product[1:4] in MEASURED

    def forms(self, product: Product, rows: int) -> list[Form]:
        """What to try; only what runs untuned, if that is known to be best."""
        _, kind, n, k, _ = product
        found = forms_of(
            kind,
            n,
            k,
            rows,
            self.card,
            head_dim=self.heads.head_dim,
            is_bfloat16=self.dtype == torch.bfloat16,
        )
        if self.is_fixed(product):
            return [form for form in found if form.choice == found[0].choice]
        return found

    def together(self) -> list[tuple[Product, ...]]:
        """Products whose forms are chosen together, where there is a choice: who writes the stream, who reads it."""
        of = {product.name: product for product in self.products}
        found = [tuple(of[name] for name in names) for names in _TOGETHER]
        return [products for products in found if not all(map(self.is_fixed, products))]

    def candidates(self) -> list[Candidate]:
        """All, the most important first."""
        return [
            Candidate(product, rows, form)
            for rows in self.row_classes
            for products in self.together()
            for product in products
            for form in self.forms(product, rows)
        ]

    def groups(self) -> list[list[int]]:
        """Indexes of candidates, together those that have a compiled kernel in common."""
        groups: dict[object, list[int]] = {}
        for index, candidate in enumerate(self.candidates()):
            groups.setdefault(_kernel(candidate), []).append(index)
        return list(groups.values())


def _kernel(candidate: Candidate) -> object:
    product, rows, (choice, _) = candidate
    if choice is None:
        return product, rows
    variant = kernel_of(choice)
    if isinstance(choice, Tile):
        return product.kind, product.k, product.has_bias, min(rows, choice.block_rows), variant
    return product.kind, product.has_bias, variant


def plan_tuning(
    config: EngineConfig, model: ModelConfig, dtype: torch.dtype, card: Card | None
) -> TuningPlan | None:
    """None where nothing is to be tuned: off, no such device, no fused products, or all in the shipped table."""
    if card is None or not config.tuning_seconds or config.batch_invariant:
        return None
    products = _products(model) if dtype.itemsize == 2 else ()
    max_num_seqs = config.max_num_seqs or CUDA_MAX_NUM_SEQS
    used = {measured_as(padded_rows(size)) for size in graph_sizes(max_num_seqs)}
    plan = TuningPlan(
        card,
        dtype,
        HeadShape(model.num_q_heads, model.num_kv_heads, model.head_dim),
        products,
        tuple(rows for rows in _ROW_CLASSES if rows in used),
    )
    return plan if products and plan.together() else None


def _products(model: ModelConfig) -> tuple[Product, ...]:
    if model.qk_norm or model.mlp_bias:
        return ()  # see FusedLayer
    hidden, attended = model.hidden_size, model.num_q_heads * model.head_dim
    qkv = attended + 2 * model.num_kv_heads * model.head_dim
    return (
        Product("qkv", "qkv", qkv, hidden, model.qkv_bias),
        Product("output", "add", hidden, attended, model.output_bias),
        Product("gated", "gated", 2 * model.intermediate_size, hidden),
        Product("down", "add", hidden, model.intermediate_size),
        Product("head", "head", model.vocab_size, hidden),
    )
