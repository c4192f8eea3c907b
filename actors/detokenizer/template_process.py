"""Templates that clients send are rendered in a process of their own, which the kernel limits.

`python -m pillion.actors.detokenizer.template_process` reads one job on standard input, writes the result
on standard output and ends.
"""

import resource
import signal
import subprocess
import sys
from typing import Any, Final

import jinja2
import msgspec

from pillion.actors.detokenizer.chat_template import render_guarded
from pillion.actors.detokenizer.template_guard import GuardedEnvironment
from pillion.runtime.errors import InvalidRequest
from pillion.runtime.process import child_environment

CPU_LIMIT_S: Final = 3
WALL_LIMIT_S: Final = 4
MEMORY_LIMIT_BYTES: Final = (
    1024 * 1024 * 1024
)  # address space, most of which is code and not touched
MAX_TEMPLATE_CHARS: Final = 256 * 1024

_COMMAND: Final = (sys.executable, "-P", "-m", "pillion.actors.detokenizer.template_process")


class TemplateJob(msgspec.Struct, frozen=True, kw_only=True):
    """A template and what it is rendered with."""

    source: str
    variables: dict[str, Any]


class TemplateResult(msgspec.Struct, frozen=True, kw_only=True):
    """The text, or why there is none."""

    text: str | None = None
    error: str | None = None


def render_apart(source: str, variables: dict[str, Any]) -> str:
    """Renders a client's template; blocks for at most WALL_LIMIT_S seconds.

    Raises InvalidRequest if the template is wrong or takes too much time or memory.
    """
    if len(source) > MAX_TEMPLATE_CHARS:
        raise InvalidRequest(
            f"chat_template may have {MAX_TEMPLATE_CHARS} characters, got {len(source)}",
            "chat_template",
        )
    job = TemplateJob(source=source, variables=variables)
    try:
        done = subprocess.run(
            _COMMAND,
            input=msgspec.msgpack.encode(job),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=WALL_LIMIT_S,
            env=child_environment(),
            check=True,
        )
        result = msgspec.msgpack.decode(done.stdout, type=TemplateResult)
    except (subprocess.SubprocessError, msgspec.DecodeError) as error:
        raise InvalidRequest(
            "rendering chat_template was stopped: it took too much time or memory", "chat_template"
        ) from error
    if result.text is None:
        raise InvalidRequest(f"chat_template: {result.error}", "chat_template")
    return result.text


def main() -> int:
    """Renders one job within this process's limits."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(WALL_LIMIT_S)  # ends this process also when its parent is gone
    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=TemplateJob)
    sys.stdout.buffer.write(msgspec.msgpack.encode(_render(job)))
    return 0


def _render(job: TemplateJob) -> TemplateResult:
    environment = GuardedEnvironment()
    try:
        template = environment.from_string(job.source)
        text = render_guarded(environment, template, job.variables)
        text.encode()
        return TemplateResult(text=text)
    except (jinja2.TemplateError, RecursionError) as error:
        return TemplateResult(error=f"cannot be compiled: {error}")
    except UnicodeEncodeError as error:
        return TemplateResult(error=f"what it renders is not valid Unicode: {error}")
    except InvalidRequest as error:
        return TemplateResult(error=str(error))


if __name__ == "__main__":
    sys.exit(main())
