"""Numbers below a thousand in English words, as digits.

The package text2digits reads larger numbers too, and also "one" where it counts nothing.
"""

import re

_COUNTED = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]  # by their value
_COUNTED += ["ten", "eleven", "twelve", *(f"{stem}teen" for stem in ("thir", "four", "fif", "six", "seven", "eigh", "nine"))]
_TENS = [".", ".", *(f"{stem}ty" for stem in ("twen", "thir", "for", "fif", "six", "seven", "eigh", "nine"))]
_BELOW = rf"(?:(?P<tens>{'|'.join(_TENS[2:])})(?:[- ](?P<ones>{'|'.join(_COUNTED[1:10])}))?|(?P<count>{'|'.join(_COUNTED)}))"
_COUNT = re.compile(
    rf"\b(?:(?P<hundreds>a|{'|'.join(_COUNTED[1:10])}) hundred(?:(?: and)? {_BELOW})?"
    rf"|(?!one\b){_BELOW.replace('?P<', '?P<only_')})\b",
    re.IGNORECASE,
)  # below a thousand; "one" alone often counts nothing


def in_digits(text: str) -> str:
    """The text with its numbers in digits: forty-two as 42."""
    return _COUNT.sub(lambda match: str(_value_of(match)), text)


def _value_of(match: re.Match[str]) -> int:
    words = {key.removeprefix("only_"): word.lower() for key, word in match.groupdict().items() if word}
    hundreds = 1 if words.get("hundreds") == "a" else _COUNTED.index(words.get("hundreds", "zero"))
    tens = _TENS.index(words["tens"]) if "tens" in words else 0
    return 100 * hundreds + 10 * tens + sum(_COUNTED.index(words[key]) for key in ("ones", "count") if key in words)
