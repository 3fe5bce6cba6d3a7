"""`clawctl inspect episodes`: the episodes that were played, with their endings and rewards."""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.text import Text

from clawctl.errors import ClawError, Damaged
from clawctl.inspect.tables import cut_to, problem_lines, since
from clawctl.printing import Column, answers, counted, fitting, one_line, print_json
from clawctl.run.checksums import read_sealed
from clawctl.run.directory import RunDir
from clawctl.run.episodes import EpisodeSpec
from clawctl.run.feedback import parse_feedback
from clawctl.run.lines import Lines, Rewritten
from clawctl.run.outcomes import SessionOutcome

OVERDUE_S = 120.0  # this long after its deadline, an episode without an outcome counts as killed

_PLANS = (
    Column("environment"),
    Column("version", drop_order=4),
    Column("split", drop_order=3),
    Column("seed", right=True, drop_order=5),
    Column("tasks", right=True),
    Column("episodes", right=True),
    Column("running", right=True, drop_order=1),
    Column("mean reward", right=True),
    Column("pass@k", right=True),
    Column("endings", drop_order=2),
    Column("last", right=True),
)
_EPISODES = (
    Column("episode"),
    Column("task", drop_order=1),
    Column("attempt", right=True),
    Column("ending"),
    Column("reward", right=True),
    Column("seconds", right=True, drop_order=2),
    Column("worker", drop_order=3),
    Column("began", right=True),
)


@dataclass(slots=True)
class Episode:
    """One episode: its line in `episodes/`, and its outcome, if any."""

    spec: EpisodeSpec
    outcome: SessionOutcome | None = None

    def ending(self, now: float) -> str:
        """The ending: a name in `clawctl.run.endings`, or "running"."""
        if self.outcome is not None:
            return self.outcome.ending
        return "running" if now <= self.spec.deadline + OVERDUE_S else "killed"


@dataclass(slots=True)
class PlayedPlan:
    """The episodes of one plan: one environment, one seed, and a fixed number of attempts at each task."""

    plan: str
    environment: str
    version: str
    split: str
    seed: int
    attempts: int
    tasks: int  # tasks with at least one episode
    episodes: int
    running: int
    endings: dict[str, int] = field(default_factory=dict)
    mean_reward: float | None = None  # over the episodes that have a reward
    pass_at_k: float | None = None  # over the tasks whose attempts are all settled: the share with a reward above 0
    last: float = 0.0  # unix seconds


class EpisodeReader:
    """Reads the episodes of a run repeatedly. Each `look` reads only new lines."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._begin()

    def _begin(self) -> None:
        self._found: dict[str, Episode] = {}  # by session
        self._early: dict[str, SessionOutcome] = {}  # outcomes whose episode's first line has not been read yet
        self._specs, self._outcomes = Lines(self._run.episodes), Lines(self._run.feedback)
        self.damaged = 0

    def poll(self) -> list[Episode]:
        """All episodes, ordered by their start."""
        try:
            self._read()
        except Rewritten:  # `forget` or retention rewrote the files
            self._begin()
            self._read()
        return sorted(self._found.values(), key=lambda episode: episode.spec.created_at)

    def _read(self) -> None:
        for path in self._outcomes.grown():
            for _, line in self._outcomes.read(path):
                if b'"plan"' in line:
                    self._take_outcome(line)
        for path in self._specs.grown():
            for _, line in self._specs.read(path):
                self._take_spec(line)

    def _take_spec(self, line: bytes) -> None:
        try:
            row = read_sealed(line)
            spec = EpisodeSpec(**{name: row[name] for name in EpisodeSpec.__dataclass_fields__})
        except (Damaged, ValueError, TypeError, KeyError):
            self.damaged += 1
            return
        self._found[spec.session_id] = Episode(spec, self._early.pop(spec.session_id, None))

    def _take_outcome(self, line: bytes) -> None:
        try:
            outcome = parse_feedback(line)
        except (ValueError, TypeError):
            return  # `inspect health` counts damaged lines
        if not isinstance(outcome, SessionOutcome) or outcome.episode is None or outcome.turn_ids is not None:
            return
        session_id = str(outcome.episode["session_id"])
        if (episode := self._found.get(session_id)) is not None:
            episode.outcome = outcome
        else:
            self._early[session_id] = outcome


def plans_of(episodes: Iterable[Episode], now: float) -> list[PlayedPlan]:
    """The plans of these episodes. The plan played last comes last."""
    of_plan: dict[str, list[Episode]] = {}
    for episode in episodes:
        of_plan.setdefault(episode.spec.plan, []).append(episode)
    return sorted((_plan(episodes_of_plan, now) for episodes_of_plan in of_plan.values()), key=lambda plan: plan.last)


def _plan(episodes: list[Episode], now: float) -> PlayedPlan:
    spec, endings = episodes[0].spec, Counter(episode.ending(now) for episode in episodes)
    settled: dict[int, dict[int, float]] = {}
    for episode in episodes:
        outcome = episode.outcome
        if outcome is not None and outcome.settled:
            earned = settled.setdefault(episode.spec.number, {})
            earned[episode.spec.attempt] = 0.0 if outcome.reward is None else outcome.reward
    rewards = [e.outcome.reward for e in episodes if e.outcome is not None and e.outcome.reward is not None]
    whole = [earned for earned in settled.values() if len(earned) == spec.attempts]
    times = [e.spec.created_at if e.outcome is None else e.outcome.created_at for e in episodes]
    return PlayedPlan(
        spec.plan, spec.environment, spec.version, spec.split, spec.seed, spec.attempts, len({e.spec.number for e in episodes}),
        len(episodes), endings.pop("running", 0), dict(endings.most_common()), sum(rewards) / len(rewards) if rewards else None,
        sum(any(reward > 0 for reward in earned.values()) for earned in whole) / len(whole) if whole else None, max(times),
    )  # fmt: skip


def show_episodes(run: RunDir, plan: str | None, as_json: bool) -> None:
    """Print all plans, or the episodes of one plan. Raises ClawError if there is no such plan."""
    reader, now = EpisodeReader(run), time.time()
    all_episodes = reader.poll()
    plans = plans_of(all_episodes, now)
    problems = [f"episodes/: {counted(reader.damaged, 'damaged line')}"] if reader.damaged else []
    if plan is not None:
        chosen = [episode for episode in all_episodes if episode.spec.plan.startswith(plan)]
        if not chosen:
            raise ClawError(f"no episode belongs to the plan {plan!r}", "`clawctl inspect episodes --json` lists the plans")
        _show_plan(chosen, now, as_json, problems)
        return
    if as_json:
        print_json({"plans": [asdict(plan) for plan in plans], "problems": problems})
        return
    page, (shown, left_out) = answers(), cut_to(plans)
    if not plans:
        page.print("no episode has been played; `clawctl collect --env NAME` plays them", *problem_lines(problems), sep="\n")
        return
    title = f"{counted(len(plans), 'plan')}, {counted(len(all_episodes), 'episode')}"
    page.print(fitting(title, _PLANS, [_plan_cells(plan) for plan in shown], page.width), *left_out, sep="\n")
    page.print(Text(f"clawctl inspect episodes --plan {shown[-1].plan} lists the episodes of the last one", style="dim"))
    page.print(*problem_lines(problems), sep="\n", end="")


def _show_plan(episodes: list[Episode], now: float, as_json: bool, problems: list[str]) -> None:
    if as_json:
        rows = [{**asdict(episode.spec), "ending": episode.ending(now), "outcome": _outcome(episode)} for episode in episodes]
        print_json({"episodes": rows, "problems": problems})
        return
    page, (shown, left_out) = answers(), cut_to(episodes)
    title = counted(len(episodes), "episode")
    page.print(fitting(title, _EPISODES, [_cells(episode, now) for episode in shown], page.width), *left_out, sep="\n")
    page.print(*problem_lines(problems), sep="\n", end="")


def _outcome(episode: Episode) -> dict[str, Any] | None:
    if episode.outcome is None:
        return None
    outcome = asdict(episode.outcome)
    return {name: outcome[name] for name in ("status", "reward", "parts", "steps", "truncated", "log", "timings", "settled")}


def _plan_cells(plan: PlayedPlan) -> list[Text]:
    reward = "" if plan.mean_reward is None else f"{plan.mean_reward:+.2f}"
    passed = "" if plan.pass_at_k is None else f"{plan.pass_at_k:.2f} (k={plan.attempts})"
    endings = ", ".join(f"{count} {name}" for name, count in plan.endings.items())
    return [
        one_line(plan.environment, 40), one_line(plan.version, 16), Text(plan.split), Text(str(plan.seed)), Text(str(plan.tasks)),
        Text(str(plan.episodes)), Text(str(plan.running)), Text(reward), Text(passed), Text(endings),
        Text(since(plan.last, time.time())),
    ]  # fmt: skip


def _cells(episode: Episode, now: float) -> list[Text]:
    spec, outcome = episode.spec, episode.outcome
    reward = "" if outcome is None or outcome.reward is None else f"{outcome.reward:+.2f}"
    seconds = "" if outcome is None or "play" not in outcome.timings else f"{outcome.timings['play']:.1f}"
    return [
        one_line(spec.session_id, 40), one_line(spec.task_id, 40), Text(f"{spec.attempt}.{spec.attempt_try}"),
        Text(episode.ending(now)), Text(reward), Text(seconds), one_line(spec.worker, 30), Text(since(spec.created_at, now)),
    ]  # fmt: skip
