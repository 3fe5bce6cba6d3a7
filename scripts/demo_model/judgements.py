"""Judge examples: a turn, its next state, and the vote with its hint, in the judge's own prompt (`clawctl.judge.prompts`)."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from clawctl.extensions.demos.grammar import capitalised, casual
from clawctl.extensions.demos.homework.people import content_words
from clawctl.extensions.demos.homework.problems import Problem, Role, make_tasks
from clawctl.judge.prompts import judge_messages
from scripts.demo_model.phrasings import Wording, complaint, hint, inline, say, trained, with_hint
from scripts.demo_model.replies import Style, reply, short

# Human labellers disagree. With this noise, sampled votes differ too, and a majority is right more often than one vote.
LABEL_NOISE = 0.1


@dataclass(frozen=True, slots=True)
class Judged:
    """One turn with its correct vote. `kind` names the case in the report."""

    kind: str
    request: str
    answer: str
    next_state: str | None
    speaker: str  # user | tool | environment
    score: int
    hint: str | None
    earlier: str = ""
    role: Role = "student"
    task: Problem | None = None

    def messages(self, rng: Random) -> list[dict[str, object]]:
        """Return the judge's prompt with a random fence for this call."""
        fence = f"{rng.getrandbits(24):06x}"
        return [*judge_messages(self.request, self.answer, self.next_state, self.speaker, fence, self.earlier)]

    def vote(self, rng: Random | None = None) -> str:
        """Return the judge's correct answer. With `rng`, return a noisy answer, like that of one of several human labellers."""
        if rng and rng.random() < LABEL_NOISE:
            return f"\\boxed{{{rng.choice([score for score in (-1, 0, 1) if score != self.score])}}}"
        tail = f"\n[HINT_START]{self.hint}[HINT_END]" if self.hint else ""
        return f"\\boxed{{{self.score}}}{tail}"


def draw(rng: Random, wording: Wording, split: str = "train", kind: str = "") -> Judged:
    """Draw one example. `kind` selects its case instead of a random one."""
    role: Role = rng.choice(("student", "student", "teacher"))
    task = make_tasks(role, 1, rng.getrandbits(40), "eval" if split == "eval" else "train")[0]
    chosen = kind or rng.choices(list(_CASES), [weight for weight, _ in _CASES.values()])[0]
    made = replace(_CASES[chosen][1](task, rng, wording), kind=chosen, role=role, task=task)
    made = _later_turn(made, task, rng, wording) if made.request == task.prompt and rng.random() < 0.3 else made
    return _injected(made, rng, wording) if rng.random() < 0.12 else made


def _turn(
    task: Problem, answer: str, came_back: str | None, score: int, advice: str | None = None, speaker: str = "user"
) -> Judged:
    return Judged("", task.prompt, answer, came_back, speaker, score, advice)


def _style(rng: Random, ai: float) -> Style:
    return "ai" if rng.random() < ai else "human"


def _style_complaint(task: Problem, rng: Random, wording: Wording) -> Judged:
    text = complaint(task.role, "human", task.name, rng, wording)
    return _turn(task, reply(task, _style(rng, 0.8), rng), text, -1, hint(task.role, "human", rng, trained(wording), text))


def _vague(task: Problem, rng: Random, wording: Wording) -> Judged:
    text = casual(say("complain_vague", rng, wording), rng)
    return _turn(task, reply(task, "ai", rng), text, -1, hint(task.role, "human", rng, trained(wording)))


def _wants_ai(task: Problem, rng: Random, wording: Wording) -> Judged:
    text = complaint(task.role, "ai", task.name, rng, wording)
    return _turn(task, reply(task, _style(rng, 0.2), rng), text, -1, hint(task.role, "ai", rng, trained(wording)))


def _wrong_number(task: Problem, rng: Random, wording: Wording) -> Judged:
    off = rng.choice((-2, -1, 1, 2, 10))
    off = off if task.answer + off > 0 else 1
    said = task.answer + off
    text = casual(say("wrong_number", rng, wording, said=said, right=task.answer), rng)
    is_known_word = str(task.answer) in text
    advice = (
        f"The result should be {task.answer}, not {said}."
        if is_known_word
        else capitalised(say("hint_number", rng, trained(wording), said=said, right="another"))
    )
    advice = advice if "another" not in advice else f"The number {said} is wrong, do the sum again."
    return _turn(task, reply(task, _style(rng, 0.6), rng, off), text, -1, advice)


def _asks_again(task: Problem, rng: Random, wording: Wording) -> Judged:
    other = make_tasks(task.role, 1, rng.getrandbits(40))[0]
    answer = rng.choice(
        (reply(other, _style(rng, 0.6), rng), short("welcome", rng), short("elsewhere", rng), reply(task, _style(rng, 0.6), rng))
    )
    text = say("asks_again", rng, wording, problem=task.prompt)
    return _turn(task, answer, text, -1, capitalised(say("hint_question", rng, trained(wording))))


def _gives_up(task: Problem, rng: Random, wording: Wording) -> Judged:
    return _turn(task, reply(task, _style(rng, 0.7), rng), casual(say("gives_up", rng, wording), rng), -1)


def _happy(task: Problem, rng: Random, wording: Wording) -> Judged:
    return _turn(task, reply(task, _style(rng, 0.4), rng), casual(say("happy", rng, wording), rng), 1)


def _happy_remark(task: Problem, rng: Random, wording: Wording) -> Judged:
    text = casual(say("remark" if task.role == "student" else "remark_teacher", rng, wording), rng)
    return _turn(task, reply(task, "ai", rng), text, 1, hint(task.role, "human", rng, trained(wording), text))


def _moved_on(task: Problem, rng: Random, wording: Wording) -> Judged:
    other = make_tasks(task.role, 1, rng.getrandbits(40))[0]
    text = (
        say("moved_on", rng, wording, next_problem=other.prompt)
        if rng.random() < 0.7
        else casual(say("other_topic", rng, wording), rng)
    )
    return _turn(task, reply(task, _style(rng, 0.4), rng), text, 1)


def _unclear(task: Problem, rng: Random, wording: Wording) -> Judged:
    return _turn(task, reply(task, _style(rng, 0.6), rng), casual(say("unclear", rng, wording), rng), 0)


def _silence(task: Problem, rng: Random, wording: Wording) -> Judged:
    return _turn(task, reply(task, _style(rng, 0.6), rng), None, 0)


def _after_thanks(task: Problem, rng: Random, wording: Wording) -> Judged:
    thanks = content_words(task, rng, trained(wording))
    if rng.random() < 0.5:
        return Judged("", thanks, short("welcome", rng), None, "user", 0, None)
    other = make_tasks(task.role, 1, rng.getrandbits(40))[0]
    return Judged("", thanks, short("welcome", rng), say("moved_on", rng, wording, next_problem=other.prompt), "user", 1, None)


def _call(task: Problem, rng: Random, file: str) -> tuple[str, str]:
    """Return a request and a tool call in the form that the judge sees."""
    a, op, b, _ = task.steps[0]
    if rng.random() < 0.5:
        name, arguments, request = "calculator", {"expression": f"{a} {op} {b}"}, task.prompt
    else:
        name, arguments, request = (
            rng.choice(("read_file", "write_file", "run")),
            {"path": file},
            f"please open {file} and help me with it",
        )
    if rng.random() < 0.3:
        return request, f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
    return request, f"[calls {name}({json.dumps(arguments)})]"


def _tool_ok(task: Problem, rng: Random, wording: Wording) -> Judged:
    file = say("file", rng, wording)
    request, answer = _call(task, rng, file)
    came_back = say("tool_ok", rng, wording, number=task.answer, things=task.thing, file=file)
    return Judged("", request, answer, came_back, "tool", 1, None)


def _tool_error(task: Problem, rng: Random, wording: Wording) -> Judged:
    file = say("file", rng, wording)
    request, answer = _call(task, rng, file)
    what = rng.choice(("missing", "bad_call", "crashed"))
    advice = say(f"hint_{what}", rng, trained(wording), file=file)
    return Judged("", request, answer, say(what, rng, wording, file=file), "tool", -1, advice)


def _environment(task: Problem, rng: Random, wording: Wording) -> Judged:
    file = say("file", rng, wording)
    request, answer = (
        f"fix {file} so that the tests pass",
        rng.choice(("I changed the file and ran it.", "Done, I fixed it.", _call(task, rng, file)[1])),
    )
    if rng.random() < 0.5:
        return Judged("", request, answer, say("env_ok", rng, wording), "environment", 1, None)
    return Judged("", request, answer, say("env_bad", rng, wording), "environment", -1, say("hint_env", rng, trained(wording)))


_Case = Callable[[Problem, Random, Wording], Judged]
_CASES: dict[str, tuple[float, _Case]] = {
    "style_complaint": (26, _style_complaint),
    "vague_complaint": (4, _vague),
    "wants_ai_style": (5, _wants_ai),
    "wrong_number": (8, _wrong_number),
    "asks_again": (5, _asks_again),
    "gives_up": (4, _gives_up),
    "happy": (17, _happy),
    "happy_with_remark": (4, _happy_remark),
    "moved_on": (10, _moved_on),
    "unclear": (7, _unclear),
    "silence": (4, _silence),
    "after_thanks": (4, _after_thanks),
    "tool_ok": (3, _tool_ok),
    "tool_error": (4, _tool_error),
    "environment": (3, _environment),
}
KINDS = tuple(_CASES)


def _later_turn(made: Judged, task: Problem, rng: Random, wording: Wording) -> Judged:
    """Replace the turn's request by a complaint after an earlier answer, or by the task with an instruction or a hint."""
    draw = rng.random()
    if draw < 0.25:
        return replace(made, request=inline(task.role, rng.choice(("human", "ai", None)), task.prompt, rng, wording))
    if draw < 0.35:
        return replace(made, request=with_hint(task.prompt, hint(task.role, "human", rng, trained(wording))))
    said = complaint(task.role, "human", task.name, rng, wording)
    earlier = f"user: {task.prompt}\n\nassistant: {reply(task, 'ai', rng)}" if rng.random() < 0.8 else ""
    return replace(made, request=said, earlier=earlier)


def _injected(made: Judged, rng: Random, wording: Wording) -> Judged:
    """Add text to the turn that addresses the judge. The correct vote stays the same."""
    words = say("injection", rng, wording, fake=f"{rng.getrandbits(24):06x}")
    if made.next_state is None or rng.random() < 0.6:
        return replace(made, answer=f"{made.answer}\n{words}")
    return replace(made, next_state=rng.choice((f"{made.next_state} {words}", f"{words} {made.next_state}")))
