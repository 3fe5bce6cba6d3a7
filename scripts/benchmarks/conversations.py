"""Conversations in which secrets are asked for and told, and whether their words and ids hide the same (`conversations.txt`)."""

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from clawctl.config import PrivacyConfig
from clawctl.privacy.redaction import Redactor
from clawctl.run.rows import Exchange
from scripts.benchmarks.labelled_lines import labelled_lines

Said = list[dict[str, Any]]


def _pairs(heading: str) -> list[tuple[str, str]]:
    parts = (Path(__file__).parent / "conversations.txt").read_text().split("# ")
    lines = next(part for part in parts if part.startswith(heading)).splitlines()[1:]
    return [(question, answer) for question, answer in (line.split("\t") for line in lines)]


ASKED, NOT_SECRET = _pairs("asked"), _pairs("ordinary")


class Letters:
    """A tokenizer with one id per character."""

    def __call__(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))

    def placeholder(self, length: int) -> list[int]:
        return [0x2588] * length


def drawn_conversations(count: int, draw: random.Random) -> list[tuple[Said, list[str]]]:
    """Make conversations of a few messages, and the secrets in each."""
    lines = labelled_lines(500, draw.randrange(1 << 30))
    made = []
    for _ in range(count):
        said, secrets = list[dict[str, Any]](), list[str]()
        for _ in range(draw.randint(1, 4)):
            if draw.random() < 0.4:
                question, answer = draw.choice(ASKED)
                said += [{"role": "assistant", "content": question}, {"role": "user", "content": answer}]
                secrets.append(answer)
            else:
                line = draw.choice(lines)
                said += [{"role": "user", "content": line.text}, {"role": "assistant", "content": "Done."}]
                secrets += [line.secret] if line.secret else []
        made.append((said, secrets))
    return made


def disagreements(conversations: Iterable[tuple[Said, list[str]]]) -> int:
    """How many conversations hide a secret in their words but not in their ids, or the reverse."""
    redactor, letters = Redactor(PrivacyConfig().redact, decode=Letters()), Letters()
    return sum(_disagrees(redactor.exchange(_exchange(said)), secrets, letters) for said, secrets in conversations)


def _disagrees(row: Exchange, secrets: list[str], decode: Letters) -> bool:
    words = "\n".join(message["content"] for message in row.messages)
    if row.prompt_ids is None:
        return "[redacted:" not in words
    text = decode(list(row.prompt_ids))
    return any((secret in words) != (secret in text) for secret in secrets)


def _exchange(said: Said) -> Exchange:
    prompt = "".join(f"<|{message['role']}|>{message['content']}<|end|>\n" for message in said) + "<|assistant|>"
    return Exchange(
        "x", 0.0, 1.0, "chat", "anna", "ok", "demo", said, None, {"role": "assistant", "content": "Done."}, "stop",
        list(map(ord, prompt)), list(map(ord, "Done.")), [-0.5] * 5, 0, 0, 1.0, 1.0, 0, {}, None,
    )  # fmt: skip
