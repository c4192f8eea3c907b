"""The page as people use it, in a real browser."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from browser import Browser
from gateway_rig import StartRig
from live_launcher import LiveLauncher
from page_rig import PageRig
from selenium.webdriver import Chrome
from selenium.webdriver.common.keys import Keys

pytestmark = pytest.mark.browser

StartPage = Callable[..., Awaitable[PageRig]]


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


async def test_it_loads_without_a_complaint(page: PageRig) -> None:
    await page.browser.until_text("#state", "ready")
    assert await page.browser.text("#model") == "fake"
    assert await page.browser.run("return document.activeElement.id") == "prompt"
    assert await page.browser.console() == []


async def test_an_answer_comes_while_it_is_made_and_can_be_stopped(page: PageRig) -> None:
    await page.say("NEVER ends")
    await page.browser.until_text(".assistant[aria-busy=true] .content", "so far")
    await page.browser.click("#stop")
    await page.edge_sees("cancelled", 1)
    await page.answered("stopped")
    await page.say("go on")
    await page.answered("go on")
    messages = page.edge.requests[-1].messages
    assert messages is not None
    assert [(each["role"], each["content"]) for each in messages] == [
        ("user", "NEVER ends"),
        ("assistant", "so far"),
        ("user", "go on"),
    ]
    assert await page.browser.console() == []


async def test_escape_stops_and_what_was_asked_can_be_changed(page: PageRig) -> None:
    await page.say("MUTE one")
    await page.edge_sees("requests", 1)
    await page.browser.type("body", Keys.ESCAPE)
    await page.edge_sees("cancelled", 1)
    await page.answered("stopped")
    assert await page.browser.run("return document.activeElement.value") == "MUTE one"


async def test_shift_and_enter_begins_a_line(page: PageRig) -> None:
    await page.browser.type("#prompt", "one" + Keys.SHIFT + Keys.ENTER + Keys.SHIFT + "two")
    await page.browser.click("#send")
    await page.answered("one two")
    assert await page.browser.text(".user") == "one\ntwo"


async def test_parameters_reach_the_engine(page: PageRig) -> None:
    await page.browser.click("#parameters summary")
    values = {
        "system": "Be brief.",
        "temperature": "0.5",
        "top_p": "0.9",
        "top_k": "40",
        "min_p": "0.05",
        "max_tokens": "12",
        "seed": "7",
        "repetition_penalty": "1.1",
        "stop": "END",
    }
    for name, value in values.items():
        await page.browser.type(f"[name={name}]", value)
    await page.say("word")
    await page.answered("word")
    request = page.edge.requests[-1]
    assert request.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "word"},
    ]
    params = request.sampling_params
    assert params is not None
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 40, 0.05)
    assert (params.max_tokens, params.seed, params.repetition_penalty) == (12, 7, 1.1)
    assert params.stop == ["END"]
    await page.browser.click("#parameters summary")
    assert await page.browser.text("#parameters-set") == (
        "set: system, temperature, top p, top k, min p, max tokens, seed, repetition penalty, stop"
    )


async def test_what_looks_like_markup_is_shown_as_text(page: PageRig) -> None:
    text = """<img src=x onerror="document.title='caught'"> <b>bold</b> <script>alert(1)</script> &amp; """
    await page.say(text.strip())
    await page.answered("bold")
    assert await page.browser.text(".content") == text
    assert await page.browser.text(".user") == text.strip()
    made = "return document.querySelectorAll('#log :is(img, b, script)').length"
    assert await page.browser.run(made) == 0
    assert await page.browser.run("return document.title") == "Pillion"
    assert await page.browser.console() == []


async def test_reasoning_is_shown_apart(page: PageRig) -> None:
    await page.say("THINK")
    await page.answered("I look.")
    assert await page.browser.text(".reasoning .text") == "Let me."
    assert await page.browser.text(".content") == "I look."


async def test_errors_are_shown_where_they_belong(page: PageRig) -> None:
    await page.say("REFUSE")
    await page.browser.until_text(".assistant .error", "messages is not to its liking")
    await page.browser.run("document.getElementById('prompt').value = ''")
    await page.browser.run("document.querySelector('[name=temperature]').value = '101'")
    await page.say("word")
    await page.browser.until_text(".assistant .error", "temperature must be between")
    await page.browser.until(
        "the field is marked", "document.querySelector('[name=temperature][aria-invalid=true]')"
    )
    await page.browser.run("document.querySelector('[name=temperature]').value = ''")
    await page.browser.click("#send")  # the message is still there
    await page.answered("word")


async def test_an_answer_that_fails_in_the_middle_keeps_what_came(page: PageRig) -> None:
    await page.say("NEVER ends")
    await page.browser.until_text(".assistant[aria-busy=true] .content", "so far")
    await asyncio.to_thread(page.edge.drain)
    await page.browser.until_text(".assistant .error", "the daemon is stopping")
    assert await page.browser.text(".content") == "so far"


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
