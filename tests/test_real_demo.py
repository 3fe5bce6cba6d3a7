"""The demo with the pretrained model: wishes in people's own words, and what it says of a wish that is not understood."""

import shutil
import signal
import subprocess
import sys

import psutil
import pytest

from scripts.benchmarks.circle import ROOT
from scripts.real_demo import brief, not_understood
from scripts.wish_reader import languages, read_wish
from tests.waiting import until, until_gone

CAPTAIN = "Captain, warm the pot first."


@pytest.mark.parametrize(
    ("wish", "met", "missed"),
    [
        ("Answer in one short sentence.", "Pour hot water over the leaves.", "First boil water. Then pour it over the leaves."),
        ("a single sentence is plenty, thanks", "Pour hot water over the leaves.", "Boil water. Pour it."),
        ("bullets, please", "- Boil water.\n- Pour it over the leaves.", "Boil water and pour it over the leaves."),
        ("Put an emoji in there!", "Enjoy your tea ☕", "Enjoy your tea."),
        ("WRITE IN CAPS", "BOIL THE WATER FIRST.", "Boil the water first."),
        ("answer in Spanish", "El cielo es azul porque la luz se dispersa en el aire.", "The sky is blue because of the light."),
        (
            "en français s'il vous plaît, I mean French",
            "Le ciel est bleu et la mer est verte.",
            "The sky is blue and the sea is green.",
        ),
        ("In German, please.", "Das Wasser ist nicht kalt und der Tee ist heiß.", "The water is not cold and the tea is hot."),
        ("Address the user as Captain.", CAPTAIN, "Warm the pot first."),
        ("call me Boss", "Sure, boss, warm the pot.", "Sure, warm the pot."),
        ("End with: Have a lovely day!", "Warm the pot. Have a lovely day!", "Have a lovely day! Warm the pot."),
        ('begin every answer with "Well"', "Well, warm the pot.", "Warm the pot well."),
        ("Don't use bullet points.", "Boil water and pour it.", "- Boil water.\n- Pour it over the leaves."),
        ("please stop using emojis", "Enjoy your tea.", "Enjoy your tea ☕"),
        ("Never call me Captain", "Warm the pot first.", CAPTAIN),
        ("Do not answer in Spanish.", "Because of the light.", "El cielo es azul porque la luz se dispersa en el aire."),
        ("No more than one sentence, please", "Pour hot water over the leaves.", "Boil water. Pour it."),
        ("I don't like long answers; use bullet points", "- Boil water.\n- Pour it over the leaves.", "Boil water and pour it."),
        ("nothing but a list", "- Boil water.\n- Pour it over the leaves.", "Boil water and pour it."),
        ("always mention 'green tea'", "I prefer green tea myself.", "I prefer tea that is green."),
    ],
)
def test_a_wish_in_plain_words_is_read_by_its_rule(wish: str, met: str, missed: str) -> None:
    meets = read_wish(wish)
    assert meets is not None
    assert meets(met)
    assert not meets(missed)


@pytest.mark.parametrize("wish", ["Be kinder.", "Check the sum at the end.", "less waffle", "use a sentence or two"])
def test_a_wish_that_no_rule_reads_is_not_guessed(wish: str) -> None:
    assert read_wish(wish) is None


def test_no_language_is_taken_for_another() -> None:
    for name, words in languages().items():
        sentence = " ".join(sorted(words)[:12])
        met = [other for other in languages() if (meets := read_wish(f"Answer in {other}")) is not None and meets(sentence)]
        assert met == [name]


def test_what_is_not_understood_is_said_with_its_count() -> None:
    assert not_understood(0, 24) == (
        "The model does not understand this wish even when told (0 of 24 answers), so it is not practised:"
    )


def test_an_answer_is_shown_on_a_line() -> None:
    assert brief("one\n\n two ") == "one / two"
    assert brief("x" * 300) == "x" * 220 + " …"


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_no_stage_outlives_the_demo(ending: signal.Signals) -> None:
    before = set((ROOT / "runs").glob("*"))
    with subprocess.Popen([sys.executable, "-m", "scripts.wish_demo", "--talk"], cwd=ROOT, stdin=subprocess.PIPE) as demo:
        started = psutil.Process(demo.pid)
        until(lambda: demo.poll() is not None or len(started.children(recursive=True)) >= 4)  # up and stages
        assert demo.poll() is None
        family = started.children(recursive=True)
        demo.send_signal(ending)
    until_gone(family)
    for folder in set((ROOT / "runs").glob("*")) - before:
        shutil.rmtree(folder)
