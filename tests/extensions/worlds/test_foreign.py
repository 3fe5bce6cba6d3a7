"""Other people's tasks in the formats that their authors publish: each is playable, or refused for a reason that is true."""

from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.benchmarks.environments_foreign import WRITERS, Foreign, checked, wrong
from tests.extensions.worlds.test_gui import needs_browser
from tests.extensions.worlds.test_terminal import needs_sandbox

Writer = Callable[[Path], Foreign]


def name_of(writer: Writer) -> str:
    return str(getattr(writer, "__name__", None) or getattr(writer, "keywords", {}).get("name"))


@needs_sandbox
@pytest.mark.parametrize("writer", WRITERS[:-1], ids=name_of)
def test_tasks_of_others_are_playable_or_refused_with_a_true_reason(tmp_path: Path, writer: Writer) -> None:
    verify(tmp_path, writer)


@needs_browser
def test_pages_of_others_are_playable_or_refused_with_a_true_reason(tmp_path: Path) -> None:
    verify(tmp_path, WRITERS[-1])


def verify(folder: Path, writer: Writer) -> None:
    foreign = writer(folder)
    if foreign.place == "toolcall":
        pytest.importorskip("reasoning_gym", reason="the extra environments is not installed")
    findings = checked(folder, foreign)
    for task, expected in foreign.findings.items():
        assert wrong(folder, f"{foreign.place} {task}", expected, findings.get(task)) is None, task
    assert findings.keys() == foreign.findings.keys()
