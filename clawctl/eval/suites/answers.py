"""Answers to exact prompts, and static checks of an answer that run none of its code."""

import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import yaml

from clawctl.asking import TIMEOUT_S, Refused, count_call
from clawctl.http_client import Client, RequestFailed, proxy_for
from clawctl.run.endpoint import QUIET, Endpoint
from clawctl.run.rows import Message

Call = tuple[str | None, Any]  # name and arguments; both None if the markup cannot be parsed


@dataclass(frozen=True, slots=True)
class Answered:
    """A version's answer to a prompt of token ids."""

    text: str  # as sampled, including markup
    tokens: int
    finish_reason: str | None

    @property
    def message(self) -> Message:
        """The answer in chat format, without reasoning. Calls that cannot be parsed stay in the text."""
        text = self.visible
        calls = list(calls_in(text))
        if not calls or any(name is None for name, _ in calls):
            return {"role": "assistant", "content": text}
        made = [{"type": "function", "function": {"name": name, "arguments": orjson.dumps(args).decode()}} for name, args in calls]
        return {"role": "assistant", "content": _CALLS.sub("", text).strip(), "tool_calls": made}

    @property
    def visible(self) -> str:
        return _THOUGHT.sub("", self.text.rpartition("</think>")[2]).strip()


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A version's reply in a chat, as a client receives it."""

    text: str  # without reasoning
    calls: tuple[Call, ...]


async def reply(client: Client, endpoint: Endpoint, messages: Sequence[Message], **fields: Any) -> ChatReply:
    """Request one chat completion. Raises Refused."""
    choice, _ = await _posted(client, endpoint, "/chat/completions", {**endpoint.sampling, **fields, "messages": list(messages)})
    message = choice["message"]
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    read = tuple((call.get("name"), _arguments(call.get("arguments"))) for call in calls)
    return ChatReply(_THOUGHT.sub("", str(message.get("content") or "").rpartition("</think>")[2]).strip(), read)


def _arguments(text: Any) -> Any:
    try:
        return orjson.loads(text) if isinstance(text, str) else text
    except ValueError:
        return None


async def answer(client: Client, endpoint: Endpoint, ids: Sequence[int], **sampling: Any) -> Answered:
    """Sample an answer to a prompt of token ids. Raises Refused."""
    choice, usage = await _posted(client, endpoint, "/completions", {**endpoint.sampling, **sampling, "prompt": list(ids)})
    return Answered(str(choice["text"]), int(usage.get("completion_tokens") or 0), choice["finish_reason"])


async def score(client: Client, endpoint: Endpoint, prompt: Sequence[int], completion: Sequence[int]) -> list[float]:
    """The logprob of each id of `completion` after `prompt`. Raises Refused."""
    response = await _post_json(client, endpoint, "/score", {"ids": [*prompt, *completion], "first": len(prompt)})
    try:
        logprobs: list[float] = response["logprobs"]
        if len(logprobs) != len(completion) or any(not isinstance(value, float | int) for value in logprobs):
            raise ValueError("not one log-probability for each token")
    except (ValueError, LookupError, TypeError) as error:
        raise Refused(f"not a score: {error!r}", 400) from error
    return logprobs


async def _posted(client: Client, endpoint: Endpoint, path: str, body: Mapping[str, Any]) -> tuple[dict, dict]:
    """The first choice of an answer, and the answer's usage. Raises Refused."""
    response = await _post_json(client, endpoint, path, body)
    try:
        return response["choices"][0], response.get("usage") or {}
    except (LookupError, TypeError) as error:
        raise Refused(f"not a completion: {error!r}") from error


@asynccontextmanager
async def client_of(endpoint: Endpoint) -> AsyncIterator[Client]:
    """A client for an endpoint's server. Its calls are not captured."""
    headers = {**QUIET, **endpoint.headers}
    async with Client(endpoint.url, endpoint.api_key, headers, proxy=proxy_for(endpoint.url)) as client:
        yield client


async def _post_json(client: Client, endpoint: Endpoint, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    try:
        response = await client.request(path, orjson.dumps({"model": endpoint.model, **body}), TIMEOUT_S)
        if response.status != 200:
            raise Refused(f"status {response.status}: {response.body[:200].decode(errors='replace')}", response.status)
        data = orjson.loads(response.body)
    except RequestFailed as error:
        raise Refused(str(error)) from error
    except ValueError as error:
        raise Refused(f"not JSON: {error!r}") from error
    if not isinstance(data, dict):
        raise Refused("not a JSON object")
    count_call(data.get("usage"))
    return data


# ---- tool calls ----------------------------------------------------------------------------------------------------------

_THOUGHT = re.compile(r"\A\s*<think>.*\Z", re.DOTALL)  # reasoning without an end tag
_CALLS = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_XML_CALL = re.compile(r"\A\s*<function=([^>\n]+)>(.*)</function>\s*\Z", re.DOTALL)
_XML_ARGUMENT = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_TYPES: dict[str, Any] = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict}


def calls_in(text: str) -> Iterator[Call]:
    """The calls in `<tool_call>` blocks, written as JSON (Qwen, Hermes) or as `<function=…>` markup (Qwen Coder)."""
    for block in _CALLS.findall(text):
        if (xml := _XML_CALL.match(block)) is not None:
            yield xml[1].strip(), dict(_XML_ARGUMENT.findall(xml[2]))
            continue
        try:
            call = orjson.loads(block)
            name, arguments = call["name"], call.get("arguments", {})
            yield name, orjson.loads(arguments) if isinstance(arguments, str) else arguments
        except (ValueError, LookupError, TypeError, AttributeError):
            yield None, None


def is_valid_call(call: Call, tools: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a call names an offered function, and has its required arguments in their types. XML arguments are text."""
    name, arguments = call
    functions = {tool["function"].get("name"): tool["function"] for tool in tools if isinstance(tool.get("function"), dict)}
    if name not in functions or not isinstance(arguments, dict):
        return False
    schema = functions[name].get("parameters") or {}
    properties = schema.get("properties") or {}
    if not set(schema.get("required") or ()) <= arguments.keys():
        return False
    if properties and schema.get("additionalProperties") is not True and not arguments.keys() <= properties.keys():
        return False
    return all(_fits(value, properties.get(key)) for key, value in arguments.items())


def _fits(value: Any, schema: Any) -> bool:
    kind = schema.get("type") if isinstance(schema, dict) else None
    expected = _TYPES.get(kind) if isinstance(kind, str) else None
    if expected is None or (isinstance(value, str) and kind != "string"):
        return expected is None or kind in ("integer", "number", "boolean", "array", "object")  # XML markup has no types
    return isinstance(value, expected) and not (isinstance(value, bool) and kind in ("integer", "number"))


# ---- refusals and languages ----------------------------------------------------------------------------------------------

_WORDS = yaml.safe_load((Path(__file__).parent / "languages.yaml").read_text(encoding="utf-8"))
_REFUSAL = re.compile(rf"(?i)\b({'|'.join(_WORDS['refusals'])})|{'|'.join(_WORDS['refusals_without_words'])}")
_OPENING = 240  # the number of initial characters that are searched for a refusal
_SCRIPTS = (
    ("ja", re.compile(r"[\u3040-\u30ff]")), ("ko", re.compile(r"[\uac00-\ud7af]")), ("zh", re.compile(r"[\u4e00-\u9fff]")),
    ("ru", re.compile(r"[\u0400-\u04ff]")), ("ar", re.compile(r"[\u0600-\u06ff]")), ("he", re.compile(r"[\u0590-\u05ff]")),
    ("el", re.compile(r"[\u0370-\u03ff]")), ("hi", re.compile(r"[\u0900-\u097f]")), ("th", re.compile(r"[\u0e00-\u0e7f]")),
)  # fmt: skip
_LANGUAGES = {language: frozenset(words.split()) for language, words in _WORDS["function_words"].items()}
_WORD = re.compile(r"[^\W\d_]+")
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`|https?://\S+", re.DOTALL)


def is_refusal(text: str) -> bool:
    """Whether an answer begins with a refusal to help."""
    return _REFUSAL.search(text[:_OPENING]) is not None


def language_of(text: str) -> str | None:
    """The main language of a text, by its script or its function words. None if it cannot be determined. Code is ignored."""
    prose = _CODE.sub(" ", text[:8000])
    letters = sum(map(len, _WORD.findall(prose)))
    if not letters:
        return None
    for language, script in _SCRIPTS:
        if len(script.findall(prose)) > (0.1 if language == "ja" else 0.3) * letters:
            return language
    words = [word.lower() for word in _WORD.findall(prose)]
    counts = Counter({language: sum(word in common for word in words) for language, common in _LANGUAGES.items()})
    (first, first_count), (_, second_count) = counts.most_common(2)
    return first if first_count >= 2 and first_count > 1.3 * second_count and first_count >= 0.08 * len(words) else None
