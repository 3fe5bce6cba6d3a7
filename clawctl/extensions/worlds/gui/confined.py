"""Executes Chromium in a sandbox: `python -m clawctl.extensions.worlds.gui.confined CHROMIUM ARGUMENTS…`.

Playwright starts this program in place of Chromium, and communicates with Chromium over descriptors 3 and 4. The browser runs as a
separate user. It sees the system's programs and folders in memory. It has no network: Playwright answers each request before it
leaves the browser. This sandbox replaces Chromium's own, which needs namespaces that sandboxed processes may not create.
"""

import os
import sys
from pathlib import Path

from clawctl.errors import ClawError
from clawctl.extensions.worlds.sandbox.bubblewrap import make_arguments, python
from clawctl.extensions.worlds.sandbox.plan import Limits, SandboxPlan

FOLDER = "/tmp/browser"
_DISK = 1 << 30
_SETTINGS = ("/etc/fonts", "/etc/chromium.d", "/etc/chromium")
_DISABLE = "--disable-features="  # Chromium obeys only the last of several, so they become one
_BECOME = """import os, sys
user = int(sys.argv[1])
if user:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
os.execv(sys.argv[2], sys.argv[2:])
"""


def command(chromium: str, arguments: list[str]) -> tuple[list[str], list[int]]:
    """The command line of bubblewrap, and the descriptors that it names. Raises ClawError."""
    program = Path(chromium).resolve()
    see = [name for name in _SETTINGS if Path(name).is_dir()]
    if not program.is_relative_to("/usr"):
        see.append(str(program.parent))
    room = make_arguments(SandboxPlan(FOLDER, Limits(disk=_DISK), see=tuple(see)))
    room.arguments.remove("--as-pid-1")  # bubblewrap then reaps the orphaned processes of Chromium
    # Playwright's own folder belongs to another user.
    kept = [text for text in arguments if not text.startswith(("--user-data-dir", _DISABLE))]
    kept.append(_DISABLE + ",".join(text.removeprefix(_DISABLE) for text in arguments if text.startswith(_DISABLE)))
    variables = ["--setenv", "HOME", FOLDER, "--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin", "--setenv", "LANG", "C.UTF-8"]
    inside = [python(), "-I", "-S", "-c", _BECOME, str(room.user or 0), str(program), f"--user-data-dir={FOLDER}/profile", *kept]
    return [*room.arguments, *variables, "--", *inside], room.descriptors


def main() -> None:
    try:
        arguments, descriptors = command(sys.argv[1], sys.argv[2:])
    except ClawError as error:
        sys.exit(f"{error.problem}; {error.fix}")
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    os.execv(arguments[0], arguments)


if __name__ == "__main__":
    main()
