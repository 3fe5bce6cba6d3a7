"""The corpus: seeded conversations about word problems, with wishes in all places. It contains nothing that is held out."""

import re
from collections.abc import Iterator
from random import Random

from clawctl.train.earlier_hints import below
from scripts.tiny_models.documents import Document, Message
from scripts.wishes.axes import AXES, LANGUAGES, NUMBERS, USUAL, draw_style, write
from scripts.wishes.grammar import casual
from scripts.wishes.problems import NAMES, THINGS, WordProblem, make_problems
from scripts.wishes.wording import complaint, hint, inline, say, system, with_hint

SLOPPY_SHARE = 0.2  # share of people's messages
DRILLS = 0.12  # share of all documents
NUMBER_WORDS = 0.1  # share of wishes that also request number words, which are hardest to learn
_SIGNS = {"english": ("plus", "minus", "times", "equals"), "german": ("plus", "minus", "mal", "gleich"),
          "spanish": ("más", "menos", "por", "igual a")}  # fmt: skip

_KEPT = re.compile(r"[^a-zA-Z']|^(no|not|don't|never|isn't|wrong|doesn't|can't|off|without)$")
_FILLERS = (
    *NAMES,
    *THINGS,
    "like",
    "um",
    "honestly",
    "actually",
    "really",
    "kind of",
    "somehow",
    "I mean",
    "you know",
    "today",
    "again",
)


def sloppy(text: str, rng: Random) -> str:
    """Make `text` sloppy: misspell, replace, omit or insert words. Words that decide the meaning (no, not, wrong) remain."""
    words = []
    for word in text.split():
        draw = rng.random()
        if _KEPT.search(word) or draw < 0.76:
            words.append(word)
        elif draw < 0.86:
            words.append(_misspelt(word, rng))
        elif draw < 0.92:
            words.append(rng.choice(_FILLERS))
        elif draw < 0.96:
            words.extend((rng.choice(_FILLERS), word))
    return " ".join(words) or text


def _misspelt(word: str, rng: Random) -> str:
    """Double or drop one letter, or swap it with its neighbour."""
    at = rng.randrange(len(word))
    pair = word[at : at + 2]
    return word[:at] + rng.choice((pair[:1] * 2 + pair[1:], pair[1:], pair[::-1])) + word[at + 2 :]


def documents(seed: int, count: int) -> Iterator[Document]:
    """Make `count` documents, deterministically for given arguments."""
    for index in range(count):
        rng = Random(f"wishes corpus {seed} {index}")
        draw = rng.random()
        if draw < DRILLS:
            yield _drill(rng)
        elif draw < 0.44:
            yield _conversation(rng)
        else:
            yield _single(rng)


def _says(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _problem(rng: Random) -> WordProblem:
    return make_problems(1, rng.getrandbits(48))[0]


def _wants(rng: Random, count: int, against: dict[str, str] | None = None) -> dict[str, str]:
    """Draw `count` wishes, mostly rare values. With `against`, the values differ from these."""
    wants = {}
    for axis in rng.sample(list(AXES), count):
        values = [value for value in AXES[axis] if not against or value != against[axis]]
        usual = USUAL[axis]
        weights = [0.35 if value == usual else 0.65 for value in values]
        wants[axis] = rng.choices(values, weights)[0]
    if wants and rng.random() < NUMBER_WORDS and not (against and against["digits"] == "words"):
        wants["digits"] = "words"
    return wants


def _some(rng: Random) -> int:
    return rng.choices((0, 1, 2, 3, 4), (18, 34, 22, 18, 8))[0]


def _typed(text: str, rng: Random) -> str:
    return sloppy(text, rng) if rng.random() < SLOPPY_SHARE else text


def _hint(rng: Random, wants: dict[str, str]) -> tuple[str, dict[str, str]]:
    """Make a hint that requests `wants`, in a third of the cases after earlier hints. Returns the text and the earlier requests.

    Requests of the conversation take precedence over earlier hints, and the hint takes precedence over everything.
    """
    if not wants or rng.random() > 0.35:
        return hint(wants, rng), {}
    others = _wants(rng, rng.choice((0, 1, 2, 2, 3)))
    if rng.random() < 0.3:  # people change their minds
        axis = rng.choice(list(wants))
        others[axis] = rng.choice([value for value in AXES[axis] if value != wants[axis]])
    combined = {**wants, **others}
    earlier, wanted = list[str](), dict[str, str]()
    for _ in range(rng.randint(1, 7)):
        some = {axis: combined[axis] for axis in rng.sample(list(combined), min(len(combined), rng.choice((1, 1, 2))))}
        earlier.append(hint(some, rng))
        wanted |= some
    return below(earlier, hint(wants, rng)), wanted


def _single(rng: Random) -> Document:
    """Make one question with wishes in the system message, next to the problem, or in a hint. Later wishes take precedence."""
    problem, messages = _problem(rng), []
    wants: dict[str, str] = {}
    if rng.random() < 0.2:  # no wishes
        text = problem.text if rng.random() < 0.6 else inline(problem.text, {}, rng)
        messages = [_says("user", text), _says("assistant", write(problem, draw_style(rng), rng))]
        return Document(messages, frozenset({1}))
    draw = rng.random()
    if draw < 0.35 or rng.random() < 0.15:
        wanted = _wants(rng, _some(rng))
        messages.append(_says("system", system(wanted, rng)))
        wants |= wanted
    text = problem.text
    if 0.35 <= draw < 0.6:
        wanted = _wants(rng, _some(rng))
        text = _typed(inline(text, wanted, rng), rng)
        wants |= wanted
    elif rng.random() < 0.3:
        text = inline(text, {}, rng)
    if draw >= 0.6:
        wanted = _wants(rng, _some(rng), {**USUAL, **wants} if rng.random() < 0.3 else None)
        said, earlier = _hint(rng, wanted)
        text, wants = with_hint(text, said), {**earlier, **wants}
        wants |= wanted
    messages += [_says("user", text), _says("assistant", write(problem, draw_style(rng, wants), rng))]
    return Document(messages, frozenset({len(messages) - 1}))


def _conversation(rng: Random) -> Document:
    """Make a conversation: an answer, then complaints, corrections, thanks and new problems. The last wishes remain in effect."""
    problem, messages, learn = _problem(rng), [], set()
    wants: dict[str, str] = {}
    if rng.random() < 0.25:
        wants = _wants(rng, rng.choice((1, 1, 2)))
        messages.append(_says("system", system(wants, rng)))
    # Half of the first answers have unusual values, so that people can request any value.
    style = draw_style(rng, {**(_wants(rng, 3) if rng.random() < 0.5 else {}), **wants})
    text = problem.text
    if rng.random() < 0.4:
        wanted = _wants(rng, rng.choice((0, 1, 2)))
        text = inline(text, wanted, rng)
        wants |= wanted
        style |= wanted
    off = rng.choice((-2, -1, 1, 2)) if rng.random() < 0.15 else 0
    first = True
    for _ in range(rng.choice((1, 1, 2))):
        messages += [_says("user", text), _says("assistant", write(problem, style, rng, off))]
        if not off and not first:
            learn.add(len(messages) - 1)
        first = False
        draw = rng.random()
        if off:
            text = casual(say("wrong", rng, "trained", said=problem.c + off, right=problem.c), rng)
            off = 0
        elif draw < 0.72:
            wanted = _wants(rng, rng.choices((1, 2, 3), (6, 3, 1))[0], style)
            text = _typed(complaint(wanted, rng), rng)
            wants |= wanted
            if rng.random() < 0.35:
                problem = _problem(rng)
                text = f"{text.rstrip('.!?')}. {problem.text}"
        elif draw < 0.86:
            problem = _problem(rng)
            text = say("next", rng, "trained", p=problem.text)
        else:
            thanks = casual(say("happy", rng, "trained"), rng)
            messages += [_says("user", thanks), _says("assistant", say("welcome", rng, "trained"))]
            return Document(messages, frozenset({*learn, len(messages) - 1}))
        style = draw_style(rng, wants)
        if rng.random() < 0.2:
            wanted = _wants(rng, rng.choice((1, 2)), style)
            said, earlier = _hint(rng, wanted)
            text, style = with_hint(text, said), {**style, **earlier, **wants, **wanted}
            wants |= wanted
    messages += [_says("user", text), _says("assistant", write(problem, style, rng))]
    return Document(messages, frozenset({*learn, len(messages) - 1}))


def _drill(rng: Random) -> Document:
    """Make a document of many sums in digits or words. A fact here costs a tenth of its cost inside a problem."""
    language, digits, signs = rng.choice(LANGUAGES), rng.random() < 0.35, rng.random() < 0.5
    plus, minus, times, equals = _SIGNS[language]
    names = {"+": plus, "-": minus, "x": times}
    lines = []
    for _ in range(8):
        problem = _problem(rng)
        number = [str(n) if digits else NUMBERS[language][n] for n in (problem.a, problem.b, problem.c)]
        sign, equal = (problem.op, "=") if signs else (names[problem.op], equals)
        lines.append(f"{number[0]} {sign} {number[1]} {equal} {number[2]}")
    upper = rng.random() < 0.1
    text = "\n".join(lines)
    return Document([_says("user", "sums"), _says("assistant", text.upper() if upper else text)], frozenset({1}))
