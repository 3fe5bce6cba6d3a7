"""Which turn does a request answer? By evidence in the request, never by time.

From the last assistant message backwards: (a) the id of a tool call that was given comes back; (b) the answer of a known turn
stands behind the same conversation, less up to two user messages of the parent's request (transient context that clients take out
again); (c) two answers of one conversation stand merged in one message; (d) within one claimed session, the answer alone: what
stood before it was compacted or edited. Hints scope the search: two different session ids never meet, and users never do.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Literal

from clawctl.collect.canonical import Conversation, answers_within, extend_path, handles
from clawctl.types import Exchange, Message

MOST_DROPPED = 2  # user messages of the parent that may be missing in the child
MOST_COMPARED = 256  # newest turns with the same words that are looked at one by one


Relation = Literal["exact", "tail-drop", "mid-drop", "diverged"]


@dataclass(slots=True, eq=False)
class Tree:
    """One conversation as it is known: a root and everything that continues it."""

    user: str
    session_id: str
    last_seen: float  # when its newest exchange ended, on the clock of serve
    nodes: list["Node"] = field(default_factory=list)
    among_tools: bool = False  # whether a request of its session had tools


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
    whole: bytes
    ends_transient: bool  # its request ends with known transient context
    handles: tuple[str, ...]  # what a client may name this turn by: its id, and the ids of its tool calls
    answer: bytes | None  # None after an error: nothing can follow it
    relation: "Relation | None"  # to its parent
    exchange: Exchange | None
    with_tools: bool  # whether its request offers any
    successors: int = 0  # main turns that continue it
    aside_of: "tuple[Node, list[Message] | None] | None" = None  # its parent and what it says to it, while it may be a utility call

    @property
    def user(self) -> str:
        return self.tree.user


@dataclass(frozen=True, slots=True)
class Match:
    """A parent, and how it was found in the request."""

    node: Node
    at: int  # where its answer stands in the child's Conversation
    dropped: frozenset[bytes]  # user messages of the parent that the child lacks
    relation: Relation  # "exact": the parent's request and its answer begin the child's request
    replies: bool  # what follows the answer is a reaction to it; False: only the answer was found again, in other surroundings


class Index:
    """All turns of live trees, found by id, by the conversation that ends with their answer, or by the answer alone."""

    def __init__(self) -> None:
        self.by_id: dict[str, Node] = {}
        self._by_handle: dict[tuple[str, str], list[Node]] = defaultdict(list)
        self._by_path: dict[tuple[str, bytes], list[Node]] = defaultdict(list)
        self._by_answer: dict[tuple[str, bytes], list[Node]] = defaultdict(list)
        self._by_request: dict[tuple[str, str | None, bytes], list[Node]] = defaultdict(list)

    def add(self, node: Node) -> None:
        self.by_id[node.turn_id] = node
        for index, key in self._places(node):
            index[key].append(node)

    def remove(self, node: Node) -> None:
        del self.by_id[node.turn_id]
        for index, key in self._places(node):
            index[key].remove(node)
            if not index[key]:
                del index[key]

    def _places(self, node: Node) -> list[tuple[dict, tuple]]:
        places: list[tuple[dict, tuple]] = [(self._by_request, (node.user, node.hint, node.path))]
        if node.answer is not None:
            places.append((self._by_path, (node.user, extend_path(node.path, node.answer))))
            places.append((self._by_answer, (node.user, node.answer)))
        return places + [(self._by_handle, (node.user, handle)) for handle in dict.fromkeys(node.handles)]

    def twins(self, user: str, hint: str | None, path: bytes) -> list[Node]:
        """Turns whose request has the same messages: retries and regenerations of one another if they share their parent."""
        return self._by_request.get((user, hint, path), [])[-MOST_COMPARED:]

    def find_parent(
        self, conversation: Conversation, messages: list[Message], user: str, hint: str | None, since: float
    ) -> Match | None:
        """The turn that this request continues, or None: then it is a root. Trees not seen since `since` are over."""
        twins = {twin.parent_id for twin in self.twins(user, hint, conversation.path)}
        answers = [at for at, role in enumerate(conversation.roles) if role == "a"]
        for at in reversed(answers):
            found, replies = self._candidates(conversation, messages, at, user, hint, since), True
            if not found and at == answers[-1] and hint is not None:
                alike = _open_to(self._alike(user, conversation.digests[at]), hint, since)
                found = [node for node in alike if node.hint == hint]
                replies = any(_stands_behind(node, conversation, at) for node in found)
                found = [node for node in found if _stands_behind(node, conversation, at)] if replies else found
            if found:
                best = max(found, key=lambda node: _evidence(node, conversation, at, twins))
                return Match(best, at, _dropped(best, conversation, at), _relation(best, conversation, at), replies)
        return None

    def _candidates(
        self, conversation: Conversation, messages: list[Message], at: int, user: str, hint: str | None, since: float
    ) -> list[Node]:
        """Turns that the answer at `at` may be, by the strongest evidence that there is."""
        answer = messages[conversation.at[at]]
        named = [node for handle in handles(answer) for node in self._by_handle.get((user, handle), [])]
        found = _open_to(named, hint, since)
        found = found or _open_to(self._by_path.get((user, conversation.paths[at]), [])[-MOST_COMPARED:], hint, since)
        if found:
            return found
        alike = _open_to(self._alike(user, conversation.digests[at]), hint, since)
        found = [node for node in alike if continues(node, conversation, at)]
        if found:
            return found
        merged = ((first, node) for first, rest in answers_within(answer) for node in self._alike(user, rest))
        return _open_to([node for first, node in merged if _merges(node, first, conversation, at)], hint, since)

    def _alike(self, user: str, answer: bytes) -> list[Node]:
        return self._by_answer.get((user, answer), [])[-MOST_COMPARED:]


def _open_to(nodes: list[Node], hint: str | None, since: float) -> list[Node]:
    return [n for n in nodes if n.tree.last_seen >= since and (n.hint is None or hint is None or n.hint == hint)]


def continues(node: Node | Conversation, conversation: Conversation, at: int) -> bool:
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


def _merges(node: Node, first: bytes, conversation: Conversation, at: int) -> bool:
    """Whether the node's request is what stands before `at`, then the answer `first`, then something that the client took out."""
    return node.digests[:at] == conversation.digests[:at] and len(node.digests) > at and node.digests[at] == first


def _stands_behind(node: Node, conversation: Conversation, at: int) -> bool:
    """Whether the message before the answer is the last of the node's request."""
    return at > 0 and bool(node.digests) and node.digests[-1] == conversation.digests[at - 1]


def _relation(node: Node, conversation: Conversation, at: int) -> Relation:
    """How the parent's request stands in the child's."""
    if conversation.before[at] == node.whole:
        return "exact"
    if node.system != conversation.system or len(node.digests) < at or not _is_within(conversation, node, at):
        return "diverged"
    kept = len(node.digests) == at
    at_end = node.ends_transient if kept else node.digests[:at] == conversation.digests[:at]
    return "tail-drop" if at_end else "mid-drop"


def _is_within(conversation: Conversation, node: Node, at: int) -> bool:
    theirs = iter(node.digests)
    return all(digest in theirs for digest in conversation.digests[:at])


def _evidence(node: Node, conversation: Conversation, at: int, twins: set[str | None]) -> tuple:
    """Of several turns that could be the parent, one that a retry of this request has; then the most alike; then one that nothing
    continues yet (word for word the same conversation held twice at a time: each continuation gets its own); then the newest."""
    alike = (node.system == conversation.system, -abs(len(node.digests) - at))
    return node.turn_id in twins, *alike, node.successors == 0, node.created_at


def _dropped(node: Node, conversation: Conversation, at: int) -> frozenset[bytes]:
    theirs = Counter(digest for digest, role in zip(node.digests, node.roles, strict=True) if role == "u")
    ours = Counter(digest for digest, role in zip(conversation.digests[:at], conversation.roles, strict=False) if role == "u")
    return frozenset(theirs - ours)
