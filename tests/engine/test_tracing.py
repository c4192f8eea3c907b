"""Traces of a daemon at a collector that speaks OTLP; the worker is fake where nothing else is said."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from http_client import HttpClient
from otlp_collector import OtlpCollector, Span
from ring_daemon import RingDaemon, StartRing, until

from pillion import LLM, AsyncClient, SamplingParams
from pillion.runtime.proc_files import pids_with_argument

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
HEADER = f"00-{TRACE}-{PARENT}-01"
SERVER_KIND = 2
PHASES = ["admission", "queue", "prefill", "decode"]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpCollector]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    with OtlpCollector() as collector:
        yield collector


async def complete(daemon: RingDaemon, headers: dict[str, str], **fields: object) -> int:
    client = await HttpClient.connect(daemon.http)
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5, **fields}
    answer = await client.ask("POST", "/v1/chat/completions", body, headers)
    client.hang_up()
    return answer.status


def has_protobuf(pid: int | None) -> bool:
    """Whether the process has loaded what OTLP is written with."""
    return "/google/_upb/" in Path(f"/proc/{pid}/maps").read_text()


def children(collector: OtlpCollector, span: Span) -> list[Span]:
    found = [each for each in collector.spans if each.parent_id == span.span_id]
    return sorted(found, key=lambda each: each.start_ns)


@pytest.mark.model
async def test_a_request_is_traced_from_its_header_to_its_phases(
    start_ring: StartRing, collector: OtlpCollector
) -> None:
    daemon = start_ring(otlp_endpoint=collector.url)
    before_ns = time.time_ns()
    headers = {"traceparent": HEADER, "x-request-id": "mine"}
    assert await complete(daemon, headers, seed=7, ignore_eos=True) == 200
    assert await complete(daemon, {"traceparent": HEADER}, temperature=-1) == 400
    assert await complete(daemon, {}, max_tokens=2) == 200
    await until("all is exported", lambda: len(collector.named("POST /v1/chat/completions")) == 3)
    served, refused, rootless = collector.named("POST /v1/chat/completions")
    assert (served.trace_id, served.parent_id, served.kind) == (TRACE, PARENT, SERVER_KIND)
    assert served.attributes["http.response.status_code"] == 200
    assert served.attributes["pillion.http_request_id"] == "mine"
    assert refused.attributes["http.response.status_code"] == 400
    assert children(collector, refused) == []
    assert rootless.parent_id == ""
    assert rootless.trace_id != TRACE
    model = daemon.status().model
    (request,) = children(collector, served)
    assert request.name == f"chat {model}"
    assert request.resource["service.name"] == "pillion"
    attributes = request.attributes
    assert attributes["gen_ai.request.seed"] == 7
    assert attributes["gen_ai.usage.output_tokens"] == 5
    assert attributes["gen_ai.response.finish_reasons"] == ["length"]
    assert attributes["gen_ai.usage.input_tokens"] > 5
    phases = children(collector, request)
    assert [phase.name for phase in phases] == PHASES
    borders = [request.start_ns, *(phase.end_ns for phase in phases)]
    assert [phase.start_ns for phase in phases] == borders[:-1]
    assert borders == sorted(borders)
    assert borders[-1] == request.end_ns
    assert [name for name, actor in daemon.actors().items() if has_protobuf(actor.pid)] == [
        "detokenizer"
    ]
    # One clock all the way: the server's span has the request's within it.
    assert before_ns <= served.start_ns <= request.start_ns
    assert request.end_ns <= served.end_ns <= time.time_ns()


@pytest.mark.model
async def test_a_client_brings_its_trace_and_decides_on_it(
    start_ring: StartRing, collector: OtlpCollector
) -> None:
    daemon = start_ring(otlp_endpoint=collector.url)
    params = SamplingParams(max_tokens=3)
    async with AsyncClient(daemon.directory.client_socket) as client:
        await client.generate("unsampled", params, traceparent=f"00-{TRACE}-{PARENT}-00")
        await client.generate("malformed", params, traceparent="00-nonsense")
        await client.generate("sampled", params, traceparent=HEADER)
    name = f"text_completion {daemon.status().model}"
    await until("they are exported", lambda: len(collector.named(name)) == 2)
    own, theirs = collector.named(name)
    assert own.parent_id == ""
    assert own.trace_id != TRACE
    assert (theirs.trace_id, theirs.parent_id) == (TRACE, PARENT)


@pytest.mark.model
async def test_without_a_collector_nobody_pays(start_ring: StartRing) -> None:
    daemon = start_ring()
    assert await complete(daemon, {"traceparent": HEADER}) == 200
    pids = pids_with_argument(daemon.directory.argument)
    assert len(pids) >= 5
    assert not any(has_protobuf(pid) for pid in pids)


@pytest.mark.model
async def test_a_collector_that_is_away_delays_nobody(start_ring: StartRing) -> None:
    with OtlpCollector() as gone:
        url = gone.url
    daemon = start_ring(otlp_endpoint=url)
    for _ in range(3):
        assert await complete(daemon, {}) == 200
    daemon.terminate()
    assert daemon.process.wait(10) == 0


@pytest.mark.model
async def test_the_real_workers_step_lies_in_its_prefill(
    smollm2_path: Path,
    collector: OtlpCollector,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PILLION_RUNTIME_DIR", str(tmp_path))
    settings = {"max_model_len": 256, "max_num_seqs": 4, "num_kv_blocks": 64, "cpu_threads": 1}
    with LLM(str(smollm2_path), device="cpu", otlp_endpoint=collector.url, **settings) as llm:
        params = SamplingParams(max_tokens=4, ignore_eos=True, n=2)
        llm.generate("Once upon a time", params, use_tqdm=False)
        await until("it is exported", lambda: len(collector.named("step")) == 1)
    (step,) = collector.named("step")
    (request,) = (span for span in collector.spans if span.name.startswith("text_completion"))
    prefill = children(collector, request)[PHASES.index("prefill")]
    assert step.parent_id == prefill.span_id
    assert prefill.start_ns <= step.start_ns < step.end_ns <= prefill.end_ns
