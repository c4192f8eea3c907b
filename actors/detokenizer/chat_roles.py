"""Who speaks in a chat, and which roles a template was made for."""

from typing import Any, Final

from pillion.runtime.errors import InvalidRequest

KNOWN_ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")


def roles_as_in(source: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with roles that the template with this source, or any, was made for.

    "developer" is a newer name for "system" and becomes that where the template does not name it. Raises
    InvalidRequest for a role that is none of the known ones and that the template does not name: most templates
    print whatever role they get, which the model has never seen.
    """
    fitting = []
    for index, message in enumerate(messages):
        role = message["role"]
        named = f"'{role}'" in source or f'"{role}"' in source
        if not named and role not in KNOWN_ROLES:
            raise InvalidRequest(
                f"messages[{index}].role is {role!r:.80}, which the model's chat template does not know: use"
                f" {', '.join(KNOWN_ROLES[:-1])} or {KNOWN_ROLES[-1]}",
                "messages",
            )
        is_renamed = role == "developer" and not named
        fitting.append({**message, "role": "system"} if is_renamed else message)
    return fitting
