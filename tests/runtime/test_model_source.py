"""What a model's name leads to: directories, files, hub ids, aliases and mistakes."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pillion.runtime import hub_models
from pillion.runtime.errors import ModelError
from pillion.runtime.model_source import ModelSource, read_gguf_version, resolve_model
from pillion.runtime.process import child_environment

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def make_model(directory: Path, *names: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        (directory / name).write_text("{}")
    return directory


def test_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = make_model(tmp_path / "org" / "name", "config.json")
    expected = ModelSource("directory", directory, "name")
    assert resolve_model(str(directory)) == expected
    monkeypatch.chdir(tmp_path)
    assert resolve_model("org/name") == expected  # what is here comes before the hub
    assert resolve_model("./org/name/") == expected


def test_a_directory_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"lacks config\.json, weights .*, a tokenizer"):
        resolve_model(str(tmp_path))
    make_model(tmp_path, "model.safetensors", "tokenizer.json")
    with pytest.raises(ModelError, match=r"lacks config\.json$"):
        resolve_model(str(tmp_path))
    make_model(tmp_path, "a.gguf", "b.gguf")
    with pytest.raises(ModelError, match=r"name one of them: a\.gguf, b\.gguf"):
        resolve_model(str(tmp_path))


def test_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "tiny.Q4_1.gguf"
    path.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(16))
    assert resolve_model(str(path)) == ModelSource("gguf", path, "tiny.Q4_1")
    assert read_gguf_version(path) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a GGUF file"),
        (b"GGUF", "is not a GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1", "Git LFS pointer"),
        (b"GGUF" + (1).to_bytes(4, "little"), "of version 1"),
        (b"GGUF" + (3).to_bytes(4, "big"), "big-endian"),
    ],
)
def test_a_file_that_is_no_gguf(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        resolve_model(str(path))


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    make_model(tmp_path, "model.safetensors", "notes.txt")
    with pytest.raises(ModelError, match=f"name its directory instead: {tmp_path}$"):
        resolve_model(str(tmp_path / "model.safetensors"))
    with pytest.raises(ModelError, match=r"not a \.gguf file$"):
        resolve_model(str(tmp_path / "notes.txt"))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("", r"a model is a local directory .*smollm2"),
        ("smolm2", r"unknown model .* Did you mean smollm2\?"),
        ("SmolLM2", r"Did you mean smollm2\?"),
        ("qwerty", r"or an alias \(smollm2\)\.$"),
        ("no spaces/allowed here", "unknown model"),
        ("/no/such/directory", "no file or directory /no/such/directory"),
        ("./missing", "no file or directory"),
        ("org/name/deeper", "no file or directory"),
        ("missing.gguf", "no file or directory"),
        ("a\0b", "a model is"),
        ("a" * 5000, "cannot look at|unknown model"),
    ],
)
def test_names_that_lead_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=message) as caught:
        resolve_model(model)
    assert len(str(caught.value)) < 600


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys\nfrom pillion.runtime.model_source import resolve_model\n"
        "try: resolve_model('/nowhere')\nexcept Exception: pass\n"
        "heavy = {'torch', 'transformers', 'numpy', 'huggingface_hub'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# The hub, with a cache of the test's own.


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    # Port 9 (discard) of this machine: nobody listens, so a connection fails at once.
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    return tmp_path


def make_snapshot(hub_cache: Path, *names: str) -> Path:
    repository = hub_cache / "models--org--name"
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / "main").write_text(COMMIT)
    return make_model(repository / "snapshots" / COMMIT, *names)


def test_a_complete_cached_copy_needs_no_network(hub_cache: Path) -> None:
    snapshot = make_snapshot(hub_cache, "config.json", "model.safetensors")
    assert resolve_model("org/name") == ModelSource("directory", snapshot, "org/name")
    assert resolve_model(f"org/name@{COMMIT}").path == snapshot
    with pytest.raises(ModelError, match=f"no newer version .* complete one is in {snapshot}"):
        resolve_model("org/name", refresh=True)


@pytest.mark.parametrize("names", [(), ("config.json",), ("model.safetensors",)])
def test_without_a_network_an_incomplete_copy_is_an_error(
    hub_cache: Path, names: tuple[str, ...]
) -> None:
    if names:
        make_snapshot(hub_cache, *names)
    start = time.monotonic()
    with pytest.raises(ModelError, match=r"not complete in the local cache .* set HF_ENDPOINT"):
        resolve_model("org/name")
    assert time.monotonic() - start < 5


def test_shards_that_the_index_names_must_be_there(hub_cache: Path) -> None:
    snapshot = make_snapshot(hub_cache, "config.json", "a.safetensors")
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    assert hub_models.missing_files(snapshot) == ["b.safetensors"]
    with pytest.raises(ModelError, match="not complete"):
        resolve_model("org/name")
    make_snapshot(hub_cache, "b.safetensors")
    assert resolve_model("org/name").path == snapshot
    (snapshot / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(ModelError, match="is not a weight index"):
        resolve_model("org/name")


def test_offline_mode_is_named(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE is set: unset it and run `pillion pull"):
        resolve_model("org/name")


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A server that takes connections and never says a word, as a firewall may look."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_hub_that_does_not_answer_is_given_up_soon(
    hub_cache: Path, silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent_port}")
    monkeypatch.setattr(hub_models, "_PROBE_TIMEOUT_S", 0.3)
    start = time.monotonic()
    with pytest.raises(ModelError, match="Timeout"):
        resolve_model("org/name")
    assert time.monotonic() - start < 5


def test_a_download(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked: list[str | None] = []

    def model_info(self: object, repo_id: str, *, revision: str | None, timeout: float) -> None:
        asked.append(revision)

    real = huggingface_hub.snapshot_download

    def snapshot_download(repo_id: str, **arguments: object) -> str:
        if arguments.get("local_files_only"):
            return real(repo_id, **arguments)  # type: ignore[no-any-return]
        bar = arguments["tqdm_class"]
        if bar is not None:
            with bar(total=3, desc="never seen", name="x") as shown:
                shown.update(3)
        return str(make_snapshot(hub_cache, "config.json", *weights))

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    weights: tuple[str, ...] = ()
    with pytest.raises(ModelError, match=r"lacks \*\.safetensors: it is in a format"):
        resolve_model("org/name@v2")
    weights = ("model.safetensors",)
    source = resolve_model("org/name")
    assert (source.kind, source.name) == ("directory", "org/name")
    assert asked == ["v2", None]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("GatedRepoError", "is gated: accept its terms"),
        ("RepositoryNotFoundError", "has no model org/name, or it is private"),
        ("RevisionNotFoundError", "has no revision 'v2'"),
    ],
)
def test_the_hub_says_no(
    hub_cache: Path, monkeypatch: pytest.MonkeyPatch, error: str, message: str
) -> None:
    import huggingface_hub

    def model_info(self: object, repo_id: str, **arguments: object) -> None:
        raise type(error, (Exception,), {})("404")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    with pytest.raises(ModelError, match=message):
        resolve_model("org/name@v2")
