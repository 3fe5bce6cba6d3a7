"""`clawctl import FILE`: reads turns from text. JSONL, one object per line, or one JSON document; plain, gzip or zstd.

Four formats of a line are recognised by their keys:

`turns`           {"session_id": …, "turns": [{"type": "main" | "side", "prompt": text or messages, "response": text or message,
                  "next_state": text, message, messages or null, "trainable": bool, "rating": -1..1, "tools": [...]}]}. Defaults:
                  main, trainable, no next state, no rating. `clawctl export` writes this format. Of the keys that it adds,
                  `created_at` and `untrainable_reason` are ignored; `turn_id` prevents a run from importing its own turns.
`messages`        a chat log or a fine-tuning example: each assistant message is a turn, and the messages up to the next one are its
                  next state. `weight: 0` in a message: not trainable. `tools` and `session_id` beside `messages` are kept.
`prompt`,         the old fine-tuning format: two texts.
`completion`
`input`, …        a preference example: `preferred_output` rated 1, `non_preferred_output` rated -1, as siblings.

Text has no token ids, so ids, logprobs and policy version of an imported turn are null (law 1). Such a turn is judged. It is
trained only by a trainer that scores text with its own weights, as off-policy (`clawctl.run.rows.Turn.judged`). Secrets are removed
before anything is written, by the same rules as in serve (`privacy.redact`). A turn that held a secret is not trained.
"""

import hashlib
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import orjson

from clawctl.collect.documents import NOTHING, read_file, values
from clawctl.collect.redacted import NOT_WANTED, redacted
from clawctl.collect.rows import SIDE_TURN
from clawctl.config.privacy import PrivacyConfig
from clawctl.cut_calls import CUT_CALL, has_cut_call
from clawctl.errors import ClawError
from clawctl.privacy.redaction import redactor_of
from clawctl.run.directory import RunDir, remove
from clawctl.run.outcomes import scoped_id
from clawctl.run.rows import NO_NEXT_STATE, TEXT_ONLY, Message, Turn
from clawctl.run.shards import read_each, read_turn_ids, write_turns

USER = "import"  # the user of imported turns
SHARD_TURNS = 1024
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_TURN_KEYS = frozenset(
    {"type", "prompt", "response", "next_state", "trainable", "rating", "tools", "turn_id", "created_at", "untrainable_reason"}
)


class _BadFormat(Exception):
    """A line matches none of the formats. The message gives the reason."""


@dataclass(frozen=True, slots=True)
class _FileTurn:
    """One turn as the file describes it."""

    messages: list[Message]
    response: Message
    next_state: list[Message] | None
    tools: list[dict[str, Any]] | None
    kind: Literal["main", "side"]
    wanted: bool
    rating: float | None
    follows: bool = True  # whether it continues the turn before it in its line; False: it starts a new conversation
    exported_as: str | None = None  # its turn id in the run from which it was exported


@dataclass(frozen=True, slots=True)
class Imported:
    """The turns of a file. `before`: the file was imported earlier, so nothing was written."""

    turns: list[Turn]
    before: bool


def import_file(run: RunDir, file: Path, rating: float | None, privacy: PrivacyConfig | None = None) -> Imported:
    """Publish all turns of `file`, completely or not at all, and only once: repeating the call changes nothing.

    `rating` applies to turns without a rating of their own. Raises ClawError, which names the first line that cannot be read.
    """
    result = _read_all(file, rating, privacy)
    turns = [turn for turn, _ in result]
    exported = {exported_as for _, exported_as in result if exported_as is not None}
    already_there = exported & _ids_in(run) if exported else exported
    if already_there:
        fix = f"import it into another run, or remove its turn_ids to add these turns again; {NOTHING}"
        raise ClawError(f"{len(already_there)} turns of {file} are already in {run.root}, from which the file was exported", fix, 2)
    name = _digest(read_file(file))
    missing = {}
    for number in range(0, len(turns), SHARD_TURNS):
        # Sorts before all shards that collect publishes
        target = run.turn_shard(f"{0:020d}-import-{name}-{number // SHARD_TURNS:05d}")
        if not target.exists():
            missing[target] = turns[number : number + SHARD_TURNS]
    try:
        for target, shard in missing.items():
            write_turns(target, shard)
    except OSError as error:
        for target in missing:  # a partly imported file is not kept
            remove(target)
        raise ClawError(f"{run.trajectories} cannot be written: {error}", f"free some space and try again; {NOTHING}") from error
    return Imported(turns, before=not missing)


def _ids_in(run: RunDir) -> set[str]:
    turn_ids: set[str] = set()
    for _, in_shard in read_each(run.trajectories, read_turn_ids, skip_damaged=True):  # readers of the whole shard quarantine it
        turn_ids.update(in_shard)
    return turn_ids


def read_turns_of(file: Path, rating: float | None = None, privacy: PrivacyConfig | None = None) -> list[Turn]:
    """Return the turns of a file in order, redacted by `privacy` (None: its defaults). At least one. Raises ClawError."""
    return [turn for turn, _ in _read_all(file, rating, privacy)]


def _read_all(file: Path, rating: float | None, privacy: PrivacyConfig | None) -> list[tuple[Turn, str | None]]:
    """Return the turns, each with the id under which it was exported."""
    if rating is not None and not -1 <= rating <= 1:
        raise ClawError(f"a rating of {rating} is not between -1 and 1", "set --rating to a number from -1 (bad) to 1 (good)", 2)
    data, modified_at = read_file(file), file.stat().st_mtime
    redactor = redactor_of(privacy or PrivacyConfig())
    turns: list[tuple[Turn, str | None]] = []
    for number, where, value in values(file, data):
        try:
            session, file_turns = _read(_storable(value))
        except _BadFormat as error:
            raise ClawError(f"{file}, {where}: {error}", f"{NOTHING}; `clawctl docs data` describes the formats", 2) from error
        name = _digest(data, str(number).encode())
        session_id = scoped_id(USER, session if session and redactor.text(session) == session else name)
        parent: str | None = None
        for index, file_turn in enumerate(file_turns):
            turn = _turn(file_turn, f"i{name}{index:05d}", session_id, parent, modified_at + number + index / 1000, rating)
            turns.append((redacted(turn, redactor), file_turn.exported_as))
            parent = turn.turn_id if file_turn.follows else None
    if not turns:
        raise ClawError(f"{file} contains no turn", f"{NOTHING}; `clawctl docs data` describes the formats", 2)
    return turns


def _digest(*parts: bytes) -> str:
    digest = hashlib.blake2b(digest_size=9)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def _turn(line: _FileTurn, turn_id: str, session_id: str, parent: str | None, created_at: float, rating: float | None) -> Turn:
    feedback = line.rating if line.rating is not None else rating
    reasons = [
        (line.kind == "side", SIDE_TURN),
        (not line.wanted, NOT_WANTED),
        (has_cut_call(line.tools, line.response, None), CUT_CALL),
        (line.next_state is None and feedback is None, NO_NEXT_STATE),
    ]
    return Turn(
        turn_id=turn_id, session_id=session_id, parent_turn_id=parent,
        turn_index=sum(message["role"] == "assistant" for message in line.messages),
        kind=line.kind, source="import", task_id=None, group_id=None, user=USER, created_at=created_at, messages=line.messages,
        tools=line.tools, response=line.response, next_state=line.next_state, prompt_ids=None, completion_ids=None, logprobs=None,
        policy_version=None, policy_version_end=None, temperature=1.0, top_p=1.0, top_k=0, finish_reason=None, outcome_reward=None,
        feedback=feedback, trainable=False, untrainable_reason=next((reason for applies, reason in reasons if applies), TEXT_ONLY),
    )  # fmt: skip


# ---- formats -------------------------------------------------------------------------------------------------------------


def _storable(value: Any) -> Any:
    """Return the value. Raises _Wrong if it can be read but not written again."""
    try:
        orjson.dumps(value)
    except TypeError as error:
        raise _BadFormat("nested too deeply") from error
    return value


def _read(line: Any) -> tuple[str | None, list[_FileTurn]]:
    """Return (session id or None, turns) of one line."""
    if not isinstance(line, dict):
        raise _BadFormat("not a JSON object")
    session = line.get("session_id")
    if session is not None and not (isinstance(session, str) and session):
        raise _BadFormat("'session_id' must be a text")
    if "turns" in line:
        turns = line["turns"]
        if not isinstance(turns, list) or line.keys() - {"session_id", "turns"}:
            raise _BadFormat("'turns' must be a list, and only 'session_id' may be set besides it")
        return session, [_manual(turn, f"turns[{index}]") for index, turn in enumerate(turns)]
    if "messages" in line:
        return session, _conversation(_messages(line["messages"], "messages"), _tools(line.get("tools")))
    if "preferred_output" in line or "non_preferred_output" in line:
        return session, _preference(line)
    if isinstance(line.get("prompt"), str) and isinstance(line.get("completion"), str):
        prompt, answer = {"role": "user", "content": line["prompt"]}, {"role": "assistant", "content": line["completion"]}
        return session, [_FileTurn([prompt], answer, None, None, "main", True, None)]
    raise _BadFormat("expected 'turns', 'messages', 'prompt' with 'completion', or 'preferred_output'")


def _manual(turn: Any, where: str) -> _FileTurn:
    if not isinstance(turn, dict):
        raise _BadFormat(f"{where} is not an object")
    unknown = turn.keys() - _TURN_KEYS
    if unknown:
        raise _BadFormat(f"{where} has an unknown key {min(unknown)!r}; known: {', '.join(sorted(_TURN_KEYS))}")
    kind, wanted, rating = turn.get("type", "main"), turn.get("trainable", True), turn.get("rating")
    if kind not in ("main", "side"):
        raise _BadFormat(f'{where}.type must be "main" or "side"')
    if not isinstance(wanted, bool):
        raise _BadFormat(f"{where}.trainable must be true or false")
    if rating is not None and (isinstance(rating, bool) or not isinstance(rating, int | float) or not -1 <= rating <= 1):
        raise _BadFormat(f"{where}.rating must be a number from -1 to 1")
    next_state, response = turn.get("next_state"), turn.get("response")
    messages = _message_list(turn.get("prompt"), "user", f"{where}.prompt")
    answer = _message_list(response, "assistant", f"{where}.response")
    if len(answer) != 1 or answer[0]["role"] != "assistant":
        raise _BadFormat(f"{where}.response must be one assistant message")
    exported_as = turn.get("turn_id")
    return _FileTurn(
        exported_as=exported_as if isinstance(exported_as, str) else None,
        messages=messages,
        response=answer[0],
        next_state=None if next_state is None else _message_list(next_state, "user", f"{where}.next_state"),
        tools=_tools(turn.get("tools")),
        kind="side" if kind == "side" else "main",
        wanted=wanted,
        rating=None if rating is None else float(rating),
    )


def _message_list(value: Any, role: str, where: str) -> list[Message]:
    """Return a text, a message or messages as a list of messages."""
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return _messages([value] if isinstance(value, dict) else value, where)


def _messages(value: Any, where: str) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise _BadFormat(f"{where} must be a text or a list of messages")
    for index, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _BadFormat(f"{where}[{index}] is not a message with a role")
        if message["role"] not in _ROLES:
            raise _BadFormat(f"{where}[{index}].role is {message['role'][:40]!r}; known: {', '.join(_ROLES)}")
        if not isinstance(message.get("content"), str | list | None):
            raise _BadFormat(f"{where}[{index}].content is not text")
        calls = message.get("tool_calls")
        if calls is not None and not (isinstance(calls, list) and all(map(_is_call, calls))):
            raise _BadFormat(f"{where}[{index}].tool_calls must be a list of calls, each with a 'function'")
    return list(value)


def _is_call(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("function", {}), dict)


def _tools(value: Any) -> list[dict[str, Any]] | None:
    if value is not None and not (isinstance(value, list) and all(isinstance(tool, dict) for tool in value)):
        raise _BadFormat("'tools' must be a list of objects")
    return value or None


def _conversation(messages: list[Message], tools: list[dict[str, Any]] | None) -> list[_FileTurn]:
    """Return one turn for each assistant message, except one without an earlier message."""
    answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    turns = []
    for index, following in pairwise([*answers, len(messages)]):
        if index == 0:
            continue  # without a request it is only part of the other prompts
        answer = {key: value for key, value in messages[index].items() if key != "weight"}
        before = [{key: value for key, value in message.items() if key != "weight"} for message in messages[:index]]
        after = [message for message in messages[index + 1 : following] if message["role"] not in ("system", "developer")]
        turns.append(_FileTurn(before, answer, after or None, tools, "main", messages[index].get("weight", 1) != 0, None))
    if not turns:
        raise _BadFormat("'messages' contain no assistant message")
    return turns


def _preference(line: dict[str, Any]) -> list[_FileTurn]:
    request = line.get("input")
    if not isinstance(request, dict):
        raise _BadFormat("a preference needs an 'input' with 'messages'")
    messages, tools = _messages(request.get("messages"), "input.messages"), _tools(request.get("tools"))
    turns = []
    for name, rating in (("preferred_output", 1.0), ("non_preferred_output", -1.0)):
        output = _messages(line.get(name), name)
        answer = next((message for message in output if message["role"] == "assistant"), None)
        if answer is None:
            raise _BadFormat(f"'{name}' contains no assistant message")
        turns.append(_FileTurn(messages, answer, None, tools, "main", True, rating, follows=False))
    return turns


def import_text(run: RunDir, privacy: PrivacyConfig, file: Path, rating: float | None, as_json: bool) -> None:
    """Import the turns of `file` and print counts. Raises ClawError."""
    imported = import_file(run, file, rating, privacy)
    fates = Counter(turn.untrainable_reason for turn in imported.turns).most_common()
    count = len(imported.turns)
    if as_json:
        report = {
            "imported": 0 if imported.before else count,
            "imported_before": count if imported.before else 0,
            "fates": dict(fates),
        }
        sys.stdout.write(orjson.dumps(report, option=orjson.OPT_INDENT_2).decode() + "\n")
        return
    message = f"of {file} were already imported, nothing was changed" if imported.before else f"imported from {file}"
    sys.stdout.write(f"{count} turns {message}: {', '.join(f'{number} {reason}' for reason, number in fates)}\n")
