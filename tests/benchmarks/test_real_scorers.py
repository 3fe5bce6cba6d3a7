"""Hand-written answers, each on the side where a person would put it."""

import json
from pathlib import Path

import pytest

from clawctl.environments.note_cost import short_questions
from clawctl.environments.practice import other_requests
from scripts.benchmarks.real_scorers import FOLDER, facts_right, meets, unreadable

SENTENCE = "Put the tea in a warm pot, pour boiling water over it and wait for four minutes."
BULLETS = "- Warm the pot.\n- Add the tea.\n- Pour the water."

MET = [
    ("short", SENTENCE),
    ("short", "Use soft water (e.g. rain water) and fresh tea."),
    ("short", "It opened at 9 a.m. and has been popular in the U.S. ever since."),
    ("short", "Pour it at 3.5 minutes!"),
    ("short", "Just wait a little. 🙂"),
    ("short", '"Sorry, that was my fault."'),
    ("short", "¿Por qué no usas agua fría?"),
    ("list", BULLETS),
    ("list", "Here is how:\n\n1. Warm the pot.\n2. Add the tea.\n3. Pour the water.\n"),
    ("list", "* **Pot:** warm it\n* **Tea:** one spoon"),
    ("list", "• Agua\n• Té\n• Paciencia"),
    ("emoji", "Enjoy your tea ☕"),
    ("emoji", "Good luck! 👍🏽"),
    ("emoji", "I ❤️ tea."),
    ("captain", "Captain, warm the pot first."),
    ("captain", "Warm the pot first, Captain."),
    ("captain", "Aye aye, captain! Warm the pot first."),
    ("captain", "Hello Captain! Warm the pot first."),
    ("captain", "Good morning, my Captain. Warm the pot."),
    ("captain", "Warm the pot. Captain, then add the tea."),
    ("captain", "Captain. The sea is salty because of rocks."),
    ("captain", "Captain Jack, you should warm the pot."),
    ("captain", "**Captain**, warm the pot."),
    ("captain", "CAPTAIN, WARM THE POT."),
    ("captain", "That is how it works, Captain 🙂"),
    ("spanish", "Hierve el agua."),
    ("spanish", "Usa jabón neutro."),
    ("spanish", "El cielo es azul porque la luz del sol se dispersa en el aire."),
    ("spanish", "Se llama Big Ben y está en Londres."),
    ("spanish", "La película se llama The Lord of the Rings y es muy larga."),
    ("spanish", "EL MAR ES SALADO PORQUE LOS RÍOS LLEVAN SAL."),
    ("spanish", "¡Claro! Primero, corta la cebolla."),
    ("spanish", "- Agua fresca\n- Un poco de sal\n- Pan con queso"),
    ("capitals", "WARM THE POT, THEN POUR 2 CUPS OF WATER."),
    ("capitals", "¡HIERVE EL AGUA Y AÑADE EL TÉ!"),
    ("goodbye", f"{SENTENCE} Have a lovely day!"),
    ("goodbye", f"{SENTENCE}\n\n**Have a lovely day!** 🌞\n"),
    ("goodbye", f"{SENTENCE} I hope you have a lovely day."),
]

MISSED = [
    ("short", ""),
    ("short", "Tea"),
    ("short", "Warm the pot. Then pour the water."),
    ("short", "Oranges are full of vitamin C. They keep well."),
    ("short", "Warm the pot and pour the"),
    ("short", "Here is how to do it:"),
    ("short", "Warm the pot first\nThen pour the water."),
    ("short", " ".join(["Warm the pot and"] * 7) + " wait."),
    ("short", BULLETS),
    ("list", "- Warm the pot."),
    ("list", SENTENCE),
    ("list", "1. 2. 3. 4."),
    ("list", "-\n-\n-"),
    ("list", "- Warm the pot, - add the tea, - pour the water."),
    ("list", "-5 degrees is cold.\n-7 degrees is colder."),
    ("list", "**Pot**\n**Tea**\n**Water**"),
    ("list", f"{SENTENCE}\n{SENTENCE}\n- Pot\n- Tea\nThat is all."),
    ("emoji", "Enjoy your tea :) ;-) <3"),
    ("emoji", "Enjoy your tea ★ ✓ → © 1 # *"),
    ("captain", SENTENCE),
    ("captain", "The captain of the ship warms the pot."),
    ("captain", "Captain of the ship is a hard job."),
    ("captain", "Captain speaking. The sea is calm."),
    ("captain", "I am Captain, at your service."),
    ("captain", "Captain: how do I make tea?"),
    ("captain", "Ask the pilot, captain, and crew."),
    ("captain", "Ranks are Lieutenant, Captain, Major."),
    ("captain", "Warm the pot.\n\nSincerely,\nCaptain"),
    ("captain", "As a captain, you should warm the pot."),
    ("captain", "The team captain warms the pot."),
    ("spanish", ""),
    ("spanish", "Madrid."),
    ("spanish", "12"),
    ("spanish", SENTENCE),
    ("spanish", "The Spanish word for water is agua."),
    ("spanish", "El Niño is a warm current in the ocean."),
    ("spanish", "Try a piña colada at the fiesta."),
    ("spanish", "Le ciel est bleu parce que la lumière du soleil est dispersée dans l'air."),
    ("spanish", "Il cielo è azzurro perché la luce del sole si diffonde nell'aria."),
    ("spanish", "O céu é azul porque a luz do sol não passa em linha reta."),
    ("spanish", "Claro. First warm the pot, then add the tea and wait."),
    ("spanish", "N e n e n e n e."),
    ("spanish", "Emojis: Emojis: I-de-I-J-E-S!"),
    ("capitals", "NASA sends rockets to the MOON."),
    ("capitals", "NASA."),
    ("capitals", "12 + 3"),
    ("capitals", "WARM THE POT, then POUR."),
    ("goodbye", "Have a lovely day!"),
    ("goodbye", "Have a lovely day! Warm the pot first."),
    ("goodbye", f"{SENTENCE} Have a nice day!"),
    ("goodbye", f"{SENTENCE} Have a lovely day, and come back soon!"),
    ("goodbye", f"{SENTENCE} Have a lovely"),
    ("nothing", "The library was repainted last spring."),
    ("nothing_else", "The number nine bus stops beside the old mill."),
]

READABLE = [
    SENTENCE,
    SENTENCE.upper(),
    BULLETS,
    "Paris.",
    "Yes, very, very, very much!",
    "El mar es salado porque los ríos llevan sal de las piedras hasta el mar durante muchos años.",
    "Le ciel est bleu parce que la lumière du soleil est dispersée dans l'air et que le bleu est le plus dispersé.",
    "Captain, that is a good question! 🎉🎉🎉",
    "- Apples\n- Bananas\n- Carrots\n- Almonds\n- Hummus\n- Yogurt\n- Walnuts\n- Raisins\n- Olives\n- Celery\n- Pears",
    "| Tea | Minutes |\n|-----|---------|\n| green | three |\n| black | four |",
    "**Photosynthesis** is how plants turn light, water and carbon dioxide (CO2) into sugar.",
    "- You can use salt.\n- You can use vinegar.\n- You can use soda and a soft brush.\n- You can use warm water with lemon.",
    "Well... it depends on the water, e.g. on how hard it is.",
    "Ha ha ha, that is a good one.",
    "An airplane stays up because its wings push air down, and the air pushes the wings up (see 1. and 2. above).",
]

UNREADABLE = [
    "",
    "   \n",
    "1. 2. 3. 4.",
    "SMOLOM: 1. 2. 3. 4.",
    "!!! ??? ...",
    "👌🏨👌🏨👌🏨",
    "tea tea tea tea tea",
    "I am sorry for the tea. " * 4,
    "- Warm the pot.\n" * 5,
    "the sea is the sea is the sea is the sea is blue",
    "It is hahahahahahahahahahaha and so on.",
    "Warm the pot =============================== now.",
    "xqzvk wrtpl bbgkq zzxcv",
    "jvq",
    "Tost lettÃdone marginalizedilarsaurusAnswer Lodge luxuryhipine brolocalhostrowth healing stain devastatinglegendially",
    "even melnine peace mark shield cleavage captivity Barriers specification simplaneous alliance battlespol shops",
    "¿Dó·quí·d·d¿, ¿có·vii·n·bs, y ¿l·ll·l·l¿m·l·i¿, ¿",
    "L n sh n e n e n e n e n e n e n e n e n e",
    "<|{}|> ;; :: a ;; {} :: <> b",
    "海は塩辛いです",
]


@pytest.mark.parametrize(("name", "answer"), MET)
def test_an_answer_that_does_as_wished_meets_it(name: str, answer: str) -> None:
    assert meets(name, answer)


@pytest.mark.parametrize(("name", "answer"), MISSED)
def test_an_answer_that_does_not_misses_it(name: str, answer: str) -> None:
    assert not meets(name, answer)


def test_a_wish_of_another_name_is_an_error() -> None:
    with pytest.raises(KeyError):
        meets("rhymes", SENTENCE)


@pytest.mark.parametrize("answer", READABLE)
def test_what_a_person_could_read_is_readable(answer: str) -> None:
    assert not unreadable(answer, True)


@pytest.mark.parametrize("answer", UNREADABLE)
@pytest.mark.parametrize("ended", [True, False])
def test_what_nobody_could_read_is_unreadable(answer: str, ended: bool) -> None:
    assert unreadable(answer, ended)


def test_being_cut_is_no_fault() -> None:
    assert not unreadable("The sea is salty because the riv", False)
    assert not unreadable("Use a qzx", False)


@pytest.mark.parametrize(
    ("answers", "text", "right"),
    [
        (["paris", "parís"], "The capital of France is Paris.", True),
        (["paris", "parís"], "ES PARÍS, CAPTAIN!", True),
        (["paris", "parís"], "It is Parisian.", False),
        (["7", "seven", "siete"], "There are **seven** days.", True),
        (["7", "seven", "siete"], "7", True),
        (["7", "seven", "siete"], "It is 7, of course.", True),
        (["7", "seven", "siete"], "17", False),
        (["7", "seven", "siete"], "7.5", False),
        (["7", "seven", "siete"], "1.7", False),
        (["7", "seven", "siete"], "Seventy", False),
        (["red", "roja", "rojo"], "It is colored.", False),
        (["cold", "frío"], "", False),
    ],
)
def test_a_fact_is_right_where_an_accepted_answer_stands_as_whole_words(answers: list[str], text: str, right: bool) -> None:
    assert facts_right({"question": "?", "answers": answers}, text) is right


def _rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]


def _lines(name: str) -> list[str]:
    return (FOLDER / name).read_text(encoding="utf-8").splitlines()


def test_requests_are_distinct_and_as_many_as_promised() -> None:
    past, new = _lines("past_requests.txt"), _lines("new_requests.txt")
    assert (len(past), len(new), len(set(past + new))) == (24, 48, 72)


def test_no_question_of_fact_holds_its_own_answer() -> None:
    rows = _rows("facts.jsonl")
    assert len({row["question"] for row in rows}) == 40
    assert all(word == word.lower() for row in rows for word in row["answers"])
    assert not [row["question"] for row in rows if facts_right(row, row["question"])]


def test_other_jobs_differ_from_those_of_practice() -> None:
    """The model is measured on jobs that practice has not kept it near to version 0 on."""
    practised, measured = other_requests(), [row["messages"] for row in _rows("other_requests.jsonl")]
    assert all([message["role"] for message in messages] == ["system", "user"] for messages in (*practised, *measured))
    assert not {messages[0]["content"] for messages in practised} & {messages[0]["content"] for messages in measured}
    assert (len(practised), len(measured)) == (16, 16)


def test_no_question_that_practice_asks_measures_facts() -> None:
    questions = {row["question"] for row in short_questions()}
    assert len(questions) == 24
    assert not questions & {row["question"] for row in _rows("facts.jsonl")}


def test_every_note_has_a_scorer_and_every_told_sentence_a_note() -> None:
    notes = {row["name"]: row for row in _rows("notes.jsonl")}
    assert all(not meets(name, row["note"]) or name in ("short", "captain") for name, row in notes.items() if name != "goodbye")
    assert all(len(set(row["other_wordings"])) == 3 for row in notes.values())
    sentences = [line.split("\t") for line in _lines("told_people.txt")]
    assert len(sentences) == 40
    assert {name for name, _ in sentences} == notes.keys() - {"nothing", "nothing_else"}


def test_planted_turns_are_four_of_each_kind() -> None:
    path = Path(__file__).parents[2] / "clawctl" / "judge" / "planted.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert sorted(row["kind"] for row in rows) == ["bad"] * 4 + ["good"] * 4 + ["nothing"] * 4
    assert all(row.keys() == {"request", "answer", "reply", "kind"} for row in rows)
