"""A kernel filter (seccomp) of system calls that sandboxed processes may not make.

Namespaces hide files, processes and networks. This filter refuses calls that namespaces do not cover:

- further namespaces and mounts (a process's memory limit does not count a tmpfs);
- tracing;
- shared memory that belongs to no process;
- machine-wide facilities;
- sockets that belong to no network namespace (vsock).
"""

import platform
import struct
from pathlib import Path
from typing import Any

import yaml

_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_CALLS = yaml.safe_load((Path(__file__).parent / "seccomp.yaml").read_text("utf-8"))
_CLONE = (56, 220)
_SOCKET = (41, 198)
_NEW_NAMESPACES = 0x7E020080  # CLONE_NEWNS, -CGROUP, -UTS, -IPC, -USER, -PID, -NET and -TIME
_SOCKETS = (1, 2, 10, 16)  # unix, IPv4, IPv6, netlink
_ALLOW, _EPERM, _ENOSYS = 0x7FFF0000, 0x00050001, 0x00050026
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _MACHINE, _FIRST_ARGUMENT = 0, 4, 16


def refused_calls() -> bytes | None:
    """The filter for this machine, or None if its architecture is not supported."""
    if platform.machine() not in _MACHINES:
        return None
    machine, column = _MACHINES[platform.machine()]
    code = [(_LOAD, 0, 0, _MACHINE), (_EQUAL, 1, 0, machine), (_RETURN, 0, 0, _EPERM), (_LOAD, 0, 0, _NUMBER)]
    code += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _EPERM)]  # call numbers of the x32 ABI
    for kind, answer in (("refused", _EPERM), ("absent", _ENOSYS)):
        for number in (numbers[column] for numbers in _CALLS[kind].values()):
            if number is not None:
                code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, answer)]
    code += [(_EQUAL, 0, 4, _CLONE[column]), (_LOAD, 0, 0, _FIRST_ARGUMENT), (_ANY_BIT, 0, 1, _NEW_NAMESPACES)]
    code += [(_RETURN, 0, 0, _EPERM), (_RETURN, 0, 0, _ALLOW)]
    code += [(_EQUAL, 0, len(_SOCKETS) + 2, _SOCKET[column]), (_LOAD, 0, 0, _FIRST_ARGUMENT)]
    code += [(_EQUAL, len(_SOCKETS) - index, 0, family) for index, family in enumerate(_SOCKETS)]
    code += [(_RETURN, 0, 0, _EPERM), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *line) for line in code)


def profile() -> dict[str, Any]:
    """The same filter as a seccomp profile for podman and docker, which name the calls.

    Each rule refuses one value, because libseccomp cannot express "none of these".
    """

    def refused(names: list[str], errno: int, **condition: object) -> dict[str, Any]:
        args = [{"index": 0, **condition}] if condition else []
        return {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": errno, "args": args}

    families = [number for number in range(max(_SOCKETS)) if number not in _SOCKETS]
    bits = [1 << bit for bit in range(32) if _NEW_NAMESPACES >> bit & 1]
    machine = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}.get(platform.machine())
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": [machine] if machine else [],
        "syscalls": [
            refused(list(_CALLS["refused"]), 1),
            refused(list(_CALLS["absent"]), 38),
            *(refused(["clone"], 1, value=bit, valueTwo=bit, op="SCMP_CMP_MASKED_EQ") for bit in bits),
            *(refused(["socket"], 1, value=number, op="SCMP_CMP_EQ") for number in families),
            refused(["socket"], 1, value=max(_SOCKETS), op="SCMP_CMP_GT"),
        ],
    }
