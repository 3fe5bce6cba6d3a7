"""Future clients: recorded requests with unknown fields, tools, blocks, items and betas."""

import copy
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from served import Server

from clawctl.serve.dialects import chat, messages, responses
from clawctl.serve.metrics import UnknownFields
from tests.extension import needs

RECORDINGS = Path(__file__).parents[1] / "recordings"
MODULES: dict[str, Any] = {"/v1/chat/completions": chat, "/v1/responses": responses, "/v1/messages": messages}
LEFT_OUT = re.compile(r"\[[^\[\]]* was left out: only text and images can be read here\]")
OPAQUE = ("parameters", "input_schema", "arguments", "input", "schema")  # text of a tool, which may contain anything

names = st.from_regex(r"(x|future|beta)_[a-z]{1,12}(_20[2-9][0-9]{5})?", fullmatch=True)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
fields = st.dictionaries(names, values, min_size=1, max_size=3)
things = st.builds(lambda kind, more: {"type": kind, **more}, names, fields)


def recorded() -> list[dict[str, Any]]:
    recordings = [orjson.loads(path.read_bytes()) for path in sorted(RECORDINGS.glob("*/*.json"))]
    return [r for r in recordings if r["path"].partition("?")[0] in MODULES and "previous_response_id" not in r["request"]]


requests = st.sampled_from(recorded())
rng = st.randoms(use_true_random=False)


def objects_of(value: Any, key: str = "") -> Iterator[dict[str, Any]]:
    """Every object that the API defines, the request itself first."""
    if isinstance(value, dict):
        yield value
        for name, inner in value.items():
            if name not in OPAQUE or isinstance(inner, list):  # the list of Responses is called `input` as well
                yield from objects_of(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from objects_of(inner, key)


def from_tomorrow(body: dict[str, Any], extra: dict[str, Any], thing: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """`body` with `extra` in some of its objects, and `thing` among its tools, its blocks and its items."""
    body = copy.deepcopy(body)
    places = list(objects_of(body))
    for target in [body, *chance.sample(places, min(3, len(places)))]:
        target.update(extra)
    if body.get("tools"):
        body["tools"].insert(chance.randint(0, len(body["tools"])), thing)
    for conversation in (body.get("messages"), body.get("input")):
        open_to = [
            message for message in conversation or [] if isinstance(message, dict) and isinstance(message.get("content"), list)
        ]
        if open_to:
            content = chance.choice(open_to)["content"]
            content.insert(chance.randint(0, len(content)), thing)
    if isinstance(body.get("input"), list):
        body["input"].insert(chance.randint(0, len(body["input"])), thing)
    return body


def functions(ask: Any) -> list[Any]:
    return [tool["function"] for tool in ask.tools or [] if tool["type"] == "function"]


def said(message: dict[str, Any]) -> str:
    content = message["content"]
    return LEFT_OUT.sub("", content if isinstance(content, str) else "".join(str(part.get("text", "")) for part in content))


def told(ask: Any) -> list[tuple[str, str]]:
    """Who said what; a note of what was left out, alone, is a message of its own beside a tool's results."""
    return [(message["role"], text) for message in ask.messages if (text := said(message)) or message["role"] != "user"]


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(request=requests, extra=fields, thing=things, chance=rng)
def test_unknown_fields_are_accepted_and_known_ones_are_still_checked(
    request: dict[str, Any], extra: dict[str, Any], thing: dict[str, Any], chance: random.Random
) -> None:
    module = MODULES[request["path"].partition("?")[0]]
    today = module.read(request["request"], "m")
    tomorrow = module.read(from_tomorrow(request["request"], extra, thing, chance), "m")
    assert [function["name"] for function in functions(tomorrow)] == [function["name"] for function in functions(today)]
    assert told(tomorrow) == told(today)
    changeless = ("tool_choice", "stream", "n", "stop", "temperature", "top_p", "top_k", "max_tokens", "parent", "claims")
    assert {name: getattr(tomorrow, name) for name in changeless} == {name: getattr(today, name) for name in changeless}


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(request=requests, extra=fields, thing=things, beta=names, chance=rng)
def test_no_client_of_tomorrow_is_answered_with_4xx(
    rehearsed: Server, request: dict[str, Any], extra: dict[str, Any], thing: dict[str, Any], beta: str, chance: random.Random
) -> None:
    path, _, query = request["path"].partition("?")
    body = from_tomorrow(request["request"], extra, thing, chance)
    headers = {"x-api-key": "key", "anthropic-beta": beta, "openai-beta": beta, f"x-{beta}".replace("_", "-"): "1"}
    answer = httpx.post(f"{rehearsed.url.removesuffix('/v1')}{path}?{query}&beta={beta}", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text


@needs("secrets")
def test_a_secret_in_a_field_name_is_neither_logged_nor_shown_without_a_key(caplog: Any) -> None:
    secret, unknown = "gh" + "p_aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5", UnknownFields()
    unknown.count("chat", [f"messages[0].{secret}", "provider_x"])
    unknown.count("chat", [f"messages[0].{secret}"])
    assert secret not in f"{unknown.by_api()}{caplog.text}"
    assert unknown.by_api()["chat"] == {"messages[0].[redacted:api_key]": 2, "provider_x": 1}
