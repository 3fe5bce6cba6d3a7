"""A candidate answers a share of the new sessions, as a whole, and no request waits or fails because of it."""

from collections import defaultdict
from pathlib import Path
from typing import Any

from served import Server
from test_swap import live, publish

from clawctl.run.policies import move_live
from clawctl.run.sharing import Share, begin_share, end_share
from tests.waiting import until


def versions_by_session(server: Server) -> dict[str, list[tuple[int, int]]]:
    versions = defaultdict(list)
    for line in server.captured():
        versions[str(line["hints"]["session_id"])].append((line["policy_version"], line["policy_version_end"]))
    return versions


def turns(server: Server, session: str, *words: str) -> None:
    """Add turns to a conversation, with its complete history."""
    messages: list[dict[str, Any]] = []
    for at, word in enumerate(words):
        messages.append({"role": "user", "content": word})
        if at < len(words) - 1:
            messages.append({"role": "assistant", "content": "yes"})
    server.client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=4, extra_headers={"X-Session-Id": session} if session else {}
    )


def test_the_share_is_drawn_by_session_and_evenly() -> None:
    share = Share(3, 0.1, 0.0)
    drawn = [share.has(f"default session-{n}") for n in range(5000)]
    assert 400 < sum(drawn) < 600
    assert drawn == [share.has(f"default session-{n}") for n in range(5000)]
    assert not any(Share(3, 0.0, 0.0).has(str(n)) for n in range(100))


def test_whole_new_sessions_go_to_the_candidate_and_no_request_fails_for_it(tmp_path: Path, model_path: Path) -> None:
    with Server(tmp_path / "run", model_path) as server:
        turns(server, "old", "hello")
        publish(server, model_path, 1, canary_of=1)
        share = begin_share(server.run, 1, 0.5)
        numbers = iter(range(10_000))

        def shared_session_is_served() -> bool:
            turns(server, f"warm-{next(numbers)}", "hello")
            return any((1, 1) in versions for versions in versions_by_session(server).values())

        until(shared_session_is_served)
        for turn in range(1, 3):
            turns(server, "old", "a title, please")  # without the history
            for session in (f"s{n}" for n in range(8)):
                turns(server, session, *["hello", "more"][:turn])
        by_session = versions_by_session(server)
        assert set(by_session["old"]) == {(0, 0)}, "a session that began before stays with its version"
        for n in range(8):
            expected = 1 if share.has(f"default s{n}") else 0
            assert by_session[f"s{n}"] == [(expected, expected)] * 2
        assert {by_session[f"s{n}"][0] for n in range(8)} == {(0, 0), (1, 1)}
        publish(server, model_path, 2, canary_of=1)  # the canary check refuses it
        begin_share(server.run, 2, 0.5)
        until(
            lambda: "version 2 cannot answer a share" in server.log.read_text() or turns(server, "", "no name at all") is not None
        )
        move_live(server.run, 1, by="eval")
        end_share(server.run)
        until(lambda: live(server) == 1)
        turns(server, "old", "hello", "more")
        assert versions_by_session(server)["old"][-1] == (1, 1)
        health = server.health()
        assert health["requests"]["failed"] == health["capture"]["lost"] == 0
