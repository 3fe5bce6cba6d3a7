"""Loads one taskset and plays its tasks. It runs where verifiers is installed, writes no trace files and uploads nothing.

Each line of stdin is a request and each line of stdout an answer, both as JSON. The first line holds the settings of `load`. This
file imports verifiers and the standard library only, because its interpreter may differ from clawctl's.
"""

import asyncio
import contextlib
import importlib
import json
import os
import sys
import traceback
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ANSWERS = os.fdopen(os.dup(1), "w", encoding="utf-8")
KEY = "CLAWCTL_EPISODE_KEY"


def main() -> None:
    os.dup2(2, 1)  # the taskset's own prints go to stderr, because stdout carries answers
    environment, settings = None, dict[str, Any]()
    try:
        import verifiers.v1 as vf

        settings = json.loads(sys.stdin.readline())
        environment = load(vf, settings)
        answer({"ready": describe(vf, environment)})
    except BaseException as error:
        answer({"problem": f"{type(error).__name__}: {error}", "version": installed(), "is_legacy": is_legacy(settings)})
        raise
    asyncio.run(serve(vf, environment))


def installed() -> str | None:
    try:
        return version("verifiers")
    except PackageNotFoundError:
        return None


def is_legacy(settings: dict[str, Any]) -> bool:
    """Whether the package has `load_environment`, as before verifiers 0.4, and no taskset."""
    module = sys.modules.get(find_taskset(settings.get("taskset", "")))
    with contextlib.suppress(Exception):  # the package's own code
        module = module or importlib.import_module(find_taskset(settings["taskset"]).replace("-", "_"))
    return hasattr(module, "load_environment") and not any(hasattr(module, name) for name in ("load_taskset", "Taskset"))


def load(vf: Any, settings: dict[str, Any]) -> Any:
    """The environment for `settings`: `taskset` (an id or a path), its `options`, `harness`, `runtime` and `max_turns`."""
    name = find_taskset(settings["taskset"])
    roles = [field for field, info in vf.env_config_type(name).model_fields.items() if isinstance(info.default, vf.AgentConfig)]
    seat: dict[str, Any] = {"runtime": {"type": settings["runtime"]}, "max_turns": settings["max_turns"]}
    if settings["harness"] is not None:
        seat["harness"] = {"id": settings["harness"]}
    config = vf.resolve_env_config({"taskset": {**settings["options"], "id": name}, **dict.fromkeys(roles, seat)})
    return vf.load_environment(config)


def find_taskset(name: str) -> str:
    """The id of a taskset. If `name` is a path (a package, the folder around it, or a file), add it to the module path."""
    path = Path(name).expanduser()
    if not path.exists() or ("/" not in name and not name.endswith(".py")):
        return name
    path = path.resolve()
    inner = path / path.name.replace("-", "_")
    sys.path.insert(0, str(path if inner.is_dir() else path.parent))
    return path.stem.replace("-", "_")


def describe(vf: Any, environment: Any) -> dict[str, Any]:
    harnesses = [harness for harness in environment._harnesses.values() if harness.EXECUTES_CODE]
    return {"executes_code": sorted({harness.config.id for harness in harnesses}), "version": installed()}


async def serve(vf: Any, environment: Any) -> None:
    """Answer requests until stdin ends. Episodes run concurrently."""
    tasks: list[Any] = []
    running = set()
    async with environment.serving():
        while line := await asyncio.to_thread(sys.stdin.readline):
            request = json.loads(line)
            if request["do"] == "tasks":
                rows = environment.taskset if environment.taskset.bounded else environment.taskset.take(request["limit"])
                tasks = list(rows)
                answer({"id": request["id"], "tasks": [{"key": task.key, "name": name_of(task)} for task in tasks]})
            else:
                episode = asyncio.create_task(play(vf, environment, tasks[request["number"]], request))
                running.add(episode)
                episode.add_done_callback(running.discard)


def name_of(task: Any) -> str:
    return str(task.data.name or task.data.id or "")


async def play(vf: Any, environment: Any, task: Any, request: dict[str, Any]) -> None:
    os.environ[KEY] = request["api_key"]
    client = vf.EvalClientConfig(base_url=request["url"], api_key_var=KEY, headers=request["headers"])
    context = vf.ModelContext(request["model"], client, vf.SamplingConfig(**request["sampling"]))
    try:
        async with asyncio.timeout(request["seconds"]):
            episode = await environment.run_episode(task, context)
        answer({"id": request["id"], **outcome(episode, request["max_turns"])})
    except TimeoutError:
        answer({"id": request["id"], "ending": "time"})
    except Exception:  # noqa: BLE001 - the taskset's own code
        answer({"id": request["id"], "ending": "environment", "log": traceback.format_exc()[-3000:]})


def outcome(episode: Any, max_turns: int | None) -> dict[str, Any]:
    """An episode's result: the mean over its agents, and each agent's own reward and calls. Errors have types, which clawctl maps
    to endings."""
    traces = [trace for trace in episode.traces if getattr(trace.agent, "trainable", True)] or list(episode.traces)
    errors = [*episode.errors, *(error for trace in traces if not trace.ok for error in trace.errors)]
    message = {
        "errors": [{"type": error.type, "status": error.status_code, "text": str(error.message)[-1500:]} for error in errors],
        "timed_out": episode.is_timeout or any(trace.is_timeout for trace in traces),
        "stopped": [trace.stop_condition for trace in traces],
        "calls": sum(len(trace.calls) for trace in traces),
    }
    if not traces or any(reward is None for trace in traces for reward in trace.rewards.values()):
        return message
    parts: dict[str, list[float]] = {}
    for trace in traces:
        for name, value in [*((name, reward.value) for name, reward in trace.rewards.items()), *trace.metrics.items()]:
            if value is not None:
                parts.setdefault(name, []).append(float(value))
    agents = agents_of(traces)
    if len(agents) > 1 and all(agent["turns"] for agent in agents.values()):  # else the mean is the reward of every turn
        message["agents"] = agents
    message["reward"] = sum(float(trace.reward) for trace in traces) / len(traces)
    message["parts"] = {name: sum(values) / len(values) for name, values in parts.items()}
    return message


def agents_of(traces: list[Any]) -> dict[str, Any]:
    """Each agent's reward, and the ids of the answers to its calls. An agent with several traces gets their mean."""
    agents: dict[str, dict[str, Any]] = {}
    for trace in traces:
        agent = agents.setdefault(getattr(trace, "agent_name", None) or "agent", {"rewards": [], "turns": []})
        agent["rewards"].append(float(trace.reward))
        agent["turns"] += [turn_id for call in trace.calls if (turn_id := response_id(call)) is not None]
    return {
        name: {"reward": sum(agent["rewards"]) / len(agent["rewards"]), "turns": agent["turns"]} for name, agent in agents.items()
    }


def response_id(call: Any) -> str | None:
    response = getattr(call, "response", None)
    name = response.get("id") if isinstance(response, dict) else getattr(response, "id", None)
    return None if name is None else str(name)


def answer(said: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        ANSWERS.write(json.dumps(said, default=str) + "\n")
        ANSWERS.flush()


if __name__ == "__main__":
    main()
