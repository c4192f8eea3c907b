"""The page in a browser, ready to be used."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from browser import Browser
from gateway_rig import StartRig
from live_launcher import LiveLauncher
from page_rig import PageRig, StartPage
from selenium.webdriver import Chrome


@pytest.fixture
async def start_page(start_rig: StartRig, chromium: Chrome) -> AsyncIterator[StartPage]:
    """Opens the page of a gateway with settings of the test's own."""
    async with AsyncExitStack() as stack:

        async def start(**settings: str) -> PageRig:
            rig = await start_rig(**settings)
            launcher = await stack.enter_async_context(LiveLauncher(rig.gateway.run_dir))
            page = PageRig(rig, launcher, Browser(chromium))
            stack.push_async_callback(page.stop_serving)
            await page.serve()
            stack.push_async_callback(page.browser.open, "about:blank")
            await page.open()
            return page

        yield start


@pytest.fixture
async def page(start_page: StartPage) -> PageRig:
    """The page with the usual settings."""
    return await start_page()
