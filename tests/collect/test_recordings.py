"""What real clients sent, stitched: the requests lie in tests/recordings/, the tree that each client had in trees/CLIENT.json.

For each request its parent, its relation to it, its kind, and how each message of its next state begins. Where the client's claimed
session is what links a request to its parent, `without_session` says what is left without it.
"""

import json
from pathlib import Path

import pytest
from recordings import clients, recorded

from clawctl.collect.canonical import text_of
from clawctl.collect.sessions import Sessions

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
        found = (names.get(row.parent_turn_id or ""), node.relation, row.kind, came)
        assert found == (expected["parent"], expected["relation"], expected["kind"], begins), name
