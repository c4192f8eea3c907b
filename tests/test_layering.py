"""Who may import whom, and what nobody may use: read from the syntax trees, so nothing escapes by being lazy."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("messages", "kernels", "runtime", "actors")

# Arbitrary code can hide in the data that these read.
UNSAFE_MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "shelve",
    "marshal",
    "joblib",
}
UNSAFE_CALLS = {"eval", "exec"}
HEAVY = {"torch", "transformers", "triton", "safetensors"}
WITHOUT_TORCH = ("scheduler", "kv_manager", "detokenizer", "gateway")
# Where a checkpoint has no tokenizer.json, transformers converts what it has.
CONVERTS_TOKENIZERS = {"actors/detokenizer/tokenizer_files.py"}
ONLY_IMPORTER_OF_ZMQ = "runtime/channels.py"
# What time of day it is, for others to read. Whatever waits or measures takes runtime/clock.py.
TELLS_THE_TIME = {
    "actors/detokenizer/span_exporter.py",
    "actors/detokenizer/template_guard.py",
    "actors/gateway/chat_completions.py",
    "actors/gateway/completions.py",
    "actors/gateway/gateway.py",
    "actors/gateway/metrics_page.py",
    "actors/gateway/responses.py",
    "runtime/bench/report.py",
    "runtime/request_assembly.py",
}
WALL_CLOCKS = {"time.time", "time.time_ns", "time.gmtime", "time.localtime", "datetime.now"}


def sources(*folders: str) -> list[Path]:
    found = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    assert found, f"nothing to check in {folders}"
    return found


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(), name_of(path))))


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports, wherever in the file, with the line."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield module, node.lineno
            yield from ((f"{module}.{alias.name}", node.lineno) for alias in node.names)
        elif (
            isinstance(node, ast.Call)
            and _called(node) in ("import_module", "__import__")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield str(node.args[0].value), node.lineno


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def own_imports(path: Path) -> Iterator[tuple[list[str], int]]:
    """Imports of this project as path parts: ["runtime", "paths"]."""
    for module, line in imports(path):
        parts = module.split(".")
        if parts[0] == "pillion" and len(parts) > 1:
            yield parts[1:], line


def allowed(path: Path, parts: list[str]) -> bool:
    layer, *rest = path.relative_to(ROOT).parts
    target = parts[0]
    if target not in LAYERS:
        return target == "__version__"
    if layer in ("messages", "kernels"):
        return target == layer
    if layer == "runtime":
        return target in ("messages", "runtime")
    own_actor = target == "actors" and parts[1:2] == rest[:1]
    uses_kernels = target == "kernels" and rest[0] == "gpu_worker"
    return target in ("messages", "runtime") or own_actor or uses_kernels


def test_each_layer_imports_only_what_is_below_it() -> None:
    broken = [
        f"{name_of(path)}:{line} imports pillion.{'.'.join(parts)}"
        for path in sources(*LAYERS)
        for parts, line in own_imports(path)
        if not allowed(path, parts)
    ]
    assert broken == []


def test_imports_are_absolute() -> None:
    """A relative import would not see the layers."""
    broken = [
        f"{name_of(path)}:{line}"
        for path in sources(*LAYERS)
        for module, line in imports(path)
        if module.startswith(".")
    ]
    assert broken == []


def test_the_rules_can_fail() -> None:
    """The checker itself: what must be refused is refused."""
    scheduler = ROOT / "actors" / "scheduler" / "scheduler.py"
    worker = ROOT / "actors" / "gpu_worker" / "worker.py"
    assert not allowed(scheduler, ["actors", "kv_manager", "block_pool"])
    assert not allowed(scheduler, ["kernels", "sample"])
    assert not allowed(scheduler, ["actors"])
    assert allowed(scheduler, ["actors", "scheduler", "queues"])
    assert allowed(worker, ["kernels", "sample"])
    assert not allowed(ROOT / "runtime" / "paths.py", ["actors", "scheduler"])
    assert not allowed(ROOT / "messages" / "text.py", ["runtime", "errors"])
    assert not allowed(ROOT / "kernels" / "sample" / "reference.py", ["messages", "ids"])


def test_nothing_depends_on_the_time_of_day() -> None:
    readers = {
        name_of(path)
        for path in sources(*LAYERS)
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and ast.unparse(node) in WALL_CLOCKS
    }
    assert readers == TELLS_THE_TIME


def test_only_channels_import_zmq() -> None:
    importers = {
        name_of(path)
        for path in sources(*LAYERS)
        for module, _ in imports(path)
        if module.split(".")[0] == "zmq"
    }
    assert importers == {ONLY_IMPORTER_OF_ZMQ}


def test_only_the_exporter_imports_a_tracing_library() -> None:
    importers = {
        name_of(path)
        for path in sources(*LAYERS)
        for module, _ in imports(path)
        if module.split(".")[0] in ("opentelemetry", "prometheus_client")
    }
    assert importers == {"actors/detokenizer/span_exporter.py"}


def test_nothing_reads_data_that_can_hold_code() -> None:
    broken = []
    for path in sources(*LAYERS, "src", "benchmarks", "tests"):
        if (
            path.is_relative_to(ROOT / "src" / "pillion")
            and path.parent != ROOT / "src" / "pillion"
        ):
            continue  # the links to the layers
        for module, line in imports(path):
            if module.split(".")[0] in UNSAFE_MODULES:
                broken.append(f"{name_of(path)}:{line} imports {module}")
        for node in nodes(path):
            if isinstance(node, ast.Call):
                if isinstance(node.func, ast.Name) and node.func.id in UNSAFE_CALLS:
                    broken.append(f"{name_of(path)}:{node.lineno} calls {node.func.id}")
                if _called(node) == "load" and _names(node) == "torch" and not _weights_only(node):
                    broken.append(f"{name_of(path)}:{node.lineno} torch.load without weights_only")
    assert broken == []


def _names(node: ast.Call) -> str:
    function = node.func
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return function.value.id
    return ""


def _weights_only(node: ast.Call) -> bool:
    return any(
        keyword.arg == "weights_only"
        and isinstance(keyword.value, ast.Constant)
        and keyword.value.value is True
        for keyword in node.keywords
    )


@pytest.mark.parametrize("folder", ["messages", "runtime", *(f"actors/{a}" for a in WITHOUT_TORCH)])
def test_small_processes_do_not_import_heavy_packages(folder: str) -> None:
    broken = [
        f"{name_of(path)}:{line} imports {module}"
        for path in sources(folder)
        if name_of(path) not in CONVERTS_TOKENIZERS
        for module, line in imports(path)
        if module.split(".")[0] in HEAVY
    ]
    assert broken == []


def test_messages_use_only_msgspec_and_the_standard_library() -> None:
    broken = [
        f"{name_of(path)}:{line} imports {module}"
        for path in sources("messages")
        for module, line in imports(path)
        if module.split(".")[0] in {"numpy", "zmq", "uvloop", "tokenizers", "jinja2"}
    ]
    assert broken == []


def test_the_launcher_names_actors_only_as_strings() -> None:
    for path in sources("runtime"):
        for parts, line in own_imports(path):
            assert parts[0] != "actors", f"{name_of(path)}:{line}"
