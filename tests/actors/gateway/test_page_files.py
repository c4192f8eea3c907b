"""The files of the page: there, closed to whatever a model may write, and in what is installed."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from gateway_rig import GatewayRig

from pillion.actors.gateway import page_files

ROOT = Path(__file__).parents[3]
FOLDER = Path(page_files.__file__).with_name("page")
NAMES = sorted(path.name for path in FOLDER.iterdir())


async def test_the_page_loads_its_own_files_alone(rig: GatewayRig) -> None:
    answer = await rig.get("/")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    links = re.findall(r'(?:src|href)="([^"]*)"', answer.body.decode())
    assert "page/main.js" in links
    for link in links:
        assert (await rig.get(f"/{link}")).status == 200, link


async def test_modules_import_what_there_is(rig: GatewayRig) -> None:
    for name in NAMES:
        answer = await rig.get(f"/page/{name}")
        assert answer.status == 200
        assert answer.body == (FOLDER / name).read_bytes()
        assert b"//" not in answer.body.replace(b"// ", b"").replace(b"http://www.w3.org", b"")
        for module in re.findall(r'from "\./([^"]*)"', answer.body.decode()):
            assert module in NAMES


async def test_nothing_inline_runs_and_nothing_else_is_asked(rig: GatewayRig) -> None:
    for path in ("/", "/page/main.js"):
        headers = (await rig.get(path)).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"


async def test_no_module_makes_markup_of_text() -> None:
    for path in FOLDER.glob("*.js"):
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", path.read_text()
        )


async def test_other_files_are_not_there(rig: GatewayRig) -> None:
    for name in ("missing.js", "..%2fapp.py", "%2e%2e%2fapp.py", "."):
        answer = await rig.get(f"/page/{name}")
        assert (answer.status, answer.error["code"]) == (404, "not_found"), name


def test_a_wheel_holds_the_page(tmp_path: Path) -> None:
    """Built from a copy: building leaves files behind, which the next wheel would hold too."""
    source = tmp_path / "source"
    for name in ("src", "actors", "kernels", "messages", "runtime"):
        shutil.copytree(ROOT / name, source / name, symlinks=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path)]
    subprocess.run([*build, str(source)], check=True, timeout=120, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    files = zipfile.ZipFile(wheel).namelist()
    folder = "pillion/actors/gateway/page/"
    assert sorted(name for name in files if name.startswith(folder)) == [
        folder + name for name in NAMES
    ]
