"""Decides which messages are the next state of a turn, and which requests a client makes for its own purposes (asides).

The next state of a turn is the input with which its conversation continued. Clients also continue a conversation for their own
purposes: a title, a suggestion of what the user may type, an extraction of memories. Such a request looks like the user's next
message. So the messages of a request are only claimed as the next state of the turn before, until one of these cases settles the
claim:

- The request brings only tool results of the same agent, names itself a main turn, or rates the turn before. It counts at once. The
  agent is the same if it offers the tools of the turn before, with the same start of the system prompt, to the same model.
- User text follows it (after its answer, or after the tool results that follow its answer), and a further request continues from
  there. It then counts if it comes from the same agent. One following request is not enough, because a client may ask for its own
  answer again. Tool results alone settle nothing, because a client's own call may use tools.
- The session ends. The latest claim counts that comes from the same agent or was followed by user text; the latter take precedence.
  Three kinds never count: text that lost against other claims and never won; a request whose answer came back to the same agent as
  text; and long text that ended several conversations, if no conversation ever continued with it.

Messages are compared as a whole. Long ones are also compared by their start and end, because a client may fill in the time or an
answer.

A claim that does not count is an aside. It closes as a side turn if it came from another agent, or if its text lost elsewhere.
Otherwise it may be a message that the user edited and sent again, and stays a main turn without a next state. A request that begins
a conversation closes as a side turn if it has no tools, nothing continues it, and it quotes another conversation of its key.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from clawctl.collect.canonical import CanonicalRequest, answer_text, line_hash, role_of, text_of
from clawctl.collect.nodes import Claim, Node
from clawctl.collect.side_rules import without_time
from clawctl.run.rows import Exchange, Message

MAX_ASIDE_WORDS = 1 << 14  # messages, for all users together
MAX_UNCERTAIN = 16  # claims per user whose answer is searched in later requests
MAX_WORDS = 8  # new messages of a request that are compared with those of other requests
LONG_WORDS = 40  # characters; shorter messages may be common phrases
SHORTEST = 8  # characters; minimum length of a line that can be quoted (for an answer that is found again: four times as many)
LONGEST = 120  # characters of a line that are compared
MAX_LINES = 256  # lines remembered per user
MAX_MESSAGES = 6  # messages at the end of a request that are remembered
MAX_TREES = 3  # trees recorded per line
LONGEST_PART = 8 << 10  # characters of a message part whose lines are examined
MAX_READ = 64 << 10  # characters of a request that are searched


class SideTurns:
    """Distinguishes user messages from a client's own messages, for the turns in `by_id`."""

    def __init__(self, by_id: Mapping[str, Node]) -> None:
        self._by_id = by_id
        self._texts, self._quotes = _SideTexts(), _Quotes()
        self._uncertain: dict[str, deque[Node]] = {}  # by user: the latest claims with a long answer

    def add(self, node: Node, exchange: Exchange) -> None:
        """Remember the texts of a main turn, because another request may quote them."""
        self._quotes.note(node.tree.client, id(node.tree), exchange.messages, exchange.response, bool(node.tools))

    def add_claim(self, node: Node, claim: Claim, exchange: Exchange) -> None:
        """Record that the messages of `node` are claimed as the next state of its parent."""
        self._texts.claimed(node.tree.client, node.texts, id(node.tree))
        node.samples, node.claim = samples_of(exchange.response), claim
        claim.parent.pending.append(node)
        if node.samples and claim.same_agent:
            self._uncertain.setdefault(node.tree.client, deque(maxlen=MAX_UNCERTAIN)).append(node)

    def count(self, node: Node) -> None:
        """Accept this claim and reject the other claims on its parent."""
        claim, node.claim = node.claim, None
        assert claim is not None
        claim.parent.successors += 1
        self.reject_others(claim.parent, node)

    def win(self, node: Node) -> None:
        """Record that the conversation continued with the messages of this claim."""
        self._texts.won(node.tree.client, node.texts)
        self.count(node)

    def reject_others(self, parent: Node, winner: Node) -> None:
        for other in parent.pending:
            if other is not winner and other.claim is not None and not other.settled:
                self._texts.lost(other.tree.client, set(other.texts) - set(winner.texts))

    def forget(self, client: str) -> None:
        self._quotes.forget(client)
        self._uncertain.pop(client, None)

    def mark_reused(self, node: Node, messages: list[Message]) -> None:
        """Mark claims whose answer this request contains as text, such as a summary after a compaction. The request continues none
        of them.
        """
        for other in self._uncertain.get(node.tree.client, ()):
            parent = other.claim.parent if other.claim is not None and not other.user_followed else None
            if parent is None or other is node or parent.opening != node.opening or not parent.tools <= node.tools:
                continue
            if holds(messages, other.samples):
                other.reused = True

    def best_claim(self, parent: Node) -> Node | None:
        """Return the continuation of a turn that its user most likely wrote, among those that may be asides."""
        claims = [(node, node.claim) for node in parent.pending if node.claim is not None and node.claim.next_state is not None]
        likely = [node for node, claim in claims if claim.same_agent or node.user_followed]
        results = [node for node in likely if node.brings_results] or [node for node, _ in claims if has_only_results(node)]
        # If a tool call has results, text alone after it is the client's own
        likely = results or likely
        likely = [node for node in likely if not node.reused and not self._may_be_aside(node)]
        return max(reversed(likely), key=lambda node: node.user_followed, default=None)

    def _may_be_aside(self, node: Node) -> bool:
        return self.has_side_text(node) or (not node.user_followed and self._texts.recur(node.tree.client, node.frames))

    def is_side_turn(self, node: Node, exchange: Exchange) -> bool:
        """Whether a turn that closes without a next state was a request that the client made for itself."""
        if node.answer is None:
            return False
        first = node  # first turn of the tool loop that contains it
        while first.brings_results and first.claim is None and (parent := self._by_id.get(first.parent_id or "")) is not None:
            first = parent
        if first.claim is not None:
            lost = node is first or first.claim.parent.exchange is None
            has_lost = (
                self.has_side_text(first)
                if first.claim.same_agent
                else not first.user_followed and (node is not first or not node.continued)
            )
            return lost and (first.reused or has_lost)
        if node.parent_id is not None or node.continued or node.tools:
            return False
        if node.tree.among_tools:
            return True
        begins = "a" not in node.roles  # otherwise it shows a conversation of its own, whose turns were not found
        return begins and self._quotes.are_about(node.tree.client, id(node.tree), exchange.messages, exchange.response)

    def has_side_text(self, node: Node) -> bool:
        """Whether the conversation did not continue with these messages anywhere and never has."""
        if node.claim is None or node.settled:
            return False
        return self._texts.include_rejected(node.tree.client, node.texts, decided=node.claim.parent.exchange is None)


def has_only_results(node: Node) -> bool:
    return node.brings_results and not node.user_digests


def new_texts(
    conversation: CanonicalRequest, messages: list[Message], begin: int, before: frozenset[int]
) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """Return digests of the user messages from `begin` on, and of the frames of the long ones, without the lines `before`."""
    indices = [index for index in range(begin, len(conversation.roles)) if conversation.roles[index] == "u"][:MAX_WORDS]
    frames = (_frame(text_of(messages[conversation.positions[index]].get("content")), before) for index in indices)
    return tuple(conversation.digests[index] for index in indices), tuple(frame for frame in frames if frame)


def _frame(text: str, before: frozenset[int]) -> bytes | None:
    """Return a digest of the start and end of a message, or None for a short message.

    Parts that may be a time and lines of the messages before are excluded, so the digest is the same wherever a client fills these
    in.
    """
    if before:
        text = "\n".join(line for line in text.split("\n") if line.strip() and line_hash(line.strip()) not in before)
    begins, ends = without_time(text[: 2 * LONG_WORDS]).strip(), without_time(text[-2 * LONG_WORDS :]).strip()
    if len(begins) < LONG_WORDS:
        return None
    frame = f"{begins[:LONG_WORDS]}\n{ends[-LONG_WORDS:]}"
    return blake2b(frame.encode("utf-8", "surrogatepass"), digest_size=12).digest()


@dataclass(slots=True)
class TextCounts:
    """How often some text was claimed as a next state, lost against other claims, and won."""

    claimed: int = 0
    lost: int = 0
    won: int = 0
    tree: int = 0  # the tree in which it was claimed last
    trees: int = 0  # how often that tree changed


class _SideTexts:
    """Texts that were claimed as a next state, with the numbers of conversations that did and did not continue with them."""

    def __init__(self) -> None:
        self._texts: OrderedDict[tuple[str, bytes], TextCounts] = OrderedDict()

    def claimed(self, user: str, digests: Iterable[bytes], tree: int) -> None:
        for counts in self._counts_of(user, digests):
            counts.claimed += 1
            counts.tree, counts.trees = tree, counts.trees + (counts.tree != tree)

    def lost(self, user: str, digests: Iterable[bytes]) -> None:
        for counts in self._counts_of(user, digests):
            counts.lost += 1

    def won(self, user: str, digests: Iterable[bytes]) -> None:
        for counts in self._counts_of(user, digests):
            counts.won += 1

    def include_rejected(self, user: str, digests: Iterable[bytes], decided: bool) -> bool:
        """Whether some of these texts lost and never won. For a `decided` claim they must also have been claimed elsewhere.

        A text that lost only once may be a message that the user edited.
        """
        all_counts = [self._texts.get((user, digest), TextCounts()) for digest in digests]
        return any(counts.lost and not counts.won and (counts.claimed > 1 or not decided) for counts in all_counts)

    def recur(self, user: str, digests: Iterable[bytes]) -> bool:
        """Whether some of these texts were claimed in several conversations, and no conversation ever continued with them."""
        all_counts = [self._texts.get((user, digest), TextCounts()) for digest in digests]
        return any(counts.trees > 1 and not counts.won for counts in all_counts)

    def _counts_of(self, user: str, digests: Iterable[bytes]) -> Iterator[TextCounts]:
        for digest in digests:
            counts = self._texts.setdefault((user, digest), TextCounts())
            self._texts.move_to_end((user, digest))
            yield counts
        while len(self._texts) > MAX_ASIDE_WORDS:
            self._texts.popitem(last=False)


@dataclass(slots=True)
class QuotedLine:
    """Where a line was seen."""

    trees: set[int] = field(default_factory=set)  # at most MAX_TREES
    by_user: bool = False  # in a user message that was not an answer
    with_tools: bool = False  # in a request with tools


class _Quotes:
    """The longest line of each recent message and answer, by user."""

    def __init__(self) -> None:
        self._lines: dict[str, OrderedDict[str, QuotedLine]] = {}

    def note(self, user: str, tree: int, messages: Sequence[Message], response: Message | None, with_tools: bool) -> None:
        """Remember the last messages of a user, each part separately, and the answer."""
        of_user = [message for message in messages[-MAX_MESSAGES:] if role_of(message) == "user"]
        lines = [(_longest_line(text), True) for message in of_user for text in _parts(message)]
        if response is not None:
            lines.append((_longest_line(answer_text(response)), False))
        quoted = self._lines.setdefault(user, OrderedDict())
        for text, by_user in lines:
            if len(text) >= SHORTEST:
                line = quoted.setdefault(text, QuotedLine())
                quoted.move_to_end(text)
                line.by_user, line.with_tools = line.by_user or by_user, line.with_tools or with_tools
                if len(line.trees) < MAX_TREES:
                    line.trees.add(tree)
        while len(quoted) > MAX_LINES:
            quoted.popitem(last=False)

    def are_about(self, user: str, tree: int, messages: Sequence[Message], response: Message | None) -> bool:
        """Whether a request without tools quotes another tree, or its answer is quoted by a user message of another tree.

        A request quotes a line if more user text surrounds it, or if the other tree has tools. A line that occurs in several trees
        proves nothing: it may be a text of the client, or a prompt that is sent repeatedly.
        """
        texts = [part for message in messages if role_of(message) in ("user", "system") for part in _parts(message)]
        user_chars = sum(len(part) for message in messages if role_of(message) == "user" for part in _parts(message))
        searched = "\n".join(texts)[-MAX_READ:]
        answered = _longest_line(answer_text(response)) if response is not None else ""
        for text, line in self._lines.get(user, {}).items():
            if len(line.trees - {tree}) == 1 and (
                (text in searched and (line.with_tools or user_chars >= len(text) + 2 * SHORTEST))
                or (line.by_user and text == answered)
            ):
                return True
        return False

    def forget(self, user: str) -> None:
        self._lines.pop(user, None)


def samples_of(response: Message | None) -> tuple[str, ...]:
    """Return three samples of an answer, by which it can be found in another text. Empty for a short answer."""
    text = answer_text(response) if response is not None else ""
    size = 4 * SHORTEST
    if len(text) < size:
        return ()
    return tuple(dict.fromkeys(text[start : start + size] for start in (len(text) // 4, len(text) // 2, len(text) - size)))


def holds(messages: Iterable[Message], samples: Sequence[str]) -> bool:
    """Whether a user or system message contains most samples of an answer."""
    for message in messages:
        if role_of(message) in ("user", "system"):
            text = text_of(message.get("content"))[:MAX_READ]
            if 2 * sum(sample in text for sample in samples) > len(samples):
                return True
    return False


def _parts(message: Message) -> list[str]:
    content = message.get("content")
    return [text_of([part]) for part in content] if isinstance(content, list) else [text_of(content)]


def _longest_line(text: str) -> str:
    return max((line.strip() for line in text[:LONGEST_PART].splitlines()), key=len, default="")[:LONGEST]
