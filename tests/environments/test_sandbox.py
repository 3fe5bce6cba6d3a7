"""The sandbox of an agent's commands, tried on the real thing."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from clawctl.environments.sandbox import Limits, Sandbox, SandboxOver, open_sandbox
from clawctl.environments.sandbox.cgroups import make_group, remove_left
from clawctl.environments.sandbox.inside import stays_inside
from clawctl.environments.sandbox.probe import ATTEMPTS, break_out
from clawctl.environments.sandbox.tars import files_of, tar_of, without

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing: apt-get install bubblewrap")


def in_sandbox(use: Callable[[Sandbox], Awaitable[None]], limits: Limits | None = None) -> None:
    async def play() -> None:
        async with open_sandbox(limits=limits) as sandbox:
            await use(sandbox)

    asyncio.run(play())


def test_nothing_gets_out() -> None:
    assert asyncio.run(break_out()) == dict.fromkeys(ATTEMPTS, False)


def test_a_command_says_how_it_ended_and_its_output_is_cut_in_the_middle() -> None:
    async def use(sandbox: Sandbox) -> None:
        ran = await sandbox.run("echo one; echo two >&2; exit 3")
        assert (ran.output, ran.code, ran.timed_out) == ("one\ntwo\n", 3, False)
        ran = await sandbox.run("printf begin; head -c 300000 /dev/zero | tr '\\0' x; printf end")
        assert ran.output.startswith("beginx")
        assert ran.output.endswith("xend")
        assert "bytes left out" in ran.output
        assert len(ran.output) < 70_000
        assert (await sandbox.run(["cat"], given=b"a" * 200_000, output=400_000)).output == "a" * 200_000

    in_sandbox(use)


def test_a_command_that_does_not_end_is_ended_and_so_is_what_it_started() -> None:
    async def use(sandbox: Sandbox) -> None:
        ran = await sandbox.run("setsid sleep 61 & sleep 62", timeout=0.3)
        assert ran.timed_out
        assert (await sandbox.run("ls /proc | grep -c '^[0-9]'")).output.split() == ["4"]  # process 1, bash, ls and grep

    in_sandbox(use)


def test_a_process_in_the_background_does_not_hold_its_command_back() -> None:
    async def use(sandbox: Sandbox) -> None:
        ran = await sandbox.run("echo started; sleep 60 &", timeout=20)
        assert (ran.output, ran.timed_out) == ("started\n", False)

    in_sandbox(use)


def test_an_agent_that_ends_everything_still_has_its_sandbox() -> None:
    async def use(sandbox: Sandbox) -> None:
        await sandbox.run("echo kept > file; kill -9 1; kill -9 -1")
        assert (await sandbox.run("cat file")).output == "kept\n"

    in_sandbox(use)


def test_too_many_files_end_the_processes_that_make_them() -> None:
    async def use(sandbox: Sandbox) -> None:
        ran = await sandbox.run("for n in $(seq 100000); do : > $n; done", timeout=30)
        assert ran.stopped == "files"

    in_sandbox(use, Limits(files=500))


def test_the_life_of_a_sandbox_ends_in_time() -> None:
    async def use(sandbox: Sandbox) -> None:
        with pytest.raises(SandboxOver):
            await sandbox.run("sleep 60", timeout=60)

    in_sandbox(use, Limits(seconds=0.5))


def test_a_snapshot_is_taken_after_all_processes_have_ended_and_has_no_way_out() -> None:
    async def use(sandbox: Sandbox) -> None:
        await sandbox.run(
            "mkdir d; echo text > d/file; ln -s d/file good; ln -s /etc/passwd bad; ln -s ../tests worse; mkfifo pipe; "
            "(setsid bash -c 'while :; do date +%N > late; done' &); until [ -e late ]; do sleep 0.01; done"
        )
        first = await sandbox.snapshot()
        assert sorted(files_of(first)) == ["d/file", "late"]
        assert (await sandbox.run("cat late")).output == files_of(first)["late"].decode()
        assert (await sandbox.run("ls /proc | grep -c '^[0-9]'")).output.split() == ["4"]
        await sandbox.run("rm -rf *")
        await sandbox.put(first)
        assert (await sandbox.run("cat good; ls")).output == "text\nd\ngood\nlate\n"

    in_sandbox(use)


def test_a_tar_that_leads_out_of_the_folder_is_refused() -> None:
    async def use(sandbox: Sandbox) -> None:
        with pytest.raises(ValueError, match="leads out"):
            await sandbox.put(tar_of({"../tmp/file": b""}))

    in_sandbox(use)


def test_a_link_stays_inside_only_if_no_other_link_can_lead_it_out() -> None:
    assert stays_inside("/app", "/app/a/b", "../../c")
    assert stays_inside("/app", "/app", "a/b")
    assert stays_inside("/app", "/app/a", "/app/b")
    for folder, target in (("/app", ".."), ("/app/a", "../../b"), ("/app", "a/../../b"), ("/app", "/app/../b"), ("/app", "/appx")):
        assert not stays_inside("/app", folder, target), target


def test_a_tar_without_a_folder_has_nothing_of_it() -> None:
    assert files_of(without(tar_of({"a/b": b"1", "a/c/d": b"2", "e": b"3"}), {"a"})) == {"e": b"3"}


def groups() -> set[str]:
    return {path.name for path in Path("/sys/fs/cgroup").glob("*/clawctl-*")}


def test_no_control_group_is_left_behind() -> None:
    async def use(sandbox: Sandbox) -> None:
        await sandbox.run("true")

    in_sandbox(use)
    assert not {name for name in groups() if name.startswith(f"clawctl-{os.getpid()}-")}


def test_the_group_of_a_killed_worker_is_removed_by_the_next_one() -> None:
    made = make_group(1 << 26, 8)
    if made is None:
        pytest.skip("no control group can be made here")
    ended = subprocess.Popen(["true"])
    ended.wait()
    left = [folder.with_name(f"clawctl-{ended.pid}-0123456789ab") for folder in made.folders]
    for folder in left:
        folder.mkdir()
    remove_left({folder.parent for folder in left}, older_s=-1)
    assert all(folder.exists() for folder in made.folders)
    made.remove()
    assert not any(folder.exists() for folder in left)
