"""What bends the distribution makes a turn untrainable, and says so; what does not, does not."""

from typing import Any

import pytest

from clawctl.serve.sampling import altered, engine_fields


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
def test_only_what_bends_the_distribution_is_a_reason(fields: dict[str, Any], reason: str | None) -> None:
    assert altered(0.7, 1.0, 0, "auto", fields) == reason


def test_a_forced_call_a_cut_and_greedy_are_reasons() -> None:
    assert altered(1.0, 1.0, 0, "required", {}) == "forced tool choice"
    assert altered(1.0, 1.0, 0, {"type": "function", "function": {"name": "f"}}, {}) == "forced tool choice"
    assert altered(0.0, 0.5, 3, None, {}) == "greedy"
    assert altered(1e-300, 1.0, 0, None, {}) == "greedy"
    assert altered(0.01, 1.0, 0, None, {}) is None
    assert altered(1.0, 0.5, 0, None, {}) == "top_p"
    assert altered(1.0, 1.0, 3, None, {}) == "top_k"


def test_nothing_that_is_not_on_the_list_goes_to_an_engine() -> None:
    body = {"seed": 1, "min_p": None, "lora_path": "/etc", "messages": [], "vllm_xargs": {}, "return_token_ids": True}
    assert engine_fields(body) == {"seed": 1}
