"""What a Dockerfile does, where no image is built: folder, files, commands and variables. Everything else needs an image.

The base image has to be a plain system. Commands run later, in a sandbox that shows this machine's programs and has no network.
"""

import glob
import json
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from clawctl.errors import ClawError
from clawctl.extensions.worlds.checking import NeedsImage
from clawctl.extensions.worlds.sandbox.tars import folder_files

SHARED = ("/", "/tmp", "/tests", "/usr", "/etc")  # folders that cannot be the working folder
_LINE = re.compile(r"^\s*([A-Za-z]+)\s+(.*)$", re.DOTALL)
_HEREDOC = re.compile(r"<<-?\s*[\"']?(\w+)[\"']?")
_NOTHING_TO_DO = ("USER", "CMD", "ENTRYPOINT", "LABEL", "EXPOSE", "STOPSIGNAL", "MAINTAINER", "SHELL", "HEALTHCHECK")
_PLAIN_IMAGE = re.compile(
    r"((docker\.io/)?(library/)?(ubuntu|debian|python|alpine|bash)|ghcr\.io/laude-institute/t-bench/(ubuntu|debian|python)[\w.-]*)"
    r"([:@]|$)"
)
_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"", re.DOTALL)
_INSTALLS = re.compile(  # at the beginning of a command
    r"[\s({!]*(?:(?:then|do|else|sudo|env|\w+=\S*|/?[\w/]*python[\d.]*\s+-m)\s+)*(?:/[\w/.-]*/)?"
    r"(?:(apt-get|apt)\b.*?\binstall\b(.*)|(?:apk|yum|dnf|pip[\d.]*|uv|npm|pnpm|yarn|gem|cargo|go|conda)\s.*?\b(?:install|add)\b"
    r"|git\s+clone\b|(?:curl|wget)\s.*?https?://)",
    re.DOTALL,
)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


@dataclass(slots=True)
class Initial:
    """The state in which an agent begins."""

    folder: str = "/app"
    seed: dict[str, bytes] = field(default_factory=dict)  # the files of the folder
    setup: list[str] = field(default_factory=list)  # commands
    variables: dict[str, str] = field(default_factory=dict)


def is_plain(image: str) -> bool:
    """Whether the image is a system without programs of a task."""
    return _PLAIN_IMAGE.match(image) is not None


def read_dockerfile(task: Path, context: Path) -> Initial:
    """The effects of the Dockerfile in the folder `context` of a task. Raises ClawError, and NeedsImage if they need an image."""
    initial, file = Initial(), context / "Dockerfile"
    if not file.exists():
        return initial
    lines = _last_stage(list(_instructions(file.read_text(encoding="utf-8"))))
    if not lines or "FROM" not in (word for word, _, _ in lines):
        raise ClawError(f"{file} names no image", "begin it with FROM, such as FROM ubuntu", 2)
    given, at = dict[str, str](), "/"
    for number, (word, arguments, _) in enumerate(lines):  # first the folder, which decides what can be copied
        if word in ("ARG", "ENV"):
            given |= _assigned(arguments, given)
        elif word == "WORKDIR":
            at = f"{at.rstrip('/')}/{filled}" if not (filled := _filled(arguments, given)).startswith("/") else filled
            lines[number] = (word, at, "")
            initial.folder = at.rstrip("/") or "/"
    at = initial.folder if all(word != "WORKDIR" for word, _, _ in lines) else "/"
    for word, arguments, document in lines:
        if word == "FROM":
            if not is_plain(arguments.split()[0] if not arguments.startswith("--") else arguments.split()[1]):
                raise needs_image(task, f"FROM {arguments}")
        elif word == "WORKDIR":
            at = arguments
        elif word == "ENV":
            initial.variables |= _assigned(arguments, given)
        elif word in ("COPY", "ADD"):
            initial.seed |= _copied(task, context, _filled(arguments, given), document, (at, initial.folder))
        elif word == "RUN":
            initial.setup += _command(task, arguments, document, (at, initial.folder))
        elif word != "ARG" and word not in _NOTHING_TO_DO:
            raise needs_image(task, f"{word} {arguments}")
    if initial.folder in SHARED:
        raise needs_image(task, f"WORKDIR {initial.folder}")
    return initial


def _last_stage(lines: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """The stage that becomes the image, after what stands before the first one. Other stages only lend it files (COPY --from)."""
    stages = [number for number, (word, _, _) in enumerate(lines) if word == "FROM"]
    return [*lines[: stages[0]], *lines[stages[-1] :]] if stages else lines


def _instructions(text: str) -> Iterator[tuple[str, str, str]]:
    """Each instruction with its arguments, and the document that follows it (`RUN <<EOF`)."""
    lines = iter(re.sub(r"\\\n", " ", re.sub(r"(?m)^\s*#.*\n?", "", text)).splitlines())
    for line in lines:
        match = _LINE.match(line)
        if match is None:
            continue
        document = list[str]()
        end = _HEREDOC.search(match[2]) if match[1].upper() in ("RUN", "COPY", "ADD") else None
        if end is not None:
            document = [inner for inner in iter(lambda: next(lines, end[1]), end[1])]  # noqa: B023, C416 read to the end
        yield match[1].upper(), match[2].strip(), "\n".join(document) + "\n" * bool(document)


def _assigned(arguments: str, given: Mapping[str, str]) -> dict[str, str]:
    """The variables of ENV and ARG: `A=1 B=2`, or `A some text`. One whose value is not known here is left out."""
    name, _, rest = arguments.partition(" ")
    words = shlex.split(arguments) if "=" in name else [f"{name}={rest.strip()}"]
    pairs = {key: _filled(value, given) for key, equals, value in (word.partition("=") for word in words) if equals}
    return {key: value for key, value in pairs.items() if "$" not in value}


def _filled(text: str, given: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda match: given.get(match[1] or match[2], match[0]), text)


def _command(task: Path, arguments: str, document: str, folders: tuple[str, str]) -> list[str]:
    at, folder = folders
    words = _json_words(arguments)
    command = shlex.join(words) if words else re.sub(r"^(--[\w=,/.-]+\s+)+", "", arguments)
    if missing := _not_here(document if command.startswith("<<") else command):
        raise needs_image(task, f"RUN installs {missing}")
    if document:
        command = document if command.startswith("<<") else f"{command}\n{document}{_HEREDOC.search(command)[1]}"  # type: ignore[index]
    return [command if at == folder else f"mkdir -p {shlex.quote(at)} && cd {shlex.quote(at)} && {{ {command}\n}}"]


def _json_words(arguments: str) -> list[str]:
    """The words of `["a", "b"]`."""
    try:
        return [str(word) for word in json.loads(arguments)] if arguments.startswith("[") else []
    except ValueError:
        return []


def _not_here(commands: str) -> str | None:
    """What a command installs that is not on this machine. Without a network, it could not. Quoted texts are no commands."""
    for part in re.finditer(r"[^&|;\n]+", _QUOTED.sub(lambda quoted: "_" * len(quoted[0]), commands)):
        match = _INSTALLS.match(part[0])
        if match is None:
            continue
        if match[1] is None:
            return commands[part.start() : part.end()].strip()[:80]
        for name in (name.partition("=")[0] for name in match[2].split() if not name.startswith("-")):
            if not Path("/usr/share/doc", name).exists() and shutil.which(name) is None:
                return name
    return None


def _copied(task: Path, context: Path, arguments: str, document: str, folders: tuple[str, str]) -> dict[str, bytes]:
    """The files that COPY or ADD puts into the working folder, by their path below it."""
    at, folder = folders
    words = _json_words(arguments) or shlex.split(arguments)
    *sources, target = (word for word in words if not word.startswith("--") or word.startswith("--from"))
    if any(source.startswith(("--from", "http://", "https://", "git@")) for source in sources):
        raise needs_image(task, f"COPY {arguments}")
    whole = target if target.startswith("/") else f"{at.rstrip('/')}/{target.removeprefix('./')}"
    if whole.rstrip("/.") != folder and not whole.startswith(f"{folder}/"):
        raise needs_image(task, f"COPY to {whole}, outside of {folder}")
    inner = whole.removeprefix(folder).strip("/").removesuffix("/.").strip(".") if whole.rstrip("/.") != folder else ""
    if document:
        return {inner: document.encode()}
    files: dict[str, bytes] = {}
    for source in sources:
        paths = [Path(name) for name in sorted(glob.glob(str(context / source)))]
        if not paths or not all(path.resolve().is_relative_to(context.resolve()) for path in paths):
            raise ClawError(f"the task in {task} copies {source}, which is not in {context.name}/", "repair its Dockerfile", 2)
        for path in paths:
            if path.is_dir():
                files |= {f"{inner}/{name}".strip("/"): text for name, text in folder_files(path).items() if name != "Dockerfile"}
            else:
                is_name = inner and not target.endswith("/") and len(sources) == len(paths) == 1
                files[inner if is_name else f"{inner}/{path.name}".strip("/")] = path.read_bytes()
    return files


def needs_image(task: Path, what: str) -> NeedsImage:
    name = next((name for name in ("podman", "docker") if shutil.which(name)), None)
    cure = f"play it in a container (--option sandbox={name or 'podman'}{'' if name else ', once it is installed'})"
    return NeedsImage(f"the task in {task} needs an image of its own ({what})", cure, 2)
