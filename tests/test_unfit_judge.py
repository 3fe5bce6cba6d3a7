"""A model that cannot judge, as the judge of its own run: served by the real engine, asked over HTTP, and shown everywhere."""

from pathlib import Path

import yaml

from clawctl.config import load_recipe
from clawctl.judge.worker import judge
from clawctl.run.directory import published
from clawctl.run.fitness import UNFIT, read_fitness
from clawctl.run.shards import read_verdicts
from tests import forked
from tests.judge.made_turns import reply, shard
from tests.serve.served import Server, recipe_data


def doctor(server: Server, *options: str) -> str:
    done = forked.run("doctor", "--run", server.run.root, *options, timeout_s=240)
    return next(line[8:] for line in done.stdout.splitlines() if line[8:].startswith("judge:"))


def test_a_random_model_is_not_used_as_its_own_judge_and_health_and_doctor_say_so(tmp_path: Path, model_path: Path) -> None:
    with Server(tmp_path / "run", model_path) as server:
        assert server.health()["judge"] is None
        assert doctor(server).startswith("judge: not checked")
        settings = {**recipe_data(model_path), "judge": {"api_key": "key", "max_tokens": 16}}
        server.run.recipe.write_text(yaml.safe_dump(settings))
        shard(server.run, "1-a", [reply("thanks"), reply("👎")])
        judge(server.run, load_recipe(server.run.recipe), once=True)
        (path,) = published(server.run.verdicts, ".parquet")
        assert [(verdict.reward, verdict.reason) for verdict in read_verdicts(path)] == [(None, UNFIT), (-1.0, None)]
        shown = server.health()["judge"]
        assert (shown["used"], shown["model"], shown["of"]) == (False, "tiny@0", 12)
        assert doctor(server) == f"judge: {shown['line']}"
        checked_at = shown["checked_at"]
        assert doctor(server, "--judge").startswith("judge: tiny@0 is not used as the judge: ")
        fitness = read_fitness(server.run)
        assert fitness is not None
        assert fitness.checked_at > checked_at, "it was asked again"
        assert server.stop() == 0
