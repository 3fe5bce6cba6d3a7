"""The effect of an explicit rating on a turn, worked by hand."""

import time

import pytest
from made_exchanges import answer, append, asked, user
from test_collect_worker import recipe, rows_of

from clawctl.collect.sessions import Sessions
from clawctl.collect.worker import collect
from clawctl.run.directory import RunDir, open_run
from clawctl.run.feedback import FeedbackFile, Ratings
from clawctl.run.rows import Exchange, Feedback


@pytest.fixture
def run(tmp_path) -> RunDir:
    return open_run(tmp_path / "run")


def rated(exchange: Exchange, rating: float, comment: str | None = None, key: str = "default") -> Feedback:
    return Feedback(f"f{exchange.exchange_id}", exchange.finished_at + 1, key, exchange.exchange_id, rating, comment)


def test_a_rating_closes_its_turn_and_makes_it_trainable_without_a_next_state() -> None:
    sessions, only = Sessions(3600.0), asked([user("2+2?")], answer("5"))
    sessions.add(only)
    sessions.rate(rated(only, -1.0))
    (row,) = sessions.pop_rows()
    assert (row.feedback, row.next_state, row.trainable, row.untrainable_reason) == (-1.0, None, True, None)
    sessions.tick(1e9)
    assert sessions.pop_rows() == []


def test_a_comment_is_the_next_state() -> None:
    sessions, only = Sessions(3600.0), asked([user("2+2?")], answer("5"))
    sessions.add(only)
    sessions.rate(rated(only, -1.0, "It is four."))
    assert sessions.pop_rows()[0].next_state == [user("It is four.")]


def test_a_rating_that_is_read_before_its_turn_still_reaches_it() -> None:
    sessions, only = Sessions(3600.0), asked([user("2+2?")], answer("4"))
    sessions.rate(rated(only, 1.0))
    sessions.add(only)
    assert [row.feedback for row in sessions.pop_rows()] == [1.0]


def test_a_rating_of_another_user_or_of_an_unknown_turn_does_nothing() -> None:
    sessions, only = Sessions(3600.0), asked([user("2+2?")], answer("4"), key="anna")
    sessions.rate(rated(only, -1.0, key="ben"))
    sessions.add(only)
    sessions.rate(rated(only, -1.0, key="ben"))
    sessions.rate(Feedback("f", 1.0, "anna", "unknown", 1.0, None))
    assert sessions.pop_rows() == []
    sessions.tick(1e9)
    assert [row.feedback for row in sessions.pop_rows()] == [None]


def test_a_late_rating_leaves_the_row_as_it_is() -> None:
    sessions, first = Sessions(3600.0), asked([user("2+2?")], answer("4"))
    sessions.add(first)
    sessions.add(asked([user("2+2?"), answer("4"), user("ty")], answer("welcome")))
    talk = [user("2+2?"), answer("4"), user("ty"), answer("welcome"), user("bye")]
    sessions.add(asked(talk, answer("bye")))
    sessions.add(asked([*talk, answer("bye"), user("you there?")], answer("yes")))
    sessions.rate(rated(first, -1.0))
    (row,) = sessions.pop_rows()
    assert (row.feedback, row.next_state) == (None, [user("ty")])


def test_a_rating_closes_a_turn_with_the_words_that_followed_it() -> None:
    sessions, first = Sessions(3600.0), asked([user("2+2?")], answer("4"))
    sessions.add(first)
    sessions.add(asked([user("2+2?"), answer("4"), user("ty")], answer("welcome")))
    sessions.rate(rated(first, -1.0))
    (row,) = sessions.pop_rows()
    assert (row.feedback, row.next_state) == (-1.0, [user("ty")])


def test_a_rating_with_the_next_request_is_the_parents() -> None:
    sessions, first = Sessions(3600.0), asked([user("2+2?")], answer("4"))
    sessions.add(first)
    sessions.add(asked([user("2+2?"), answer("4"), user("ty")], answer("welcome"), feedback=1.0))
    (row,) = sessions.pop_rows()
    assert (row.turn_id, row.feedback, row.next_state) == (first.exchange_id, 1.0, [user("ty")])
    for nonsense in (True, "1", 7, None):
        sessions.add(asked([user("2+2?"), answer("4"), user("ty"), answer("welcome"), user("x")], answer("y"), feedback=nonsense))
    assert sessions.pop_rows()[0].feedback is None


def test_a_rated_side_turn_stays_a_side_turn() -> None:
    sessions, beat = Sessions(3600.0), asked([user("hi")], answer("ok"), turn_type="heartbeat")
    sessions.rate(rated(beat, 1.0))
    sessions.add(beat)
    assert [(row.feedback, row.untrainable_reason) for row in sessions.pop_rows()] == [(1.0, "side turn")]


def test_collect_reads_the_ratings_of_its_run(run) -> None:
    only = asked([user("2+2?")], answer("5"))
    append(run.captures / "a-0.jsonl", only)
    FeedbackFile(run.feedback).append(rated(only, -0.5))
    collect(run, recipe(session_timeout_s=1e12), once=True)
    collect(run, recipe(session_timeout_s=1e12), once=True)
    assert [(row.turn_id, row.feedback, row.trainable) for row in rows_of(run)] == [(only.exchange_id, -0.5, True)]


def test_a_rating_with_the_request_of_a_second_branch_counts_like_one_that_came_late(run) -> None:
    at = time.time()
    first = asked([user("2+2?")], answer("4"), at=at - 30)
    said = [user("2+2?"), answer("4")]
    branch = asked([*said, user("no!")], answer("5"), at=at - 10, feedback=-1.0)
    thanks = asked([*said, user("ty")], answer("welcome"), at=at - 20, turn_type="main")
    append(run.captures / "a-0.jsonl", first, thanks, branch)
    for _ in range(2):  # read again, it is reported once
        collect(run, recipe(session_timeout_s=1e12), once=True)
    (row,) = rows_of(run)
    assert (row.turn_id, row.feedback, row.next_state) == (first.exchange_id, None, [user("ty")])
    ratings = Ratings(run)
    ratings.poll()
    rating = ratings.of("default", first.exchange_id)
    assert rating is not None
    assert (rating.rating, rating.created_at) == (-1.0, branch.created_at)
    assert len([line for path in run.feedback.iterdir() for line in path.read_text().splitlines()]) == 1
