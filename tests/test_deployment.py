"""What deploy/ holds: it parses, its commands are real ones, and its deadlines fit the daemon's own."""

import argparse
import configparser
import importlib
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pillion.runtime.cli import COMMANDS
from pillion.runtime.commands import serve
from pillion.runtime.config import EngineConfig, make_config
from pillion.runtime.daemon_end import END_S

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
CONTAINER_FILE = DEPLOY / "container" / "Containerfile"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
GIB = 1 << 30
DOCKER_GRACE_S = 10  # between SIGTERM and SIGKILL of `docker stop`


def checked(command: list[str]) -> argparse.Namespace:
    """Parses a command as `pillion` would; a flag that it does not have fails the test."""
    program, name, *arguments = command
    assert Path(program).name == "pillion"
    parser = argparse.ArgumentParser(exit_on_error=False)
    importlib.import_module(COMMANDS[name][0]).add_arguments(parser)
    known, unknown = parser.parse_known_args(arguments)
    assert unknown == []
    return known


def config_of(command: list[str]) -> EngineConfig:
    assert command[1] == "serve"
    return make_config(serve.given_fields(checked(command)))


def unit(name: str) -> configparser.ConfigParser:
    """A unit file; of a key that occurs twice the last one counts here."""
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters="=")
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    assert parser.read(DEPLOY / "systemd" / name)
    return parser


def instructions() -> dict[str, str]:
    """The container file's instructions by name, the last one of each; of ARG the first."""
    lines = CONTAINER_FILE.read_text().replace("\\\n", "").splitlines()
    found = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    first_arg = next(rest for name, rest in found if name == "ARG")
    return dict(found) | {"ARG": first_arg}


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in MANIFESTS:
        for document in yaml.safe_load_all(path.read_text()):
            if document["kind"] == "Deployment":
                yield path.name, document["spec"]["template"]["spec"]


def pillion_in(pod: dict[str, Any]) -> dict[str, Any]:
    everyone = [*pod.get("initContainers", ()), *pod["containers"]]
    (found,) = (container for container in everyone if container["name"] == "pillion")
    assert isinstance(found, dict)
    return found


def image_arguments(container: dict[str, Any]) -> list[str]:
    return [*json.loads(instructions()["ENTRYPOINT"]), *container["args"]]


def test_a_flag_that_is_none_is_found() -> None:
    with pytest.raises(AssertionError):
        checked(["pillion", "serve", "m", "--no-such-flag"])


def test_the_unit_waits_as_long_as_the_daemon_may_take() -> None:
    service = unit("pillion.service")["Service"]
    config = config_of(shlex.split(service["ExecStart"]))
    assert service["Type"] == "notify"
    assert int(service["TimeoutStartSec"]) > config.start_timeout_s
    assert int(service["TimeoutStopSec"]) > config.drain_s + END_S
    assert service["KillMode"] == "mixed"
    assert int(service["WatchdogSec"]) > 2
    # The sockets are inherited: an address of its own would be taken already.
    assert not config.serves_http
    assert unit("pillion.service")["Unit"]["Requires"] == "pillion.socket"
    assert unit("pillion.socket")["Socket"]["Accept"] == "no"


def test_the_socket_is_not_in_the_directory_that_ends_with_the_service() -> None:
    directory = Path("/run") / unit("pillion.service")["Service"]["RuntimeDirectory"]
    assert directory not in Path(unit("pillion.socket")["Socket"]["ListenStream"]).parents


def test_what_the_service_keeps_is_in_the_directory_that_it_may_write() -> None:
    service = unit("pillion.service")["Service"]
    places = dict(setting.split("=") for setting in service["Environment"].split())
    kept = {"XDG_CACHE_HOME", "HF_HOME", "TRITON_CACHE_DIR"}
    assert places.keys() == kept | {"PILLION_RUNTIME_DIR"}
    cache = Path("%C") / service["CacheDirectory"]
    assert all(Path(places[name]).is_relative_to(cache) for name in kept)


def test_the_container_file_is_pinned_does_not_run_as_root_and_runs_real_commands() -> None:
    found = instructions()
    assert found["FROM"] == "$BASE"
    base = found["ARG"].removeprefix("BASE=")
    assert re.fullmatch(r"docker\.io/library/python:\d+\.\d+\.\d+-[a-z-]+", base)
    assert int(found["USER"]) > 0
    assert "-c constraints.txt" in found["RUN"]
    command = [*json.loads(found["ENTRYPOINT"]), *json.loads(found["CMD"])]
    config = config_of(command)
    assert config.drain_s + END_S < DOCKER_GRACE_S
    assert str(config.http).endswith(f":{found['EXPOSE']}")
    checked(json.loads(found["HEALTHCHECK"].partition("CMD ")[2]))


def test_there_are_manifests_and_their_image_is_this_version() -> None:
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    found = {name: pillion_in(pod)["image"] for name, pod in pods()}
    assert found == dict.fromkeys(("service.yaml", "sidecar.yaml"), f"pillion:{project['version']}")


@pytest.mark.parametrize(("name", "pod"), list(pods()))
def test_a_pod_drains_within_its_grace_period_and_probes_what_exists(
    name: str, pod: dict[str, Any]
) -> None:
    container = pillion_in(pod)
    config = config_of(image_arguments(container))
    pre_stop = container.get("lifecycle", {}).get("preStop", {"exec": {"command": ["sleep", "0"]}})
    _, seconds = pre_stop["exec"]["command"]
    assert pod["terminationGracePeriodSeconds"] > int(seconds) + config.drain_s + END_S
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container[kind]
        if "exec" in probe:
            asked = checked(probe["exec"]["command"]).probe
        else:
            asked = probe["httpGet"]["path"].removeprefix("/")
            assert container["ports"][0]["name"] == probe["httpGet"]["port"]
        assert asked == ("live" if kind == "livenessProbe" else "ready")
    start = container["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] > config.start_timeout_s
    assert pod["securityContext"]["runAsUser"] == int(instructions()["USER"])
    # Cores of the node that are not meant for this pod would be in one another's way.
    resources = container["resources"]
    assert config.cpu_threads == int(resources["requests"]["cpu"])
    assert config.kv_cache_bytes is not None
    assert config.kv_cache_bytes + GIB <= GIB * int(
        resources["limits"]["memory"].removesuffix("Gi")
    )
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted <= {volume["name"] for volume in pod["volumes"]}


def test_the_sidecar_and_the_application_share_the_socket() -> None:
    (pod,) = (pod for name, pod in pods() if name == "sidecar.yaml")
    container = pillion_in(pod)
    assert container in pod["initContainers"]
    assert container["restartPolicy"] == "Always"
    path = config_of(image_arguments(container)).http_uds
    (application,) = pod["containers"]
    assert path in [variable["value"] for variable in application["env"]]
    shared = {"name": "sockets", "mountPath": str(Path(str(path)).parent)}
    assert shared in container["volumeMounts"]
    assert shared in application["volumeMounts"]
    (volume,) = (volume for volume in pod["volumes"] if volume["name"] == "sockets")
    assert "emptyDir" in volume
