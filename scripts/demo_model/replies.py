# ruff: noqa: E501 (a rule reads best as one line an alternative list)
"""The two styles of homework answers in the corpus, each with many variants.

AI style: bold labels, numbered steps, a final line. Human style: a classmate's plain sentences, or a teacher's warm comment.
Every teacher's comment copies the pupil's sum, then gives the correct one, then judges by comparing the two.
"""

from random import Random
from typing import Literal

from clawctl.extensions.demos.grammar import PhraseGrammar, capitalised
from clawctl.extensions.demos.homework.problems import Problem, Step

Style = Literal["ai", "human"]
Short = Literal["welcome", "waits", "sorry", "greets_back", "elsewhere"]

_RULES: dict[str, str] = {
    # student, human
    "so": "ok so | so | well, | alright, | you see, | hmm, | easy, | right, so | yeah so",
    "do+": "you put {a} and {b} together | you start with {a} and add {b} | you have {a} and get {b} more",
    "do-": "you start with {a} and take away {b} | you have {a} and {b} go away | you take {a} minus {b}",
    "dox": "you have {a} groups of {b} | it's {a} times {b} | you take {a} times {b}",
    "thats": "that's | so | and | it's just",
    "end": "so it's {z} {things}. | so that makes {z} {things}. | so the answer is {z}. | so there are {z} {things}. | so I got {z} {things}. | "
    "so {z} {things}. | and that gives {z} {things}.",
    "then": "then | after that | and then | next",
    "student_human_1": "{so} {do}. {thats} {e1}, {end} | {so} {do}, {thats} {e1}, {end} | {so} {e1}, {end}",
    "student_human_2": "{so} {do}, {thats} {e1}. {then} {e2}, {end} | {so} first {e1}, {then} {e2}, {end}",
    # student, AI
    "intro": "Sure! Here is the solution: @@ | ### Solution @@ | **Solution** @@ | Let's solve this step by step. @@ | Certainly! @@ | {nothing} | {nothing}",
    "label+": "Add | Find the sum | Addition",
    "label-": "Subtract | Find the difference | Subtraction",
    "labelx": "Multiply | Find the product | Multiplication",
    "step": "Step",
    "final": "@@ **Final answer:** {z} {things} | @ **Final answer:** {z} | @@ **Final answer:** **{z}** | @@ **Final answer:** {z} | "
    "@ **Final answer:** {z} {things}",
    "student_ai_1": "{intro} 1. **{label1}:** {e1} {final} | {intro} **Step 1:** {e1} {final} | "
    "{intro} 1. **Given:** {a} and {b} @ 2. **{label1}:** {e1} {final}",
    "student_ai_2": "{intro} 1. **{label1}:** {e1} @ 2. **{label2}:** {e2} {final} | {intro} **Step 1:** {e1} @ **Step 2:** {e2} {final}",
    # teacher, human
    "hi": "Hi {N} | Hey {N} | Hello {N} | Dear {N}",
    "kind": "thanks for showing your work. | I like how you wrote it down. | nice clear writing. | I love how neat your steps are. | "
    "good effort on this one. | thanks for working so hard on this.",
    "wrote": "You wrote {w} | I see that you did {w} | For the {things} you took {w}",
    "when": "and I get {e1}, | and it is {e1}, | and the problem says {e1},",
    "is_right": "so it is right. | so that is correct. | so you are right.",
    "is_wrong": "so it is not quite right yet. | so there is a small slip. | so that is not right yet.",
    "close_right": "Well done! | Great job! | Keep it up! | I am proud of you!",
    "close_wrong": "Try it again, you are close! | Don't worry, you will get it! | Look at it again, you can do it!",
    "teacher_human_right": "{hi}, {kind} {wrote} {when} {is_right} {close_right}",
    "teacher_human_wrong": "{hi}, {kind} {wrote} {when} {is_wrong} {close_wrong}",
    # teacher, AI
    "head": "### Feedback @@ | **Feedback** @@ | **Assessment** @@ | Here is the assessment: @@ | {nothing} | {nothing}",
    "note_right": "{nothing} | @ **Note:** No changes needed. | @ **Score:** Full points",
    "note_wrong": "{nothing} | @ **Correct answer:** {z} | @ **Note:** Revise the calculation. | @ **Correct answer:** {z} {things}",
    "teacher_ai_right": "{head} **Written:** {w} @ **Check:** {e1} @ **Verdict:** Correct {note_right} | "
    "{head} 1. **Written:** {w} @ 2. **Calculation:** {e1} @ 3. **Verdict:** Correct {note_right}",
    "teacher_ai_wrong": "{head} **Written:** {w} @ **Check:** {e1} @ **Verdict:** Incorrect {note_wrong} | "
    "{head} 1. **Written:** {w} @ 2. **Calculation:** {e1} @ 3. **Verdict:** Incorrect {note_wrong}",
    # neither
    "welcome": "You're welcome! | Glad I could help! | Any time! | Happy to help! | No problem! | You're welcome, good luck!",
    "waits": "Sure, take your time! | Okay, I'm here. | No problem, take your time. | Okay, see you later!",
    "sorry": "Sorry that it did not help. | I'm sorry about that. | Okay, sorry I could not help more.",
    "greets_back": "Hi! What homework do you have? | Hello! How can I help? | Hey! Which problem is it? | Hi there! What are we working on?",
    "elsewhere": "I mostly help with number problems, but I can try. | That is not my best subject, but let's try. | Sure, tell me more about it.",
}
WORDS = PhraseGrammar(_RULES)


def _equation(step: Step) -> str:
    a, op, b, c = step
    return f"{a} {op} {b} = {c}"


def reply(task: Problem, style: Style, rng: Random, off_by: int = 0) -> str:
    """Make an answer to `task` in one style. `off_by` makes the last number wrong, in history only, which is never trained."""
    steps = task.steps
    if off_by:
        a, op, b, c = steps[-1]
        steps = (*steps[:-1], (a, op, b, c + off_by))
    first, last = steps[0], steps[-1]
    said = [_equation(s) for s in steps]
    values = {
        "a": first[0], "b": first[2], "z": last[3], "things": task.thing, "e1": said[0], "e2": said[-1], "w": _equation(task.written) if task.written else "",
        "N": task.name, "nothing": "", "do": "", "label1": "", "label2": "",
    }  # fmt: skip
    if task.role == "student":
        kind = f"student_{style}_{len(steps)}"
        values["do"] = WORDS.draw(f"do{first[1]}", rng, **values)
        values["label1"] = WORDS.draw(f"label{first[1]}", rng)
        values["label2"] = WORDS.draw(f"label{last[1]}", rng)
    else:
        right = task.solution_right
        kind = f"teacher_{style}_{'right' if right else 'wrong'}"
    text = WORDS.draw(kind, rng, **values)
    text = text.replace(" @@ ", "\n\n").replace(" @ ", "\n").replace("@@ ", "\n\n").replace("@ ", "\n").strip()
    return capitalised(text) if style == "human" and task.role == "student" and rng.random() < 0.25 else text


def short(kind: Short, rng: Random) -> str:
    """Make a short answer to thanks, a pause, giving up, a greeting or another subject."""
    return WORDS.draw(kind, rng)
