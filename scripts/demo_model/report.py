"""Measure the demo model and write its card: `report.py [--model DIR] [--count N]`.

All answers are sampled at temperature 1 on tasks of the eval split, with fixed seeds and the shipped bf16 weights.
"""

import argparse
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from clawctl.extensions.demos.grammar import Phrasings, casual
from clawctl.extensions.demos.homework.problems import Problem, is_correct, make_tasks
from clawctl.extensions.demos.homework.satisfaction import satisfaction
from clawctl.judge.prompts import read_vote
from scripts.demo_model import judgements
from scripts.demo_model.corpus import ROLES
from scripts.demo_model.judgements import Judged
from scripts.demo_model.phrasings import Want, complaint, hint, inline, say, system, with_hint
from scripts.demo_model.replies import Style, reply

Chat = Sequence[Mapping[str, object]]
STYLES: tuple[Style, Style] = ("ai", "human")
HALVES: tuple[Phrasings, Phrasings] = ("trained", "held_out")
BATCH = 128
_PLACES = {"all four": ("system", "message", "complaint", "hint"), "neutral": ("system", "message", "hint")}


class Speaker:
    """A model that answers chats in batches."""

    def __init__(self, folder: Path):
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()

    def answer(self, chats: Sequence[Chat], longest: int = 80) -> list[str]:
        """Sample one answer per chat, in order. Chats of similar length share a batch."""
        texts = [self.tokenizer.apply_chat_template(c, tokenize=False, add_generation_prompt=True) for c in chats]
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        answers = [""] * len(texts)
        for first in range(0, len(order), BATCH):
            chosen = order[first : first + BATCH]
            inputs = self.tokenizer([texts[i] for i in chosen], return_tensors="pt", padding=True, add_special_tokens=False)
            with torch.inference_mode():
                out = self.model.generate(**inputs, max_new_tokens=longest, do_sample=True, temperature=1.0, top_k=0, top_p=1.0)
            said = self.tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
            for index, text in zip(chosen, said, strict=True):
                answers[index] = text.strip()
        return answers

    def logprobs(self, prompt: str, said: str) -> torch.Tensor:
        """Return the log-probability of each token of an answer. [T]"""
        chat = [{"role": "user", "content": prompt}]
        text = self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        before = self.tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
        after = self.tokenizer(f"{said}<|im_end|>", return_tensors="pt", add_special_tokens=False)["input_ids"]
        with torch.inference_mode():
            logits = self.model(torch.cat((before, after), 1)).logits[0, before.shape[1] - 1 : -1]
        found: torch.Tensor = logits.float().log_softmax(-1).gather(1, after[0][:, None])[:, 0]
        return found


def share(hits: Sequence[bool]) -> str:
    return f"{100 * sum(hits) / len(hits):.1f} %" if hits else "-"


def is_human(task: Problem, text: str) -> bool:
    return satisfaction(task, text) >= 0.75


def is_ai(task: Problem, text: str) -> bool:
    return satisfaction(task, text) <= 0.25 and "**" in text


def asked(channel: str, task: Problem, want: Want | None, rng: Random, phrasings: Phrasings) -> Chat:
    """Make a chat that ends with a request for `task`, with the instruction in the place `channel`."""
    user = {"role": "user", "content": task.prompt}
    if channel == "nothing":
        return [user]
    if channel == "system":
        return [{"role": "system", "content": system(task.role, want, rng, phrasings)}, user]
    if channel == "message":
        return [{"role": "user", "content": inline(task.role, want, task.prompt, rng, phrasings)}]
    if channel == "hint":
        text = say("neutral_hint", rng, phrasings) if want is None else hint(task.role, want, rng, phrasings)
        return [{"role": "user", "content": with_hint(task.prompt, text)}]
    said = reply(task, "ai" if want == "human" else "human", rng)
    return [user, {"role": "assistant", "content": said},
            {"role": "user", "content": complaint(task.role, want or "human", task.name, rng, phrasings)}]  # fmt: skip


def measure_answers(speaker: Speaker, count: int) -> list[str]:
    """Make the table of styles and correctness, with and without instructions."""
    lines = [
        "| asked how | phrasings | role | n | AI style | human style | correct | satisfaction |",
        "|---|---|---|---|---|---|---|---|",
    ]
    plans: list[tuple[str, Phrasings, Want | None]] = [("nothing", "all", None)]
    for phrasings in HALVES:
        plans += [(channel, phrasings, "human") for channel in ("system", "message", "complaint", "hint")]
        plans += [("all four", phrasings, "ai"), ("neutral", phrasings, None)]
    for channel, phrasings, want in plans:
        for role in ROLES:
            number = count * 2 if channel == "nothing" else count
            rng, tasks = Random(f"{channel} {phrasings} {want}"), make_tasks(role, number, 7, "eval")
            places = _PLACES.get(channel, (channel,))
            said = speaker.answer([asked(rng.choice(places), t, want, rng, phrasings) for t in tasks])
            pairs = list(zip(tasks, said, strict=True))
            mean = sum(satisfaction(t, s) for t, s in pairs) / len(pairs)
            name = channel if want is None else f"{channel}, wants {want}"
            shares = [share([test(t, s) for t, s in pairs]) for test in (is_ai, is_human, is_correct)]
            lines.append(f"| {name} | {phrasings} | {role} | {number} | {' | '.join(shares)} | {mean:.2f} |")
            print(lines[-1], flush=True)
    return lines


def majority(scores: Sequence[int | None]) -> int:
    """Return the most common valid vote, or 0 on a tie or without valid votes."""
    counts = Counter(s for s in scores if s is not None).most_common(2)
    return 0 if not counts or (len(counts) == 2 and counts[0][1] == counts[1][1]) else counts[0][0]


def measure_judge(speaker: Speaker, count: int) -> list[str]:
    """Compare single votes and majorities of three with the correct votes, and measure the presence of hints."""
    lines = [
        "| phrasings | n | single vote | majority of 3 | votes not unanimous | hint when due | hint when none is due |",
        "|---|---|---|---|---|---|---|",
    ]
    by_kind: dict[str, list[bool]] = defaultdict(list)
    for phrasings in HALVES:
        rng = Random(f"judge {phrasings}")
        cases = [judgements.draw(rng, phrasings, "eval") for _ in range(count * 8)]
        votes = [read_vote(t) for t in speaker.answer([c.messages(rng) for c in cases for _ in range(3)])]
        by_case = [votes[i * 3 : i * 3 + 3] for i in range(len(cases))]
        single = [v.score == c.score for c, three in zip(cases, by_case, strict=True) for v in three]
        most = [majority([v.score for v in three]) == c.score for c, three in zip(cases, by_case, strict=True)]
        split = [len({v.score for v in three}) > 1 for three in by_case]
        due = [v.hint is not None for c, three in zip(cases, by_case, strict=True) for v in three if c.hint]
        not_due = [v.hint is not None for c, three in zip(cases, by_case, strict=True) for v in three if not c.hint]
        lines.append(
            f"| {phrasings} | {len(cases)} | {share(single)} | {share(most)} | {share(split)} | {share(due)} | {share(not_due)} |"
        )
        print(lines[-1], flush=True)
        if phrasings == "held_out":
            for c, three in zip(cases, by_case, strict=True):
                by_kind[c.kind] += [v.score == c.score for v in three]
    lines += [
        "",
        "Held-out phrasings, single votes by case: " + ", ".join(f"{k} {share(v)}" for k, v in sorted(by_kind.items())) + ".",
    ]
    print(lines[-1])
    return lines


def measure_hints(speaker: Speaker, count: int) -> list[str]:
    """Measure hints that the judge writes for held-out complaints, as a hint block for the same model."""
    lines = ["| role | complaints | hint written | human style with the hint | correct | examples |", "|---|---|---|---|---|---|"]
    for role in ROLES:
        rng, tasks = Random(f"hints {role}"), make_tasks(role, count * 2, 11, "eval")
        cases = [
            Judged(
                "style_complaint",
                t.prompt,
                reply(t, "ai", rng),
                complaint(role, "human", t.name, rng, "held_out"),
                "user",
                -1,
                None,
            )
            for t in tasks
        ]
        hints = [read_vote(text).hint for text in speaker.answer([c.messages(rng) for c in cases])]
        hinted = [(t, h) for t, h in zip(tasks, hints, strict=True) if h]
        said = speaker.answer([[{"role": "user", "content": with_hint(t.prompt, h)}] for t, h in hinted])
        pairs = [(t, s) for (t, _), s in zip(hinted, said, strict=True)]
        lines.append(
            f"| {role} | {len(tasks)} | {share([h is not None for h in hints])} | {share([is_human(t, s) for t, s in pairs])} | "
            f"{share([is_correct(t, s) for t, s in pairs])} | {' / '.join(h for _, h in hinted[:3])} |"
        )
        print(lines[-1], flush=True)
    return lines


def measure_gaps(speaker: Speaker, count: int) -> list[str]:
    """Measure how a held-out hint for human style changes a reply's log-probabilities, as in on-policy distillation."""
    lines = ["| role | reply in | gap of the first token | gap of a later token, mean | its mean size |", "|---|---|---|---|---|"]
    for role in ROLES:
        for style in STYLES:
            rng, tasks = Random(f"gaps {role} {style}"), make_tasks(role, count // 2, 17, "eval")
            first: list[float] = []
            later: list[float] = []
            for task in tasks:
                said = reply(task, style, rng)
                advice = hint(role, "human", rng, "held_out")
                plain, hinted = (speaker.logprobs(prompt, said) for prompt in (task.prompt, with_hint(task.prompt, advice)))
                gaps = (hinted - plain).tolist()
                first.append(gaps[0])
                later += gaps[1:]
            size, mean = sum(map(abs, later)) / len(later), sum(later) / len(later)
            lines.append(f"| {role} | {style} style | {sum(first) / len(first):+.2f} | {mean:+.3f} | {size:.3f} |")
            print(lines[-1], flush=True)
    return lines


def measure_thanks(speaker: Speaker, count: int) -> str:
    """Measure the share of thanks with a brief answer that contains no homework answer."""
    rng, tasks = Random("thanks"), make_tasks("student", count, 13, "eval")
    chats = [
        [{"role": "user", "content": t.prompt}, {"role": "assistant", "content": reply(t, "human", rng)},
         {"role": "user", "content": casual(say("happy", rng, "held_out"), rng)}] for t in tasks
    ]  # fmt: skip
    said = speaker.answer(chats)
    brief = share([len(s.split()) < 10 and not any(c.isdigit() for c in s) for s in said])
    line = f"Thanks in held-out words are answered shortly {brief} of the time."
    print(line, flush=True)
    return line


CARD = """# The demo model

A very small language model ({millions:.1f} M weights, Qwen3 architecture, bf16, its own byte-level BPE) that helps with homework
and judges turns. It exists so that clawctl's whole circle runs on two CPU cores: it is trained from nothing on a seeded, synthetic
corpus (`scripts/make-demo-model`), knows no other world, and should be used for nothing else. Licence: Apache-2.0, as clawctl.

Untrained by use it answers in AI style (bold, numbered steps, "Final answer:") about five times in six; it follows instructions
and hints about style; asked with the prompts of `clawctl.judge.prompts` it votes and writes hints. Context 65,536 tokens; it was
trained on up to 512.

## Measured
Sampled at temperature 1, tasks of the eval split, fixed seeds, by `scripts/demo_model/report.py`. Held-out phrasings never occur in
training. Satisfaction is `clawctl.extensions.demos.homework.satisfaction` of the reply.

### Answers
{answers}

{thanks}

### As a judge
{judge}

### Its own hints, followed
{hints}

### As its own teacher
What a hint for human style (held-out words) changes in the log-probability of a reply: it decides in the first token.

{gaps}

## Weak points
Held-out words are strict: every part of a sentence that has a held-out variant uses one. One complaint in ten made only of such
words is not followed. The judge's training labels disagree in one case of ten, as people's do, so single votes err by chance and a
majority repairs much of it; what it misjudges in every vote (giving up, tool errors in unknown words) a majority does not repair.
Long prompts, other subjects and other languages are outside its world.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path(__file__).parents[2] / "clawctl/extensions/demos/models/demo")
    parser.add_argument("--count", type=int, default=64)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    began = time.monotonic()
    speaker = Speaker(args.model)
    parts = {
        "answers": "\n".join(measure_answers(speaker, args.count)),
        "thanks": measure_thanks(speaker, args.count),
        "judge": "\n".join(measure_judge(speaker, args.count)),
        "hints": "\n".join(measure_hints(speaker, args.count)),
        "gaps": "\n".join(measure_gaps(speaker, args.count)),
    }
    millions = sum(p.numel() for p in speaker.model.parameters()) / 1e6
    (args.model / "README.md").write_text(CARD.format(millions=millions, **parts))
    print(f"wrote {args.model / 'README.md'} after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
