"""Plain processes in a temporary folder. Their resources are limited, but they are not isolated."""

import asyncio
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from clawctl.errors import ClawError
from clawctl.extensions.worlds.sandbox import bubblewrap
from clawctl.extensions.worlds.sandbox.plan import INSIDE, INSIDE_TEXT, TOOLS, SandboxPlan, Started, mode_of

log = logging.getLogger("play")

GIVEN_UP = (
    "commands of the agent run without a sandbox, as the user {user}: they can read and change all files of this user, the run "
    "directory and its keys included; they have the network; they can end this user's processes, leave processes behind, and "
    "fill the disk; and they can change what computes their verdict"
)


class Subprocess:
    """Each sandbox is a folder that contains `/app`, `/tmp` and so on. Paths in clawctl's own commands are translated."""

    name = "subprocess"
    has_own_files = False
    is_confined = False

    def __init__(self) -> None:
        self._is_told = False

    def prepare(self) -> None:
        if not self._is_told:
            log.warning("sandbox subprocess: %s", GIVEN_UP.format(user=os.geteuid()))
        self._is_told = True

    def python(self) -> str:
        return bubblewrap.python()

    def test_options(self) -> tuple[str, ...]:
        return ("-I", "-S")

    def search_path(self) -> str:
        return bubblewrap.search_path()

    def variables(self) -> Mapping[str, str]:
        return {}

    @asynccontextmanager
    async def start(self, plan: SandboxPlan) -> AsyncIterator[Started]:
        if plan.see or plan.socket is not None:
            problem = "the options harness and see limit what the agent can read and reach, but a subprocess has no limits"
            raise ClawError(problem, "use another kind of sandbox, or leave them out", 2)
        self.prepare()
        with tempfile.TemporaryDirectory(prefix="clawctl-", ignore_cleanup_errors=True) as folder:
            root = Path(folder)
            for writable in plan.writable:
                (root / writable.lstrip("/")).mkdir(parents=True)
            for path, content in {**plan.fixed, INSIDE: INSIDE_TEXT}.items():
                file = root / path.lstrip("/")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
                file.chmod(mode_of(content))
            for name in plan.packages:
                package = bubblewrap.package_place(name)
                link = root / TOOLS.lstrip("/") / "site" / package.name
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(package)
            process = await asyncio.create_subprocess_exec(
                self.python(), "-I", "-S", f"{root}{INSIDE}", plan.settings(None, root=folder),
                stdin=-1, stdout=-1, stderr=-1, start_new_session=True, env={},
            )  # fmt: skip
            try:
                yield Started(process, folder)
            finally:
                assert process.stdin is not None
                process.stdin.close()  # process 1 then ends its commands and itself
                try:
                    async with asyncio.timeout(10.0):
                        await asyncio.shield(process.wait())
                finally:
                    await asyncio.shield(bubblewrap.end(process))

    def raise_if_refused(self, error: str) -> None:
        pass
