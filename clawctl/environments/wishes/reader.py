# ruff: noqa: E501 (a rule reads best as one line)
"""Reads what a person says back: which wishes, doubts about the number, or thanks. Rules, as a judge and hint writer need them."""

import re
from dataclasses import dataclass

from clawctl.environments.wishes.axes import AXES, USUAL

# What names an axis whose rare value adds something. Whether it is wanted or not stands around it.
_ADDED: dict[str, str] = {
    "units": r"name of the things|name the things(?: in the answer)?|thing that is counted|what is counted|counted thing|\bunits?\b|\bof what\b",
    "steps": r"(?:words? (?:like )?)?first and then|step words|numbered words|mark(?:ers for)? the steps",
    "greeting": r"greet\w*(?: the child| me)?(?: first)?|\bhello\b(?: first| at the start)?|\bwelcome\b",
    "signoff": r"\b(?:good)?bye\b|\bfarewell\b|\bclosing word",
    "emoji": r"\bemojis?\b|\bsmileys?\b|\bicons?\b|\bpictures?\b",
    "praise": r"\bprais\w*|\bcompliments?\b|\bkind words\b|\bgood question\b|\bencouraging\b|\bflattery\b",
    "name": r"\bnames?\b|\bmention the child\b",
    "bold": r"\bbold\b|\bstars\b|\bhighlight\b",
    "rounding": r"\bround(?:ed|ing)?\b|\brough(?:ly)?\b|\bestimate\b|\babout how many\b",
    "stress": r"\bexclamation marks?\b|\bexcited\b|\benergy\b|\blively\b",
    "tone": r"\bi think\b|\bthink so\b|\bmodest\b|\bunsure\b",
}
# What names a value by itself, read before the words above.
_NAMED: tuple[tuple[str, str, str], ...] = (
    ("units", "units", r"not just the number"),
    ("units", "bare", r"\b(?:just|only|just in) (?:the|a) (?:bare )?number|\bbare number"),
    ("rounding", "exact", r"\bexact numbers?\b"),
    ("bold", "plain", r"plain text for the result"),
    ("tone", "unsure", r"less sure|(?:don't|do not) sound so sure|only think so|\bunsure\b"),
    ("tone", "sure", r"\b(?:sound|be) (?:sure|certain)\b|\bconfiden\w+|\bsure tone\b"),
    ("stress", "calm", r"\bcalm\b|less energy"),
    ("length", "one sentence", r"\b(?:one|a single|single) sentence\b"),
    ("length", "with check", r"\bcheck of the sum\b|\bcheck the sum at the end\b|\b(?:a|the) check\b|\bwith a check\b"),
    ("length", "two sentences", r"\btwo sentences\b"),
    ("layout", "line", r"\b(?:one line|running text)\b|\b(?:no|without|don't use a|don't want a|stop making) (?:lists?|bullets?|bullet points?)\b"),
    ("layout", "list", r"\blist\b|\bbullet(?:s| points?)\b|\bdashes\b"),
    ("order", "answer first",
     r"\b(?:answer|result) first\b|\b(?:start|begin|lead) with the (?:answer|result)\b|\banswer before the sum\b|\banswer at the top\b"),
    ("order", "sum first",
     r"\b(?:sum|working) first\b|\b(?:start|begin|lead) with the (?:sum|working)\b|\bsum before the answer\b|\bsum at the top\b"),
    ("case", "upper", r"\bupper case\b|\bcaps\b|\bbig letters\b|(?<!no )\bcapital letters\b|\bin capitals\b"),
    ("case", "lower", r"\blower case\b|\bsmall letters\b"),
    ("case", "normal", r"\bnormal letters\b|\b(?:normal|sentence|ordinary) case\b|\bnormal capitals\b|\bordinary letters\b"),
    ("language", "german", r"\bgerman\b"),
    ("language", "spanish", r"\bspanish\b"),
    ("language", "english", r"\benglish\b"),
    ("digits", "digits", r"(?:don't|do not) spell out the numbers|no number words"),
    ("digits", "words", r"\bnumbers?(?: as| in)? words\b|\bspell (?:out )?the numbers\b|write the numbers out|\b(?:no|without|don't use|never use) digits\b"),
    ("digits", "digits", r"\bdigits\b"),
    ("signs", "signs", r"(?:don't|do not) spell out the signs|\+ and ="),
    ("signs", "words",
     r"\bplus and (?:minus|equals)\b(?: as words)?|\b(?:no|without|don't use|leave out the) (?:math )?signs\b|\bspell out the signs\b|"
     r"\bsigns in(?:to)? words\b|\bwords for the signs\b"),
    ("signs", "signs", r"\b(?:math|real|the) signs\b"),
)  # fmt: skip
_ENDS = re.compile(r"[,;.!?:]|\band\b|\bbut\b|\bas well as\b")
_NOT = re.compile(
    r"\b(?:no|not|without|leave out|drop|skip|stop|don't|do not|remove|never|avoid|no more|take out|why|who needs|what is)\b"
)
_MISSED = re.compile(r"\b(?:don't forget|there is no|is there no|left out|i miss|where is|forgot)\b")
_TOO_MUCH = re.compile(r"^[^,;.!?:]*\b(?:again|is too much|for)\b(?! the question)")
_DOUBT = re.compile(
    r"\bwrong\b|are you sure about|can't be right|not right|check the sum again|\bi get \d|should be \d|made a mistake|sum is off|doesn't add up"
)
_CONTENT = re.compile(
    r"\b(?:thanks|thank you|perfect|great|super|nice|how i like it|just what i wanted|looks good|cool|very good)\b|^(?:next one|now this one|"
    r"here is the next one|another one|ok now)\b"
)
_MOVES_ON = re.compile(r"\bhow many\b")
_VAGUE = re.compile(r"not like this|that's not it|i don't like it|do it differently|try again|make it better|^hm no")


@dataclass(frozen=True, slots=True)
class Said:
    """What a person said back."""

    wants: dict[str, str]  # {"emoji": "none"}
    doubts: bool  # the number
    content: bool
    vague: bool = False  # not content, and no wish to be read

    @property
    def score(self) -> int:
        """1 content, -1 not content, 0 neither."""
        return -1 if self.wants or self.doubts or self.vague else int(self.content)


def read(text: str) -> Said:
    """The meaning of what came back. The text of a next problem in it means nothing."""
    words = re.sub(r"\s+", " ", text.lower())
    wants = wants_of(words)
    return Said(
        wants, bool(_DOUBT.search(words)), bool(_CONTENT.search(words) or _MOVES_ON.search(words)), bool(_VAGUE.search(words))
    )


def wants_of(text: str) -> dict[str, str]:
    """The wishes in a text, the last one on each axis: {"language": "german"}."""
    found: list[tuple[int, str, str]] = []
    left = text.lower()
    for axis, value, pattern in _NAMED:
        for match in re.finditer(pattern, left):
            found.append((match.start(), axis, value))
            left = _blanked(left, match)
    for axis, pattern in _ADDED.items():
        for match in re.finditer(pattern, left):
            usual = USUAL[axis]
            rare = next(value for value in AXES[axis] if value != usual)
            found.append((match.start(), axis, usual if _refused(text.lower(), match) else rare))
            left = _blanked(left, match)
    return {axis: value for _, axis, value in sorted(found)}


def _blanked(text: str, match: re.Match[str]) -> str:
    return text[: match.start()] + "#" * (match.end() - match.start()) + text[match.end() :]


def _refused(text: str, match: re.Match[str]) -> bool:
    """Whether what is named is not wanted, by the words around it."""
    before = re.split(_ENDS, text[: match.start()])[-1]
    behind = text[match.end() :]
    if _MISSED.search(before) or re.match(r" is missing", behind):
        return False
    return bool(_NOT.search(before)) or bool(_TOO_MUCH.match(behind))
