"""Plain completions: a prompt that begins with another's prompt and answer continues it. The added text is the next state.

A client that sends text may not have the ids, and a client that sends ids may have omitted the end token. So text and ids are both
compared, and ids with and without the last one if the answer was complete.

A chat request is read like that if its conversation is one message that ends with a label, such as "AI:", and both end with it.
"""

import itertools
import re
from array import array
from collections.abc import Iterator
from hashlib import blake2b

from clawctl.collect.nodes import Beginning, Node
from clawctl.run.rows import Exchange, Message, is_plain

_Data = str | bytes
# How templates of common models begin a message, with its role, and their other markers.
_TURN = re.compile(
    r"<\|im_start\|>(\w+)\n?|<\|start_header_id\|>(\w+)<\|end_header_id\|>\s*|<start_of_turn>(\w+)\n?|<\|(user|assistant|system|observation)\|>\n?"
    r"|\[(INST)\]"
)
_MARK = re.compile(r"<\|[^<>|\s]{1,40}\|>|<(?:start|end)_of_turn>|</s>|<eos>|\[/?INST\]")
_ROLES = {
    "assistant": "assistant", "model": "assistant", "system": "system", "tool": "tool", "ipython": "tool", "observation": "tool",
}  # fmt: skip


def beginnings(exchange: Exchange) -> tuple[Beginning, ...]:
    """Return the prefixes of prompts that continue this exchange, text first. Empty unless it is a plain completion with an
    answer.
    """
    answer = None if exchange.response is None else exchange.response.get("content")
    text, label = _text(exchange)
    if not text or not isinstance(answer, str) or not answer or exchange.status == "error":
        return ()
    text = label + "".join((text + answer).split())
    beginnings = [Beginning("text", len(text), _digest(text))]
    if not label and exchange.prompt_ids and exchange.completion_ids:
        ids = array("i", [*exchange.prompt_ids, *exchange.completion_ids])
        parts = [ids, ids[:-1]] if exchange.finish_reason == "stop" else [ids]
        beginnings += [Beginning("ids", len(part.tobytes()), _digest(part.tobytes())) for part in parts]
    return tuple(beginnings)


class CompletionIndex:
    """Open turns, by the prefixes of prompts that would continue them."""

    def __init__(self) -> None:
        # By user and kind, then by length: a prompt is hashed once per length, however many turns have that length
        self._nodes: dict[tuple[str, str], dict[int, dict[bytes, list[Node]]]] = {}

    def __len__(self) -> int:
        return sum(len(nodes) for lengths in self._nodes.values() for of in lengths.values() for nodes in of.values())

    def add(self, node: Node) -> None:
        for beginning in node.beginnings:
            lengths = self._nodes.setdefault((node.user, beginning.kind), {})
            lengths.setdefault(beginning.length, {}).setdefault(beginning.digest, []).append(node)

    def remove(self, node: Node) -> None:
        for beginning in node.beginnings:
            lengths = self._nodes[node.user, beginning.kind]
            lengths[beginning.length][beginning.digest].remove(node)
            if not lengths[beginning.length][beginning.digest]:
                del lengths[beginning.length][beginning.digest]
            if not lengths[beginning.length]:
                del lengths[beginning.length]
            if not lengths:
                del self._nodes[node.user, beginning.kind]

    def find(self, exchange: Exchange) -> Iterator[tuple[Node, str | None]]:
        """Yield the turns that this prompt continues, each with the text that the prompt adds, or None if that text is unknown."""
        text, label = _text(exchange)
        letters = label + "".join(text.split())
        prompts: dict[str, _Data] = {"text": letters, "ids": b"" if label else array("i", exchange.prompt_ids or ()).tobytes()}
        for kind, data in prompts.items():
            by_length = self._nodes.get((exchange.key, kind), {})
            for length, digest in _digests(data, sorted(length for length in by_length if length <= len(data))):
                for node in by_length[length].get(digest, ()):
                    beginning = node.beginnings[0]
                    begins = beginning.length <= len(letters) and _digest(letters[: beginning.length]) == beginning.digest
                    yield node, _behind(text, beginning.length - len(label)) if begins else None


def next_messages(added: str | None) -> list[Message] | None:
    """Return the text that a prompt adds as messages, or None if it adds nothing.

    In a conversation that the client rendered, these are the messages up to the next answer, without template markers. Otherwise it
    is the text itself.
    """
    if added is None:
        return None
    marks = list(_TURN.finditer(added))
    text_before = _MARK.sub("", added[: marks[0].start()] if marks else added)
    messages: list[Message] = [{"role": "user", "content": text_before}] if text_before.strip() else []
    for index, mark in enumerate(marks):
        role = _ROLES.get(next(filter(None, mark.groups()), "user").strip(), "user")
        message_text = added[mark.end() : marks[index + 1].start() if index + 1 < len(marks) else len(added)]
        message_text, _, answered = message_text.partition("[/INST]")
        text = _MARK.sub("", message_text).strip()
        if role == "assistant":
            break
        if text and role != "system":
            messages.append({"role": role, "content": text})
        if answered.strip():
            break
    return messages or None


def _digests(data: _Data, lengths: list[int]) -> Iterator[tuple[int, bytes]]:
    """Yield the digest of each prefix; the data is read once."""
    running, done = blake2b(digest_size=16), 0
    for length in lengths:
        running.update(_bytes(data[done:length]))
        done = length
        yield length, running.digest()


def _digest(data: _Data) -> bytes:
    return blake2b(_bytes(data), digest_size=16).digest()


def _bytes(data: _Data) -> bytes:
    return data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass")


def _behind(text: str, letters: int) -> str:
    """Return the text behind this many characters that are not spaces."""
    ends = itertools.islice(re.finditer(r"\S", text), letters - 1, None)
    return text[next(ends).end() :]


def _text(exchange: Exchange) -> tuple[str, str]:
    """Return the prompt of a completion, or of a chat request that is read like one, and the label at its end. Else two empty
    texts.
    """
    if is_plain(exchange.messages):
        content = exchange.messages[0].get("content")
        return (content if isinstance(content, str) else ""), ""
    contents = [message.get("content") for message in exchange.messages if message.get("role") not in ("system", "developer")]
    text = contents[0].rstrip() if len(contents) == 1 and isinstance(contents[0], str) else ""
    label = text.rpartition("\n")[2]
    return (text, f"{label}\n") if label != text and label.endswith(":") else ("", "")
