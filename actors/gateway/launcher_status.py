"""What the launcher knows of the whole daemon."""

import asyncio
from typing import Final

from pillion.actors.gateway.http_errors import RETRY_AFTER_S, HttpError
from pillion.messages.codec import FRAME_HEADER_BYTES, Codec, frame, frame_length
from pillion.messages.control import ActorStats, DaemonStatus, StatusRequest
from pillion.messages.inboxes import ControlReply
from pillion.runtime.control_socket import MAX_REPLY_BYTES
from pillion.runtime.paths import RunDir
from pillion.runtime.silence import why_silent

STATUS_TIMEOUT_S: Final = 1.0


async def ask_status(run_dir: RunDir, own: ActorStats) -> DaemonStatus:
    """The daemon's state, with what this gateway has counted until now.

    Raises HttpError 503 if the launcher does not answer in time.
    """
    status = await _ask(run_dir, own)
    if status is None:
        reason = why_silent(run_dir) or "the daemon is overloaded or ends"
        raise HttpError(
            503,
            f"the launcher does not answer: {reason}",
            code="unavailable",
            retry_after_s=RETRY_AFTER_S,
        )
    return status


async def _ask(run_dir: RunDir, own: ActorStats) -> DaemonStatus | None:
    codec: Codec[ControlReply] = Codec(ControlReply)
    try:
        async with asyncio.timeout(STATUS_TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(run_dir.control_socket)
            try:
                writer.write(frame(codec.encode(StatusRequest(stats=own))))
                length = frame_length(await reader.readexactly(FRAME_HEADER_BYTES))
                if length > MAX_REPLY_BYTES:
                    return None
                reply = codec.decode(await reader.readexactly(length))
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError):
        return None
    return reply if isinstance(reply, DaemonStatus) else None
