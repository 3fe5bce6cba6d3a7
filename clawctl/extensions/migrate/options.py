"""Options of other systems, which are translated, or refused with a hint at clawctl's equivalent."""

from collections.abc import Sequence

from clawctl.config import LoraConfig
from clawctl.config.explaining import Option


def _name(own: str) -> Option:
    """An option that differs in its name only."""
    return Option(lambda value: (own, value), f"use {own}")


def _option(name: str) -> Option:
    """An option that clawctl passes to the environment."""
    return Option(lambda value: ("--option", f"{name}={value}"), f"use --option {name}=VALUE")


def _recipe(key: str) -> Option:
    return _refused(f"set {key} in the recipe")


def _refused(instead: str, takes_value: bool = True) -> Option:
    return Option(lambda value: None, instead, takes_value)


def _flag(instead: str, *words: str) -> Option:
    """A switch that is always on, or that is equivalent to `words`."""
    return Option(lambda value: words, instead, takes_value=False)


def _engine(value: str) -> Sequence[str] | None:
    engines = {"vllm": "vllm", "hf": "transformers", "transformers": "transformers"}
    return ("--engine", engines[value]) if value in engines else None


def _no_resume(value: str) -> Sequence[str] | None:
    return () if value in ("", "auto", "latest", "checkpoint-latest", "true") else None


_RUN = _refused("all stages share one run directory: --run FOLDER")
_MODEL_OF_RUN = _refused("the run sets the model: use serve --model, or model.path in the recipe")
_ENVIRONMENT = _refused("environments are played by `clawctl collect --env NAME`")
_SCREENSHOTS = Option(
    lambda value: ("--option", "screenshots=true") if value == "playwright" else None,
    "screenshots are made by Playwright: use --option screenshots=true",
)
_GENERATE = _refused("a sampler of your own is used by `clawctl play ROLLOUT --generate file.py:name`")
_CALIBRATE = _refused("use `clawctl calibrate`")
_NO_ENDPOINT = _refused("collect reads the captures of clawctl serve --intercept: --run FOLDER")
_ALWAYS = _flag("it is always on")
_ENGINES = "--engine vllm starts vLLM; for SGLang, start it yourself and pass --upstream URL --upstream-kind sglang"
_GOES_ON = "training always resumes from the newest checkpoint of --run; clawctl policies rollback goes back"

_PLAYING = {
    "--parallel-envs": _name("--parallel"),
    "--num-envs": _name("--parallel"),
    "--num-parallel-envs": _name("--parallel"),
    "--num-tasks": _name("--tasks"),
    "--num-rollouts-per-prompt": _name("--attempts"),
    "--n-samples-per-prompt": _name("--attempts"),
    "--max-steps": _option("max_turns"),
    "--max-turns": _option("max_turns"),
    "--tools-config": _option("tools"),
    "--swe-bench-path": _option("path"),
    "--screenshot-backend": _SCREENSHOTS,
    "--use-screenshots": _flag("use --option screenshots=true", "--option", "screenshots=true"),
}
_FOLDERS = {f"--{name}": _RUN for name in ("rl-buffer-dir", "output-dir", "record-dir", "data-dir", "input-dir", "rollout-dir")}

OPTIONS: dict[str, dict[str, Option]] = {
    "serve": {
        "--backend": Option(_engine, _ENGINES),
        "--gpu-ids": _name("--gpus"),
        "--rollout-gpus": _name("--gpus"),
        "--proxy-host": _name("--host"),
        "--proxy-port": _name("--port"),
        "--model-name": _name("--model"),
        "--api-key": _refused("other users can see a key on the command line: set CLAWCTL_API_KEY, or serve.api_key in the recipe"),
        "--served-model-name": _recipe("model.name"),
        "--max-concurrent-sessions": _refused("the number of sessions is not limited; serve.limits in the recipe limits requests"),
        "--lora": _refused("train --lora creates an adapter, and serve loads it automatically", takes_value=False),
        "--env": _ENVIRONMENT,
    },
    "collect": {
        "--api-endpoint": _NO_ENDPOINT,
        "--endpoint": _NO_ENDPOINT,
        "--session-aware": _ALWAYS,
        "--multi-turn": _ALWAYS,
        "--max-concurrent-sessions": _refused("the number of sessions is not limited; serve.limits in the recipe limits requests"),
        "--session-timeout": _recipe("collect.session_timeout_s"),
        "--task-type": _name("--env"),
        "--import": _refused("use `clawctl import FILE`"),
        "--export": _refused("use `clawctl export FILE`"),
        "--rating": _refused("import with `clawctl import FILE --rating N`; rate served turns over HTTP"),
        **dict.fromkeys(("--custom-rollout", "--rollout-function-path"), _name("--env")),
        **dict.fromkeys(("--custom-generate", "--custom-generate-function-path"), _GENERATE),
        **_PLAYING,
    },
    "play": {**_PLAYING},
    "judge": {
        "--judge-model": _name("--model"),
        "--judge-endpoint": _name("--endpoint"),
        "--api-endpoint": _name("--endpoint"),
        "--num-judges": _name("--votes"),
        "--prm-m": _name("--votes"),
        "--consensus-threshold": _name("--threshold"),
        "--prm-path": _name("--prm"),
        "--prm-model-path": _name("--prm"),
        "--hint-extraction-model": _recipe("judge.hint_model"),
        **dict.fromkeys(("--calibrate", "--calibrate-ratings", "--attacks"), _CALIBRATE),
        "--prm-temperature": _recipe("judge.temperature"),
        "--prm-max-tokens": _recipe("judge.max_tokens"),
        "--api-key": _refused("other users can see a key on the command line: set judge.api_key in the recipe"),
        "--env": _ENVIRONMENT,
    },
    "train": {
        "--lora": Option(
            lambda value: ("--lora-rank", str(LoraConfig().rank)),
            "--lora-rank N sets the rank",
            takes_value=False,
            unless=("--lora-rank", "--lora-r"),
        ),
        "--lora-r": _name("--lora-rank"),
        "--gpu-ids": _name("--gpus"),
        "--train-gpus": _name("--gpus"),
        "--learning-rate": _name("--lr"),
        "--resume": Option(_no_resume, _GOES_ON),
        "--resume-from-checkpoint": Option(_no_resume, _GOES_ON),
        "--batch-size": _name("--batch-turns"),
        "--rollout-batch-size": _name("--batch-turns"),
        "--global-batch-size": _name("--batch-turns"),
        "--model-path": _MODEL_OF_RUN,
        "--model": _MODEL_OF_RUN,
        "--model-name": _MODEL_OF_RUN,
        "--nproc-per-node": _refused("use --gpus 2,3 or --processes N, or torchrun --nproc-per-node N -m clawctl train"),
        "--num-gpus": _refused("use --gpus with GPU numbers, as in 0,1, or with all"),
        "--env": _ENVIRONMENT,
    },
    "eval": {
        "--model-path": _refused(
            "use --version N to measure a version of the run, or eval.endpoint in the recipe for another server"
        ),
        "--env": _ENVIRONMENT,
    },
    "up": {"--recipe": _refused("pass the recipe as an argument: clawctl up RECIPE"), "--env": _ENVIRONMENT},
    "inspect sessions": {"--dir": _name("--run")},
}
for _command in ("serve", "collect", "judge", "train", "eval", "up"):
    OPTIONS[_command] = {**_FOLDERS, **OPTIONS[_command]}
