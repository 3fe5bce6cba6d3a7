"""Forms and words of other languages are data (`forms.txt`, `phrases.txt`, `lexicon.txt`, `vocabulary.txt`, `questions.txt`)."""

import ast
import re
from pathlib import Path

import pytest

secrets = pytest.importorskip("clawctl.extensions.secrets")
from clawctl.config import PrivacyConfig  # noqa: E402
from clawctl.extensions.secrets.tables import table  # noqa: E402
from clawctl.extensions.secrets.text import Anchors, expanded, grouped, make_text, phrases, regex  # noqa: E402
from clawctl.privacy.redaction import Redactor  # noqa: E402

FOLDER = Path(secrets.__file__).parent
PHRASES = (FOLDER / "phrases.txt").read_text("utf-8")
FORMS = (FOLDER / "forms.txt").read_text("utf-8").partition("[")[2]
CODE = "\n".join(file.read_text("utf-8") for file in FOLDER.glob("*.py"))
# An entry of an expression, of a list of anchors, and of the anchors of a form
USED = re.compile(r"\(\?&([a-z ]+)\)|phrases\(\"([a-z ]+)\"\)|(?m:[:,] ?&([a-z ]+)$)")


def strings_of(file: Path) -> list[str]:
    """Return the strings of a module, except docstrings."""
    tree = ast.parse(file.read_text("utf-8"))
    documented = [node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)]
    texts = {id(node.body[0].value) for node in documented if node.body and isinstance(node.body[0], ast.Expr)}
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in texts]
    return [node.value for node in constants if isinstance(node.value, str)]


def test_no_string_of_the_code_has_a_letter_outside_ascii_except_ranges_of_scripts_and_single_letters() -> None:
    wrong = []
    for file in FOLDER.glob("*.py"):
        for text in strings_of(file):
            letters = [letter for letter in re.sub(r".-[^\x00-\x7f]", "", text) if letter.isalpha() and not letter.isascii()]
            wrong += [f"{file.name}: {''.join(letters)} belongs into a data file"] if letters and len(text) > 1 else []
    assert wrong == []


def test_each_list_of_phrases_is_used_and_each_that_is_used_exists() -> None:
    lists = re.findall(r"(?m)^\[([A-Za-z ]+)\]$", PHRASES)
    assert len(set(lists)) == len(lists)
    assert {name for names in USED.findall(CODE + FORMS + PHRASES.partition("[")[2]) for name in names if name} == set(lists)


def test_a_reference_stands_for_the_entries_of_its_list_also_within_a_list() -> None:
    words = [word for word in ("or", "oder", "o", "lub", "od") if re.fullmatch(expanded("(?&or)"), word)]
    assert words == ["or", "oder", "o", "lub"]
    nested = regex(r"(?i)(?&access words)")
    assert [bool(nested.fullmatch(word)) for word in ("Kennwort", "entsperr", "umbrella")] == [True, True, False]
    assert "cioè " in phrases("that is")


def test_alternatives_that_begin_alike_keep_their_order_so_that_the_same_one_is_found_in_a_long_list() -> None:
    assert grouped("in|is|at|is now|[ei]t|als|a?s|it") == "i(?:n|s|s now)|at|[ei]t|als|a?s|it"
    for lines in table("phrases.txt").values():
        entries = lines.strip("\n").replace("\n", "|")
        alone, together = (re.compile(f"(?i)(?:{expanded(text)})") for text in (entries, grouped(entries)))
        for word in re.findall(r"[^\W\d_]{2,}", entries):
            assert str(alone.match(f"{word} now")) == str(together.match(f"{word} now"))


def test_anchors_find_words_of_every_script_in_order() -> None:
    anchors = Anchors("слово", "clé d", "code")
    piece = make_text("code, la clé d'accès, слово")
    assert anchors.positions(piece) == [0, 9, 22]


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("La contraseña es la matrícula del coche, es decir 4821KLM7", "4821KLM7"),
        ("the password is the plate of my car, so it is KX70PQR9", "KX70PQR9"),
        ("Das Passwort ist das Kennzeichen, d.h. B7KQ2219", "B7KQ2219"),
        ("the wifi password is Toyota@1420?, same for the guests", "Toyota@1420?"),
    ],
)
def test_what_a_password_is_derived_from_leads_to_it_in_other_languages_too(text: str, secret: str) -> None:
    (message,) = Redactor(PrivacyConfig().redact).messages([{"role": "user", "content": text}])
    assert secret not in message["content"]
