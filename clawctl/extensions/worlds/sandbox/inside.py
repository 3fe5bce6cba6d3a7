"""Process 1 of a sandbox. It runs commands, watches memory and files, and packs and unpacks folders.

The sandbox's Python cannot import clawctl, so this file uses the standard library only. A request or answer consists of a length (4
bytes), a header (JSON, whose `size` is the size of the data) and the data. The agent's processes cannot stop, trace or replace
process 1. When process 1 ends, the kernel ends all other processes.
"""

import contextlib
import ctypes
import io
import json
import os
import resource
import selectors
import signal
import stat
import struct
import subprocess
import sys
import tarfile
import time
from typing import Any

Answer = tuple[dict[str, Any], bytes]
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
TICK_S = 0.1
LEFT_OUTPUT_S = 0.05  # time to read the last output of a command that has ended


class SandboxSettings:
    def __init__(self, given: dict[str, Any]) -> None:
        self.user = given["user"]  # the commands' user and group; None: those of this process
        self.memory = given["memory"]
        self.files = given["files"]
        self.folders = given["folders"]  # writable folders


def main() -> None:
    given = json.loads(sys.argv[1])
    if given["confined"] != (os.getpid() == 1):
        # Outside of a sandbox, `kill(-1)` below would end all processes of the machine.
        sys.exit("this is not process 1 of a sandbox")
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # if all processes share one user, others still cannot access its memory
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # without a namespace, orphans become children of this process
    for name, value in given["rlimits"].items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name.upper()}"), (value, value))
    settings = SandboxSettings(given)
    for folder in settings.folders:
        if os.stat(folder).st_mode & 0o777 != 0o777:  # Docker's runc gives a folder in memory the mode of the image's own
            os.chmod(folder, 0o1777 if folder == "/tmp" else 0o777)
    signal.signal(signal.SIGALRM, lambda *_: leave(124))
    signal.setitimer(signal.ITIMER_REAL, given["seconds"])
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(name, signal.SIG_IGN)
    source, answers = os.dup(0), os.dup(1)
    nowhere = os.open("/dev/null", os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    write_frame(answers, {"ready": True})
    work = {"run": run, "pack": pack, "unpack": unpack, "clear": clear}
    while True:
        wait_for_input(source, settings)
        request, payload = read_frame(source)
        try:
            answer, data = work[request["do"]](settings, request, payload)
        except (OSError, ValueError, tarfile.TarError) as error:
            answer, data = {"problem": f"{type(error).__name__}: {error}"}, b""
        write_frame(answers, answer, data)


def wait_for_input(source: int, settings: SandboxSettings) -> None:
    with selectors.DefaultSelector() as waiting:
        waiting.register(source, selectors.EVENT_READ)
        while not waiting.select(TICK_S):
            watch(settings)
            reap(None)


def read_exactly(source: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(source, min(size, 1 << 20))
        if not part:
            leave(0)  # clawctl has ended or closed the sandbox
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def read_frame(source: int) -> tuple[dict[str, Any], bytes]:
    header = json.loads(read_exactly(source, struct.unpack("!I", read_exactly(source, 4))[0]))
    return header, read_exactly(source, header.get("size", 0))


def write_frame(answers: int, header: dict[str, Any], data: bytes = b"") -> None:
    text = json.dumps({**header, "size": len(data)}).encode()
    left = memoryview(struct.pack("!I", len(text)) + text + data)
    while left:
        try:
            left = left[os.write(answers, left) :]
        except BrokenPipeError:
            leave(0)


def leave(code: int) -> None:
    """Exit. If this is process 1 of a namespace, the kernel then ends all other processes."""
    if os.getpid() != 1:
        end_others(5)
    os._exit(code)


# Commands


def run(settings: SandboxSettings, request: dict[str, Any], payload: bytes) -> Answer:
    """Run one command until it ends or exceeds its time limit. Background processes that it started keep running."""
    user = settings.user if request["as_agent"] else None
    who = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    try:
        process = subprocess.Popen(
            request["argv"],
            cwd=request["cwd"],
            env=request["env"],
            stdin=subprocess.PIPE if payload else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if request["joined"] else subprocess.PIPE,
            start_new_session=True,
            **who,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return {"code": 127, "timed_out": False, "stopped": None, "cut": 0, "out": 0}, str(error).encode()
    try:
        return supervise(settings, request, payload, process)
    finally:
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def supervise(settings: SandboxSettings, request: dict[str, Any], payload: bytes, process: subprocess.Popen[bytes]) -> Answer:
    out, err = BothEnds(request["output"]), BothEnds(request["output"])
    end, stopped, timed_out, left = time.monotonic() + request["timeout"], None, False, None
    watched = 0.0
    with selectors.DefaultSelector() as streams:
        for stream, kept in ((process.stdout, out), (process.stderr, err)):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                streams.register(stream.fileno(), selectors.EVENT_READ, kept)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            streams.register(process.stdin.fileno(), selectors.EVENT_WRITE, None)
        while True:
            now = time.monotonic()
            if process.poll() is None:
                if now >= end:
                    timed_out = True
                    kill_all()
                    process.wait()
            elif left is None:
                left = now + LEFT_OUTPUT_S
            if left is not None and (now >= left or not streams.get_map()):
                break
            if now >= watched + TICK_S:
                watched = now
                stopped = watch(settings) or stopped
                reap(process.pid)
            for key, _ in streams.select(0.01 if left is not None or not streams.get_map() else 0.02):
                if key.data is None:
                    payload = feed(streams, process, payload)
                else:
                    try:
                        data = os.read(key.fd, 1 << 16)
                    except BlockingIOError:
                        continue
                    key.data.add(data)
                    if not data:
                        streams.unregister(key.fd)
            if not streams.get_map() and left is None:
                time.sleep(0.01)
    text = out.text()
    answer = {"code": process.returncode, "timed_out": timed_out, "stopped": stopped, "cut": out.cut + err.cut, "out": len(text)}
    return answer, text + err.text()


def feed(streams: selectors.DefaultSelector, process: subprocess.Popen[bytes], payload: bytes) -> bytes:
    assert process.stdin is not None
    try:
        payload = payload[os.write(process.stdin.fileno(), payload[: 1 << 16]) :]
    except BlockingIOError:
        return payload
    except BrokenPipeError:
        payload = b""
    if not payload:
        streams.unregister(process.stdin.fileno())
        process.stdin.close()
    return payload


class BothEnds:
    """Keeps the first and the last part of a stream, and drops the middle."""

    def __init__(self, limit: int) -> None:
        self.half = max(1, limit // 2)
        self.first, self.last, self.cut = bytearray(), bytearray(), 0

    def add(self, data: bytes) -> None:
        room = self.half - len(self.first)
        self.first += data[:room]
        self.last += data[room:] if room < len(data) else b""
        if len(self.last) > self.half:
            self.cut += len(self.last) - self.half
            del self.last[: -self.half]

    def text(self) -> bytes:
        between = f"\n[{self.cut} bytes left out]\n".encode() if self.cut else b""
        return bytes(self.first) + between + bytes(self.last)


# Watching


def processes() -> list[int]:
    """All other processes of the namespace. Without a namespace, all descendants of this process."""
    processes = [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]
    return processes if os.getpid() == 1 else descendants(processes)


def descendants(among: list[int]) -> list[int]:
    parents = {}
    for pid in among:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
            parents[pid] = int(file.read().rpartition(b")")[2].split()[1])
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sorted(ours - {os.getpid()})


def watch(settings: SandboxSettings) -> str | None:
    """Kill all processes if they use too much memory together or have made too many files. Returns the exceeded limit."""
    page, total = os.sysconf("SC_PAGE_SIZE"), 0
    for pid in processes():
        try:
            with open(f"/proc/{pid}/statm", "rb") as file:
                _, resident, shared, *_ = file.read().split()
            total += (int(resident) - int(shared)) * page
        except (OSError, ValueError):
            continue
    if total > settings.memory:
        kill_all()
        return "memory"
    usages = [os.statvfs(folder) for folder in settings.folders]
    if sum(usage.f_files - usage.f_ffree for usage in usages) > settings.files:
        kill_all()
        return "files"
    return None


def kill_all() -> None:
    with contextlib.suppress(ProcessLookupError):
        for _ in range(2):  # one signal reaches all processes at once, so a fork in progress fails
            kill_others()


def kill_others() -> None:
    if os.getpid() == 1:
        os.kill(-1, signal.SIGKILL)
        return
    for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped processes cannot fork before they are killed
        for pid in processes():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def reap(running: int | None) -> None:
    """Reap orphaned processes that have ended. `running` is the command's process, which its own Popen reaps."""
    while True:
        try:
            child = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if child is None or child.si_pid == running:
            return
        os.waitpid(child.si_pid, os.WNOHANG)


def end_others(seconds: float) -> bool:
    """Kill every process but this one, and wait until they have ended. On a busy machine, many processes take seconds."""
    deadline = time.monotonic() + seconds
    while processes() and time.monotonic() < deadline:
        with contextlib.suppress(ProcessLookupError):
            kill_others()
        time.sleep(0.001)
        reap(None)
    return not processes()


def clear(settings: SandboxSettings, request: dict[str, Any], payload: bytes) -> Answer:
    """Kill every process but this one. Raises OSError if some remain."""
    if not end_others(15):
        raise OSError(f"processes are left: {processes()[:5]}")
    return {"left": 0}, b""


# Folders


def pack(settings: SandboxSettings, request: dict[str, Any], payload: bytes) -> Answer:
    """Pack a folder into a tar: files, folders, and links that stay inside it. All other entries are skipped and counted."""
    root, out, left_out = request["folder"], io.BytesIO(), 0
    total = count = 0
    with tarfile.open(fileobj=out, mode="w") as tar:
        for folder, folders, files in os.walk(root, followlinks=False):
            folders.sort()
            for name in sorted(folders) + sorted(files):
                path = os.path.join(folder, name)
                status = os.lstat(path)
                inner = os.path.relpath(path, root)
                entry = tarfile.TarInfo(inner)
                entry.mode, entry.mtime = stat.S_IMODE(status.st_mode) & 0o777, int(status.st_mtime)
                count += 1
                if count > request["max_files"]:
                    return {"problem": f"more than {request['max_files']} files"}, b""
                try:
                    if stat.S_ISDIR(status.st_mode):
                        entry.type = tarfile.DIRTYPE
                        tar.addfile(entry)
                    elif stat.S_ISLNK(status.st_mode) and stays_inside(root, folder, os.readlink(path)):
                        entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(path)
                        tar.addfile(entry)
                    elif stat.S_ISREG(status.st_mode) and total + status.st_blocks * 512 <= request["max_bytes"]:
                        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                            data = file.read(request["max_bytes"] - total + 1)
                        total += len(data)
                        if total > request["max_bytes"]:
                            return {"problem": f"more than {request['max_bytes']} bytes"}, b""
                        entry.size = len(data)
                        tar.addfile(entry, io.BytesIO(data))
                    else:
                        left_out += 1
                except OSError:
                    left_out += 1
    return {"left_out": left_out}, out.getvalue()


def stays_inside(root: str, folder: str, target: str) -> bool:
    """Whether a link cannot lead out of `root`. Each ".." must come first, so that no other link can change its meaning."""
    if target.startswith("/"):
        inner = os.path.relpath(target, root).split("/") if ".." not in target.split("/") else [".."]
        return inner[0] != ".."
    parts = [part for part in target.split("/") if part not in ("", ".")]
    ups = 0
    while ups < len(parts) and parts[ups] == "..":
        ups += 1
    depth = 0 if folder == root else len(os.path.relpath(folder, root).split("/"))
    return ".." not in parts[ups:] and ups <= depth


def unpack(settings: SandboxSettings, request: dict[str, Any], payload: bytes) -> Answer:
    """Unpack a tar into a folder. The files belong to the commands' user."""
    root, owner = request["folder"], settings.user

    def give_to_user(path: str) -> None:
        if owner is not None:
            os.lchown(path, owner, owner)

    def make_folder(folder: str) -> None:
        if not os.path.isdir(folder):
            make_folder(os.path.dirname(folder))
            os.mkdir(folder, 0o755)
            give_to_user(folder)

    with tarfile.open(fileobj=io.BytesIO(payload), mode="r") as tar:
        for entry in tar:
            name = os.path.normpath(entry.name)
            if name.startswith(("/", "..")):
                raise ValueError(f"{entry.name} points outside of the folder")
            path = os.path.join(root, name)
            make_folder(path if entry.isdir() else os.path.dirname(path))
            if entry.isdir():
                os.chmod(path, entry.mode & 0o777)
            elif entry.issym():
                os.symlink(entry.linkname, path)
                give_to_user(path)
            elif entry.isreg():
                with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
                    content = tar.extractfile(entry)
                    file.write(content.read() if content is not None else b"")
                os.chmod(path, entry.mode & 0o777)
                give_to_user(path)
            else:
                raise ValueError(f"{entry.name} is neither a file, a folder nor a link")
    return {}, b""


if __name__ == "__main__":
    main()
