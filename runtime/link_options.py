"""What a client was told about its connection: to whom, under which name, and how long to try."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pillion.runtime.client_requests import check_timeout
from pillion.runtime.clock import NS_PER_S, now_ns
from pillion.runtime.daemon_socket import DaemonName, socket_paths
from pillion.runtime.patience import Patience


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """The arguments of a client, checked. `Client` says what each means."""

    paths: tuple[Path, ...]  # of the daemons that may be used, one after the other
    client_name: str
    fairness_key: str
    connect_timeout_s: float
    reattach_timeout_s: float
    outlive_daemon: bool

    @classmethod
    def of_arguments(
        cls,
        name: DaemonName | Sequence[DaemonName],
        client_name: str,
        fairness_key: str,
        connect_timeout: float,
        reattach_timeout: float,
        outlive_daemon: bool,
    ) -> Self:
        """Raises InvalidRequest."""
        check_timeout("connect_timeout", connect_timeout)
        check_timeout("reattach_timeout", reattach_timeout)
        return cls(
            paths=socket_paths(name),
            client_name=client_name or f"python-{os.getpid()}",
            fairness_key=fairness_key,
            connect_timeout_s=connect_timeout,
            reattach_timeout_s=reattach_timeout,
            outlive_daemon=outlive_daemon,
        )

    @property
    def leaves_ending(self) -> bool:
        """Whether what a daemon that ends refuses is asked of another one."""
        return self.outlive_daemon or len(self.paths) > 1

    def patience(self, timeout_s: float, until_ns: int | None) -> Patience:
        """Attempts for so many seconds, at the longest until then."""
        latest_ns = now_ns() + int(timeout_s * NS_PER_S)
        if until_ns is not None:
            latest_ns = min(latest_ns, until_ns)
        return Patience(self.paths, latest_ns, outlive_daemon=self.outlive_daemon)
