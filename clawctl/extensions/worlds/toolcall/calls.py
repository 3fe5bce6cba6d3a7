"""Compares calls with BFCL's ground truth by the rules of its `ast_checker`, and converts its schemas to JSON schemas."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

CATEGORIES = (  # of BFCL: one turn, and Python's types
    "simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance", "live_simple", "live_multiple", "live_parallel",
    "live_parallel_multiple", "live_irrelevance", "live_relevance",
)  # fmt: skip
FORMER = {"simple": "simple_python"}  # before BFCL v4
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (float, int), "boolean": (bool,), "array": (list,), "object": (dict,),
}  # fmt: skip
_LEFT_OUT = re.compile(r"[ ,./\-_*^]")


def is_same_call(
    calls: Sequence[tuple[str, dict[str, Any] | None]], allowed: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> bool:
    """Whether the calls match BFCL's ground truth, in any order: [{"area": {"width": [3, 3.0], "unit": ["cm", ""]}}].

    Each argument has a list of allowed values; "" in the list means that the argument is optional. `tools` are the offered tools.
    """
    if len(calls) != len(allowed):
        return False
    functions = {tool["function"]["name"]: tool["function"] for tool in tools}
    left = list(calls)
    for wanted in allowed:
        (name, values), *_ = wanted.items()
        name = plain_name(name)
        schema = functions.get(name, {}).get("parameters", {})
        fits = (call for call in left if call[0] == name and call[1] is not None and _fits(call[1], values, schema))
        if (fit := next(fits, None)) is None:
            return False
        left.remove(fit)
    return True


def plain_name(name: str) -> str:
    """A function's name with "_" for ".", because no API accepts dots."""
    return name.replace(".", "_")


def _fits(arguments: Mapping[str, Any], wanted: Mapping[str, Sequence[Any]], schema: Mapping[str, Any]) -> bool:
    properties = schema.get("properties", {})
    if set(schema.get("required", ())) - set(arguments) or set(arguments) - set(wanted) or set(arguments) - set(properties):
        return False
    if any("" not in values for name, values in wanted.items() if name not in arguments):
        return False
    return all(_is_allowed(value, wanted[name], properties[name]) for name, value in arguments.items())


def _is_allowed(value: Any, allowed: Sequence[Any], schema: Mapping[str, Any]) -> bool:
    """Whether a value has the declared type or the type of the ground truth (which may be a variable's name), and is allowed."""
    declared = _TYPES.get(str(schema.get("type")), (str,))
    kind = next((type(item) for item in allowed if item != ""), None)
    if type(value) is not kind and (type(value) not in declared or not _has_items(value, allowed, schema)):
        return False
    if isinstance(value, dict):
        return any(item != "" and _is_same_mapping(value, item) for item in allowed)
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return any(
            isinstance(item, list) and len(item) == len(value) and all(map(_is_same_mapping, value, item)) for item in allowed
        )
    return _standard(value) in [_standard(item) for item in allowed]


def _has_items(value: Any, allowed: Sequence[Any], schema: Mapping[str, Any]) -> bool:
    """Whether all items of a list have the declared type, or the types of an allowed list's items."""
    inner = _TYPES.get(str(schema.get("items", {}).get("type"))) if isinstance(value, list) else None
    if inner is None:
        return True
    lists = [option for option in allowed if isinstance(option, list)]
    return any(all(type(item) in (*inner, *map(type, option)) for item in value) for option in lists)


def _is_same_mapping(value: Any, wanted: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(wanted, dict) or set(value) - set(wanted):
        return False
    if any("" not in values for name, values in wanted.items() if name not in value):
        return False
    return all(_standard(given) in [_standard(option) for option in wanted[name]] for name, given in value.items())


def _standard(value: Any) -> Any:
    """Drop spaces, case and some punctuation from texts: "April 1, 2024" equals "april 1 2024"."""
    if isinstance(value, str):
        return _LEFT_OUT.sub("", value).lower().replace("'", '"')
    return [_standard(item) if isinstance(item, str) else item for item in value] if isinstance(value, list) else value


_JSON_TYPES = {
    "dict": "object", "hashmap": "object", "hashtable": "object", "float": "number", "double": "number", "tuple": "array",
    "list": "array", "arraylist": "array", "queue": "array", "stack": "array", "bool": "boolean", "any": "string", "char": "string",
    "byte": "integer", "short": "integer", "long": "integer", "bigint": "integer",
}  # fmt: skip


def json_schema(schema: Any) -> Any:
    """Convert BFCL's type names to JSON schema's: "dict" becomes "object", "float" becomes "number"."""
    if isinstance(schema, list):
        return [json_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    converted = {name: json_schema(value) for name, value in schema.items()}
    if isinstance(converted.get("type"), str):
        converted["type"] = _JSON_TYPES.get(converted["type"].lower(), converted["type"].lower())
    return json.loads(json.dumps(converted))
