"""The page before a real launcher and gateway: deaths of actors and of the daemon are seen, and outlived."""

import os
import signal
import socket

import pytest
from browser import Browser
from selenium.webdriver import Chrome

from .conftest import FakeDaemon, StartDaemon

pytestmark = pytest.mark.browser

STOP_DEADLINE_S = 20.0


async def kill_and_see(daemon: FakeDaemon, browser: Browser, actor: str) -> None:
    pid = daemon.wait_actors({actor: "running"})[actor]
    os.kill(pid, signal.SIGKILL)
    await browser.until_text("#deaths li:first-child", f"{actor} (pid {pid}) was killed by SIGKILL")
    row = f"[...document.querySelectorAll('#actors tr')].find(row => row.textContent.startsWith('{actor}'))"
    await browser.until(
        f"the row of {actor} tells of it", f"{row}.lastChild.textContent === '1 killed'"
    )


async def test_the_page_outlives_actors_and_the_daemon(
    start_daemon: StartDaemon, chromium: Chrome
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    first = start_daemon(config={"http": str(port)})
    first.wait_state("ready")
    browser = Browser(chromium)
    await browser.open(f"http://127.0.0.1:{port}/")
    await browser.until_text("#state", "ready")
    assert await browser.run("return document.querySelectorAll('#actors tr').length") == 6
    await kill_and_see(first, browser, "gpu_worker")
    await kill_and_see(first, browser, "gateway")
    first.process.terminate()
    assert first.wait_end(STOP_DEADLINE_S)[0] == 0
    await browser.until_text("#state", "unreachable")
    start_daemon(config={"http": str(port)}).wait_state("ready")
    await browser.until_text("#state", "ready")
    await browser.until_text("#deaths li:first-child", "the daemon was started again")
    await browser.open("about:blank")
