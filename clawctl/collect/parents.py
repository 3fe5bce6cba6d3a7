"""Finds the turn that a request continues, by evidence in the request and never by time.

The search goes backwards from the last assistant message. For each message it tries the kinds of evidence in the order of
`ParentEvidence`:

handle        the id of a tool call, or another handle that serve issued, comes back
conversation  the answer of a known turn follows the same conversation; if it continues the last message, joined with it or alone
context       the same, but up to two user messages of that turn's request are missing: context that the client removed
merged        two answers of one conversation are merged into one message
prefix        the same request is followed by a message that begins with the answer: the client appended text, or removed a tool
              call; or the message is a text that contains the id of the answer's tool call
reminder      one user message of that turn's request has lost some of its lines: a reminder that the client removed; the client may
              also have changed the arguments of the answer's tool calls
alike         the same answer and user messages after the same conversation, but some are cleaned, escaped, wrapped in a template,
              marked or cut; their letters are the same or contained in one another
final         the tool calls and tool results of that turn's request are missing: the client keeps final answers only
window        the last messages of that turn's request: the client cut off, cut out, summarised or renewed messages before them
descendant    an earlier message has the handle of a turn, and the answer is that of one of its descendants
session       the answer belongs to the session that the client names: the messages before it were compacted or edited
completion    for a plain completion: the prompt begins with the turn's prompt and answer

From `prefix` on, evidence is searched for the newest answers only, because it costs more and proves less. `prefix`, `reminder` and
`alike` examine the newest three, since a client may add answers of its own ("Ok.", a plan). The others examine the newest one.
Hints limit the search: two different session ids never match, except for the turn that `previous_response_id` names, and neither
do two users.
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence, Set

from clawctl.collect.canonical import (
    CanonicalRequest,
    answer_text,
    answers_within,
    begins_with,
    extend_path,
    handles,
    letters_of,
    line_hash,
    line_texts,
    lines_of,
    message_digest,
    read_conversation,
    role_of,
    text_of,
    tools_called,
)
from clawctl.collect.nodes import Match, Node, ParentEvidence, Relation, SessionTree
from clawctl.collect.plain_completions import CompletionIndex
from clawctl.collect.side_rules import opening_of, without_time
from clawctl.run.rows import Exchange, Message

MAX_DROPPED = 2  # user messages of the parent that may be missing in the child
MAX_COMPARED = 256  # newest turns with equal text that are compared one by one
MAX_ALIKE = 16  # newest turns whose texts are compared
MAX_TAIL = 4096  # characters of a closed turn's newest messages and answer that are kept
MAX_ANCESTORS = 8  # turns whose lines are compared with those of a new message
MAX_ADDED = 3  # newest answers that are examined closely
SHORTEST_PREFIX = 8  # characters; shorter answers are not identified by their start alone
LONG_REMINDER = 6  # lines; this many missing lines count as a reminder even without a tag
SHORTEST_ALIKE = 24  # letters; minimum length of changed messages and their answer that are found again
LETTERS_OF_LABEL = 6  # at the beginning of a template, and in front of the question in it
SHORTEST_END = 48  # characters; minimum length of messages that are found in another context, or changed


class ParentIndex:
    """All turns of live trees, by id, by the conversation that ends with their answer, and by the answer alone."""

    def __init__(self) -> None:
        self.by_id: dict[str, Node] = {}
        self._by_handle: dict[tuple[str, str], list[Node]] = defaultdict(list)
        self._by_path: dict[tuple[str, bytes], list[Node]] = defaultdict(list)
        self._by_answer: dict[tuple[str, bytes], list[Node]] = defaultdict(list)
        self._by_request: dict[tuple[str, str | None, bytes], list[Node]] = defaultdict(list)
        self._by_prompt: dict[tuple[str, bytes], list[Node]] = defaultdict(list)  # like _by_request, for any session
        self._by_first: dict[tuple[str, bytes], list[Node]] = defaultdict(list)  # by the first message of the conversation
        self._plain = CompletionIndex()

    def add(self, node: Node) -> None:
        self.by_id[node.turn_id] = node
        self._plain.add(node)
        for index, key in self._index_keys(node):
            index[key].append(node)

    def remove(self, node: Node) -> None:
        del self.by_id[node.turn_id]
        self._plain.remove(node)
        for index, key in self._index_keys(node):
            index[key].remove(node)
            if not index[key]:
                del index[key]

    def _index_keys(self, node: Node) -> list[tuple[dict, tuple]]:
        keys: list[tuple[dict, tuple]] = [(self._by_request, (node.user, node.hint, node.path))]
        if node.answer is not None:
            keys += [(self._by_first, (node.user, digest)) for digest in node.digests[:1]]
            keys.append((self._by_prompt, (node.user, node.path)))
            keys.append((self._by_path, (node.user, extend_path(node.path, node.answer))))
            keys += [(self._by_answer, (node.user, digest)) for digest in (node.answer, node.called) if digest is not None]
            keys += [(self._by_path, (node.user, path)) for path in node.continued_paths]
        return keys + [(self._by_handle, (node.user, handle)) for handle in dict.fromkeys(node.handles)]

    def lines_before(self, node: Node) -> frozenset[int]:
        """Return the lines of the newest messages of a turn and of the turns before it."""
        turns = [node]
        while len(turns) < MAX_ANCESTORS and (parent := self.by_id.get(turns[-1].parent_id or "")) is not None:
            turns.append(parent)
        return frozenset(line for turn in turns if turn.lines for line in turn.lines[1])

    def is_before(self, nodes: list[Node]) -> Callable[[str], bool]:
        """Return a function that returns whether a line is one of `lines_before` of these turns, with another time or not."""
        return lambda line: any(
            line_hash(line) in self.lines_before(node) or without_time(line) in map(without_time, _sent_lines(node))
            for node in nodes
        )

    def find_repeats(self, user: str, hint: str | None, path: bytes) -> list[Node]:
        """Return turns whose request has the same messages. If they have the same parent, they are retries or regenerations of each
        other.
        """
        return self._by_request.get((user, hint, path), [])[-MAX_COMPARED:]

    def find_parent(self, conversation: CanonicalRequest, exchange: Exchange, hint: str | None, since: float) -> Match | None:
        """Return the turn that this request continues, or None for a root. Trees not seen since `since` have ended.

        Answers after that of the request's `previous_response_id` are the client's own.
        """
        messages, user, previous = exchange.messages, exchange.key, exchange.hints.get("continues")
        repeats = {twin.parent_id for twin in self.find_repeats(user, hint, conversation.path)}
        answers = [index for index, role in enumerate(conversation.roles) if role == "a"]
        answers += [index for index in answers if previous and previous in handles(messages[conversation.positions[index]])]
        for index in reversed(answers):
            for evidence, candidates in self._candidates(conversation, messages, index, user, hint):
                matches = [node for node in candidates if _is_open(node, None if node.turn_id == previous else hint, since)]
                if matches and evidence != "handle":
                    named = self._named_trees(conversation, messages, index, user, hint, since)
                    matches = [node for node in matches if not named or node.tree in named]
                if not matches:
                    continue
                if evidence == "session":
                    followers = [node for node in matches if _follows_request(node, conversation, index)]
                    matches, replies = followers or matches, bool(followers)
                    if len({id(node.tree) for node in matches}) > 1:
                        continue  # several conversations of this session have this answer
                else:
                    replies = True
                best = max(matches, key=lambda node: _evidence(node, conversation, index, repeats))
                dropped = _dropped(best, conversation, index) if evidence != "window" else frozenset[bytes]()
                return Match(best, index, dropped, _relation(best, conversation, index), evidence, replies)
        return None

    def find_plain_parent(self, exchange: Exchange, hint: str | None, since: float) -> Match | None:
        """Like `find_parent`, for a plain completion: find the turn whose prompt and answer are the longest prefix of its
        prompt.
        """
        matches = [(node, added) for node, added in self._plain.find(exchange) if _is_open(node, hint, since)]
        if not matches:
            return None
        best, added = max(matches, key=lambda match: (match[0].beginnings[0].length, not match[0].continued, match[0].created_at))
        return Match(best, -1, frozenset(), "exact", "completion", True, added)

    def _candidates(
        self, conversation: CanonicalRequest, messages: list[Message], index: int, user: str, hint: str | None
    ) -> Iterator[tuple[ParentEvidence, list[Node]]]:
        """Yield the turns whose answer may be the message at `index`, strongest evidence first."""
        answer = messages[conversation.positions[index]]
        yield "handle", [node for handle in handles(answer) for node in self._by_handle.get((user, handle), [])]
        yield "conversation", self._by_path.get((user, conversation.paths[index]), [])[-MAX_COMPARED:]
        same_answer = self._same_answer(user, conversation.digests[index])
        yield "context", [node for node in same_answer if continues(node, conversation, index)]
        yield "merged", self._merged(conversation, answer, index, user)
        newer = conversation.roles.count("a", index + 1)
        if newer >= MAX_ADDED:
            return
        yield "prefix", self._longest_prefix(conversation, messages, index, user)
        same_calls = self._same_answer(user, message_digest(answer, with_arguments=False)) if answer.get("tool_calls") else []
        yield "reminder", [node for node in same_answer or same_calls if _lacks_reminder(node, conversation, messages, index)]
        yield "alike", self._alike(conversation, messages, index, user, hint)
        if newer:
            return
        yield "final", [node for node in same_answer if _kept_final_answers(node, conversation, index)]
        yield "window", self._with_common_end(same_answer, conversation, messages, index)
        yield "descendant", self._descendants(conversation, messages, index, user)
        if hint is not None:
            yield "session", [node for node in same_answer if node.hint == hint]

    def _merged(self, conversation: CanonicalRequest, answer: Message, index: int, user: str) -> list[Node]:
        """Return turns whose own answer is the second of two answers in the message at `index`.

        The request of such a turn is the conversation before `index`, then the first answer.

        Every possible cut of the message must be hashed, so a conversation with an unknown first message is skipped.
        """
        if index > 0 and (user, conversation.digests[0]) not in self._by_first:
            return []
        cuts = ((first, node) for first, rest in answers_within(answer) for node in self._same_answer(user, rest))
        return [node for first, node in cuts if _merges(node, first, conversation, index)]

    def _named_trees(
        self, conversation: CanonicalRequest, messages: list[Message], index: int, user: str, hint: str | None, since: float
    ) -> list[SessionTree]:
        """Return the trees of the last turn before `index` that a handle names. Without handles, two runs of one prompt look the
        same.
        """
        for i in range(index - 1, max(index - MAX_COMPARED, 0) - 1, -1):
            if conversation.roles[i] == "a":
                groups = (self._by_handle.get((user, handle), []) for handle in handles(messages[conversation.positions[i]]))
                trees = [node.tree for nodes in groups for node in nodes if _is_open(node, hint, since)]
                if trees:
                    return trees
        return []

    def _longest_prefix(self, conversation: CanonicalRequest, messages: list[Message], index: int, user: str) -> list[Node]:
        """Return the turns with this request whose answer begins the message. Only the longest answer counts: one may begin
        another.
        """
        if index == 0:
            return []
        nodes = self._by_prompt.get((user, conversation.paths[index - 1]), [])[-MAX_COMPARED:]
        shown = answer_text(messages[conversation.positions[index]])
        named = [node for node in nodes if any(handle in shown for handle in node.handles[1:])]
        if named:
            return named  # the client wrote the call into the text, with its id
        matches = [node for node in nodes if node.text is not None and begins_with(shown, node.text)]
        matches = [
            node
            for node in matches
            if node.text is not None
            and (
                node.text.length >= SHORTEST_END or not _continues_after(shown[node.text.length :])
            )  # "one two" begins "one two three"
        ]
        longest = max((node.text.length for node in matches if node.text), default=0)
        return [node for node in matches if node.text and node.text.length == longest]

    def _alike(
        self, conversation: CanonicalRequest, messages: list[Message], index: int, user: str, hint: str | None
    ) -> list[Node]:
        """Return the turns after the same conversation whose new messages or answer are those up to `index` in another form: those
        with the longest common text.
        """
        before = conversation.roles.rfind("a", 0, index) + 1
        same_request = self._by_prompt.get((user, conversation.paths[index - 1]), []) if index else []
        same_answer = self._same_answer(user, conversation.digests[index])
        nodes = dict.fromkeys([*same_request[-MAX_ALIKE:], *same_answer])
        if joined := [node for node in same_answer[-MAX_ALIKE:] if _has_joined_messages(node, conversation, messages, index)]:
            return joined
        near = [
            node
            for node in nodes
            if (node.exchange is not None or node.tail)
            and node.before == conversation.path_before(index)
            and node.roles[before:] == conversation.roles[before:index]
            and node.opening == opening_of(messages)
        ]
        lengths = {node: _length_alike(node, conversation, messages, before, index, hint) for node in near[-MAX_ALIKE:]}
        longest = max(lengths.values(), default=0)
        return [node for node, length in lengths.items() if length == longest > 0]

    def _with_common_end(
        self, same_answer: list[Node], conversation: CanonicalRequest, messages: list[Message], index: int
    ) -> list[Node]:
        """Return the nodes with this answer whose request ends like the messages before `index`, with the longest common end.

        The messages in front of the common end may be new (a summary, a file), but must not contain an answer of another
        conversation.
        """
        ends = {node: _common_end(node, conversation, messages, index) for node in same_answer}
        cut = [node for node, end in ends.items() if _is_cut(node, conversation, index, end)]
        if len(cut) == len(same_answer) == 1 and _length(conversation, messages, 0, index) >= SHORTEST_END // 2:
            return cut
        longest = max(ends.values(), default=0)
        if not longest or not _is_same_end(conversation, messages, longest, index):
            renewed = [node for node in same_answer if _has_renewed_results(node, conversation, messages, index)]
            return renewed if len(renewed) == 1 and _length(conversation, messages, 0, index) >= SHORTEST_END else []
        front = [conversation.digests[i] for i in range(index - longest) if conversation.roles[i] == "a"][-MAX_COMPARED:]
        return [
            node
            for node, end in ends.items()
            if end == longest
            and (
                _is_one_edited(node, conversation, index, index - longest - 1)
                or _may_be_renewed(node, conversation, messages, index - longest - 1, len(node.digests) - longest - 1)
            )
            and all(
                not matches or any(other.tree is node.tree and other is not node for other in matches)
                for matches in (self._same_answer(node.user, digest) for digest in front)
            )
        ]

    def _descendants(self, conversation: CanonicalRequest, messages: list[Message], index: int, user: str) -> list[Node]:
        """Return turns with this answer among the descendants of a turn whose handle is in an earlier message."""
        earlier = [messages[conversation.positions[i]] for i in range(index) if conversation.roles[i] == "a"]
        named = {
            node.turn_id: node.tree
            for message in earlier[-MAX_COMPARED:]
            for handle in handles(message)
            for node in self._by_handle.get((user, handle), [])
        }
        shown = answer_text(messages[conversation.positions[index]])
        newest = [node for tree in dict.fromkeys(named.values()) for node in tree.nodes[-MAX_COMPARED:]][-MAX_COMPARED:]
        long = [node for node in newest if node.text is not None and node.text.length >= SHORTEST_PREFIX]
        begun = [node for node in long if node.text and begins_with(shown, node.text)]
        same_answer = self._same_answer(user, conversation.digests[index])
        # Tool results may have been cleared.
        last_user_digest = conversation.digests[index - 1] if conversation.roles[index - 1] == "u" else None
        matches = dict.fromkeys([*same_answer, *begun])
        likely = [
            node
            for node in matches
            if (node.digests[-1:] == (last_user_digest,) if last_user_digest else node.roles[-1:] == conversation.roles[index - 1])
        ]
        return [node for node in likely if named and self._is_descendant(node, named.keys())]

    def _is_descendant(self, node: Node, named: Set[str]) -> bool:
        ancestor_id = node.parent_id
        while ancestor_id is not None:
            if ancestor_id in named:
                return True
            parent = self.by_id.get(ancestor_id)
            ancestor_id = parent.parent_id if parent is not None else None
        return False

    def _same_answer(self, user: str, answer: bytes) -> list[Node]:
        return self._by_answer.get((user, answer), [])[-MAX_COMPARED:]


def _continues_after(rest: str) -> bool:
    """Whether a text continues with further words, as a longer answer would. A client appends a line or a tag."""
    return rest[:1] == " " or rest[:1].isalnum()


def _is_one_moved(ours: Sequence[bytes], theirs: Sequence[bytes]) -> bool:
    """Whether two lists of as many digests are the same but for the place of one message. Where two changed places, two people
    asked the same questions."""
    at = next((place for place, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]), None)
    if at is None:
        return True
    for moved in (ours[at], theirs[at]):
        rests = list(ours[at:]), list(theirs[at:])
        if all(moved in rest for rest in rests):
            for rest in rests:
                rest.remove(moved)
            if rests[0] == rests[1]:
                return True
    return False


def _is_open(node: Node, hint: str | None, since: float) -> bool:
    return node.tree.last_seen >= since and (node.hint is None or hint is None or node.hint == hint)


def continues(node: Node | CanonicalRequest, conversation: CanonicalRequest, index: int) -> bool:
    """Whether the messages before `index` are the node's request without up to MAX_DROPPED of its user or system messages.

    At least one user message must remain.
    """
    missing = len(node.digests) - index
    if not missing and _is_one_moved(node.digests, conversation.digests[:index]):
        return True  # context that the client moved
    if not 0 <= missing <= MAX_DROPPED or "u" not in conversation.roles[:index]:
        return False
    node_messages = iter(zip(node.digests, node.roles, strict=True))
    for digest in conversation.digests[:index]:
        for candidate, role in node_messages:
            if candidate == digest:
                break
            if role not in "us":
                return False
        else:
            return False
    return all(role in "us" for _, role in node_messages)


def _merges(node: Node, first: bytes, conversation: CanonicalRequest, index: int) -> bool:
    """Whether the node's request is the conversation before `index`, then the answer `first`, then text that the client removed."""
    return node.digests[:index] == conversation.digests[:index] and len(node.digests) > index and node.digests[index] == first


def _lacks_reminder(node: Node, conversation: CanonicalRequest, messages: list[Message], index: int) -> bool:
    """Whether the messages before `index` are the node's request, except for lines missing from its last user message.

    The missing lines begin and end with a tag, or are many, or an earlier answer proves that the conversation is the same. A short
    conversation is too little evidence, unless the missing lines are now in the last user message.
    """
    if node.lines is None or not len(node.digests) == index == _common_end(node, conversation, messages, index):
        return False
    position, node_lines = node.lines
    line_counts = Counter(lines_of(messages[conversation.positions[position]]))
    lost = [line for line in node_lines if line_counts[line] == 0]
    tagged = bool(lost) and lost[0] % 2 == lost[-1] % 2 == 1
    length = _length(conversation, messages, 0, index)
    long = length >= (SHORTEST_END // 2 if tagged else SHORTEST_END)
    # A client that adds text to its newest message adds it to the next one as well, unless only results of a call follow.
    is_much = length >= SHORTEST_END // 2 or len(lost) >= LONG_REMINDER
    has_results = conversation.roles[index + 1 : index + 2] == "t"
    if lost and is_much and (has_results or _is_in_last_user_message(lost, node, conversation, messages, index)):
        return True
    if any(line % 2 for line in lost):
        return long and tagged  # text before or after a tag belongs to the user
    return long and (len(lost) >= LONG_REMINDER or "a" in node.roles)


def _is_in_last_user_message(
    lost: Collection[int], node: Node, conversation: CanonicalRequest, messages: list[Message], index: int
) -> bool:
    """Whether the last user message after `index` has all these lines of the node's last user message, with another time or not."""
    last = conversation.roles.rfind("u")
    if last <= index:
        return False
    shown = line_texts(messages[conversation.positions[last]])
    if set(lost) <= set(map(line_hash, shown)):
        return True
    sent = [line for line in _sent_lines(node) if line_hash(line) in lost]
    return bool(sent) and set(map(without_time, sent)) <= set(map(without_time, shown))


def _sent_lines(node: Node) -> list[str]:
    """Return the lines of the last user message of an open turn."""
    if node.exchange is None or node.lines is None:
        return []
    messages = node.exchange.messages
    return line_texts(messages[read_conversation(messages).positions[node.lines[0]]])


def tail_of(node: Node) -> list[Message]:
    """Return the messages after the last answer in an open turn's request, and its own answer."""
    assert node.exchange is not None
    messages, begin = node.exchange.messages, node.roles.rfind("a") + 1
    places = read_conversation(messages).positions[begin:]
    return [*(messages[place] for place in places), node.exchange.response or {}]


def short_tail(node: Node) -> list[Message]:
    """Return `tail_of` a turn that closes, because a client may send it back in another form; empty if it is long or an error."""
    tail = tail_of(node) if node.answer is not None else []
    return tail if sum(len(text_of(message.get("content"))) for message in tail) < MAX_TAIL else []


def _length_alike(
    node: Node, conversation: CanonicalRequest, messages: list[Message], begin: int, index: int, hint: str | None
) -> int:
    """Return how many letters the messages from `begin` to the answer at `index` have in common with those of the turn.

    0 if a message has other letters or calls another tool, or if they are too few. A session that the client names, a template that
    is also in the newest message, and the same letters in the middle of a conversation need no length.
    """
    newest, common = letters_of(messages[-1]), 0
    is_sure, are_equal, questions = node.hint is not None and node.hint == hint, True, set[bool]()
    for i, original in enumerate(node.tail or tail_of(node), begin):
        shown = messages[conversation.positions[i]]
        before, after = letters_of(original), letters_of(shown)
        shorter, longer = sorted((before, after), key=len)
        common += len(shorter)
        if conversation.digests[i] == (node.digests[i] if i < index else node.answer):
            continue
        if conversation.roles[i] == "t" or shorter not in longer or tools_called(original) != tools_called(shown):
            return 0
        if before != after and len(shorter) < SHORTEST_PREFIX and not (tools_called(shown) and not shorter):
            return 0
        begun, _, ended = before.partition(after) if after else ("", "", "")
        is_sure = is_sure or bool(begun and newest.startswith(begun[:16])) or bool(ended and newest.endswith(ended[-16:]))
        is_sure = is_sure or _is_in_template(before, after, newest)
        are_equal = are_equal and before == after
        if i < index and before != after:  # whether it has grown, or too little of it is left
            questions.add(len(after) > len(before) or len(after) < SHORTEST_ALIKE)
    is_sure = is_sure or (begin > 0 and are_equal)
    is_enough = common >= (SHORTEST_ALIKE if begin or not questions else SHORTEST_END) and (begin > 0 or True not in questions)
    return common if is_sure or is_enough else 0


def _is_in_template(message: str, kept: str, newest: str) -> bool:
    """Whether the kept letters end a message whose beginning, and the label in front of them, are also in the newest message.

    A client puts other documents in front of each question.
    """
    begun = message.removesuffix(kept) if kept else ""
    begin, label = begun[:LETTERS_OF_LABEL], begun[-LETTERS_OF_LABEL:]
    return LETTERS_OF_LABEL * 2 <= len(begun) < len(message) and newest.startswith(begin) and label in newest[LETTERS_OF_LABEL:]


def _has_joined_messages(node: Node, conversation: CanonicalRequest, messages: list[Message], index: int) -> bool:
    """Whether the newest user messages of the turn, with known transients, are those before `index`, joined or divided in another
    way.
    """
    before = node.roles.rfind("a") + 1
    if set(node.roles[before:] + conversation.roles[before:index]) != {"u"} or node.before != conversation.path_before(index):
        return False
    ours = _newest_texts(node.exchange.messages if node.exchange is not None else node.tail[:-1])
    theirs = _newest_texts(messages[: conversation.positions[index]])
    return bool(ours) and len(ours) != len(theirs) and "".join(ours) == "".join(theirs)


def _newest_texts(messages: list[Message]) -> list[str]:
    """Return the text of each user message after the last answer, without whitespace."""
    last = max((i for i, message in enumerate(messages) if role_of(message) == "assistant"), default=-1)
    return ["".join(text_of(message.get("content")).split()) for message in messages[last + 1 :] if role_of(message) == "user"]


def _is_same_end(conversation: CanonicalRequest, messages: list[Message], end: int, index: int) -> bool:
    """Whether this many equal messages before `index` cannot be a coincidence: an answer, a user message and sufficient length."""
    lengths = [
        (conversation.roles[i], len(text_of(messages[conversation.positions[i]].get("content"))))
        for i in range(index - end, index + 1)
    ]
    answers = [length for role, length in lengths if role == "a"]
    user_lengths = [length for role, length in lengths if role == "u"]
    if len(answers) < 2 or not user_lengths or sorted(answers)[-2] < SHORTEST_PREFIX:
        return False
    return sum(answers) >= SHORTEST_END // 2 and sum(answers + user_lengths) >= SHORTEST_END


def _has_renewed_results(node: Node, conversation: CanonicalRequest, messages: list[Message], index: int) -> bool:
    """Whether the messages before `index` are the node's request with other calls or results of tools, such as shortened ones.

    Its last user message may have lost lines, under the same system prompt.
    """
    if node.roles != conversation.roles[:index]:
        return False
    changed = [i for i in range(index) if node.digests[i] != conversation.digests[i] and node.roles[i] not in "st"]
    outside = [i for i in changed if node.roles[i : i + 2] != "at"]
    return not outside or (
        node.lines is not None
        and node.system == conversation.system
        and outside == [node.lines[0]]
        and _has_lost_lines(node.lines[1], messages[conversation.positions[outside[0]]])
    )


def _is_one_edited(node: Node, conversation: CanonicalRequest, index: int, edited: int) -> bool:
    """Whether the messages before `index` are the node's request with one edited user message between two answers."""
    return (
        len(node.digests) == index
        and node.system == conversation.system
        and "a" in node.roles[:edited]
        and node.roles[edited : edited + 1] == conversation.roles[edited : edited + 1] == "u"
        and node.digests[:edited] == conversation.digests[:edited]
    )


def _may_be_renewed(node: Node, conversation: CanonicalRequest, messages: list[Message], index: int, node_index: int) -> bool:
    """Whether the message before a common end may be the node's message in a renewed form.

    A renewed user message keeps at least one line (a file that changed). Messages without a common line belong to different
    conversations.
    """
    if min(index, node_index) < 0 or (conversation.roles[index], node.roles[node_index]) != ("u", "u"):
        return True
    if node.exchange is None:
        return False
    node_message = node.exchange.messages[read_conversation(node.exchange.messages).positions[node_index]]
    return not set(lines_of(node_message)).isdisjoint(lines_of(messages[conversation.positions[index]]))


def _common_end(node: Node, conversation: CanonicalRequest, messages: list[Message], index: int) -> int:
    """Return how many messages before `index` equal the last messages of the node's request. Its last user message may have lost
    lines.
    """
    end = 0
    while end < min(index, len(node.digests)):
        end += 1
        if node.digests[-end] != conversation.digests[index - end] and not (
            node.lines is not None
            and node.lines[0] == len(node.digests) - end
            and conversation.roles[index - end] == "u"
            and _has_lost_lines(node.lines[1], messages[conversation.positions[index - end]])
        ):
            return end - 1
    return end


def _is_cut(node: Node, conversation: CanonicalRequest, index: int, end: int) -> bool:
    """Whether the messages before `index` are the node's request without one piece in front of its last `end` messages. A message
    from the client may stand in its place, behind an answer.
    """
    if not (end > 0 or index == 0) or index >= len(node.digests):
        return False
    kept = index - end  # messages from the beginning of the request
    if node.digests[:kept] == conversation.digests[:kept]:
        return True
    kept -= 1
    return conversation.roles[kept - 1 : kept + 1] == "au" and node.digests[:kept] == conversation.digests[:kept]


def _length(conversation: CanonicalRequest, messages: list[Message], begin: int, index: int) -> int:
    """Return the number of characters in the messages from `begin` to the answer at `index`."""
    return sum(len(text_of(messages[position].get("content"))) for position in conversation.positions[begin : index + 1])


def _has_lost_lines(node_lines: "array[int]", message: Message) -> bool:
    remaining = lines_of(message)
    unmatched = iter(node_lines)
    return bool(remaining) and len(remaining) < len(node_lines) and all(line in unmatched for line in remaining)


def _kept_final_answers(node: Node, conversation: CanonicalRequest, index: int) -> bool:
    """Whether the conversation before `index` is the node's request without some of its rounds of tool calls and results."""
    if "u" not in conversation.roles[:index]:
        return False
    i = at = 0
    while at < len(node.digests):
        if i < index and node.digests[at] == conversation.digests[i]:
            i, at = i + 1, at + 1
            continue
        end = at + 1
        while node.roles[at] == "a" and end < len(node.roles) and node.roles[end] == "t":
            end += 1
        if end == at + 1:
            return False  # not a call with its results
        at = end
    return i == index < len(node.digests)


def _follows_request(node: Node, conversation: CanonicalRequest, index: int) -> bool:
    """Whether the message before the answer is the last message of the node's request, or was cut off."""
    return index == 0 or node.digests[-1:] == (conversation.digests[index - 1],)


def _relation(node: Node, conversation: CanonicalRequest, index: int) -> Relation:
    """Return how the parent's request is contained in the child's."""
    if conversation.before[index] == node.whole:
        return "exact"
    if node.system != conversation.system or len(node.digests) < index or not _is_within(conversation, node, index):
        return "diverged"
    is_whole = len(node.digests) == index
    at_end = node.ends_transient if is_whole else node.digests[:index] == conversation.digests[:index]
    return "tail-drop" if at_end else "mid-drop"


def _is_within(conversation: CanonicalRequest, node: Node, index: int) -> bool:
    node_digests = iter(node.digests)
    return all(digest in node_digests for digest in conversation.digests[:index])


def _evidence(node: Node, conversation: CanonicalRequest, index: int, repeats: set[str | None]) -> tuple:
    """Return a sort key for possible parents. The largest key is the best parent.

    First a turn that is also the parent of a retry of this request, then the most similar, then one that nothing continues yet,
    then the newest. The third criterion separates two identical conversations at the same time: each continuation gets its own
    parent.
    """
    similarity = (node.system == conversation.system, -abs(len(node.digests) - index))
    return node.turn_id in repeats, *similarity, not node.continued, node.created_at


def _dropped(node: Node, conversation: CanonicalRequest, index: int) -> frozenset[bytes]:
    if node.roles.count("u") <= conversation.roles.count("u", 0, index):
        return frozenset()  # a message has another form, and the user may say the same again
    node_counts = Counter(digest for digest, role in zip(node.digests, node.roles, strict=True) if role == "u")
    request_counts = Counter(
        digest for digest, role in zip(conversation.digests[:index], conversation.roles, strict=False) if role == "u"
    )
    return frozenset(node_counts - request_counts)
