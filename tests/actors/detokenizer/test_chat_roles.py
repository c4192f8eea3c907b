"""Which roles reach a template."""

import pytest

from pillion.actors.detokenizer.chat_roles import KNOWN_ROLES, roles_as_in
from pillion.actors.detokenizer.chat_template import ChatTemplate
from pillion.runtime.errors import InvalidRequest

SOURCE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


def chat(*roles: str) -> list[dict[str, str]]:
    return [{"role": role, "content": "x"} for role in roles]


def test_known_roles_pass() -> None:
    roles = [message["role"] for message in roles_as_in("", chat(*KNOWN_ROLES))]
    assert roles == ["system", "system", "user", "assistant", "tool", "function"]


@pytest.mark.parametrize("quote", ["'", '"'])
def test_a_role_that_the_template_names_passes(quote: str) -> None:
    source = "{% if m.role == " + quote + "narrator" + quote + " %}"
    assert roles_as_in(source, chat("narrator", "user")) == chat("narrator", "user")
    assert roles_as_in(source.replace("narrator", "developer"), chat("developer"))[0] == {
        "role": "developer",
        "content": "x",
    }


def test_any_other_is_refused_with_its_place() -> None:
    template = ChatTemplate({"default": SOURCE}, {})
    assert template.render(chat("user", "developer")) == "[user]x[system]x"
    with pytest.raises(InvalidRequest, match=r"messages\[1\].role is 'narrator'.* use system"):
        template.render(chat("user", "narrator"))
