"""What is tuned for which model, on which card, and what is tried."""

from typing import Any

import pytest
import torch
from untuned_models import A100, H200, llama_8b, model_config, plan_for

from pillion.actors.gpu_worker.tuning.forms import Form, ahead, forms_of, kernel_of
from pillion.actors.gpu_worker.tuning.plan import TuningPlan
from pillion.kernels.fused_linear.tiles import (
    MEASURED,
    Kind,
    Tile,
    WideTile,
    choose,
    choose_untuned,
    trying,
    use_tuned,
)

SHAPES: list[tuple[Kind, int, int]] = [
    ("qkv", 2048, 1536),
    ("add", 1536, 8960),
    ("gated", 17_920, 1536),
    ("head", 151_936, 1536),
]
ROWS = (1, 8, 16, 32, 64, 128, 256)


class TestPlan:
    def test_nothing_for_a_shape_of_the_table_on_the_card_it_was_measured_on(self) -> None:
        assert plan_for(llama_8b()) is None
        assert plan_for(llama_8b(), A100) is not None
        assert plan_for() is not None

    @pytest.mark.parametrize(
        "fields",
        [
            {"tuning_seconds": 0.0},
            {"batch_invariant": True},
            {"dtype": torch.float32},
            {"model": model_config(qk_norm=True)},
            {"model": model_config(mlp_bias=True)},
            {"card": None},
        ],
        ids=str,
    )
    def test_nothing_where_it_is_off_or_products_are_not_fused(
        self, fields: dict[str, Any]
    ) -> None:
        assert plan_for(**fields) is None

    def test_what_the_table_holds_stays(self) -> None:
        plan = plan_for(llama_8b(vocab_size=32_768))
        assert plan is not None
        assert {candidate.product.name for candidate in plan.candidates()} == {"head"}
        plan = plan_for(llama_8b(intermediate_size=14_080))
        assert plan is not None
        names = {candidate.product.name for candidate in plan.candidates()}
        assert names == {"qkv", "output", "gated", "down"}
        for candidate in plan.candidates():
            product, rows, form = candidate
            if product.name in ("qkv", "output"):
                assert form.choice == MEASURED[product[1:4]][rows]

    def test_rows_are_those_of_captured_steps(self) -> None:
        few = {1, 8, 16, 32}
        for max_num_seqs, wanted in (
            (1, {1}),
            (20, few),
            (40, {*few, 64}),  # as 64 rows
            (224, {*few, 64, 128}),  # the library's
            (None, set(ROWS)),
        ):
            plan = plan_for(max_num_seqs=max_num_seqs)
            assert plan is not None
            assert set(plan.row_classes) == wanted
        assert plan.row_classes[:2] == (1, 8)

    def test_few_kernels_are_compiled_each_by_one_process(self) -> None:
        plan = plan_for()
        assert plan is not None
        groups, candidates = plan.groups(), plan.candidates()
        assert sorted(index for group in groups for index in group) == list(range(len(candidates)))
        assert len(groups) < 0.8 * len(candidates) < 200
        together = [{candidates[index].product.name for index in group} for group in groups]
        assert {"output", "down"} in together

    def test_every_product_has_the_library_and_what_runs_untuned(self) -> None:
        for card in (H200, A100):
            plan = plan_for(card=card)
            assert plan is not None
            for products in plan.together():
                for product in products:
                    for rows in plan.row_classes:
                        choices = [form.choice for form in plan.forms(product, rows)]
                        assert None in choices
                        assert choices[0] == choose_untuned(
                            product.kind, product.n, product.k, rows
                        )


class TestForms:
    @pytest.mark.parametrize("rows", ROWS)
    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_few_different_ones(self, shape: tuple[Kind, int, int], rows: int) -> None:
        forms = forms_of(*shape, rows, H200, head_dim=128, is_bfloat16=True)
        assert len(set(forms)) == len(forms)
        kernels = {kernel_of(form.choice) for form in forms}
        assert 1 <= len(kernels) <= 8
        assert len(kernels) > 1 or rows > 64

    def test_what_the_card_cannot_run_is_not_tried(self) -> None:
        for rows in ROWS:
            for shape in SHAPES:
                forms = forms_of(*shape, rows, A100, head_dim=128, is_bfloat16=True)
                assert not any(isinstance(form.choice, WideTile) for form in forms)
                small = H200._replace(shared_bytes=227 << 10)
                for form in forms_of(*shape, rows, small, head_dim=128, is_bfloat16=True):
                    choice = form.choice
                    if isinstance(choice, WideTile):
                        taken = (choice.block_n + choice.block_rows) * choice.block_k * 2
                        assert choice.stages * taken < 227 << 10

    def test_parts_of_heads_fit_them(self) -> None:
        for head_dim in (64, 80, 96, 128, 256):
            n = 20 * head_dim
            forms = forms_of("qkv", n, 1536, 8, H200, head_dim=head_dim, is_bfloat16=True)
            wide = [form.choice for form in forms if isinstance(form.choice, WideTile)]
            assert bool(wide) == (head_dim not in (80, 96))
            for choice in wide:
                assert choice.block_n % head_dim == 0 or head_dim // 2 % choice.block_n == 0

    def test_k_is_split_where_programs_are_few(self) -> None:
        few = forms_of("add", 1024, 8192, 8, H200, head_dim=128, is_bfloat16=True)
        splits = {form.choice.splits for form in few if isinstance(form.choice, WideTile)}
        assert max(splits) > 1
        many = forms_of("add", 65_536, 8192, 8, H200, head_dim=128, is_bfloat16=True)
        splits = {form.choice.splits for form in many if isinstance(form.choice, WideTile)}
        assert splits == {1}

    def test_streams_without_their_scaled_are_left_to_the_library_in_float16(self) -> None:
        for is_bfloat16 in (False, True):
            forms = forms_of("gated", 17_920, 1536, 64, H200, head_dim=128, is_bfloat16=is_bfloat16)
            assert (Form(None, True) in forms) == is_bfloat16
            assert Form(None, False) in forms

    def test_more_or_less_is_asked_for_ahead(self) -> None:
        tile = Tile(8, 256, 4, 4)
        amounts = [choice.prefetch_bytes for choice in ahead(tile, 576) if choice is not None]
        assert amounts == [0, 512]
        assert ahead(None, 576) == [None]

    @pytest.mark.parametrize("rows", ROWS)
    def test_the_copy_engine_is_given_no_rows_that_begin_anywhere(self, rows: int) -> None:
        for k in (1532, 1536):
            found = set()
            for kind, n in (("qkv", 2048), ("add", 1536), ("gated", 17_920), ("head", 32_000)):
                forms = forms_of(kind, n, k, rows, H200, head_dim=128, is_bfloat16=True)
                choices = [form.choice for form in forms]
                found |= {each for choice in choices for each in (choice, *ahead(choice, k))}
            tiles = [choice for choice in found if choice is not None]
            assert tiles or rows > 64
            if k == 1532:
                assert not any(isinstance(tile, WideTile) or tile.prefetch_bytes for tile in tiles)
            else:
                assert any(tile.prefetch_bytes for tile in tiles)


def test_tuned_tiles_come_before_the_table() -> None:
    shape: tuple[Kind, int, int] = ("qkv", 960, 576)
    tile = Tile(8, 256, 4, 4)
    measured = MEASURED[shape][8]
    use_tuned({shape: {8: tile, 16: None}})
    assert [choose(*shape, rows) for rows in (5, 8, 16)] == [tile, tile, None]
    assert choose(*shape, 1) == MEASURED[shape][1]
    assert choose_untuned(*shape, 8) == measured
    with trying({shape: {8: None}}):
        assert choose(*shape, 8) is None
        assert choose(*shape, 16) == MEASURED[shape][16]
    assert choose(*shape, 8) == tile
    use_tuned({})
    assert choose(*shape, 8) == measured


def test_plans_are_the_same_in_every_process(plan: TuningPlan) -> None:
    assert plan == plan_for(max_num_seqs=8)
