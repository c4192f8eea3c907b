"""Chats rendered as transformers renders them, and templates that are kept within limits."""

import time
from typing import Any

import pytest

from pillion.actors.detokenizer import chat_template
from pillion.actors.detokenizer.chat_template import ChatTemplate
from pillion.actors.detokenizer.text_model import TextModel
from pillion.runtime.errors import InvalidRequest, RequestError

USER = {"role": "user", "content": "hi"}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "f", "description": "é <b>", "parameters": {"x": [1, None, True]}},
    }
]

# Dialect features that templates in use need, each beside what transformers makes of it.
DIALECT = [
    "{%- for message in messages %}\n    {{- message.role + ': ' + message.content }}\n{%- endfor %}\n",
    "{% for m in messages %}\n  {% if loop.first %}\nfirst\n  {% endif %}\n{{ m['content'] }}\n{% endfor %}",
    "{{ tools | tojson }}",
    "{{ tools | tojson(indent=2) }}",
    "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.content }}{% break %}{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "{% macro show(x, y='z') %}<{{ x }}{{ y }}>{% endmacro %}{{ show('a') }}{{ show('b', y='c') }}",
    "{% generation %}{{ messages[-1].content }}{% endgeneration %}!",
    "{{ messages | map(attribute='content') | join(', ') | trim | upper }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
    "{{ messages[0].content.split('i')[0] ~ 1 ~ none }} {{ 'a' * 3 }} {{ 7 % 4 }} {{ 2 ** 5 }}",
    "{{ '%s and %d' % ('x', 3) }} {{ '{} {}'.format('a', 1) }} {{ 'x' | indent(2, true) }}",
    "{{ bos_token }}{{ extra | default('none') }}{{ undefined_name is defined }}{{ undefined_name }}",
    "{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}{{ messages[0] }}",
    "{{ messages[::-1][0].content }}{{ range(3) | list }}{{ dict(a=1) }}{{ 'a' in 'abc' }}",
    "{% set text %}{{ messages[0].content }}{{ add_generation_prompt }}{% endset %}[{{ text }}]",
    "{{ messages[0].content | replace('h', 'H') | title }}{{ ['b', 'a'] | sort | first }}",
    "{{ '<b>' | e }} {{ '<b>' }} {{ 3 / 2 }} {{ 1.0 }} {{ true }} {{ [1, 'a'] }}",
]


@pytest.mark.parametrize("source", DIALECT)
def test_the_dialect_is_that_of_transformers(source: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [USER, {"role": "assistant", "content": "oh, hi "}]
    rendered, _ = render_jinja_template(
        [messages],
        tools=TOOLS,
        chat_template=source,
        add_generation_prompt=True,
        bos_token="<s>",
        extra="more",
    )
    template = ChatTemplate({"default": source}, {"bos_token": "<s>"})
    tools = TOOLS if "tools" in source else None
    assert template.render(messages, tools=tools, arguments={"extra": "more"}) == rendered[0]


def test_the_real_template(smollm2: TextModel) -> None:
    text = smollm2.chat_template.render([USER, {"role": "assistant", "content": "yes"}, USER])
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = smollm2.tokenizer.encode(text, False)
    assert ids[0] == 1
    assert ids.count(2) == 4


@pytest.mark.parametrize(
    ("content", "end"), [("Sure, ", "Sure, "), (" Sure", "Sure"), ("Sure\n\n", "Sure\n\n")]
)
def test_the_last_message_is_left_open(smollm2: TextModel, content: str, end: str) -> None:
    text = smollm2.chat_template.render(
        [USER, {"role": "assistant", "content": content}], continue_final_message=True
    )
    assert text.endswith(end)
    assert text.startswith("<|im_start|>system")


def test_a_template_that_strips_is_followed() -> None:
    template = ChatTemplate(
        {"default": "{% for m in messages %}{{ m.content | trim }}<e>{% endfor %}"}, {}
    )
    messages = [USER, {"role": "assistant", "content": " so "}]
    assert template.render(messages, continue_final_message=True) == "hi<e>so"
    dropping = ChatTemplate({"default": "{{ messages[0].content }}"}, {})
    with pytest.raises(InvalidRequest, match="continue_final_message"):
        dropping.render(messages, continue_final_message=True)


def test_parts_become_text() -> None:
    template = ChatTemplate({"default": "{{ messages[0].content }}"}, {})
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert template.render([{"role": "user", "content": parts}]) == "a\nb"
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    with pytest.raises(InvalidRequest, match="image_url"):
        template.render([{"role": "user", "content": image}])


def test_a_model_without_template_says_so() -> None:
    with pytest.raises(RequestError, match="no chat template") as failure:
        ChatTemplate({}, {}).render([USER])
    assert failure.value.code == "unsupported"
    with pytest.raises(RequestError, match="cannot be compiled"):
        ChatTemplate({"default": "{% for %}"}, {}).render([USER])


def test_a_template_may_refuse() -> None:
    template = ChatTemplate({"default": "{{ raise_exception('roles must alternate') }}"}, {})
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        template.render([USER])


def test_tools_choose_the_template_for_tools() -> None:
    sources = {"default": "plain", "tool_use": "{{ tools[0].function.name }}"}
    template = ChatTemplate(sources, {})
    assert template.render([USER], tools=TOOLS) == "f"
    assert template.render([USER]) == "plain"


def test_deeply_nested_messages_are_refused() -> None:
    nested: Any = "x"
    for _ in range(3000):
        nested = [nested]
    template = ChatTemplate({"default": "{{ messages | tojson }}"}, {})
    with pytest.raises(InvalidRequest):
        template.render([{"role": "user", "content": "x", "extra": nested}])


DOUBLING = (
    "{% set ns = namespace(s='aaaa') %}{% for i in range(60) %}{% set ns.s = @ %}{% endfor %}"
)
NESTING = "{% set ns = namespace(s=['a']) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}"
COSTLY = [
    "{% for a in range(999) %}{% for b in range(999) %}{% for c in range(999) %}{% endfor %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) | map('string') %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{{ range(10 ** 9) | list }}",
    "{{ 'a' * 10 ** 9 }}",
    "{{ [1] * 10 ** 9 }}",
    "{{ 9 ** 9 ** 9 ** 9 }}",
    DOUBLING.replace("@", "ns.s + ns.s"),
    DOUBLING.replace("@", "ns.s ~ ns.s"),
    DOUBLING.replace("@", "'%s%s' % (ns.s, ns.s)"),
    DOUBLING.replace("@", "'{0}{0}'.format(ns.s)"),
    DOUBLING.replace("@", "ns.s | replace('a', 'aa')"),
    DOUBLING.replace("@", "ns.s.replace('a', 'aa')"),
    DOUBLING.replace("@", "[ns.s, ns.s] | join"),
    DOUBLING.replace("@", "''.join([ns.s, ns.s])"),
    "{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}{% endfor %}",
    NESTING + "{{ ns.s }}",
    NESTING + "{{ ns.s | tojson }}",
    NESTING + "{{ ns.s | string | length }}",
    NESTING + "{{ ns.s ~ '' }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }}",
    "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%*d' % (999999999, 1) }}",
    "{{ '{:999999999}'.format(1) }}",
    "{{ '{:{}}'.format(1, 999999999) }}",
    "{{ '%999999999d' | format(1) }}",
    "{{ 'a'.ljust(999999999) }}",
    "{{ 'a' | indent(999999999) }}",
    "{{ 'a' | center(999999999) }}",
    "{{ '\t\t\t\t'.expandtabs(999999) }}",
    "{{ [1] | tojson(indent=999999) }}",
    "{{ lipsum(n=1000) }}",
    "{{ strftime_now('%99999999d') }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ messages.append(1) }}",
    "{% for m in messages recursive %}{{ loop(messages) }}{{ loop(messages) }}{% endfor %}",
]


@pytest.mark.parametrize("source", COSTLY)
def test_costly_templates_are_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "RENDER_LIMIT_S", 0.3)
    started = time.process_time()
    with pytest.raises(RequestError):
        ChatTemplate({"default": source}, {}).render([USER])
    assert time.process_time() - started < 2


def test_large_chats_are_no_problem() -> None:
    source = "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}"
    template = ChatTemplate({"default": source}, {})
    messages = [{"role": "user", "content": "word " * 50}] * 2000
    assert len(template.render(messages)) > 500_000
