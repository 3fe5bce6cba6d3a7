"""`clawctl inspect why TURN`: all numbers between a turn and its gradient."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.table import Table
from rich.text import Text

from clawctl.config import load_recipe
from clawctl.errors import ClawError
from clawctl.inspect.health_lines import REDACTION_CURE
from clawctl.inspect.joined import Joined, Row
from clawctl.inspect.rows import read_lines, read_rows
from clawctl.inspect.tables import problem_lines
from clawctl.inspect.turns import as_dict, whole_turn
from clawctl.printing import Column, answers, fitting, one_line, plain, print_json
from clawctl.run.directory import RunDir, recipe_file
from clawctl.run.feedback import EDITS
from clawctl.run.holdout import HELD_OUT
from clawctl.run.model_files import IdReader
from clawctl.run.reward import PRACTICE
from clawctl.run.shards import UnreadableShard, read_table

_id_reader = functools.lru_cache(4)(IdReader)  # reading a large tokenizer takes a second

QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
_OF_STEP = (
    "loss", "grad_norm", "clip_grad", "kl_base", "lr", "turns", "trained_tokens", "reward_mean", "reward_std", "masked_fraction",
    "mismatch_mean",
)  # fmt: skip
_HELD_OUT_MEANS = "this session measures new versions and is never trained (eval.holdout); `clawctl eval` compares versions on it"
_IGNORABLE = (
    "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "min_tokens",
    "bad_words", "allowed_token_ids", "ignore_eos",
)  # fmt: skip


def show_why(run: RunDir, turn: str, tokens: bool, as_json: bool) -> None:
    """Print the numbers of one turn. Raises ClawError unless exactly one turn id begins with `turn`."""
    joined = read_rows(run)
    row = _find(joined, turn, run)
    record, step = numbers_of(run, row, joined.problems)
    explanation = explain(row, record, step) | {"episode": episode_of(row, joined)}
    texts = token_texts(run, record["completion_ids"]) if tokens and record else None
    if as_json:
        by_tokens = {"tokens": by_token(record, texts)} if record and texts is not None else {}
        print_json({**explanation, **by_tokens, "problems": joined.problems})
        return
    parts: list[Any] = [*whole_turn(row)[:-1], *_lines(explanation)]
    page = answers()
    if record and texts is not None:
        parts.append(_token_table(by_token(record, texts), page.width))
    page.print(*parts, *problem_lines(joined.problems), sep="\n")


def numbers_of(run: RunDir, row: Row, problems: list[str]) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """What the policy's step recorded about the turn, and the numbers of that step."""
    policy_run = run.of(row.policy)
    record = read_record(policy_run, row.step, row.turn["turn_id"], problems) if row.step is not None else None
    return record, next((step for step in read_lines(policy_run.steps, problems) if step.get("step") == row.step), None)


def explain(row: Row, record: dict[str, Any] | None, step: dict[str, Any] | None) -> dict[str, Any]:
    """The turn, its step, and the turn's own numbers in that step."""
    of_step = {name: step.get(name) for name in (*_OF_STEP, "correction")} if step else None
    turn = as_dict(row)
    worth = PRACTICE if row.verdict is not None and row.verdict["judge"] == PRACTICE else row.worth.text
    explained: dict[str, Any] = {"turn": turn, "worth": worth, "cure": cure_of(row), "step": of_step, "numbers": None}
    explained["practice"], explained["notes"] = practice_of(row), row.turn.get("notes")
    if record is not None:
        turn["reward"], explained["worth"] = record["reward"], record.get("worth") or worth  # the values used in training
    if row.rating is not None and row.rating.key == EDITS:
        explained["worth"] = explained["worth"].replace("by rating", "by the lines that a person kept (collect.edits)")
    if record is None:
        return explained
    ratios = [math.exp(now - then) for now, then in zip(record["policy_logprobs"], record["sampler_logprobs"], strict=True)]
    names = ("method", "shard", "reward", "credit", "baseline", "temperature", "policy_version", "policy_version_end", "staleness")
    return {
        **explained,
        "numbers": {
            **{name: record[name] for name in names},
            "completion_tokens": len(ratios),
            "bounded": record.get("bounded"),  # None in older records
            "anchored": record.get("anchored"),
            "ratio_quantiles": quantiles(ratios),
            "terms": {term["name"]: _term(term) for term in record["terms"]},
        },
    }


def episode_of(row: Row, joined: Joined) -> dict[str, Any] | None:
    """The episode of a turn that clawctl played, with the other episodes of its group. None for other turns."""
    turn = row.turn
    if turn["episode"] is None:
        return None
    group: dict[str, dict[str, Any]] = {}
    of_group = [turn[name] for name in ("user", "group_id")]
    for other in joined.rows.where(lambda row: row.turn["episode"] and [row.turn["user"], row.turn["group_id"]] == of_group):
        group[other.turn["session_id"]] = other.turn["episode"]
    counted = [float(row["reward"]) for row in group.values() if row["status"] == "done" and row["reward"] is not None]
    mean = sum(counted) / len(counted) if counted else None
    std = None if mean is None else (sum((reward - mean) ** 2 for reward in counted) / len(counted)) ** 0.5
    attempts = [
        {name: attempt[name] for name in ("attempt", "attempt_try", "ending", "status", "reward")}
        for attempt in sorted(group.values(), key=lambda attempt: (attempt["attempt"], attempt["attempt_try"]))
    ]
    return {**turn["episode"], "step_reward": turn["step_reward"], "group": attempts, "group_mean": mean, "group_std": std}


def practice_of(row: Row) -> str | None:
    """What a turn of practice teaches, as text. None for other turns."""
    episode = row.turn["episode"] or {}
    hint, place = episode.get("hint"), episode.get("hint_place")
    if hint is None:
        return None
    if not hint:
        how = "version 0 answered a request that no note concerns, and the policy is trained to keep answering it in the same way"
    elif place is not None:
        how = f"version 0 answered with the hint in its prompt ({place}), and the policy is trained on the prompt without it"
    else:
        how = "the policy answered without the hint, and the teacher reads it"
    return f"{how}; no person and no judge rated the answer"


def cure_of(row: Row) -> str | None:
    """The recipe keys that would make later turns like this one trainable. None if the turn's sampling is not the reason."""
    turn, reason = row.turn, row.turn["untrainable_reason"]
    if reason != "greedy" and reason not in _IGNORABLE:
        return None
    cut = [name for name, cuts in (("top_p", turn["top_p"] < 1), ("top_k", turn["top_k"] > 0)) if cuts or reason == name]
    ignored = list(dict.fromkeys([*cut, *([reason] if reason != "greedy" else [])]))
    keys = ["serve.sampling.temperature: {at_least: 0.7}"] if reason == "greedy" else []
    keys += [f"serve.sampling.ignore: [{', '.join(ignored)}]"] if ignored else []
    return f"set {' and '.join(keys)} in the recipe; the server then changes the sampling of later requests"


def _term(term: dict[str, Any]) -> dict[str, Any]:
    """The values of one term. A token's share of the step's loss is the term's weight / its tokens, times this value."""
    kind = "advantage" if term["advantages"] is not None else "divergence"
    values = term["advantages"] if kind == "advantage" else term["divergences"]
    acting = term["acting"]
    return {
        "weight": term["weight"],
        "tokens_of_step": term["tokens"],
        f"{kind}_mean": sum(values) / len(values),
        f"{kind}_quantiles": quantiles(values),
        "masked_tokens": None if acting is None else acting.count(False),
    }


def read_record(run: RunDir, step: int, turn_id: str, problems: list[str]) -> dict[str, Any] | None:
    """The turn's row in `train/turns/<step>.parquet`, or None if it is no longer stored."""
    path = run.record(step)
    if not path.exists():
        return None
    try:
        table = read_table(path)
        rows: list[dict[str, Any]] = table.filter(pc.field("turn_id") == turn_id).to_pylist()
    except (UnreadableShard, pa.ArrowException, ValueError) as error:
        problems.append(f"turns/{error}")
        return None
    return rows[0] if rows else None


def quantiles(values: Sequence[float]) -> list[float]:
    """The values at QUANTILES."""
    ordered = sorted(values)
    return [ordered[round(q * (len(ordered) - 1))] for q in QUANTILES]


def _find(joined: Joined, turn: str, run: RunDir) -> Row:
    matches = list(joined.beginning_with(turn.rstrip("…"))[:2].with_texts())  # `inspect turns` shortens ids in this way
    if len(matches) != 1:
        count = len(joined.beginning_with(turn.rstrip("…")))
        problem = f"{count} turns of {run.root} have an id that begins with {turn.rstrip('…')!r}"
        raise ClawError(problem, "`clawctl inspect turns --json` shows the full ids", 2)
    return matches[0]


def token_texts(run: RunDir, ids: Sequence[int]) -> list[str]:
    """The text of each token, or its id if the tokenizer of the run's model is not on this machine or damaged."""
    try:
        read = _id_reader(load_recipe(recipe_file(run.root)).model_path)
    except Exception:  # noqa: BLE001 - tokenizers raises nothing more specific
        return [f"<{token}>" for token in ids]
    return [read([token]) or f"<{token}>" for token in ids]


def by_token(record: dict[str, Any], texts: list[str]) -> list[dict[str, Any]]:
    """One entry per token, with its text."""
    teacher = record["teacher_logprobs"] or [None] * len(texts)
    streams = zip(record["completion_ids"], texts, record["sampler_logprobs"], record["policy_logprobs"], teacher, strict=True)
    return [
        {
            "id": token,
            "text": text,
            "sampler": then,
            "policy": now,
            "teacher": taught,
            "ratio": math.exp(now - then),
            "terms": {
                term["name"]: {
                    kind: term[stream][index]
                    for kind, stream in (("advantage", "advantages"), ("acts", "acting"), ("divergence", "divergences"))
                    if term[stream] is not None
                }
                for term in record["terms"]
            },
        }
        for index, (token, text, then, now, taught) in enumerate(streams)
    ]


def _lines(facts: dict[str, Any]) -> list[Text]:
    numbers, step = facts["numbers"], facts["step"]
    lines = [_line("reward", facts["worth"])]
    if facts["turn"]["parent_evidence"] is not None:
        lines.append(_line("continues", f"turn {facts['turn']['parent'][:8]}, by {facts['turn']['parent_evidence']}"))
    if facts["turn"]["why_not_trained"] == HELD_OUT:
        lines.append(_line("held out", _HELD_OUT_MEANS))
    if facts["practice"] is not None:
        lines.append(_line("practice", facts["practice"]))
    if facts["notes"] is not None:
        notes = facts["notes"]
        if shown := notes["text"].replace("\n", " "):
            lines.append(_line("notes", f"{', '.join(notes['ids'])}, in the prompt ({notes['place']}): {shown}"))
        if learned := notes.get("learned"):
            lines.append(_line("learned", f"not in the prompt, and read by the teacher: {' '.join(learned)}"))
    if facts["episode"] is not None:
        lines += _episode_lines(facts["episode"])
    if facts["cure"] is not None:
        lines.append(_line("fix", facts["cure"]))
    if facts["turn"]["redacted_by"] is not None:
        lines.append(_line("redacted", f"{facts['turn']['redacted_by']}; {REDACTION_CURE}"))
    lines.append(Text(""))
    if facts["turn"]["dead_steps"]:
        steps = ", ".join(map(str, facts["turn"]["dead_steps"]))
        lines.append(_line("given back", f"it was trained in step {steps}, but that version is dead (`clawctl inspect policies`)"))
    if step is not None:
        lines.append(_line("step", ", ".join(f"{name} {_short(step[name])}" for name in _OF_STEP)))
        if step["correction"] is not None:  # None with a custom loss, and in older steps
            lines.append(_line("correction", ", ".join(f"{name} {value}" for name, value in step["correction"].items())))
    if numbers is None:
        if facts["turn"]["trained_in_step"] is not None:
            lines.append(Text("its numbers are no longer stored (train.keep_turn_records)", style="dim"))
        return lines
    end = numbers["policy_version_end"]
    version = f"{numbers['policy_version']}" + (f" to {end}" if end not in (None, numbers["policy_version"]) else "")
    lines += [
        _line("sampled by", f"version {version}, {numbers['staleness']} old at the step, temperature {numbers['temperature']:g}"),
        _line(
            "credit",
            f"reward {_short(numbers['reward'])}, baseline {_short(numbers['baseline'])}, credit {_short(numbers['credit'])}",
        ),
        _line("ratio", f"{_spread(numbers['ratio_quantiles'])} over {numbers['completion_tokens']} tokens"),
    ]
    if numbers["bounded"] not in (None, 1.0):
        lines.append(_line("bounded", f"its gradient was weighted by {numbers['bounded']:.3g} (train.turn_bound)"))
    if numbers["anchored"] not in (None, 1.0):
        lines.append(_line("anchored", f"weighted by {numbers['anchored']:.3g}: the policy answers this anchor differently"))
    for name, term in numbers["terms"].items():
        kind = "advantage" if "advantage_mean" in term else "divergence"
        masked = "" if term["masked_tokens"] is None else f", {term['masked_tokens']} tokens masked"
        share = f"weight {term['weight']:g} over {term['tokens_of_step']} tokens of the step"
        values = f"{kind} {_short(term[f'{kind}_mean'])} on average, {_spread(term[f'{kind}_quantiles'])}{masked}; {share}"
        lines.append(_line(f"term {name}", values))
    return lines


def _episode_lines(episode: dict[str, Any]) -> list[Text]:
    parts = "".join(f", {name} {_short(value)}" for name, value in episode["parts"].items())
    versions = f"version {episode['first_version']} to {episode['last_version']}"
    ended = f"{episode['ending']}{' (truncated)' if episode['truncated'] else ''}, reward {_short(episode['reward'])}{parts}"
    others = ", ".join(f"{attempt['attempt']}: {attempt['ending']} {_short(attempt['reward'])}" for attempt in episode["group"])
    counted = sum(attempt["status"] == "done" for attempt in episode["group"])
    lines = [
        _line(
            "episode", f"attempt {episode['attempt']} of {episode['attempts']} at {episode['task_id']} in {episode['environment']}"
        ),
        _line("ended", f"{ended}; {versions}"),
    ]
    if episode.get("hint") is None:  # practice has no rewards to compare
        spread = f"mean {_short(episode['group_mean'])}, std {_short(episode['group_std'])} over {counted} episodes"
        lines.append(_line("group", f"{others}; {spread}"))
    if episode["step_reward"] is not None:
        lines.append(_line("step reward", _short(episode["step_reward"])))
    if episode["log"]:
        lines.append(_line("verdict", episode["log"][-300:]))
    return lines


def _token_table(tokens: list[dict[str, Any]], width: int) -> Table:
    names = list(tokens[0]["terms"]) if tokens else []
    columns = [Column("token"), *(Column(heading, right=True) for heading in ("sampler", "policy", "ratio", "teacher", *names))]
    rows = []
    for token in tokens:
        cells = [_short(token[name]) for name in ("sampler", "policy", "ratio", "teacher")]
        terms = [_of_term(token["terms"][name]) for name in names]
        rows.append([one_line(repr(token["text"]), 20), *map(Text, (*cells, *terms))])
    return fitting("tokens", columns, rows, width)


def _of_term(term: dict[str, Any]) -> str:
    value = _short(term.get("advantage", term.get("divergence")))
    return value if term.get("acts", True) else f"({value})"


def _line(name: str, text: str) -> Text:
    return Text.assemble((f"{name}: ", "dim"), plain(text))


def _spread(values: list[float]) -> str:
    low, _, middle, _, high = values
    return f"{_short(low)} … {_short(middle)} … {_short(high)}"


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
