"""`clawctl import` and `clawctl export`: turns from a file and to a file."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from clawctl.cli.opening import open_stage
from clawctl.cli.options import DEFAULT_RUN, AsJson, LogLevel, NumSamples, RecipeOption, RunOption
from clawctl.config import load_recipe
from clawctl.errors import ClawError
from clawctl.run.directory import recipe_file

Form = Literal["peft", "merged", "gguf"]


def import_turns(
    file: Annotated[Path, typer.Argument(help="JSON Lines; `clawctl docs data` describes the formats. May be gzip.")],
    run: RunOption = DEFAULT_RUN,
    recipe: RecipeOption = None,
    rating: Annotated[float | None, typer.Option(help="Rating (-1 to 1) for turns without one.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show which turns would be trained, and why others would not. Writes nothing.")
    ] = False,
    num_samples: NumSamples = 10,
    as_json: AsJson = False,
    log_level: LogLevel = "info",
) -> None:
    """Publish the turns in a file, once. A second import of the same file changes nothing.

    Example: `clawctl import chats.jsonl --dry-run --run runs/mine`
    """
    if dry_run:
        from clawctl.collect.dry_run import dry_run as show

        return show(None, load_recipe(recipe_file(run, recipe)), file, rating, num_samples, as_json)
    opened, resolved = open_stage("collect", run, recipe, {}, log_level, create=True)
    from clawctl.collect.imports import import_text

    import_text(opened, resolved.privacy, file, rating, as_json)


def export_turns(
    file: Annotated[Path, typer.Argument(help="The file to write (JSON Lines); with --adapter, a new folder.")],
    run: RunOption = DEFAULT_RUN,
    recipe: RecipeOption = None,
    adapter: Annotated[
        Form | None,
        typer.Option(help="Write what was learned instead: an adapter for peft, a merged model, or a GGUF file for llama.cpp."),
    ] = None,
    version: Annotated[str | None, typer.Option(help="With --adapter: the version, 3 or anna@3. Unset: the live one.")] = None,
    ollama: Annotated[bool, typer.Option("--ollama", help="With --adapter gguf: write a Modelfile as well.")] = False,
    as_json: AsJson = False,
    log_level: LogLevel = "info",
) -> None:
    """Write all published turns to a file, one session per line. With --adapter, write one version's weights for other
    programs: they are loaded again, and their log-probabilities compared.

    Example: `clawctl export turns.jsonl --run runs/mine`
    """
    opened, resolved = open_stage("collect", run, recipe, {}, log_level)
    if adapter is not None:
        from clawctl.run.exported_weights import export_weights

        typer.echo(export_weights(opened, resolved, version, adapter, file, ollama))
        return
    if version is not None or ollama:
        raise ClawError("--version and --ollama are about weights", "name a form with --adapter, such as --adapter merged", 2)
    from clawctl.collect.exports import export_text

    export_text(opened, file, as_json)
