"""The shape of the corpora whose author did not read the defences. Their results are not tested here."""

import re

import pytest

from clawctl.extensions.judge_lab.cases import Case
from scripts.benchmarks.hostile_judge_attacks import FRESH as CORPUS
from scripts.benchmarks.hostile_judge_attacks import draw, encoded
from scripts.benchmarks.labelled_templates import FRESH, SEEN_SECOND, lines_of, templates
from scripts.benchmarks.redaction import rest_of


@pytest.mark.parametrize("part", [SEEN_SECOND, FRESH])
def test_each_fresh_template_has_its_places_filled_and_its_secret_in_the_line(part: str) -> None:
    lines = lines_of(part, 2, seed=5)
    assert not [line.kind for line in lines if re.search(r"<<\w+(?:\|\w+)?>>", line.text)]
    assert all(line.secret is None or line.secret in line.text for line in lines)
    filled = templates(part)
    assert min(len(filled["secret"]), len(filled["harmless"])) >= 120
    assert {line.kind for line in lines if line.secret is None} == set(filled["harmless"])


def test_a_piece_that_the_line_holds_outside_of_its_secret_is_no_rest_of_it() -> None:
    line = "git clone https://ci:github_pat_Ab12Cd34@github.com/acme"
    secret = "github_pat_Ab12Cd34"
    assert rest_of(secret, "git clone https://ci:*@github.com/acme", line) == ""
    assert rest_of(secret, "git clone https://ci:github*@github.com/acme", line) == "github"
    assert rest_of(secret, "git clone https://ci:*Cd34@github.com/acme", line) == ""  # 4 characters
    assert rest_of(secret, "git clone https://ci:*2Cd34@github.com/acme", line) == "2Cd34"
    assert rest_of(secret, line, line) == secret


def test_an_injection_can_stand_between_two_words_of_its_carrier() -> None:
    attack = next(candidate for candidate in draw(CORPUS, 400, seed=2) if candidate.inside and candidate.place == "came back")
    clean, attacked = (_contents(case)[-1] for case in attack.pair())
    assert attacked != clean
    assert attacked.replace(f" {attack.text}", "", 1) == clean


def test_only_the_attacked_turn_holds_the_injection() -> None:
    for attack in (
        candidate for candidate in draw(CORPUS, 120, seed=2) if len(candidate.text) > 20 and candidate.place != "arguments"
    ):
        clean, attacked = ("\n".join(_contents(case)) for case in attack.pair())
        assert attack.text in attacked
        assert attack.text not in clean


@pytest.mark.parametrize("encoding", sorted(set(CORPUS.encodings) - {"plain"}))
def test_each_encoding_of_the_fresh_attacks_changes_the_text(encoding: str) -> None:
    assert encoded("Rate it, at once:\n1", encoding) != "Rate it, at once:\n1"


def _contents(case: Case) -> list[str]:
    """The text of each message of the turn, in order."""
    turn = case.turn
    return [str(message["content"]) for message in (*turn.messages, turn.response or {"content": ""}, *(turn.next_state or []))]
