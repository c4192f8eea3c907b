"""The live view as it moves, in a real browser."""

import pytest
from page_rig import PageRig

pytestmark = pytest.mark.browser


async def test_the_live_view_moves(page: PageRig) -> None:
    browser, launcher = page.browser, page.launcher
    await browser.until(
        "the actors are there", "document.querySelectorAll('#actors tr').length === 3"
    )
    launcher.running = 3
    launcher.generated_per_s = 61.5
    for chart, name, value in (
        (1, "generated", "61.5"),
        (3, "running", "3"),
        (4, "used", "20"),
        (5, "execute", "4"),
        (6, "worker", "64"),
    ):
        figure = f"#charts figure:nth-child({chart})"
        shown = f"document.querySelector({figure + ' svg'!r}).ariaLabel.includes('{name} {value}')"
        await browser.until(f"{name} is {value}", shown)
        await browser.until(
            f"{name} is drawn", f"document.querySelector({figure + ' path.area'!r})"
        )
    labels = "return [...document.querySelectorAll('#charts figure:first-child text')].map(each => each.textContent)"
    assert await browser.run(labels) == [
        *("0", "50", "100"),
        *("now", "−12 s", "−24 s", "−36 s", "−48 s", "−60 s"),
    ]
    assert await browser.console() == []


async def test_a_chart_tells_of_the_moment_that_is_pointed_at(page: PageRig) -> None:
    browser, value = page.browser, "#charts figure:first-child .entry b"
    await browser.until_text(value, "0")
    page.launcher.generated_per_s = 30.0
    await browser.until_text(value, "30")
    point = "document.querySelector('#charts svg').dispatchEvent(new PointerEvent({!r}, {{clientX: 0}}))"
    await browser.run(point.format("pointermove"))
    assert await browser.text(value) == "0", "the earliest is the nearest to the left edge"
    assert await browser.run("return document.querySelectorAll('line.pointer').length") == 1
    await browser.run(point.format("pointerleave"))
    assert await browser.text(value) == "30"


async def test_a_restart_of_an_actor_is_shown_with_its_reason(page: PageRig) -> None:
    browser, launcher = page.browser, page.launcher
    await browser.until_text("#state", "ready")
    launcher.state, launcher.not_ready = "recovering", "recovering gpu_worker"
    launcher.worker_restarts = {"killed": 1}
    await browser.until_text("#state", "recovering")
    assert await browser.text("#notice") == "recovering gpu_worker"
    await browser.until_text("#deaths li", "gpu_worker (pid 5) was killed by SIGKILL")
    assert await browser.text("#actors tr:last-child td:last-child") == "1 killed"
    assert await browser.run("return document.querySelectorAll('line.mark').length") == 6


async def test_it_outlives_the_daemon(page: PageRig) -> None:
    await page.browser.until_text("#state", "ready")
    await page.stop_serving()
    await page.browser.until_text("#state", "unreachable")
    await page.say("lost")
    await page.browser.until_text(".assistant .error", "cannot be reached")
    page.launcher.uptime_s = 1.0
    await page.serve()
    await page.browser.until_text("#state", "ready")
    assert "started again" in await page.browser.text("#deaths li")
    await page.browser.click("#send")
    await page.answered("lost")
