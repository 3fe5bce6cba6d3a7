"""A client may set the switches of the model's chat template, and no other argument of the renderer."""

import inspect
from typing import Any

import httpx
import pytest
from one_conversation import AS_CHAT, AS_MESSAGES, AS_RESPONSES
from served import Server
from transformers import PreTrainedTokenizerBase

from clawctl.engines.requests import Refusal
from clawctl.serve.dialects import chat, messages, responses
from clawctl.serve.dialects.settings import check_known, check_settings
from clawctl.serve.switches import switches

BOMB = "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}"
DIALECTS = [(chat, AS_CHAT), (responses, AS_RESPONSES), (messages, AS_MESSAGES)]


def test_variables_that_a_template_reads_and_the_renderer_does_not_set_are_its_switches() -> None:
    template = (
        "{%- if not style is defined %}{%- set style = 'plain' %}{%- endif %}{{ bos_token }}{{ strftime_now('%d') }}"
        "{%- for m in messages %}{%- set said = m.content %}{{ said }}{%- endfor %}"
        "{% for t in tools or documents %}{{ t }}{% endfor %}"
        "{% generation %}{% if enable_thinking is defined and not enable_thinking %}-{% endif %}"
        "{{ budget | default(3) }}{% endgeneration %}"
        "{% if said %}{% endif %}{% if add_generation_prompt %}{{ raise_exception('no') }}{% endif %}"
    )
    assert switches(template) == {"style", "enable_thinking", "budget"}
    assert switches({"default": template, "tool_use": "{{ other }}"}) == {"style", "enable_thinking", "budget", "other"}
    assert switches("{% if") is None


def test_no_parameter_of_the_renderer_is_a_switch() -> None:
    taken = [*inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters]
    for name in [*taken, "messages", "bos_token", "__class__", "raise_exception"]:
        with pytest.raises(Refusal):
            check_settings({name: True})


@pytest.mark.parametrize(("module", "body"), DIALECTS)
@pytest.mark.parametrize(
    "settings",
    [{"chat_template": BOMB}, {"documents": True}, {"style": ["x"]}, {"style": {"a": 1}}, {"style": "x" * 300}, {"a b": 1},
     {f"s{i}": 1 for i in range(99)}],
)  # fmt: skip
def test_a_setting_that_is_no_switch_is_a_400_in_each_dialect(module: Any, body: dict[str, Any], settings: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as refused:
        module.read(body | {"chat_template_kwargs": settings}, "m")
    assert (refused.value.status, refused.value.param) == (400, "chat_template_kwargs")


def test_a_switch_that_the_template_does_not_read_is_refused_by_name_unless_clients_send_it_to_every_model() -> None:
    check_known({"style": "x", "enable_thinking": False}, frozenset({"style"}))
    check_known({"anything": 1}, None)
    with pytest.raises(Refusal, match=r"'chat_template_kwargs\.colour' is not a switch .* its switches: style"):
        check_known({"colour": 1}, frozenset({"style"}))


@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages", "messages/count_tokens"])
def test_a_served_model_renders_with_its_own_template_only(server: Server, path: str) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "input": "hi", "max_tokens": 1, "max_output_tokens": 1}
    headers = {"authorization": "Bearer key"}
    for settings in ({"chat_template": BOMB}, {"colour": "red"}):
        answer = httpx.post(f"{server.url}/{path}", json=body | {"chat_template_kwargs": settings}, headers=headers, timeout=60)
        assert (answer.status_code, next(iter(settings)) in answer.text) == (400, True), answer.text
    usual = body | {"chat_template_kwargs": {"enable_thinking": False}}
    assert httpx.post(f"{server.url}/{path}", json=usual, headers=headers, timeout=60).status_code == 200
    answer = httpx.post(f"{server.url}/{path}", json=usual | {"chat_template": BOMB}, headers=headers, timeout=60)
    if path == "chat/completions":  # vLLM's field, which is refused by name
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "chat_template")
    else:
        assert answer.headers["x-clawctl-ignored"].endswith("chat_template")
