"""The connection of a `Client`: made when it is needed, and again when it was lost or the process forked."""

import os
import threading

from pillion.runtime.client_connection import Connection
from pillion.runtime.clock import now_ns
from pillion.runtime.errors import DaemonUnavailable
from pillion.runtime.link import Link
from pillion.runtime.link_options import LinkOptions
from pillion.runtime.patience import REFUSED_PAUSE_S


class ClientLink(Link[Connection]):
    """Shared by the threads of a process. It ends with its last user."""

    def __init__(self, options: LinkOptions) -> None:
        """Connects. Raises DaemonUnavailable within the connect timeout."""
        super().__init__(options)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._closing = threading.Event()
        self._connect_within(options.connect_timeout_s, None)

    def connected(self, until_ns: int | None = None) -> Connection:
        """A living connection. While the daemon lives it is waited for, the reattach timeout at the longest."""
        return self._connect_within(self._options.reattach_timeout_s, until_ns)

    def close(self) -> None:
        """Ends the connection; no other is made."""
        self._closed = True
        self._closing.set()
        if self._pid == os.getpid():
            self._hang_up()

    def __del__(self) -> None:
        self.close()

    def _connect_within(self, timeout_s: float, until_ns: int | None) -> Connection:
        connection = self._connection
        if self._pid == os.getpid() and self._takes_requests(connection):
            return connection
        patience = self._options.patience(timeout_s, until_ns)
        if connection is not None and connection.is_ending and self._replicas.ends_round:
            self._closing.wait(REFUSED_PAUSE_S)
        while True:
            try:
                return self._connect_once()
            except DaemonUnavailable as error:
                if self._closed or self._replicas.begins_round:
                    self._closing.wait(patience.pause_s(error, now_ns()))

    def _connect_once(self) -> Connection:
        if self._pid != os.getpid():
            # A forked child: the parent's connection is not ours, and a thread of the parent may have
            # held the locks.
            self._lock = threading.Lock()
            self._closing = threading.Event()
            self._connection = None
            self._left = []
            self._pid = os.getpid()
        with self._lock:
            self._check_open()
            if self._connection is not None and self._connection.is_ending:
                self._leave(self._connection)
            if self._connection is None or self._connection.lost is not None:
                self._connection = self._open()
                if self._closed:  # meanwhile, by another thread
                    self._connection.close()
                    self._check_open()
            return self._connection

    def _open(self) -> Connection:
        try:
            return Connection(
                self._replicas.path,
                self._options.client_name,
                self._options.fairness_key,
                self._options.connect_timeout_s,
                leaves_ending=self._options.leaves_ending,
            )
        except DaemonUnavailable:
            self._replicas.leave()
            raise
