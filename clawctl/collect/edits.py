"""Edits as ratings: what a person kept of the lines that an agent wrote into files below `collect.edits`.

A round is a person's request, the tool calls that answer it, and the last answer, which calls none. When a round ends, the lines
that its turns wrote and that stand in their files are remembered: what the agent changed again in the round, or what a tool
refused to write, does not count. `collect.edits_after_s` later the files are read again, and the share of these lines that still
stand rates the turns that wrote them. No other turn gets a rating.

Only a person's decision counts. A file gives no rating unless its text changed or it was committed, and none if the agent changed
it in a later round. Nothing outside the folder is read, and no link is followed. Lines are kept in memory, as hashes; a restart of
collect forgets them.
"""

import itertools
import logging
import os
import re
import stat
import subprocess
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from clawctl.collect.canonical import text_of
from clawctl.config.environment import environment_with
from clawctl.errors import ClawError
from clawctl.run.feedback import EDITS
from clawctl.run.rows import Exchange, Feedback

log = logging.getLogger(__name__)

_FEW, _MANY = 5, 20  # lines: fewer give no rating, and from so many on a rating has its full size
_LARGEST = 1 << 20  # bytes of a file
_MAX_CALLS, _MAX_FILES, _MAX_LINES = 4096, 4096, 1 << 20  # remembered
_SLACK_S = 1.0  # between the clocks of files and of serve
_GIT_S = 10.0
_BRANCH = ("symbolic-ref", "-q", "HEAD")
_GENERATED = re.compile(
    r"(^|/)(\.git|node_modules|__pycache__|\.venv|dist|build|target)/|\.(lock|map|min\.js|min\.css)$|-lock\.(json|yaml)$"
)
# Names of arguments in Claude Code, OpenClaw, Copilot, Qwen Code, OpenCode and the vendors' own tools
_PATHS = ("file_path", "filePath", "path", "notebook_path")
_NEW = ("content", "file_text", "new_string", "newString", "new_str", "newText", "new_source", "insert_text")
_OLD = ("old_string", "oldString", "old_str", "oldText")
_FOLDERS = ("workdir", "cwd", "working_directory")
_PATCHED = re.compile(r"\*\*\* (?:Add File|Update File|Move to): (.+)")
_HEREDOC = re.compile(r"cat +(?:>+ *([^\s<>|&;]{1,500}) *<<-? *['\"]?(\w+)|<<-? *['\"]?(\w+)['\"]? *>+ *([^\s<>|&;]{1,500}))")
_NUMBERED = re.compile(r"^ *\d+[\t:|→]")  # a line as tools that read files show it


@dataclass(slots=True, eq=False)
class _Round:
    began: float
    ended: float  # or, while it goes on, when its last answer ended
    writes: list[tuple[str, str, set[int]]] = field(default_factory=list)  # turn, path below the folder, lines


@dataclass(slots=True)
class _Written:
    """The lines of one turn that stood in one file at the end of the turn's round."""

    lines: set[int]
    text: int  # hash of the whole file
    stamp: tuple[int, int]  # its time of change in ns, and its size
    branch: str | None
    round: _Round


class Edits:
    """Follows the files that captured answers write. `add` takes each captured exchange once, in order."""

    def __init__(self, folder: Path, after_s: float) -> None:
        self._root, self._after_s = folder.expanduser(), after_s
        if not self._root.is_dir():
            raise ClawError(f"collect.edits: {folder} is no folder", "name the folder that the agents work in", 2)
        self._roots = [os.path.abspath(self._root), os.path.realpath(self._root)]
        self._open: OrderedDict[tuple[str, str], _Round] = OrderedDict()  # by key and id of a tool call
        self._rounds: deque[_Round] = deque(maxlen=1024)
        self._written: OrderedDict[tuple[str, str], _Written] = OrderedDict()  # by turn and path

    def add(self, exchange: Exchange) -> None:
        """Take the writes of an answer, and the files as they are if it ends its round."""
        results = itertools.takewhile(lambda message: message.get("role") != "assistant", reversed(exchange.messages))
        rounds = [self._open.get((exchange.key, str(message.get("tool_call_id")))) for message in results]
        current = next((open_round for open_round in rounds if open_round is not None), None)
        calls = (exchange.response or {}).get("tool_calls") or []
        if exchange.response is None or (current is None and not calls):
            return
        if current is None:
            current = _Round(exchange.created_at, exchange.finished_at)
            self._rounds.append(current)
        current.ended = exchange.finished_at
        if exchange.hints.get("feedback") is not None:  # a person rated the turn that these results answer
            current.writes = [write for write in current.writes if write[0] != current.writes[-1][0]]
        self._drop_changed_by(current)
        given: set[int] | None = None
        for call in calls:
            self._open[exchange.key, str(call.get("id"))] = current
            for path, lines in writes_of((call.get("function") or {}).get("arguments")):
                if (relative := self._below(path)) is not None:
                    if given is None:  # lines that the agent was shown, such as those of a file that it writes anew
                        others = (message for message in exchange.messages if message.get("role") != "assistant")
                        given = set().union(*(_lines(text_of(message.get("content"))) for message in others))
                    current.writes.append((exchange.exchange_id, relative, lines - given))
        while len(self._open) > _MAX_CALLS:
            self._open.popitem(last=False)
        if not calls:
            self._end(current)

    def pop_due(self, now: float) -> Iterator[Feedback]:
        """Yield the ratings of turns whose time has come."""
        due = [key for key, written in self._written.items() if written.round.ended + self._after_s <= now]
        for turn_id, keys in itertools.groupby(due, key=lambda key: key[0]):
            counts = [self._kept(path, self._written.pop((turn_id, path))) for _, path in keys]
            lines, kept = (sum(count) for count in zip(*counts, strict=True))
            if lines >= _FEW:
                rating = (2 * kept / lines - 1) * min(1.0, lines / _MANY)
                log.info("%d of %d lines that turn %s wrote still stand: it is rated %+.2f", kept, lines, turn_id, rating)
                yield Feedback(f"edits-{turn_id}", now, EDITS, turn_id, round(rating, 3), None)

    def _end(self, ended: _Round) -> None:
        writes, ended.writes = ended.writes, []
        for path in dict.fromkeys(path for _, path, _ in writes):
            content = self._read(path)
            if content is None or content[1][0] / 1e9 > ended.ended + _SLACK_S:
                continue  # somebody changed it since
            if self._git("check-ignore", "-q", "--", path) is not None:
                continue
            text, stamp = content
            standing = _lines(text)
            for turn_id, _, lines in (write for write in writes if write[1] == path):
                written = lines & standing
                standing -= written  # a line counts for the turn that wrote it first
                if written:
                    key = turn_id, path
                    earlier = self._written[key].lines if key in self._written else set()
                    self._written[key] = _Written(written | earlier, hash(text), stamp, self._git(*_BRANCH), ended)
        self._written = OrderedDict(sorted(self._written.items(), key=lambda item: (item[1].round.ended, item[0])))
        while len(self._written) > _MAX_FILES or sum(len(kept.lines) for kept in self._written.values()) > _MAX_LINES:
            self._written.popitem(last=False)

    def _drop_changed_by(self, current: _Round) -> None:
        """Forget the files that changed since the round began: the agent may have changed them, with any of its tools."""
        for (turn_id, path), written in list(self._written.items()):
            stamp, at = self._last_change(path)
            if stamp != written.stamp and at >= current.began - _SLACK_S:
                del self._written[turn_id, path]

    def _last_change(self, path: str) -> tuple[tuple[int, int] | None, float]:
        """The stamp of a file and the time of its change. Without the file, the time is that of its folder's change."""
        with suppress(OSError):
            status = os.lstat(self._root / path)
            return (status.st_mtime_ns, status.st_size), status.st_mtime
        with suppress(OSError):
            return None, os.lstat((self._root / path).parent).st_mtime
        return None, float("inf")

    def _kept(self, path: str, written: _Written) -> tuple[int, int]:
        """The number of lines, and of those that still stand. (0, 0) if no decision of a person is seen."""
        stamp, changed = self._last_change(path)
        content, since = self._read(path), written.round.ended + _SLACK_S
        if written.branch != self._git(*_BRANCH) or (content is None and stamp is not None):
            return 0, 0
        if content is None:
            named = ("ls-files", "-zco", "--exclude-standard", "--", f":(glob)**/{os.path.basename(path)}")
            if any(other != path for other in (self._git(*named) or "/").split("\0") if other):
                return 0, 0  # it may have been moved, or there is no repository to tell
        edited = content is None or hash(content[0]) != written.text
        if edited and changed <= since:
            return 0, 0
        committed = float(self._git("log", "-1", "--format=%ct", "HEAD", "--", path) or 0)
        if not edited and (committed <= since or self._by_agent(committed, written.round)):
            return 0, 0
        return len(written.lines), len(written.lines & _lines(content[0])) if content is not None else 0

    def _by_agent(self, at: float, excluded: _Round) -> bool:
        return any(other.began - _SLACK_S <= at <= other.ended + _SLACK_S for other in self._rounds if other is not excluded)

    def _below(self, path: str) -> str | None:
        """The path relative to the folder, or None if it is outside, or if its file is generated."""
        for root in self._roots:
            whole = os.path.normpath(os.path.join(root, path))
            if whole.startswith(root + os.sep) and "\0" not in path and not _GENERATED.search(whole[len(root) :]):
                return whole[len(root) + 1 :]
        return None

    def _read(self, path: str) -> tuple[str, tuple[int, int]] | None:
        """The text of a regular file and its stamp. Each folder on the way is opened by itself, so that no link leads outside."""
        with suppress(OSError):
            folder = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
            try:
                *folders, name = path.split(os.sep)
                for part in folders:
                    inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
                    os.close(folder)
                    folder = inner
                with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder), "rb") as file:
                    about = os.fstat(file.fileno())
                    if stat.S_ISREG(about.st_mode) and about.st_size <= _LARGEST:
                        return file.read(_LARGEST).decode(errors="replace"), (about.st_mtime_ns, about.st_size)
            finally:
                os.close(folder)
        return None

    def _git(self, *arguments: str) -> str | None:
        """What git prints in the folder. None if it fails: there is no git, or no repository."""
        # Either setting of a repository that an agent can write would run a program of its choice.
        command = ["git", "-C", str(self._root), "-c", "core.fsmonitor=false", "-c", "log.showSignature=false", *arguments]
        with suppress(OSError, subprocess.TimeoutExpired):
            variables = environment_with({"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1"})
            done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_S, check=False, env=variables)
            return done.stdout.strip() if done.returncode == 0 else None
        return None


def writes_of(arguments: Any) -> Iterator[tuple[str, set[int]]]:
    """Yield the path of each file that a tool call with these arguments writes, and the lines that it adds."""
    try:
        given = orjson.loads(arguments) if isinstance(arguments, str) else arguments
    except orjson.JSONDecodeError:
        given = arguments
    named = given if isinstance(given, dict) else {}
    path, folder = (next((named[name] for name in names if isinstance(named.get(name), str)), "") for names in (_PATHS, _FOLDERS))
    if path:
        edits = named.get("edits")
        for part in [named, *(edit for edit in edits if isinstance(edit, dict))] if isinstance(edits, list) else [named]:
            new, old = ("\n".join(part[name] for name in names if isinstance(part.get(name), str)) for names in (_NEW, _OLD))
            yield path, _lines(new) - _lines(old)
        if isinstance(named.get("diff"), str):
            yield path, _lines("\n".join(line[1:] for line in named["diff"].splitlines() if line.startswith("+")))
    for text in () if path else _texts(given):
        for name, added in _from_shell(text.splitlines()):
            yield os.path.join(folder, name), _lines("\n".join(added))


def _from_shell(lines: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """The files that a patch (`*** Begin Patch`) or `cat > FILE <<END` in a text write, and the added lines."""
    path, end, added = "", "", list[str]()
    for line in lines:
        if end and line.strip() != end:
            added.append(line)
        elif (patched := _PATCHED.match(line)) or end or line.startswith("*** End Patch"):
            if added:
                yield path, added
            path, end, added = patched[1].strip() if patched else "", "", []
        elif path and line.startswith("+"):
            added.append(line[1:])
        elif not path and (document := _HEREDOC.search(line)):
            path, end = (document[1] or document[4]).strip("'\""), document[2] or document[3]
    if path and added:
        yield path, added


def _texts(value: Any) -> Iterator[str]:
    waiting = [value]  # no recursion: a model may nest deeper than Python's stack
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            waiting += reversed(list(value.values() if isinstance(value, dict) else value))


def _lines(text: str) -> set[int]:
    """The different lines with at least four letters or digits, whatever their spaces, as hashes."""
    squeezed = ("".join(_NUMBERED.sub("", line, count=1).split()) for line in text.splitlines())
    return {hash(line) for line in squeezed if sum(map(str.isalnum, line)) >= 4}
