"""The published metric, by rule: the score of each kind of first reply, worked by hand."""

import pytest

from clawctl.extensions.demos.homework.problems import Problem
from clawctl.extensions.demos.homework.satisfaction import satisfaction

STUDENT = Problem(
    "t", "student", "Maya has 12 apples and gets 5 more. How many?", 17, None, "Maya", "apples", ((12, "+", 5, 17),), None
)
TEACHER = Problem("t", "teacher", "Tom wrote: 12 + 5 = 16.", 17, False, "Tom", "apples", ((12, "+", 5, 17),), (12, "-", 5, 7))


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("ok so you start with 12 and add 5. 12 + 5 = 17, so it's 17 apples.", 1.0),
        ("**Step 1:** 12 + 5 = 17\n\n**Final answer:** 17 apples", 0.0),
        ("1. **Add:** 12 + 5 = 17\n**Final answer:** 17", 0.0),
        ("Certainly! you start with **12** and add 5, 12 + 5 = 17, so 17.", 0.25),
        ("it's 17 apples, easy", 0.5),
        ("17", 0.0),
        ("", 0.0),
    ],
)
def test_students_want_plain_sentences_with_the_working(reply, score):
    assert satisfaction(STUDENT, reply) == score


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("Hi Tom, thanks for showing your work. 12 + 5 = 17 and you wrote 16, so look again.", 1.0),
        ("**Check:** 12 + 5 = 17\n**Verdict:** Incorrect", 0.0),
        ("Hi Tom, thanks for your work. Try it again!", 0.75),
        ("The result of 12 + 5 is 17 and not 16.", 0.25),
        ("", 0.0),
    ],
)
def test_teachers_want_a_warm_comment_about_this_pupil(reply, score):
    assert satisfaction(TEACHER, reply) == score
