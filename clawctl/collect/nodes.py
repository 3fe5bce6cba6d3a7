"""Turns as collect links them: trees of nodes, and what a request says of its parent."""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from clawctl.collect.canonical import AnswerText
from clawctl.run.outcomes import SessionOutcome
from clawctl.run.rows import Exchange, Message, Turn

Relation = Literal["exact", "tail-drop", "mid-drop", "diverged"]
ParentEvidence = Literal[
    "handle", "conversation", "context", "merged", "prefix", "reminder", "final", "window", "descendant", "session", "completion"
]


@dataclass(frozen=True, slots=True)
class Beginning:
    """How a prompt begins that continues a turn."""

    kind: Literal["text", "ids"]
    length: int  # characters, or bytes of ids
    digest: bytes


@dataclass(slots=True, eq=False)
class SessionTree:
    """One conversation as it is known: a root and everything that continues it."""

    user: str
    session_id: str
    last_seen: float  # when its newest exchange ended, on the clock of serve
    nodes: list["Node"] = field(default_factory=list)
    among_tools: bool = False  # whether a request of its session had tools
    is_episode: bool = False  # whether a request named a task: its rows wait for the outcome
    held_out: bool | None = None  # whether it is never trained; None: not decided yet
    rows: list[Callable[[SessionOutcome | None], Turn]] = field(default_factory=list)  # of its closed turns, while they wait

    @property
    def client(self) -> str:
        """Among whose requests a client's own calls are looked for: the user's, or those of one episode. Other attempts at a task
        send the same words, which proves nothing about this one."""
        return f"{self.user}\n{self.session_id}" if self.is_episode else self.user


@dataclass(slots=True, eq=False)
class Node:
    """One turn in its tree. `exchange` is kept only while the turn is open."""

    turn_id: str
    hint: str | None  # session id that the client claimed
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
    ends_transient: bool  # its request ends with known transient context
    handles: tuple[str, ...]  # what a client may name this turn by: its id, and the ids of its tool calls
    answer: bytes | None  # None after an error: nothing can follow it
    relation: Relation | None  # to its parent
    exchange: Exchange | None
    tools: frozenset[str]  # names of the tools that its request offers
    opening: str  # how its system prompt begins
    drawn: tuple[str, float, float, int]  # the model that was asked for, and the temperature, top_p and top_k of its answer
    evidence: ParentEvidence | None = None  # of its parent
    text: AnswerText | None = None  # of its answer; None: it has none
    lines: "tuple[int, array[int]] | None" = None  # of the last user message of its request: its place, and a hash of each line
    successors: int = 0  # main turns that continue it
    continued: bool = False  # whether any request continues it
    pending: "list[Node]" = field(default_factory=list)  # continuations that may be asides, in order of arrival
    claim: "Claim | None" = None  # while it may be an aside
    beginnings: tuple[Beginning, ...] = ()  # of prompts that continue it, if it is a plain completion
    continued_paths: tuple[bytes, ...] = ()  # of the conversation with an answer that continues the last message: as one, or alone
    user_digests: tuple[bytes, ...] = ()  # digests of its words behind the answer that it continues
    frames: tuple[bytes, ...] = ()  # of how those of them that are long begin and end
    brings_results: bool = False  # whether tool results follow the answer that it continues
    speaks: bool = False  # whether somebody says something in its request, behind the answer that it continues
    spoken_on: bool = False  # whether somebody said more behind it, or behind tool results that follow it
    settled: bool = False  # whether the conversation went on from there
    samples: tuple[str, ...] = ()  # of its answer, while it has a claim
    reused: bool = False  # whether its answer came back as a text, so that it was a call of the client's own

    @property
    def user(self) -> str:
        return self.tree.user

    @property
    def words(self) -> tuple[bytes, ...]:
        return (*self.user_digests, *self.frames)


@dataclass(frozen=True, slots=True)
class Claim:
    """The role of a request for the turn that it continues, if the conversation continues from it."""

    parent: Node
    next_state: list[Message] | None
    same_agent: bool  # it offers the tools of its parent's request, under a system prompt that begins the same, to the same model


@dataclass(frozen=True, slots=True)
class Match:
    """A parent, and the evidence for it in the request."""

    node: Node
    at: int  # where its answer stands in the child's CanonicalRequest
    dropped: frozenset[bytes]  # user messages of the parent that the child lacks
    relation: Relation  # "exact": the parent's request and its answer begin the child's request
    evidence: ParentEvidence
    replies: bool  # what follows the answer is a reaction to it; False: only the answer was found again, in other surroundings
    added: str | None = None  # what the prompt of a plain completion adds
