"""GET /status: the daemon and its actors at this moment."""

import msgspec

from pillion.actors.gateway.exchange import Exchange
from pillion.actors.gateway.gateway import Gateway
from pillion.actors.gateway.launcher_status import ask_status
from pillion.runtime.clock import now_ns
from pillion.runtime.live_view import live_view


async def live_status(gateway: Gateway, exchange: Exchange, _: bytes) -> None:
    """Shows the daemon and its actors at this moment, as the page and `pillion top` do."""
    status = await ask_status(gateway.run_dir, gateway.stats.at(now_ns()))
    await exchange.reply(200, msgspec.json.encode(live_view(status)))
