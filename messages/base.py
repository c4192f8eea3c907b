"""The roots of every message: compact arrays inside the ring, named fields at the client edge."""

import msgspec


class RingMessage(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=True):
    """A message between actors. Fields are only ever appended, with a default."""


class EdgeMessage(
    msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="type", omit_defaults=True
):
    """A message between a client and the daemon. Unknown fields are ignored by the receiver."""
