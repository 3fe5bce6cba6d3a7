"""Exchanges become turns in trees, and turns close. No file, no clock: time comes in with what is added.

A turn closes, and becomes one row, when its next state is known, when its user rates it, when its session is said to be done, or
when its tree had no request for `timeout_s`. Side turns and errors close at once: nothing that comes back could train them.

A conversation whose requests name a task is an episode. Its rows wait for the outcome of the episode, or for the session's end, and
come together.

The next state of a turn is what its conversation went on with. Clients also continue a conversation for purposes of their own: a
title, a suggestion of what the user may type, an extraction of memories. Such a request looks like the user's next message. So the
words of a request are only claimed as the next state of the turn before, until one of these settles it:

- The request brings the results of the same agent's tools and nothing else, names itself a main turn, or rates the turn before. It
  counts at once. An agent is the same if it offers the tools of the turn before, under a system prompt that begins the same, to the
  same model.
- Somebody says more behind it (behind its answer, or behind the tool results that follow its answer), and a further request
  continues that. It counts then, if it comes from the same agent. One request behind it is not enough, because a client may ask
  for its own answer again. Tool results alone settle nothing, because a client's own call may use tools.
- The session ends. The latest claim counts that comes from the same agent, or behind which somebody said more; the latter come
  first. Three kinds never count: words that lost against others before and never won; a request whose answer came back to the same
  agent as a text; and long words that ended several conversations, where no conversation ever went on with them.

Words are compared as a whole. Long ones are also compared by how they begin and end: a client may fill in the time or an answer.

A claim that does not count is an aside. It closes as a side turn if it came from another agent, or if its words lost elsewhere;
else it may be a message that the user edited and sent again, and stays a main turn without a next state. A request that begins a
conversation closes as a side turn if it has no tools, nothing continues it, and it quotes another conversation of its key.

Of two continued requests, the first one's messages are the next state; the other is a branch. A request that repeats another's
messages is a sibling with the same parent and no evidence of its quality. Of such siblings, those that are continued are trainable,
and one that is not closes as "regenerated".
"""

from array import array
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b

from clawctl.collect.canonical import (
    Conversation,
    continued_digest,
    extend_path,
    handles,
    line_hash,
    lines_of,
    message_digest,
    read_answer_text,
    read_conversation,
    text_of,
)
from clawctl.collect.nodes import Claim, Match, Node, SessionTree
from clawctl.collect.parents import Index
from clawctl.collect.plain import beginnings
from clawctl.collect.plain import came_back as said_in
from clawctl.collect.quotes import Quotes, holds, samples_of
from clawctl.collect.rows import make_turn, next_state
from clawctl.collect.side_rules import (
    SIDE_RULES,
    SideRule,
    is_named,
    opening_of,
    session_in_prompt,
    tool_names,
    turn_kind,
    without_revision,
    without_time,
)
from clawctl.collect.waiting import Arrived, Waiting
from clawctl.cut_calls import Decode
from clawctl.run.outcomes import SessionOutcome, scoped
from clawctl.run.rows import Exchange, Feedback, Message, Turn, is_plain

MOST_ASIDE_WORDS = 1 << 14  # messages, of all users
MOST_UNCERTAIN = 16  # claims of a user whose answer is looked for in later requests
MOST_WORDS = 8  # new messages of a request that are compared with those of others
LONG_WORDS = 40  # characters of a message that are more than a phrase which many people say


@dataclass(slots=True)
class Words:
    """How often some words claimed to be what came next, lost against others, and won."""

    claimed: int = 0
    lost: int = 0
    won: int = 0
    tree: int = 0  # where they were claimed last
    trees: int = 0  # changes of it


class AsideWords:
    """Words that claimed to be what came next, though conversations did not go on with them; and words that they did go on with."""

    def __init__(self) -> None:
        self._words: OrderedDict[tuple[str, bytes], Words] = OrderedDict()

    def claimed(self, user: str, said: Iterable[bytes], tree: int) -> None:
        for words in self._each(user, said):
            words.claimed += 1
            words.tree, words.trees = tree, words.trees + (words.tree != tree)

    def lost(self, user: str, said: Iterable[bytes]) -> None:
        for words in self._each(user, said):
            words.lost += 1

    def won(self, user: str, said: Iterable[bytes]) -> None:
        for words in self._each(user, said):
            words.won += 1

    def hold(self, user: str, said: Iterable[bytes], decided: bool) -> bool:
        """Whether some of these lost and never won. Of a claim that is `decided`, they must have been claimed elsewhere as well:
        words that lost once may be a message that the user edited."""
        known = [self._words.get((user, words), Words()) for words in said]
        return any(words.lost and not words.won and (words.claimed > 1 or not decided) for words in known)

    def recur(self, user: str, said: Iterable[bytes]) -> bool:
        """Whether some of these were claimed in several conversations, and no conversation ever went on with them."""
        known = [self._words.get((user, words), Words()) for words in said]
        return any(words.trees > 1 and not words.won for words in known)

    def _each(self, user: str, said: Iterable[bytes]) -> Iterator[Words]:
        for digest in said:
            words = self._words.setdefault((user, digest), Words())
            self._words.move_to_end((user, digest))
            yield words
        while len(self._words) > MOST_ASIDE_WORDS:
            self._words.popitem(last=False)


class Sessions:
    """The live trees of one run. `published`: the turns whose rows exist already, with their parents. They are linked as they were,
    or not at all where their parent's session is over, and give no row again. `decode`: what token ids say. `rules`: of the calls
    that known clients make."""

    def __init__(
        self,
        timeout_s: float,
        published: dict[str, str | None] | None = None,
        decode: Decode | None = None,
        rules: Sequence[SideRule] = SIDE_RULES,
    ) -> None:
        self.timeout_s, self._decode = timeout_s, decode
        self.waiting = Waiting()  # see `add`
        self._published = published if published is not None else {}
        self._index = Index()
        self._trees: dict[str, OrderedDict[int, SessionTree]] = {}  # of each user, by id(), the longest unseen first
        self._of_session: dict[tuple[str, str], list[SessionTree]] = defaultdict(list)
        self._rows: list[Turn] = []
        self._ended: list[str] = []
        self._late: list[Feedback] = []
        self._early: OrderedDict[tuple[str, str], Feedback] = OrderedDict()  # ratings of turns that were not read yet
        self._outcomes: OrderedDict[tuple[str, str], SessionOutcome] = OrderedDict()  # by user and session
        self._given: list[SessionOutcome] = []  # outcomes since the last `end_episodes`
        self._rules = rules
        self._asides = AsideWords()
        self._quotes = Quotes()
        self._uncertain: dict[str, deque[Node]] = {}  # of each user, the latest claims with a long answer

    @property
    def open_turns(self) -> int:
        return sum(node.exchange is not None for trees in self._trees.values() for tree in trees.values() for node in tree.nodes)

    def pop_rows(self) -> list[Turn]:
        """The turns that closed since the last call."""
        rows, self._rows = self._rows, []
        return rows

    def pop_late_ratings(self) -> list[Feedback]:
        """Ratings from requests, since the last call, of turns that were already closed and so are not in any row."""
        late, self._late = self._late, []
        return late

    def pop_ended(self) -> list[str]:
        """The turns whose tree ended since the last call: they are never looked at again."""
        ended, self._ended = self._ended, []
        return ended

    def rate(self, feedback: Feedback) -> None:
        """An explicit rating closes its turn. What is said of a turn that is closed already does not change its row: whoever needs
        the reward looks ratings up (`clawctl.run.feedback`). Nobody rates another's turns."""
        node = self._index.by_id.get(feedback.turn_id)
        if node is None:
            self._early[feedback.key, feedback.turn_id] = feedback
        elif node.user == feedback.key:
            self._close_rated(node, feedback)

    def note(self, outcome: SessionOutcome) -> None:
        """Take in an outcome; a session has one. It is in all rows that are made from now on. `end_episodes` ends its session."""
        place = outcome.key, outcome.session_id
        if place not in self._outcomes:
            self._outcomes[place] = outcome
            self._given.append(outcome)

    def end_episodes(self) -> list[SessionOutcome]:
        """End the sessions whose outcome was given. Everything that was captured before must have been added. Returns the outcomes
        of sessions some of whose rows may have been published without it."""
        given, self._given = self._given, []
        late = []
        for outcome in given:
            trees = self._of_session.get((outcome.key, outcome.session_id), [])
            begun = [tree for tree in trees if any(node.created_at <= outcome.created_at for node in tree.nodes)]
            if not begun or not all(tree.is_episode for tree in begun):
                late.append(outcome)
            if begun:
                self._end_session(outcome.key, outcome.session_id)
        return late

    def _close_rated(self, node: Node, feedback: Feedback) -> None:
        self._settle(node)
        said: list[Message] | None = [{"role": "user", "content": feedback.comment}] if feedback.comment else None
        self._close_for_good(node, said, feedback.rating)

    def add(self, exchange: Exchange, sure: bool = True, behind: float = 0.0, writer: str = "") -> Node | None:
        """Put one exchange where it belongs, in the order in which they were over. None if it is there already, or waits. `behind`:
        seconds by which its writer's clock is behind the one that `tick` tells.

        With several writers of captures a child may be read before its parent. An exchange whose last assistant message is no
        known turn's is therefore kept in `unsure`, and with it what its user asked later, unless the caller says that everything
        written before it has been added.
        """
        if exchange.exchange_id in self._index.by_id:
            return None
        arrived, conversation, hint = (
            Arrived(exchange, writer, behind),
            read_conversation(exchange.messages),
            session_hint(exchange),
        )
        since = arrived.time - self.timeout_s
        if is_plain(exchange.messages):
            match = self._index.find_plain_parent(exchange, hint, since)
        else:
            match = self._index.find_parent(conversation, exchange.messages, exchange.key, hint, since)
        if match is not None and self._published.get(exchange.exchange_id, match.node.turn_id) != match.node.turn_id:
            match = None  # it answered another turn, whose session is over: another with the same words is not it
        lacks_parent = "a" in conversation.roles[match.at + 1 if match else 0 :]
        if not sure and (lacks_parent or self.waiting.blocks(arrived, conversation)):
            self.waiting.add(arrived, conversation, lacks_parent)
            return None
        self._end_unseen(exchange.key, arrived.time)
        node = self._plant(exchange, conversation, hint, match, arrived.time)
        if match is None or match.relation == "diverged":
            self._find_reused(node, exchange.messages)
        if match is not None:
            self._continue(match, node, conversation, exchange)
        early = self._early.pop((exchange.key, exchange.exchange_id), None)
        if early is not None:
            self._close_rated(node, early)
        if node.kind == "side" or node.answer is None or exchange.exchange_id in self._published:
            self._close_for_good(node)
        if exchange.hints.get("session_done") is True:
            if node.claim is not None:
                self._speak_behind(node.claim.parent, certain=True)
            if not self._has_aside_words(node):
                self._settle(node)
            self._close_for_good(node)  # a tree that claims no session may hold another's talk, if both began with the same words
            if hint is not None:
                self._end_session(exchange.key, scoped(exchange.key, hint))
        return node

    def _continue(self, match: Match, node: Node, conversation: Conversation, exchange: Exchange) -> None:
        """Note that `node` continues its parent, and what it says to it."""
        parent = match.node
        parent.continued = True
        if node.kind == "side":
            return
        first, *others = conversation.roles[match.at + 1 :].split("a") if match.evidence != "completion" else ["u"]
        if match.evidence == "completion":
            came_back = said_in(match.added)
        else:
            came_back = next_state(conversation, exchange.messages, match) if match.replies else None
        alike = node.opening in ("", parent.opening)  # a request of the Responses API may leave its instructions out
        alike = alike and (node.drawn == parent.drawn or node.answer is None) and parent.tools <= node.tools
        certain = is_named(exchange.hints) or (set(first) == {"t"} and alike)
        node.brings_results = "t" in first
        node.speaks = is_named(exchange.hints) or any("t" not in some for some in (first, *others))
        if node.speaks:
            self._speak_behind(parent, certain=is_named(exchange.hints))
        if parent.speaks and parent.parent_id in self._index.by_id:
            self._speak_behind(self._index.by_id[parent.parent_id], certain=True)
        if not match.replies or certain:
            if exchange.hints.get("feedback") is not None:
                self._settle(parent)  # its user rated it
            parent.successors += 1
            if parent.exchange is not None:
                self._lose_others(parent, node)
            if match.replies:
                self._answered(parent, came_back, exchange)
        else:
            node.said, node.frames = _said(conversation, exchange.messages, match.at + 1, parent)
            self._asides.claimed(node.user, node.words, id(node.tree))
            node.samples = samples_of(exchange.response)
            node.claim = Claim(parent, came_back, alike)
            parent.pending.append(node)
            if node.samples and node.claim.same_agent:
                self._uncertain.setdefault(node.user, deque(maxlen=MOST_UNCERTAIN)).append(node)

    def _speak_behind(self, node: Node, certain: bool) -> None:
        """Somebody says more behind this answer. `certain`: and the conversation went on from there, so that it went on with the
        words that led to this answer as well. Until then it may be a client that asks for an answer of its own again."""
        above: Node | None = node
        while above is not None and not (above.settled if certain else above.spoken_on):
            above.spoken_on, above.settled = True, above.settled or certain
            if certain and above.claim is not None and (above.claim.same_agent or _brings_results_alone(above)):
                self._settle(above)
            above = self._index.by_id.get(above.parent_id or "") if above.brings_results else None

    def _find_reused(self, node: Node, messages: list[Message]) -> None:
        """Mark claims whose answer this request, which continues none of them, holds as a text: a summary, after a compaction."""
        for other in self._uncertain.get(node.user, ()):
            parent = other.claim.parent if other.claim is not None and not other.spoken_on else None
            if parent is None or other is node or parent.opening != node.opening or not parent.tools <= node.tools:
                continue
            if holds(messages, other.samples):
                other.reused = True

    def tick(self, now: float) -> None:
        """Close trees that were not seen for `timeout_s`."""
        while self._early and next(iter(self._early.values())).created_at + self.timeout_s < now:
            self._early.popitem(last=False)  # its turn was published long ago, or never was
        for user in list(self._trees):
            self._end_unseen(user, now)
        while self._outcomes and not self._given and next(iter(self._outcomes.values())).created_at + self.timeout_s < now:
            self._outcomes.popitem(last=False)

    def _end_unseen(self, user: str, now: float) -> None:
        while user in self._trees:
            oldest = next(iter(self._trees[user].values()))
            if oldest.last_seen >= now - self.timeout_s:
                return
            self._end(oldest)

    def _plant(self, exchange: Exchange, conversation: Conversation, hint: str | None, match: Match | None, seen: float) -> Node:
        parent = match.node if match else None
        tree = parent.tree if parent else self._new_tree(exchange, hint, seen)
        tree.last_seen = max(tree.last_seen, seen)
        tree.is_episode = tree.is_episode or (hint is not None and bool(exchange.hints.get("task_id")))
        if exchange.tools and not tree.among_tools:
            for other in self._of_session[tree.user, tree.session_id]:
                other.among_tools = True
        self._trees[tree.user].move_to_end(id(tree))
        tools, opening = tool_names(exchange.tools), opening_of(exchange.messages)
        node = Node(
            turn_id=exchange.exchange_id,
            hint=hint,
            parent_id=parent.turn_id if parent else None,
            index=parent.index + 1 if parent else 0,
            kind=turn_kind(exchange.hints.get("turn_type"), exchange.messages, self._rules),
            tree=tree,
            created_at=exchange.created_at,
            digests=conversation.digests,
            roles=conversation.roles,
            path=conversation.path,
            system=conversation.system,
            whole=conversation.whole,
            ends_transient=conversation.transient_at[-1:] == (len(conversation.digests),),
            handles=(exchange.exchange_id, *handles(exchange.response)),
            relation=match.relation if match else None,
            evidence=match.evidence if match else None,
            answer=None if exchange.response is None or exchange.status == "error" else message_digest(exchange.response),
            exchange=exchange,
            tools=parent.tools if parent and parent.tools == tools else tools,  # one copy for a whole conversation
            opening=parent.opening if parent and parent.opening == opening else opening,
            drawn=(exchange.model, exchange.temperature, exchange.top_p, exchange.top_k),
            text=None if exchange.status == "error" else read_answer_text(exchange.response),
            lines=_last_user_lines(conversation, exchange.messages),
            beginnings=beginnings(exchange),
            continued_paths=_continued_paths(conversation, exchange),
        )
        tree.nodes.append(node)
        self._index.add(node)
        if node.kind == "main":
            self._quotes.note(node.user, id(tree), exchange.messages, exchange.response, bool(tools))
        return node

    def _new_tree(self, exchange: Exchange, hint: str | None, seen: float) -> SessionTree:
        session_id = scoped(exchange.key, hint) if hint else f"s{exchange.exchange_id}"
        others = self._of_session[exchange.key, session_id]
        tree = SessionTree(exchange.key, session_id, seen)
        tree.among_tools = any(other.among_tools for other in others)
        self._trees.setdefault(tree.user, OrderedDict())[id(tree)] = tree
        others.append(tree)
        return tree

    def _settle(self, node: Node) -> None:
        """The conversation continues from this turn: its words are the next state of the turn before."""
        if node.claim is not None:
            parent, came_back = node.claim.parent, node.claim.next_state
            self._asides.won(node.user, node.words)
            self._count(node)
            if came_back is not None:
                self._close_for_good(parent, came_back)

    def _count(self, node: Node) -> None:
        """This claim counts, and the other claims on its parent do not."""
        claim, node.claim = node.claim, None
        assert claim is not None
        claim.parent.successors += 1
        self._lose_others(claim.parent, node)

    def _lose_others(self, parent: Node, winner: Node) -> None:
        for other in parent.pending:
            if other is not winner and other.claim is not None and not other.settled:
                self._asides.lost(other.user, set(other.words) - set(winner.words))

    def _answered(self, node: Node, came_back: list[Message] | None, by: Exchange) -> None:
        """Close an open turn with what came back and what the request said of it; with nothing it stays open. What another branch
        says of a turn that is closed already is a rating that came late."""
        said = by.hints.get("feedback")
        rated = float(said) if isinstance(said, int | float) and not isinstance(said, bool) and -1 <= said <= 1 else None
        if node.exchange is None and rated is not None:
            self._late.append(Feedback(f"header-{by.exchange_id}", by.created_at, node.user, node.turn_id, rated, None))
        elif came_back is not None or rated is not None:
            self._close_for_good(node, came_back, rated)

    def _close_for_good(self, node: Node, came_back: list[Message] | None = None, rating: float | None = None) -> None:
        exchange, node.exchange = node.exchange, None
        if exchange is None:
            return
        if node.turn_id in self._published:
            del self._published[node.turn_id]
            return
        if came_back is None and (best := self._best_claim(node)) is not None:
            assert best.claim is not None
            came_back = best.claim.next_state
            self._count(best)
        twins = self._index.twins(node.user, node.hint, node.path)
        repeated = any(
            twin is not node and twin.parent_id == node.parent_id and (twin.successors or twin.created_at > node.created_at)
            for twin in twins
        )
        if came_back is None and rating is None and self._is_aside(node, exchange):
            node.kind = "side"
        place = node.tree.session_id, node.parent_id, node.index
        node.tree.rows.append(
            partial(make_turn, exchange, *place, node.kind, came_back, repeated, rating, node.evidence, self._decode)
        )
        if not node.tree.is_episode:
            self._release(node.tree)

    def _release(self, tree: SessionTree) -> None:
        """Make the rows that wait, with the outcome as far as it is known."""
        outcome = self._outcomes.get((tree.user, tree.session_id))
        self._rows += [row(outcome) for row in tree.rows]
        tree.rows = []

    def _best_claim(self, parent: Node) -> Node | None:
        """Of the continuations of a turn that may be asides, the one that its user most likely wrote."""
        claims = [(node, node.claim) for node in parent.pending if node.claim is not None and node.claim.next_state is not None]
        likely = [node for node, claim in claims if claim.same_agent or node.spoken_on]
        results = [node for node in likely if node.brings_results] or [node for node, _ in claims if _brings_results_alone(node)]
        likely = results or likely  # words alone behind a tool call that has results are the client's own
        likely = [node for node in likely if not node.reused and not self._may_be_aside(node)]
        return max(reversed(likely), key=lambda node: node.spoken_on, default=None)

    def _may_be_aside(self, node: Node) -> bool:
        return self._has_aside_words(node) or (not node.spoken_on and self._asides.recur(node.user, node.frames))

    def _is_aside(self, node: Node, exchange: Exchange) -> bool:
        """Of a turn that closes without a next state: whether it was a request that the client made for itself."""
        if node.answer is None:
            return False
        first = node  # of the tool loop that it stands in
        while first.brings_results and first.claim is None and (above := self._index.by_id.get(first.parent_id or "")) is not None:
            first = above
        if first.claim is not None:
            lost = node is first or first.claim.parent.exchange is None
            known = (
                self._has_aside_words(first)
                if first.claim.same_agent
                else not first.spoken_on and (node is not first or not node.continued)
            )
            return lost and (first.reused or known)
        if node.parent_id is not None or node.continued or node.tools:
            return False
        if node.tree.among_tools:
            return True
        begins = "a" not in node.roles  # else it shows a conversation of its own, whose turns were not found
        return begins and self._quotes.are_about(node.user, id(node.tree), exchange.messages, exchange.response)

    def _has_aside_words(self, node: Node) -> bool:
        """Whether the conversation did not go on with these words somewhere else, and never did."""
        if node.claim is None or node.settled:
            return False
        return self._asides.hold(node.user, node.words, decided=node.claim.parent.exchange is None)

    def _end_session(self, user: str, session_id: str) -> None:
        trees = list(self._of_session.get((user, session_id), []))
        for tree in trees:
            self._close(tree)  # all of them first: a turn and the one that repeats it may stand in two
        for tree in trees:
            self._end(tree)

    def _close(self, tree: SessionTree) -> None:
        for node in tree.nodes:
            self._close_for_good(node)

    def _end(self, tree: SessionTree) -> None:
        """Close the open turns of a tree and forget it."""
        self._close(tree)
        self._release(tree)
        for node in tree.nodes:
            self._index.remove(node)
            self._ended.append(node.turn_id)
        del self._trees[tree.user][id(tree)]
        if not self._trees[tree.user]:
            del self._trees[tree.user]
            self._quotes.forget(tree.user)
            self._uncertain.pop(tree.user, None)
        of_session = self._of_session[tree.user, tree.session_id]
        of_session.remove(tree)
        if not of_session:
            del self._of_session[tree.user, tree.session_id]


def _brings_results_alone(node: Node) -> bool:
    return node.brings_results and not node.said


def _said(
    conversation: Conversation, messages: list[Message], begin: int, parent: Node
) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """Digests of the words of a user from there on, and of the frames of the long ones."""
    places = [place for place in range(begin, len(conversation.roles)) if conversation.roles[place] == "u"][:MOST_WORDS]
    before = frozenset(parent.lines[1]) if parent.lines is not None else frozenset()
    frames = (_frame(text_of(messages[conversation.at[place]].get("content")), before) for place in places)
    return tuple(conversation.digests[place] for place in places), tuple(frame for frame in frames if frame)


def _frame(text: str, before: frozenset[int]) -> bytes | None:
    """A digest of how a message begins and ends, without what may be the time and without lines that stood in the message before
    it: the same wherever a client fills it in. None of a short one."""
    if before:
        text = "\n".join(line for line in text.split("\n") if line.strip() and line_hash(line.strip()) not in before)
    begins, ends = without_time(text[: 2 * LONG_WORDS]).strip(), without_time(text[-2 * LONG_WORDS :]).strip()
    if len(begins) < LONG_WORDS:
        return None
    frame = f"{begins[:LONG_WORDS]}\n{ends[-LONG_WORDS:]}"
    return blake2b(frame.encode("utf-8", "surrogatepass"), digest_size=12).digest()


def _continued_paths(conversation: Conversation, exchange: Exchange) -> tuple[bytes, ...]:
    """Of the conversation as a client shows it that continues an answer: in one message with its beginning, or without that."""
    joined = continued_digest(exchange.messages, exchange.response) if exchange.response is not None else None
    if joined is None or exchange.response is None:
        return ()
    before = conversation.paths[-2] if len(conversation.paths) > 1 else b""
    return extend_path(before, joined), extend_path(before, message_digest(exchange.response))


def _last_user_lines(conversation: Conversation, messages: list[Message]) -> "tuple[int, array[int]] | None":
    place = conversation.roles.rfind("u")
    lines = lines_of(messages[conversation.at[place]]) if place >= 0 else None
    return (place, lines) if lines and len(lines) > 1 else None


def session_hint(exchange: Exchange) -> str | None:
    """The session that the client claims, in a header, in the body or in its prompt, if it claims one."""
    claim = exchange.hints.get("session_id")
    if isinstance(claim, str | int) and not isinstance(claim, bool) and claim != "":
        return without_revision(str(claim))
    return session_in_prompt(exchange.messages)
