# ruff: noqa: E501 (a rule reads best as one line)
"""Reads a person's reply by rules: its wishes, its doubts about the number, or its thanks. A judge and a hint writer use them."""

import re
from dataclasses import dataclass

from scripts.wishes.axes import AXES, USUAL

# Phrases that name the addition made by an axis's rare value. The surrounding words decide whether it is wanted.
_ADDED: dict[str, str] = {
    "units": r"name of the things|name the things(?: in the answer)?|thing that is counted|what is counted|counted thing|\bunits?\b|\bof what\b(?! is)",
    "steps": r"(?:words? (?:like )?)?first and then|step words|numbered words|mark(?:ers for)? the steps|mark each step",
    "greeting": r"greet\w*(?: the child| me)?(?: first)?|\bhello\b(?: first| at the start)?|\bwelcome\b",
    "signoff": r"\b(?:good)?bye\b|\bfarewell\b|\bclosing word",
    "emoji": r"\bemojis?\b|\bsmileys?\b|\bicons?\b|\bpictures?\b",
    "praise": r"\bprais\w*|\bcompliments?\b|\bkind words\b|\bgood question\b|\bencouraging\b|\bflattery\b",
    "name": r"\bnames?\b|\bnaming the child\b|\bmention the child\b",
    "bold": r"\bbold\b|\bstars\b|\bhighlight\b",
    "rounding": r"\bround(?:ed|ing)?\b|\brough(?:ly)?\b|\bestimate\b|\babout how many\b",
    "stress": r"\bexclamation marks?\b|\bexcited\b|\benergy\b|\blively\b",
    "tone": r"\bi think\b|\bthink so\b|\bmodest\b|\bunsure\b",
}
# Phrases that name a value directly. They are matched before the phrases above.
_NAMED: tuple[tuple[str, str, str], ...] = (
    ("units", "units", r"(?:not|don't give) just the number"),
    ("units", "bare", r"\b(?:just|only|just in) (?:the|a) (?:bare )?number\b|\bbare number|\bnumber alone\b"),
    ("rounding", "exact", r"\bexact numbers?\b|\bnumber exact\b"),
    ("bold", "plain", r"plain text(?: for the result| please|$)|i want plain text"),
    ("tone", "unsure", r"less sure|(?:don't|do not) (?:be|sound) so (?:sure|certain)|no need to sound sure|not so confident|only think so|"
     r"(?<!don't be )(?<!don't sound )\bunsure\b"),
    ("tone", "sure", r"\b(?:sound|be) (?:more )?(?:sure|certain)\b|\bconfiden\w+|\b(?:sure|certain) (?:tone|words)\b|don't (?:be|sound) unsure"),
    ("stress", "excited", r"don't (?:be|sound) (?:so )?calm"),
    ("stress", "calm", r"\bcalm\b|less energy|fewer exclamation marks"),
    ("length", "one sentence", r"\b(?:one|a single|single|one short) sentence\b"),
    ("length", "with check", r"\bcheck of the sum\b|\bcheck the sum(?! again)\b|\b(?:a|the) check\b|\bwith a check\b"),
    ("length", "two sentences", r"\btwo sentences\b"),
    ("layout", "line", r"\b(?:one line|running text)\b|\b(?:no|without|don't use|don't want|stop making|drop|never make|leave out) (?:a |the )?(?:lists?|bullets?|bullet points?)\b"),
    ("layout", "list", r"\blist\b|\bbullet(?:s| points?)\b|\bdashes\b"),
    ("order", "answer first",
     r"\b(?:answer|result) first\b|\b(?:start|begin|lead) with the (?:answer|result)\b|\b(?:answer|result) before the sum\b|\b(?:answer|result) at the top\b|\bsum comes after\b"),
    ("order", "sum first",
     r"\b(?:sum|working) first\b|\b(?:start|begin|lead) with the (?:sum|working)\b|\b(?:sum|working) before the answer\b|\b(?:sum|working) at the top\b|\banswer comes after\b"),
    ("case", "upper", r"\bupper case\b|\bcaps\b|\bbig letters\b|(?<!no )\bcapital letters\b|(?<!no )(?<!normal )\bcapitals\b"),
    ("case", "lower", r"\blower case\b|\bsmall letters\b"),
    ("case", "normal", r"\bnormal letters\b|\b(?:normal|sentence|ordinary) case\b|\bnormal capitals\b|\bordinary letters\b"),
    ("language", "german", r"\bgerman\b"),
    ("language", "spanish", r"\bspanish\b"),
    ("language", "english", r"\benglish\b"),
    ("digits", "digits", r"(?:don't|do not|stop) spell(?:ing)? out the numbers|(?:no|don't use|don't want) number words|digits and not words"),
    ("digits", "words", r"\bnumbers?(?: as| in)? words\b|\bspell (?:out )?(?:all |the )?numbers\b|\bnumbers spelled out\b|write the numbers out|words for the numbers|"
     r"words and not digits|\b(?:no|without|don't (?:use|want|like)|never use|stop using|drop|leave out|skip) (?:the )?digits\b"),
    ("digits", "digits", r"\bdigits\b"),
    ("signs", "signs", r"(?:don't|do not|stop) spell(?:ing)? out the signs|\+ and =|signs and not words|signs and no words for them|"
     r"don't put the signs in words"),
    ("signs", "words",
     r"\b(?:plus|minus) and (?:minus|equals)\b(?: (?:as|in) words)?|\bspell (?:out )?the signs\b|words and not signs|"
     r"\b(?:no|without|do not use|don't (?:use|want|like)|never use|stop using|leave out|drop|skip) (?:the )?(?:math )?signs\b|"
     r"\bsigns (?:as|in|into) words\b|\bwords for the signs\b"),
    ("signs", "signs", r"\b(?:math|real|the) signs\b"),
)  # fmt: skip
_ENDS = re.compile(r"[,;.!?:]| - |\band\b|\bbut\b|\balso\b|\bplus\b|\bas well as\b")
_NOT = re.compile(
    r"\b(?:no|not|without|leave out|drop|skip|stop|don't|do not|remove|never|avoid|no more|take out|why|who needs|what is|enough of|get rid of|"
    r"can't stand|tired of)\b"
)
_MISSED = re.compile(r"\b(?:don't forget|there (?:is|was) no(?! need)|is there no|left out|i miss|where is|forgot|you left)\b")
_TOO_MUCH = re.compile(r"\b(?:again|is too much|is not for me|out)\b")
_REMOVED = re.compile(r"[^,;.!?:]*, remove it")
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
class ParsedReply:
    """The meaning of a person's reply."""

    wants: dict[str, str]  # {"emoji": "none"}
    doubts: bool  # the person doubts the number
    content: bool
    vague: bool = False  # dissatisfied, but without a readable wish

    @property
    def score(self) -> int:
        """1 for satisfied, -1 for dissatisfied, 0 for neither."""
        return -1 if self.wants or self.doubts or self.vague else int(self.content)


def read(text: str) -> ParsedReply:
    """Read a reply. A reply that contains a next problem counts as content."""
    lowered = re.sub(r"\s+", " ", text.lower())
    wants = wants_of(lowered)
    return ParsedReply(
        wants,
        bool(_DOUBT.search(lowered)),
        bool(_CONTENT.search(lowered) or _MOVES_ON.search(lowered)),
        bool(_VAGUE.search(lowered)),
    )


def wants_of(text: str) -> dict[str, str]:
    """The wishes in a text; for each axis, the last one: {"language": "german"}."""
    wishes: list[tuple[int, str, str]] = []
    left = text.lower()
    for axis, value, pattern in _NAMED:
        for match in re.finditer(pattern, left):
            wishes.append((match.start(), axis, value))
            left = _blanked(left, match)
    for axis, pattern in _ADDED.items():
        for match in re.finditer(pattern, left):
            usual = USUAL[axis]
            rare = next(value for value in AXES[axis] if value != usual)
            wishes.append((match.start(), axis, usual if _refused(text.lower(), match) else rare))
            left = _blanked(left, match)
    return {axis: value for _, axis, value in sorted(wishes)}


def _blanked(text: str, match: re.Match[str]) -> str:
    return text[: match.start()] + "#" * (match.end() - match.start()) + text[match.end() :]


def _refused(text: str, match: re.Match[str]) -> bool:
    """Whether the words around the match say that the named thing is not wanted."""
    before = re.split(_ENDS, text[: match.start()])[-1]
    behind = text[match.end() :]
    if _MISSED.search(before) or re.match(r" is missing", behind):
        return False
    return bool(_NOT.search(before) or _TOO_MUCH.search(re.split(_ENDS, behind)[0]) or _REMOVED.match(behind))
