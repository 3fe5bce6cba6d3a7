"""A recipe with a scripted judge, the judge's answers and the resulting verdicts."""

from clawctl.config import Recipe
from clawctl.run.directory import RunDir, published
from clawctl.run.rows import Verdict
from clawctl.run.shards import read_verdicts


def recipe(url: str | None, **settings: object) -> Recipe:
    """The scripts of these tests read their own words only, so most of them would fail the planted turns."""
    return Recipe.model_validate(
        {
            "judge": {
                "endpoint": url,
                "model": "scripted",
                "api_key": "k",
                "timeout_s": 5.0,
                "fitness": "skip",
                "notes": False,
                **settings,
            }
        }
    )


def verdicts_of(run: RunDir) -> list[Verdict]:
    return [verdict for path in published(run.verdicts, ".parquet") for verdict in read_verdicts(path)]


def by_words(text: str, number: int) -> str:
    """Good for "thanks", bad with a hint for "bold", otherwise neutral."""
    if "thanks" in text:
        return "It is accepted. \\boxed{1}"
    return "\\boxed{-1} [HINT_START]Write plain sentences.[HINT_END]" if "bold" in text else "\\boxed{0}"
