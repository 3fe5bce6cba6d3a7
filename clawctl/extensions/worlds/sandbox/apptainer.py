"""Containers of apptainer. This kind has never been run. As with every kind, the first use in a process tries to break out."""

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from clawctl.config.environment import environment_of_program
from clawctl.errors import ClawError
from clawctl.extensions.worlds.sandbox.bubblewrap import end, package_place
from clawctl.extensions.worlds.sandbox.plan import INSIDE, INSIDE_TEXT, TOOLS, SandboxPlan, Started, mode_of
from clawctl.extensions.worlds.sandbox.seccomp import profile


@dataclass(frozen=True, slots=True)
class Apptainer:
    """`image` is a file (`image.sif`) or an address (`docker://python:3.12`), with Python 3.11 or newer at `/usr/bin/python3`."""

    image: str
    name: str = "apptainer"
    has_own_files: bool = True
    is_confined: bool = True

    def prepare(self) -> None:
        if shutil.which("apptainer") is None:
            raise ClawError("apptainer is not installed", "install apptainer, or use another kind of sandbox", 2)

    def python(self) -> str:
        return "/usr/bin/python3"

    def test_options(self) -> tuple[str, ...]:
        return ("-I",)

    def search_path(self) -> str:
        return f"{TOOLS}/bin:/usr/local/bin:/usr/bin:/bin"

    def variables(self) -> Mapping[str, str]:
        return {}

    @asynccontextmanager
    async def start(self, plan: SandboxPlan) -> AsyncIterator[Started]:
        limits = plan.limits
        with tempfile.TemporaryDirectory(prefix="clawctl-") as made:
            folder = Path(made)
            (folder / "seccomp.json").write_text(json.dumps(profile()))
            words = ["exec", "--containall", "--cleanenv", "--no-home", "--no-init", "--no-privs", "--pwd", "/"]
            words += ["--security", f"seccomp:{folder / 'seccomp.json'}"]
            words += [] if limits.network else ["--net", "--network", "none"]
            words += [
                "--memory",
                str(limits.memory),
                "--memory-swap",
                str(limits.memory),
                "--pids-limit",
                str(limits.processes + 2),
            ]
            for place in plan.writable:
                words += ["--scratch", place]
            packages = [package_place(name) for name in plan.packages]
            seen = {path: path for path in plan.see} | {str(place): f"{TOOLS}/site/{place.name}" for place in packages}
            for number, (path, content) in enumerate({**plan.fixed, INSIDE: INSIDE_TEXT}.items()):
                file = folder / str(number)
                file.write_bytes(content)
                file.chmod(mode_of(content))
                seen[str(file)] = path
            for source, target in seen.items():
                words += ["--bind", f"{source}:{target}:ro"]
            words += [] if plan.socket is None else ["--bind", f"{plan.socket}:/run/model.sock"]
            settings = plan.settings(1000 if os.geteuid() == 0 else None, limits_itself=True)
            process = await asyncio.create_subprocess_exec(
                "apptainer", *words, self.image, self.python(), "-I", "-S", INSIDE, settings,
                stdin=-1, stdout=-1, stderr=-1, start_new_session=True, env=environment_of_program(),
            )  # fmt: skip
            try:
                yield Started(process)
            finally:
                await asyncio.shield(end(process))

    def raise_if_refused(self, error: str) -> None:
        if "FATAL" in error or "ERROR" in error:
            raise ClawError(f"apptainer cannot make a sandbox here: {error}", "use another kind of sandbox")
