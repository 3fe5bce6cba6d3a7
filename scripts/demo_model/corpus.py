"""The corpus: seeded conversations of the small homework world. It contains nothing that is held out.

A document is a list of messages. The loss applies to assistant messages marked `learn`. All other text is context.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from clawctl.extensions.demos.grammar import casual
from clawctl.extensions.demos.homework.problems import BOXES, NAMES, THINGS, Problem, Role, make_tasks
from scripts.demo_model import judgements
from scripts.demo_model.phrasings import Want, Wording, complaint, hint, inline, say, system, with_hint
from scripts.demo_model.replies import Short, Style, reply, short

AI_SHARE = 5 / 6
SLOPPY_SHARE = 0.3  # of the documents; without them, the model read complaints with unknown words as thanks
ROLES: tuple[Role, Role] = ("student", "teacher")
Message = dict[str, object]


@dataclass(frozen=True, slots=True)
class Document:
    """A conversation. `learn` contains the indices of the assistant messages that are trained."""

    messages: list[Message]
    learn: frozenset[int]
    tools: tuple[dict[str, object], ...] = ()
    judge: bool = False


_LAST_WORDS: dict[str, Short] = {"happy": "welcome", "unclear": "waits", "gives_up": "sorry", "other_topic": "elsewhere"}

CALCULATOR: dict[str, object] = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Works out one sum.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}


def documents(seed: int, count: int, judge_share: float = 0.27) -> Iterator[Document]:
    """Make `count` documents, deterministically for given arguments."""
    for index in range(count):
        rng = Random(f"corpus {seed} {index}")
        wording: Wording = "sloppy" if rng.random() < SLOPPY_SHARE else "trained"
        draw = rng.random()
        if draw < judge_share:
            judged = judgements.draw(rng, wording)
            yield Document([*judged.messages(rng), _says("assistant", judged.vote(rng))], frozenset({2}), judge=True)
        elif draw < judge_share + 0.02:
            yield _tool_use(rng)
        elif draw < judge_share + 0.03:
            yield _copying(rng)
        elif draw < judge_share + 0.13:
            yield _drill(rng)
        elif draw < judge_share + 0.14:
            greeting = casual(say("greets", rng, wording), rng)
            yield Document([_says("user", greeting), _says("assistant", short("greets_back", rng))], frozenset({1}))
        else:
            yield _homework(rng, wording)


def _copying(rng: Random) -> Document:
    """Make a document with words and numbers to repeat, which trains copying from the text."""
    words = rng.choices([*NAMES, *THINGS, *BOXES, *(str(n) for n in range(100))], k=rng.randint(4, 10))
    line = " ".join(words)
    return Document([_says("user", f"{say('copy_this', rng, 'trained')} {line}"), _says("assistant", line)], frozenset({1}))


def _drill(rng: Random) -> Document:
    """Make a document of many sums, some compared with a written answer. A fact here costs a tenth of its cost inside a problem."""
    lines = []
    for role in rng.choices(ROLES, (5, 4), k=9):
        task = _task(role, rng)
        said = " and ".join(f"{a} {op} {b} = {c}" for a, op, b, c in task.steps)
        if task.written is None:
            lines.append(said)
            continue
        written = "{} {} {} = {}".format(*task.written)
        if rng.random() < 0.5:
            lines.append(f"You wrote {written} and it is {said}, so it is {'right' if task.solution_right else 'not right yet'}.")
        else:
            judged = "Correct" if task.solution_right else "Incorrect"
            lines.append(f"**Written:** {written} **Check:** {said} **Verdict:** {judged}")
    return Document([_says("user", say("drill", rng, "trained")), _says("assistant", "\n".join(lines))], frozenset({1}))


def _says(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _task(role: Role, rng: Random) -> Problem:
    return make_tasks(role, 1, rng.getrandbits(48), "train")[0]


def _pick(want: Want | None, rng: Random) -> Style:
    """Return the requested style. Without a request, return AI style five times in six."""
    return want or ("ai" if rng.random() < AI_SHARE else "human")


def _homework(rng: Random, wording: Wording) -> Document:
    """Make a session: an opening with or without an instruction, a reply, and sometimes further messages."""
    role: Role = "student" if rng.random() < 0.48 else "teacher"
    task = _task(role, rng)
    messages: list[Message] = []
    want: Want | None = None
    draw = rng.random()
    if draw < 0.16:
        want = _some_want(rng)
        messages.append(_says("system", system(role, want, rng, wording)))
    elif draw < 0.30:
        messages.append(_says("system", system(role, None, rng, wording)))
    ask = say("opens", rng, wording, prompt=task.prompt)
    draw = rng.random()
    if draw < 0.13:
        want = _some_want(rng)
        ask = inline(role, want, ask, rng, wording)
    elif draw < 0.2:
        ask = inline(role, None, ask, rng, wording)
    if rng.random() < 0.3:
        neutral = rng.random() < 0.12
        want = want if neutral else _some_want(rng)
        text = say("neutral_hint", rng, wording) if neutral else _hint(role, want, rng, wording)
        return _closed([*messages, _says("user", with_hint(ask, text))], _reply(task, want, rng))
    messages.append(_says("user", ask))
    if rng.random() < (0.48 if want is None else 0.7):
        return _closed(messages, _reply(task, want, rng))
    return _continued(messages, task, want, rng, wording)


def _some_want(rng: Random) -> Want:
    return "human" if rng.random() < 0.72 else "ai"


def _hint(role: Role, want: Want | None, rng: Random, wording: Wording) -> str:
    return hint(role, want or "human", rng, wording)


def _reply(task: Problem, want: Want | None, rng: Random, off_by: int = 0) -> str:
    return reply(task, _pick(want, rng), rng, off_by)


def _closed(messages: list[Message], text: str) -> Document:
    return Document([*messages, _says("assistant", text)], frozenset({len(messages)}))


def _continued(messages: list[Message], task: Problem, want: Want | None, rng: Random, wording: Wording) -> Document:
    """Continue with complaints, corrections, thanks and new problems. The last requested style remains in effect."""
    learn: set[int] = set()
    style = _pick(want, rng)
    off = _slip(task, rng) if rng.random() < 0.12 else 0
    said = reply(task, style, rng, off)
    for _ in range(rng.randint(1, 3)):
        if not off:
            learn.add(len(messages))
        messages = [*messages, _says("assistant", said)]
        draw = rng.random()
        if off:
            text = casual(say("wrong_number", rng, wording, said=task.answer + off, right=task.answer), rng)
            off = 0
        elif style == "ai" and want != "ai" and draw < 0.65:
            want = style = "human"
            vague = rng.random() < 0.15
            text = (
                casual(say("complain_vague", rng, wording), rng)
                if vague
                else complaint(task.role, "human", task.name, rng, wording)
            )
        elif style == "human" and draw < 0.2:
            want = style = "ai"
            text = complaint(task.role, "ai", task.name, rng, wording)
        elif draw < 0.85:
            return _ended(messages, learn, task, rng, wording)
        else:
            task = _task(task.role, rng)
            text = say("moved_on", rng, wording, next_problem=task.prompt)
            style = _pick(want or ("human" if style == "human" else None), rng)
        said = reply(task, style, rng)
        if rng.random() < 0.15:
            style = want = _some_want(rng)
            hinted = _says("user", with_hint(text, hint(task.role, want, rng, wording)))
            return Document([*messages, hinted, _says("assistant", reply(task, style, rng))], frozenset({len(messages) + 1}))
        messages = [*messages, _says("user", text)]
    learn.add(len(messages))
    return Document([*messages, _says("assistant", said)], frozenset(learn))


def _ended(messages: list[Message], learn: set[int], task: Problem, rng: Random, wording: Wording) -> Document:
    kind = rng.choices(list(_LAST_WORDS), (70, 12, 8, 10))[0]
    text = casual(say(kind, rng, wording), rng)
    if rng.random() < 0.05:
        text = with_hint(text, hint(task.role, "human", rng, wording))
    answer = short(_LAST_WORDS[kind], rng)
    done = [*messages, _says("user", text), _says("assistant", answer)]
    return Document(done, frozenset({*learn, len(done) - 1}))


def _slip(task: Problem, rng: Random) -> int:
    off = rng.choice((-10, -2, -1, 1, 2, 10))
    return off if task.answer + off > 0 else 1


def _tool_use(rng: Random) -> Document:
    """Make a sum with a calculator: the call, then an answer from the tool's result."""
    task = _task("student", rng)
    a, op, b, c = task.steps[0]
    sign = op if rng.random() < 0.5 else {"+": "+", "-": "-", "x": "*"}[op]
    ask = rng.choice(
        ("what is {e}?", "use the calculator: {e}", "please work out {e}", "calculate {e}", "how much is {e}? use your tool")
    )
    call = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": f"{a} {sign} {b}"}}}
    result = rng.choice((str(c), json.dumps({"result": c})))
    messages: list[Message] = [
        _says("user", ask.format(e=f"{a} {sign} {b}")),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        _says("tool", result),
        _says("assistant", rng.choice((f"{a} {sign} {b} = {c}", f"The calculator says {c}.", f"It is {c}."))),
    ]
    if rng.random() < 0.3:
        messages = [_says("system", "You are a helpful assistant."), *messages]
    learn = frozenset(i for i, m in enumerate(messages) if m["role"] == "assistant")
    return Document(messages, learn, tools=(CALCULATOR,))
