"""`clawctl serve`."""

import shlex
from typing import Annotated

import typer

from clawctl.cli.opening import open_stage
from clawctl.cli.options import DEFAULT_RUN, LogLevel, RecipeOption, RunOption
from clawctl.config import Recipe
from clawctl.config.environment import from_environment, gpus_from_environment, show_gpus
from clawctl.config.variables import gpu_numbers
from clawctl.errors import ClawError


def serve(
    run: RunOption = DEFAULT_RUN,
    recipe: RecipeOption = None,
    intercept: Annotated[
        bool,
        typer.Option("--intercept", "--enable-rl-intercept", help="Capture conversations. Unset: no conversations are stored."),
    ] = False,
    model: Annotated[
        str | None,
        typer.Option("--model", "--model-path", help="Hugging Face name or directory, GGUF file, or smollm2 (default crafts)."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (default 127.0.0.1).")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on (default 30000; 0: any free port).")] = None,
    pin: Annotated[int | None, typer.Option(help="Serve this policy version instead of policies/LIVE.")] = None,
    engine: Annotated[
        str | None, typer.Option(help="transformers (embedded, default), vllm, file.py:start or an installed engine.")
    ] = None,
    engine_args: Annotated[
        str | None, typer.Option(help="Additional arguments for vLLM's server, as one string with shell quoting.")
    ] = None,
    upstream: Annotated[
        list[str] | None,
        typer.Option(help="Base URL of a running server to use instead of an engine. Repeat it for a pool of vLLM servers."),
    ] = None,
    upstream_kind: Annotated[str | None, typer.Option(help="Kind of upstream server: vllm, sglang or openai (default).")] = None,
    upstream_key: Annotated[str | None, typer.Option(envvar="CLAWCTL_UPSTREAM_KEY", help="API key of the upstream server.")] = None,
    gpus: Annotated[str | None, typer.Option(help="GPUs of this machine to serve on, such as 0,1.")] = None,
    log_level: LogLevel = "info",
) -> None:
    """Serve a model and capture its conversations. The APIs are OpenAI Chat Completions, OpenAI Responses and Anthropic Messages.
    The server follows policies/LIVE.

    Example: `clawctl serve --model smollm2 --intercept --run runs/mine`
    """
    settings = {
        "model.path": model or from_environment("MODEL"),
        "serve.host": host or from_environment("HOST"),
        "serve.port": port if port is not None else from_environment("PORT"),
        "serve.gpus": gpu_numbers("--gpus", f"{gpus},") if gpus is not None else gpus_from_environment("ROLLOUT_GPUS"),
        "serve.engine": engine,
        "serve.engine_args": _words(engine_args) if engine_args is not None else None,
        "serve.upstream.url": upstream[0] if upstream else None,
        "serve.upstream.others": upstream[1:] if upstream else None,
        "serve.upstream.kind": upstream_kind,
        "serve.upstream.api_key": upstream_key if upstream else None,
    }
    from clawctl.privacy.finders import check_finders
    from clawctl.run.model_binding import first_attempt
    from clawctl.serve.gateway import check_engine
    from clawctl.serve.gateway import serve as work

    def check(resolved: Recipe) -> None:
        check_engine(resolved)
        if intercept:
            check_finders(resolved.privacy)

    with first_attempt(run):
        opened, resolved = open_stage("serve", run, recipe, settings, log_level, create=True, check=check)
        if resolved.serve.gpus is not None:
            show_gpus(resolved.serve.gpus)
        work(opened, resolved, intercept, pin)


def _words(arguments: str) -> list[str]:
    try:
        return shlex.split(arguments)
    except ValueError as error:
        raise ClawError(f"--engine-args cannot be read: {str(error).lower()}", "use shell quoting", 2) from error
