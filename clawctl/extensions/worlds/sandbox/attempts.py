"""Run by `probe.py` inside a sandbox. Each function tries to break out; ESCAPED is printed on success. Standard library only."""

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

_PLACES = ("/", "/home", "/root", "/work", "/srv", "/var", "/mnt", "/etc/shadow", "/etc/machine-id", "/run", "/old_root", "/host")
_OF_KERNEL = ("sys/kernel/core_pattern", "sys/kernel/modprobe", "sysrq-trigger", "sys/vm/drop_caches", "1/mem", "1/oom_score_adj")
_LIMITS_OF_GROUPS = {"cgroup.procs", "memory.max", "memory.limit_in_bytes", "pids.max", "release_agent", "uevent_helper"}


def files(facts: dict[str, Any]) -> bool:
    """Read a file of the host by its path, or through other processes' root folders and open files."""
    roots = ["", *(f"/proc/{name}/{link}" for name in os.listdir("/proc") if name.isdigit() for link in ("root", "cwd"))]
    roots += [f"/proc/self/fd/{number}/../../.." for number in range(32)]
    for root in roots:
        with contextlib.suppress(OSError), open(root + facts["file"]) as file:
            return str(facts["marker"]) in file.read()
    for path in _PLACES:
        with contextlib.suppress(OSError):
            status = os.stat(path)
            if [status.st_dev, status.st_ino] in facts["host"]:
                return True
    with contextlib.suppress(OSError):
        os.mknod("/tmp/disk", 0o60666, os.makedev(254, 0))
        return True
    return False


def network(facts: dict[str, Any]) -> bool:
    """Reach a server on the host (TCP, an abstract socket), an outside address, or the machine's supervisor (vsock)."""
    for family, address in (
        (socket.AF_INET, ("127.0.0.1", facts["port"])),
        (socket.AF_UNIX, f"\0{facts['marker']}"),
        (socket.AF_INET, ("192.0.2.1", 53)),
    ):
        with contextlib.suppress(OSError), socket.socket(family) as client:
            client.settimeout(1)
            client.connect(address)
            return True
    with contextlib.suppress(OSError), socket.socket(40, socket.SOCK_STREAM):  # vsock
        return True
    return False


def processes(facts: dict[str, Any]) -> bool:
    """Fork more processes than the limit allows."""
    made = 0
    with contextlib.suppress(OSError):
        while made < 4 * facts["processes"]:
            if os.fork() == 0:
                time.sleep(5)
                os._exit(0)
            made += 1
    with contextlib.suppress(OSError):
        os.kill(-1, signal.SIGKILL)
    return bool(made > facts["processes"])


def memory(facts: dict[str, Any]) -> bool:
    """Use four times the memory limit in eight processes, and in memory that belongs to no process."""
    read, write = os.pipe()
    for _ in range(8):
        if os.fork() == 0:
            held = bytearray(facts["memory"] // 2)
            for offset in range(0, len(held), 4096):
                held[offset] = 1
            os.write(write, b"x")
            time.sleep(2)
            os._exit(0)
    os.close(write)
    time.sleep(1.5)
    os.set_blocking(read, False)
    try:
        holding = len(os.read(read, 100))
    except BlockingIOError:
        holding = 0
    with contextlib.suppress(OSError):
        os.kill(-1, signal.SIGKILL)
    return holding > 3 or can(lambda: os.memfd_create("x"))


def disk(facts: dict[str, Any]) -> bool:
    """Write more than the disk limit, in every writable folder."""
    written, block = 0, b"x" * (1 << 20)
    for folder, folders, _ in os.walk("/"):
        if folder in ("/proc", "/usr"):
            folders.clear()
        if not os.access(folder, os.W_OK):
            continue
        name = os.path.join(folder, "big")
        with contextlib.suppress(OSError), open(name, "wb", buffering=0) as file:
            while written < 4 * facts["disk"]:
                written += file.write(block)
        with contextlib.suppress(OSError):
            for number in range(100):
                os.mkdir(f"{folder}/{number}")
                os.rmdir(f"{folder}/{number}")
    for folder in ("/app", "/tmp", "/home/agent", "/dev/shm"):
        with contextlib.suppress(OSError):
            os.unlink(f"{folder}/big")
    return bool(written > facts["disk"])


def proc(facts: dict[str, Any]) -> bool:
    """See the host's processes, or change the kernel's settings."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/cmdline") as file:
                if name != str(os.getpid()) and facts["marker"] in file.read():
                    return True
    for name in _OF_KERNEL:
        with contextlib.suppress(OSError), open(f"/proc/{name}", "r+b", buffering=0):
            return True
    for folder, _, files in os.walk("/sys"):
        for name in _LIMITS_OF_GROUPS.intersection(files):
            with contextlib.suppress(OSError), open(f"{folder}/{name}", "r+b", buffering=0):
                return True
    return False


def signals(facts: dict[str, Any]) -> bool:
    """Kill process 1, all processes, or a process of the host."""
    for pid in (facts["victim"], os.getppid(), 1):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            if pid != 1:
                return True
    return False  # `probe.py` checks whether the sandbox still answers


def keys(facts: dict[str, Any]) -> bool:
    """Find the environment variables of clawctl."""
    if facts["marker"] in os.environ:
        return True
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
            if facts["marker"].encode() in file.read():
                return True
    return False


def calls(facts: dict[str, Any]) -> bool:
    """Create namespaces and mounts, trace a process, and run a program that changes its user."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(0x10000000) == 0 or library.unshare(0x00020000) == 0:  # users, mounts
        return True
    if library.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0 or library.ptrace(16, 1, 0, 0) == 0:
        return True
    if library.syscall(29 if os.uname().machine == "x86_64" else 194, 0, 4096, 0o1666) >= 0:
        return True
    for program in ("su", "mount", "passwd"):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            if "uid=0" in subprocess.run([program, "-c", "id"], capture_output=True, text=True, timeout=2, stdin=-3).stdout:
                return True
    return False


def can(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    if globals()[sys.argv[1]](json.loads(sys.argv[2])):
        print("ESCAPED")
