"""Models of the Hugging Face hub, through `huggingface_hub` and its cache."""

import json
import os
from pathlib import Path
from typing import Any, Final

from pillion.runtime.errors import ModelError

# What loading reads. Repositories often hold the same weights in other formats as well.
_FILES: Final = ["*.safetensors", "*.json", "tokenizer*", "*.jinja"]
_IGNORED: Final = ["original/*", "consolidated*", "onnx/*", "*/*.safetensors"]
_PROBE_TIMEOUT_S: Final = 5.0


def fetch(model: str, *, progress: bool, refresh: bool) -> Path:
    """The directory of a hub model, "org/name" or "org/name@revision".

    A complete copy in the cache is used without a network, unless `refresh` asks for the newest one. An
    unreachable hub is noticed within seconds. Raises ModelError.
    """
    repo_id, _, revision = model.partition("@")
    cached = _cached_snapshot(repo_id, revision or None)
    if cached is not None and not refresh and not missing_files(cached):
        return cached
    try:
        snapshot = _download(repo_id, revision or None, progress)
    except ModelError as error:
        if cached is None or missing_files(cached):
            raise
        raise ModelError(
            f"no newer version of {model} could be fetched, but a complete one is in {cached}: {error}"
        ) from error
    missing = missing_files(snapshot)
    if missing:
        raise ModelError(
            f"the hub model {model} lacks {', '.join(missing)}: it is in a format that Pillion cannot load"
        )
    return snapshot


def missing_files(directory: Path) -> list[str]:
    """What a model directory lacks: config.json, weights, or shards that its weight index names."""
    missing = [] if (directory / "config.json").is_file() else ["config.json"]
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        try:
            shards = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{index} is not a weight index: {error!r}") from error
        missing += [shard for shard in shards if not (directory / shard).is_file()]
    elif not any(directory.glob("*.safetensors")):
        missing.append("*.safetensors")
    return missing


def _cached_snapshot(repo_id: str, revision: str | None) -> Path | None:
    from huggingface_hub import snapshot_download

    try:
        snapshot = snapshot_download(
            repo_id,
            revision=revision,
            allow_patterns=_FILES,
            ignore_patterns=_IGNORED,
            local_files_only=True,
        )
    except Exception:
        # The error types of huggingface_hub differ between its versions; whatever it is, the cache
        # has no usable copy, and the download that follows reports what is wrong.
        return None
    return Path(str(snapshot))


def _download(repo_id: str, revision: str | None, progress: bool) -> Path:
    from huggingface_hub import HfApi, snapshot_download

    try:
        # snapshot_download looks the repository up without a time limit; this looks first, with one.
        HfApi().model_info(repo_id, revision=revision, timeout=_PROBE_TIMEOUT_S)
        snapshot = snapshot_download(
            repo_id,
            revision=revision,
            allow_patterns=_FILES,
            ignore_patterns=_IGNORED,
            etag_timeout=_PROBE_TIMEOUT_S,
            tqdm_class=_progress_class(progress),
        )
    except Exception as error:  # requests' or httpx' types, depending on huggingface_hub's version
        raise ModelError(_explain(repo_id, revision, error)) from error
    return Path(str(snapshot))


def _progress_class(progress: bool) -> Any:
    from tqdm.auto import tqdm

    if progress:
        return None

    class Silent(tqdm):  # type: ignore[misc]  # tqdm comes without types
        """A progress bar that shows nothing."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)  # huggingface_hub's own addition
            super().__init__(*args, **{**kwargs, "disable": True})

    return Silent


def _explain(repo_id: str, revision: str | None, error: Exception) -> str:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    if "GatedRepoError" in kinds:
        return (
            f"the hub model {repo_id} is gated: accept its terms at {endpoint}/{repo_id}, then log in"
            " with `hf auth login` or set HF_TOKEN"
        )
    if "RepositoryNotFoundError" in kinds:
        return (
            f"the hub has no model {repo_id}, or it is private (then log in with `hf auth login` or set"
            " HF_TOKEN). A local directory of that name does not exist either"
        )
    if "RevisionNotFoundError" in kinds:
        return f"the hub model {repo_id} has no revision {revision!r}"
    if "OfflineModeIsEnabled" in kinds:
        return (
            f"the hub model {repo_id} is not complete in the local cache and HF_HUB_OFFLINE is set: unset"
            f" it and run `pillion pull {repo_id}`, or give a local directory or a .gguf file"
        )
    reason = str(error).strip().split("\n")[0] or type(error).__name__
    return (
        f"the hub model {repo_id} is not complete in the local cache and the hub at {endpoint} did not"
        f" deliver it ({type(error).__name__}: {reason}). Without a network, copy the model here and give"
        " its directory or .gguf file; for a mirror set HF_ENDPOINT"
    )
