"""What real clients sent, stitched: the requests lie in tests/recordings/, the tree that each client had in trees/CLIENT.json.

For each request its parent, its relation to it, its kind, and how each message of its next state begins. Where the client's claimed
session is what links a request to its parent, `without_session` says what is left without it.
"""

import functools
import json
import random
from pathlib import Path

import pytest
from made_exchanges import asked
from recordings import clients, recorded
from stitching import stitch

from clawctl.collect.canonical import text_of
from clawctl.collect.sessions import Sessions
from scripts.benchmarks.clients_variants import joined_later, variants, wrong_turns

TREES = Path(__file__).parent / "trees"


def test_every_recorded_client_has_its_tree() -> None:
    assert clients() == sorted(path.stem for path in TREES.glob("*.json"))


@pytest.mark.parametrize("client", clients())
@pytest.mark.parametrize("with_hints", [True, False])
@pytest.mark.parametrize("with_handles", [True, False])
def test_a_recorded_client_gives_the_tree_that_it_had(client, with_hints, with_handles) -> None:
    exchanges = recorded(client, with_hints, with_handles)
    sessions = Sessions(3600.0)
    nodes = {name: sessions.add(exchange) for name, exchange in exchanges.items()}
    sessions.tick(1e12)
    rows = {row.turn_id: row for row in sessions.pop_rows()}
    names = {exchange.exchange_id: name for name, exchange in exchanges.items()}
    trees = json.loads((TREES / f"{client}.json").read_text())
    assert trees.keys() == exchanges.keys()
    for name, expected in trees.items():
        without = expected.pop("without_session", {})
        expected |= {} if with_hints else without
        row, node = rows[exchanges[name].exchange_id], nodes[name]
        assert node is not None
        came = row.next_state and [f"{message['role']}: {text_of(message['content'])}"[:40] for message in row.next_state]
        begins = expected["next_state"] and [begin[:40] for begin in expected["next_state"]]
        actual = (names.get(row.parent_turn_id or ""), node.relation, row.kind, came)
        assert actual == (expected["parent"], expected["relation"], expected["kind"], begins), name


def test_variants_of_recordings_keep_the_parents_and_next_states() -> None:
    """A small sample; `scripts/bench clients` stitches 2,000."""
    trees = {path.stem: json.loads(path.read_text()) for path in TREES.glob("*.json")}
    links, _, mistakes = variants(functools.cache(recorded), trees, 95, seed=1)
    assert links == 0, mistakes


@pytest.mark.parametrize("name", sorted(path.stem for path in TREES.glob("*.json")))
@pytest.mark.parametrize("with_hints", [True, False])
def test_a_client_that_joins_its_earlier_messages_keeps_its_tree(name: str, with_hints: bool) -> None:
    exchanges = joined_later(recorded(name, with_hints, with_handles=False), random.Random(0))
    wrong = wrong_turns(exchanges, json.loads((TREES / f"{name}.json").read_text()), with_hints)
    assert [problem for problem in wrong if not problem.endswith("kind")] == []


@pytest.mark.parametrize(
    "text", ["Reply in English.", "<reminder>\nThe list is empty.\n</reminder>", "Time: 2026-11-26 10:{minute}"]
)
@pytest.mark.parametrize("is_first", [True, False])
def test_text_in_the_newest_message_that_a_client_drops_does_not_cost_the_first_turn_its_next_state(
    text: str, is_first: bool
) -> None:
    def sent(message: str) -> str:
        added = text.format(minute=10 + len(message))
        return f"{added}\n\n{message}" if is_first else f"{message}\n\n{added}"

    user, assistant = ({"role": role, "content": ""} for role in ("user", "assistant"))
    question, answer = "Hello, what is 2 + 2?", {**assistant, "content": "It is four."}
    first = asked([{**user, "content": sent(question)}], answer, exchange_id="a".ljust(24, "x"), at=1.0)
    second = asked(
        [{**user, "content": question}, answer, {**user, "content": sent("Thanks")}], answer, exchange_id="b".ljust(24, "x"), at=2.0
    )
    rows = stitch(first, second)
    assert rows[second.exchange_id].parent_turn_id == first.exchange_id
    assert [message["content"] for message in rows[first.exchange_id].next_state or ()] == [sent("Thanks")]
