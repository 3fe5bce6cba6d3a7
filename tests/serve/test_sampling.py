"""Settings that alter the distribution make a turn untrainable with a reason; other settings do not."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from served import Server
from test_gateway import raw

from clawctl.config import load_recipe
from clawctl.config.serve import SamplingConfig, SamplingRule
from clawctl.errors import ClawError
from clawctl.serve.hints import NAMES, client_of
from clawctl.serve.sampling import Settings, altered_fields, changes_nothing, enforce, engine_fields, rule_for

RECORDINGS = Path(__file__).parents[1] / "recordings"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        ({"seed": 3, "parallel_tool_calls": False}, None),
        ({"presence_penalty": 0.0, "repetition_penalty": 1.0, "min_p": 0, "logit_bias": {}}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, "structured output"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"min_tokens": 4}, "min_tokens"),
    ],
)
def test_only_settings_that_alter_the_distribution_are_a_reason(fields: dict[str, Any], reason: str | None) -> None:
    assert altered_fields(0.7, 1.0, 0, "auto", fields) == reason


def test_a_forced_call_a_cut_and_greedy_are_reasons() -> None:
    assert altered_fields(1.0, 1.0, 0, "required", {}) == "forced tool choice"
    assert altered_fields(1.0, 1.0, 0, {"type": "function", "function": {"name": "f"}}, {}) == "forced tool choice"
    assert altered_fields(0.0, 0.5, 3, None, {}) == "greedy"
    assert altered_fields(1e-300, 1.0, 0, None, {}) == "greedy"
    assert altered_fields(0.01, 1.0, 0, None, {}) is None
    assert altered_fields(1.0, 0.5, 0, None, {}) == "top_p"
    assert altered_fields(1.0, 1.0, 3, None, {}) == "top_k"


def test_nothing_that_is_not_on_the_list_goes_to_an_engine() -> None:
    body = {"seed": 1, "min_p": None, "lora_path": "/etc", "messages": [], "vllm_xargs": {}, "return_token_ids": True}
    assert engine_fields(body) == {"seed": 1}


# ---- what the recipe changes -------------------------------------------------------------------------------------------------


def rule(**settings: Any) -> SamplingRule:
    return SamplingRule.model_validate(settings)


def test_a_lower_temperature_is_raised_and_a_higher_one_is_left_alone() -> None:
    at_least = rule(temperature={"at_least": 0.7})
    used, changes = enforce(Settings(temperature=0.0), at_least, 1.0)
    assert (used.temperature, [str(change) for change in changes]) == (0.7, ["temperature 0.7 instead of 0"])
    assert enforce(Settings(temperature=0.9), at_least, 1.0) == (Settings(temperature=0.9), [])
    assert enforce(Settings(), at_least, 1.0) == (Settings(), [])
    assert enforce(Settings(), at_least, 0.2)[0].temperature == 0.7


def test_always_overrides_the_client_and_other_settings_stay_the_clients() -> None:
    used, changes = enforce(Settings(temperature=1.4, top_p=0.9), rule(temperature={"always": 1.0}), 1.0)
    assert (used.temperature, used.top_p, len(changes)) == (1.0, 0.9, 1)
    requested = Settings(0.0, 0.1, 40, {"seed": 3, "min_p": 0.1})
    assert enforce(requested, rule(), 1.0) == (requested, [])


def test_after_ignore_all_no_request_is_untrainable_for_its_sampling() -> None:
    every = dict.fromkeys(("min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens"), 1.5)
    every |= {"logit_bias": {"5": 1}, "bad_words": ["a"], "allowed_token_ids": [1], "ignore_eos": True, "seed": 3}
    requested = Settings(0.0, 0.95, 20, every)
    used, changes = enforce(requested, rule(temperature={"at_least": 0.7}, ignore="all"), 1.0)
    assert used.temperature is not None
    assert altered_fields(used.temperature, 1.0 if used.top_p is None else used.top_p, used.top_k, None, dict(used.fields)) is None
    assert {change.name for change in changes} == {"temperature", "top_p", "top_k", *every}


def test_a_setting_without_effect_is_not_reported_as_ignored() -> None:
    neutral = Settings(1.0, 1.0, 0, {"repetition_penalty": 1, "presence_penalty": 0.0, "reasoning_effort": "low"})
    used, changes = enforce(neutral, rule(ignore="all"), 1.0)
    assert changes == []
    assert used.fields == {"reasoning_effort": "low"}


def test_the_rule_of_a_key_comes_before_that_of_a_client_and_the_general_one() -> None:
    config = SamplingConfig.model_validate({
        "temperature": {"at_least": 0.3},
        "per_client": {"aider": {"temperature": {"at_least": 0.7}}, "my-bot": {"ignore": ["seed"]}, "my-bot/2": {"ignore": "all"}},
        "per_key": {"ci": {"temperature": {"always": 1.0}}},
    })  # fmt: skip

    def found(key: str, client: str, agent: str) -> tuple[Any, Any]:
        of = rule_for(config, key, client, agent)
        return of.temperature and (of.temperature.at_least, of.temperature.always), of.ignore

    assert found("default", "other", "") == ((0.3, None), None)
    assert found("default", "aider", "litellm/1.0") == ((0.7, None), None)
    assert found("ci", "aider", "") == ((None, 1.0), None)
    assert found("default", "other", "my-bot/1.0") == ((0.3, None), ["seed"])
    assert found("default", "other", "my-bot/2.0") == ((0.3, None), "all")
    assert not changes_nothing(config)
    assert changes_nothing(SamplingConfig())


def test_a_temperature_rule_names_one_bound(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    for wrong in ("{}", "{at_least: 0.7, always: 1.0}"):
        recipe.write_text(f"serve: {{sampling: {{temperature: {wrong}}}}}")
        with pytest.raises(ClawError, match="either at_least or always"):
            load_recipe(recipe)


@pytest.mark.parametrize(
    ("recording", "client"),
    [("copilot", "copilot"), ("codex", "codex"), ("codex-tui", "codex"), ("qwen-tui", "qwen-code"), ("claude-code", "claude-code"),
     ("smolagents-code", "smolagents"), ("openclaw-local-default", "openclaw"), ("mini-swe-agent", "mini-swe-agent"),
     ("openai-py", "other"), ("langchain", "other")],
)  # fmt: skip
def test_a_recorded_client_is_known_by_its_first_request(recording: str, client: str) -> None:
    calls = [orjson.loads(path.read_bytes()) for path in sorted((RECORDINGS / recording).glob("*.json"))]
    first = next(call for call in calls if "count_tokens" not in call["path"])
    headers = {name.lower(): value for name, value in (dict(first["headers"])).items()}
    body = first["request"]
    opening = body.get("system") or body.get("instructions")
    messages = [{"role": "system", "content": opening}] if opening else body.get("messages") or body["input"]
    assert client_of(headers, messages) == client
    assert client in (*NAMES, "other")


def test_aider_and_gptme_are_known_by_the_first_words_of_their_prompts() -> None:
    def said(text: str) -> str:
        return client_of({}, [{"role": "system", "content": text}])

    assert said("Act as an expert software developer.\nAlways use best practices when coding.") == "aider"
    assert said("You are gptme v0.35.1, a general-purpose AI assistant powered by LLMs.") == "gptme"
    assert said("You are Ada, an agent running in gptme v0.35.1, letting you act") == "gptme"
    assert said("You are an expert. Act as an expert software developer.") == "other"


def test_the_recipes_sampling_replaces_temperature_0_and_is_reported_everywhere(server: Server) -> None:
    request = orjson.dumps({
        "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "temperature": 0, "top_p": 0.95,
        "logit_bias": {"5": 1},
    })  # fmt: skip
    answer = raw(server, request, **{"User-Agent": "forced-1.0"})
    header = "temperature 0.7 instead of 0; top_p ignored; logit_bias ignored"
    assert answer.headers["x-clawctl-sampling"] == header
    line = next(line for line in server.captured() if answer.json()["id"] == "chatcmpl" + line["exchange_id"])
    assert (line["temperature"], line["top_p"], line["untrainable_reason"]) == (0.7, 1.0, None)
    assert line["asked"] == {"temperature": 0, "top_p": 0.95, "logit_bias": True}
    changed = server.health()["sampling_changed"]["other"]
    assert changed["requests"] >= 1
    assert {"temperature", "top_p", "logit_bias"} <= changed.keys()
    plain = raw(server, request)
    assert "x-clawctl-sampling" not in plain.headers


def test_a_stream_has_the_header_and_uncaptured_requests_keep_their_sampling(server: Server) -> None:
    with server.client.chat.completions.with_streaming_response.create(
        model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=3, temperature=0, stream=True,
        extra_headers={"User-Agent": "forced-1.0"},
    ) as stream:  # fmt: skip
        assert stream.headers["x-clawctl-sampling"] == "temperature 0.7 instead of 0"
    body = orjson.dumps({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "temperature": 0})
    kept_out = raw(server, body, **{"User-Agent": "forced-1.0", "X-Capture": "off"})
    assert "x-clawctl-sampling" not in kept_out.headers
    counted = raw(server, body, path="/messages/count_tokens", **{"User-Agent": "forced-1.0"})
    assert counted.status_code == 200
    assert "x-clawctl-sampling" not in counted.headers


def test_a_plain_completion_uses_the_recipes_sampling(server: Server) -> None:
    request = orjson.dumps({"prompt": "Once upon", "max_tokens": 4, "temperature": 0, "top_p": 0.5})
    answer = raw(server, request, path="/completions", **{"User-Agent": "forced-1.0"})
    assert answer.headers["x-clawctl-sampling"] == "temperature 0.7 instead of 0; top_p ignored"
    line = next(line for line in server.captured() if answer.json()["id"] == "cmpl" + line["exchange_id"])
    assert (line["temperature"], line["top_p"], line["untrainable_reason"]) == (0.7, 1.0, None)
    assert line["asked"] == {"temperature": 0, "top_p": 0.5}
