"""A user's own words are separated from pasted text. An honest reply with both loses neither verdict nor hint."""

import time

import pytest

from clawctl.judge.plain import plain_words
from clawctl.judge.worker import judge
from clawctl.run.directory import RunDir
from tests.judge.judging import recipe, verdicts_of
from tests.judge.made_turns import reply, shard

LOG = '```\nTraceback (most recent call last):\n  File "main.py", line 3\nValueError: wrong number\n```'
HONEST = {  # a reply, and the user's own text in it
    f"it does not work, I get this:\n{LOG}": "it does not work, I get this:",
    f"{LOG}\nplease do it again": "please do it again",
    "please fix these:\n1. the sum is 49\n2. no bold": "please fix these:",
    'that is wrong, I wanted this:\n{"answer": 49,\n "unit": "pencils"}': "that is wrong, I wanted this:",
    "> 7 + 7 = 14\n\nno, it is 49": "no, it is 49",
    "perfect, thanks!\n\n    print(7 * 7)\n": "perfect, thanks!",
    "nein, falsch\n| a | b |\n|---|---|": "nein, falsch",
    "\u4e0d\u5bf9\uff0c\u592a\u957f\u4e86\n```\nx = 1\n```": "\u4e0d\u5bf9\uff0c\u592a\u957f\u4e86",
}
ALONE = [
    "1. the sum is wrong\n2. no bold please", "- no bold\n- no steps", LOG, '{"answer": 49}', "expected: 49\ngot: 14", "wrong",
    "no\nstill wrong",    
    "> no, it is 49", "7 x 7 = 49", "**no**, too long", "", "\n", "no: it should be 49",
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), HONEST.items())
def test_the_ordinary_sentences_represent_a_reply_with_pasted_text(text: str, said: str) -> None:
    assert plain_words(text, "user").strip() == said


@pytest.mark.parametrize("text", ALONE)
def test_a_reply_of_one_kind_stays_as_it_is(text: str) -> None:
    assert plain_words(text, "user") == text


@pytest.mark.parametrize("role", ["assistant", "tool", "environment"])
@pytest.mark.parametrize("text", [*HONEST, *ALONE])
def test_the_shape_of_other_messages_does_not_matter(text: str, role: str) -> None:
    assert plain_words(text, role) == text


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    "shape",
    [
        '{{"{0}": 1}}', "<note>\n{0}\n</note>", "[NOTE]\n{0}\n[/NOTE]", "--- note ---\n{0}\n--- end ---", "> {0}", "```\n{0}\n```",
        "// {0}", "# {0}", "| {0} |", "note: {0}", "1. {0}\n2. {0}", "* {0}", "<!-- {0} -->", "{0} = 1;" , "~~~ text\n{0}\n~~~",
    ],
)  # fmt: skip
def test_no_shape_brings_words_into_a_persons_mouth(shape: str, first: bool) -> None:
    said, pasted = "no, please write it without bold", shape.format("lovely")
    text = f"{pasted}\n{said}" if first else f"{said}\n{pasted}"
    assert plain_words(text, "user") == said


@pytest.mark.parametrize("start", [0xFF41, 0x1D41A, 0x1D482, 0x1D5BA, 0x1D68A, 0x24D0])
def test_letters_of_unusual_alphabets_are_not_a_persons_ordinary_words(start: int) -> None:
    odd = "".join(chr(start + ord(char) - ord("a")) if char.isalpha() else char for char in "this was lovely")
    assert plain_words(f"no, too long\n{odd}", "user") == "no, too long"


@pytest.mark.parametrize(
    "unit", ["<a>\n", "```\n", "a: b\n", "1. a\n", "-- x --\n", "a ", "a\n", "{% a\n", "a. ", "<", "\ud835\udc82"]
)
def test_the_time_grows_linearly(unit: str) -> None:
    def seconds(length: int) -> float:
        text, times = unit * (length // len(unit)), []
        for _ in range(3):
            begun = time.process_time()
            plain_words(text, "user")
            times.append(time.process_time() - begun)
        return min(times)

    assert seconds(200_000) < 8 * seconds(50_000) + 0.02


def test_ordinary_words_decide_and_the_rest_of_a_reply_may_give_the_hint(run: RunDir, serving) -> None:
    def by_sight(text: str, number: int) -> str:
        return "\\boxed{-1}\n[HINT_START]Check that the value is a number.[HINT_END]" if "ValueError" in text else "\\boxed{-1}"

    server = serving(by_sight)
    shard(run, "1-a", [reply(f"it does not work, I get this:\n{LOG}")])
    judge(run, recipe(server.url), once=True)
    (verdict,) = verdicts_of(run)
    assert (verdict.reward, verdict.votes, verdict.hint) == (-1.0, [-1, -1], "Check that the value is a number.")
    assert ["ValueError" in body["messages"][1]["content"] for body in server.asked] == [False, False, True]


def test_a_vote_on_the_rest_that_disagrees_changes_neither_verdict_nor_hint(run: RunDir, serving) -> None:
    def moved(text: str, number: int) -> str:
        return "\\boxed{1}\n[HINT_START]Always write in bold letters.[HINT_END]" if "lovely" in text else "\\boxed{-1}"

    shard(run, "1-a", [reply('too much bold, please\n{"feeling": "lovely"}')])
    judge(run, recipe(serving(moved).url), once=True)
    (verdict,) = verdicts_of(run)
    assert (verdict.reward, verdict.hint) == (-1.0, None)


def test_everything_is_looked_at_where_ordinary_words_do_not_tell(run: RunDir, serving) -> None:
    server = serving(lambda text, number: "\\boxed{-1}" if "no bold" in text else "\\boxed{0}")
    shard(run, "1-a", [reply("about what you wrote\n- no bold\n- no steps")])
    judge(run, recipe(server.url), once=True)
    (verdict,) = verdicts_of(run)
    assert (verdict.reward, verdict.votes) == (-1.0, [-1, -1])


def test_a_plain_reply_costs_no_further_call(run: RunDir, serving) -> None:
    server = serving(lambda text, number: "\\boxed{0}" if "hm" in text else "\\boxed{-1}")
    shard(run, "1-a", [reply("too much bold"), reply("hm")])
    judge(run, recipe(server.url), once=True)
    assert len(server.asked) == 4
