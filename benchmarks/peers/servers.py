"""The engines' servers: their commands, and when they answer."""

import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from peers.engines import Setting
from peers.processes import Group, ProcessFailed


@dataclass(frozen=True)
class Server:
    """A running server and the ways into it: name of the way -> target of peers/load.py."""

    group: Group
    model: str
    targets: dict[str, str]
    address: str

    def wait_ready(self, timeout_s: float) -> None:
        """Until /health answers. Raises ProcessFailed."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.group.process.poll() is not None:
                raise ProcessFailed(f"{self.group.name} has ended: {self.group.tail()}")
            try:
                with urllib.request.urlopen(f"{self.address}/health", timeout=2):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        raise ProcessFailed(f"{self.group.name} is not ready after {timeout_s:.0f} s")


def start_server(engine: str, setting: Setting, site: str | None, log: Path) -> Server:
    """Starts an engine's server on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    name = f"peers-{port}"
    command = COMMANDS[engine](setting, port, name)
    group = Group(f"{engine} server {setting.folder.name}", [sys.executable, *command], site, log)
    address = f"http://127.0.0.1:{port}"
    targets = {f"{engine} over HTTP": address}
    if engine == "pillion":
        targets = {"pillion": f"client:{name}", **targets}
    return Server(group, setting.folder.name, targets, address)


def _pillion(setting: Setting, port: int, name: str) -> list[str]:
    command = ["-P", "-m", "pillion", "serve", str(setting.folder), "--name", name]
    command += ["--http", str(port), "--load-format", "dummy", "--device", setting.device]
    command += ["--max-model-len", str(setting.max_model_len)]
    if setting.kv_bytes is not None:
        command += ["--kv-cache-bytes", str(setting.kv_bytes), "--memory-fraction", "0.98"]
    return command


def _vllm(setting: Setting, port: int, name: str) -> list[str]:
    command = ["-m", "vllm.entrypoints.cli.main", "serve", str(setting.folder)]
    command += ["--served-model-name", setting.folder.name, "--load-format", "dummy"]
    command += ["--max-model-len", str(setting.max_model_len), "--disable-uvicorn-access-log"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    if setting.kv_bytes is not None:
        command += ["--kv-cache-memory-bytes", str(setting.kv_bytes)]
        command += ["--gpu-memory-utilization", "0.05"]
    return command


def _sglang(setting: Setting, port: int, name: str) -> list[str]:
    command = ["-m", "sglang.launch_server", "--model-path", str(setting.folder)]
    command += ["--served-model-name", setting.folder.name, "--load-format", "dummy"]
    command += ["--context-length", str(setting.max_model_len), "--log-level-http", "warning"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    if setting.kv_tokens is not None:
        command += ["--max-total-tokens", str(setting.kv_tokens), "--mem-fraction-static", "0.95"]
    return command


COMMANDS: dict[str, Callable[[Setting, int, str], list[str]]] = {
    "pillion": _pillion,
    "vllm": _vllm,
    "sglang": _sglang,
}
