"""`collect.edits`: what a person kept of an agent's files rates its answers. Real files, a real git repository, real captures."""

import os
import subprocess
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from made_exchanges import answer, append, asked, new_id, tool, user

from clawctl.collect.edits import Edits, writes_of
from clawctl.collect.worker import Collector
from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.inspect.why import show_why
from clawctl.run.directory import open_run
from clawctl.run.feedback import EDITS, Ratings
from clawctl.run.rows import Feedback

HOUR = 3600.0
Call = Callable[[str, str], dict[str, Any]]  # the arguments of a tool, from a file's name and its text


class Desk:
    """A folder in which an agent and a person work, each at their time. An hour of `collect.edits_after_s` passes in no time."""

    def __init__(self, folder: Path, git: bool = True) -> None:
        self.folder, self.now = folder, time.time() - 40 * HOUR
        folder.mkdir()
        if git:
            self.git("init", "-q")
            (folder / ".gitignore").write_text("*.log\n")
            self.commit()
        self.edits = Edits(folder, HOUR)

    def git(self, *arguments: str) -> None:
        at = f"{int(self.now)} +0000"
        who = {f"GIT_{role}_{what}": "t@e.st" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        variables = os.environ | who | {"GIT_AUTHOR_DATE": at, "GIT_COMMITTER_DATE": at}
        subprocess.run(["git", "-C", self.folder, *arguments], check=True, capture_output=True, env=variables)

    def commit(self) -> None:
        self.now += 60
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "work")

    def save(self, name: str, text: str) -> None:
        """A person or a tool writes a file, a minute later."""
        self.now += 60
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (self.now, self.now))
        os.utime(path.parent, (self.now, self.now))

    def round(self, *writes: tuple[str, str], call: Call | None = None, shown: str = "") -> list[str]:
        """The agent writes these files, each in a turn of its own, and answers. Returns the ids of the turns."""
        messages, turns = [user(f"please work {self.now}" + shown)], list[str]()
        for name, text in writes:
            self.now += 10
            call_id, arguments = new_id(), call(name, text) if call else {"file_path": str(self.folder / name), "content": text}
            reply = answer(None, (call_id, "Write", orjson.dumps(arguments).decode()))
            turns.append(self.exchange(messages, reply))
            self.save(name, text)
            messages = [*messages, reply, tool(call_id, "ok")]
        self.exchange(messages, answer("done"))
        return turns

    def exchange(self, messages: list[dict], reply: dict, **hints: Any) -> str:
        self.now += 5
        exchange = asked(messages, reply, at=self.now, finished_at=self.now + 1, **hints)
        self.now += 1
        self.edits.add(exchange)
        return exchange.exchange_id

    def ratings(self) -> dict[str, float]:
        """After the hour."""
        self.now += 2 * HOUR
        return {rating.turn_id: rating.rating for rating in self.edits.pop_due(self.now)}


def code(count: int, name: str = "value") -> str:
    return "".join(f"{name}_{number} = compute({number})\n" for number in range(count))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "work")


def test_the_share_of_kept_lines_rates_the_turn_that_wrote_them(desk: Desk) -> None:
    first, second = desk.round(("a.py", code(20, "a")), ("b.py", code(20, "b")))
    desk.save("a.py", code(15, "a") + "mine = 1\n")
    desk.commit()
    assert desk.ratings() == {first: 0.5, second: 1.0}  # 15 of 20 lines: 2 · 0.75 − 1
    assert desk.ratings() == {}


def test_a_turn_of_few_lines_gets_a_small_rating_or_none(desk: Desk) -> None:
    turns = desk.round(("few.py", code(4)), ("ten.py", code(10)), ("bad.py", code(10, "bad")))
    desk.save("bad.py", "")
    desk.commit()
    assert desk.ratings() == {turns[1]: 0.5, turns[2]: -0.5}


def test_braces_and_repeated_lines_are_no_work(desk: Desk) -> None:
    desk.round(("pad.js", "".join("}" * number + ");\n" for number in range(50)) + "same_line = 1\n" * 50))
    desk.commit()
    assert desk.ratings() == {}


def test_an_answer_without_a_write_gets_no_rating(desk: Desk) -> None:
    question = desk.exchange([user("please fix it")], answer("Which file do you mean?"))
    read = answer(None, ("r1", "Read", orjson.dumps({"file_path": str(desk.folder / "a.py")}).decode()))
    desk.exchange([user("fix a.py")], read)
    desk.exchange([user("fix a.py"), read, tool("r1", code(20))], answer("Shall I?"))
    desk.save("a.py", code(20))
    desk.commit()
    assert question not in desk.ratings()
    assert desk.ratings() == {}


def test_silence_is_no_praise(desk: Desk) -> None:
    desk.round(("nobody_looked.py", code(30)), ("touched.py", code(30, "touched")))
    desk.save("touched.py", code(30, "touched"))  # another branch and back, for instance
    assert desk.ratings() == {}


def test_what_the_agent_was_shown_is_not_its_own(desk: Desk) -> None:
    desk.save("old.py", code(40))
    shown = "".join(f"{number:6}\t{line}\n" for number, line in enumerate(code(40).splitlines(), 1))
    desk.round(("old.py", code(40) + "new_line = 1\n"), shown="\n" + shown)
    desk.commit()
    assert desk.ratings() == {}


def test_an_edit_counts_the_lines_that_it_adds(desk: Desk) -> None:
    desk.save("old.py", code(40))

    def edit(name: str, text: str) -> dict[str, Any]:
        return {"path": name, "edits": [{"oldText": code(40), "newText": text}]}

    turns = desk.round(("old.py", code(40) + code(10, "new")), call=edit)
    desk.commit()
    assert desk.ratings() == {turns[0]: 0.5}


def test_what_the_agent_itself_changed_is_no_opinion_of_a_person(desk: Desk) -> None:
    [first] = desk.round(("a.py", code(20, "a")), ("a.py", code(10, "a")))[:1]  # in the same round
    [earlier] = desk.round(("b.py", code(20, "b")))
    later = desk.round(("c.py", code(20, "c")), ("b.py", code(20, "other")))  # in a later round
    desk.commit()
    assert desk.ratings() == {first: 0.5, later[0]: 1.0, later[1]: 1.0}
    assert earlier not in desk.ratings()


def test_a_command_of_the_agent_that_changes_a_file_is_no_opinion_either(desk: Desk) -> None:
    desk.round(("a.py", code(20)))
    command = answer(None, ("c1", "Bash", '{"command": "black ."}'))
    desk.exchange([user("format it")], command)
    desk.save("a.py", code(20).replace(" = ", "="))
    desk.save("a.py", code(3))
    desk.exchange([user("format it"), command, tool("c1", "ok")], answer("formatted"))
    desk.save("a.py", code(2))  # now a person: what was lost before is not known
    desk.commit()
    assert desk.ratings() == {}


def test_a_rating_of_a_person_stands(desk: Desk) -> None:
    text, call = code(20), ("w1", "Write", orjson.dumps({"file_path": "a.py", "content": code(20)}).decode())
    desk.exchange([user("write")], answer(None, call))
    desk.save("a.py", text)
    desk.exchange([user("write"), answer(None, call), tool("w1", "ok")], answer("done"), feedback=-1)
    desk.commit()
    assert desk.ratings() == {}


def test_a_deleted_file_is_lost_and_a_moved_one_is_not_rated(desk: Desk) -> None:
    gone, _ = desk.round(("notes/gone.md", code(20, "gone")), ("moved.md", code(20, "moved")))
    desk.commit()
    desk.now += 60
    (desk.folder / "sub").mkdir()
    (desk.folder / "moved.md").rename(desk.folder / "sub" / "moved.md")
    (desk.folder / "notes" / "gone.md").unlink()
    for folder in (desk.folder, desk.folder / "notes"):
        os.utime(folder, (desk.now, desk.now))
    assert desk.ratings() == {gone: -1.0}


def test_another_branch_is_no_opinion(desk: Desk) -> None:
    desk.round(("a.py", code(20)))
    desk.commit()
    desk.git("checkout", "-q", "-b", "other")
    desk.save("a.py", "")
    desk.commit()
    assert desk.ratings() == {}


def test_ignored_and_generated_files_and_files_elsewhere_are_not_read(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (desk.folder / "link").symlink_to(tmp_path / "elsewhere")
    (desk.folder / "named.py").symlink_to(tmp_path / "elsewhere" / "named.py")
    names = ("out.log", "node_modules/x.js", "yarn.lock", "../elsewhere/a.py", "link/b.py", "named.py")
    desk.round(*((name, code(20, f"in{number}")) for number, name in enumerate(names)))
    assert len(list((tmp_path / "elsewhere").iterdir())) == 3, "the agent could write there"
    for name in names:
        desk.save(name, "a person changed it\n")
    desk.git("add", "-Af")
    desk.commit()
    assert desk.ratings() == {}


def test_settings_of_the_repository_run_no_program(desk: Desk, tmp_path: Path) -> None:
    program, ran = tmp_path / "program", tmp_path / "ran"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    [turn] = desk.round(("a.py", code(20)))
    desk.commit()
    signature = "gpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----\n"
    read = partial(subprocess.run, cwd=desk.folder, capture_output=True, text=True, check=True)
    head = read(["git", "cat-file", "commit", "HEAD"]).stdout.partition("\n\n")
    signed = read(
        ["git", "hash-object", "-t", "commit", "-w", "--stdin"], input=f"{head[0]}\n{signature}\n{head[2]}"
    ).stdout.strip()
    desk.git("update-ref", "HEAD", signed)
    for name, value in (("log.showSignature", "true"), ("gpg.program", program), ("core.fsmonitor", program)):
        desk.git("config", name, str(value))
    assert desk.ratings() == {turn: 1.0}
    assert not ran.exists()
    read(["git", "log", "-1"])
    assert ran.exists()  # git alone runs it


def test_a_plain_folder_is_rated_where_a_person_edits(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "plain", git=False)
    turns = desk.round(("a.txt", code(20, "a")), ("b.txt", code(20, "b")))
    desk.save("a.txt", code(5, "a"))
    assert desk.ratings() == {turns[0]: -0.5}
    with pytest.raises(ClawError, match="is no folder"):
        Edits(tmp_path / "missing", HOUR)


PATCH = """*** Begin Patch
*** Add File: src/new.py
+first = 1
+second = 2
*** Update File: old.py
@@
-third = 3
+third = 4
*** End Patch"""


@pytest.mark.parametrize(
    ("arguments", "paths"),
    [
        ({"file_path": "/w/a.py", "content": "first = 1"}, {"/w/a.py": 1}),  # Claude Code and Qwen Code: Write
        ({"file_path": "/w/a.py", "old_string": "kept = 0", "new_string": "kept = 0\nfirst = 1"}, {"/w/a.py": 1}),  # Edit
        ({"path": "a.py", "edits": [{"oldText": "a", "newText": "first = 1\nsecond = 2"}]}, {"a.py": 2}),  # OpenClaw: edit
        ({"filePath": "a.py", "content": "first = 1"}, {"a.py": 1}),  # OpenCode
        ({"path": "a.py", "file_text": "first = 1"}, {"a.py": 1}),  # Copilot: create
        ({"input": PATCH}, {"src/new.py": 2, "old.py": 1}),  # apply_patch
        ({"command": ["apply_patch", PATCH], "workdir": "/w"}, {"/w/src/new.py": 2, "/w/old.py": 1}),  # Codex
        ({"cmd": f"apply_patch <<'EOF'\n{PATCH}\nEOF"}, {"src/new.py": 2, "old.py": 1}),  # Codex in a shell
        ({"cmd": "cat > a.py <<'EOF'\nfirst = 1\nsecond = 2\nEOF\npython a.py"}, {"a.py": 2}),
        ({"cmd": "cat <<EOF > a.py\nfirst = 1\nEOF"}, {"a.py": 1}),
        ({"type": "update_file", "path": "a.py", "diff": "@@\n-first = 0\n+first = 1\n"}, {"a.py": 1}),  # OpenAI's apply_patch
        ({"file_path": "a.py"}, {"a.py": 0}),  # Read
        ({"command": "ls"}, {}),
        (PATCH, {"src/new.py": 2, "old.py": 1}),  # a custom tool, whose input is no JSON
        ([{"path": 3}], {}),
    ],
)
def test_writes_of_each_client_are_read(arguments: Any, paths: dict[str, int]) -> None:
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    assert {path: len(lines) for path, lines in writes_of(text)} == paths


def test_arguments_that_are_nested_deeper_than_pythons_stack_stop_nothing() -> None:
    for begin, end in (('{"a":', "}"), ("[", "]")):
        assert list(writes_of(begin * 1000 + '"x"' + end * 1000)) == []


def test_collect_writes_the_rating_with_its_source_and_a_person_outranks_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    desk, run = Desk(tmp_path / "work"), open_run(tmp_path / "run")
    settings = {"edits": str(desk.folder), "shard_age_s": 0.05}
    collector = Collector(run, Recipe.model_validate({"collect": settings, "eval": {"holdout": 0}}), threading.Event())
    assert collector._edits is not None
    call = ("w1", "Write", orjson.dumps({"file_path": "a.py", "content": code(20)}).decode())
    write = asked([user("write")], answer(None, call), at=desk.now, finished_at=desk.now + 1)
    desk.now += 2
    desk.save("a.py", code(20))
    desk.now += 2
    append(run.captures / "a-0.jsonl", write)
    messages = [user("write"), answer(None, call), tool("w1", "ok")]
    append(run.captures / "a-0.jsonl", asked(messages, answer("done"), at=desk.now, finished_at=desk.now + 1))
    collector._edits._after_s = 50 * HOUR
    collector.poll()
    desk.save("a.py", code(5))
    collector._edits._after_s = HOUR
    collector.poll()
    collector.poll()
    ratings = Ratings(run)
    ratings.poll()
    rating = ratings.of("default", write.exchange_id)
    assert rating is not None
    assert (rating.key, rating.rating) == (EDITS, -0.5)
    assert sum(1 for _ in Ratings(run).read()) == 1
    collector.end_sessions()
    collector.close()
    show_why(run, write.exchange_id, tokens=False, as_json=False)
    assert "-0.5 by the lines that a person kept (collect.edits)" in " ".join(capsys.readouterr().out.split())
    collector._own_feedback.append(Feedback("f1", desk.now - HOUR, "default", write.exchange_id, 1.0, None))
    ratings.poll()
    of_person = ratings.of("default", write.exchange_id)
    assert of_person is not None
    assert of_person.rating == 1.0


def test_only_work_that_people_keep_gains(tmp_path: Path) -> None:
    """A simulation of what the reward invites: ten rounds of each behaviour, by the mean of what a round gains."""
    gains: dict[str, float] = {}
    others = ("touches little", "asks", "rewrites what was there", "pads", "writes what nobody opens")
    for behaviour in ("works", "works badly", *others):
        desk, total = Desk(tmp_path / behaviour.replace(" ", "-")), 0.0
        desk.save("old.py", code(60, "old"))
        desk.commit()
        for number in range(10):
            name, function = f"f{number}.py", f"n{number}"
            if behaviour in ("works", "works badly"):
                desk.round((name, code(30, function)))
                desk.save(name, code(27 if behaviour == "works" else 6, function))
            elif behaviour == "touches little":
                desk.round((name, code(3, function)))
            elif behaviour == "asks":
                desk.exchange([user(f"do {number}")], answer("Which of the two do you mean?"))
                desk.save(name, code(30, function))
            elif behaviour == "rewrites what was there":
                text = (desk.folder / "old.py").read_text()
                desk.round(("old.py", text + f"added_{number} = 1\n"), shown="\n" + text)
            elif behaviour == "pads":
                desk.round((name, "pass\n" * 100 + "}\n" * 100 + code(2, function)))
            else:
                desk.round((name, code(200, function)))
            if behaviour != "writes what nobody opens":
                desk.commit()
            total += sum(desk.ratings().values())
        gains[behaviour] = round(total / 10, 2)
    assert gains == {"works": 0.8, "works badly": -0.6, **dict.fromkeys(others, 0.0)}
