"""The chat as people use it, in a real browser."""

import asyncio

import pytest
from page_rig import PageRig
from selenium.webdriver.common.keys import Keys

pytestmark = pytest.mark.browser


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
