"""Conversations in which secrets are asked for and told, and whether their words and ids hide the same.

The questions and answers are in `conversations.txt`, beside which the rules were written, and in `conversations_told.jsonl`, whose
author wrote them before reading the rules for answers.
"""

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import orjson

from clawctl.config import PrivacyConfig
from clawctl.privacy.redaction import Redactor
from clawctl.run.rows import Exchange
from scripts.benchmarks.labelled_lines import labelled_lines
from scripts.benchmarks.table import Row

Said = list[dict[str, Any]]


def _pairs(heading: str) -> list[tuple[str, str]]:
    parts = (Path(__file__).parent / "conversations.txt").read_text().split("# ")
    lines = next(part for part in parts if part.startswith(heading)).splitlines()[1:]
    return [(question, answer) for question, answer in (line.split("\t") for line in lines)]


ASKED, NOT_SECRET = _pairs("asked"), _pairs("ordinary")


def _told() -> list[tuple[Said, str | None]]:
    """Return the conversations of a file, and the secret in the last message of each."""
    lines = (Path(__file__).parent / "conversations_told.jsonl").read_text().splitlines()
    return [(_said(*line["said"]), line["secret"]) for line in map(orjson.loads, lines)]


def strangers() -> list[tuple[Said, str | None]]:
    """Conversations by six authors who had not read the rules; the last two are about code and secrets that an assistant keeps.
    The rules were changed after each author's first run, which NOTES.md records: those are the unbiased figures."""
    lines = (Path(__file__).parent / "conversations_strangers.jsonl").read_text().splitlines()
    return [(_said(*line["said"], roles=line.get("roles", ())), line["secret"]) for line in map(orjson.loads, lines)]


def _said(*texts: str, roles: Sequence[str] = ()) -> Said:
    alternating = [("user", "assistant")[number % 2] for number in range(len(texts))]
    return [{"role": role, "content": text} for role, text in zip(roles or alternating, texts, strict=True)]


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


def _exchange(said: Said, answer: str = "Done.") -> Exchange:
    prompt = "".join(f"<|{message['role']}|>{message['content']}<|end|>\n" for message in said) + "<|assistant|>"
    return Exchange(
        "x", 0.0, 1.0, "chat", "anna", "ok", "demo", said, None, {"role": "assistant", "content": answer}, "stop",
        list(map(ord, prompt)), list(map(ord, answer)), [-0.5] * len(answer), 0, 0, 1.0, 1.0, 0, {}, None,
    )  # fmt: skip


def own_conversations() -> list[tuple[Said, str | None]]:
    pairs = [(_said("hi", *pair), pair[1]) for pair in ASKED] + [(_said("hi", *pair), None) for pair in NOT_SECRET]
    return pairs + _told()


def asked_and_told(conversations: list[tuple[Said, str | None]]) -> tuple[int, int, int]:
    """Return how many conversations keep what was told, how many hide an ordinary answer, and how many tell something."""
    kept = hidden = 0
    for said, secret in conversations:
        (*_, last) = Redactor(PrivacyConfig().redact).messages(said)
        # An answer of `ASKED` may have words around its secret.
        kept += secret is not None and (secret in last["content"] or "[redacted:" not in last["content"])
        hidden += secret is None and last != said[-1]
    return kept, hidden, sum(secret is not None for _, secret in conversations)


def lost_turns(count: int, draw: random.Random) -> tuple[int, int, int]:
    """Paste a key and go on for three turns, the second of which repeats it. Returns the turns that lost their ids although their
    answer does not hold the key, the turns that kept them although it does, and all turns.
    """
    keys = [line for line in labelled_lines(2000, draw.randrange(1 << 30)) if line.secret and "\n" not in line.secret]
    lost = kept = turns = 0
    for line in draw.choices(keys, k=count):
        redactor, said = Redactor(PrivacyConfig().redact, decode=Letters()), _said(line.text)
        if redactor.text(line.text) == line.text:
            continue
        for answer in ("I will use it.", f"Is it {line.secret} that you mean?", "Done."):
            trained = redactor.exchange(_exchange(said, answer)).prompt_ids is not None
            lost += not trained and str(line.secret) not in answer
            kept += trained and str(line.secret) in answer
            turns += 1
            said = [*said, *_said("go on", answer)[::-1]]
    return lost, kept, turns


AUTHORS = ("thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth", "eighteenth", "nineteenth", "twentieth")


PAIRS = "pairs of a secret and a look-alike"  # by who mends the rules; many of the secrets are in ordinary words


def author_rows(author: str, case: str = "") -> list[Row]:
    """Conversations by an author who had not read the rules: secrets that are asked for or pasted, and harmless look-alikes. A
    secret counts as found if no message has it, a harmless conversation as redacted if any message changes. The rules were changed
    after each author's first run, whose rows docs/benchmarks.md keeps."""
    hidden = secrets = redacted = harmless = 0
    for line in map(orjson.loads, (Path(__file__).parent / f"conversations_{author}.jsonl").read_text().splitlines()):
        clean = Redactor(PrivacyConfig().redact).messages(line["messages"])
        words = "\n".join(str(message["content"]) for message in clean)
        hidden += sum(secret not in words for secret in line["secrets"])
        secrets += len(line["secrets"])
        harmless += not line["secrets"]
        redacted += not line["secrets"] and clean != line["messages"]
    case = case or f"{author} author: conversations"
    return [
        Row(case, "recall", hidden / secrets, "share"),
        Row(case, "false_positive_rate", redacted / harmless, "share"),
        Row(case, "secrets", secrets, "secrets"),
    ]


def rows(count: int, seed: int = 0) -> list[Row]:
    """The rows of the benchmark `redaction` about `count` conversations."""
    own_examples, others = own_conversations(), strangers()
    kept, hidden, _ = asked_and_told(own_examples)
    kept_of_others, hidden_of_others, secrets = asked_and_told(others)
    lost, answers, turns = lost_turns(max(1, count // 10), random.Random(seed))
    return [
        *(row for author in AUTHORS for row in author_rows(author)),
        *author_rows("pairs", PAIRS),
        Row("asked and told", "asked_then_told_kept", kept, "conversations"),
        Row("asked and told", "ordinary_answers_hidden", hidden, "conversations"),
        Row("asked and told", "conversations", len(own_examples), "conversations"),
        Row("asked and told, strangers", "kept_share", kept_of_others / secrets, "share"),
        Row("asked and told, strangers", "hidden_share", hidden_of_others / (len(others) - secrets), "share"),
        Row("asked and told, strangers", "conversations", len(others), "conversations"),
        Row(
            "words and ids",
            "text_and_ids_disagree",
            disagreements(drawn_conversations(count, random.Random(seed))),
            "conversations",
        ),
        Row("words and ids", "conversations", count, "conversations"),
        Row("a pasted key", "turns_lost_to_a_pasted_key", lost, "turns"),
        Row("a pasted key", "answers_with_the_key_trained", answers, "turns"),
        Row("a pasted key", "turns", turns, "turns"),
    ]
