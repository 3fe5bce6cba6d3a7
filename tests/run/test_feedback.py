"""Explicit ratings: their form, their file, and which one counts."""

import re

import orjson
import pytest

from clawctl.run.directory import RunDir, open_run
from clawctl.run.feedback import FeedbackFile, Ratings, comment_hint, parse_feedback, rating_in_header, read_rating
from clawctl.run.outcomes import BadFeedback, read_outcome
from clawctl.run.rows import Feedback

TURN = "x4JdAbCdEfGhIjKlMnOpQrSt"


@pytest.fixture
def run(tmp_path) -> RunDir:
    return open_run(tmp_path / "run")


def test_a_rating_names_its_turn_by_the_turn_or_by_the_id_of_the_response() -> None:
    for body in (
        {"turn_id": TURN, "rating": -1},
        {"completion_id": TURN, "rating": -1},
        {"completion_id": f"chatcmpl{TURN}", "rating": -1},
        {"completion_id": f"chatcmpl-{TURN}", "rating": -1, "comment": None},
        {"completion_id": f"resp_{TURN}", "rating": -1.0, "comment": ""},
        {"completion_id": f"msg_{TURN}", "rating": -1.0},
    ):
        rating = read_rating(body, "anna", 12.0)
        assert (rating.turn_id, rating.rating, rating.comment, rating.key, rating.created_at) == (TURN, -1.0, None, "anna", 12.0)
    assert read_rating({"turn_id": "callAbCdEfGhIjKlMnOpQrSt", "rating": 1}, "a", 0.0).turn_id == "callAbCdEfGhIjKlMnOpQrSt"


def test_the_id_of_a_response_in_the_place_of_a_turn_is_named_as_such() -> None:
    with pytest.raises(BadFeedback, match="send it as 'completion_id'"):
        read_rating({"turn_id": f"chatcmpl{TURN}", "rating": 1}, "anna", 0.0)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([], "body"),
        ({"rating": 1}, "turn_id"),
        ({"turn_id": TURN, "completion_id": TURN, "rating": 1}, "turn_id"),
        ({"turn_id": "", "rating": 1}, "turn_id"),
        ({"turn_id": 7, "rating": 1}, "turn_id"),
        ({"turn_id": "a\nb", "rating": 1}, "turn_id"),
        ({"completion_id": "chatcmpl-abc", "rating": 1}, "completion_id"),
        ({"turn_id": TURN}, "rating"),
        ({"turn_id": TURN, "rating": True}, "rating"),
        ({"turn_id": TURN, "rating": "1"}, "rating"),
        ({"turn_id": TURN, "rating": 1.1}, "rating"),
        ({"turn_id": TURN, "rating": float("nan")}, "rating"),
        ({"turn_id": TURN, "rating": 1, "comment": ["no"]}, "comment"),
        ({"turn_id": TURN, "rating": 1, "comment": "x" * 10_001}, "comment"),
        ({"turn_id": TURN, "rating": 1, "stars": 5}, "stars"),
    ],
)
def test_an_invalid_rating_is_refused_with_its_field(body, field) -> None:
    with pytest.raises(BadFeedback) as refused:
        read_rating(body, "anna", 0.0)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"id": TURN, "rating": 1},
            "unknown field 'id'; the fields are turn_id, completion_id, rating, comment, remember "
            "(did you mean turn_id or completion_id?)",
        ),
        ({"turn_id": TURN, "coment": "x"}, "unknown field 'coment'; the fields are turn_id, completion_id, rating, comment"),
        ({"turn_id": TURN, "stars": 5}, "unknown field 'stars'; the fields are turn_id, completion_id, rating, comment"),
    ],
)
def test_an_unknown_field_is_refused_with_the_fields_that_there_are(body, message) -> None:
    with pytest.raises(BadFeedback, match=re.escape(message)):
        read_rating(body, "anna", 0.0)
    with pytest.raises(BadFeedback, match=r"session_id, reward, status, ending, parts, steps \(did you mean session_id\?\)"):
        read_outcome({"session": "s1", "reward": 1}, "anna", 0.0)


def test_a_bad_ratings_comment_is_a_hint_in_the_persons_own_words() -> None:
    def hint(rating: float, comment: str | None) -> str | None:
        return comment_hint(Feedback("f", 1.0, "anna", TURN, rating, comment))

    assert hint(-1.0, " Answer in one\nshort sentence.\u200b ") == "Answer in one short sentence."
    assert hint(-0.5, "See https://example.org and `run()`") == "See https://example.org and `run()`"
    assert [hint(1.0, "Lovely."), hint(0.0, "Shorter."), hint(-1.0, None), hint(-1.0, "\u200b \n")] == [None] * 4
    assert [hint(-1.0, "x" * 2000), hint(-1.0, "x" * 2001)] == ["x" * 2000, None]


def test_a_rating_in_a_header_is_a_number_or_refused() -> None:
    assert [rating_in_header(text) for text in (None, "", " 1", "-0.5")] == [None, None, 1.0, -0.5]
    for text in ("good", "2", "nan"):
        with pytest.raises(BadFeedback):
            rating_in_header(text)


def test_appended_ratings_are_read_and_the_newest_of_several_counts(run) -> None:
    ratings, file, other = Ratings(run), FeedbackFile(run.feedback), FeedbackFile(run.feedback)
    ratings.poll()
    assert ratings.of("anna", TURN) is None
    file.append(Feedback("b", 2.0, "anna", TURN, 1.0, "better now"))
    other.append(Feedback("a", 1.0, "anna", TURN, -1.0, None))
    other.append(Feedback("c", 3.0, "ben", TURN, -1.0, None))
    ratings.poll()
    rating = ratings.of("anna", TURN)
    assert rating is not None
    assert (rating.rating, rating.comment) == (1.0, "better now")
    file.append(Feedback("d", 4.0, "anna", TURN, 0.0, None))
    ratings.poll()
    assert ratings.of("anna", TURN) == Feedback("d", 4.0, "anna", TURN, 0.0, None)
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in run.feedback.iterdir())


def test_a_line_that_is_no_rating_is_passed_over_and_counted(run) -> None:
    good = orjson.dumps(Feedback("a", 1.0, "anna", TURN, 1.0, None))
    lines = [b"{", b"[]", b"{}", good.replace(b'1.0,"comment', b'7.0,"comment'), good.replace(b'"anna"', b"null"), good]
    (run.feedback / "w-0.jsonl").write_bytes(b"\n".join(lines) + b"\n" + good[:20])
    ratings = Ratings(run)
    ratings.poll()
    assert (ratings.unreadable, ratings.of("anna", TURN) is not None) == (5, True)
    for line in lines[:-1]:
        with pytest.raises((ValueError, TypeError)):
            parse_feedback(line)


def test_a_run_without_ratings_has_none(run) -> None:
    run.feedback.rmdir()
    ratings = Ratings(run)
    ratings.poll()
    assert ratings.of("anna", TURN) is None
    FeedbackFile(run.feedback).append(Feedback("a", 1.0, "anna", TURN, 1.0, None))
    ratings.poll()
    assert ratings.of("anna", TURN) is not None


def test_a_field_that_a_newer_clawctl_added_is_passed_over_and_a_newer_version_is_refused() -> None:
    row = {"feedback_id": "f1", "created_at": 1.0, "key": "anna", "turn_id": TURN, "rating": 1.0, "comment": None}
    assert parse_feedback(orjson.dumps({**row, "mood": "fine"})) == Feedback(**row)
    with pytest.raises(ValueError, match="schema version 2, written by a newer clawctl"):
        parse_feedback(orjson.dumps({**row, "schema_version": 2}))
    with pytest.raises(ValueError, match="missing required field `rating`"):
        parse_feedback(orjson.dumps({name: value for name, value in row.items() if name != "rating"}))


@pytest.mark.parametrize("field", ["hint", "hint_place", "episode"])
def test_a_client_cannot_give_a_hint_with_an_outcome(field: str) -> None:
    """The trainer follows a hint without asking a judge, so only an environment that clawctl plays may give one."""
    with pytest.raises(BadFeedback, match=f"unknown field '{field}'"):
        read_outcome({"session_id": "s1", field: "block"}, "anna", 0.0)
