"""Clients of all kinds at a real daemon whose text edge is killed: they notice a pause and nothing else."""

import asyncio
import http.client
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pillion import AsyncClient, Client, SamplingParams
from pillion.runtime.config import EngineConfig
from pillion.runtime.daemon import DaemonProcess, locate_model, start_daemon

pytestmark = pytest.mark.model

START_DEADLINE_S = 120.0
DEADLINE_S = 60.0
# A request that went on to the end of the context would take longer.
SOON_S = 8.0
PROMPT = "Once upon a time there was a"
GREEDY = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True, logprobs=1)


@dataclass(frozen=True)
class Served:
    """A daemon, and how to end its text edge."""

    daemon: DaemonProcess
    http: Path

    def kill_text_edge(self) -> None:
        with Client(self.daemon.directory.client_socket) as client:
            (edge,) = (actor for actor in client.status().actors if actor.name == "detokenizer")
        assert edge.pid is not None
        os.kill(edge.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def served(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("r")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PILLION_RUNTIME_DIR", str(root))
        config = EngineConfig(
            model=str(smollm2_path),
            served_model_name="smollm2",
            name="dying",
            dtype="float32",
            max_model_len=2048,
            kv_cache_bytes=256 << 20,
            max_restarts=100,
            http_uds=str(root / "h.sock"),
        )
        daemon = start_daemon(locate_model(config, progress=False), private=True)
        try:
            daemon.wait_ready(START_DEADLINE_S)
            yield Served(daemon, root / "h.sock")
        finally:
            daemon.stop()
            daemon.close()


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    with Client(served.daemon.directory.client_socket) as client:
        yield client


def test_a_stream(served: Served, client: Client) -> None:
    whole = client.generate(PROMPT, GREEDY).outputs[0]
    stream = client.generate(PROMPT, GREEDY, stream=True)
    for number, _ in enumerate(stream):
        if number in (3, 12):
            served.kill_text_edge()
    got = stream.output.outputs[0]
    assert (got.text, got.token_ids) == (whole.text, whole.token_ids)
    assert got.logprobs is not None
    assert whole.logprobs is not None
    assert [list(row) for row in got.logprobs] == [list(row) for row in whole.logprobs]


def test_a_list_with_samples(served: Served, client: Client) -> None:
    params = SamplingParams(n=2, temperature=0.9, seed=11, max_tokens=24, stop=["\n"])
    prompts = [PROMPT, "The sea is", "In the year 1900"]
    whole = client.generate(prompts, params)
    with ThreadPoolExecutor(1) as pool:
        again = pool.submit(client.generate, prompts, params)
        stream = client.generate(PROMPT, GREEDY, stream=True)
        next(stream)
        served.kill_text_edge()
        stream.close()
        got = again.result(DEADLINE_S)
    for one, other in zip(whole, got, strict=True):
        assert [sample.text for sample in one.outputs] == [sample.text for sample in other.outputs]


async def test_asyncio(served: Served) -> None:
    async with AsyncClient(served.daemon.directory.client_socket) as client:
        whole = (await client.generate(PROMPT, GREEDY)).outputs[0].text

        async def text_of(kill_at: int | None) -> str:
            text, number = "", 0
            async for new in await client.generate(PROMPT, GREEDY, stream=True):
                text += new.outputs[0].text
                number += 1
                if number == kill_at:
                    await asyncio.to_thread(served.kill_text_edge)
            return text

        async with asyncio.timeout(DEADLINE_S):
            texts = await asyncio.gather(
                *(text_of(5 if not number else None) for number in range(4))
            )
    assert texts == [whole] * 4


class UnixConnection(http.client.HTTPConnection):
    """HTTP over the gateway's socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=DEADLINE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(DEADLINE_S)
        self.sock.connect(str(self._path))


def test_a_stream_over_http(served: Served, client: Client) -> None:
    whole = client.generate(PROMPT, GREEDY).outputs[0].text
    connection = UnixConnection(served.http)
    body: dict[str, Any] = {
        "model": "smollm2",
        "prompt": PROMPT,
        "temperature": 0,
        "max_tokens": 30,
        "ignore_eos": True,
        "stream": True,
    }
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    response = connection.getresponse()
    assert response.status == 200
    text, number = "", 0
    while line := response.readline():
        if line.startswith(b"data: {"):
            text += json.loads(line[6:])["choices"][0]["text"]
            number += 1
            if number == 4:
                served.kill_text_edge()
    connection.close()
    assert text == whole


def test_a_stream_that_nobody_takes_up_again_is_over(served: Served, client: Client) -> None:
    endless = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    stream = client.generate(PROMPT, endless, stream=True)
    next(stream)
    served.kill_text_edge()
    stream.close()
    assert client.generate("a", SamplingParams(max_tokens=1)).finished
    deadline = time.monotonic() + SOON_S
    while num_open(client):
        assert time.monotonic() < deadline, "waited in vain until the scheduler has nothing open"
        time.sleep(0.1)


def num_open(client: Client) -> int:
    """Sequences that are open at the scheduler."""
    (scheduler,) = (actor for actor in client.status().actors if actor.name == "scheduler")
    return int(scheduler.gauges["open"])
