"""Converts sampled ids from any source to visible events: text, reasoning, tool calls, and their tokens."""

from collections.abc import Callable, Sequence
from typing import Any

from clawctl.engines.requests import CallDelta, CallStart, Event, GenerationRequest, Shown, ShownToken, TextDelta
from clawctl.serve.text import CALL, Detokenizer, Parser, PlainText, StopCutter, joined

_HEADER, _OTHER_CALLS = "<|im_start|>", "<function="


def why_undecodable(template: str, tools: bool) -> str | None:
    """The reason why answers of a model with this chat template cannot be parsed here, or None. The Qwen and Hermes families are
    supported."""
    if _HEADER not in template:
        return "only token ids of the Qwen and Hermes families can be parsed"
    if tools and (CALL not in template or _OTHER_CALLS in template):
        return "only Qwen and Hermes tool calls can be parsed from token ids"
    return None


class AnswerDecoder:
    """Decodes one answer."""

    def __init__(self, tokenizer: Any, request: GenerationRequest, thinking: bool, before: Sequence[int] = ()) -> None:
        """`before`: the ids of a prompt without a template that the answer continues."""
        self._detokenizer, self._cutter = Detokenizer(tokenizer, before), StopCutter(request.stop)
        self._parser = PlainText() if request.prompts else Parser(thinking, bool(request.functions))
        self._logprobs = request.logprobs
        self._tops = TopTokens(tokenizer)
        self._barred, self._forced = request.forbids_calls, request.tool_choice not in (None, "auto", "none")
        self._one_call = request.engine_fields.get("parallel_tool_calls") is False
        self._events: list[Event] = []
        self._unseen: list[ShownToken] = []  # visible tokens of held-back text
        self._calls = 0
        self.reasoning_tokens = 0
        self.ended_in_call = False
        self.ended_by_token = False  # the last token is one of the model's control tokens, such as an end token

    @property
    def hit(self) -> str | None:
        """The stop text that was found. Text after it is not shown."""
        return self._cutter.hit

    @property
    def called(self) -> bool:
        return self._calls > 0

    def add(self, token: int, logprob: float | None, top: Sequence[tuple[int, float]] = (), last: bool = False) -> None:
        """Add one sampled token and the most likely alternatives at its position. `last`: the token ends the answer and is not
        text."""
        text = self._detokenizer.feed(token)
        self.ended_by_token = self._detokenizer.is_hidden(token)
        if self._logprobs and logprob is not None and not last and not self._detokenizer.is_hidden(token):
            self._unseen.append(ShownToken(text, logprob, self._tops.in_openai_form(top)))
        self.reasoning_tokens += self._parser.thinking
        self._events += self._parser.feed(self._cutter.feed(text))

    def shown(self) -> Shown | None:
        """The events that became certain since the last call, or None."""
        events, self._events = [event for event in self._events if self._may_show(event)], []
        if not events:
            return None
        tokens, self._unseen = self._unseen, []
        return Shown(joined(events), tokens)

    def end(self) -> Shown | None:
        """The remaining events, including text that was held back."""
        self._events += self._parser.feed(self._cutter.feed(self._detokenizer.end()) + self._cutter.end())
        self.ended_in_call = self._parser.in_call
        cut = not self.ended_by_token
        held = self._parser.end(cut)
        if cut and self._forced:  # the beginning of a marker is not text
            held = [event for event in held if not (isinstance(event, TextDelta) and CALL.startswith(event.text.strip()))]
        self._events += held
        return self.shown()

    def _may_show(self, event: Event) -> bool:
        if self._barred and is_of_a_call(event):
            return False
        self._calls += isinstance(event, CallStart)
        return not (self._one_call and self._calls > 1 and isinstance(event, CallStart | CallDelta))


def is_of_a_call(event: Event) -> bool:
    """Whether the event is a call or a piece of one, well formed or not. A client that forbids calls does not receive it."""
    return isinstance(event, CallStart | CallDelta) or (isinstance(event, TextDelta) and event.text.startswith(CALL))


class TopTokens:
    """The most likely tokens at a position, in OpenAI's format."""

    def __init__(self, tokenizer: Any) -> None:
        self._decode: Callable[[list[int]], str] = tokenizer.decode

    def in_openai_form(self, top: Sequence[tuple[int, float]]) -> list[dict[str, Any]]:
        tokens = []
        for token, logprob in top:
            text = self._decode([token])
            tokens.append({"token": text, "logprob": logprob, "bytes": list(text.encode())})
        return tokens
