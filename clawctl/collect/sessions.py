"""Assembles exchanges into trees of turns and closes the turns. It uses no files and no clock: times are passed in.

A turn closes and becomes one row in four cases: its next state is known, its user rates it, the client reports that its session is
done, or its tree had no request for `timeout_s`. Side turns and errors close at once, because no next state could make them
trainable.

A conversation whose requests name a task is an episode. Its rows wait for the outcome of the episode, or for the session's end, and
are published together.

Processing of an exchange: `add` finds its parent (`parents.py`) and makes it a node of a tree. `_link` finds the next state of that
parent (`rows.py`, `plain_completions.py`), which counts at once or stays a claim. `_settle` accepts a claim. `_close` creates the
row. `side_turns.py` separates next states from messages that a client sent for its own purposes.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import islice

from clawctl.collect.canonical import CanonicalRequest, continued_paths, handles, last_user_lines, read_answer, read_conversation
from clawctl.collect.nodes import Claim, Match, Node, SessionTree
from clawctl.collect.parents import ParentIndex, short_tail
from clawctl.collect.plain_completions import beginnings
from clawctl.collect.plain_completions import next_messages as completion_messages
from clawctl.collect.rows import ClosedTurn, next_state, with_episode
from clawctl.collect.side_rules import SIDE_RULES, SideRule, is_named, opening_of, session_hint, tool_names, turn_kind
from clawctl.collect.side_turns import SideTurns, has_only_results, new_texts
from clawctl.collect.waiting import ArrivedExchange, WaitingExchanges
from clawctl.cut_calls import Decode
from clawctl.run.holdout import Holdout
from clawctl.run.outcomes import SessionOutcome, scoped_id
from clawctl.run.rows import Exchange, Feedback, Message, Turn, is_plain


class Sessions:
    """The live trees of one run.

    `published`: parents of the turns whose rows already exist. These turns get the same parent as before, or none if the parent's
    session has ended, and produce no second row. `decode` turns token ids into text. `rules` identify utility calls of known
    clients.
    """

    def __init__(
        self,
        timeout_s: float,
        published: dict[str, str | None] | None = None,
        decode: Decode | None = None,
        rules: Sequence[SideRule] = SIDE_RULES,
        holdout: Holdout | None = None,
    ) -> None:
        self.timeout_s, self._decode, self._holdout = timeout_s, decode, holdout
        self.waiting = WaitingExchanges()  # see `add`
        self._published = published if published is not None else {}
        self._index = ParentIndex()
        self._added: OrderedDict[str, None] = OrderedDict()  # the newest: a line that stands twice is one turn
        self._trees: dict[str, OrderedDict[int, SessionTree]] = {}  # by user, then by id(), longest unseen first
        self._of_session: dict[tuple[str, str], list[SessionTree]] = defaultdict(list)
        self._rows: list[Turn] = []
        self._ended: list[str] = []
        self._late_ratings: list[Feedback] = []
        self._early_ratings: OrderedDict[tuple[str, str], Feedback] = OrderedDict()  # ratings of turns that were not read yet
        self._outcomes: OrderedDict[tuple[str, str], SessionOutcome] = OrderedDict()  # by user and session
        self._new_outcomes: list[SessionOutcome] = []  # outcomes since the last `end_episodes`
        self._rules = rules
        self._side_turns = SideTurns(self._index.by_id)

    def add(self, exchange: Exchange, sure: bool = True, clock_offset: float = 0.0, writer: str = "") -> Node | None:
        """Add one exchange to its tree. Exchanges must be added in the order in which they ended.

        Returns None if the exchange was already added or must wait. `clock_offset`: seconds by which its writer's clock is behind
        the clock of `tick`.

        With several writers of captures a child may be read before its parent. An exchange whose last assistant message belongs to
        no known turn therefore joins `waiting`, and so do later requests of its user. With `sure` the caller states that everything
        written earlier was added.
        """
        if exchange.exchange_id in self._index.by_id or exchange.exchange_id in self._added:
            return None
        arrived = ArrivedExchange(exchange, writer, clock_offset)
        conversation, hint = read_conversation(exchange.messages), session_hint(exchange)
        match = self._find_parent(exchange, conversation, hint, arrived.time - self.timeout_s)
        lacks_parent = "a" in conversation.roles[match.index + 1 if match else 0 :]
        if not sure and (lacks_parent or self.waiting.blocks(arrived, conversation)):
            self.waiting.add(arrived, conversation, lacks_parent)
            return None
        self._end_unseen(exchange.key, arrived.time)
        self._added[exchange.exchange_id] = None
        while len(self._added) > 1 << 16:
            self._added.popitem(last=False)
        node = self._add_node(exchange, conversation, hint, match, arrived.time)
        if match is None or match.relation == "diverged":
            self._side_turns.mark_reused(node, exchange.messages)
        if match is not None:
            self._link(match, node, conversation, exchange)
        early = self._early_ratings.pop((exchange.key, exchange.exchange_id), None)
        if early is not None:
            self._close_rated(node, early)
        if node.kind == "side" or node.answer is None or exchange.exchange_id in self._published:
            self._close(node)
        if exchange.hints.get("session_done") is True:
            self._end_claimed_session(node, hint)
        return node

    def _find_parent(self, exchange: Exchange, conversation: CanonicalRequest, hint: str | None, since: float) -> Match | None:
        """Return the turn that this request continues, with the evidence."""
        match = None if is_plain(exchange.messages) else self._index.find_parent(conversation, exchange, hint, since)
        if match is None and "a" not in conversation.roles:
            match = self._index.find_plain_parent(exchange, hint, since)
        if match is not None and self._published.get(exchange.exchange_id, match.node.turn_id) != match.node.turn_id:
            return None  # its published parent has ended: another turn with the same text is not its parent
        return match

    def _link(self, match: Match, node: Node, conversation: CanonicalRequest, exchange: Exchange) -> None:
        """Record that `node` continues its parent, with the next state and the rating that its request contains."""
        parent = match.node
        parent.continued = True
        if node.kind == "side":
            return
        plain = match.evidence == "completion"
        first, *others = ["u"] if plain else conversation.roles[match.index + 1 :].split("a")
        next_messages = completion_messages(match.added) if plain else next_state(conversation, exchange.messages, match)
        same_agent = node.opening in ("", parent.opening)  # a request of the Responses API may omit its instructions
        same_agent = same_agent and (node.drawn == parent.drawn or node.answer is None) and parent.tools <= node.tools
        named = is_named(exchange.hints) or exchange.hints.get("continues") == parent.turn_id
        certain = named or (set(first) == {"t"} and same_agent)
        node.brings_results = "t" in first
        node.adds_user_text = named or any("t" not in roles for roles in (first, *others))
        if node.adds_user_text:
            self._note_user_text(parent, certain=named)
        if parent.adds_user_text and parent.parent_id in self._index.by_id:
            self._note_user_text(self._index.by_id[parent.parent_id], certain=True)
        if not match.replies or certain:
            if exchange.hints.get("feedback") is not None:
                self._mark_settled(parent)  # its user rated it
            parent.successors += 1
            if parent.exchange is not None:
                self._side_turns.reject_others(parent, node)
            if match.replies:
                self._answered(parent, next_messages, exchange)
        else:
            before = self._index.lines_before(parent)
            node.user_digests, node.frames = new_texts(conversation, exchange.messages, match.index + 1, before)
            self._side_turns.add_claim(node, Claim(parent, next_messages, same_agent), exchange)

    def _note_user_text(self, node: Node, certain: bool) -> None:
        """Record that user text follows this answer. `certain`: the conversation continued from there.

        If it is certain, the conversation also continued with the messages that led to this answer. Until then a client may be
        requesting an answer for itself again.
        """
        current: Node | None = node
        while current is not None and not (current.settled if certain else current.user_followed):
            current.user_followed, current.settled = True, current.settled or certain
            if certain and current.claim is not None and (current.claim.same_agent or has_only_results(current)):
                self._mark_settled(current)
            current = self._index.by_id.get(current.parent_id or "") if current.brings_results else None

    def _mark_settled(self, node: Node) -> None:
        """Record that the conversation continues from this turn: its messages are the next state of the turn before."""
        if node.claim is not None:
            parent, next_messages = node.claim.parent, node.claim.next_state
            self._side_turns.win(node)
            if next_messages is not None:
                self._close(parent, next_messages)

    def _answered(self, node: Node, next_messages: list[Message] | None, by: Exchange) -> None:
        """Close an open turn with its next state and the rating in the request. With neither, it stays open.

        A rating in another branch, of a turn that is already closed, is a late rating.
        """
        feedback = by.hints.get("feedback")
        rated = (
            float(feedback)
            if isinstance(feedback, int | float) and not isinstance(feedback, bool) and -1 <= feedback <= 1
            else None
        )
        if node.exchange is None and rated is not None:
            self._late_ratings.append(Feedback(f"header-{by.exchange_id}", by.created_at, node.user, node.turn_id, rated, None))
        elif next_messages is not None or rated is not None:
            self._close(node, next_messages, rated)

    def _close(self, node: Node, next_messages: list[Message] | None = None, rating: float | None = None) -> None:
        """Convert an open turn to its row. Without `next_messages`, its best claim counts, if there is one."""
        if (exchange := node.exchange) is None:
            return
        node.tail, node.exchange = short_tail(node), None
        if node.turn_id in self._published:
            del self._published[node.turn_id]
            return
        if next_messages is None and (best := self._side_turns.best_claim(node)) is not None:
            assert best.claim is not None
            next_messages = best.claim.next_state
            self._side_turns.count(best)
        repeats = self._index.find_repeats(node.user, node.hint, node.path)
        repeated = any(
            twin is not node and twin.parent_id == node.parent_id and (twin.successors or twin.created_at > node.created_at)
            for twin in repeats
        )
        if next_messages is None and rating is None and self._side_turns.is_side_turn(node, exchange):
            node.kind = "side"
        position, held_out = (node.tree.session_id, node.parent_id, node.index), self._is_held_out(node.tree)
        closed = ClosedTurn(exchange, *position, node.kind, next_messages, repeated, rating, node.evidence, held_out)
        node.tree.rows.append(partial(closed.row, decode=self._decode))
        if not node.tree.is_episode:
            self._release(node.tree)

    def _is_held_out(self, tree: SessionTree) -> bool:
        """Whether the session of a tree is held out. Decided once per tree, when its first turn closes."""
        if tree.held_out is None:
            holdout = None if tree.is_episode else self._holdout
            tree.held_out = holdout is not None and holdout.has(tree.user, tree.session_id, tree.nodes[0].created_at)
        return tree.held_out

    def _release(self, tree: SessionTree) -> None:
        """Create the waiting rows, with the outcome if it is known."""
        outcome = self._outcomes.get((tree.user, tree.session_id))
        self._rows += [row(outcome) for row in tree.rows]
        tree.rows = []

    def rate(self, feedback: Feedback) -> None:
        """Close a turn with an explicit rating. A user can rate only own turns.

        A rating of a closed turn does not change its row: stages that need the reward look ratings up (`clawctl.run.feedback`).
        """
        node = self._index.by_id.get(feedback.turn_id)
        if node is None:
            self._early_ratings[feedback.key, feedback.turn_id] = feedback
        elif node.user == feedback.key:
            self._close_rated(node, feedback)

    def note(self, outcome: SessionOutcome) -> None:
        """Record an outcome; the first of a session counts. It is used for all rows created from now on. `end_episodes` ends its
        session.
        """
        session = outcome.key, outcome.session_id
        if session not in self._outcomes:
            self._outcomes[session] = outcome
            self._new_outcomes.append(outcome)

    def end_episodes(self) -> list[SessionOutcome]:
        """End the sessions that have an outcome. Everything that was captured before must have been added.

        Returns the outcomes of sessions for which rows may have been published without the outcome.
        """
        outcomes, self._new_outcomes = self._new_outcomes, []
        late = []
        for outcome in outcomes:
            trees = self._of_session.get((outcome.key, outcome.session_id), [])
            begun = [tree for tree in trees if any(node.created_at <= outcome.created_at for node in tree.nodes)]
            if outcome.episode is None and (not begun or not all(tree.is_episode for tree in begun)):
                late.append(outcome)
            if begun:
                before = len(self._rows)
                self._end_session(outcome.key, outcome.session_id)
                self._rows[before:] = with_episode(self._rows[before:], outcome)
        return late

    def _close_rated(self, node: Node, feedback: Feedback) -> None:
        self._mark_settled(node)
        comment: list[Message] | None = [{"role": "user", "content": feedback.comment}] if feedback.comment else None
        self._close(node, comment, feedback.rating)

    def tick(self, now: float) -> None:
        """Close trees that were not seen for `timeout_s` seconds."""
        while self._early_ratings and next(iter(self._early_ratings.values())).created_at + self.timeout_s < now:
            self._early_ratings.popitem(last=False)  # its turn was published long ago or never captured
        for user in list(self._trees):
            self._end_unseen(user, now)
        while self._outcomes and not self._new_outcomes and next(iter(self._outcomes.values())).created_at + self.timeout_s < now:
            self._outcomes.popitem(last=False)

    def _end_unseen(self, user: str, now: float) -> None:
        while user in self._trees:
            oldest = next(iter(self._trees[user].values()))
            if oldest.last_seen >= now - self.timeout_s:
                return
            self._end(oldest)

    def _end_claimed_session(self, node: Node, hint: str | None) -> None:
        """Handle the client's message that the session is done: accept its last claim and close everything in the session."""
        if node.claim is not None:
            self._note_user_text(node.claim.parent, certain=True)
        if not self._side_turns.has_side_text(node):
            self._mark_settled(node)
        # A tree without a claimed session may contain another conversation, if both began with the same messages
        self._close(node)
        if hint is not None:
            self._end_session(node.user, scoped_id(node.user, hint))

    def _end_session(self, user: str, session_id: str) -> None:
        trees = list(self._of_session.get((user, session_id), []))
        for tree in trees:
            self._close_tree(tree)  # close all first: a turn and its repetition may be in two trees
        for tree in trees:
            self._end(tree)

    def _close_tree(self, tree: SessionTree) -> None:
        for node in tree.nodes:
            self._close(node)

    def _end(self, tree: SessionTree) -> None:
        """Close the open turns of a tree and remove it."""
        self._close_tree(tree)
        self._release(tree)
        for node in tree.nodes:
            self._index.remove(node)
            self._ended.append(node.turn_id)
        del self._trees[tree.user][id(tree)]
        if not self._trees[tree.user]:
            del self._trees[tree.user]
            self._side_turns.forget(tree.user)
        of_session = self._of_session[tree.user, tree.session_id]
        of_session.remove(tree)
        if not of_session:
            del self._of_session[tree.user, tree.session_id]
            if tree.is_episode:
                self._side_turns.forget(tree.client)

    def _add_node(
        self, exchange: Exchange, conversation: CanonicalRequest, hint: str | None, match: Match | None, seen_at: float
    ) -> Node:
        parent = match.node if match else None
        tree = parent.tree if parent else self._new_tree(exchange, hint, seen_at)
        tree.last_seen = max(tree.last_seen, seen_at)
        tree.is_episode = tree.is_episode or (hint is not None and bool(exchange.hints.get("task_id")))
        if exchange.tools and not tree.among_tools:
            for other in self._of_session[tree.user, tree.session_id]:
                other.among_tools = True
        self._trees[tree.user].move_to_end(id(tree))
        tools, opening = tool_names(exchange.tools), opening_of(exchange.messages)
        answer, called, text = read_answer(exchange)
        latest = [parent] if parent else [other.nodes[-1] for other in islice(reversed(self._trees[tree.user].values()), 1, 9)]
        node = Node(
            turn_id=exchange.exchange_id,
            hint=hint,
            parent_id=parent.turn_id if parent else None,
            index=parent.index + 1 if parent else 0,
            kind=turn_kind(exchange.hints.get("turn_type"), exchange.messages, self._rules, self._index.is_before(latest)),
            tree=tree,
            created_at=exchange.created_at,
            digests=conversation.digests,
            roles=conversation.roles,
            path=conversation.path,
            system=conversation.system,
            whole=conversation.whole,
            before=conversation.path_before(len(conversation.roles)),
            ends_transient=conversation.transient_at[-1:] == (len(conversation.digests),),
            handles=(exchange.exchange_id, *handles(exchange.response)),
            relation=match.relation if match else None,
            evidence=match.evidence if match else None,
            answer=answer,
            called=called,
            exchange=exchange,
            tools=parent.tools if parent and parent.tools == tools else tools,  # one shared copy per conversation
            opening=parent.opening if parent and parent.opening == opening else opening,
            drawn=(exchange.model, exchange.temperature, exchange.top_p, exchange.top_k),
            text=text,
            lines=last_user_lines(conversation, exchange.messages),
            beginnings=beginnings(exchange),
            continued_paths=continued_paths(conversation, exchange),
        )
        tree.nodes.append(node)
        self._index.add(node)
        if node.kind == "main":
            self._side_turns.add(node, exchange)
        return node

    def _new_tree(self, exchange: Exchange, hint: str | None, seen_at: float) -> SessionTree:
        session_id = scoped_id(exchange.key, hint) if hint else f"s{exchange.exchange_id}"
        others = self._of_session[exchange.key, session_id]
        tree = SessionTree(exchange.key, session_id, seen_at, among_tools=any(other.among_tools for other in others))
        self._trees.setdefault(tree.user, OrderedDict())[id(tree)] = tree
        others.append(tree)
        return tree

    @property
    def open_turns(self) -> int:
        return sum(node.exchange is not None for trees in self._trees.values() for tree in trees.values() for node in tree.nodes)

    def pop_rows(self) -> list[Turn]:
        """Return the turns that closed since the last call."""
        rows, self._rows = self._rows, []
        return rows

    def pop_late_ratings(self) -> list[Feedback]:
        """Return ratings from requests since the last call whose turns were already closed, so that they are in no row."""
        late, self._late_ratings = self._late_ratings, []
        return late

    def pop_ended(self) -> list[str]:
        """Return the turns whose tree ended since the last call; they are not needed any more."""
        ended, self._ended = self._ended, []
        return ended
