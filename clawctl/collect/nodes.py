"""Turns as collect links them: trees of nodes, and how a request relates to its parent."""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from clawctl.collect.canonical import AnswerText
from clawctl.run.outcomes import SessionOutcome
from clawctl.run.rows import Exchange, Message, Turn

Relation = Literal["exact", "tail-drop", "mid-drop", "diverged"]
ParentEvidence = Literal[
    "handle", "conversation", "context", "merged", "prefix", "reminder", "alike", "final", "window", "descendant",
    "session", "completion",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Beginning:
    """The prefix of any prompt that continues a turn."""

    kind: Literal["text", "ids"]
    length: int  # characters of text, or bytes of ids
    digest: bytes


@dataclass(slots=True, eq=False)
class SessionTree:
    """One conversation as far as it is known: a root and everything that continues it."""

    user: str
    session_id: str
    last_seen: float  # when its newest exchange ended, on serve's clock
    nodes: list["Node"] = field(default_factory=list)
    among_tools: bool = False  # whether a request of its session had tools
    is_episode: bool = False  # whether a request named a task; its rows then wait for the outcome
    held_out: bool | None = None  # whether it is never trained; None: not decided yet
    # Functions that create the rows of its closed turns, while they wait
    rows: list[Callable[[SessionOutcome | None], Turn]] = field(default_factory=list)

    @property
    def client(self) -> str:
        """The scope in which a client's own calls are searched: all requests of the user, or those of one episode.

        Other attempts at a task send the same text, which is no evidence for this one.
        """
        return f"{self.user}\n{self.session_id}" if self.is_episode else self.user


@dataclass(slots=True, eq=False)
class Node:
    """One turn in its tree. `exchange` is kept only while the turn is open."""

    turn_id: str
    hint: str | None  # the session id that the client claimed
    parent_id: str | None
    index: int
    kind: Literal["main", "side"]
    tree: SessionTree
    created_at: float
    digests: tuple[bytes, ...]
    roles: str
    path: bytes
    system: bytes
    whole: bytes
    before: bytes  # digest of the conversation up to its last answer; empty without one
    ends_transient: bool  # whether its request ends with known transient context
    handles: tuple[str, ...]  # ids that identify this turn in a later request: its own id, and the ids of its tool calls
    answer: bytes | None  # digest of its answer; None after an error: nothing can follow it
    called: bytes | None  # the same without the arguments of its tool calls; None without calls
    relation: Relation | None  # relation to its parent
    exchange: Exchange | None
    tools: frozenset[str]  # names of the tools that its request offers
    opening: str  # the start of its system prompt
    # The requested model, and the temperature, top_p and top_k of its answer
    drawn: tuple[str, float, float, int]
    evidence: ParentEvidence | None = None  # evidence for its parent
    text: AnswerText | None = None  # text of its answer; None: it has none
    tail: list[Message] = field(default_factory=list)  # `parents.tail_of`, kept of a closed turn if it is short
    # Last user message of its request: index, and a hash of each line
    lines: "tuple[int, array[int]] | None" = None
    successors: int = 0  # number of main turns that continue it
    continued: bool = False  # whether any request continues it
    pending: "list[Node]" = field(default_factory=list)  # continuations that may be asides, in order of arrival
    claim: "Claim | None" = None  # set while it may be an aside
    beginnings: tuple[Beginning, ...] = ()  # prefixes of prompts that continue it, if it is a plain completion
    # Paths of the conversation with an answer that continues the last message, joined with it or separate
    continued_paths: tuple[bytes, ...] = ()
    user_digests: tuple[bytes, ...] = ()  # digests of the user messages after the answer that it continues
    frames: tuple[bytes, ...] = ()  # digests of the start and end of long user messages among them
    brings_results: bool = False  # whether tool results follow the answer that it continues
    adds_user_text: bool = False  # whether its request has user text after the answer that it continues
    user_followed: bool = False  # whether user text followed it, directly or after tool results
    settled: bool = False  # whether the conversation continued from it
    samples: tuple[str, ...] = ()  # text samples of its answer, while it has a claim
    # Whether its answer came back as text, which shows that it was the client's own call
    reused: bool = False

    @property
    def user(self) -> str:
        return self.tree.user

    @property
    def texts(self) -> tuple[bytes, ...]:
        return (*self.user_digests, *self.frames)


@dataclass(frozen=True, slots=True)
class Claim:
    """The relation of a request to the turn that it continues, used if the conversation continues from the request."""

    parent: Node
    next_state: list[Message] | None
    # It offers the same tools as its parent's request, with the same start of the system prompt, to the same model
    same_agent: bool


@dataclass(frozen=True, slots=True)
class Match:
    """A parent, and the evidence for it in the request."""

    node: Node
    index: int  # index of its answer in the child's CanonicalRequest
    dropped: frozenset[bytes]  # digests of user messages of the parent that the child lacks
    relation: Relation  # "exact": the child's request begins with the parent's request and answer
    evidence: ParentEvidence
    # Whether the messages after the answer react to it; False: only the answer was found again, in another context
    replies: bool
    added: str | None = None  # text that the prompt of a plain completion adds
