"""The pages, by path."""

import hashlib
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from clawctl.errors import ClawError
from clawctl.inspect.data import stores_of
from clawctl.inspect.joined import Row
from clawctl.inspect.policies import by_row, comparisons, estimate, gate_of, headings, metrics_of, read_eval, values_of
from clawctl.inspect.rows import message_text, read_lines
from clawctl.inspect.web.compared import ComparePage
from clawctl.inspect.web.derived_data import as_conversation, derived, last_line, marks_of, moves_of, pairs_of
from clawctl.inspect.web.filters import VERDICTS, Filter, matching, opinion, uncertainty
from clawctl.inspect.web.followed_run import FollowedRun
from clawctl.inspect.web.frame import number_in, page_number
from clawctl.inspect.web.guard import Key, PageGuard
from clawctl.inspect.web.text import marked
from clawctl.inspect.web.tokens import coloured
from clawctl.inspect.why import explain, numbers_of, token_texts
from clawctl.run.directory import RunDir
from clawctl.run.keys import list_keys
from clawctl.run.notes import keys_with_notes, read_notes

S = TypeVar("S", bound=Sequence[Any])

_PER_PAGE = 50
_MEASURED = 400  # tasks on a page; most suites have fewer
_QUEUE = 12  # the number of turns to label on a page
_SHOWN = 3000  # characters of a text on a page; the full text has a separate page
_MAX_TEXT = 4 << 20  # characters on that page


class Pages(ComparePage):
    """The pages of the run held by `following`."""

    def __init__(self, run: RunDir, following: FollowedRun, key: Key, beside: RunDir | None = None) -> None:
        super().__init__(run, following, key, beside)
        self._salt = secrets.token_bytes(16)  # decides on which side each answer is shown

    def app(self, port: int) -> PageGuard:
        followed: dict[str, Callable[[Request], Response]] = {
            "/": self.overview, "/conversations": self.conversations, "/turns": self.turns, "/conversation": self.conversation,
            "/turn": self.turn, "/versions": self.versions, "/version": self.version, "/answers": self.answers,
            "/measured": self.measured, "/judge": self.judge, "/environments": self.environments, "/episodes": self.episodes,
            "/data": self.data, "/notes": self.notes, "/talk": self.talk, "/compare": self.compare,
        }  # fmt: skip
        get: dict[str, Callable[[Request], Response]] = {
            "/text": self.text, "/login": self.login, "/static/{name}": self.static,
            "/favicon.ico": lambda request: Response(status_code=204),  # browsers request it for plain-text pages
        }  # fmt: skip
        post: dict[str, Callable[[Request], Response | Awaitable[Response]]] = {
            "/login": self.log_in, "/promote": self.move, "/rollback": self.move, "/label": self.label, "/forget": self.forget,
            "/note": self.note, "/say": self.say, "/rate": self.rate, "/reveal": self.reveal,
        }  # fmt: skip
        routes = [Route(path, self.followed(page), methods=["GET"]) for path, page in followed.items()]
        routes += [Route(path, page, methods=["GET"]) for path, page in get.items()]
        routes += [Route(path, page, methods=["POST"]) for path, page in post.items()]
        pages = Starlette(routes=routes, exception_handlers={HTTPException: self._missing, Exception: self._missing})
        guard = PageGuard(pages, self._key, port)
        self.cookie_name = guard.cookie_name
        return guard

    # ---- reading -------------------------------------------------------------------------------------------------------------

    def overview(self, request: Request) -> Response:
        snapshot = self._seen(request)
        over_time = derived(snapshot, "complaints")
        return self._page(
            "overview.html",
            "/",
            better=snapshot.better,
            health=snapshot.health,
            said={stage: last_line(self._run.log(stage)) for stage in snapshot.health["stages"]},
            buckets=over_time,
            seen=snapshot,
            progress=self._following.progress,
            marks=marks_of(snapshot, over_time),
            metrics=metrics_of(snapshot.policies),
            headings=headings(metrics_of(snapshot.policies)),
            totals=derived(snapshot, "totals"),
            refused=sum(gate_of(row) == "refused" for row in snapshot.policies),
        )

    def notes(self, request: Request) -> Response:
        """The notes of all keys, newest first."""
        problems: list[str] = []
        notes = [(key, note) for key in keys_with_notes(self._run) for note in read_notes(self._run, key, problems)]
        notes.sort(key=lambda entry: entry[1].created_at, reverse=True)
        try:
            policies = {key.name: key.policy for key in list_keys(self._run)}
        except ClawError as error:
            policies, problems = {}, [*problems, error.problem]
        return self._page("notes.html", "/notes", notes=notes, policies=policies, problems=problems)

    def conversations(self, request: Request) -> Response:
        """All conversations, newest first, or those with a turn that matches the filter."""
        return self._list(request, "conversations.html")

    def turns(self, request: Request) -> Response:
        """The turns that match the filter, newest first."""
        return self._list(request, "turns.html")

    def _list(self, request: Request, template: str) -> Response:
        snapshot, wanted, query = self._following.snapshot, Filter.read(request.query_params), request.query_params
        searched = self._following.text_index.search(wanted.q, snapshot.shards, query.get("after")) if wanted.q else None
        if searched is None:
            rows = snapshot.once(wanted, lambda: matching(snapshot.rows, wanted))
        else:
            rows = matching(snapshot.rows, wanted, searched.turns)
        listed: Sequence[Any]
        if template == "turns.html":
            listed = rows[::-1]
        elif wanted.is_empty:
            listed = snapshot.sessions
        else:
            listed = snapshot.sessions.among(rows)
        of_page, numbers = _paged(listed, query)
        shown: list[Any] = list(of_page)
        turns: list[str] = [entry.turn["turn_id"] if isinstance(entry, Row) else entry["first"] for entry in shown]
        return self._page(
            template,
            "/conversations",
            seen=snapshot,
            filter=wanted,
            shown=shown,
            titles=self._following.titles(turns),
            **numbers,
            searched=searched,
            matches=len(rows),
            choices=derived(self._following.of(str(wanted.policy)) if wanted.policy in snapshot.names else snapshot, "choices"),
            verdicts=VERDICTS,
        )

    def conversation(self, request: Request) -> Response:
        snapshot, query = self._following.snapshot, request.query_params
        rows = snapshot.joined.of_session(query.get("id", ""), query.get("user", "default"))
        if not rows:
            raise HTTPException(404, "there is no such conversation; it may still be open, or it was deleted")
        wanted, (of_page, numbers) = Filter.read({**query, "user": ""}), _paged(rows, query)
        shown = list(of_page)
        texts = self._following.texts(row.turn["turn_id"] for row in shown)
        matched = set() if wanted.is_empty else {row.turn["turn_id"] for row in matching(of_page, wanted)}
        return self._page(
            "conversation.html",
            "/conversations",
            rows=shown,
            all=len(rows),
            turns=as_conversation(shown, texts),
            **numbers,
            session=query["id"],
            user=query.get("user", "default"),
            matched=matched,
            labels=self._following.labels,
            filter=wanted,
            counts=rows.tally(opinion),
            limit=_SHOWN,
            trained=len(rows.where(lambda row: row.step is not None)),
        )

    def turn(self, request: Request) -> Response:
        snapshot, row = self._row(request)
        problems: list[str] = []
        turn_id = row.turn["turn_id"]
        record, step = numbers_of(self._run, row, problems)
        text = self._following.texts([turn_id]).get(turn_id)
        whole = replace(row, turn={**row.turn, **(text or {"messages": [], "response": None, "next_state": None})})
        explanation = explain(whole, record, step)
        tokens = coloured(record, token_texts(self._run, record["completion_ids"]), request.query_params) if record else None
        return self._page(
            "turn.html",
            "/conversations",
            row=row,
            explanation=explanation,
            tokens=tokens,
            problems=problems,
            limit=_SHOWN,
            turn=as_conversation([row], {turn_id: text} if text else {})[0],
            parent=snapshot.joined.row(row.turn["parent_turn_id"]),
            children=list(snapshot.joined.children(turn_id)[:12]),
            label=self._following.labels.get(turn_id),
            uncertainty=uncertainty(row),
            step_numbers=step,
        )

    def text(self, request: Request) -> Response:
        """One full text of a turn, as plain text."""
        _, row = self._row(request)
        text = self._following.texts([row.turn["turn_id"]]).get(row.turn["turn_id"])
        if text is None:
            raise HTTPException(404, "the text of this turn is no longer stored")
        part = request.query_params.get("part")
        messages = {"answer": [text["response"]], "next": text["next_state"] or [], "request": text["messages"] or []}.get(
            part or ""
        )
        if messages is None:
            raise HTTPException(404, "choose part=request, answer or next")
        shown_text = "\n\n".join(f"[{message.get('role')}]\n{message_text(message)}" for message in messages if message)
        return PlainTextResponse(marked(shown_text[:_MAX_TEXT]))

    def versions(self, request: Request) -> Response:
        snapshot = self._seen(request)
        metrics = metrics_of(snapshot.policies)
        problems: list[str] = []
        steps = [row for row in read_lines(self._run.of(snapshot.policy).steps, problems) if isinstance(row.get("step"), int)]
        return self._page(
            "versions.html",
            "/versions",
            seen=snapshot,
            policies=snapshot.policies,
            metrics=metrics,
            headings=headings(metrics),
            rates=derived(snapshot, "rates"),
            moves=snapshot.moves[::-1][:20],
            steps=steps[-400:],
        )

    def version(self, request: Request) -> Response:
        snapshot, run, policy = self._version(request)
        problems: list[str] = []
        record = read_eval(run, policy["version"], problems)
        step = next((step for step in read_lines(run.steps, problems) if step.get("step") == policy["step"]), None)
        rate = derived(snapshot, "rates").get(policy["version"])
        return self._page(
            "version.html",
            "/versions",
            seen=snapshot,
            policy=policy,
            record=record,
            step=step,
            rate=rate,
            problems=problems,
            pairs=by_row(comparisons(record)),
            metrics=metrics_of([policy]),
            moves=moves_of(snapshot, policy["version"]),
            others=[row["version"] for row in snapshot.policies if row["version"] != policy["version"]],
            children=[row["version"] for row in snapshot.policies if row["parent"] == policy["version"]],
            live=snapshot.health["live_version"],
        )

    def answers(self, request: Request) -> Response:
        """Two versions' answers to the same task, side by side. The page names the versions only after the reader has chosen."""
        query, (seen, run, new) = request.query_params, self._version(request)
        problems: list[str] = []
        record = read_eval(run, new["version"], problems)
        against = number_in(query.get("against"), (new["decision"] or {}).get("against") or 0)
        pairs = pairs_of(record, read_eval(run, against, problems), against)
        index = min(max(number_in(query.get("i"), 0), 0), max(len(pairs) - 1, 0))
        pair = pairs[index] if pairs else None
        swapped = pair is not None and bool(hashlib.blake2b(f"{pair['task']} {against}".encode(), key=self._salt).digest()[0] & 1)
        pick, score = query.get("pick"), [number_in(part, 0) for part in (query.get("score", "0-0-0").split("-") + ["0"] * 3)[:3]]
        if pick in ("a", "b", "tie") and "counted" not in query:
            score[2 if pick == "tie" else int((pick == "a") == swapped)] += 1
        return self._page(
            "answers.html",
            "/versions",
            seen=seen,
            new=new,
            against=against,
            pair=pair,
            place=index,
            count=len(pairs),
            swapped=swapped,
            pick=pick,
            score=score,
            sides=[] if pair is None else [pair["new"], pair["old"]][:: -1 if swapped else 1],
            names=[new["version"], against][:: -1 if swapped else 1],
            limit=_SHOWN,
        )

    def measured(self, request: Request) -> Response:
        """The values by task that a mean of a version is made of, beside those of another version."""
        (seen, run, policy), query = self._version(request), request.query_params
        suite, metric = query.get("suite", ""), query.get("metric", "")
        value = policy["metrics"].get(suite, {}).get(metric)
        against, problems = number_in(query.get("against"), None), list[str]()
        record = read_eval(run, policy["version"], problems)
        values = values_of(record, suite, metric)
        others = {} if against is None else values_of(read_eval(run, against, problems), suite, metric)
        if value is None and not values:
            raise HTTPException(404, "this version was not measured by that metric")
        shown, numbers = _paged(sorted(values, key=lambda task: (values[task], task)), query, _MEASURED)
        return self._page(
            "measured.html",
            "/versions",
            seen=seen,
            policy=policy,
            suite=suite,
            metric=metric,
            mean=estimate(policy, (suite, metric)),
            against=against,
            versions=[row["version"] for row in seen.policies if metric in row["metrics"].get(suite, {})],
            rows=[(task, values[task], others.get(task)) for task in shown],
            examples={example.get("task_id"): example for example in record["examples"] if isinstance(example, dict)},
            turns={task for task in shown if seen.joined.decided(task) is not None},
            **numbers,
            problems=problems,
        )

    def judge(self, request: Request) -> Response:
        snapshot = self._following.snapshot
        judgements = derived(snapshot, "judge")
        queue = judgements["queue"]
        queue = queue.chosen(~np.isin(queue.indices, snapshot.joined.positions(list(self._following.labels))))
        of_page, numbers = _paged(queue, request.query_params, _QUEUE)
        shown = list(of_page)
        texts = self._following.texts(row.turn["turn_id"] for row in shown)
        return self._page(
            "judge.html",
            "/judge",
            **{**judgements, "queue": as_conversation(shown, texts)},
            waiting=len(queue),
            **numbers,
            limit=700,
            pending=len(self._following.labels),
            health=snapshot.health,
        )

    def environments(self, request: Request) -> Response:
        snapshot = self._following.snapshot
        environments = derived(snapshot, "environments")
        tasks, numbers = _paged(environments["tasks"], request.query_params)
        return self._page(
            "environments.html",
            "/environments",
            **{**environments, "tasks": tasks},
            **numbers,
            plans=snapshot.plans[::-1][:_PER_PAGE],
            metrics=metrics_of(snapshot.policies),
            policies=snapshot.policies,
        )

    def episodes(self, request: Request) -> Response:
        """The episodes of a plan, newest first, or those with one ending."""
        snapshot, query, now = self._following.snapshot, request.query_params, time.time()
        plan = next((plan for plan in snapshot.plans if plan.plan == query.get("plan")), None)
        if plan is None:
            raise HTTPException(404, "there is no such plan; its episodes may be forgotten")
        wanted = query.get("ending")
        episodes = [(episode, episode.ending(now)) for episode in snapshot.episodes if episode.spec.plan == plan.plan]
        episodes = [(episode, ending) for episode, ending in episodes if wanted in (None, ending)][::-1]
        shown, numbers = _paged(episodes, query)
        names = {(episode.spec.session_id, episode.spec.key) for episode, _ in shown}
        return self._page(
            "episodes.html",
            "/environments",
            plan=plan,
            ending=wanted,
            shown=shown,
            sessions={name: rows for name in names if (rows := snapshot.joined.of_session(*name))},
            **numbers,
        )

    def data(self, request: Request) -> Response:
        snapshot = self._following.snapshot
        rows = {
            "captures": snapshot.health["captures"]["exchanges"], "trajectories": len(snapshot.rows),
            "verdicts": len(snapshot.rows.where(lambda row: row.verdict is not None)),
        }  # fmt: skip
        stores = snapshot.once(("stores", int(snapshot.at // 10)), lambda: stores_of(self._run, rows))
        return self._page(
            "data.html",
            "/data",
            stores=stores,
            users=derived(snapshot, "users"),
            health=snapshot.health,
            forgotten=list(read_lines(self._run.forgotten, [])),
            problems=snapshot.problems,
        )


def _paged(items: S, query: Any, most: int = _PER_PAGE) -> tuple[S, dict[str, int]]:
    """The items of the page that a query asks for, at most so many, and the numbers that its template shows."""
    page = page_number(query)
    shown = cast(S, items[(page - 1) * most : page * most])
    return shown, {"page": page, "pages": -(-len(items) // most), "count": len(items)}
