"""What real clients sent, stitched: the recordings lie in fixtures/, each with the tree that it has beside it.

`CLIENT.json`: the requests in order, as the client sent them (long texts shortened), and what was answered. `CLIENT.tree.json`: for
each request its parent, its kind, and how each message of its next state begins.
"""

import json
from pathlib import Path

import pytest
from made_exchanges import asked, new_id

from clawctl.collect.sessions import Sessions
from clawctl.types import Exchange

FIXTURES = Path(__file__).parent / "fixtures"
CLIENTS = sorted(path.name.removesuffix(".tree.json") for path in FIXTURES.glob("*.tree.json"))


def recorded(client: str, with_hints: bool, with_handles: bool) -> dict[str, Exchange]:
    """The exchanges by the number of their request; with handles as if we had issued the tool-call ids."""
    text = (FIXTURES / f"{client}.json").read_text()
    rows = json.loads(text)
    ids = {row["request"]: new_id() for row in rows}
    if with_handles:
        for row in rows:
            for index, call in enumerate(row["response"].get("tool_calls", [])):
                bare = call["id"].replace("_", "")
                text = text.replace(call["id"], f"call{ids[row['request']]}{index}").replace(
                    bare, f"call{ids[row['request']]}{index}"
                )
        rows = json.loads(text)
    hints = {row["request"]: {"session_id": row["session_id"]} if with_hints else {} for row in rows}
    return {
        str(row["request"]): asked(row["messages"], row["response"], exchange_id=ids[row["request"]], hints=hints[row["request"]])
        for row in rows
    }


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("with_hints", [True, False])
@pytest.mark.parametrize("with_handles", [True, False])
def test_a_recorded_client_gives_the_tree_that_it_had(client, with_hints, with_handles) -> None:
    exchanges = recorded(client, with_hints, with_handles)
    sessions = Sessions(3600.0)
    for exchange in exchanges.values():
        sessions.add(exchange)
    sessions.tick(1e12)
    rows = {row.turn_id: row for row in sessions.take_rows()}
    names = {exchange.exchange_id: name for name, exchange in exchanges.items()}
    for name, expected in json.loads((FIXTURES / f"{client}.tree.json").read_text()).items():
        row = rows[exchanges[name].exchange_id]
        assert (names.get(row.parent_turn_id or ""), row.kind) == (
            expected["parent"] and str(expected["parent"]),
            expected["kind"],
        ), name
        came = None if row.next_state is None else [f"{message['role']}: {message['content']}" for message in row.next_state]
        assert (came is None) == (expected["next_state"] is None), name
        for said, begins in zip(came or [], expected["next_state"] or [], strict=True):
            assert said.startswith(begins), name
