"""Models, tokens, probes, keys and metrics."""

import asyncio
import contextlib
from pathlib import Path

import pytest
from gateway_rig import GatewayRig, StartRig

from pillion.actors.gateway.routes import ROUTES
from pillion.runtime.errors import ConfigError


async def test_models(rig: GatewayRig) -> None:
    (model,) = (await rig.get("/v1/models")).json["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == ("fake", "model", 128)
    assert (await rig.get("/v1/models/fake")).json == model
    assert (await rig.get("/v1/models/some/other")).error["code"] == "model_not_found"


async def test_tokens_there_and_back(rig: GatewayRig) -> None:
    answer = await rig.post("/tokenize", {"prompt": "a bc"})
    assert answer.json == {"count": 2, "max_model_len": 100, "tokens": [1, 2]}
    messages = [{"role": "user", "content": "abc"}]
    assert (await rig.post("/tokenize", {"messages": messages})).json["tokens"] == [3]
    assert (await rig.post("/detokenize", {"tokens": [1, 2]})).json == {"prompt": "x xx"}


async def test_a_client_can_tokenize_as_the_model_does(rig: GatewayRig) -> None:
    info = (await rig.get("/tokenizer_info")).json
    assert (info["eos_token"], info["bos_token"]) == ("<end>", None)
    assert info["chat_template"] == "{{ messages }}"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"prompt": [1]}, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "other"}, "model"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [2**31]}, "tokens"),
        ("/detokenize", {"tokens": [10**400]}, "tokens"),
        ("/detokenize", {"tokens": [1, 1000]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens"),
        ("/v1/embeddings", {"input": "a"}, "model"),
        ("/v1/embeddings", {}, "input"),
    ],
)
async def test_complaints_name_the_field(
    rig: GatewayRig, path: str, body: dict[str, object], param: str
) -> None:
    answer = await rig.post(path, body)
    assert answer.status in (400, 404)
    assert answer.error["param"] == param
    assert param in answer.error["message"]
    assert "token_ids" not in answer.error["message"]


async def test_embeddings_are_not_offered(rig: GatewayRig) -> None:
    answer = await rig.post("/v1/embeddings", {"input": ["a", "b"], "model": "fake"})
    assert (answer.status, answer.error["code"]) == (400, "unsupported")
    assert "no embeddings" in answer.error["message"]


async def test_probes(rig: GatewayRig) -> None:
    for path in ("/live", "/ready", "/health"):
        assert (await rig.get(path)).status == 200
    rig.gateway.link.not_ready = "recovering gpu_worker"
    assert (await rig.get("/live")).status == 200
    for path in ("/ready", "/health"):
        answer = await rig.get(path)
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert answer.error["message"] == "recovering gpu_worker"
    rig.gateway.link.not_ready = None
    rig.gateway.link.closed_because = "the daemon is stopping"
    assert (await rig.get("/live")).status == 200
    for path in ("/ready", "/health"):
        answer = await rig.get(path)
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert answer.error["message"] == "the daemon is stopping"
    answer = await rig.chat("word")
    assert (answer.status, answer.error["code"]) == (503, "unavailable")


async def test_a_lost_text_edge_is_told_and_found_again(rig: GatewayRig) -> None:
    assert (await rig.get("/ready")).status == 200
    rig.edge.hang_up_on_all()
    assert (await rig.get("/ready")).status == 200, "it connects again"
    await asyncio.to_thread(rig.edge.stop)
    assert (await rig.get("/ready")).status == 503
    assert (await rig.chat("word")).status == 503
    assert (await rig.get("/live")).status == 200


async def test_wrong_routes_and_methods(rig: GatewayRig) -> None:
    answer = await rig.get("/v2/models")
    assert (answer.status, answer.error["code"]) == (404, "not_found")
    answer = await rig.get("/v1/completions")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert answer.error["code"] == "method_not_allowed"
    client = await rig.client()
    answer = await client.ask("POST", "/v1/models/smollm2")
    assert (answer.status, answer.headers["allow"]) == (405, "GET")
    assert "takes GET, not POST" in answer.error["message"]


async def test_a_slash_behind_a_path_makes_no_difference(rig: GatewayRig) -> None:
    assert (await rig.get("/v1/models/")).json == (await rig.get("/v1/models")).json
    assert (await rig.post("/v1/completions/", {"prompt": "word"})).status == 200
    assert (await rig.get("/")).status == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"HELLO\r\n\r\n",
        b"GET /live HTTP/1.1\r\nno header\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /tokenize HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_what_is_no_http_is_answered_like_any_other_mistake(
    rig: GatewayRig, sent: bytes
) -> None:
    client = await rig.client()
    client.writer.write(sent)
    answer = await client.receive()
    assert (answer.status, answer.error["code"]) == (400, "invalid_request")
    assert await client.reader.read() == b""


async def test_what_is_no_http_does_not_come_into_the_middle_of_an_answer(rig: GatewayRig) -> None:
    client = await rig.client()
    client.send("POST", "/v1/completions", b'{"prompt": "NEVER", "stream": true}')
    assert (await client.receive_head())[0] == 200
    client.writer.write(b"HELLO\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        assert b"HTTP/1.1 400" not in await client.reader.read()


async def test_every_answer_has_an_id_which_the_client_may_choose(rig: GatewayRig) -> None:
    assert len((await rig.get("/live")).headers["x-request-id"]) == 32
    named = await rig.get("/live", {"x-request-id": "mine-1"})
    assert named.headers["x-request-id"] == "mine-1"
    for bad in ("two words", "x" * 129, "ä"):
        assert (await rig.get("/live", {"x-request-id": bad})).headers["x-request-id"] != bad
    for path, status in (("/v2/models", 404), ("/v1/completions", 405)):
        answer = await rig.get(path, {"x-request-id": "mine-2"})
        assert (answer.status, answer.headers["x-request-id"]) == (status, "mine-2")


async def test_keys_guard_every_route_but_the_probes_and_the_files_of_the_page(
    start_rig: StartRig, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("second\n\n third \n")
    rig = await start_rig(api_key="first", api_key_file=str(keys))
    for spec in ROUTES:
        path = spec.path.replace("{model:path}", "fake").replace("{name}", "main.js")
        answer = await (await rig.client()).ask(spec.method, path, b"{}")
        if path in ("/live", "/ready", "/health", "/", "/page/main.js"):
            assert answer.status == 200, path
        else:
            assert answer.status == 401, path
            assert answer.headers["www-authenticate"] == "Bearer"
    for headers, status in (
        ({"authorization": "Bearer first"}, 200),
        ({"authorization": "bearer third"}, 200),
        ({"x-api-key": "second"}, 200),
        ({"authorization": "Bearer fir"}, 401),
        ({"authorization": "Basic first"}, 401),
        ({"authorization": "Bearer "}, 401),
        ({"x-api-key": ""}, 401),
        ({"authorization": "Bearer ä\xff"}, 401),
    ):
        assert (await rig.get("/v1/models", headers)).status == status, headers
    assert (await rig.get("/v1/models")).error["code"] == "invalid_api_key"


async def test_a_file_of_keys_must_have_one(start_rig: StartRig, tmp_path: Path) -> None:
    empty = tmp_path / "keys"
    empty.write_text("\n")
    for path in (empty, tmp_path / "missing"):
        with pytest.raises(ConfigError, match="api_key_file"):
            await start_rig(api_key_file=str(path))
