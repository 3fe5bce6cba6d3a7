"""Which turn does a request answer? By evidence in the request, never by time.

From the last assistant message backwards: (a) a handle that we issued comes back in a tool-call id; (b) the answer of a known turn
stands behind the same conversation. The parent's request may hold up to two user messages that the child's lacks (transient context
that clients take out again). Hints scope the search: two different session ids never meet, and users never do.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Literal

from clawctl.collect.canonical import Conversation, extend_path, handles
from clawctl.types import Exchange, Message

MOST_DROPPED = 2  # user messages of the parent that may be missing in the child
MOST_COMPARED = 256  # newest turns with the same words that are looked at one by one


@dataclass(slots=True, eq=False)
class Tree:
    """One conversation as it is known: a root and everything that continues it."""

    user: str
    session_id: str
    last_seen: float  # when its newest exchange ended, on the clock of serve
    nodes: list["Node"] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Node:
    """One turn in its tree. `exchange` is kept only while the turn is open."""

    turn_id: str
    hint: str | None  # session id that the client claimed
    parent_id: str | None
    index: int
    kind: Literal["main", "side"]
    tree: Tree
    created_at: float
    digests: tuple[bytes, ...]
    roles: str
    path: bytes
    system: bytes
    answer: bytes | None  # None after an error: nothing can follow it
    exchange: Exchange | None
    successors: int = 0  # main turns that continue it

    @property
    def user(self) -> str:
        return self.tree.user


@dataclass(frozen=True, slots=True)
class Match:
    """A parent, and how it was found in the request."""

    node: Node
    at: int  # where its answer stands in the child's Conversation
    dropped: frozenset[bytes]  # user messages of the parent that the child lacks


class Index:
    """All turns of live trees, found by id, by the conversation that ends with their answer, or by the answer alone."""

    def __init__(self) -> None:
        self.by_id: dict[str, Node] = {}
        self._by_path: dict[tuple[str, bytes], list[Node]] = defaultdict(list)
        self._by_answer: dict[tuple[str, bytes], list[Node]] = defaultdict(list)
        self._by_request: dict[tuple[str, str | None, bytes], list[Node]] = defaultdict(list)

    def add(self, node: Node) -> None:
        self.by_id[node.turn_id] = node
        self._by_request[node.user, node.hint, node.path].append(node)
        if node.answer is not None:
            self._by_path[node.user, extend_path(node.path, node.answer)].append(node)
            self._by_answer[node.user, node.answer].append(node)

    def remove(self, node: Node) -> None:
        del self.by_id[node.turn_id]
        _discard(self._by_request, (node.user, node.hint, node.path), node)
        if node.answer is not None:
            _discard(self._by_path, (node.user, extend_path(node.path, node.answer)), node)
            _discard(self._by_answer, (node.user, node.answer), node)

    def twins(self, user: str, hint: str | None, path: bytes) -> list[Node]:
        """Turns whose request has the same messages: retries and regenerations of one another if they share their parent."""
        return self._by_request.get((user, hint, path), [])[-MOST_COMPARED:]

    def find_parent(
        self, conversation: Conversation, messages: list[Message], user: str, hint: str | None, since: float
    ) -> Match | None:
        """The turn that this request continues, or None: then it is a root. Trees not seen since `since` are over."""
        twins = {twin.parent_id for twin in self.twins(user, hint, conversation.path)}
        for at in reversed(range(len(conversation.roles))):
            if conversation.roles[at] != "a":
                continue
            found = [self.by_id[handle] for handle in handles(messages[conversation.at[at]]) if handle in self.by_id]
            found = [node for node in found if node.user == user]
            found = found or self._by_path.get((user, conversation.paths[at]), [])[-MOST_COMPARED:]
            found = _open_to(found, hint, since)
            if not found:
                alike = self._by_answer.get((user, conversation.digests[at]), [])[-MOST_COMPARED:]
                found = [node for node in _open_to(alike, hint, since) if _continues(node, conversation, at)]
            if found:
                best = max(found, key=lambda node: _evidence(node, conversation, at, twins))
                return Match(best, at, _dropped(best, conversation, at))
        return None


def _discard(index: dict, key: tuple, node: Node) -> None:
    index[key].remove(node)
    if not index[key]:
        del index[key]


def _open_to(nodes: list[Node], hint: str | None, since: float) -> list[Node]:
    return [n for n in nodes if n.tree.last_seen >= since and (n.hint is None or hint is None or n.hint == hint)]


def _continues(node: Node, conversation: Conversation, at: int) -> bool:
    """Whether the messages before `at` are the node's request, less at most MOST_DROPPED of its user messages but not all."""
    missing = len(node.digests) - at
    if not 0 <= missing <= MOST_DROPPED or "u" not in conversation.roles[:at]:
        return False
    theirs = iter(zip(node.digests, node.roles, strict=True))
    for digest in conversation.digests[:at]:
        for candidate, role in theirs:
            if candidate == digest:
                break
            if role != "u":
                return False
        else:
            return False
    return all(role == "u" for _, role in theirs)


def _evidence(node: Node, conversation: Conversation, at: int, twins: set[str | None]) -> tuple:
    """Of several turns that could be the parent, one that a retry of this request has; then the most alike; then one that nothing
    continues yet (word for word the same conversation held twice at a time: each continuation gets its own); then the newest."""
    alike = (node.system == conversation.system, -abs(len(node.digests) - at))
    return node.turn_id in twins, *alike, node.successors == 0, node.created_at


def _dropped(node: Node, conversation: Conversation, at: int) -> frozenset[bytes]:
    theirs = Counter(digest for digest, role in zip(node.digests, node.roles, strict=True) if role == "u")
    ours = Counter(digest for digest, role in zip(conversation.digests[:at], conversation.roles, strict=False) if role == "u")
    return frozenset(theirs - ours)
