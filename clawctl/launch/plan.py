"""One plan of memory for all stages of a recipe on one box, before anything starts: `clawctl up --estimate`.

Each stage states its needs (`clawctl/serve/memory.py`, `TrainingBackend.needs`). The plan adds them up on each GPU and on the host,
and compares the sums with what is free there.
"""

from dataclasses import dataclass

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.memory import GIB, ONCE, PROCESS, Box, Needs
from clawctl.serve.memory import serving_gpus, serving_needs
from clawctl.train.launch import backend_of

_SMALL_STAGES = ("collect", "judge", "play", "eval", "practice")


@dataclass(frozen=True, slots=True)
class StageMemory:
    """What one stage needs in one memory."""

    stage: str
    gpu: int | None  # None: the host
    parts: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    shares: tuple[StageMemory, ...]
    box: Box
    notes: tuple[str, ...]  # what is not counted, or not trained
    stage_problems: tuple[str, ...]
    short: int  # bytes that stages miss within their own limits

    def need(self, gpu: int | None) -> int:
        return sum(share.total for share in self.shares if share.gpu == gpu)

    def free(self, gpu: int | None) -> int | None:
        return self.box.host if gpu is None else self.box.free.get(gpu, 0)

    @property
    def memories(self) -> list[int | None]:
        """The GPUs that the recipe uses, and the host as None."""
        return [*sorted({share.gpu for share in self.shares if share.gpu is not None}), None]

    @property
    def problems(self) -> list[str]:
        """Why the recipe does not fit; empty if it does."""
        problems = list(self.stage_problems)
        for gpu in self.memories:
            need, free = self.need(gpu), self.free(gpu)
            if free is not None and need > free:
                where = "the host" if gpu is None else f"GPU {gpu}"
                absent = gpu is not None and gpu not in self.box.free
                have = "which this machine does not have" if absent else f"where {free / GIB:.1f} are free"
                problems.append(f"{where} needs {need / GIB:.1f} GiB, {have}")
        return problems

    def lines(self) -> list[str]:
        """The plan for the user: each memory with its stages and their parts."""
        alike: dict[str, list[int | None]] = {}  # GPUs with the same contents
        for gpu in self.memories:
            free, need = self.free(gpu), self.need(gpu)
            state = "" if free is None else f" of {free / GIB:.1f} free: {'fits' if need <= free else 'does NOT fit'}"
            lines = [f": {need / GIB:.1f} GiB{state}"]
            for share in (share for share in self.shares if share.gpu == gpu):
                lines.append(f"  {share.stage:<8}{share.total / GIB:7.1f} GiB")
                lines += [f"{size / GIB:17.2f}  {what}" for what, size in share.parts.items()]
            alike.setdefault("\n".join(lines), []).append(gpu)
        headed = [f"{_names(gpus)}{text}" for text, gpus in alike.items()]
        return [*headed, *self.notes, *(f"NOT possible: {problem}" for problem in self.stage_problems)]

    def check(self) -> None:
        """Raises ClawError (exit code 2) if the recipe does not fit."""
        if self.problems:
            cure = "choose a smaller model, or let `clawctl up --estimate RECIPE --fit` choose settings that fit"
            raise ClawError("; ".join(self.problems), cure, 2)


def _names(gpus: list[int | None]) -> str:
    if gpus == [None]:
        return "host"
    return f"GPU {gpus[0]}" if len(gpus) == 1 else f"each of the GPUs {', '.join(map(str, gpus))}"


def gpus_of(recipe: Recipe) -> set[int]:
    """The GPUs that the recipe uses if the machine has any."""
    gpus = set(serving_gpus(recipe)) if "serve" in recipe.up.stages else set()
    return gpus | (set(recipe.train.gpus or [0]) if "train" in recipe.up.stages else set())


def plan_memory(recipe: Recipe, box: Box) -> MemoryPlan:
    """The plan for the stages of `up.stages`. Raises ClawError if a stage cannot say what it needs."""
    shares, problems, notes, short = list[StageMemory](), list[str](), list[str](), list[int]()

    def add(stage: str, gpus: list[int], needs: Needs) -> None:
        memories = [(gpu, needs.device) for gpu in gpus] + [(None, needs.host if gpus else needs.device | needs.host)]
        counted = {share.gpu for share in shares if ONCE in share.parts}
        for memory, parts in memories:
            left = {what: size for what, size in parts.items() if what != ONCE or memory not in counted}
            shares.append(StageMemory(stage, memory, left))
        short.append(needs.short)
        problems.extend([needs.problem] if needs.problem is not None else [])
        notes.extend([f"{stage}: {needs.note}"] if needs.note is not None else [])

    if "serve" in recipe.up.stages:
        gpus = serving_gpus(recipe) if box.free else []
        add("serve", gpus, serving_needs(recipe, box.total.get(gpus[0], 0) if gpus else None))
    if "train" in recipe.up.stages:
        gpus = (recipe.train.gpus or [0]) if box.free else []
        add("train", gpus, backend_of(recipe).needs(recipe, len(gpus)))
    shares += [StageMemory(stage, None, {"process": PROCESS // 4}) for stage in _SMALL_STAGES if stage in recipe.up.stages]
    if recipe.judge.endpoint is not None:
        notes.append(f"The judge at {recipe.judge.endpoint} is not counted: keep it on other cards.")
    return MemoryPlan(tuple(shares), box, tuple(notes), tuple(problems), sum(short))
