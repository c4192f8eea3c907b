"""What chat and live view share: loading, the key, and screens of all kinds."""

import pytest
from page_rig import PageRig, StartPage

pytestmark = pytest.mark.browser


async def test_it_loads_without_a_complaint(page: PageRig) -> None:
    await page.browser.until_text("#state", "ready")
    assert await page.browser.text("#model") == "fake"
    assert await page.browser.run("return document.activeElement.id") == "prompt"
    assert await page.browser.console() == []


async def test_a_key_is_asked_for(start_page: StartPage) -> None:
    page = await start_page(api_key="right")
    await page.browser.until("the key is asked for", "!document.getElementById('key-form').hidden")
    assert page.launcher.num_asked == 0
    for key in ("wrong", "right"):
        await page.browser.until("it waits for a key", "document.activeElement.id === 'key'")
        await page.browser.type("#key", key + "\n")
    await page.browser.until_text("#state", "ready")
    await page.say("word")
    await page.answered("word")


async def test_a_narrow_screen_shows_one_part_at_a_time(page: PageRig) -> None:
    browser = page.browser
    narrow = {"width": 360, "height": 700, "deviceScaleFactor": 1, "mobile": True}
    await browser.emulate("setDeviceMetricsOverride", **narrow)
    try:
        for chosen, other in (("live", "chat"), ("chat", "live")):
            await browser.click(f"#show-{chosen}")
            assert await browser.run(f"return {chosen}.offsetHeight") > 0
            assert await browser.run(f"return {other}.offsetHeight") == 0
            width = "return document.documentElement.scrollWidth"
            assert await browser.run(width) == narrow["width"]
    finally:
        await browser.emulate("clearDeviceMetricsOverride")


async def test_it_is_dark_where_the_reader_wants_that(page: PageRig) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor"
    assert await page.browser.run(ground) == "rgb(246, 247, 249)"
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    await page.browser.emulate("setEmulatedMedia", features=dark)
    try:
        assert await page.browser.run(ground) == "rgb(18, 20, 26)"
    finally:
        await page.browser.emulate("setEmulatedMedia", features=[])
