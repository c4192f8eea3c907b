"""The environment variables by which a service manager such as systemd speaks to one process."""

from collections.abc import Mapping
from typing import Final

# NOTIFY_SOCKET is where that process tells its state, the others are for its pid alone.
SERVICE_VARIABLES: Final = (
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
)


def without_service_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a child: it must not speak for its parent, nor take descriptors for its own."""
    return {name: value for name, value in environment.items() if name not in SERVICE_VARIABLES}
