"""Named API keys, stored as salted hashes in `RUN/api_keys.json`. A key is shown once and stored nowhere."""

import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import orjson
from filelock import FileLock
from rich.table import Table

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.printing import answers, counted, print_json
from clawctl.run.checksums import read_sealed, sealed
from clawctl.run.directory import RunDir, publish_bytes
from clawctl.run.feedback import EDITS, LABEL
from clawctl.run.policies import begin_policy, live_version
from clawctl.run.rows import DEFAULT_POLICY, from_json

_log = logging.getLogger("clawctl.serve")
OWN = "default"  # the name of the run's own key, which its stages use
RESERVED = {  # names that are reserved, because turns use them with another meaning
    OWN: "is the run's own key",
    "import": "is reserved for imported conversations",
    "custom": "is reserved for custom rollouts",
    LABEL: "is reserved for labels",
    EDITS: "is reserved for ratings of kept edits",
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
CHECK_EVERY_S = 0.4  # seconds; added and removed keys take effect within this time, without a restart
_PATIENCE_S = 10.0
_LONGEST_KEY = 1024  # characters; a longer key is rejected without hashing


@dataclass(frozen=True, slots=True)
class StoredKey:
    name: str  # "anna": whose turns these are
    salt: str  # hex
    digest: str  # hex: SHA-256 of salt and key; keys have 192 random bits, so no slow hash is needed
    created_at: float
    policy: str = DEFAULT_POLICY  # the policy that answers its requests, unless `policies.per` is `shared`
    teaches_shared: bool = False  # whether its turns also train the shared policy, with `shared+` in `policies.per`
    names_users: bool = False  # whether its requests may name another key, which they then count as, if `policies.per` is `user`


def add_key(run: RunDir, name: str, policy: str = DEFAULT_POLICY, **allowed: bool) -> str:
    """Create a key for `name`, and its policy if that is missing, and return the key. It cannot be read again. `allowed`:
    `teaches_shared` and `names_users` of StoredKey. Raises ClawError (exit code 2) for an invalid name."""
    if (problem := _name_problem(name)) is not None:
        raise ClawError(f"{name!r} {problem}", "use letters, digits, '.', '_' and '-', at most 64 characters", 2)
    with _writing(run):
        stored = list_keys(run)
        if any(key.name == name for key in stored):
            raise ClawError(
                f"a key named {name!r} already exists", f"run `clawctl keys rotate {name}` to replace it, or choose another name", 2
            )
        key, salt = f"claw-{secrets.token_urlsafe(24)}", secrets.token_hex(16)
        _write(run, [*stored, StoredKey(name, salt, _digest(salt, key), time.time(), begin_policy(run, policy), **allowed)])
    return key


def rotate_key(run: RunDir, name: str) -> str:
    """Give `name` a new key and return it. The old key is refused from then on. Raises ClawError (exit code 2) without that key."""
    with _writing(run):
        stored = list_keys(run)
        if all(key.name != name for key in stored):
            raise _no_key(name, stored)
        key, salt = f"claw-{secrets.token_urlsafe(24)}", secrets.token_hex(16)
        digest, now = _digest(salt, key), time.time()
        _write(run, [replace(old, salt=salt, digest=digest, created_at=now) if old.name == name else old for old in stored])
    return key


def split(run: RunDir, names: Sequence[str], teaches_shared: bool = False) -> str:
    """Give each of these keys the policy with its own name, and return the message to print. `teaches_shared`: as in
    StoredKey. Raises ClawError (exit code 2) without one of the keys."""
    with _writing(run):
        stored = list_keys(run)
        if (missing := next((name for name in names if all(key.name != name for key in stored)), None)) is not None:
            raise _no_key(missing, stored)
        for name in names:
            begin_policy(run, name)
        _write(run, [replace(key, policy=key.name, teaches_shared=teaches_shared) if key.name in names else key for key in stored])
    return f"{', '.join(names)}: each has a policy of its own, which begins with shared version {live_version(run)}"


def has_key(run: RunDir, name: str) -> bool:
    """Whether there is a key of this name. Raises ClawError."""
    return name == OWN or any(key.name == name for key in list_keys(run))


def policy_of(run: RunDir, recipe: Recipe, name: str) -> str:
    """Return the name of the policy that answers the requests of a key. Raises ClawError."""
    keys = list_keys(run) if recipe.policies.per_person else []
    return next((key.policy for key in keys if key.name == name), DEFAULT_POLICY)


def teachers_of_shared(run: RunDir) -> set[str]:
    """Return the names of the keys whose turns also train the shared policy. Raises ClawError."""
    return {key.name for key in list_keys(run) if key.teaches_shared}


def begin_policies(run: RunDir) -> None:
    """Create the policies that keys have, as far as they are missing. Raises ClawError."""
    for key in list_keys(run):
        begin_policy(run, key.policy)


def _no_key(name: str, stored: list[StoredKey]) -> ClawError:
    names = ", ".join(key.name for key in stored) or "none"
    return ClawError(f"there is no key named {name!r}", f"the named keys of this run: {names}", 2)


def remove_key(run: RunDir, name: str) -> None:
    """Remove the key of `name`. Raises ClawError (exit code 2) if there is no such key."""
    with _writing(run):
        stored = list_keys(run)
        remaining = [key for key in stored if key.name != name]
        if len(remaining) == len(stored):
            raise _no_key(name, stored)
        _write(run, remaining)


def list_keys(run: RunDir) -> list[StoredKey]:
    """Return the named keys of a run, oldest first. Raises ClawError if the file cannot be read."""
    path = run.api_keys
    try:
        return from_json(list[StoredKey], read_sealed(path.read_bytes())["keys"])
    except FileNotFoundError:
        return []
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ClawError(f"{path} cannot be read: {error}", "restore it, or delete it and add the keys again") from error


def show_keys(run: RunDir, as_json: bool) -> None:
    """Print the names and creation times of the keys on stdout."""
    stored = list_keys(run)
    if as_json:
        shown = ("name", "created_at", "policy", "teaches_shared", "names_users")
        print_json({"keys": [{name: getattr(key, name) for name in shown} for key in stored]})
        return
    table = Table("name", "made", "policy", "teaches shared", "names users", title=counted(len(stored), "named key"))
    for key in stored:
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(key.created_at))
        table.add_row(key.name, made, key.policy, *("yes" if may else "" for may in (key.teaches_shared, key.names_users)))
    answers().print(table)


def _name_problem(name: str) -> str | None:
    """Return the reason why this name is not allowed for a key, or None."""
    return RESERVED.get(name.lower()) or (None if _NAME.fullmatch(name) else "is not a valid key name")


def _accepted(keys: list[StoredKey]) -> list[StoredKey]:
    """Return the keys that are accepted. An invalid name comes from an older clawctl or a manual edit; its turns would have no
    valid user.
    """
    for key in keys:
        if (problem := _name_problem(key.name)) is not None:
            fix = f"run `clawctl keys remove {key.name}`, and add a key with another name"
            _log.error("the key named %r is not accepted: the name %s; %s", key.name, problem, fix)
    return [key for key in keys if _name_problem(key.name) is None]


def _write(run: RunDir, keys: list[StoredKey]) -> None:
    text = orjson.dumps({"keys": [asdict(key) for key in keys]}, option=orjson.OPT_INDENT_2)
    publish_bytes(run.api_keys, sealed(text))


def _writing(run: RunDir) -> FileLock:
    return FileLock(run.lock("api_keys"), timeout=_PATIENCE_S)


def _digest(salt: str, key: str) -> str:
    return hashlib.sha256(f"{salt}{key}".encode()).hexdigest()


class KeyRing:
    """The accepted keys: the run's own key and the named keys, which may change while the server runs."""

    def __init__(self, run: RunDir, own_key: str) -> None:
        salt = secrets.token_hex(16)
        self._run, self._own = run, StoredKey(OWN, salt, _digest(salt, own_key), 0.0)
        self._named = _accepted(list_keys(run))  # of the last file that could be read
        self._keys = [self._own, *self._named]
        self._stamp_read, self._checked_at = self._stamp(), time.monotonic()
        self._revoked: set[str] = set()

    def owner(self, given: str) -> str | None:
        """Return the name of the key, or None. Every key is compared, so the time does not depend on which key matches."""
        if len(given) > _LONGEST_KEY:
            return None
        self._reload_if_changed()
        owner = None
        for key in self._keys:
            if hmac.compare_digest(_digest(key.salt, given), key.digest):
                owner = key.name
        return owner

    def has(self, name: str) -> bool:
        """Whether there is a key of this name."""
        self._reload_if_changed()
        return any(key.name == name for key in self._keys)

    def policy_of(self, name: str) -> str:
        """Return the name of the policy that a key has, also for a key that was removed a moment ago."""
        return next((key.policy for key in self._named if key.name == name), DEFAULT_POLICY)

    def user(self, name: str, named: str) -> str:
        """Return the name of the key that a request with the key `name` counts as, if it names the key `named`: that one, if it
        exists and `name` may name users."""
        may = any(key.name == name and key.names_users for key in self._named)
        return named if may and any(key.name == named for key in self._named) else name

    def pop_revoked(self) -> set[str]:
        """Return the names whose key was removed or replaced since the last call."""
        self._reload_if_changed()
        revoked, self._revoked = self._revoked, set()
        return revoked

    def _reload_if_changed(self) -> None:
        if time.monotonic() - self._checked_at < CHECK_EVERY_S:
            return
        self._checked_at = time.monotonic()
        stamp = self._stamp()
        if stamp != self._stamp_read:
            self._stamp_read = stamp
            try:
                named = _accepted(list_keys(self._run))
            except ClawError:  # damaged by an edit: no named key is accepted until it is mended, and running requests go on
                self._keys = [self._own]
                return
            digests = {key.name: key.digest for key in named}
            self._revoked |= {key.name for key in self._named if digests.get(key.name) != key.digest}
            self._named, self._keys = named, [self._own, *named]

    def _stamp(self) -> tuple[int, int] | None:
        try:
            status = self._run.api_keys.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino
