"""GET /status: the daemon as its launcher sees it."""

from gateway_rig import StartRig
from live_launcher import LiveLauncher


async def test_it_shows_the_daemon(start_rig: StartRig) -> None:
    rig = await start_rig()
    async with LiveLauncher(rig.gateway.run_dir) as launcher:
        launcher.state = "recovering"
        launcher.running = 3
        answer = await rig.get("/status")
    assert answer.status == 200
    assert (answer.json["name"], answer.json["state"]) == ("d", "recovering")
    assert answer.json["queue"] == {"running": 3, "waiting": 0, "max_running": 4}
    names = [actor["name"] for actor in answer.json["actors"]]
    assert names == ["scheduler", "kv_manager", "gpu_worker"]


async def test_a_launcher_that_is_gone_is_told_of(start_rig: StartRig) -> None:
    rig = await start_rig()
    answer = await rig.get("/status")
    assert (answer.status, answer.error["code"]) == (503, "unavailable")
    assert answer.headers["retry-after"] == "1"
