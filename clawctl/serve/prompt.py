"""Renders a chat to the ids that enter the engine, with the model's own template and nothing added."""

import json
import re
import secrets
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jinja2
import orjson

from clawctl.control_tokens import Guarded, guard, prepare
from clawctl.engines.requests import EarlierAnswer, GenerationRequest, Refusal
from clawctl.errors import ClawError
from clawctl.run.images import IMAGE, image_urls
from clawctl.run.rows import Message
from clawctl.serve.chat_tokenizer import load
from clawctl.serve.dialects.fields import LATER_SYSTEM, NO_IMAGES, TOOLS_UNSHOWN, later_system_as_user
from clawctl.serve.images import size_of
from clawctl.serve.splicing import splice
from clawctl.serve.text import CALL, END_CALL, END_THINK, THINK
from clawctl.serve.work_queues import WorkQueues
from clawctl.vision import SentImage
from clawctl.vision.reader import ImageReader, UnreadableImage, expand

UNCERTAIN = "the template does not show for certain where an answer stands"
_MARK = -1  # stands for an image's ids until their number is known
_EMPTY_THOUGHT = re.compile(r"<think>\s*</think>\s*$")
_TEMPLATE_ERRORS = (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, RecursionError)


def load_tokenizer(path: str) -> Any:
    """The tokenizer in the model's folder. Raises ClawError if there is none, or if it has no chat template."""
    try:
        tokenizer = load(path)
    except (OSError, ValueError) as error:
        raise ClawError(
            f"the tokenizer in {path} cannot be loaded: {error}", "pass a complete model directory with --model", 2
        ) from error
    if not tokenizer.chat_template:
        raise ClawError(f"the tokenizer in {path} has no chat template", "choose a chat (instruct) model with --model", 2)
    prepare(tokenizer)
    return tokenizer


@dataclass(frozen=True, slots=True)
class Rendered:
    ids: list[int]
    thinking: bool  # the answer begins within reasoning
    spliced: int | None  # number of earlier answers whose sampled ids are in `ids`; None: not requested
    unspliced: str | None  # the reason why known answers are not spliced
    plain: list[int]  # the ids of the rendering without splicing
    messages: list[Message]  # the messages that were rendered, as sent or adapted
    adapted: str | None  # changes to the messages that the template required
    images: tuple[SentImage, ...] = ()  # with their positions in `ids`


async def render_in_thread(
    tokenizer: Any, request: GenerationRequest, queues: WorkQueues, splicing: bool = False, reader: ImageReader | None = None
) -> Rendered:
    """Like `render`, but a long request is rendered and tokenised in a thread, so that streams continue."""
    size = max(request.size, sum(len(message["content"]) for message in request.messages))
    return await queues.run(request.key, size, partial(render, tokenizer, request, splicing, reader))


async def plain_in_thread(tokenizer: Any, request: GenerationRequest, queues: WorkQueues) -> Rendered:
    """The prompt of a plain completion: token ids unchanged, or a text's ids. Control tokens in the text are encoded as such."""
    prompt = request.prompts[0]
    if isinstance(prompt, str):
        encode = partial(tokenizer, prompt, add_special_tokens=request.add_special_tokens)
        ids = list((await queues.run(request.key, len(prompt), encode))["input_ids"])
    else:
        ids = list(prompt)
    return Rendered(ids, False, None, None, ids, request.messages, None)


def render(tokenizer: Any, request: GenerationRequest, splicing: bool = False, reader: ImageReader | None = None) -> Rendered:
    """The prompt. `reader`: how the model reads images; None: it accepts none. Raises Refusal if the model does not accept the
    images, or if the template refuses the messages."""
    write = _for_template if "tool_calls" in tokenizer.chat_template else _with_calls_as_text
    messages, files = [write(message) for message in request.messages], list[tuple[bytes, int]]()
    if any(isinstance(message.get("content"), list) for message in messages):
        if reader is None:
            raise Refusal(400, NO_IMAGES, "messages")
        files = [_measured(url, reader) for url in image_urls(messages)]
        messages = [_without_urls(message) for message in messages]
    settings = {key: value for key, value in request.template_settings.items() if key not in ("tokenize", "return_dict")}
    if isinstance(effort := request.engine_fields.get("reasoning_effort"), str):
        settings.setdefault("reasoning_effort", effort)  # as in vLLM; most templates do not read it
    settings["add_generation_prompt"] = request.prompted and not request.continues
    safe = guard(tokenizer, messages, request.shown_tools or None, settings)
    if files and reader is not None:
        safe = replace(safe, encode=partial(_marked, safe.encode, reader.placeholder))
    template_arguments = {"tools": safe.tools, "tokenize": False, **safe.settings}
    try:
        messages, text = (_apply_continued if request.continues else _apply)(tokenizer, safe.messages, template_arguments)
    except _TEMPLATE_ERRORS as error:
        raise Refusal(400, f"the model's chat template cannot render these messages: {error}", "messages") from error
    plain = safe.encode(text)
    ids, spliced, unspliced = plain, 0 if splicing else None, None
    if splicing and request.answers and settings["add_generation_prompt"]:
        splicing_result = _splice(tokenizer, messages, template_arguments, text, request.answers, safe)
        if splicing_result is None:
            unspliced = UNCERTAIN
        elif splicing_result[0] != plain:
            ids, spliced = splicing_result
    images = list[SentImage]()
    if files and reader is not None:
        try:
            plain, _ = expand(plain, _MARK, reader.placeholder, files)
            ids, images = expand(ids, _MARK, reader.placeholder, files)
        except ValueError as error:
            raise Refusal(400, f"the model's chat template cannot render these images: {error}", "messages") from error
    changed = _roles(messages) != _roles(request.messages)
    rendered = later_system_as_user(request.messages) if changed else request.messages
    adapted = [LATER_SYSTEM] * changed + [TOOLS_UNSHOWN] * request.forbids_calls
    return Rendered(ids, _thinking(request, text), spliced, unspliced, plain, rendered, "; ".join(adapted) or None, tuple(images))


def _thinking(request: GenerationRequest, text: str) -> bool:
    """Whether the answer begins within reasoning."""
    if not request.continues:
        return text.rstrip().endswith(THINK)
    begun = str(request.messages[-1]["content"])
    return begun.lstrip().startswith(THINK) and END_THINK not in begun


def _roles(messages: list[Message]) -> list[str]:
    return [message["role"] for message in messages]


def _apply(tokenizer: Any, messages: list[Message], template_arguments: dict[str, Any]) -> tuple[list[Message], str]:
    """The template's text, and the messages it was rendered from. Some templates accept a system message only at the beginning,
    while some clients send one later."""
    try:
        return messages, str(tokenizer.apply_chat_template(messages, **template_arguments))
    except jinja2.TemplateError:
        changed = later_system_as_user(messages)
        if changed == messages:
            raise
        return changed, str(tokenizer.apply_chat_template(changed, **template_arguments))


def _apply_continued(tokenizer: Any, messages: list[Message], template_arguments: dict[str, Any]) -> tuple[list[Message], str]:
    """The template's text up to the end of the last message, with every character as it was sent. The answer continues there. A
    mark is rendered in place of the message, so that the template cannot change the ends of its text."""
    mark, last = secrets.token_hex(12), messages[-1]
    rendered, text = _apply(tokenizer, [*messages[:-1], {**last, "content": mark}], template_arguments)
    before, separator, _ = text.rpartition(mark)
    if not separator:
        raise ValueError("the template does not show the last message")
    if last["content"].lstrip().startswith(THINK):
        before = _EMPTY_THOUGHT.sub("", before)
    return [*rendered[:-1], last], before + last["content"]


def _splice(
    tokenizer: Any,
    messages: list[Message],
    template_arguments: dict[str, Any],
    text: str,
    answers: dict[int, list[EarlierAnswer]],
    safe: Guarded,
) -> tuple[list[int], int] | None:
    def render_changed(changed: list[Message], prompted: bool) -> str:
        return str(tokenizer.apply_chat_template(changed, **{**template_arguments, "add_generation_prompt": prompted}))

    try:
        return splice(tokenizer, render_changed, messages, text, answers, safe.encode)
    except _TEMPLATE_ERRORS:
        return None  # the template fails on the marks that replace its assistant's messages


def _measured(url: str, reader: ImageReader) -> tuple[bytes, int]:
    """The file of an image that was already checked (`serve.images`), and its number of tokens. Raises Refusal."""
    content = b64decode(url.partition(",")[2])
    try:
        return content, reader.tokens(*size_of(content))
    except UnreadableImage as error:
        raise Refusal(400, str(error), "messages") from error


def _without_urls(message: dict[str, Any]) -> dict[str, Any]:
    """The message with bare image parts. Templates write a placeholder for an image and need no pixels."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": [{"type": "image"} if part.get("type") == IMAGE else part for part in content]}


def _marked(encode: Callable[[str], list[int]], placeholder: int, text: str) -> list[int]:
    """The ids of rendered text, with `_MARK` in place of each image placeholder. A placeholder that a model sampled stays an
    ordinary token."""
    return [_MARK if token == placeholder else token for token in encode(text)]


def _for_template(message: dict[str, Any]) -> dict[str, Any]:
    """The message with tool arguments as values, because templates expect values, not JSON text."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {**message, "tool_calls": [_with_values(call) for call in calls]}


def _with_calls_as_text(message: dict[str, Any]) -> dict[str, Any]:
    """The message for a template without tools: its calls as Qwen and Hermes write them, which is how answers are read."""
    calls = [call.get("function") or {} for call in _for_template(message).get("tool_calls") or ()]
    if not calls or not isinstance(message["content"], str):
        return message
    written = [json.dumps({"name": call.get("name"), "arguments": call.get("arguments")}, ensure_ascii=False) for call in calls]
    texts = [message["content"], *(f"{CALL}\n{text}\n{END_CALL}" for text in written)]
    return {**message, "content": "\n".join(filter(None, texts)), "tool_calls": None}


def _with_values(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = orjson.loads(function["arguments"])
    except orjson.JSONDecodeError:
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call
