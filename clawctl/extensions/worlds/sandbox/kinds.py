"""The option `sandbox` of an environment, which selects the kind of sandbox."""

import shutil
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from clawctl.config.section import Section
from clawctl.errors import ClawError
from clawctl.extensions.worlds.sandbox.bubblewrap import Bubblewrap
from clawctl.extensions.worlds.sandbox.containers import Container
from clawctl.extensions.worlds.sandbox.plan import SandboxKind
from clawctl.extensions.worlds.sandbox.subprocesses import GIVEN_UP, Subprocess


class BubblewrapConfig(Section):
    """The default: this machine's programs, read-only."""

    kind: Literal["bubblewrap"]

    def make(self) -> SandboxKind:
        return Bubblewrap()


class ContainerConfig(Section):
    kind: Literal["podman", "docker"]
    image: str | None = None
    """Its name, with bash and Python 3.11 or newer. Unset: the image of the task, or this machine's programs."""

    def make(self) -> SandboxKind:
        return Container(self.kind, self.image)


class SubprocessConfig(Section):
    kind: Literal["subprocess"]
    without_isolation: Literal[True]
    """Must be true: the commands of the agent may do whatever your user may."""

    def make(self) -> SandboxKind:
        return Subprocess()


_Any = Annotated[BubblewrapConfig | ContainerConfig | SubprocessConfig, Field(discriminator="kind")]
_READER: TypeAdapter[_Any] = TypeAdapter(_Any)
_CURE = "use bubblewrap, podman, docker or {kind: podman, image: NAME}"


def read_kind(given: str | Mapping[str, Any] | None) -> SandboxKind:
    """Make and prepare the kind for `"podman"` or `{"kind": "podman", "image": "python:3.12"}`. Raises ClawError (exit code 2)."""
    wanted = {"kind": given or "bubblewrap"} if given is None or isinstance(given, str) else dict(given)
    if wanted.get("kind") == "subprocess" and wanted.get("without_isolation") is not True:
        cure = "use another kind of sandbox, or accept this with --option 'sandbox={kind: subprocess, without_isolation: true}'"
        raise ClawError(f"sandbox: subprocess is not a sandbox: {GIVEN_UP.format(user='of clawctl')}", cure, 2)
    try:
        kind = _READER.validate_python(wanted).make()
    except ValidationError as error:
        first = error.errors()[0]
        option = ".".join(str(part) for part in ("sandbox", *first["loc"][1:]))
        raise ClawError(f"the option {option}: {first['msg']}", _CURE, 2) from error
    kind.prepare()
    return kind


def testable_kinds() -> list[SandboxKind]:
    """The kinds that `clawctl doctor` can try on this machine: always bubblewrap, and containers whose program is installed."""
    containers = [Container(name) for name in ("podman", "docker") if shutil.which(name) is not None]
    return [Bubblewrap(), *containers]
