"""The engines of a comparison, loaded side by side, and one measurement of any case."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from peers.engines import Setting
from peers.options import Options
from peers.processes import EngineProcess, Group, ProcessFailed, end_all, only
from peers.schedule import Cell
from peers.servers import Server, start_server
from peers.shapes import PREFILL_PROMPTS, PREFILL_TOKENS, SHAPES, write_model

BENCHMARKS = Path(__file__).resolve().parents[1]
SERVE_TOKENS = 128
WARM_SERVER_S = 1.5
# A frozen engine's caches are cold; this is not counted.
WAKE = {"count": 1, "input": 16, "outputs": 1, "seed": 0}

# Case, value, unit, and what else is known of it.
Found = tuple[str, float, str, dict[str, Any]]


class Rig:
    """Starts at once what the cells need and waits until it is ready; what fails is said and left out."""

    def __init__(self, cells: Sequence[Cell], options: Options, deadline: float) -> None:
        self._options = options
        self._deadline = deadline  # of time.monotonic(): nothing is waited for beyond it
        self._engines: dict[tuple[str, str], EngineProcess] = {}
        self._servers: dict[tuple[str, str], Server] = {}
        self._seed = 0
        try:
            self._start_all(cells)
        except BaseException:
            self.close()
            raise

    def has(self, cell: Cell) -> bool:
        """Whether the engine of a cell is loaded."""
        loaded = self._servers if cell.is_served else self._engines
        return (cell.model, cell.engine_name) in loaded

    def close(self) -> None:
        """Ends all engines."""
        end_all(self._groups())

    def warm_up(self, cell: Cell) -> None:
        """The shapes of a case, so that no first use is in a sample. Raises ProcessFailed."""
        if cell.is_served:
            self._load_server(cell, WARM_SERVER_S)
        elif cell.kind == "decode":
            # How prompts are grouped to steps differs from one time to the next.
            loads = [self._load(cell.size, self._options.num_input, num) for num in (16, 1, 1)]
            self._run(cell, *loads)
        elif cell.kind == "mixed" and self._options.warm_mixed:
            self._run(cell, {"mixed": True})
        elif cell.kind == "prefill":
            self._run(cell, self._load(2, PREFILL_TOKENS, 1))

    def measure(self, cell: Cell) -> list[Found]:
        """One sample of a cell; of a server also the time to the first token. Raises ProcessFailed."""
        if cell.is_served:
            return self._serve(cell)
        if cell.kind == "decode":
            return [self._decode(cell)]
        if cell.kind == "mixed":
            (found,) = self._run(cell, {"mixed": True})
            return [(cell.case, found["output_tokens"] / found["seconds"], "tok/s", found)]
        (found,) = self._run(cell, self._load(PREFILL_PROMPTS, PREFILL_TOKENS, 1))
        return [(cell.case, found["input_tokens"] / found["seconds"], "tok/s", found)]

    def _decode(self, cell: Cell) -> Found:
        num_input, num_output = self._options.num_input, self._options.num_output
        first, whole = self._run(
            cell,
            self._load(cell.size, num_input, 1),
            self._load(cell.size, num_input, num_output),
        )
        step_ms = (whole["seconds"] - first["seconds"]) / (num_output - 1) * 1e3
        details = {"first_s": first["seconds"], "whole_s": whole["seconds"]}
        return cell.case, step_ms, "ms/token", details

    def _serve(self, cell: Cell) -> list[Found]:
        found = self._load_server(cell, self._options.seconds)
        if not found["completed"]:
            raise ProcessFailed(f"{cell.engine}: nothing was completed in the window")
        return [
            (cell.case, found["tok_s"], "tok/s", found),
            (f"first token {cell.size}", found["first_ms"], "ms", {}),
        ]

    def _load_server(self, cell: Cell, seconds: float) -> dict[str, Any]:
        """What peers/load.py says of a window of so many seconds. Raises ProcessFailed."""
        server = self._servers[cell.model, cell.engine_name]
        self._seed += 1
        command = [sys.executable, "-m", "peers.load", server.targets[cell.engine]]
        command += ["--model", server.model, "--concurrency", str(cell.size)]
        command += ["--input", str(SERVE_TOKENS), "--output", str(SERVE_TOKENS)]
        command += ["--seconds", str(seconds), "--seed", str(self._seed)]
        with only(server.group, self._may_freeze()):
            done = subprocess.run(command, capture_output=True, text=True, cwd=BENCHMARKS)
        if done.returncode != 0:
            raise ProcessFailed(f"{cell.engine}: {done.stderr.strip()[-600:]}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def _run(self, cell: Cell, *requests: dict[str, Any]) -> list[dict[str, Any]]:
        process = self._engines[cell.model, cell.engine]
        with only(process, self._may_freeze()):
            process.ask(WAKE, self._patience_s())
            return [process.ask(request, self._patience_s()) for request in requests]

    def _patience_s(self) -> float:
        return max(0.0, min(self._options.patience, self._deadline - time.monotonic()))

    def _load(self, count: int, num_input: int, num_output: int) -> dict[str, Any]:
        self._seed += 1
        return {"count": count, "input": num_input, "outputs": num_output, "seed": self._seed}

    def _groups(self) -> list[Group]:
        return [*self._engines.values(), *(server.group for server in self._servers.values())]

    def _may_freeze(self) -> list[Group]:
        """Not Pillion: it takes no processor time while it waits, and its launcher watches its actors."""
        return [group for group in self._groups() if not group.name.startswith("pillion")]

    def _start_all(self, cells: Sequence[Cell]) -> None:
        base = Path(tempfile.gettempdir()) / "pillion-vs-peers"
        needed = dict.fromkeys((cell.model, cell.engine_name, cell.is_served) for cell in cells)
        for model, name, is_served in needed:
            self._start(model, name, write_model(model, base), is_served)
        for key, process in list(self._engines.items()):
            if not _comes_up(process, partial(self._ready, process)):
                self._engines.pop(key)
        for key, server in list(self._servers.items()):
            if not _comes_up(server.group, partial(self._healthy, server)):
                self._servers.pop(key)

    def _ready(self, process: EngineProcess) -> dict[str, Any]:
        return process.read(self._patience_s())

    def _healthy(self, server: Server) -> None:
        server.wait_ready(self._patience_s())

    def _start(self, model: str, name: str, folder: Path, is_served: bool) -> None:
        options = self._options
        kv_tokens = options.kv_tokens.get(name, options.kv_tokens.get(""))
        shape = SHAPES[model]
        kv_bytes = None if kv_tokens is None else shape.kv_bytes(kv_tokens)
        setting = Setting(folder, shape.max_model_len, options.device, kv_tokens, kv_bytes)
        site = options.sites.get(name)
        if is_served:
            log = options.out / f"{name}-{model}-server.log"
            self._servers[model, name] = start_server(name, setting, site, log)
            return
        script = options.scripts.get(name)
        command = [script] if script else ["-m", "peers.child", name]
        fields = json.dumps({**asdict(setting), "folder": str(folder)})
        self._engines[model, name] = EngineProcess(
            f"{name} {model}",
            [sys.executable, *command, "--setting", fields],
            site,
            options.out / f"{name}-{model}.log",
        )


def _comes_up(group: Group, wait: Callable[[], dict[str, Any] | None]) -> bool:
    try:
        found = wait()
    except ProcessFailed as error:
        print(f"{group.name}: not measured: {error}", flush=True)
        group.end()
        return False
    version = f" (version {found['version']})" if found else ""
    seconds = time.monotonic() - group.started
    print(f"{group.name}{version}: ready after {seconds:.1f} s", flush=True)
    return True
