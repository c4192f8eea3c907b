"""The way to the grammar process: started with the first call, and again after its end when there are calls."""

import asyncio
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Final, cast

from pillion.actors.detokenizer.grammars.calls import (
    REPLIES,
    GrammarCall,
    GrammarReply,
    SetVocabulary,
    encode_frame,
)
from pillion.runtime.frame_buffer import FrameBuffer
from pillion.runtime.process import child_environment

logger = logging.getLogger(__name__)

_COMMAND: Final = (sys.executable, "-P", "-m", "pillion.actors.detokenizer.grammars.process")


class GrammarLink(asyncio.Protocol):
    """One grammar process at most. It ends when this side hangs up."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        vocabulary: Callable[[], SetVocabulary],
        on_replies: Callable[[list[GrammarReply]], None],
        on_lost: Callable[[], None],
    ) -> None:
        """`vocabulary` is called on a thread: it takes a while."""
        self._loop = loop
        self._vocabulary = vocabulary
        self._on_replies = on_replies
        self._on_lost = on_lost
        self._process: subprocess.Popen[bytes] | None = None
        self._transport: asyncio.Transport | None = None
        self._waiting: list[GrammarCall] = []
        self._starts = False
        self._closed = False
        self._connecting: asyncio.Task[None] | None = None
        self._frames = FrameBuffer()

    def send(self, calls: list[GrammarCall]) -> None:
        """Sends calls, as soon as there is a process."""
        if self._transport is not None:
            self._transport.write(encode_frame(calls))
            return
        self._waiting += calls
        if not self._starts:
            self._starts = True
            threading.Thread(target=self._start, name="grammars", daemon=True).start()

    def kill(self) -> None:
        """Ends the process, which `on_lost` will tell."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """Ends the process for good."""
        self._closed = True
        self.kill()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The process is there and gets its vocabulary."""
        self._transport = cast(asyncio.Transport, transport)
        calls, self._waiting = self._waiting, []
        self._transport.write(encode_frame(calls))

    def data_received(self, data: bytes) -> None:
        """Bytes of any number of replies."""
        for payload in self._frames.feed(data):
            self._on_replies(REPLIES.decode(payload))

    def connection_lost(self, error: Exception | None) -> None:
        """The process is gone."""
        self._transport = None
        self._frames = FrameBuffer()
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            logger.warning("the grammar process has ended with status %d", process.wait())
        self._starts = False
        self._waiting.clear()
        self._on_lost()

    def _start(self) -> None:
        """On a thread: starts a process and gives it the vocabulary; then the loop takes over."""
        vocabulary = encode_frame([self._vocabulary()])
        ours, theirs = socket.socketpair()
        process = None
        try:
            with theirs:
                process = subprocess.Popen(
                    [*_COMMAND, str(theirs.fileno())],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    env=child_environment(),
                )
            ours.sendall(vocabulary)
        except OSError:
            logger.exception("the grammar process cannot be started")
        try:
            self._loop.call_soon_threadsafe(self._connect, ours, process)
        except RuntimeError:  # the loop has ended, and with it everyone who waited
            ours.close()

    def _connect(self, ours: socket.socket, process: "subprocess.Popen[bytes] | None") -> None:
        self._process = process
        if self._closed:
            self.kill()
            ours.close()
            return
        self._connecting = self._loop.create_task(self._take_over(ours))

    async def _take_over(self, ours: socket.socket) -> None:
        await self._loop.create_unix_connection(lambda: self, sock=ours)
