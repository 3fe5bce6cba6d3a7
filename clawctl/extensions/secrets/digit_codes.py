# ruff: noqa: E501 - expressions stay lines
"""Finds numeric codes in conversation, in digits or spoken: PIN, PUK, door and alarm codes, CVV, TAN, combinations.

A number is a code if a word near it names it as one. That word is in the same clause, or in a label above the number. `PIN` and
similar words suffice. `code` and similar words also need a word for what the code opens. Words with another meaning (`error code`,
`room 1204`, `6 digits`) rule a code out. The words are data: `lexicon.py`.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import lru_cache, reduce
from operator import or_
from typing import NamedTuple

from clawctl.extensions.secrets.lexicon import ANCHORED, NAMES, TOKEN, Meaning, anchor_words, meaning_of, plain, words_within
from clawctl.extensions.secrets.text import BEYOND, Anchors, Span, Text, positions_of, regex, tried_at
from clawctl.extensions.secrets.vocabulary import LISTS

_BEHIND, _AHEAD = 150, 130  # characters read around a name
_CODE = regex(
    r"""(?=[\d#*A-ZА-Я])(?<![A-Za-z0-9_\u00c0-\u024f\u0400-\u04ff$€£¥₹₽@%°^~+\\])(?<!\d)(?<![A-Za-z0-9)•●][.,:/-])(?<![•●…])(?<![*•●][-.])(?<!\d[ ])[#*]{0,2}(?P<value>(?>
        \d{2,6}(?:-\d{2,6}){1,7}                     # 19-68-12, 072-72-154
      | \d(?:[- ]\d){2,11}                           # 5-3-7-6
      | \d{3,6}[ ]\d{3,6}(?:[ ]\d{3,6})?(?![ ]?\d)   # 9133 1957
      | \d{2}[ ]\d{2}[ ]\d{2}(?:[ ]\d{2}){0,2}(?![ ]?\d)
      | \d{1,6}[A-ZА-Я]{1,2}\d{2,6} | [A-ZА-Я]\d{4,6} | \d{4,6}[A-ZА-Я]
      | \d{3,12}
    ))(?P<keys>[#*]{0,2}+)(?![A-Za-z_%€$£¥₹₽°²\u00c0-\u024f\u0400-\u04ff]|[./:]\d|,\d(?!\d?[\u4e00-\u9fff])|-\w|[ ]?[%€$£¥₹₽°])""",
    re.VERBOSE,
)  # fmt: skip
_SET_APART, _NEAR = regex(r"\d(?:-\d){2,7}|\d(?: \d){3,7}"), 60  # single digits, which are no count and seldom a score
_DATE = regex(r"(?:19|20)\d\d-(?:19|20)\d\d|\d{4}-\d\d?-\d\d?|\d\d?-\d\d?-(?:19|20)\d\d")
_YEAR = regex(r"(?:19[5-9]|20[0-4])\d")
_END = regex(r"(?:[.!;](?=\s|$)|[。！；!]|\n|\\[nr])")
_SOFT = regex(r"[,?、，,;|]|[ ][/–—-][ ]")
_BLANK_LINE = regex(r"(?:^|\n)[ \t>*|`_-]*\Z")
_JOINED = regex(r"(?:[:=：→]|->|=>|\bis|[-–—])[ \t\"'`*_«„“「『【\[(<]*\Z")
_LISTED = regex(r"[ \t,/&+;·|-]*(?:(?:(?&and)|(?&or)|(?&and beyond))[ \t]+)?\Z")
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
    r"(?:(?<!\d)\d{1,2}(?:st|nd|rd|th|\.)?(?:[ ](?&of a month))?[ ][^\W\d_]{3,12}\.?,?(?:[ ](?&of a month))?|[^\W\d_]{3,12}\.?[ ]\d{1,2}(?:st|nd|rd|th)?,?)[ ]$"
)
_PARENTHESIS = regex(r"^[ ]?(?:\([^()\n]{1,24}[^()\n\d]\)|（[^（）\n]{1,24}）)(?=[ :=is]|(?&particles)|$)")  # `PIN (4 digits): …`
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
    for at, _, _ in code_words(piece, NAME):
        start, end = max(0, at - _BEHIND), min(len(piece.text), at + _AHEAD)
        if regions and start <= regions[-1][1]:
            regions[-1] = (regions[-1][0], end)
        else:
            regions.append((start, end))
    return [
        (start, end)
        for start, end in regions
        if ((piece.beyond or _NUMBER.search(piece.digits, start + 1, end + 1)) and _CODE.search(piece.text, start, end))
        or _is_spoken(piece, start, end)
    ]


_NUMBER = re.compile(b"0(?:00| 0 ?0|  00)")  # the digits of `_CODE`


def _is_spoken(piece: Text, start: int, end: int) -> bool:
    """Whether words for digits begin in this part of a text."""
    words = piece.code_points[start:end].translate(_OF_WORDS).split()
    uses = [] if _DIGIT_WORDS.isdisjoint(words) else [SPOKEN for word in words if word in _DIGIT_WORDS]
    uses += [SPOKEN for word in words if word.startswith(_DIGIT_STEMS) and word not in _DIGIT_WORDS] if len(uses) == 1 else []
    if piece.beyond:
        uses += [use for at, _, use in _words_beyond(piece) if start <= at < end]
    return sum(bool(use & (SPOKEN | NUMBER)) for use in uses) > 1 or any(use & NUMBER for use in uses)


NAME, SECRET_NAME, SPOKEN, NUMBER = 1, 2, 4, 8  # uses of a word: names a code, names a password, is a digit, is several digits
_WORDS = {NAME: anchor_words(ANCHORED), SECRET_NAME: anchor_words(Meaning.PASSWORD)}
_ANCHOR_WORDS = {use: (Anchors(*words), words) for use, words in _WORDS.items()}
PASSWORDS_AT = _ANCHOR_WORDS[SECRET_NAME][0]
_TO_RUN_END = regex("[a-z]*")
_DIGITS = anchor_words(Meaning.DIGIT | Meaning.TWICE)
_DIGIT_WORDS = frozenset(word.encode() for word in _DIGITS)
_DIGIT_STEMS = tuple(word.encode() for word, (_, is_stem) in _DIGITS.items() if is_stem)
_OF_WORDS = bytes(code if 97 <= code < 123 else 32 for code in range(256))


@tried_at(_ANCHOR_WORDS[NAME][0], BEYOND, to_value_end=False)
def in_digit_codes(piece: Text) -> Iterator[Span]:
    """Find codes such as `front door code 774610, back gate 1355`, `现关密码改成2981#了`, `der Türcode ist drei zwei null drei`."""
    for start, end in _regions(piece):
        yield from _Region(piece.text, start, end).codes()


def code_words(piece: Text, wanted: int) -> list[tuple[int, int, int]]:
    """Return the words of a text with a wanted use, in order: start, end and uses."""
    anchors, sides = _ANCHOR_WORDS[wanted]
    words, text = dict[int, tuple[int, int, int]](), piece.ascii
    for anchor, starts in anchors.occurrences(piece):
        before, after = sides[anchor]
        for begin in starts:
            end = begin + len(anchor)
            precedes, follows = text[begin - 1 : begin].isalpha(), text[end : end + 1].isalpha()
            if (precedes and (follows or not before)) or (follows and not after):
                continue
            while precedes and begin > 0 and text[begin - 1].isalpha():
                begin -= 1
            end = _TO_RUN_END.match(text, end).end() if follows else end  # type: ignore[union-attr]
            if (use := _use_of(text[begin:end])) & wanted:
                words[begin] = begin, end, use
    if piece.beyond:
        words |= {word[0]: word for word in _words_beyond(piece) if word[2] & wanted}
    return sorted(words.values())


def _words_beyond(piece: Text) -> list[tuple[int, int, int]]:
    """Return the words with letters beyond ASCII that have a use."""
    if piece.words is None:
        piece.words, lower = [], piece.lower
        for word in {word for word in TOKEN.findall(lower) if not word.isascii()}:
            if use := _use_of(word):
                spaced = _SPACELESS.match(word) is None
                piece.words += [
                    (at, at + len(word), use)
                    for at in positions_of(lower, word)
                    if not (spaced and (lower[at - 1 : at].isalpha() or lower[at + len(word) : at + len(word) + 1].isalpha()))
                ]
    return piece.words


@lru_cache(maxsize=1 << 13)
def _use_of(word: str) -> int:
    if len(word) == 1 and word.isascii():
        return 0
    meaning = _run_meaning(word)
    use = NAME * bool(meaning & ANCHORED and (not meaning & Meaning.PLACE or meaning & NAMES))
    use |= SECRET_NAME * bool(meaning & Meaning.PASSWORD)
    if _SINO.fullmatch(word) or (_SPACELESS.match(word) and _digits_within(word) > 2):
        return use | NUMBER
    return use | SPOKEN * bool(meaning & (Meaning.DIGIT | Meaning.TWICE))


def _digits_within(run: str) -> int:
    return sum(bool(meaning & Meaning.DIGIT) for _, _, meaning in words_within(run))


def _run_meaning(word: str) -> int:
    """Return all meanings of a word, or of a run of letters without spaces."""
    if word == "tan":
        return Meaning.STRONG
    if _SPACELESS.match(word):
        return reduce(or_, (meaning for _, _, meaning in words_within(word)), 0)
    return meaning_of(word)


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
            if start >= self.last and self._is_code(start, end, on_keypad):
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
            if len(run) >= 3 or (len(run) == 2 and any(word.meaning & Meaning.TWICE for word in run)):
                yield run[0].start, run[-1].end, False
            run = [word] if is_digit else []

    def _is_code(self, start: int, end: int, on_keypad: bool) -> bool:
        text, value = self.text, self.text[start:end].strip("#*")
        digits = sum(map(str.isdigit, value))
        spoken = digits == 0
        if not spoken and ((digits > 12 and "-" not in value) or _DATE.fullmatch(value) or value in TRIVIAL):
            return False
        if value[:1] == "0" and digits >= 9:  # a telephone number
            return False
        if not spoken and (
            _OTHER_VALUE.search(text, max(self.start, start - 64), start)
            or (_YEAR.fullmatch(value) and _DAY.search(text, max(0, start - 24), start))
        ):
            return False
        before = bisect_right(self._ends, start)
        after = bisect_left(self._starts, end)
        if self._is_counted(before, after, start, end):
            return False
        floor = self._floor(start)
        joined = _JOINED.search(text, max(floor, start - 12), start) is not None
        joined = joined or self._is_joined(before, floor, start)
        named = self._named(before, floor, start, joined, value, spoken)
        if named is not None:
            return named
        if self._continues_list(start, floor) or (4 <= digits <= 8 and _ON_KEYPAD.match(text, end)):
            return True
        ceiling = self._ceiling(end)
        return (
            self._is_opened_with(after, floor, start, end, value, joined)
            or self._named_behind(after, floor, end, ceiling, value, joined)
            or (3 <= digits <= 4 and self._is_on_back(floor, start, joined))
            or (_SET_APART.fullmatch(value) is not None and self._is_by_lock(start, end, ceiling))
            or (on_keypad and any(word.meaning & (NAMES | Meaning.LOCK | Meaning.KEYBOX) for word in self._between(floor, start)))
        )

    def _is_by_lock(self, start: int, end: int, ceiling: int) -> bool:
        """Whether what a code opens is near: `The key is in the box by the door. Turn to 0-7-1-5`."""
        near = self._between(max(self.start, start - _NEAR), start) + self._between(end, min(ceiling, end + _NEAR))
        return any(word.meaning & (Meaning.LOCK | Meaning.KEYBOX) for word in near)

    def _is_joined(self, before: int, floor: int, start: int) -> bool:
        """Whether a verb joins the number to its name: `… is 4471`, `… est le 4471`."""
        if not before or start - self.words[before - 1].end > 4:
            return False
        last = self.words[before - 1]
        if last.meaning & Meaning.IS:
            return last.end > floor
        earlier = self.words[before - 2] if before > 1 else last
        return (
            last.end - last.start <= 3
            and not last.meaning & ~Meaning.AND
            and bool(earlier.meaning & Meaning.IS)
            and earlier.end > floor
        )

    def _between(self, start: int, end: int) -> list[_Word]:
        return self.words[bisect_left(self._starts, start) : bisect_right(self._ends, end)]

    def _is_counted(self, before: int, after: int, start: int, end: int) -> bool:
        """Whether the number belongs to a room, a page, a year or an order, or counts something."""
        if after < len(self.words):
            word = self.words[after]
            if word.meaning & Meaning.AFTER and _COUNTED.fullmatch(self.text, end, word.start):
                return True
        if not before:
            return False
        word, value = self.words[before - 1], self.text[start:end]
        gap = self.text[word.end : start]
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
            and any(word.meaning & NAMES for word in self.words[max(0, before - 5) : before - 1])
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

    def _named(self, before: int, floor: int, start: int, joined: bool, value: str, spoken: bool) -> bool | None:
        """Whether the nearest name before the number makes it a code. None: there is no name."""
        steps = 0
        for index in range(before - 1, -1, -1):
            word = self.words[index]
            if word.start < floor or start - word.end > (110 if joined else 90) or steps > (15 if joined else 11):
                return None
            steps += 1
            if not word.meaning & NAMES:
                continue
            gap = _PARENTHESIS.sub("", self.text[word.end : start])
            if _IDENTIFIER.match(gap):
                return False
            if _NEXT_FIELD.search(gap):
                return None
            if "\n" in gap and (len(gap) > 60 or steps > 4 or not _ALONE.match(self.text, start)):
                return None
            if not joined and not spoken and _YEAR.fullmatch(value) and gap.strip():
                return False
            counted = re.search(r"\d", gap) is not None
            if counted and not joined:
                return None if self.last > word.end else False
            soft = _SOFT.search(gap)
            opened = any(other.meaning & (Meaning.OPENS | Meaning.IS) for other in self._between(word.end, start))
            if soft and not joined and not spoken and not soft.start() <= 2 and not opened:
                return None
            return self._is_plausible(index, floor, start, value, steps, joined)
        return None

    def _is_plausible(self, index: int, floor: int, start: int, value: str, steps: int, joined: bool) -> bool:
        word, digits = self.words[index], sum(map(str.isdigit, value))
        spoken = not digits
        meaning = word.meaning
        sentence = self._between(floor, self._ceiling(start))
        around = self.words[max(0, index - 2) : index + 3]
        harmless = any(
            other.meaning & Meaning.HARMLESS
            and not other.meaning & (Meaning.STRONG | Meaning.PASSWORD)
            and word.start - other.end < 24
            and other.start - word.end < 12
            and other.end <= start
            and not re.search(r"[,.;:\n]", self.text[min(other.end, word.end) : max(other.start, word.start)])
            for other in around
        )
        if harmless:
            return False
        if meaning & Meaning.WEAK and not meaning & (Meaning.STRONG | Meaning.PIN | Meaning.PASSWORD):
            stronger = [
                other
                for other in self.words[max(0, index - 2) : index + 2]
                if other.meaning & (Meaning.STRONG | Meaning.PIN) and other.end <= start
            ]
            if stronger:
                word, meaning = stronger[0], stronger[0].meaning
        qualified = any(other is not word and other.meaning & (Meaning.LOCK | Meaning.OWNER | Meaning.KEYBOX) for other in sentence)
        if meaning & Meaning.STRONG:
            return digits >= 3 or spoken
        if digits == 3 and not meaning & (Meaning.PIN | Meaning.PASSWORD) and _is_status(self.text, word, start, value):
            adjacent = self.words[index - 1] if index else word
            return bool(adjacent.meaning & (Meaning.LOCK | Meaning.OWNER)) and word.start - adjacent.end == 1
        if meaning & Meaning.PIN:
            # A postal code in an Indian address
            if digits == 6 and value.isdigit() and not qualified and _INDIAN.match(self.text, word.start):
                return False
            if _NUMBERED_PIN.search(self.text, max(self.start, start - 120), start):  # a pin of a chip
                return False
            return (digits >= 4 or spoken) and not any(
                other.meaning & Meaning.HARMLESS for other in self._between(floor, word.start)[-4:]
            )
        if meaning & Meaning.PASSWORD:
            near = steps <= 8 or joined
            least = (
                3
                if qualified and any(other.meaning & Meaning.LOCK for other in sentence)
                else 4
                if joined or qualified or steps <= 4
                else 5
            )
            return near and (digits >= least or spoken) and (joined or qualified or steps <= 3)
        if qualified and (digits > 3 or spoken or any(other.meaning & (Meaning.LOCK | Meaning.KEYBOX) for other in sentence)):
            return not any(
                other.meaning & Meaning.HARMLESS for other in self._between(start, min(self._ceiling(start), start + 50))
            )
        if qualified and digits == 3:
            return any(other is not word and other.meaning & Meaning.OWNER for other in self.words[max(0, index - 2) : index + 6])
        if joined and any(other.meaning & Meaning.YOURS for other in self.words[max(0, index - 3) : index]):
            return digits > 3 or spoken
        if joined and any(other.meaning & Meaning.SECRECY for other in self._between(start, start + 70)):
            return digits > 3
        if re.fullmatch(r"[\"']?[ ]{0,2}[:=][ ]{0,2}[\"']?", self.text[word.end : start]):  # a setting of an alarm or a lock
            above = self._between(max(self.start, start - 160), word.start)
            return (
                digits >= 4
                and any(other.meaning & Meaning.LOCK for other in above)
                and any(other.meaning & Meaning.OWNER | other.meaning & Meaning.LOCK for other in above)
            )
        return False

    def _continues_list(self, start: int, floor: int) -> bool:
        """Whether the number is the next of several codes: `… 774610, back gate 1355`, `lockers 4471, 8812 and 9021`."""
        if self.last < floor or start - self.last > 60:
            return False
        gap = self.text[self.last : start].lstrip("#*")
        if _LISTED.fullmatch(gap):
            return "," in gap or len(gap) > 1
        return any(
            word.meaning & (Meaning.LOCK | Meaning.KEYBOX | Meaning.OWNER) for word in self._between(self.last, start)
        ) and not any(
            word.meaning & Meaning.HARMLESS and not word.meaning & (Meaning.LOCK | Meaning.OWNER)
            for word in self._between(self.last, start)
        )

    def _is_opened_with(self, after: int, floor: int, start: int, end: int, value: str, joined: bool) -> bool:
        """Whether the text says what the number opens without calling it a code: `the safe opens with 19-68-12`, `key box beside
        the shed: 0620`.
        """
        digits = sum(map(str.isdigit, value))
        spoken = not digits
        if not spoken and (digits < 4 or (_YEAR.fullmatch(value) and not joined)):
            return False
        clause = self._between(floor, start)
        if (
            _is_time(value)
            and value[-2:] in ("00", "15", "30", "45")
            and not (joined or (clause and clause[-1].meaning & Meaning.OPENS))
        ):
            return False
        locks = [word for word in clause if word.meaning & (Meaning.LOCK | Meaning.KEYBOX)]
        if (
            locks
            and start - locks[-1].end <= 40
            and any(word.meaning & Meaning.OPENS for word in self.words[after : after + 3] if word.end <= end + 24)
        ):
            return True
        if locks and start - locks[-1].end <= 40 and joined and (spoken or ("-" in value and digits == value.count("-") + 1)):
            return True
        if not locks or start - locks[-1].end > 80:
            locks = [
                word
                for word in self._between(end, min(self._ceiling(end), end + 40))
                if word.meaning & (Meaning.LOCK | Meaning.KEYBOX)
            ]
            if not locks or not any(word.meaning & Meaning.OPENS for word in clause[-3:]):
                return False
        opens = [word for word in clause if word.meaning & Meaning.OPENS]
        if opens and start - opens[-1].end <= 40 and not _SOFT.search(self.text, opens[-1].end, start):
            return True
        if (
            locks
            and joined
            and any(
                plain(self.text[word.start : word.end]) in _PADLOCKS and self.text[word.end : word.end + 1] != "_" for word in locks
            )
            and start - locks[-1].end <= 40
        ):
            return True
        if (
            locks
            and locks[-1].meaning & Meaning.KEYBOX
            and self.text[locks[-1].end : start] == " "
            and not spoken
            and not _YEAR.fullmatch(value)
            and len(value) <= 6
        ):
            return True
        if locks and "-" in value and self._is_label(floor, start, value, locks[-1]):
            return True
        if spoken and any(word.meaning & Meaning.OPENS for word in self._between(end, self._ceiling(end))):
            return True
        ends = re.match(r"[#*\"'`)]{0,3}(?:[.,;!)]?(?:\s|$)|[。，、；）])", self.text[end : end + 6]) is not None
        if not (ends and re.search(r"[:：=→][ \t*`_]{0,4}\Z", self.text[max(floor, start - 6) : start])) or digits > 8:
            return False
        if any(word.meaning & Meaning.KEYBOX for word in locks):
            return True
        near = self._between(max(self.start, start - 200), min(self.end, end + 120))
        return not any(word.meaning & Meaning.HARMLESS for word in clause) and any(
            word.meaning & (Meaning.KEYS | Meaning.KEYBOX | NAMES) for word in near
        )

    def _is_on_back(self, floor: int, start: int, joined: bool) -> bool:
        """Whether the number is a card verification code: `the three digits on the back: 640`."""
        clause = self.text[max(floor, start - 70) : start]
        return (joined or clause.endswith(" ")) and _BACK.search(clause) is not None and _CARD.search(clause) is not None

    def _is_label(self, floor: int, start: int, value: str, word: _Word) -> bool:
        """Whether the label consists only of the thing that the number opens: `coffre : 27-09-61`, `Key safe 4827`."""
        gap = self.text[word.end : start]
        return (
            not self.text[floor : word.start].strip(" \t-*•").count(" ") > 1
            and gap.strip(" \t:=") == ""
            and ("-" in value or ":" in gap)
        )

    def _named_behind(self, after: int, floor: int, end: int, ceiling: int, value: str, joined: bool) -> bool:
        """Whether a name after the number makes it a code: `4471 is the PIN`, `use 4471 as door code`, `704357 (PIN)`."""
        digits = sum(map(str.isdigit, value))
        if after >= len(self.words) or (digits and digits < 4) or _YEAR.fullmatch(value):
            return False
        first = self.words[after]
        gap = self.text[end : first.start].lstrip("#*\"'`»”")
        paren = gap.strip() in ("(", "（") or gap in (" - ", " – ", " — ", " = ", " -> ", " → ", " : ")
        if "\n" in gap or not (paren or (first.meaning & (Meaning.IS | Meaning.YOURS) and gap.strip() in ("", ","))):
            return False
        sentence = self._between(floor, ceiling)
        for word in self.words[after : after + 6]:
            if word.end > ceiling or (not paren and _SOFT.search(self.text, first.end, word.start)):
                return False
            if word.meaning & (Meaning.HARMLESS | Meaning.AFTER) and not word.meaning & NAMES:
                return False
            if word.meaning & (Meaning.STRONG | Meaning.PIN | Meaning.PASSWORD):
                return not re.match(r"[-_]?\w*[ ](?:length|policy|limit|format|rules?)", self.text[word.end : word.end + 20])
            if word.meaning & Meaning.WEAK and any(
                other is not word and other.meaning & (Meaning.LOCK | Meaning.OWNER | Meaning.KEYBOX) for other in sentence
            ):
                return not any(other.meaning & Meaning.HARMLESS for other in sentence)
        return False


_ABBREVIATION = regex(r"(?:^|[\s(])(?&abbreviations)$", re.IGNORECASE)
_ON_KEYPAD = regex(
    r"[#*]?[ ](?:on|into|in|at|onto)[ ](?:the|that|its|our)[ ](?:[\w'’-]{2,12}[ ])?(?:key|number |entry )?pad\b|[ ](?&on the keypad)",
    re.IGNORECASE,
)  # `badge + 6790 on the keypad`
_NEXT_FIELD = regex(r"[\"'],\s{0,8}[\"']?(?!value|val\b|content|default|text)[A-Za-z_]")  # `"password":"***","port":`
_INDIAN = regex(r"(?i)(?&pin code)")
_NUMBERED_PIN = regex(r"\b[Pp]ins? \d{1,3}\b")
_PADLOCKS = frozenset(LISTS["padlocks"].split())
_BACK = regex(r"(?i)(?&back)")
_CARD = regex(r"(?i)(?&digits)|(?&card)")
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
_SINO = regex("(?&digits without spaces)")


_SPACELESS = regex("[\u3040-\u30ff\u3400-\u9fff\u0e01-\u0e4e〇]")
