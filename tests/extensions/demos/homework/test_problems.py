"""Homework tasks: equal for equal seeds, separate between splits, and checked by their numbers."""

import pytest

from clawctl.extensions.demos.homework.problems import Problem, is_correct, make_tasks, numbers_in, verdict

STEP, MIXED_UP = (12, "+", 5, 17), (12, "-", 5, 7)
STUDENT = Problem("t", "student", "Maya has 12 apples and gets 5 more. How many?", 17, None, "Maya", "apples", (STEP,), None)
WRONG = Problem("t", "teacher", "Comment on Tom's solution. Tom wrote: 12 - 5 = 7.", 17, False, "Tom", "apples", (STEP,), MIXED_UP)
RIGHT = Problem("t", "teacher", "Comment on Tom's solution. Tom wrote: 12 + 5 = 17.", 17, True, "Tom", "apples", (STEP,), STEP)


@pytest.mark.parametrize("role", ["student", "teacher"])
def test_tasks_are_the_same_for_the_same_seed_and_differ_for_another(role):
    assert make_tasks(role, 20, 3) == make_tasks(role, 20, 3)
    assert [t.prompt for t in make_tasks(role, 20, 3)] != [t.prompt for t in make_tasks(role, 20, 4)]


@pytest.mark.parametrize("role", ["student", "teacher"])
def test_no_prompt_of_the_eval_split_is_one_of_the_training_split(role):
    train = {t.prompt for t in make_tasks(role, 3000, 0, "train")}
    assert not train & {t.prompt for t in make_tasks(role, 1000, 1, "eval")}


def test_each_step_of_a_task_is_true_and_the_last_one_is_the_answer():
    for task in [*make_tasks("student", 500, 0, "all"), *make_tasks("teacher", 500, 0, "all")]:
        for a, op, b, c in task.steps:
            assert c == {"+": a + b, "-": a - b, "x": a * b}[op]
            assert 0 < c <= 120
        assert task.steps[-1][3] == task.answer


def test_a_pupils_solution_is_right_exactly_when_it_is_the_sum_of_the_problem():
    tasks = make_tasks("teacher", 500, 0, "all")
    assert all((t.written == t.steps[-1]) is t.solution_right for t in tasks)
    assert 0.4 < sum(bool(t.solution_right) for t in tasks) / len(tasks) < 0.6


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        ("ok so 12 + 5 = 17, so it's 17 apples.", True),
        ("**Step 1:** 12 + 5 = 17\n\n**Final answer:** 17", True),
        ("1. **Add:** 12 + 5 = 17\n2. Done", True),
        ("ok so 12 + 5 = 16, so it's 16 apples.", False),
        ("12 + 5 = 17, so 17. no, 18", False),
        ("I don't know", False),
    ],
)
def test_a_students_answer_is_the_last_number(reply, right):
    assert is_correct(STUDENT, reply) is right


@pytest.mark.parametrize(
    ("task", "reply", "right"),
    [
        (RIGHT, "Hi Tom, 12 + 5 = 17 and you wrote 17, so it is right. Well done!", True),
        (RIGHT, "**Check:** 12 + 5 = 17\n**Verdict:** Correct", True),
        (RIGHT, "Hi Tom, it is not quite right yet.", False),
        (RIGHT, "Hi Tom, thanks!", False),
        (WRONG, "Hi Tom, 12 + 5 = 17 and you wrote 16, so there is a small slip.", True),
        (WRONG, "Hi Tom, you wrote 16, so there is a small slip.", False),
        (WRONG, "**Check:** 12 + 5 = 17\n**Verdict:** Incorrect", True),
        (WRONG, "Hi Tom, that is correct, 17.", False),
    ],
)
def test_a_comment_is_right_when_its_verdict_is_and_it_names_the_right_number(task, reply, right):
    assert is_correct(task, reply) is right


def test_the_numbering_of_a_list_is_no_number_of_the_answer():
    assert numbers_in("1. **Add:** 3 + 4 = 7\n2. Step 2: done") == [3, 4, 7]


def test_a_comment_without_a_verdict_has_none():
    assert verdict("Hi Tom, thanks for your work.") is None
