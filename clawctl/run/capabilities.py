"""Capabilities: keys that allow only the calls of one episode at this run's server.

An episode is played for training, or by `clawctl eval` to measure a version.

A capability contains its episode and its expiry time. It is signed with a secret of the run, so no list is needed: servers and
workers on any host agree on it, and a restarted server still accepts it. It is a key, so it must not appear in logs or captures.
The redaction rule for `claw-…` keys finds it.
"""

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import astuple, dataclass
from hashlib import blake2b
from secrets import token_bytes
from typing import Final

import orjson
from filelock import FileLock

from clawctl.errors import ClawError
from clawctl.run.directory import RunDir, publish_bytes
from clawctl.run.episodes import EpisodeSpec

PREFIX: Final = "claw-e-"
_SECRET_BYTES = 32
_MAC_BYTES = 18  # 24 letters
_MAC_LETTERS = 24
LONGEST: Final = 400  # characters: the longest key that the redaction rule finds


@dataclass(frozen=True, slots=True)
class Measurement:
    """How the server answers an episode that measures a version. Its calls are not captured."""

    model: str  # "tiny@3"
    temperature: float
    max_tokens: int  # the most tokens in an answer


@dataclass(frozen=True, slots=True)
class Capability:
    """The claims that a capability carries."""

    session_id: str
    task_id: str
    group_id: str
    attempt: int
    expires_at: float  # unix seconds
    key: str  # name of the API key whose turns these are
    measurement: Measurement | None = None  # None: the episode is played for training


def episode_secret(run: RunDir) -> bytes:
    """Return the secret that signs the run's capabilities, creating it on first use. Raises ClawError if it is damaged."""
    path = run.episode_key
    with FileLock(run.lock("episode_key")):
        if not path.exists():
            publish_bytes(path, token_bytes(_SECRET_BYTES).hex().encode() + b"\n")
        try:
            secret = bytes.fromhex(path.read_text(encoding="ascii"))
        except ValueError:
            secret = b""
    if len(secret) != _SECRET_BYTES:
        raise ClawError(f"{path} is damaged", "delete it; running episodes then lose their address and are played again")
    return secret


def issue(secret: bytes, spec: EpisodeSpec) -> str:
    """Return the capability of an episode that is played for training. Raises ClawError if the task and group ids are too long."""
    capability = Capability(spec.session_id, spec.task_id, spec.group_id, spec.attempt, int(spec.deadline), spec.key)
    return sign(secret, capability)


def sign(secret: bytes, grant: Capability) -> str:
    """Return a capability as text: letters, digits, `-` and `_`. Raises ClawError if it is too long."""
    claims = [grant.session_id, grant.task_id, grant.group_id, grant.attempt, int(grant.expires_at), grant.key]
    claims += [] if grant.measurement is None else astuple(grant.measurement)
    body = urlsafe_b64encode(orjson.dumps(claims)).rstrip(b"=").decode()
    text = PREFIX + body + _signature(secret, body)
    if len(text) > LONGEST:
        raise ClawError(f"the names of task {grant.task_id[:40]}… are too long", "use task and group ids of up to 80 characters", 2)
    return text


def read_capability(secret: bytes, text: str) -> Capability | None:
    """Return the claims of a capability, even if it has expired, or None if this run did not issue it."""
    body, signature = text[len(PREFIX) : -_MAC_LETTERS], text[-_MAC_LETTERS:]
    if not text.startswith(PREFIX) or len(text) > LONGEST or not text.isascii():
        return None
    if not hmac.compare_digest(signature, _signature(secret, body)):
        return None
    claims = orjson.loads(urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    session_id, task_id, group_id, attempt, expires_at, key, *rest = claims
    measurement = Measurement(*rest) if rest else None
    return Capability(session_id, task_id, group_id, attempt, expires_at, key, measurement)


def _signature(secret: bytes, body: str) -> str:
    mac = blake2b(body.encode(), key=secret, digest_size=_MAC_BYTES, person=b"claw-episode")
    return urlsafe_b64encode(mac.digest()).decode()
