"""The client for threads against a text edge that answers well, badly, late or not at all."""

import gc
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fake_text_edge import DEADLINE_S, FakeTextEdge

from pillion.messages.sampling import SamplingParams
from pillion.runtime import client_requests, open_answer
from pillion.runtime.client import Client
from pillion.runtime.errors import DaemonUnavailable, InvalidRequest, RequestError
from pillion.runtime.link_options import LinkOptions
from pillion.runtime.outputs import Logprob, RequestOutput


@pytest.fixture
def edge(runtime_root: Path) -> Iterator[FakeTextEdge]:
    (runtime_root / "default").mkdir()
    edge = FakeTextEdge(runtime_root / "default" / "client.sock")
    yield edge
    edge.stop()


@pytest.fixture
def client(edge: FakeTextEdge) -> Iterator[Client]:
    with Client() as client:
        yield client


def text_of(output: RequestOutput) -> str:
    return output.outputs[0].text


def test_generates_from_text_ids_and_messages(client: Client) -> None:
    output = client.generate("one two three")
    assert output.finished
    assert output.outputs[0].text == "one two three "
    assert output.outputs[0].token_ids == [3, 3, 5]
    assert output.outputs[0].finish_reason == "stop"
    assert (output.prompt, output.num_cached_tokens, output.cache_miss_reason) == (
        "one two three",
        2,
        "short",
    )
    assert text_of(client.generate([1, 2])) == "x xx "
    assert text_of(client.generate(prompt_token_ids=[1, 2])) == "x xx "
    assert text_of(client.generate({"prompt_token_ids": [3]})) == "xxx "
    assert text_of(client.chat([{"role": "user", "content": "hello"}])) == "hello "


def test_streams_what_is_new(client: Client) -> None:
    with client.generate("a bc def", stream=True, return_prompt_token_ids=True) as stream:
        news = list(stream)
    assert [new.outputs[0].text for new in news] == ["a ", "bc ", "def "]
    assert [new.outputs[0].token_ids for new in news] == [[1], [2], [3]]
    assert [new.finished for new in news] == [False, False, True]
    assert news[0].prompt_token_ids == [7, 8, 9]
    assert stream.output.outputs[0].text == "a bc def "
    assert stream.output.prompt_token_ids == [7, 8, 9]
    metrics = stream.output.metrics
    assert metrics is not None
    assert metrics.scheduled_s == pytest.approx(0.001)
    assert metrics.first_token_s is not None
    assert metrics.finished_s is not None
    assert metrics.first_token_s <= metrics.finished_s


def test_a_connected_client_sends_without_looking_for_a_connection(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(LinkOptions, "patience")
    assert client.generate("a").outputs[0].text == "a "


def test_an_answer_is_begun_when_its_request_has_left(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = []
    connection = client._link.connected()
    submit, assembly = connection.submit, open_answer.RequestAssembly

    def submitted(*args: Any) -> None:
        order.append("submitted")
        submit(*args)

    def begun(*args: Any) -> open_answer.RequestAssembly:
        order.append("begun")
        return assembly(*args)

    monkeypatch.setattr(connection, "submit", submitted)
    monkeypatch.setattr(open_answer, "RequestAssembly", begun)
    assert client.generate("a").outputs[0].text == "a "
    assert order == ["submitted", "begun"]


def test_samples_come_apart(client: Client) -> None:
    output = client.generate("a b", SamplingParams(n=3))
    assert [sample.text for sample in output.outputs] == ["a b "] * 3
    assert [sample.index for sample in output.outputs] == [0, 1, 2]


def test_logprobs_are_dicts_per_token(client: Client) -> None:
    (sample,) = client.generate("a bcd", SamplingParams(logprobs=1)).outputs
    assert sample.logprobs == [
        {1: Logprob(-1.5, 2, "a"), 0: Logprob(-0.5, 1, "zero")},
        {3: Logprob(-1.5, 2, "bcd"), 0: Logprob(-0.5, 1, "zero")},
    ]
    assert sample.cumulative_logprob == pytest.approx(-3.0)
    assert client.generate("a").outputs[0].cumulative_logprob is None


def test_a_list_keeps_its_order(client: Client, edge: FakeTextEdge) -> None:
    prompts = [f"prompt number {index}" for index in range(1000)]
    outputs = client.generate(prompts)
    assert [text_of(output) for output in outputs] == [prompt + " " for prompt in prompts]
    assert [output.prompt for output in outputs] == prompts
    assert not any(request.stream for request in edge.requests)
    assert client.generate([]) == []


def test_a_list_takes_its_own_parameters(client: Client) -> None:
    outputs = client.generate(["a", "b"], [SamplingParams(n=1), SamplingParams(n=2)])
    assert [len(output.outputs) for output in outputs] == [1, 2]
    with pytest.raises(InvalidRequest, match="as many as prompts"):
        client.generate(["a", "b"], [SamplingParams()])


def test_a_full_daemon_is_asked_again(client: Client, edge: FakeTextEdge) -> None:
    outputs = client.generate(["FULL 7", "FULL 7", *["a"] * 20])
    assert edge.num_refused == 7
    assert [text_of(output) for output in outputs] == ["FULL 7 ", "FULL 7 ", *["a "] * 20]
    edge.num_refused = 0
    with pytest.raises(RequestError) as caught:
        client.generate("FULL 7")
    assert (caught.value.code, caught.value.retry_after_ms) == ("overloaded", 5)


def test_a_bad_prompt_of_a_list_is_named_and_ends_the_others(
    client: Client, edge: FakeTextEdge
) -> None:
    with pytest.raises(InvalidRequest, match=r"prompt 2: .*liking") as caught:
        client.generate(["NEVER", "NEVER", "REFUSE"])
    assert caught.value.param == "prompt"
    edge.wait("two cancels", lambda: len(edge.cancelled) == 2)


def test_a_prompt_that_cannot_be_sent_is_named_before_any_is_sent(
    client: Client, edge: FakeTextEdge
) -> None:
    with pytest.raises(InvalidRequest, match="prompt 1: prompt_token_ids takes token ids from 0"):
        client.generate([[1], [2**40]])
    bad = SamplingParams()
    bad.temperature = -1.0
    with pytest.raises(InvalidRequest, match="prompt 1: temperature must be between"):
        client.generate(["a", "b"], [SamplingParams(), bad])
    with pytest.raises(InvalidRequest, match="messages holds something that cannot be sent"):
        client.chat([{"role": "user", "content": object()}])
    for priority in (10**30, -(10**400)):
        with pytest.raises(InvalidRequest, match="between -2147483647 and 2147483647") as caught:
            client.generate("a", priority=priority)
        assert caught.value.param == "priority"
    assert edge.requests == []
    assert text_of(client.generate("still fine")) == "still fine "


def test_a_refusal_names_the_field(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="liking") as caught:
        client.generate("REFUSE")
    assert (caught.value.code, caught.value.param) == ("invalid_request", "prompt")


def test_a_sample_that_broke(client: Client) -> None:
    with pytest.raises(RequestError, match="NaN") as caught:
        client.generate("BREAK")
    assert caught.value.code == "internal"
    broken, fine = client.generate(["BREAK", "a"])
    assert broken.outputs[0].finish_reason == "error"
    assert broken.outputs[0].error == "a NaN in the logits"
    assert broken.outputs[0].text == "until here"
    assert text_of(fine) == "a "


@pytest.mark.parametrize("stream", [False, True])
def test_a_sample_that_its_request_breaks(client: Client, stream: bool) -> None:
    with pytest.raises(InvalidRequest, match="too many items") as caught:
        list(client.generate("OUTGROW", stream=stream))
    assert (caught.value.code, caught.value.param) == ("invalid_request", "structured_outputs")


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("GAP", "tokens of sample 0 are missing: the chunk starts at token 5 and 1 tokens"),
        ("TWICE", "tokens of sample 0 came twice"),
        ("STRANGER", "answered sample 7 of 1"),
    ],
)
def test_chunks_that_do_not_join_are_an_error(client: Client, prompt: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        client.generate(prompt)
    with pytest.raises(RequestError, match=f"prompt 1: .*{message}"):
        client.generate(["a", prompt])
    assert text_of(client.generate("the next one")) == "the next one "


def test_leaving_a_stream_cancels(client: Client, edge: FakeTextEdge) -> None:
    for new in client.generate("NEVER", stream=True):
        assert new.outputs[0].text == "so far"
        break
    edge.wait("the cancel of a loop that was left", lambda: edge.cancelled == ["0"])
    with client.generate("NEVER", stream=True) as stream:
        next(stream)
    edge.wait("the cancel of a with block", lambda: edge.cancelled == ["0", "1"])
    assert list(stream) == []
    stream = client.generate("NEVER", stream=True)
    stream.close()
    edge.wait("the cancel of a closed stream", lambda: edge.cancelled == ["0", "1", "2"])
    assert text_of(client.generate("and on")) == "and on "


def test_a_finished_stream_is_not_cancelled(client: Client, edge: FakeTextEdge) -> None:
    list(client.generate("a b", stream=True))
    with pytest.raises(RequestError):
        list(client.generate("REFUSE", stream=True))
    gc.collect()
    client.generate("NEVER", stream=True).close()
    edge.wait("the last cancel", lambda: bool(edge.cancelled))
    assert edge.cancelled == ["2"]


def test_threads_share_a_client(client: Client, edge: FakeTextEdge) -> None:
    def work(number: int) -> None:
        for round_number in range(20):
            prompt = f"thread {number} round {round_number}"
            news = client.generate(prompt, stream=True)
            assert "".join(new.outputs[0].text for new in news) == prompt + " "

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    assert len(edge.hellos) == 1
    assert len(edge.requests) == 320


def test_many_streams_at_once(client: Client, edge: FakeTextEdge) -> None:
    streams = [client.generate(f"MUTE {index}", stream=True) for index in range(100)]
    edge.wait("a hundred requests", lambda: len(edge.requests) == 100)
    assert edge.most_in_flight == 100
    assert text_of(client.generate("meanwhile")) == "meanwhile "
    for stream in streams:
        stream.close()
    edge.wait("a hundred cancels", lambda: len(edge.cancelled) == 100)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("NOISE", "does not understand"),
        ("HUGE", "a frame of 4294967295 bytes"),
    ],
)
def test_nonsense_from_the_daemon_ends_every_request_at_once(
    client: Client, edge: FakeTextEdge, prompt: str, message: str
) -> None:
    endless = client.generate("NEVER", stream=True)
    next(endless)
    with ThreadPoolExecutor(3) as pool:
        batch = pool.submit(client.generate, ["MUTE", "MUTE"])
        edge.wait("the batch", lambda: len(edge.requests) == 3)
        with pytest.raises(DaemonUnavailable, match=message):
            client.generate(prompt)
        with pytest.raises(DaemonUnavailable, match=message):
            batch.result(DEADLINE_S)
    with pytest.raises(DaemonUnavailable, match=message):
        next(endless)
    # The next call connects again.
    assert text_of(client.generate("back")) == "back "
    assert len(edge.hellos) == 2


def test_the_end_of_the_daemon_ends_every_request(client: Client, edge: FakeTextEdge) -> None:
    stream = client.generate("MUTE", stream=True)
    edge.stop()
    with pytest.raises(DaemonUnavailable, match=r"closed the connection|was lost"):
        next(stream)
    with pytest.raises(DaemonUnavailable, match="pillion serve MODEL"):
        client.generate("a")


def test_closing_the_client_ends_its_requests(client: Client, edge: FakeTextEdge) -> None:
    stream = client.generate("MUTE", stream=True)
    edge.wait("the request", lambda: len(edge.requests) == 1)
    threading.Timer(0.05, client.close).start()
    with pytest.raises(DaemonUnavailable, match="the client was closed"):
        next(stream)
    edge.wait("the end of the connection", lambda: edge.num_closed == 1)
    with pytest.raises(DaemonUnavailable, match="was closed"):
        client.generate("a")


def test_a_dropped_client_hangs_up(edge: FakeTextEdge) -> None:
    client = Client()
    assert text_of(client.generate("a")) == "a "
    del client
    gc.collect()
    edge.wait("the end of the connection", lambda: edge.num_closed == 1)


def test_a_stream_keeps_its_client(edge: FakeTextEdge) -> None:
    texts = [new.outputs[0].text for new in Client().generate("a b c", stream=True)]
    assert texts == ["a ", "b ", "c "]


def test_deadlines(client: Client, edge: FakeTextEdge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_requests, "GUARD_S", 0.05)
    start = time.monotonic()
    with pytest.raises(RequestError, match="did not end the request") as caught:
        client.generate("MUTE", timeout=0.05)
    assert caught.value.code == "unavailable"
    with pytest.raises(RequestError, match="did not end the request"):
        client.generate(["a", "MUTE"], timeout=0.05)
    assert time.monotonic() - start < 5
    assert edge.requests[0].deadline_ms == 50
    assert edge.requests[-1].deadline_ms is not None
    assert edge.requests[-1].deadline_ms <= 50
    edge.wait("both cancels", lambda: len(edge.cancelled) == 2)
    with pytest.raises(InvalidRequest, match="timeout must be above 0"):
        client.generate("a", timeout=0)


def test_tokens_and_text(client: Client) -> None:
    assert client.tokenize("a bc") == [1, 2]
    assert client.tokenize(messages=[{"role": "user", "content": "abc"}], tools=[]) == [3]
    assert client.detokenize([1, 2]) == "x xx"
    for wrong in ([1, 1000], [-1], ["a"], "a", [2**40]):
        with pytest.raises(InvalidRequest, match=r"^token_ids ") as refused:
            client.detokenize(wrong)  # type: ignore[arg-type]
        assert refused.value.param == "token_ids"
    with pytest.raises(RequestError, match="only generates") as caught:
        client.embed(["a"])
    assert caught.value.code == "unsupported"
    with pytest.raises(InvalidRequest, match="one text or one conversation"):
        client.tokenize(["a"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no_such"):
        client.tokenize("a", no_such=1)  # type: ignore[call-arg]


def test_wrong_calls(client: Client) -> None:
    with pytest.raises(TypeError, match="unexpected argument 'heat'"):
        client.generate("a", heat=1)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="one prompt"):
        client.generate(["a"], stream=True)  # type: ignore[call-overload]
    with pytest.raises(InvalidRequest, match="exactly one of"):
        client.generate()
    with pytest.raises(InvalidRequest, match="SamplingParams, got dict"):
        client.generate("a", {"temperature": 0})  # type: ignore[call-overload]


def test_options_reach_the_daemon(client: Client, edge: FakeTextEdge) -> None:
    client.generate({"prompt": "a", "cache_salt": "s"}, priority=-3, add_special_tokens=False)
    client.chat(
        [{"role": "user", "content": "a"}],
        add_generation_prompt=False,
        continue_final_message=True,
        tools=[{"type": "function"}],
        chat_template_kwargs={"thinking": True},
    )
    first, second = edge.requests
    assert (first.cache_salt, first.priority, first.add_special_tokens) == ("s", -3, False)
    assert second.tools == [{"type": "function"}]
    assert second.chat_template_kwargs == {"thinking": True}
    assert (second.add_generation_prompt, second.continue_final_message) == (False, True)


@pytest.mark.parametrize(
    ("greeting", "message"),
    [
        ("other version", "version 2 of the client protocol"),
        ("refuse", "the daemon is stopping"),
        ("hang up", "hung up"),
        ("noise", "does not speak Pillion's client protocol"),
        ("silence", r"did not answer within 0\.2 s"),
    ],
)
def test_greetings_that_fail(edge: FakeTextEdge, greeting: str, message: str) -> None:
    edge.greeting = greeting
    with pytest.raises(DaemonUnavailable, match=message):
        Client(connect_timeout=0.2 if greeting == "silence" else DEADLINE_S)


def test_no_daemon(runtime_root: Path) -> None:
    with pytest.raises(DaemonUnavailable, match="pillion serve MODEL --name nobody"):
        Client("nobody")
    with pytest.raises(DaemonUnavailable, match=r"at /.*/s \(there is no socket"):
        Client(runtime_root / "s")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(runtime_root / "dead"))
    with pytest.raises(DaemonUnavailable, match=r"the one that made .* is gone"):
        Client(runtime_root / "dead")


def test_a_socket_path_instead_of_a_name(edge: FakeTextEdge) -> None:
    with Client(edge.path, client_name="me", fairness_key="us") as client:
        assert client.welcome.model_name == "fake"
    assert (edge.hellos[0].client_name, edge.hellos[0].fairness_key) == ("me", "us")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_opens_its_own_connection(client: Client, edge: FakeTextEdge) -> None:
    stream = client.generate("NEVER", stream=True)
    next(stream)
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:  # nothing of pytest may run in the child
        try:
            try:
                next(stream)
                said = b"the parent's stream went on"
            except DaemonUnavailable as error:
                said = str(error).encode()
            said += b"|" + text_of(client.generate("from the child")).encode()
        except BaseException as error:
            said = repr(error).encode()
        finally:
            os.write(write_fd, said)
            os._exit(0)
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(pid, 0)
    assert said == "the connection belongs to the parent process|from the child "
    assert len(edge.hellos) == 2
    # The child's end has cancelled nothing of ours, and our own end is seen.
    assert edge.cancelled == []
    assert text_of(client.generate("parent")) == "parent "
    stream.close()
    edge.wait("our own cancel", lambda: edge.cancelled == ["0"])


def test_dropping_a_stream_while_a_frame_is_sent(client: Client, edge: FakeTextEdge) -> None:
    """A garbage collector may run a stream's destructor on a thread that is just sending."""
    streams = [client.generate("MUTE", stream=True) for _ in range(3)]
    connection = client._link.connected()
    with connection._send_lock:  # as that thread would hold it
        streams.clear()
        assert edge.cancelled == []
    assert text_of(client.generate("the sender's own request")) == "the sender's own request "
    edge.wait("three cancels", lambda: sorted(edge.cancelled) == ["0", "1", "2"])
