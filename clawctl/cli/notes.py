"""`clawctl notes …`."""

from typing import Annotated, Any, cast

import typer

from clawctl.cli.options import DEFAULT_RUN, AsJson, RecipeOption, RunOption
from clawctl.run.directory import open_run

app = typer.Typer(no_args_is_help=True, help="Manage the notes of a run: what a person wants, said once.")

Key = Annotated[str, typer.Option("--key", help="Name of the API key whose notes these are.")]
Id = Annotated[str, typer.Argument(help="The note's id, as `clawctl notes list` shows it.")]
When = Annotated[str | None, typer.Option(help="When the note applies, in words for you.")]
Words = Annotated[str | None, typer.Option(help="Show it only with requests that contain one of these words, separated by commas.")]


@app.command(name="list")
def list_notes(run: RunOption = DEFAULT_RUN, key: Key = "", as_json: AsJson = False) -> None:
    """List the notes of all keys, or of one, with their states.

    Example: `clawctl notes list --run runs/mine`
    """
    from clawctl.inspect.notes import show_notes

    show_notes(open_run(run, create=False), key, as_json)


@app.command(name="show")
def show_note(note: Id, run: RunOption = DEFAULT_RUN, key: Key = "default", as_json: AsJson = False) -> None:
    """Show one note with everything that is known about it.

    Example: `clawctl notes show answer-in-one-short-sentence --run runs/mine`
    """
    from clawctl.inspect.notes import show_note as work

    work(open_run(run, create=False), key, note, as_json)


@app.command(name="add")
def add_note(
    text: Annotated[str, typer.Argument(help="What you want or tell, in one sentence: `Answer in one short sentence.`")],
    run: RunOption = DEFAULT_RUN,
    recipe: RecipeOption = None,
    key: Key = "default",
    kind: Annotated[str, typer.Option(help="wish: how answers should be. fact: something to know.")] = "wish",
    when: When = None,
    words: Words = None,
) -> None:
    """Add a note. A running server shows it to the model from the next request.

    Example: `clawctl notes add "Answer in Spanish."`
    """
    from clawctl.config import load_recipe
    from clawctl.errors import ClawError
    from clawctl.privacy.redaction import redactor_of
    from clawctl.run.directory import recipe_file
    from clawctl.run.keys import has_key
    from clawctl.run.notes import BadNote, Kind
    from clawctl.run.notes import add_note as work

    if kind not in ("wish", "fact"):
        raise ClawError(f"--kind {kind} is not known", "write wish or fact", 2)
    opened = open_run(run, create=False)
    if not has_key(opened, key):
        raise ClawError(f"there is no key named {key!r}", "clawctl keys list shows the names", 2)
    clean = redactor_of(load_recipe(recipe_file(opened.root, recipe), {}).privacy).text
    try:
        added = work(opened, key, text, clean, said=text, kind=cast(Kind, kind), when=when, words=_split(words))
    except BadNote as error:
        raise ClawError(f"this cannot be a note: {error}", "write one sentence", 2) from error
    typer.echo(f"{added.note.id}: {added.note.text}")
    for old in added.superseded:
        typer.echo(f"{old} is superseded: it says otherwise; `clawctl notes edit {old} --state new` puts it back", err=True)


@app.command(name="edit")
def edit_note(
    note: Id,
    run: RunOption = DEFAULT_RUN,
    key: Key = "default",
    text: Annotated[str | None, typer.Option(help="Another sentence. It has to be practised anew.")] = None,
    when: When = None,
    words: Words = None,
    state: Annotated[str | None, typer.Option(help="new, prompted, practised, learned, retracted or another state.")] = None,
) -> None:
    """Change a note. Its file may as well be edited by hand: `RUN/notes/KEY/ID.md`.

    Example: `clawctl notes edit answer-in-one-short-sentence --text "Answer in French." --run runs/mine`
    """
    from typing import get_args

    from clawctl.config import load_recipe
    from clawctl.errors import ClawError
    from clawctl.privacy.redaction import redactor_of
    from clawctl.run.directory import recipe_file
    from clawctl.run.notes import BadNote, State, change_note, tidied

    if state is not None and state not in get_args(State):
        raise ClawError(f"--state {state} is not known", f"write one of: {', '.join(get_args(State))}", 2)
    changes: dict[str, Any] = {"when": when, "words": None if words is None else _split(words), "state": state, "text": text}
    changes = {name: value for name, value in changes.items() if value is not None}
    if text is not None:
        changes = {"state": "new", "learned": None, "steps": 0, **changes, "text": " ".join(text.split())}
    if not changes:
        raise ClawError("nothing to change", "give --text, --when, --words or --state", 2)
    if state is not None:
        changes |= {"reason": None, **({} if state == "learned" else {"learned": None})}
    opened = open_run(run, create=False)
    try:
        changes = tidied(changes, redactor_of(load_recipe(recipe_file(opened.root), {}).privacy).text)
    except BadNote as error:
        raise ClawError(f"this cannot be a note: {error}", "write one sentence", 2) from error
    typer.echo(change_note(opened, key, note, **changes).text)


@app.command(name="retire")
def retire_note(note: Id, run: RunOption = DEFAULT_RUN, key: Key = "default") -> None:
    """End a note: it is neither shown to the model nor practised. Its file stays.

    Example: `clawctl notes retire answer-in-one-short-sentence --run runs/mine`
    """
    from clawctl.run.notes import change_note

    change_note(open_run(run, create=False), key, note, state="retracted", reason="retired by hand")
    typer.echo(f"{note} is retired")


@app.command(name="forget")
def forget_note(note: Id, run: RunOption = DEFAULT_RUN, key: Key = "default") -> None:
    """Delete a note's file.

    Example: `clawctl notes forget answer-in-one-short-sentence --run runs/mine`
    """
    from clawctl.run.notes import remove_note

    remove_note(open_run(run, create=False), key, note)
    typer.echo(f"{note} is deleted")


def _split(words: str | None) -> tuple[str, ...]:
    return tuple(word for piece in (words or "").split(",") if (word := piece.strip()))
