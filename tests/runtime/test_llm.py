"""`LLM` over a text edge that is fake, so that no model is needed."""

import asyncio
import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_text_edge import FakeTextEdge
from msgspec.structs import replace

import pillion
from pillion import LLM, SamplingParams
from pillion.runtime import llm as llm_module
from pillion.runtime.config import EngineConfig
from pillion.runtime.errors import (
    ConfigError,
    DaemonUnavailable,
    InvalidRequest,
    PillionError,
    RequestError,
)
from pillion.runtime.paths import RunDir


@dataclass
class FakeDaemonProcess:
    """Stands in for runtime/daemon.py's DaemonProcess."""

    directory: RunDir
    config: EngineConfig
    edge: FakeTextEdge
    error: str | None = None
    calls: list[str] = field(default_factory=list)

    def wait_ready(self, timeout_s: float | None = None) -> None:
        self.calls.append("wait_ready")
        if self.error is not None:
            self.directory.log.write_text("a traceback of it")
            raise PillionError(self.error)

    def stop(self) -> None:
        self.calls.append("stop")
        self.edge.stop()

    def close(self) -> None:
        self.calls.append("close")

    def abandon_after_fork(self) -> None:
        self.calls.append("abandon")


@pytest.fixture
def daemons(
    runtime_root: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[FakeDaemonProcess]]:
    """The daemons that LLM has started."""
    started: list[FakeDaemonProcess] = []

    def locate_model(config: EngineConfig, *, progress: bool) -> EngineConfig:
        return msgspec.structs.replace(config, model_path="/fake")

    def start_daemon(config: EngineConfig, *, private: bool) -> FakeDaemonProcess:
        assert private
        directory = RunDir(runtime_root / config.name)
        directory.create()
        error = "the worker ran out of luck" if config.model == "unlucky" else None
        daemon = FakeDaemonProcess(directory, config, FakeTextEdge(directory.client_socket), error)
        started.append(daemon)
        return daemon

    monkeypatch.setattr(llm_module, "locate_model", locate_model)
    monkeypatch.setattr(llm_module, "start_daemon", start_daemon)
    yield started
    for daemon in started:
        daemon.edge.stop()


@pytest.fixture
def llm(daemons: list[FakeDaemonProcess]) -> Iterator[LLM]:
    with LLM("fake") as llm:
        yield llm


def texts(outputs: list[pillion.RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ("a b", ["a b "]),
        (["a", "b c"], ["a ", "b c "]),
        ([1, 2], ["x xx "]),
        ([[1], [2, 3]], ["x ", "xx xxx "]),
        ({"prompt": "a"}, ["a "]),
        ({"prompt_token_ids": [1]}, ["x "]),
        ([{"prompt": "a"}, {"prompt_token_ids": [1]}], ["a ", "x "]),
        ([], []),
    ],
)
def test_prompts_of_every_form(llm: LLM, prompts: Any, expected: list[str]) -> None:
    outputs = llm.generate(prompts, use_tqdm=False)
    assert texts(outputs) == expected
    assert all(output.prompt_token_ids == [7, 8, 9] for output in outputs)


def test_legacy_token_ids(llm: LLM) -> None:
    assert texts(llm.generate(prompt_token_ids=[[1], [2]], use_tqdm=False)) == ["x ", "xx "]
    assert texts(llm.generate(None, None, [1], False)) == ["x "]


def test_many_prompts_keep_their_order(llm: LLM, daemons: list[FakeDaemonProcess]) -> None:
    prompts = [f"number {index}" for index in range(2000)]
    assert texts(llm.generate(prompts, use_tqdm=False)) == [prompt + " " for prompt in prompts]
    assert daemons[0].edge.most_in_flight <= EngineConfig(model="m").max_queued_requests


def test_sampling_params(llm: LLM, daemons: list[FakeDaemonProcess]) -> None:
    llm.generate("a", use_tqdm=False)
    params = daemons[0].edge.requests[-1].sampling_params
    assert params is not None
    assert replace(params, seed=None) == SamplingParams()
    outputs = llm.generate(["a", "b"], [SamplingParams(n=1), SamplingParams(n=2)], use_tqdm=False)
    assert [len(output.outputs) for output in outputs] == [1, 2]
    assert llm.get_default_sampling_params() == SamplingParams()
    llm.generate(["a", "b"], use_tqdm=False, priority=[5, 6])
    assert [request.priority for request in daemons[0].edge.requests[-2:]] == [5, 6]
    with pytest.raises(InvalidRequest, match="as many as prompts"):
        llm.generate(["a", "b"], priority=[5])


def test_chat(llm: LLM, daemons: list[FakeDaemonProcess]) -> None:
    hello = [{"role": "user", "content": "hello"}]
    assert texts(llm.chat(hello, use_tqdm=False)) == ["hello "]
    assert texts(llm.chat([hello, hello], use_tqdm=False)) == ["hello ", "hello "]
    llm.chat(
        hello,
        use_tqdm=False,
        chat_template="{{ messages }}",
        tools=[{"type": "function"}],
        add_generation_prompt=False,
        continue_final_message=True,
        chat_template_kwargs={"a": 1},
    )
    request = daemons[0].edge.requests[-1]
    assert request.chat_template == "{{ messages }}"
    assert (request.add_generation_prompt, request.continue_final_message) == (False, True)
    assert request.tools == [{"type": "function"}]
    assert request.chat_template_kwargs == {"a": 1}
    assert llm.config.allow_request_templates


def test_a_bad_prompt_among_many(llm: LLM, daemons: list[FakeDaemonProcess]) -> None:
    with pytest.raises(InvalidRequest, match=r"prompt 3: .*liking"):
        llm.generate(["NEVER", "NEVER", "NEVER", "REFUSE"], use_tqdm=False)
    edge = daemons[0].edge
    edge.wait("three cancels", lambda: len(edge.cancelled) == 3)
    num_sent = len(edge.requests)
    with pytest.raises(InvalidRequest, match=r"prompt 1: .*got -1"):
        llm.generate([[1], [-1]], use_tqdm=False)
    assert len(edge.requests) == num_sent


def test_progress(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b"])
    assert "Processed prompts: 100%" in capfd.readouterr().err
    llm.generate(["a", "b"], use_tqdm=False)
    assert capfd.readouterr().err == ""

    class Bar:
        postfix = ""

        def __init__(self, **arguments: Any) -> None:
            self.total = arguments["total"]
            self.steps: list[int] = []
            bars.append(self)

        def update(self, step: int) -> None:
            self.steps.append(step)

        def close(self) -> None:
            self.steps.append(0)

    bars: list[Bar] = []
    llm.generate(["a b", "c"], use_tqdm=Bar)
    assert (bars[0].total, bars[0].steps) == (2, [1, 1, 0])
    assert "tok/s" in bars[0].postfix


def test_the_tokenizer(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    hello = [{"role": "user", "content": "a bc"}]
    assert tokenizer.encode("a bc") == [1, 2]
    assert tokenizer.decode([1, 2]) == "x xx"
    assert tokenizer.decode(3) == "xxx"
    assert tokenizer.apply_chat_template(hello) == [1, 2]
    assert tokenizer.apply_chat_template(hello, tokenize=False, thinking=True) == "x xx"
    assert len(tokenizer) == tokenizer.vocab_size == 1000


def test_what_is_not_supported(llm: LLM) -> None:
    for call in (
        lambda: llm.embed("a"),
        lambda: llm.encode(["a"]),
        lambda: llm.score("a", "b"),
        lambda: llm.classify(["a"]),
    ):
        with pytest.raises(RequestError) as caught:
            call()
        assert caught.value.code == "unsupported"
    with pytest.raises(ConfigError, match="lora_request"):
        llm.generate("a", lora_request=object())  # type: ignore[arg-type]


async def test_inside_a_running_loop(llm: LLM) -> None:
    assert texts(llm.generate("a", use_tqdm=False)) == ["a "]
    outputs = await asyncio.to_thread(llm.generate, "b", use_tqdm=False)
    assert texts(outputs) == ["b "]


def test_shutdown(daemons: list[FakeDaemonProcess]) -> None:
    llm = LLM("fake")
    llm.shutdown()
    llm.shutdown()
    assert daemons[0].calls == ["wait_ready", "stop", "close"]
    with pytest.raises(PillionError, match="was closed"):
        llm.generate("a", use_tqdm=False)


def test_a_dropped_llm_ends_its_daemon(daemons: list[FakeDaemonProcess]) -> None:
    llm = LLM("fake")
    gone = weakref.ref(llm)
    del llm
    assert gone() is None
    assert daemons[0].calls == ["wait_ready", "stop", "close"]


def test_a_daemon_that_does_not_start(daemons: list[FakeDaemonProcess]) -> None:
    with pytest.raises(PillionError, match="ran out of luck") as caught:
        LLM("unlucky")
    assert caught.value.__notes__ == ["The daemon's log ends so:\na traceback of it"]
    assert daemons[0].calls == ["wait_ready", "stop", "close"]
    assert not daemons[0].directory.root.exists()


def test_a_daemon_that_dies(llm: LLM, daemons: list[FakeDaemonProcess]) -> None:
    daemons[0].directory.log.write_text("x" * 9000 + "the last word\n")
    with pytest.raises(DaemonUnavailable) as caught:
        llm.generate(["MUTE", "HANGUP"], use_tqdm=False)
    (note,) = caught.value.__notes__
    assert note.endswith("xthe last word")
    assert len(note) < 5000


def test_arguments_reach_the_configuration(daemons: list[FakeDaemonProcess]) -> None:
    with pytest.warns(DeprecationWarning, match="use_v2_block_manager") as caught:
        llm = LLM("fake", max_model_len=64, gpu_memory_utilization=0.4, use_v2_block_manager=True)
    assert caught[0].filename == __file__
    llm.shutdown()
    assert (llm.config.max_model_len, llm.config.memory_fraction) == (64, 0.4)
    assert llm.config.name.startswith(f"llm-{os.getpid()}-")
    with pytest.raises(ConfigError, match="tensor_parallel_size=2"):
        LLM("fake", tensor_parallel_size=2)
    with pytest.raises(TypeError, match="did you mean max_model_len"):
        LLM("fake", max_modellen=2)
    assert len(daemons) == 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_leaves_the_daemon_alone(llm: LLM, daemons: list[FakeDaemonProcess]) -> None:
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:  # nothing of pytest may run in the child
        try:
            (text,) = texts(llm.generate("from the child", use_tqdm=False))
            llm.shutdown()
            said = f"{text}|{' '.join(daemons[0].calls)}".encode()
        except BaseException as error:
            said = repr(error).encode()
        finally:
            os.write(write_fd, said)
            os._exit(0)
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as pipe:
        assert pipe.read() == b"from the child |wait_ready abandon"
    os.waitpid(pid, 0)
    assert texts(llm.generate("parent", use_tqdm=False)) == ["parent "]
