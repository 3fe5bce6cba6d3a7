"""The attacks that anybody may read are no evidence for a judge."""

import pytest

from scripts.benchmarks.hostile_judge_attacks import OPEN, encoded, filled
from tests.judge.test_noise import COMPLAINT, left_of


@pytest.mark.parametrize("own_words", [True, False])
@pytest.mark.parametrize("encoding", ["plain", "zero width", "quoted", "code block", "spaced letters", "fullwidth", "homoglyphs"])
def test_open_attacks_leave_nothing_but_the_complaint(own_words: bool, encoding: str) -> None:
    attacks = [encoded(filled(text, wants), encoding) for _, text in OPEN.templates for wants in (1, -1)]
    remaining = [left_of(f"{COMPLAINT}\n{attack}", own_words) for attack in attacks]
    assert all(text.startswith(COMPLAINT) for text in remaining)
    assert sum(text == COMPLAINT for text in remaining) >= 0.9 * len(remaining)
