"""The dashboard and the alerts ask for metrics that a live daemon exports."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from http_client import HttpClient
from metrics_reader import Page, read_page
from promql import metrics_in
from ring_daemon import StartRing, until

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "pillion.json").read_text())
ALERTS: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())
RULES: list[dict[str, Any]] = [rule for group in ALERTS["groups"] for rule in group["rules"]]
WIDTH = 24
# What the example dashboards in vLLM's repository ask for, but for what Pillion does not have (docs/monitoring.md).
HISTOGRAMS = (
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:time_per_output_token_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:request_inference_time_seconds",
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:request_max_num_generation_tokens",
    "vllm:request_params_n",
    "vllm:request_params_max_tokens",
    "vllm:request_prefill_kv_computed_tokens",
    "vllm:request_num_preemptions",
    "vllm:iteration_tokens_total",
    "http_request_duration_seconds",
)
VLLM_DASHBOARDS = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:num_requests_waiting_by_reason",
    "vllm:engine_sleep_state",
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:prompt_tokens_total",
    "vllm:prompt_tokens_cached_total",
    "vllm:prompt_tokens_by_source_total",
    "vllm:generation_tokens_total",
    "vllm:num_preemptions_total",
    "vllm:request_success_total",
    "vllm:cache_config_info",
    "http_requests_total",
    "process_start_time_seconds",
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_open_fds",
    "process_max_fds",
    *(f"{name}_{part}" for name in HISTOGRAMS for part in ("bucket", "sum", "count")),
}


def expressions() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", []))
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            asked = re.fullmatch(r"label_values\((.*), \w+\)", variable["query"])
            assert asked, variable
            yield asked[1]
    yield from (rule["expr"] for rule in RULES)


def test_names_are_found_in_expressions() -> None:
    for expression, names in (
        ("up == 0", {"up"}),
        (
            'sum by (le, x) (rate(a_total{b="c", d=~"e"}[5m])) / on (x) b:c > 1e3',
            {"a_total", "b:c"},
        ),
        ("histogram_quantile(0.95, sum by (le) (rate(x_bucket[$__rate_interval])))", {"x_bucket"}),
        (
            "time() - min(start_seconds{}) and other unless on () third",
            {"start_seconds", "other", "third"},
        ),
    ):
        assert metrics_in(expression) == names


@pytest.mark.model
async def test_every_metric_that_is_asked_for_is_exported(start_ring: StartRing) -> None:
    daemon = start_ring()
    client = await HttpClient.connect(daemon.http)
    body = {"prompt": "some words", "max_tokens": 3}
    assert (await client.ask("POST", "/v1/completions", body)).status == 200
    await until(
        "it is reported",
        lambda: daemon.actors()["detokenizer"].counters.get("requests_finished") == 1,
    )
    page: Page = read_page((await client.ask("GET", "/metrics")).body.decode())
    client.hang_up()
    asked = set().union(*map(metrics_in, expressions()))
    assert len(asked) > 30
    assert asked - page.names == {"up"}, "which Prometheus itself makes"
    assert page.names >= VLLM_DASHBOARDS
    served = page.by_label("vllm:num_requests_running", "model_name")
    assert served.keys() == {daemon.status().model}
    assert page.sum("vllm:time_to_first_token_seconds_count", engine="0") == 1
    assert page.sum("vllm:request_success_total", finished_reason="length") == 1


def test_the_dashboard_is_one() -> None:
    assert DASHBOARD["schemaVersion"] >= 39
    assert DASHBOARD["title"]
    assert DASHBOARD["id"] is None
    panels = DASHBOARD["panels"]
    ids = [panel["id"] for panel in panels]
    assert len(set(ids)) == len(ids)
    variables = {each["name"]: each["type"] for each in DASHBOARD["templating"]["list"]}
    assert variables["datasource"] == "datasource"
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps([panels, DASHBOARD["templating"]])))
    assert used <= variables.keys()
    for panel in panels:
        place = panel["gridPos"]
        assert 0 <= place["x"] <= WIDTH - place["w"], panel["title"]
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            references = [target["refId"] for target in panel["targets"]]
            assert len(set(references)) == len(references) > 0


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + column, place["y"] + line)
            for column in range(place["w"])
            for line in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_alerts_are_rules() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES) > 0
    for rule in RULES:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"]
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))
