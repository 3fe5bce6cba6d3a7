"""Reads a request's fields strictly: a wrong type raises a Refusal that names the parameter; an absent or null field is None."""

from typing import Any

import orjson

from clawctl.engines.requests import Refusal

Object = dict[str, Any]
LATER_SYSTEM = "later system messages as user"
TOOLS_UNSHOWN = "tools not shown: tool_choice is none"
NO_IMAGES = "this model takes no images"
MAX_STOPS, LONGEST_STOP = 64, 256  # every stop string is searched for after each token
MAX_BIASES = 4096
LONGEST_NAME = 256  # characters of a model's name; each piece of a stream repeats it


def wrong(where: str, what: str) -> Refusal:
    return Refusal(400, f"'{where}' must be {what}", where)


def number(body: Object, name: str, minimum: float, maximum: float) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value <= maximum:
        raise wrong(name, f"a number from {minimum} to {maximum}")
    return float(value)


def whole_number(body: Object, name: str, minimum: int, maximum: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        is_open = maximum >= 1 << 31 and not (isinstance(value, int) and value > maximum)
        raise wrong(name, f"a whole number, at least {minimum}" if is_open else f"a whole number from {minimum} to {maximum}")
    return value


def flag(body: Object, name: str) -> bool | None:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise wrong(name, "true or false")
    return value


def text(body: Object, name: str, where: str | None = None) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise wrong(where or name, "a string")
    return value


def an_object(value: Any, where: str) -> Object:
    if not isinstance(value, dict):
        raise wrong(where, "an object")
    return value


def object_or_none(body: Object, name: str) -> Object:
    """The object; empty if the field is absent or null."""
    value = body.get(name)
    return {} if value is None else an_object(value, name)


def json_object(text: str) -> Object:
    """The JSON object that a text contains; empty if it contains none."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def objects(value: Any, where: str) -> list[Object]:
    if not isinstance(value, list):
        raise wrong(where, "a list of objects")
    return [an_object(element, f"{where}[{i}]") for i, element in enumerate(value)]


def strings(value: Any, where: str) -> list[str]:
    """One string or a list of strings. Empty strings are dropped."""
    texts = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(element, str) for element in texts):
        raise wrong(where, "a string or a list of strings")
    return [element for element in texts if element]


def stops(value: Any, where: str) -> list[str]:
    """The stop strings of a request."""
    texts = strings(value, where)
    if len(texts) > MAX_STOPS:
        raise Refusal(400, f"'{where}' may contain at most {MAX_STOPS} strings", where)
    if any(len(stop) > LONGEST_STOP for stop in texts):
        raise Refusal(400, f"each string of '{where}' may have at most {LONGEST_STOP} characters", where)
    return texts


def model_name(body: Object, live_name: str) -> str:
    model = body.get("model", live_name)
    if not isinstance(model, str):
        raise wrong("model", "a string")
    if len(model) > LONGEST_NAME:
        raise Refusal(404, f"model names have at most {LONGEST_NAME} characters", "model", "model_not_found")
    return model


def used(body: Object) -> tuple[str, ...]:
    """The fields of a body that change the answer."""
    return tuple(name for name, value in body.items() if value is not None and value is not False)


def common(body: Object, live_name: str, limit: str = "max_tokens") -> dict[str, Any]:
    """The fields of a `GenerationRequest` that every API has. `limit` is the name of its field for the maximum answer length.
    Raises Refusal."""
    return {
        "model": model_name(body, live_name),
        "stream": bool(flag(body, "stream")),
        "temperature": number(body, "temperature", 0, 100),
        "top_p": number(body, "top_p", 0, 1),
        "top_k": max(0, whole_number(body, "top_k", -1, 1 << 31) or 0),
        "max_tokens": whole_number(body, limit, 1, 1 << 31),
        "max_tokens_may_shrink": True,
        "fields": used(body),
    }


Parts = str | list[Object]  # a message's content in OpenAI chat form: text, or parts with images


def as_content(parts: list[Object]) -> Parts:
    """The parts joined to one text, unless they include an image."""
    if any(part["type"] != "text" for part in parts):
        return parts
    return "".join(part["text"] for part in parts)


def text_part(content: str) -> Object:
    return {"type": "text", "text": content}


def image_part(url: str, detail: Any = None) -> Object:
    return {"type": "image_url", "image_url": {"url": url, "detail": detail} if isinstance(detail, str) else {"url": url}}


def left_out(what: str, name: Any) -> Object:
    """A note in the prompt in place of a file that no model here can read. Such files are never refused or dropped silently."""
    named = f" {name!r}" if isinstance(name, str) and name else ""
    return text_part(f"[{what}{named} was left out: only text and images can be read here]")


def for_engine(sent: list[Object]) -> list[Object]:
    """Messages as an engine accepts them: known roles, text or parts as content, no internal keys. Leading system messages are
    joined, because clients send several and many templates accept only one, at the beginning."""
    messages = [
        {
            **{key: value for key, value in message.items() if key not in ("handle", "is_error")},
            "role": "system" if message["role"] == "developer" else message["role"],
            "content": "" if message["content"] is None else message["content"],
        }
        for message in sent
    ]
    count = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    leading = messages[:count]
    if count < 2 or not all(isinstance(message["content"], str) for message in leading):
        return messages
    return [{"role": "system", "content": "\n\n".join(m["content"] for m in leading)}, *messages[count:]]


def later_system_as_user(messages: list[Object]) -> list[Object]:
    """The same messages, with every system message except the first message converted to a user message."""
    return [{**m, "role": "user"} if i and m["role"] == "system" else m for i, m in enumerate(messages)]


def steering(body: Object, vocabulary: int) -> dict[str, Any]:
    """The fields that change a model's distribution or make sampling reproducible, named as in
    `clawctl.engines.embedded.frames.Sampling`. Absent fields are omitted. Raises Refusal."""
    ranges = {"min_p": (0, 1), "presence_penalty": (-2, 2), "frequency_penalty": (-2, 2), "repetition_penalty": (0.01, 100)}
    read: dict[str, Any] = {name: number(body, name, *ranges[name]) for name in ranges}
    read["seed"] = whole_number(body, "seed", -(1 << 63), (1 << 63) - 1)
    read["logit_bias"] = _logit_bias(object_or_none(body, "logit_bias"), vocabulary)
    return {name: value for name, value in read.items() if value is not None}


def _logit_bias(biases: Object, vocabulary: int) -> dict[int, float]:
    if len(biases) > MAX_BIASES:
        raise Refusal(400, f"'logit_bias' may contain at most {MAX_BIASES} tokens", "logit_bias")
    ids = {name: int(name) for name in biases if name.isascii() and name.isdigit() and len(name) < 10}
    if len(ids) < len(biases) or any(token >= vocabulary for token in ids.values()):
        raise wrong("logit_bias", f"an object whose names are token ids below {vocabulary}")
    return {ids[name]: number(biases, name, -100, 100) or 0.0 for name in biases}
