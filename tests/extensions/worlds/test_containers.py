"""Tasks with their own image, in a container. The image contains this machine's programs, so no registry is needed."""

import asyncio
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from clawctl.errors import ClawError
from clawctl.extensions.worlds.sandbox import Limits, open_sandbox
from clawctl.extensions.worlds.sandbox.containers import run_or_raise
from clawctl.extensions.worlds.sandbox.kinds import read_kind
from clawctl.extensions.worlds.terminal.environment import Terminal, in_image, solve
from clawctl.extensions.worlds.terminal.harbor import read_task, read_tasks

PROGRAMS = "bash sh cat ls grep mkdir rm chmod sleep head tail tr cp mv touch env true"
IMAGE = "localhost/clawctl-tests:4"


@pytest.fixture(scope="module", params=["podman", "docker"])
def program(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    asyncio.run(skip_unless_it_works(name))
    return name


@pytest.fixture(scope="module")
def image(program: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image with bash and Python, a program and a package of its own, and files in /work."""
    python = shutil.which("python3", path="/usr/bin")
    if python is None or subprocess.run([python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"], check=False).returncode:
        pytest.skip("the system's Python is missing, or older than 3.11")
    if subprocess.run([program, "image", "inspect", IMAGE], capture_output=True, check=False).returncode:
        changes = ("--change", "ENV COLOUR=green", "--change", "WORKDIR /work")
        run_or_raise(program, "import", *changes, str(packed(tmp_path_factory, python)), IMAGE)
    return IMAGE


async def skip_unless_it_works(program: str) -> None:
    try:
        async with open_sandbox(limits=Limits(kind=read_kind(program))):
            pass
    except ClawError as error:
        pytest.skip(error.problem)


def packed(tmp_path_factory: pytest.TempPathFactory, python: str) -> Path:
    programs = [shutil.which(name, path="/usr/bin:/bin") or name for name in PROGRAMS.split()] + [python]
    files = {Path(name) for name in programs} | {Path(name).resolve() for name in programs}
    for program in (*files, *Path(python).resolve().parent.parent.glob("lib/python3.1*/lib-dynload/*.so")):
        listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout.split()
        files |= {Path(word) for word in listed if word.startswith("/")}
    home = tmp_path_factory.mktemp("image")
    contents = {"work/start.txt": "from the image\n", "usr/bin/colour": "#!/bin/bash\necho colour $COLOUR\n"}
    contents["usr/lib/python3/dist-packages/inventory.py"] = "SHELVES = 3\n"
    with tarfile.open(home / "image.tar", "w") as tar:
        for root in (Path("/bin"), Path("/lib"), Path("/lib64"), Path("/sbin")):
            if root.is_symlink():
                tar.add(root, recursive=False)
        tar.dereference = True
        for file in sorted(files):
            tar.add(file, str(file.parent.resolve() / file.name))
        version = Path(python).resolve().name
        needed = {"collections", "ctypes", "encodings", "importlib", "json", "lib-dynload", "re"}
        library = Path(f"/usr/lib/{version}")
        for file in (*library.glob("*.py"), *(file for name in needed for file in library.glob(f"{name}/**/*.*"))):
            if "__pycache__" not in file.parts:
                tar.add(file)
        for name, text in contents.items():
            path = home / "file"
            path.write_text(text)
            path.chmod(0o755)
            tar.add(path, name)
    return home / "image.tar"


def harbor_task(folder: Path, dockerfile: str, check: str) -> Path:
    for name, text in {
        "instruction.md": "Write the colour to answer.txt.",
        "task.toml": 'version = "1.0"\n',
        "environment/Dockerfile": dockerfile,
        "environment/more.txt": "copied\n",
        "tests/test.sh": f"#!/bin/bash\nif {check}; then score=1; else score=0; fi\necho $score > /logs/verifier/reward.txt\n",
        "solution/solve.sh": "#!/bin/bash\ncolour > answer.txt\n",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


CHECK = '[ "$(cat answer.txt)" = "colour green" ] && [ "$(cat start.txt more/more.txt)" = "$(printf \'from the image\\ncopied\')" ]'


def test_a_harbor_task_with_a_dockerfile_is_played_in_its_image(program: str, image: str, tmp_path: Path) -> None:
    dockerfile = f"FROM {image}\nCOPY more.txt /work/more/\nVOLUME /data\n"
    folder = harbor_task(tmp_path / "task", dockerfile, CHECK)
    with pytest.raises(ClawError, match="image of its own") as error:
        read_task(folder)
    assert "sandbox=podman" in error.value.fix
    kind = read_kind(program)
    task = asyncio.run(in_image(read_tasks(folder, images=True)[0], kind))
    assert (task.folder, sorted(task.seed)) == ("/work", ["more/more.txt", "start.txt"])
    assert asyncio.run(solve(task)).value == 1
    assert asyncio.run(solve(task, "")).value == 0


def test_an_image_keeps_its_variables_and_packages_and_cannot_be_changed_from_inside(program: str, image: str) -> None:
    kind = read_kind({"kind": program, "image": image})

    async def use() -> None:
        async with open_sandbox(limits=Limits(kind=kind)) as sandbox:
            ran = await sandbox.run("colour; rm -f /usr/bin/colour; colour; ls /root /home /var 2>/dev/null; cat /etc/shadow")
            assert ran.output.startswith("colour green\nrm: cannot remove '/usr/bin/colour': ")
            assert ran.output.count("colour green") == 2
            seen = [kind.python(), *kind.test_options(), "-c", "import inventory; print(inventory.SHELVES)"]
            assert (await sandbox.run(seen)).output == "3\n"

    asyncio.run(use())


def test_an_image_without_python_is_a_sentence(program: str) -> None:
    with pytest.raises(ClawError, match="has no bash, or no Python"):
        read_kind({"kind": program, "image": "localhost/clawctl-empty:1"})


def test_terminal_does_not_take_a_sandbox_without_files_of_its_own() -> None:
    with pytest.raises(ClawError, match="/app and /tests"):
        Terminal(sandbox={"kind": "subprocess", "without_isolation": True})
