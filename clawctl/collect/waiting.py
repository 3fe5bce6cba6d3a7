"""Exchanges that wait because their parent may not have been read yet, and all later requests of their users.

Several writers append to captures, so a child may be read before its parent. Later lines must not overtake it, or the result would
depend on when captures are read. Only its parent may, and only from another writer's file, because the lines of one writer are in
order.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from clawctl.collect.canonical import CanonicalRequest, handles, message_digest
from clawctl.collect.parents import continues
from clawctl.run.rows import Exchange


@dataclass(frozen=True, slots=True)
class ArrivedExchange:
    """An exchange as it was read."""

    exchange: Exchange
    writer: str = ""  # the writer of its capture file
    clock_offset: float = 0.0  # seconds by which its writer's clock is behind this host's clock

    @property
    def time(self) -> float:
        """Time when it ended, by this host's clock."""
        return self.exchange.finished_at + self.clock_offset


class WaitingExchanges:
    """The waiting exchanges, in order."""

    def __init__(self) -> None:
        self._arrived: list[ArrivedExchange] = []
        self._users: Counter[str] = Counter()
        # Waiting requests by the digest of their answer.
        self._answers: dict[tuple[str, bytes], list[CanonicalRequest]] = defaultdict(list)
        self._awaited: dict[tuple[str, bytes | str], list[tuple[str, CanonicalRequest, int]]] = defaultdict(list)

    def __len__(self) -> int:
        return len(self._arrived)

    def __iter__(self) -> Iterator[ArrivedExchange]:
        return iter(self._arrived)

    def add(self, arrived: ArrivedExchange, conversation: CanonicalRequest, lacks_parent: bool) -> None:
        """Add an exchange that waits for its parent (`lacks_parent`), or for earlier exchanges of its user."""
        exchange = arrived.exchange
        self._arrived.append(arrived)
        self._users[exchange.key] += 1
        index = conversation.roles.rfind("a")
        waiting = self._answers.get((exchange.key, conversation.digests[index]), []) if lacks_parent else []
        if lacks_parent and not any(continues(parent, conversation, index) for parent in waiting):
            answer = exchange.messages[conversation.positions[index]]
            names: list[bytes | str] = [conversation.digests[index], *handles(answer)]
            for name in names:
                self._awaited[exchange.key, name].append((arrived.writer, conversation, index))
        if exchange.response is not None:
            self._answers[exchange.key, message_digest(exchange.response)].append(conversation)

    def blocks(self, arrived: ArrivedExchange, conversation: CanonicalRequest) -> bool:
        """Whether an exchange of this user waits, and this exchange is not its missing parent."""
        exchange = arrived.exchange
        return exchange.key in self._users and not self._is_awaited(arrived, conversation)

    def _is_awaited(self, arrived: ArrivedExchange, conversation: CanonicalRequest) -> bool:
        exchange = arrived.exchange
        for handle in (exchange.exchange_id, *handles(exchange.response)):
            if any(writer != arrived.writer for writer, *_ in self._awaited.get((exchange.key, handle), [])):
                return True
        alike = self._awaited.get((exchange.key, message_digest(exchange.response)), []) if exchange.response else []
        return any(writer != arrived.writer and continues(conversation, child, index) for writer, child, index in alike)

    def pop_all(self) -> list[ArrivedExchange]:
        """Remove and return all waiting exchanges, in order."""
        arrived = self._arrived
        self._arrived = []
        for index in (self._users, self._answers, self._awaited):
            index.clear()
        return arrived
