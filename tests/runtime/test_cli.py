"""The `pillion` command: its table, its errors and how fast it says what it can do."""

import errno
import resource
import subprocess
import sys
import types
from pathlib import Path

import pytest

import pillion
from pillion.runtime import cli
from pillion.runtime.errors import ConfigError
from pillion.runtime.process import child_environment

from .conftest import StartDaemon


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "pillion", *arguments],
        env=child_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_help_names_every_command_and_is_quick() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = run_command("--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert result.returncode == 0
    for name, (_, text) in cli.COMMANDS.items():
        assert f"  {name} " in result.stdout
        assert text in result.stdout
    # Processor time, which other work on the machine stretches less than the time that passes.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.15


def test_help_imports_no_command() -> None:
    script = (
        "import sys; from pillion.runtime.cli import main; main([]); "
        "print([name for name in sys.modules if 'commands' in name or name in ('msgspec', 'zmq')])"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_of_the_table_exists_and_explains_itself(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: pillion {name}")


def test_version_and_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"pillion {pillion.__version__}\n"
    assert cli.main(["fly"]) == 2
    assert capsys.readouterr().err.startswith("error: there is no command 'fly'; there are serve,")
    assert cli.main([]) == 0
    with pytest.raises(SystemExit) as ended:
        cli.main(["status", "--nonsense"])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told == "error: unrecognized arguments: --nonsense (see pillion status --help)\n"


@pytest.mark.parametrize(
    ("raised", "status", "stderr"),
    [(ConfigError("too big"), 1, "error: too big\n"), (KeyboardInterrupt(), 130, "")],
)
def test_errors_are_one_line(
    raised: BaseException,
    status: int,
    stderr: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(arguments: object) -> int:
        raise raised

    command = types.ModuleType("command")
    command.run = run  # type: ignore[attr-defined]
    command.add_arguments = lambda parser: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "command", command)
    monkeypatch.setitem(cli.COMMANDS, "fail", ("command", "fails"))
    assert cli.main(["fail"]) == status
    assert capsys.readouterr().err == stderr


def test_an_interrupt_while_a_command_is_imported_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "slow_command.py").write_text("raise KeyboardInterrupt")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(cli.COMMANDS, "slow", ("slow_command", "takes its time"))
    assert cli.main(["slow"]) == 130
    assert capsys.readouterr().err == ""


def test_output_that_finds_no_room_is_told_in_a_line() -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-P", "-m", "pillion", "doctor", "--json"],
            env=child_environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (
        1,
        "error: cannot write the output: no space left\n",
    )


def test_a_file_that_may_not_be_opened_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", "/their/daemon.log")

    monkeypatch.setattr("pillion.runtime.commands.logs.run", run)
    assert cli.main(["logs"]) == 1
    assert capsys.readouterr().err == "error: this user may not open /their/daemon.log\n"


@pytest.mark.parametrize("command", [["status"], ["status", "--json"], ["stop"], ["logs"]])
def test_without_a_daemon_a_command_says_so(
    command: list[str], runtime_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*command, "--name", "ghost"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: no daemon named 'ghost' ")
    assert captured.err.count("\n") == 1


def test_status_logs_and_stop_of_a_living_daemon(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    daemon.wait_state("ready")
    status = run_command("status", "--name", "d")
    assert status.returncode == 0
    assert status.stdout.startswith("d: ready, fake, pid ")
    assert "FakeForCausalLM on cpu in float32" in status.stdout
    log = run_command("logs", "--name", "d", "-n", "1000")
    assert log.stdout == daemon.directory.log.read_text()
    follower = subprocess.Popen(
        [sys.executable, "-P", "-m", "pillion", "logs", "--name", "d", "-f", "-n", "0"],
        env=child_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    stop = run_command("stop", "--name", "d")
    assert (stop.returncode, stop.stdout) == (0, "the daemon 'd' has stopped\n")
    assert daemon.process.wait(5) == 0
    daemon.nothing_is_left()
    out, _ = follower.communicate(timeout=10)
    assert follower.returncode == 0
    assert out == "" or out.endswith("stopped\n")
