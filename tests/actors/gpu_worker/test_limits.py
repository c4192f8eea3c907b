"""What a worker takes on, and the sums with which it refuses."""

import pytest

from pillion.actors.gpu_worker.limits import (
    CPU_KV_MOST_BYTES,
    DeviceLedger,
    KvShape,
    cpu_kv_bytes,
    cuda_kv_bytes,
    refuse_what_cannot_fit,
    worker_limits,
)
from pillion.runtime.config import EngineConfig
from pillion.runtime.errors import ConfigError

GIB = 1 << 30
SHAPE = KvShape(num_layers=30, num_kv_heads=3, head_dim=64, block_size=16, bytes_per_number=4)
BLOCK = 30 * 2 * 3 * 16 * 64 * 4


def config(**fields: int | float) -> EngineConfig:
    return EngineConfig(model="m", **fields)  # type: ignore[arg-type]


def test_a_block_holds_keys_and_values_of_all_layers() -> None:
    assert SHAPE.block_bytes == BLOCK
    assert [SHAPE.blocks_for(n) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]


class TestCpu:
    def test_takes_a_quarter_of_what_is_free_and_never_much(self) -> None:
        assert cpu_kv_bytes(config(), SHAPE, 8 * GIB) == 2 * GIB
        assert cpu_kv_bytes(config(), SHAPE, 1000 * GIB) == CPU_KV_MOST_BYTES

    def test_a_length_that_is_asked_for_gets_its_memory(self) -> None:
        assert cpu_kv_bytes(config(max_model_len=8192), SHAPE, GIB) == 512 * BLOCK

    def test_settings_win(self) -> None:
        assert cpu_kv_bytes(config(num_kv_blocks=7), SHAPE, GIB) == 7 * BLOCK
        assert cpu_kv_bytes(config(kv_cache_bytes=12345678), SHAPE, GIB) == 12345678

    @pytest.mark.parametrize(
        "fields",
        [{"max_model_len": 100_000}, {"num_kv_blocks": 5000}, {"kv_cache_bytes": 2 * GIB}],
        ids=str,
    )
    def test_what_cannot_fit_is_refused_with_the_sum(self, fields: dict[str, int]) -> None:
        with pytest.raises(ConfigError, match=rf"^{next(iter(fields))}: .*MiB.*1024\.0 MiB") as e:
            cpu_kv_bytes(config(**fields), SHAPE, GIB)
        assert f"of {BLOCK} bytes" in str(e.value)


class TestCuda:
    def test_takes_what_weights_graphs_and_a_step_leave(self) -> None:
        ledger = DeviceLedger(100 * GIB, 20 * GIB, workspace_bytes=5 * GIB, graphs_bytes=GIB)
        assert cuda_kv_bytes(config(memory_fraction=0.5), SHAPE, ledger) == 24 * GIB

    def test_settings_win_if_they_fit(self) -> None:
        empty = DeviceLedger(100 * GIB, 0)
        fields = {"num_kv_blocks": 9, "memory_fraction": 0.5}
        assert cuda_kv_bytes(config(**fields), SHAPE, empty) == 9 * BLOCK
        assert cuda_kv_bytes(config(kv_cache_bytes=GIB), SHAPE, empty) == GIB

    @pytest.mark.parametrize("fields", [{}, {"kv_cache_bytes": 10 * GIB}], ids=str)
    def test_what_cannot_fit_is_refused_with_the_sum(self, fields: dict[str, int]) -> None:
        ledger = DeviceLedger(100 * GIB, 89 * GIB if fields else 95 * GIB)
        with pytest.raises(ConfigError, match=r"0\.9 of 102400\.0 MiB, less 9\d+\.0 MiB in use"):
            cuda_kv_bytes(config(**fields), SHAPE, ledger)


class TestRefusalBeforeWeightsAreRead:
    def test_what_fits_passes(self) -> None:
        refuse_what_cannot_fit(config(), SHAPE, DeviceLedger(100 * GIB, 89 * GIB))

    @pytest.mark.parametrize(
        "fields", [{"max_model_len": 40960}, {"num_kv_blocks": 2560}, {"kv_cache_bytes": 5 * GIB}]
    )
    def test_the_least_pool_counts_too(self, fields: dict[str, int]) -> None:
        refuse_what_cannot_fit(config(**fields), SHAPE, DeviceLedger(100 * GIB, 60 * GIB))
        with pytest.raises(ConfigError, match="the KV cache needs at least"):
            refuse_what_cannot_fit(config(**fields), SHAPE, DeviceLedger(100 * GIB, 89 * GIB))

    def test_weights_alone_may_be_too_many(self) -> None:
        with pytest.raises(ConfigError, match=r"less 92161\.0 MiB for the weights"):
            refuse_what_cannot_fit(config(), SHAPE, DeviceLedger(100 * GIB, 90 * GIB + (1 << 20)))


class TestWorkerLimits:
    def test_the_longest_sequence_is_the_models_or_what_fits(self) -> None:
        def max_model_len(num_blocks: int) -> int:
            return worker_limits(
                config(), SHAPE, 8192, num_blocks * BLOCK, is_cuda=False
            ).max_model_len

        assert max_model_len(512) == 8192
        assert max_model_len(10_000) == 8192
        assert max_model_len(100) == 1600

    def test_a_length_that_does_not_fit_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"1600 tokens needs 100 KV blocks .* hold 99"):
            worker_limits(config(max_model_len=1600), SHAPE, 8192, 99 * BLOCK, is_cuda=False)

    def test_a_pool_without_a_block_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"^kv_cache_bytes: a KV block has 737280 bytes"):
            worker_limits(config(), SHAPE, 8192, BLOCK - 1, is_cuda=False)

    def test_a_length_beyond_the_models_positions_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="made for 8192 positions"):
            worker_limits(config(max_model_len=8193), SHAPE, 8192, 999 * BLOCK, is_cuda=False)

    @pytest.mark.parametrize(("is_cuda", "expected"), [(False, (32, 1024)), (True, (256, 8192))])
    def test_defaults_depend_on_the_device(self, is_cuda: bool, expected: tuple[int, int]) -> None:
        limits = worker_limits(config(), SHAPE, 8192, GIB, is_cuda=is_cuda)
        assert (limits.max_num_seqs, limits.max_num_batched_tokens) == expected

    def test_every_sequence_can_decode_in_one_step(self) -> None:
        limits = worker_limits(config(max_num_seqs=1900), SHAPE, 8192, GIB, is_cuda=False)
        assert limits.max_num_batched_tokens == 1900
        fields = {"max_num_seqs": 9, "max_num_batched_tokens": 8}
        with pytest.raises(ConfigError, match="max_num_batched_tokens is 8, but 9 sequences"):
            worker_limits(config(**fields), SHAPE, 8192, GIB, is_cuda=False)
