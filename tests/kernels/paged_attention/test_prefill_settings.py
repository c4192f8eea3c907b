"""How the attention of prefill rows is cut: as was measured, and smaller where that would not run."""

import pytest

pytest.importorskip("triton")

from pillion.kernels.paged_attention.triton_prefill import Setting, best_setting

H100_BYTES, A100_BYTES, L4_BYTES = 227 << 10, 163 << 10, 99 << 10


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128])
def test_the_measured_setting_is_kept_where_it_runs(head_dim: int) -> None:
    for block_queries in (64, 128):
        warps = 8 if head_dim > 64 and block_queries == 128 else 4
        for shared_bytes in (H100_BYTES, A100_BYTES):
            found = best_setting(head_dim, block_queries, 2, shared_bytes)
            assert found == Setting(block_queries, 64, warps, 3)


@pytest.mark.parametrize("shared_bytes", [H100_BYTES, A100_BYTES, L4_BYTES])
@pytest.mark.parametrize("number_bytes", [2, 4])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_keys_and_values_in_flight_fit_the_shared_memory(
    head_dim: int, number_bytes: int, shared_bytes: int
) -> None:
    for block_queries in (64, 128):
        found = best_setting(head_dim, block_queries, number_bytes, shared_bytes)
        in_flight = found.block_queries + 2 * found.block_keys * found.stages
        least = found.block_keys == 16
        assert head_dim * number_bytes * in_flight <= shared_bytes or least
        assert not least or shared_bytes < H100_BYTES
