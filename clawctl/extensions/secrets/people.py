# ruff: noqa: E501 - expressions stay lines
"""Finds card numbers, email addresses and phone numbers."""

import re
from collections.abc import Iterator

from clawctl.extensions.secrets.text import DIGITS, FOUR_DIGITS, Anchors, Span, Text, positions_of, regex, tried_at

_CARD = regex(
    r"(?:4\d{3}|5[1-5]\d{2}|2[2-7]\d{2}|6011|64[4-9]\d|65\d{2}|62\d{2}|35\d{2})\d{12}|3[47]\d{13}|3(?:0[0-5]|[689]\d)\d{11}"
)  # by issuer: Visa, Mastercard, Discover, UnionPay, JCB; American Express; Diners
_CARDS = regex(r"[2-6](?<![\w.-].)\d{3}([ .-]?)\d{4,6}\1\d{4,5}(?:\1\d{3,4})?(?![\w-]|\.\d)")
_CARD_BEFORE = regex(r"(?&card)(?![a-z])[^\d\n]{0,24}$")  # after such a word, numbers of other issuers (Maestro) count as well
# Test numbers from Stripe. They are harmless only if the text mentions testing, because people also use them as placeholders for
# real ones.
_TEST_CARDS = frozenset(
    ["4242424242424242", "4000056655665556", "4000002500003155", "4000000000003220", "5555555555554444", "378282246310005"]
)
_TEST_RANGE = "400000"  # of Stripe as well, for each case that a program must handle
_TESTED = regex(r"stripe|\bmanual\b|\bdocs?\b|\btest(?:s|ed|ing)?\b|sandbox")
# The verification code of a card, whatever it is called: it follows the number and the expiry month.
_BEHIND_CARD = regex(
    r"[^\d\n]{1,40}(?:0[1-9]|1[0-2])[ ]?[/.-][ ]?(?:20)?[2-4]\d(?![\d/.-])(?P<between>[^\d\n]{1,40}(?:\d (?!\d)[^\d\n]{1,40})?)(?<![$€£¥₹₽+#.,/:-])(?<![$€£¥₹₽] )(?P<value>\d{3,4})(?![\w%$€£¥₹₽]|[.,:/-]\d| ?[$€£¥₹₽%])"
)
_FIELD = regex(r"[\"'](?:pan|card_?(?:number|no|num)|cc_?(?:number|num))[\"']: ?[\"']?$")  # of a record, `"pan": "…"`
_AT_SIGNS = Anchors("@")
_EMAIL = regex(r"(?<![\w.%+-])[\w%+-][\w.%+-]{0,63}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![\w-])")
_PHONE_PLUS = regex(r"\+(?<![\w+.-].)\d{1,3}(?:[ .-]?\(?\d{1,5}\)?){2,6}(?![\w-]|\.\d)")
_PHONE = regex(r"[(\d](?<![\w+.-].)(?:\d{3}\) ?\d{3}[ .-]|\d{2}[-.]\d{3}[-.])\d{4}(?![\w-]|\.\d)")


def passes_luhn(digits: str) -> bool:
    """Verify the checksum of a card number (Luhn, ISO/IEC 7812-1)."""
    doubled = [int(digit) * (2 if index % 2 else 1) for index, digit in enumerate(reversed(digits))]
    return sum(number - 9 if number > 9 else number for number in doubled) % 10 == 0


@tried_at(FOUR_DIGITS, to_value_end=False)
def cards(piece: Text) -> Iterator[Span]:
    done = 0
    for at in positions_of(piece.digits, b" 0000"):  # positions in `digits` are one behind those in the text
        if at < done or not (match := _CARDS.match(piece.text, at)):
            continue
        done = match.end()
        digits = re.sub(r"\D", "", match[0])
        if not digits.isascii() or len(set(digits)) == 1:
            continue
        code, called = (
            _BEHIND_CARD.match(piece.text, match.end()),
            _CARD_BEFORE.search(piece.lower, max(0, match.start() - 32), match.start()),
        )
        if (
            not passes_luhn(digits)
            and not (code and called)
            and not _FIELD.search(piece.lower, max(0, match.start() - 24), match.start())
        ):  # with a wrong digit, its expiry and its code are still right
            continue
        if (digits in _TEST_CARDS or digits.startswith(_TEST_RANGE)) and _TESTED.search(
            piece.lower, max(0, match.start() - 90), match.end() + 90
        ):
            continue
        if called or _CARD.fullmatch(digits):
            yield Span(*match.span(), "card")
            if code:
                yield Span(*code.span("value"), "card")


@tried_at(_AT_SIGNS, to_value_end=False)
def emails(piece: Text) -> Iterator[Span]:
    text, done = piece.text, 0
    for at in positions_of(text, "@"):
        start = at
        while start > done and at - start < 64 and (text[start - 1].isalnum() or text[start - 1] in "_.%+-"):
            start -= 1
        if start < at and (match := _EMAIL.match(text, start)):
            yield Span(*match.span(), "email")
            done = match.end()


@tried_at(DIGITS, to_value_end=False)
def phones(piece: Text) -> Iterator[Span]:
    patterns = (_PHONE_PLUS, _PHONE) if piece.beyond or b"000 0000" in piece.digits else (_PHONE_PLUS,)
    for match in (match for pattern in patterns for match in pattern.finditer(piece.text)):
        if 8 <= sum(letter.isdigit() for letter in match[0]) <= 15:
            yield Span(*match.span(), "phone")
