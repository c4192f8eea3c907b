"""A headless Chromium that tests drive from their own event loop, which goes on serving the page meanwhile."""

import asyncio
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By

T = TypeVar("T")

DEADLINE_S = 30.0  # a busy machine draws slowly
_LOOK_AGAIN_S = 0.03
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def start_chromium(profile: Path) -> Chrome:
    """Starts one with a profile of its own; skips the test where there is none."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("needs Chromium: on Debian, apt-get install chromium chromium-driver")
    options = ChromeOptions()
    options.binary_location = chromium
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return Chrome(options=options, service=ChromeService(driver))


class Browser:
    """One tab."""

    def __init__(self, driver: Chrome) -> None:
        self._driver = driver

    async def open(self, url: str) -> None:
        """Loads a page; the console is as if it were new."""
        await self.console()
        await self._do(lambda: self._driver.get(url))

    async def run(self, script: str, *arguments: Any) -> Any:
        """What a function body in JavaScript returns."""
        return await self._do(lambda: self._driver.execute_script(script, *arguments))

    async def until(self, what: str, condition: str) -> None:
        """Waits until an expression in JavaScript is true; fails with its name."""
        deadline = time.monotonic() + DEADLINE_S
        while not await self.run(f"return Boolean({condition})"):
            if time.monotonic() > deadline:
                pytest.fail(f"waited in vain until {what}; console: {await self.console()}")
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def until_text(self, selector: str, text: str) -> None:
        """Waits until the last element of this kind shows this text somewhere."""
        shown = (
            f"[...document.querySelectorAll({selector!r})].at(-1)?.textContent.includes({text!r})"
        )
        await self.until(f"{selector} shows {text!r}", shown)

    async def type(self, selector: str, keys: str) -> None:
        """Presses keys in a field."""
        await self._do(lambda: self._driver.find_element(By.CSS_SELECTOR, selector).send_keys(keys))

    async def click(self, selector: str) -> None:
        await self._do(lambda: self._driver.find_element(By.CSS_SELECTOR, selector).click())

    async def text(self, selector: str) -> str:
        """The text of the last element of this kind."""
        script = "return [...document.querySelectorAll(arguments[0])].at(-1).textContent"
        return str(await self.run(script, selector))

    async def console(self) -> list[str]:
        """What was written there and not yet told."""
        entries = await self._do(lambda: self._driver.get_log("browser"))
        return [entry["message"] for entry in entries]

    async def emulate(self, command: str, **settings: Any) -> None:
        """A command of Chromium's Emulation domain."""
        await self._do(lambda: self._driver.execute_cdp_cmd(f"Emulation.{command}", settings))

    async def _do(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(work)
