"""The GGUF reader against files that the `gguf` package wrote, and against broken ones."""

import struct
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillion.runtime.errors import ModelError
from pillion.runtime.gguf_file import GGML_TYPES, GgufFile


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 7)
    writer.add_float32("llama.rope.freq_base", 1e5)
    writer.add_bool("tokenizer.ggml.add_bos_token", False)
    writer.add_string("general.name", "größer 🦙")
    writer.add_token_list(["a", "", "ß", "🦙"])
    writer.add_token_types([1, 2, 3, 4])
    writer.add_tensor("plain.weight", np.arange(6, dtype=np.float32).reshape(2, 3))
    quantized = gguf.quantize(np.ones((2, 64), np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("eight.weight", quantized, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_reads_what_the_gguf_package_wrote(small_file: Path) -> None:
    file = GgufFile(small_file)
    assert file.string("general.architecture") == "llama"
    assert file.string("general.name") == "größer 🦙"
    assert file.integer("llama.block_count") == 7
    assert file.number("llama.rope.freq_base") == pytest.approx(1e5)
    assert file.boolean("tokenizer.ggml.add_bos_token") is False
    tokens = file.strings("tokenizer.ggml.tokens")
    assert tokens is not None
    assert list(tokens) == ["a", "", "ß", "🦙"]
    assert tokens[2] == "ß"
    assert tokens[1:3] == ["", "ß"]
    kinds = file.numbers("tokenizer.ggml.token_type")
    assert kinds is not None
    assert kinds.tolist() == [1, 2, 3, 4]
    assert file.string("no.such.key") is None

    plain = file.tensors["plain.weight"]
    assert plain.shape == (2, 3)
    assert plain.num_elements == 6
    values = file.raw(plain).view(np.float32)
    np.testing.assert_array_equal(values, np.arange(6, dtype=np.float32).reshape(2, 3))
    eight = file.tensors["eight.weight"]
    assert (eight.type.name, eight.shape) == ("Q8_0", (2, 64))
    assert file.raw(eight).shape == (2, 68)
    assert not file.raw(eight).flags.writeable


def test_type_table_agrees_with_the_gguf_package() -> None:
    for code, storage in GGML_TYPES.items():
        kind = gguf.GGMLQuantizationType(code)
        assert kind.name == storage.name
        assert gguf.GGML_QUANT_SIZES[kind] == (storage.block_size, storage.block_bytes)


def test_a_wrong_value_type_is_named(small_file: Path) -> None:
    file = GgufFile(small_file)
    with pytest.raises(ModelError, match=r"general\.name must be an integer"):
        file.integer("general.name")
    with pytest.raises(ModelError, match="add_bos_token must be an integer"):
        file.integer("tokenizer.ggml.add_bos_token")


def test_every_truncation_is_an_error_that_names_the_file(small_file: Path, tmp_path: Path) -> None:
    data = small_file.read_bytes()
    cut = tmp_path / "cut.gguf"
    last_tensor_end = max(t.offset + t.num_bytes for t in GgufFile(small_file).tensors.values())
    for length in range(last_tensor_end):
        cut.write_bytes(data[:length])
        with pytest.raises(ModelError, match=r"cut\.gguf"):
            GgufFile(cut)


@settings(max_examples=300, deadline=None)
@given(flips=st.lists(st.tuples(st.integers(0, 511), st.integers(0, 255)), min_size=1, max_size=4))
def test_corrupt_files_raise_nothing_but_model_errors(
    small_file: Path, flips: list[tuple[int, int]]
) -> None:
    data = bytearray(small_file.read_bytes())
    for position, value in flips:
        data[position] = value
    corrupt = small_file.with_name("corrupt.gguf")
    corrupt.write_bytes(data)
    try:
        file = GgufFile(corrupt)
    except ModelError as error:
        assert "corrupt.gguf" in str(error)  # noqa: PT017 - either outcome is right
        return
    for tensor in file.tensors.values():
        assert file.raw(tensor).size == tensor.num_bytes


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04" + bytes(64), "is not a GGUF file"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(64), "version 1"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(64), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0) + bytes(64), "corrupt|cut off"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60) + bytes(64), "corrupt|cut off"),
    ],
)
def test_files_that_are_not_gguf(tmp_path: Path, data: bytes, problem: str) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=problem):
        GgufFile(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nowhere\.gguf"):
        GgufFile(tmp_path / "nowhere.gguf")


def test_one_part_of_several_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "part.gguf"
    key = b"split.count"
    pair = struct.pack("<Q", len(key)) + key + struct.pack("<IH", 2, 3)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair)
    with pytest.raises(ModelError, match="one of 3 parts"):
        GgufFile(path)


@pytest.mark.model
def test_opens_the_small_real_model_quickly(smollm2_path: Path) -> None:
    seconds = []
    for _ in range(5):
        start = time.process_time()
        file = GgufFile(smollm2_path)
        seconds.append(time.process_time() - start)
    assert len(file.tensors) == 272
    assert sum(tensor.num_elements for tensor in file.tensors.values()) == 134_515_008
    # 0.03 s on a quiet machine, where the gguf package takes 2; the bound is for a busy one.
    assert min(seconds) < 0.15
