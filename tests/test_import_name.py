"""The import name is `pillion` and the folders lie at the top of the checkout: two rules keep that sound."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("runtime", "actors", "messages", "kernels")


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_top_folders_are_namespace_packages(folder: str) -> None:
    """With an __init__.py, our kernels/ would shadow the package of that name in a checkout's root."""
    assert not (ROOT / folder / "__init__.py").exists()


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_package_holds_relative_links(folder: str) -> None:
    link = ROOT / "src" / "pillion" / folder
    assert link.is_symlink()
    assert link.readlink() == Path("..") / ".." / folder


def run_python(*arguments: str, cwd: Path) -> str:
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_running_the_package_removes_the_working_directory_from_the_path() -> None:
    script = "import runpy, sys; runpy.run_module('pillion', run_name='checked'); print(sys.path)"
    assert repr(str(ROOT)) not in run_python("-c", script, cwd=ROOT)
    # The same through -m, as users run it.
    assert "commands:" in run_python("-m", "pillion", "--help", cwd=ROOT)


def test_our_kernels_do_not_shadow_another_package_of_that_name(tmp_path: Path) -> None:
    """A regular package wins over our namespace folder even when the checkout comes first on the path."""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").write_text("foreign = True\n")
    script = "import sys; sys.path[:0] = [sys.argv[1], sys.argv[2]]; import kernels; print(kernels.foreign)"
    assert run_python("-c", script, str(ROOT), str(tmp_path), cwd=tmp_path).strip() == "True"


def test_importing_pillion_imports_nothing_else() -> None:
    script = (
        "import sys; before = set(sys.modules); import pillion; "
        "new = {name.split('.')[0] for name in set(sys.modules) - before}; "
        "print(new - set(sys.stdlib_module_names))"
    )
    assert run_python("-c", script, cwd=ROOT).strip() == "{'pillion'}"


def test_public_names_come_from_their_homes() -> None:
    script = (
        "import pillion\n"
        "for name in pillion.__all__: getattr(pillion, name)\n"
        "try: pillion.nonsense\n"
        "except AttributeError as error: print(error)\n"
    )
    out = run_python("-c", script, cwd=ROOT)
    assert out.strip() == "module 'pillion' has no attribute 'nonsense'"
