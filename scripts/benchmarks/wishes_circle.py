"""The training loop of `scripts/bench wishes` in one process: people talk, rules judge, the trainer learns, new weights answer.

Judging, admission, baselines, advantages, losses and the optimizer are clawctl's own code. Sampling with the trainer's weights
replaces serve and collect: each turn has exact ids and logprobs, and its conversation is known. No turn is stale, and keys do not
share steps.
"""

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
import yaml
from transformers import AutoModelForCausalLM

from clawctl.config import Recipe
from clawctl.config.train import kinds_with
from clawctl.inspect.wanted import Pulls
from clawctl.run.complaints import JudgedAnswer
from clawctl.run.rows import Turn, Verdict
from clawctl.run.shards import UNKNOWN
from clawctl.train.admission import Admission, TurnRefused
from clawctl.train.advantages.baselines import Baselines
from clawctl.train.changes import Changes
from clawctl.train.earlier_hints import EarlierHints
from clawctl.train.sample import Batch, Sample
from clawctl.trainers.local.ranks import Ranks
from clawctl.trainers.local.trainer import LocalTrainer
from scripts.benchmarks.wishes_sampling import Drawn, draw
from scripts.wishes.axes import AXES, is_correct, measure
from scripts.wishes.judge import judged
from scripts.wishes.people import Wisher, unmet
from scripts.wishes.problems import WordProblem, make_problems
from scripts.wishes.wording import Wants, hint

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "scripts/benchmarks/models/wishes"
RECIPE = ROOT / "scripts/benchmarks/recipes/wishes.yaml"
PEOPLE = 16  # concurrent sessions
Messages = list[dict[str, Any]]
Judging = Callable[[str, str], tuple[int, str | None]]


@dataclass(frozen=True, slots=True)
class Group:
    """People with the same wishes. `told` is their system message about who they are. `key` is their API key."""

    wants: Wants
    told: str | None = None
    key: str = "everybody"


@dataclass(frozen=True, slots=True)
class Measured:
    """Metrics of one version's answers to new problems."""

    satisfaction: list[float]  # for each group: the share of answers that meet all wishes
    correctness: float
    shares: dict[str, dict[str, float]]  # share of each value of each axis over all groups
    tokens: float  # mean length


@dataclass(slots=True)
class _Session:
    person: Wisher
    group: Group
    problem: WordProblem
    number: int
    messages: Messages
    turn: int = 0
    asked_at: float = 0.0  # number of earlier turns in this world
    last: str | None = None  # the previous turn
    first: str = ""  # first answer


class World:
    """One run: a policy, its users, and the turns that wait for a step."""

    def __init__(self, recipe: Recipe, seed: int, judge: Judging = judged) -> None:
        self.recipe, self.seed, self.judge, self.version = recipe, seed, judge, 0
        self.trainer = LocalTrainer(recipe, Ranks(0, 1, torch.device("cpu")))
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.verdicts: Counter[str] = Counter()
        model = self.trainer.resume(0, None, None)
        self._admission = Admission(self.recipe.train, model.texts, UNKNOWN)
        self._tokenizer = self.trainer.training.policy.tokenizer
        self._sampler: Any = AutoModelForCausalLM.from_pretrained(self.recipe.model_path, dtype=torch.float32).eval()
        self._baselines, self._sessions = Baselines(), list[_Session]()
        self._waiting: list[Sample] = []
        self._next, self._calls, self.requests = 0, 0, 0
        self.reactions: list[JudgedAnswer] = []  # next states
        self._changes, self._earlier = Changes(), EarlierHints(recipe.train.hints.earlier_hints)
        self.pulls: defaultdict[str, list[Pulls]] = defaultdict(list)  # pulls of the hints, by key
        self._keys: dict[str, str] = {}  # by turn

    def update(self, groups: Sequence[Group]) -> dict[str, Any]:
        """Let people talk until there are enough turns, then do a step. Returns the step's metrics."""
        while len(self._waiting) < self.recipe.train.batch_turns:
            while len(self._sessions) < PEOPLE:
                self._sessions.append(self._begin(groups[self._next % len(groups)]))
            self._talk()
        return self._step()

    def update_if_full(self) -> bool:
        """Do a step if there are enough turns. Returns whether there were."""
        full = len(self._waiting) >= self.recipe.train.batch_turns
        if full:
            self._step()
        return full

    def one_session_each(self, groups: Sequence[Group]) -> list[str]:
        """Run one session of each group to its end. Returns the first answers."""
        self._sessions = sessions = [self._begin(group) for group in groups]
        while self._sessions:
            self._talk()
        return [session.first for session in sessions]

    def _step(self) -> dict[str, Any]:
        config = self.recipe.train
        samples, self._waiting = self._waiting[: config.batch_turns], self._waiting[config.batch_turns :]
        self._changes.log_rises()
        began = time.monotonic()
        baselines = {sample.turn_id: self._baselines.of(sample.kind) for sample in samples}
        step = self.version + 1
        result = self.trainer.step(Batch(step, samples, parent=self.version, depth=step, baselines=baselines))
        if result.row is None:
            raise SystemExit(f"step {step}: {result.problem}")
        if config.rewards.baseline == "mean":
            self._baselines.update(samples)
        for turn_id, numbers in result.turns.items():
            if numbers.pulls:
                self.pulls[self._keys[turn_id]].append(numbers.pulls)
        self.version = step
        self._sampler.load_state_dict(self.trainer.training.policy.causal.state_dict())
        self.seconds["train"] += time.monotonic() - began
        return result.row

    def people_change(self) -> None:
        """End all sessions, because people's wishes have changed."""
        self._sessions.clear()

    def _talk(self) -> None:
        """Sample one answer in each session and let the people react."""
        began = time.monotonic()
        self._calls += 1
        answers = draw(self._sampler, self._tokenizer, [s.messages for s in self._sessions], self.seed * 10_007 + self._calls)
        self.seconds["answer"] += time.monotonic() - began
        going_on = []
        for session in self._sessions:
            session.asked_at, self.requests = float(self.requests), self.requests + 1
        for session, answer in zip(self._sessions, answers, strict=True):
            session.first = session.first or answer.text
            reaction = session.person.react(session.problem, answer.text, session.turn)
            if reaction.text is not None:
                self._judge(session, answer, reaction.text)
                session.messages = [
                    *session.messages,
                    {"role": "assistant", "content": answer.text},
                    {"role": "user", "content": reaction.text},
                ]
                session.turn += 1
                if not reaction.done:
                    going_on.append(session)
        self._sessions = going_on

    def _begin(self, group: Group) -> _Session:
        number, self._next = self._next, self._next + 1
        seed = self.seed * 1_000_003 + number
        person, problem = Wisher(group.wants, seed), self._problem(seed)
        system = [{"role": "system", "content": group.told}] if group.told else []
        return _Session(person, group, problem, number, [*system, {"role": "user", "content": person.open(problem)}])

    def _problem(self, seed: int) -> WordProblem:
        return make_problems(1, seed)[0]

    def answer(self, conversations: Sequence[Messages], salt: int) -> list[Drawn]:
        """Return the current version's answers for a measurement."""
        return draw(self._sampler, self._tokenizer, conversations, salt + self.seed * 31)

    def _judge(self, session: _Session, answer: Drawn, came_back: str) -> None:
        turn_id = f"{self.seed}-{session.number}-{session.turn}"
        score, said = self.judge(came_back, turn_id)
        self.verdicts[f"{score}{' hint' if said else ''}"] += 1
        if not answer.ended:
            return  # truncated answers are not trained
        turn = Turn(
            turn_id, str(session.number), session.last, session.turn, "main", "serve", session.problem.task_id, None,
            session.group.key, session.asked_at, session.messages, None, {"role": "assistant", "content": answer.text},
            [{"role": "user", "content": came_back}], answer.prompt_ids, answer.completion_ids, answer.logprobs, self.version,
            self.version, 1.0, 1.0, 0, "stop", None, None, True, None,
        )  # fmt: skip
        self._keys[turn_id] = turn.user
        if score:
            self.reactions.append(JudgedAnswer(turn_id, session.last, turn.user, turn.created_at, score < 0))
            self._changes.add(self.reactions[-1])
        session.last = turn_id
        verdict = Verdict(turn_id, float(score), [score], said, [said] if said else [], "wishes rules", None, None)
        earlier = self._earlier.before(turn, self._changes.since(turn.user))
        self._earlier.add(turn, verdict)
        try:
            self._waiting.append(self._admission.sample("live", turn, verdict, UNKNOWN, self.version, earlier))
        except TurnRefused as refused:
            self.verdicts[str(refused)] += 1

    def measure(self, groups: Sequence[Group], count: int) -> Measured:
        """Measure first answers to `count` problems of each group."""
        began = time.monotonic()
        problems = make_problems(count, self.seed, "eval")
        outcomes: dict[str, Counter[str]] = {axis: Counter() for axis in AXES}
        satisfaction, correct, tokens = [], 0, 0
        for index, group in enumerate(groups):
            system = [{"role": "system", "content": group.told}] if group.told else []
            opened = [Wisher(group.wants, self.seed * 1_000_003 + i).open(problem) for i, problem in enumerate(problems)]
            talks = [[*system, {"role": "user", "content": text}] for text in opened]
            answers = draw(self._sampler, self._tokenizer, talks, 7 + self.seed * 31 + index)
            satisfaction.append(sum(not unmet(group.wants, answer.text) for answer in answers) / count)
            correct += sum(is_correct(problem, answer.text) for problem, answer in zip(problems, answers, strict=True))
            tokens += sum(len(answer.completion_ids) for answer in answers)
            for answer in answers:
                for axis, value in measure(answer.text).items():
                    outcomes[axis][value or "unreadable"] += 1
        count_all = count * len(groups)
        shares = {axis: {value: n / count_all for value, n in sorted(seen.items())} for axis, seen in outcomes.items()}
        self.seconds["measure"] += time.monotonic() - began
        return Measured(satisfaction, correct / count_all, shares, tokens / count_all)


def moved(start: Mapping[str, Mapping[str, float]], now: Mapping[str, Mapping[str, float]], axis: str) -> float:
    """Return the total variation distance between the values of an axis before and now."""
    values = start[axis].keys() | now[axis].keys()
    return sum(abs(start[axis].get(value, 0.0) - now[axis].get(value, 0.0)) for value in values) / 2


def side_effect(start: Measured, now: Measured, spoken_of: Sequence[str]) -> float:
    """Return the mean change of the unmentioned axes."""
    others = [axis for axis in AXES if axis not in spoken_of]
    return sum(moved(start.shares, now.shares, axis) for axis in others) / len(others)


def recipe_of(changes: Mapping[str, Any], model: Path | None = None) -> Recipe:
    """Return recipes/wishes.yaml of the benchmarks with `changes` in `train`. The variable WISHES_MODEL selects another model."""
    model = model or Path(os.environ.get("WISHES_MODEL", MODEL))
    if not (model / "model.safetensors").exists():
        raise SystemExit(f"there is no model in {model}; make it with scripts/make-wishes-model (35 minutes on two idle cores)")
    sections = yaml.safe_load(RECIPE.read_text())
    method = changes.get("method", sections["train"]["method"])
    kept = {name: value for name, value in sections["train"].items() if method in (kinds_with(name, "method") or [method])}
    sections |= {"model": {**sections["model"], "path": str(model)}, "train": {**kept, **changes}}
    return Recipe.model_validate(sections)


def irrelevant_hint(came_back: str, seed: str) -> tuple[int, str | None]:
    """A control: the correct score with an irrelevant hint."""
    score, said = judged(came_back, seed)
    return score, hint({}, Random(seed)) if said else None


def random_verdict(came_back: str, seed: str) -> tuple[int, str | None]:
    """A control: random scores without hints."""
    return Random(f"control {seed}").choice((1, -1)), None
