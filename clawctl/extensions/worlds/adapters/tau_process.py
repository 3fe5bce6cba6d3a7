"""Plays tasks of tau2-bench with its own agent, tools, simulated user and evaluation. It runs where the package tau2 is installed.

Each line of stdin is a request and each line of stdout an answer, both as JSON. The first line names the domain. This file imports
tau2 and the standard library only, because its interpreter may differ from clawctl's.
"""

import contextlib
import json
import os
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import packages_distributions, version
from typing import Any

ANSWERS = os.fdopen(os.dup(1), "w", encoding="utf-8")
AT_ONCE = 64  # episodes, which mostly wait for models
_WRITING = threading.Lock()


class CallFailed(Exception):
    """A model did not answer. The message begins with its role."""


def main() -> None:
    os.dup2(2, 1)  # tau2's own prints go to stderr, because stdout carries answers
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would be downloaded
    try:
        domain = json.loads(sys.stdin.readline())["domain"]
        from tau2.registry import registry

        if domain not in registry.get_task_sets():
            raise ValueError(f"tau2 has no domain {domain}; choose from {', '.join(registry.get_domains())}")
        tasks = registry.get_tasks_loader(domain)()
        splits = splits() if (splits := registry.get_task_splits_loader(domain)) is not None else {}
        held_out = [task.id in splits["test"] for task in tasks] if {"train", "test"} <= set(splits) else None
        packages = [
            f"{name} {version(name)}" for name in packages_distributions()["tau2"]
        ]  # it has been published under several names
        answer({"version": ", ".join(packages), "tasks": [task.id for task in tasks], "held_out": held_out})
    except BaseException as error:
        answer({"problem": str(error), "is_missing": isinstance(error, ModuleNotFoundError)})
        raise
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for line in sys.stdin:
            request = json.loads(line)
            pool.submit(play, domain, tasks[request["number"]], request)


def play(domain: str, task: Any, request: dict[str, Any]) -> None:
    try:
        said = episode(domain, task, request)
    except CallFailed as failed:
        said = {"errors": [{"type": "ProviderError", "text": str(failed)}], "reward": 0.0}
    except Exception:  # noqa: BLE001 tau2's own code
        said = {"errors": [{"type": "TaskError", "text": traceback.format_exc()[-3000:]}]}
    answer({"id": request["id"], **said})


def episode(domain: str, task: Any, request: dict[str, Any]) -> dict[str, Any]:
    from tau2.agent.llm_agent import LLMAgent
    from tau2.data_model.tasks import RewardType
    from tau2.evaluator import evaluator_nl_assertions as judged
    from tau2.evaluator.evaluator import EvaluationType, evaluate_simulation
    from tau2.orchestrator.orchestrator import Orchestrator
    from tau2.registry import registry
    from tau2.user.user_simulator import UserSimulator

    environment = registry.get_env_constructor(domain)()
    try:
        tools_of_user = environment.get_user_tools() or None
    except ValueError:  # a domain in which the user has none
        tools_of_user = None
    agent = speaking(LLMAgent, "the policy", environment.get_tools(), environment.get_policy(), **model(request["policy"]))
    user = speaking(UserSimulator, "the user", tools_of_user, str(task.user_scenario), **model(request["judge"]))
    orchestrator = Orchestrator(domain, agent, user, environment, task, max_steps=request["max_steps"])
    try:
        simulation = orchestrator.run()
    except UnreadableAnswer:  # neither a text nor a call with JSON: the policy's own failure
        return {"reward": 0.0, "stopped": ["agent_error"]}
    judged.DEFAULT_LLM_NL_ASSERTIONS, judged.DEFAULT_LLM_NL_ASSERTIONS_ARGS = model(request["judge"]).values()
    basis = task.evaluation_criteria.reward_basis if task.evaluation_criteria else ()
    kind = EvaluationType.ALL_WITH_NL_ASSERTIONS if RewardType.NL_ASSERTION in basis else EvaluationType.ALL
    result = evaluate_simulation(simulation, task, kind, False, domain)
    parts = {str(name.value).lower(): value for name, value in (result.reward_breakdown or {}).items()}
    stopped = str(getattr(simulation.termination_reason, "value", simulation.termination_reason))
    return {"reward": result.reward, "parts": parts, "stopped": ["max_turns" if stopped == "max_steps" else stopped]}


class UnreadableAnswer(Exception):
    """An answer of the policy that tau2 cannot read."""


def speaking(kind: Any, role: str, *arguments: Any, **options: Any) -> Any:
    """A participant of tau2 whose failures name its role."""

    class Speaking(kind):
        def generate_next_message(self, *given: Any, **named: Any) -> Any:
            try:
                message, state = super().generate_next_message(*given, **named)
                message.validate()
            except Exception as error:
                is_call = type(error).__module__.startswith(("litellm", "openai", "httpx"))
                if is_call or role != "the policy":
                    raise CallFailed(f"{role}: {type(error).__name__}: {error}") from error
                raise UnreadableAnswer(f"{type(error).__name__}: {error}") from error
            return message, state

    return Speaking(*arguments, **options)


def model(endpoint: dict[str, Any]) -> dict[str, Any]:
    """The arguments of tau2 that name a model, for litellm."""
    sent = {"extra_headers": endpoint["headers"], "extra_body": endpoint["sampling"], "max_retries": 0}
    return {"llm": f"openai/{endpoint['model']}", "llm_args": {"api_base": endpoint["url"], "api_key": endpoint["api_key"], **sent}}


def answer(said: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError), _WRITING:
        ANSWERS.write(json.dumps(said, default=str) + "\n")
        ANSWERS.flush()


if __name__ == "__main__":
    main()
