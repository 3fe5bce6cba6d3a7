"""The requested format of an answer: a tool call, JSON, or JSON that matches a schema. It is the input of a grammar."""

from typing import Any, Final

import orjson

from clawctl.engines import CannotFollow
from clawctl.engines.requests import GenerationRequest, Refusal
from clawctl.serve.text import CALL, END_CALL, END_THINK, THINK

MAX_CALLS: Final = 32  # in one answer
_ANY_OBJECT: Final = {"type": "object"}
_COMBINED: Final = ("allOf", "anyOf", "oneOf", "$ref", "if")
_OTHER_CALLS: Final = "<function="  # in templates whose calls are not JSON
# Parameter names in the client's API.
_API_NAMES: Final = {("responses", "response_format"): "text.format", ("messages", "response_format"): "output_config.format"}


def is_requested(request: GenerationRequest) -> bool:
    """Whether the request restricts the form of its answer."""
    form = request.engine_fields.get("response_format")
    free = form is None or (isinstance(form, dict) and form.get("type") in (None, "text"))
    return _forced(request) or not free


def specification(request: GenerationRequest, tokenizer: Any, thinking: bool, switches: frozenset[str] | None) -> bytes:
    """The input of `Grammars.open`. `thinking`: the answer begins within reasoning, which is not constrained. `switches`: those of
    the chat template, None if unknown. Raises Refusal for an invalid format.

    An answer may begin with its own reasoning only if the template can switch reasoning on. A mask removes most other ways to
    begin, so it would make reasoning likely. A model that was never trained to reason does not return to the answer.
    """
    calls, form, forced = _calls(request), _form(request), _forced(request)
    if forced and not calls:
        raise Refusal(400, "'tool_choice' forces a call, but no function in 'tools' can be called", "tool_choice")
    if calls and _OTHER_CALLS in (tokenizer.chat_template or ""):
        raise Refusal(
            400,
            "the embedded engine can only force tool calls in the Qwen and Hermes formats; serve with --engine vllm",
            "tool_choice",
        )
    one_call = request.engine_fields.get("parallel_tool_calls") is False or isinstance(request.tool_choice, dict)
    possible = THINK in (tokenizer.chat_template or "") and THINK in tokenizer.get_vocab() and _may_think(request, switches)
    content = {
        "calls": calls,
        "max_calls": 1 if one_call else MAX_CALLS,
        "json": None if forced or form is None else form[0],
        "strict": form is not None and form[1],
        "reasoning": "begun" if thinking else "possible" if possible else "none",
        "begun": _answer_prefix(request) if not forced and not thinking else "",
        "think": THINK,
        "end_think": END_THINK,
        "begin": CALL,
        "end": END_CALL,
    }
    try:
        return orjson.dumps(content)
    except orjson.JSONEncodeError:
        raise unenforceable(request, CannotFollow("the schema is nested too deeply")) from None


def _may_think(request: GenerationRequest, switches: frozenset[str] | None) -> bool:
    switched = switches is None or any("think" in name or "reason" in name for name in switches)
    begins = not request.continues and not request.prompts
    return begins and switched and request.template_settings.get("enable_thinking") is not False


def _answer_prefix(request: GenerationRequest) -> str:
    """The part of the answer that the client wrote and that the model continues."""
    return str(request.messages[-1]["content"]).rpartition(END_THINK)[2].lstrip() if request.continues else ""


def _forced(request: GenerationRequest) -> bool:
    return request.use_tools and (request.tool_choice == "required" or isinstance(request.tool_choice, dict))


def _calls(request: GenerationRequest) -> list[dict[str, Any]]:
    """The tools that may be called."""
    if not request.use_tools:
        return []
    functions = [tool["function"] for tool in request.tools or () if isinstance(tool.get("function"), dict)]
    if isinstance(request.tool_choice, dict):
        functions = [function for function in functions if function.get("name") == request.tool_choice["function"]["name"]]
    return [
        {"name": function["name"], "schema": _arguments(function.get("parameters")), "strict": function.get("strict") is True}
        for function in functions
        if isinstance(function.get("name"), str)
    ]


def _arguments(schema: Any) -> Any:
    """The schema of a call's arguments. A plain list of properties excludes all others, because no client expects additional
    ones."""
    if not isinstance(schema, dict) or not schema:
        return _ANY_OBJECT
    plain = isinstance(schema.get("properties"), dict) and not schema.keys() & {
        "additionalProperties",
        "patternProperties",
        *_COMBINED,
    }
    return {**schema, "additionalProperties": False} if plain else schema


def _form(request: GenerationRequest) -> tuple[Any, bool] | None:
    """The schema of `response_format`, and whether it is strict."""
    form = request.engine_fields.get("response_format")
    if form is None:
        return None
    if not isinstance(form, dict):
        raise Refusal(400, "'response_format' must be an object", "response_format")
    if form.get("type") in (None, "text"):
        return None
    if form["type"] == "json_object":
        return _ANY_OBJECT, False
    if form["type"] != "json_schema":
        raise Refusal(400, "'response_format.type' must be text, json_object or json_schema", "response_format")
    json_schema = form.get("json_schema")
    schema = json_schema.get("schema") if isinstance(json_schema, dict) else None
    if not isinstance(schema, dict | bool):
        raise Refusal(400, "'response_format.json_schema.schema' must be a JSON schema", "response_format")
    return schema, isinstance(json_schema, dict) and json_schema.get("strict") is True


def unenforceable(request: GenerationRequest, problem: CannotFollow) -> Refusal:
    """The refusal of a form that no grammar can express within the limits."""
    param = api_name(request, "tool_choice" if _forced(request) else "response_format")
    return Refusal(400, f"'{param}' cannot be enforced: {problem}", param)


def api_name(request: GenerationRequest, param: str) -> str:
    """The name of a chat completion's parameter in the client's API."""
    return _API_NAMES.get((request.api, param), param)
