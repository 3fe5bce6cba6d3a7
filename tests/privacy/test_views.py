"""A text as its reader sees it: every position of a view maps to a position of the text, and no letter disables a rule."""

import sys
import unicodedata
from random import Random

import pytest

from clawctl.config import Recipe
from clawctl.privacy.redaction import Redactor
from clawctl.privacy.views import View, plain_view, unescaped_view
from tests.extension import needs

ALWAYS = Recipe().privacy.redact
PASSWORD = "hunter" + "2!x"
LETTERS = [chr(number) for number in range(sys.maxunicode + 1) if not 0xD800 <= number < 0xE000]
CHANGING = [
    letter
    for letter in LETTERS
    if any(len(form) != 1 for form in (letter.lower(), letter.upper(), letter.casefold(), unicodedata.normalize("NFKC", letter)))
]


def test_compatible_characters_become_ascii_and_invisible_ones_vanish_in_a_view() -> None:
    def form(letter: str) -> str:
        return unicodedata.normalize("NFKC", letter)

    visible = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"  # marks around numbers
    missed = [
        hex(ord(letter))
        for letter in LETTERS
        if (form(letter) != letter and form(letter).isascii() and form(letter).isalnum())
        or (unicodedata.category(letter) == "Cf" and letter not in visible)
        if not plain_view(letter).text.isascii()
    ]
    assert [code for code in missed if not 0x13430 <= int(code, 16) < 0x13440] == []  # joiners of hieroglyphs


@needs("secrets")
@pytest.mark.parametrize("place", ["before", "behind", "in the name's sentence"])
def test_no_letter_that_changes_its_length_switches_a_rule_off(place: str) -> None:
    redactor = Redactor(ALWAYS)
    assert len(CHANGING) > 200
    for at in range(0, len(CHANGING), 40):
        letters = " ".join(CHANGING[at : at + 40])
        text = {
            "before": f"{letters} PassWord: {PASSWORD}",
            "behind": f"PassWord: {PASSWORD} {letters}",
            "in the name's sentence": f"{letters}\nBEARER a1b2c3d4e5f6g7h8 {letters}\nMy PASSWORD is {PASSWORD} {letters}",
        }[place]
        clean = redactor.text(text)
        assert PASSWORD not in clean, letters
        assert "a1b2c3d4e5f6g7h8" not in clean, letters
        for letter in letters.split(" "):
            assert letter in clean


@needs("secrets")
def test_each_letter_that_changes_its_length_may_stand_within_a_secret() -> None:
    redactor = Redactor(ALWAYS)
    left = [letter for letter in CHANGING if "nter2!" in redactor.text(f"password = 'hu{letter}nter2!'")]
    assert left == []


def test_places_of_a_view_are_places_of_the_text() -> None:
    """Any replacements: a character that is kept maps to its own position."""
    draw = Random(5)
    pieces = ["a", "Ｂ", "\u200b", "ﷺ", "ﬁ", "\\u0063", "&quot;", "%64", "é", "𝐞", "\\n", "漢", "\\\\", "&amp;lt;"]
    for _ in range(300):
        text = "".join(draw.choice(pieces) for _ in range(draw.randint(0, 30)))
        view: View | None = plain_view(text)
        while view is not None:
            for index, letter in enumerate(view.text):
                start, end = view.to_original(index, index + 1)
                assert 0 <= start < end <= len(text)
                if end - start == 1 and text[start].isascii() and text[start] not in "\\&%":
                    assert text[start] == letter
            assert view.to_original(0, len(view.text))[1] <= len(text) if view.text else True
            view = unescaped_view(view) if view.below is None or view.at else None


@needs("secrets")
@pytest.mark.parametrize(
    "text",
    [
        "pass\u200bword: hun\u200bter2!x", "ｐａｓｓｗｏｒｄ：ｈｕｎｔｅｒ２！ｘ", 
        "&quot;password&quot;: &quot;hunter2&#33;x&quot;",
        "password%3Dhunter2%21x",
        '{\\"password\\": \\"hunter2!x\\"}', '{\\\\\\"password\\\\\\": \\\\\\"hunter2!x\\\\\\"}', '{"\\u0070assword": "hunter2!x"',
        "password&#x3d;hunter2&#x21;x", "İ password: hunter2!x", "pa\u0301ssword: hunter2!x",
    ],
)  # fmt: skip
def test_escapes_and_disguises_hide_nothing(text: str) -> None:
    clean = Redactor(ALWAYS).text(text)
    assert "[redacted:password]" in clean
    assert "ter2" not in clean
    assert "２" not in clean


@needs("secrets")
@pytest.mark.parametrize(
    "said", ["\x1b[32m{}\x1b[0m", "\\x1b[0m{}", "\\u001b[1;31m{}", "\\e[32m{}\\e[0m", "^[[33m{}", "\x1b]8;;http://x\x07{}"]
)
def test_terminal_colours_hide_no_secret(said: str) -> None:
    key = "gh" + "p_aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5"
    redactor = Redactor(ALWAYS)
    assert key[8:] not in redactor.text(said.format(key))
    assert "ter2" not in redactor.text(said.format("password") + "\x1b[0m: " + said.format(PASSWORD))


@needs("secrets")
@pytest.mark.parametrize(
    "key", ["gh" + "p_aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5", "AKI" + "AZ7YQ4XW3VBN2MQ5P", "sk-" + "proj-aB3dE5fG7hJ9kL1mN3pQ5rS7t"]
)
def test_a_key_with_a_prefix_of_its_own_is_found_behind_a_letter_and_on_two_lines(key: str) -> None:
    redactor = Redactor(ALWAYS)
    for text in (f"KEY{key}", f"{key[:10]}\n{key[10:]}", f"{key[:10]}\n    {key[10:]}", f"{key[:10]}\\\n{key[10:]}"):
        assert key[11:] not in redactor.text(text), text
    for harmless in (
        "see ghp_\nand the other prefixes",
        "npm_config_\nregistry_url",
        "hf_hub_\ndownload_file",
        "mask-proj-\nection2",
    ):
        assert redactor.text(harmless) == harmless
