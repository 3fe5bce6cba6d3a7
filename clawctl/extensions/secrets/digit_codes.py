# ruff: noqa: E501 - expressions stay lines
"""Finds numeric codes in conversation, in digits or spoken: PIN, PUK, door and alarm codes, CVV, TAN, combinations.

A number is a code if a word near it names it as one. That word is in the same clause, or in a label above the number. `PIN` and
similar words suffice. `code` and similar words also need a word for what the code opens. Words with another meaning (`error code`,
`room 1204`, `6 digits`) rule a code out. The words are data: `lexicon.py`.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import or_
from typing import NamedTuple

from clawctl.extensions.secrets.lexicon import ANCHORED, NAMES, TOKEN, Meaning, anchor_words, meaning_of, plain, words_within
from clawctl.extensions.secrets.text import BEYOND, DIGITS, Anchors, Span, Text, positions_of, regex, tried_at

_BEHIND, _AHEAD = 150, 130  # characters read around a name
_CODE = regex(
    r"""(?=[\d#*A-ZА-Я])(?<![A-Za-z0-9_\u00c0-\u024f\u0400-\u04ff$€£¥₹₽@%°^~+\\])(?<!\d)(?<![A-Za-z0-9)•●][.,:/-])(?<![•●…])(?<![*•●][-.])(?<!\d[ ])[#*]{0,2}(?P<value>(?>
        \d{2,6}(?:-\d{2,6}){1,7}                     # 19-68-12, 072-72-154
      | \d(?:[- ]\d){2,11}                           # 5-3-7-6
      | \d{3,6}[ ]\d{3,6}(?:[ ]\d{3,6})?(?![ ]?\d)   # 9133 1957
      | \d{2}[ ]\d{2}[ ]\d{2}(?:[ ]\d{2}){0,2}(?![ ]?\d)
      | \d{1,6}[A-ZА-Я]{1,2}\d{2,6} | [A-ZА-Я]\d{4,6} | \d{4,6}[A-ZА-Я]
      | \d{3,12}
    ))(?P<keys>[#*]{0,2}+)(?![A-Za-z_%€$£¥₹₽°²\u00c0-\u024f\u0400-\u04ff]|[.,:/]\d|-\w|[ ]?[%€$£¥₹₽°])""",
    re.VERBOSE,
)  # fmt: skip
_DATE = regex(r"(?:19|20)\d\d-(?:19|20)\d\d|\d{4}-\d\d?-\d\d?|\d\d?-\d\d?-(?:19|20)\d\d")
_YEAR = regex(r"(?:19[5-9]|20[0-4])\d")
_END = regex(r"(?:[.!;](?=\s|$)|[。！；!]|\n|\\[nr])")
_SOFT = regex(r"[,?、，,;|]|[ ][/–—-][ ]")
_BLANK_LINE = regex(r"(?:^|\n)[ \t>*|`_-]*\Z")
_JOINED = regex(r"(?:[:=：→]|->|=>|\bis|[-–—])[ \t\"'`*_«„“「『【\[(<]*\Z")
_LISTED = regex(r"[ \t,/&+;·|-]*(?:(?:and|und|y|e|et|en|og|och|ja|i|ve|и|та|or|oder|ou|o|lub|和|と|و)[ \t]+)?\Z")
_COUNTED = regex(r"[ \u00a0-]?")
TRIVIAL = frozenset(
    "0000 1111 1234 12345 123456 1234567 12345678 123456789 1234567890 000000 111111 00000000 0123 012345 654321 4321 123 000".split()  # noqa: SIM905
)
_IDENTIFIER = regex(
    r"[A-Za-z]*_(?!code|pin|no|number|nr)[A-Za-z]|-(?:length|policy|min|max|size|count|limit|age|expiry|timeout|id|only|hash)|[(\[{]|\.[A-Za-z]|\+\+|[=!<>]=|[ ]?(?:<|>=?)[ ]"
)
# A comparison, or the value of something that is not named as a code: `user_id=48213`, `${DB_HOST}:5432`.
_OTHER_VALUE = regex(
    r"(?:[ )][<>]=?|[=!<>]=)[ ]?\(?$|\}[:/=]$|(?<![A-Za-z])(?:[A-Za-z]+_)+(?!(?i:code|pin|no|nr|number|cvv|cvc|otp|puk|password|passcode|totp|combo|combination)[=:])[A-Za-z]+=$|(?<![A-Za-z_])(?=_?(?:[A-Z]+_){2})(?!\w*(?:CODE|PIN|CVV|CVC|OTP|PUK|PASS|COMB))_?[A-Z_]+[ ]?[=:][ ]?$"
)
_DAY = regex(
    r"(?:(?<!\d)\d{1,2}(?:st|nd|rd|th|\.)?(?:[ ]de)?[ ][^\W\d_]{3,12}\.?,?(?:[ ]de)?|[^\W\d_]{3,12}\.?[ ]\d{1,2}(?:st|nd|rd|th)?,?)[ ]$"
)
_PARENTHESIS = regex(r"^[ ]?(?:\([^()\n]{1,24}[^()\n\d]\)|（[^（）\n]{1,24}）)(?=[ :=是はがisとを]|$)")  # `PIN (4 digits): …`
_SPOKEN_GAP = regex(r"[ ,.…-]{1,4}")


class _Word(NamedTuple):
    start: int
    end: int
    meaning: int


_UNDER = regex(r"[#*]?\d[\d -]{1,14}[#*]?")
_PARTS_OF_NAME = regex(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+|[^\W\d_]+")


def is_code_under(name: str, value: str) -> bool:
    """Whether `value` is a code, given its key `name`: `{"pin": "6390"}`."""
    if not _UNDER.fullmatch(value) or not name or len(name) > 60:
        return False
    text = f"{' '.join(_PARTS_OF_NAME.findall(name))}: {value}"
    return any(True for _ in _Region(text, 0, len(text)).codes())


def _regions(piece: Text) -> list[tuple[int, int]]:
    """Return the parts of a text that contain digits around words that name codes."""
    regions: list[tuple[int, int]] = []
    for at in _names(piece):
        start, end = max(0, at - _BEHIND), min(len(piece.text), at + _AHEAD)
        if regions and start <= regions[-1][1]:
            regions[-1] = (regions[-1][0], end)
        else:
            regions.append((start, end))
    digits = piece.present & DIGITS
    return [
        (start, end) for start, end in regions if (digits and _CODE.search(piece.text, start, end)) or _is_spoken(piece, start, end)
    ]


def _is_spoken(piece: Text, start: int, end: int) -> bool:
    """Whether words for digits begin in this part of a text."""
    words = _RUN.findall(piece.ascii, start, end)
    uses = [] if _DIGIT_WORDS.isdisjoint(words) else [_use_of(word) for word in words]
    if piece.beyond:
        uses += [use for at, use in _words_beyond(piece) if start <= at < end]
    return sum(bool(use & (_SPOKEN | _NUMBER)) for use in uses) > 1 or any(use & _NUMBER for use in uses)


_NAMED, _SPOKEN, _NUMBER = 1, 2, 4  # uses of a word: names a code, is a digit, is several digits
_SIDES = anchor_words(ANCHORED)
_NAMES_AT = Anchors(*_SIDES)
_TO_RUN_END = regex("[a-z]*")
_RUN = regex("(?<![a-z])[a-z]+")
_DIGIT_WORDS = frozenset(anchor_words(Meaning.DIGIT | Meaning.TWICE))


@tried_at(_NAMES_AT, BEYOND, to_value_end=False)
def in_digit_codes(piece: Text) -> Iterator[Span]:
    """Find codes such as `front door code 774610, back gate 1355`, `现关密码改成2981#了`, `der Türcode ist drei zwei null drei`."""
    for start, end in _regions(piece):
        yield from _Region(piece.text, start, end).codes()


def _names(piece: Text) -> list[int]:
    """Return the positions of the words that name a code, in order."""
    names, text = set[int](), piece.ascii
    for anchor, starts in _NAMES_AT.occurrences(piece):
        before, after = _SIDES[anchor]
        for begin in starts:
            end = begin + len(anchor)
            precedes, follows = text[begin - 1 : begin].isalpha(), text[end : end + 1].isalpha()
            if (precedes and (follows or not before)) or (follows and not after):
                continue
            while precedes and begin > 0 and text[begin - 1].isalpha():
                begin -= 1
            end = _TO_RUN_END.match(text, end).end() if follows else end  # type: ignore[union-attr]
            if _use_of(text[begin:end]) & _NAMED:
                names.add(begin)
    if piece.beyond:
        names |= {at for at, use in _words_beyond(piece) if use & _NAMED}
    return sorted(names)


def _words_beyond(piece: Text) -> list[tuple[int, int]]:
    """Return the positions of the words with letters beyond ASCII that have a use, and their uses."""
    if piece.words is None:
        piece.words, lower = [], piece.lower
        for word in {word for word in TOKEN.findall(lower) if not word.isascii()}:
            if use := _use_of(word):
                spaced = _SPACELESS.match(word) is None
                piece.words += [
                    (at, use)
                    for at in positions_of(lower, word)
                    if not (spaced and (lower[at - 1 : at].isalpha() or lower[at + len(word) : at + len(word) + 1].isalpha()))
                ]
    return piece.words


@lru_cache(maxsize=1 << 13)
def _use_of(word: str) -> int:
    if len(word) == 1 and word.isascii():
        return 0
    meaning = _run_meaning(word)
    use = _NAMED * bool(meaning & ANCHORED and (not meaning & Meaning.PLACE or meaning & NAMES))
    if _SINO.fullmatch(word) or (_SPACELESS.match(word) and _digits_within(word) > 2):
        return use | _NUMBER
    return use | _SPOKEN * bool(meaning & (Meaning.DIGIT | Meaning.TWICE))


def _digits_within(run: str) -> int:
    return sum(bool(meaning & Meaning.DIGIT) for _, _, meaning in words_within(run))


def _run_meaning(word: str) -> int:
    """Return all meanings of a word, or of a run of letters without spaces."""
    if word == "tan":
        return Meaning.STRONG
    if _SPACELESS.match(word):
        return reduce(or_, (meaning for _, _, meaning in words_within(word)), 0)
    return meaning_of(word)


@dataclass(slots=True)
class _Number:
    """A number that may be a code: `text[start:end]`, in digits or `spoken`."""

    start: int
    end: int
    on_keypad: bool  # `#` or `*` is beside it
    value: str = ""
    digits: int = 0
    spoken: bool = False
    before: int = 0  # the index of the first word of the region that does not end before it
    after: int = 0  # the index of the first word that begins behind it
    floor: int = 0  # where its clause or label begins
    joined: bool = False  # a sign or a verb joins it to the words before it


class _Region:
    """A part of a text, its words, and the end of the last code found in it."""

    def __init__(self, text: str, start: int, end: int) -> None:
        self.text, self.start, self.end = text, start, end
        self.words: list[_Word] = []
        self.last: int = -1  # the end of the last code

    def codes(self) -> Iterator[Span]:
        self.words = list(_words(self.text, self.start, self.end))
        self._starts = [word.start for word in self.words]
        self._ends = [word.end for word in self.words]
        candidates = [
            (match.start(), match.end(), bool(match["keys"])) for match in _CODE.finditer(self.text, self.start, self.end)
        ]
        candidates += self._spoken()
        for start, end, on_keypad in sorted(candidates):
            if start >= self.last and self._is_code(_Number(start, end, on_keypad)):
                self.last = end
                yield Span(start, end, "password")

    def _spoken(self) -> Iterator[tuple[int, int, bool]]:
        """Find three or more consecutive words for digits."""
        run: list[_Word] = []
        for word in (*self.words, _Word(self.end + 9, self.end + 9, 0)):
            is_digit = bool(word.meaning & (Meaning.DIGIT | Meaning.TWICE))
            joined = run and (word.start == run[-1].end or _SPOKEN_GAP.fullmatch(self.text, run[-1].end, word.start))
            if is_digit and (not run or joined):
                run.append(word)
                continue
            if len(run) == 1 and _SINO.fullmatch(self.text, run[0].start, run[0].end):
                yield run[0].start, run[0].end, False
            if len(run) >= 3 or (len(run) == 2 and any(each.meaning & Meaning.TWICE for each in run)):
                yield run[0].start, run[-1].end, False
            run = [word] if is_digit else []

    def _is_code(self, number: _Number) -> bool:
        text, start, value = self.text, number.start, self.text[number.start : number.end].strip("#*")
        number.value, number.digits = value, sum(map(str.isdigit, value))
        digits, number.spoken = number.digits, number.digits == 0
        if not number.spoken and ((digits > 12 and "-" not in value) or _DATE.fullmatch(value) or value in TRIVIAL):
            return False
        if value[:1] == "0" and digits >= 9:  # a telephone number
            return False
        if not number.spoken and (
            _OTHER_VALUE.search(text, max(self.start, start - 64), start)
            or (_YEAR.fullmatch(value) and _DAY.search(text, max(0, start - 24), start))
        ):
            return False
        number.before, number.after = bisect_right(self._ends, start), bisect_left(self._starts, number.end)
        if self._is_counted(number):
            return False
        number.floor = self._floor(start)
        number.joined = _JOINED.search(text, max(number.floor, start - 12), start) is not None or self._is_joined(number)
        if (named := self._named(number)) is not None:
            return named
        if self._continues_list(number) or (4 <= digits <= 8 and _ON_KEYPAD.match(text, number.end)):
            return True
        clause = self._between(number.floor, start)
        return (
            self._is_opened_with(number)
            or self._named_behind(number)
            or (3 <= digits <= 4 and self._is_on_back(number))
            or (number.on_keypad and any(word.meaning & (NAMES | Meaning.LOCK | Meaning.KEYBOX) for word in clause))
        )

    def _is_joined(self, number: _Number) -> bool:
        """Whether a verb joins the number to its name: `… is 4471`, `… est le 4471`."""
        if not number.before or number.start - self.words[number.before - 1].end > 4:
            return False
        last = self.words[number.before - 1]
        if last.meaning & Meaning.IS:
            return last.end > number.floor
        earlier = self.words[number.before - 2] if number.before > 1 else last
        return (
            last.end - last.start <= 3
            and not last.meaning & ~Meaning.AND
            and bool(earlier.meaning & Meaning.IS)
            and earlier.end > number.floor
        )

    def _between(self, start: int, end: int) -> list[_Word]:
        return self.words[bisect_left(self._starts, start) : bisect_right(self._ends, end)]

    def _is_counted(self, number: _Number) -> bool:
        """Whether the number belongs to a room, a page, a year or an order, or counts something."""
        if number.after < len(self.words):
            word = self.words[number.after]
            if word.meaning & Meaning.AFTER and _COUNTED.fullmatch(self.text, number.end, word.start):
                return True
        if not number.before:
            return False
        word, value = self.words[number.before - 1], self.text[number.start : number.end]
        gap = self.text[word.end : number.start]
        if word.meaning & Meaning.WHEN and not gap.strip() and (_YEAR.fullmatch(value) or _is_time(value)):
            return True
        if word.meaning & Meaning.OPENS and not gap.strip() and _is_time(value) and value[-2:] in ("00", "15", "30", "45"):
            return True
        if (
            not word.meaning & Meaning.BEFORE
            or word.meaning & (NAMES | Meaning.IS)
            or len(gap) > 5
            or "\n" in gap
            or gap.strip(" .:#°№-n")
        ):
            return False
        return not (
            word.meaning & (Meaning.OWNER | Meaning.LOCK)
            and any(each.meaning & NAMES for each in self.words[max(0, number.before - 5) : number.before - 1])
        )

    def _floor(self, start: int) -> int:
        """Return the start of the clause or, for a number alone on its line, of the label above it."""
        low = max(self.start, start - 170)
        if _BLANK_LINE.search(self.text, low, start):
            above = self.text[low:start].rstrip(" \t>*|`_-\n\r")
            return low + above.rfind("\n") + 1
        floor = low
        for match in _END.finditer(self.text, low, start):
            if match[0] == "." and _ABBREVIATION.search(self.text, max(low, match.start() - 6), match.start()):
                continue
            floor = match.end()
        return floor

    def _ceiling(self, end: int) -> int:
        match = _END.search(self.text, end, min(self.end, end + 90))
        return match.start() if match else min(self.end, end + 90)

    def _named(self, number: _Number) -> bool | None:
        """Whether the nearest name before the number makes it a code. None: there is no name."""
        steps = 0
        for place in range(number.before - 1, -1, -1):
            word = self.words[place]
            if (
                word.start < number.floor
                or number.start - word.end > (110 if number.joined else 90)
                or steps > (15 if number.joined else 11)
            ):
                return None
            steps += 1
            if not word.meaning & NAMES:
                continue
            gap = _PARENTHESIS.sub("", self.text[word.end : number.start])
            if _IDENTIFIER.match(gap):
                return False
            if _NEXT_FIELD.search(gap):
                return None
            if "\n" in gap and (len(gap) > 60 or steps > 4 or not _ALONE.match(self.text, number.start)):
                return None
            if not number.joined and not number.spoken and _YEAR.fullmatch(number.value) and gap.strip():
                return False
            counted = re.search(r"\d", gap) is not None
            if counted and not number.joined:
                return None if self.last > word.end else False
            soft = _SOFT.search(gap)
            if (
                soft
                and not number.joined
                and not number.spoken
                and not soft.start() <= 2
                and not self._opens_between(word.end, number.start)
            ):
                return None
            return self._is_plausible(number, place, steps)
        return None

    def _is_plausible(self, number: _Number, place: int, steps: int) -> bool:
        word = self.words[place]
        meaning = word.meaning
        sentence = self._between(number.floor, self._ceiling(number.start))
        around = self.words[max(0, place - 2) : place + 3]
        harmless = any(
            each.meaning & Meaning.HARMLESS
            and not each.meaning & (Meaning.STRONG | Meaning.PASSWORD)
            and word.start - each.end < 24
            and each.start - word.end < 12
            and each.end <= number.start
            and not re.search(r"[,.;:\n]", self.text[min(each.end, word.end) : max(each.start, word.start)])
            for each in around
        )
        if harmless:
            return False
        if meaning & Meaning.WEAK and not meaning & (Meaning.STRONG | Meaning.PIN | Meaning.PASSWORD):
            stronger = [
                each
                for each in self.words[max(0, place - 2) : place + 2]
                if each.meaning & (Meaning.STRONG | Meaning.PIN) and each.end <= number.start
            ]
            if stronger:
                word, meaning = stronger[0], stronger[0].meaning
        qualified = any(each is not word and each.meaning & (Meaning.LOCK | Meaning.OWNER | Meaning.KEYBOX) for each in sentence)
        if meaning & Meaning.STRONG:
            return number.digits >= 3 or number.spoken
        if (
            number.digits == 3
            and not meaning & (Meaning.PIN | Meaning.PASSWORD)
            and _is_status(self.text, word, number.start, number.value)
        ):
            adjacent = self.words[place - 1] if place else word
            return bool(adjacent.meaning & (Meaning.LOCK | Meaning.OWNER)) and word.start - adjacent.end == 1
        if meaning & Meaning.PIN:
            # A postal code in an Indian address
            if number.digits == 6 and number.value.isdigit() and not qualified and _INDIAN.match(self.text, word.start):
                return False
            if _NUMBERED_PIN.search(self.text, max(self.start, number.start - 120), number.start):  # a pin of a chip
                return False
            return (number.digits >= 4 or number.spoken) and not any(
                each.meaning & Meaning.HARMLESS for each in self._between(number.floor, word.start)[-4:]
            )
        if meaning & Meaning.PASSWORD:
            near = steps <= 8 or number.joined
            least = (
                3
                if qualified and any(each.meaning & Meaning.LOCK for each in sentence)
                else 4
                if number.joined or qualified or steps <= 4
                else 5
            )
            return near and (number.digits >= least or number.spoken) and (number.joined or qualified or steps <= 3)
        if qualified and (
            number.digits > 3 or number.spoken or any(each.meaning & (Meaning.LOCK | Meaning.KEYBOX) for each in sentence)
        ):
            return not any(
                each.meaning & Meaning.HARMLESS
                for each in self._between(number.start, min(self._ceiling(number.start), number.start + 50))
            )
        if qualified and number.digits == 3:
            return any(each is not word and each.meaning & Meaning.OWNER for each in self.words[max(0, place - 2) : place + 6])
        if number.joined and any(each.meaning & Meaning.YOURS for each in self.words[max(0, place - 3) : place]):
            return number.digits > 3 or number.spoken
        if number.joined and any(each.meaning & Meaning.SECRECY for each in self._between(number.start, number.start + 70)):
            return number.digits > 3
        if re.fullmatch(r"[\"']?[ ]{0,2}[:=][ ]{0,2}[\"']?", self.text[word.end : number.start]):  # a setting of an alarm or a lock
            above = self._between(max(self.start, number.start - 160), word.start)
            return (
                number.digits >= 4
                and any(each.meaning & Meaning.LOCK for each in above)
                and any(each.meaning & Meaning.OWNER | each.meaning & Meaning.LOCK for each in above)
            )
        return False

    def _opens_between(self, start: int, end: int) -> bool:
        return any(word.meaning & (Meaning.OPENS | Meaning.IS) for word in self._between(start, end))

    def _continues_list(self, number: _Number) -> bool:
        """Whether the number is the next of several codes: `… 774610, back gate 1355`, `lockers 4471, 8812 and 9021`."""
        if self.last < number.floor or number.start - self.last > 60:
            return False
        gap = self.text[self.last : number.start].lstrip("#*")
        if _LISTED.fullmatch(gap):
            return "," in gap or len(gap) > 1
        return any(
            word.meaning & (Meaning.LOCK | Meaning.KEYBOX | Meaning.OWNER) for word in self._between(self.last, number.start)
        ) and not any(
            word.meaning & Meaning.HARMLESS and not word.meaning & (Meaning.LOCK | Meaning.OWNER)
            for word in self._between(self.last, number.start)
        )

    def _is_opened_with(self, number: _Number) -> bool:
        """Whether the text says what the number opens without calling it a code: `the safe opens with 19-68-12`, `key box beside
        the shed: 0620`.
        """
        if not number.spoken and (number.digits < 4 or (_YEAR.fullmatch(number.value) and not number.joined)):
            return False
        clause = self._between(number.floor, number.start)
        if (
            _is_time(number.value)
            and number.value[-2:] in ("00", "15", "30", "45")
            and not (number.joined or (clause and clause[-1].meaning & Meaning.OPENS))
        ):
            return False
        locks = [word for word in clause if word.meaning & (Meaning.LOCK | Meaning.KEYBOX)]
        if (
            locks
            and number.start - locks[-1].end <= 40
            and any(
                word.meaning & Meaning.OPENS for word in self.words[number.after : number.after + 3] if word.end <= number.end + 24
            )
        ):
            return True
        if (
            locks
            and number.start - locks[-1].end <= 40
            and number.joined
            and (number.spoken or ("-" in number.value and number.digits == number.value.count("-") + 1))
        ):
            return True
        if not locks or number.start - locks[-1].end > 80:
            locks = [
                word
                for word in self._between(number.end, min(self._ceiling(number.end), number.end + 40))
                if word.meaning & (Meaning.LOCK | Meaning.KEYBOX)
            ]
            if not locks or not any(word.meaning & Meaning.OPENS for word in clause[-3:]):
                return False
        opens = [word for word in clause if word.meaning & Meaning.OPENS]
        if opens and number.start - opens[-1].end <= 40 and not _SOFT.search(self.text, opens[-1].end, number.start):
            return True
        if (
            locks
            and number.joined
            and any(
                plain(self.text[word.start : word.end]) in _PADLOCKS and self.text[word.end : word.end + 1] != "_" for word in locks
            )
            and number.start - locks[-1].end <= 40
        ):
            return True
        if (
            locks
            and locks[-1].meaning & Meaning.KEYBOX
            and self.text[locks[-1].end : number.start] == " "
            and not number.spoken
            and not _YEAR.fullmatch(number.value)
            and len(number.value) <= 6
        ):
            return True
        if locks and "-" in number.value and self._is_label(number, locks[-1]):
            return True
        if number.spoken and any(word.meaning & Meaning.OPENS for word in self._between(number.end, self._ceiling(number.end))):
            return True
        ends = re.match(r"[#*\"'`)]{0,3}(?:[.,;!)]?(?:\s|$)|[。，、；）])", self.text[number.end : number.end + 6]) is not None
        if (
            not (ends and re.search(r"[:：=→][ \t*`_]{0,4}\Z", self.text[max(number.floor, number.start - 6) : number.start]))
            or number.digits > 8
        ):
            return False
        if any(word.meaning & Meaning.KEYBOX for word in locks):
            return True
        near = self._between(max(self.start, number.start - 200), min(self.end, number.end + 120))
        return not any(word.meaning & Meaning.HARMLESS for word in clause) and any(
            word.meaning & (Meaning.KEYS | Meaning.KEYBOX | NAMES) for word in near
        )

    def _is_on_back(self, number: _Number) -> bool:
        """Whether the number is a card verification code: `the three digits on the back: 640`."""
        clause = self.text[max(number.floor, number.start - 70) : number.start]
        return (number.joined or clause.endswith(" ")) and _BACK.search(clause) is not None and _CARD.search(clause) is not None

    def _is_label(self, number: _Number, word: _Word) -> bool:
        """Whether the label consists only of the thing that the number opens: `coffre : 27-09-61`, `Key safe 4827`."""
        gap = self.text[word.end : number.start]
        return (
            not self.text[number.floor : word.start].strip(" \t-*•").count(" ") > 1
            and gap.strip(" \t:=") == ""
            and ("-" in number.value or ":" in gap)
        )

    def _named_behind(self, number: _Number) -> bool:
        """Whether a name after the number makes it a code: `4471 is the PIN`, `use 4471 as door code`, `704357 (PIN)`."""
        if number.after >= len(self.words) or (number.digits and number.digits < 4) or _YEAR.fullmatch(number.value):
            return False
        ceiling = self._ceiling(number.end)
        first = self.words[number.after]
        gap = self.text[number.end : first.start].lstrip("#*\"'`»”")
        paren = gap.strip() in ("(", "（") or gap in (" - ", " – ", " — ", " = ", " -> ", " → ", " : ")
        if "\n" in gap or not (paren or (first.meaning & (Meaning.IS | Meaning.YOURS) and gap.strip() in ("", ","))):
            return False
        sentence = self._between(number.floor, ceiling)
        for word in self.words[number.after : number.after + 6]:
            if word.end > ceiling or (not paren and _SOFT.search(self.text, first.end, word.start)):
                return False
            if word.meaning & (Meaning.HARMLESS | Meaning.AFTER) and not word.meaning & NAMES:
                return False
            if word.meaning & (Meaning.STRONG | Meaning.PIN | Meaning.PASSWORD):
                return not re.match(r"[-_]?\w*[ ](?:length|policy|limit|format|rules?)", self.text[word.end : word.end + 20])
            if word.meaning & Meaning.WEAK and any(
                each is not word and each.meaning & (Meaning.LOCK | Meaning.OWNER | Meaning.KEYBOX) for each in sentence
            ):
                return not any(each.meaning & Meaning.HARMLESS for each in sentence)
        return False


_ABBREVIATION = regex(
    r"(?:^|[\s(])(?:nr|no|n|num|núm|št|č|tel|apt|ap|apto|zi|zi|z|st|str|bzw|ca|inkl|u|sr|sra|dr|mr|mrs|p|г|кв|д|ул)$", re.IGNORECASE
)
_ON_KEYPAD = regex(
    r"[#*]?[ ](?:on|into|in|at|onto)[ ](?:the|that|its|our)[ ](?:[\w'’-]{2,12}[ ])?(?:key|number |entry )?pad\b|[ ](?:am|ins|ans|auf dem|in das)[ ](?:Tasten|Zahlen)feld",
    re.IGNORECASE,
)  # `badge + 6790 on the keypad`
_NEXT_FIELD = regex(r"[\"'],\s{0,8}[\"']?(?!value|val\b|content|default|text)[A-Za-z_]")  # `"password":"***","port":`
_INDIAN = regex(r"pin[ ]?code|पिन[ ]?कोड", re.IGNORECASE)
_NUMBERED_PIN = regex(r"\b[Pp]ins? \d{1,3}\b")
_PADLOCKS = frozenset(
    "lock padlock candado cadenas antivol lucchetto cadeado hangslot fietsslot cijferslot vorhangeschloss fahrradschloss zahlenschloss klodka klodki kilit kilidi lakat lukko pyoranlukko hanglas cykellas hangelas zamek навесной keypad keybox lockbox keysafe".split()  # noqa: SIM905
)
_BACK = regex(
    r"(?i)\bback\b|hinten|rückseite|au dos|verso|reverso|detrás|atrás|retro|dietro|achterop|achterkant|z tyłu|odwrocie|arka|обороте|обратной|сзади|звороті|bakpå|bagpå|baksida|takana|zadní|裏|背面|뒷면|뒤|خلف|ظهر|पीछे"
)
_CARD = regex(
    r"(?i)digits|numbers|card|ziffern|zahlen|karte|chiffres|carte|cartão|carta|tarjeta|cifras|dígitos|números|cifre|cijfers|pas\b|kaart|cyfry|karty|karcie|kart|rakam|цифры|карт|цифри|siffr|kort|カード|桁|数字|卡|카드|숫자|أرقام|بطاق|अंक|कार्ड"
)
_ALONE = regex(r"[#*]?[\w-]{3,16}(?: \d{3,6}){0,2}[#*`\"'_.]{0,3}[ \t]*(?:\r?\n|$)")
_TIME = regex(r"(?:[01]?\d|2[0-3])[0-5]\d")


_STATUS = regex(r"10[0-3]|20[0-8]|226|30[0-8]|4[0-3]\d|451|50\d|511")
_SET_TO = regex(r"[\"']?[ ]?[:=][ ]?[\"']?")


def _is_status(text: str, word: _Word, start: int, value: str) -> bool:
    """Whether the value is an HTTP status: `code: 404`."""
    return _STATUS.fullmatch(value) is not None and _SET_TO.fullmatch(text, word.end, start) is not None


def _is_time(value: str) -> bool:
    return _TIME.fullmatch(value) is not None


def _words(text: str, start: int, end: int) -> Iterator[_Word]:
    """Yield the words of a part of a text. Words without a meaning are skipped in scripts without spaces."""
    for match in TOKEN.finditer(text, start, end):
        word = match[0]
        if _SPACELESS.match(word):
            for first, last, meaning in words_within(word):
                yield _Word(match.start() + first, match.start() + last, meaning)
        else:
            tag = text.endswith("[redacted:", 0, match.start()) or (
                text[match.start() - 1 : match.start()] in ("<", "/") and text[match.end() : match.end() + 1] == ">"
            )
            if text[match.start() - 1 : match.start()] == "\\" and word[0] in "nrt":  # an escape sequence
                word = word[1:]
            yield _Word(match.start(), match.end(), 0 if tag else _token_meaning(word))


def _token_meaning(word: str) -> int:
    if word == "TAN":
        return Meaning.STRONG
    if word in _UNITS:  # `gib` is also a German word
        return Meaning.AFTER
    return Meaning.DIGIT if _SINO.fullmatch(word) else meaning_of(word)


_UNITS = frozenset("KiB MiB GiB TiB kB KB MB GB TB Mbit Gbit Mbps Gbps kHz MHz GHz kWh mAh".split())  # noqa: SIM905
_SINO = regex("[공영일이삼사오육칠팔구]{3,12}(?:이?에요|예요|이?야|입니다|이?고|번)?")


_SPACELESS = regex("[\u3040-\u30ff\u3400-\u9fff\u0e01-\u0e4e〇]")
