"""Dequantization against the `gguf` package, which is the reference implementation in Python."""

import time
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch

from pillion.actors.gpu_worker.quantization.gguf_blocks import (
    dequantize,
    raw_tensor,
    unpack,
)
from pillion.runtime.gguf_file import GGML_TYPES, GgmlType, GgufFile


def random_blocks(storage: GgmlType, num_rows: int, row_size: int) -> npt.NDArray[np.uint8]:
    """Random bytes, whose float16 fields are made finite: any other bit pattern is a valid block."""
    rng = np.random.default_rng(11)
    num_bytes = row_size // storage.block_size * storage.block_bytes
    raw = rng.integers(0, 256, (num_rows, num_bytes), dtype=np.uint8)
    if storage.name == "F32":
        return rng.standard_normal((num_rows, row_size), np.float32).view(np.uint8)
    if storage.name in ("F16", "BF16"):
        raw[:, 1::2] &= 0xBF  # keeps the exponent below all ones
        return raw
    blocks = raw.reshape(-1, storage.block_bytes)
    halves = {
        "Q2_K": (80, 82),
        "Q3_K": (108,),
        "Q6_K": (208,),
        "Q8_0": (0,),
        "Q4_0": (0,),
        "Q5_0": (0,),
    }
    for start in halves.get(storage.name, (0, 2)):
        values = rng.standard_normal(len(blocks)).astype(np.float16)
        blocks[:, start : start + 2] = values.view(np.uint8).reshape(-1, 2)
    return raw


@pytest.mark.parametrize("storage", GGML_TYPES.values(), ids=lambda storage: storage.name)
@pytest.mark.parametrize(("num_rows", "row_size"), [(1, 256), (37, 1024), (3, 512 * 1024)])
def test_equals_the_gguf_package(storage: GgmlType, num_rows: int, row_size: int) -> None:
    raw = random_blocks(storage, num_rows, row_size)
    expected = gguf.dequantize(raw, gguf.GGMLQuantizationType[storage.name])
    assert np.isfinite(expected).all()
    out = torch.full((num_rows, row_size), float("nan"))
    dequantize(torch.from_numpy(raw), storage, out)
    np.testing.assert_array_equal(out.numpy(), expected.reshape(num_rows, row_size))


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_reads_what_the_gguf_package_quantized(name: str) -> None:
    weight = np.random.default_rng(2).standard_normal((16, 128)).astype(np.float32)
    raw = gguf.quantize(weight, gguf.GGMLQuantizationType[name])
    out = torch.empty(16, 128)
    storage = next(each for each in GGML_TYPES.values() if each.name == name)
    dequantize(torch.from_numpy(raw), storage, out)
    bits = int(name[1])
    np.testing.assert_allclose(out.numpy(), weight, atol=8.0 / 2**bits)


def test_converts_to_the_type_of_the_output() -> None:
    storage = GGML_TYPES[2]
    raw = torch.from_numpy(random_blocks(storage, 4, 64))
    exact, rounded = torch.empty(4, 64), torch.empty(4, 64, dtype=torch.bfloat16)
    dequantize(raw, storage, exact)
    dequantize(raw, storage, rounded)
    assert torch.equal(rounded, exact.bfloat16())


def test_no_rows_are_fine() -> None:
    dequantize(torch.empty(0, 36, dtype=torch.uint8), GGML_TYPES[2], torch.empty(0, 64))


@pytest.mark.parametrize(
    "storage",
    [storage for storage in GGML_TYPES.values() if storage.name not in ("F32", "F16", "BF16")],
    ids=lambda storage: storage.name,
)
def test_codes_fit_their_type(storage: GgmlType) -> None:
    blocks = unpack(torch.from_numpy(random_blocks(storage, 8, 512)), storage)
    bits = int(storage.name[1])
    low = 0 if blocks.offsets is not None else -(1 << (bits - 1))
    assert int(blocks.codes.min()) == low
    assert int(blocks.codes.max()) == low + (1 << bits) - 1
    assert blocks.codes.numel() == 8 * 512


@pytest.mark.model
def test_dequantizes_the_small_real_model_quickly(smollm2_path: Path) -> None:
    file = GgufFile(smollm2_path)
    start = time.perf_counter()
    for tensor in file.tensors.values():
        raw = raw_tensor(file, tensor)
        out = torch.empty(raw.shape[0], tensor.shape[-1])
        dequantize(raw, tensor.type, out)
        assert bool(out.isfinite().all())
    # About a second on a quiet machine; the bound is for a busy one.
    assert time.perf_counter() - start < 10
