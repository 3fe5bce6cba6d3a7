"""The pages, and the few buttons that change something: promote, roll back, label, forget."""

import hashlib
import re
import secrets
import threading
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jinja2
from markupsafe import Markup, escape
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from clawctl.errors import ClawError
from clawctl.inspect.better import rates
from clawctl.inspect.data import stores_of
from clawctl.inspect.policies import comparisons, estimate, gate_of, headings, metrics_of, read_eval, tally
from clawctl.inspect.report import examples_of, scores_of
from clawctl.inspect.rows import Row, read_lines, words_of
from clawctl.inspect.tables import since, sized
from clawctl.inspect.web.finding import VERDICTS, Filter, agreement, complaints, fate, matching, opinion, rating_of, uncertainty
from clawctl.inspect.web.following import Following, Seen
from clawctl.inspect.web.guard import Guard, Key
from clawctl.inspect.web.tokens import coloured, token_texts
from clawctl.inspect.web.words import request_of
from clawctl.inspect.why import explain, read_record
from clawctl.printing import plain
from clawctl.privacy.chosen import Wish
from clawctl.privacy.forget import forget
from clawctl.run.directory import RunDir
from clawctl.run.feedback import LABEL, LONGEST_COMMENT, FeedbackFile
from clawctl.run.promotion import promote, rollback
from clawctl.run.reward import signed, signs
from clawctl.run.rows import Feedback

_HERE = Path(__file__).parent
_KINDS = {".css": "text/css", ".js": "text/javascript"}
_PER_PAGE = 50
_QUEUE = 12  # turns to label on a page
_SHOWN = 3000  # characters of a text on a page; the rest has a page of its own
_MOST_TEXT = 4 << 20  # characters of that page
_SECTIONS = (
    ("/", "Overview"), ("/conversations", "Conversations"), ("/versions", "Versions"), ("/judge", "Judge"),
    ("/environments", "Environments"), ("/data", "Data"),
)  # fmt: skip


class Pages:
    """Renders the run that `following` holds."""

    def __init__(self, run: RunDir, following: Following, key: Key) -> None:
        self._run, self._following, self._key = run, following, key
        self._labels, self._writing = FeedbackFile(run.feedback), threading.Lock()
        self._salt = secrets.token_bytes(16)  # of the side on which an answer is shown
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "visible": visible, "cut": cut, "ago": lambda at: since(at, time.time()), "clock": clock, "signed": signed,
            "sized": sized, "short": short, "link": lambda values: urlencode({k: v for k, v in values.items() if v is not None}),
        }  # fmt: skip
        self._templates.globals |= {
            "sections": _SECTIONS, "run": str(run.root), "name": run.root.name, "token": key.form_token, "fate": fate,
            "opinion": opinion, "gate_of": gate_of, "rating_of": rating_of, "version_of_files": _version_of_files(),
        }  # fmt: skip

    def app(self, port: int) -> Guard:
        get: dict[str, Callable[[Request], Response]] = {
            "/": self.overview, "/conversations": self.conversations, "/turns": self.turns, "/conversation": self.conversation,
            "/turn": self.turn, "/text": self.text, "/versions": self.versions, "/version": self.version, "/answers": self.answers,
            "/judge": self.judge, "/environments": self.environments, "/data": self.data, "/login": self.login,
            "/static/{name}": self.static,
        }  # fmt: skip
        post: dict[str, Callable[[Request], Response]] = {
            "/login": self.log_in, "/promote": self.move, "/rollback": self.move, "/label": self.label, "/forget": self.forget,
        }  # fmt: skip
        routes = [Route(path, page, methods=["GET"]) for path, page in get.items()]
        routes += [Route(path, page, methods=["POST"]) for path, page in post.items()]
        self._guard = Guard(
            Starlette(routes=routes, exception_handlers={HTTPException: self._missing, Exception: self._missing}), self._key, port
        )
        return self._guard

    # ---- reading -------------------------------------------------------------------------------------------------------------

    def overview(self, request: Request) -> Response:
        seen = self._following.seen
        over_time = _derived(seen, "complaints")
        return self._page(
            "overview.html",
            "/",
            better=seen.better,
            health=seen.health,
            buckets=over_time,
            seen=seen,
            marks=_marks(seen, over_time),
            metrics=metrics_of(seen.policies),
            headings=headings(metrics_of(seen.policies)),
            policies=seen.policies,
            counts=_derived(seen, "signs"),
            estimate=estimate,
            refused=sum(gate_of(row) == "refused" for row in seen.policies),
        )

    def conversations(self, request: Request) -> Response:
        """Conversations, newest first: all of them, or those with a turn that matches the filter."""
        return self._list(request, "conversations.html")

    def turns(self, request: Request) -> Response:
        """The matching turns, newest first."""
        return self._list(request, "turns.html")

    def _list(self, request: Request, template: str) -> Response:
        seen, wanted, query = self._following.seen, Filter.read(request.query_params), request.query_params
        searched = self._following.words.search(wanted.q, seen.shards, query.get("after")) if wanted.q else None
        if searched is None:
            rows = seen.once(wanted, lambda: matching(seen.rows, wanted))
        else:
            rows = matching(seen.rows, wanted, searched.turn_ids)
        listed: Sequence[Any]
        if template == "turns.html":
            listed = rows[::-1]
        elif wanted.is_empty:
            listed = seen.sessions
        else:
            listed = _sessions_of(seen, rows) if searched else seen.once(("sessions", wanted), lambda: _sessions_of(seen, rows))
        page = _page_number(query)
        shown = listed[(page - 1) * _PER_PAGE : page * _PER_PAGE]
        turns: list[str] = [one.turn["turn_id"] if isinstance(one, Row) else _first(seen, one) for one in shown]
        return self._page(
            template,
            "/conversations",
            seen=seen,
            filter=wanted,
            shown=shown,
            titles=self._following.titles(turns),
            count=len(listed),
            page=page,
            pages=-(-len(listed) // _PER_PAGE),
            searched=searched,
            matches=len(rows),
            first=lambda one: _first(seen, one),
            choices=_derived(seen, "choices"),
            verdicts=VERDICTS,
        )

    def conversation(self, request: Request) -> Response:
        seen, query = self._following.seen, request.query_params
        rows = seen.of_session.get((query.get("id", ""), query.get("user", "default")))
        if rows is None:
            raise HTTPException(404, "there is no such conversation; it may be open still, or forgotten")
        wanted, page = Filter.read({**query, "user": ""}), _page_number(query)
        shown = rows[(page - 1) * _PER_PAGE : page * _PER_PAGE]
        texts = self._following.texts(row.turn["turn_id"] for row in shown)
        matched = set() if wanted.is_empty else {row.turn["turn_id"] for row in matching(shown, wanted)}
        return self._page(
            "conversation.html",
            "/conversations",
            rows=shown,
            all=len(rows),
            turns=_as_conversation(seen, shown, texts),
            page=page,
            pages=-(-len(rows) // _PER_PAGE),
            session=query["id"],
            user=query.get("user", "default"),
            matched=matched,
            labels=self._following.labels,
            filter=wanted,
            counts=Counter(opinion(row) for row in rows),
            limit=_SHOWN,
            trained=sum(row.step is not None for row in rows),
        )

    def turn(self, request: Request) -> Response:
        seen, row = self._row(request)
        problems: list[str] = []
        turn_id = row.turn["turn_id"]
        record = read_record(self._run, row.step, turn_id, problems) if row.step is not None else None
        step = next((found for found in read_lines(self._run.steps, problems) if found.get("step") == row.step), None)
        text = self._following.texts([turn_id]).get(turn_id)
        whole = Row({**row.turn, **(text or {"messages": [], "response": None, "next_state": None})}, *_rest(row))
        found = explain(whole, record, step)
        tokens = coloured(record, token_texts(self._run, record["completion_ids"]), request.query_params) if record else None
        return self._page(
            "turn.html",
            "/conversations",
            row=row,
            found=found,
            tokens=tokens,
            problems=problems,
            limit=_SHOWN,
            turn=_as_conversation(seen, [row], {turn_id: text} if text else {})[0],
            parent=seen.by_id.get(row.turn["parent_turn_id"]),
            children=[seen.by_id[child] for child in seen.children.get(turn_id, ()) if child in seen.by_id],
            label=self._following.labels.get(turn_id),
            uncertainty=uncertainty(row),
            step_numbers=step,
        )

    def text(self, request: Request) -> Response:
        """One text of a turn, whole, as plain text."""
        _, row = self._row(request)
        text = self._following.texts([row.turn["turn_id"]]).get(row.turn["turn_id"])
        if text is None:
            raise HTTPException(404, "the text of this turn is not stored any more")
        part = request.query_params.get("part")
        messages = {"answer": [text["response"]], "next": text["next_state"] or [], "request": text["messages"] or []}.get(
            part or ""
        )
        if messages is None:
            raise HTTPException(404, "choose part=request, answer or next")
        words = "\n\n".join(f"[{message.get('role')}]\n{words_of(message)}" for message in messages if message)
        return PlainTextResponse(marked(words[:_MOST_TEXT]))

    def versions(self, request: Request) -> Response:
        seen = self._following.seen
        metrics = metrics_of(seen.policies)
        problems: list[str] = []
        steps = [row for row in read_lines(self._run.steps, problems) if isinstance(row.get("step"), int)]
        return self._page(
            "versions.html",
            "/versions",
            policies=seen.policies,
            metrics=metrics,
            headings=headings(metrics),
            estimate=estimate,
            tally=tally,
            rates=_derived(seen, "rates"),
            moves=seen.moves[::-1][:20],
            steps=steps[-400:],
        )

    def version(self, request: Request) -> Response:
        seen, policy = self._following.seen, self._policy(request, "n")
        problems: list[str] = []
        record = read_eval(self._run, policy["version"], problems)
        step = next((found for found in read_lines(self._run.steps, problems) if found.get("step") == policy["step"]), None)
        rate = _derived(seen, "rates").get(policy["version"])
        return self._page(
            "version.html",
            "/versions",
            policy=policy,
            record=record,
            step=step,
            rate=rate,
            problems=problems,
            pairs=_by_metric(policy["comparisons"]),
            tally=tally,
            metrics=metrics_of([policy]),
            moves=_moves_of(seen, policy["version"]),
            others=[row["version"] for row in seen.policies if row["version"] != policy["version"]],
            children=[row["version"] for row in seen.policies if row["parent"] == policy["version"]],
            live=seen.health["live_version"],
        )

    def answers(self, request: Request) -> Response:
        """Two versions' answers to the same task, side by side. The page names the versions once the reader has chosen."""
        query, new = request.query_params, self._policy(request, "n")
        problems: list[str] = []
        record = read_eval(self._run, new["version"], problems)
        against = _number(query.get("against"), (new["decision"] or {}).get("against") or 0)
        pairs = _pairs(record, read_eval(self._run, against, problems))
        place = min(max(_number(query.get("i"), 0), 0), max(len(pairs) - 1, 0))
        pair = pairs[place] if pairs else None
        swapped = pair is not None and bool(hashlib.blake2b(f"{pair['task']} {against}".encode(), key=self._salt).digest()[0] & 1)
        pick, score = query.get("pick"), [_number(part, 0) for part in (query.get("score", "0-0-0").split("-") + ["0"] * 3)[:3]]
        if pick in ("a", "b", "tie") and "counted" not in query:
            score[2 if pick == "tie" else int((pick == "a") == swapped)] += 1
        return self._page(
            "answers.html",
            "/versions",
            new=new,
            against=against,
            pair=pair,
            place=place,
            count=len(pairs),
            swapped=swapped,
            pick=pick,
            score=score,
            sides=[] if pair is None else [pair["new"], pair["old"]][:: -1 if swapped else 1],
            names=[new["version"], against][:: -1 if swapped else 1],
            limit=_SHOWN,
        )

    def judge(self, request: Request) -> Response:
        seen, page = self._following.seen, _page_number(request.query_params)
        found = _derived(seen, "judge")
        queue = [row for row in found["queue"] if row.turn["turn_id"] not in self._following.labels]
        shown = queue[(page - 1) * _QUEUE : page * _QUEUE]
        texts = self._following.texts(row.turn["turn_id"] for row in shown)
        return self._page(
            "judge.html",
            "/judge",
            **{**found, "queue": _as_conversation(seen, shown, texts)},
            waiting=len(queue),
            page=page,
            pages=-(-len(queue) // _QUEUE),
            limit=700,
            pending=len(self._following.labels),
        )

    def environments(self, request: Request) -> Response:
        seen = self._following.seen
        found = _derived(seen, "environments")
        page = _page_number(request.query_params)
        return self._page(
            "environments.html",
            "/environments",
            **{**found, "tasks": found["tasks"][(page - 1) * _PER_PAGE : page * _PER_PAGE]},
            page=page,
            pages=-(-len(found["tasks"]) // _PER_PAGE),
            count=len(found["tasks"]),
            metrics=metrics_of(seen.policies),
            policies=seen.policies,
            estimate=estimate,
        )

    def data(self, request: Request) -> Response:
        seen = self._following.seen
        rows = {
            "captures": seen.health["captures"]["exchanges"], "trajectories": len(seen.rows),
            "verdicts": sum(row.verdict is not None for row in seen.rows),
        }  # fmt: skip
        stores = seen.once(("stores", int(seen.at // 10)), lambda: stores_of(self._run, rows))
        return self._page(
            "data.html",
            "/data",
            stores=stores,
            users=_derived(seen, "users"),
            health=seen.health,
            forgotten=list(read_lines(self._run.forgotten, [])),
            problems=seen.problems,
        )

    # ---- the buttons ---------------------------------------------------------------------------------------------------------

    def move(self, request: Request) -> Response:
        """Promote a version, or go back to it."""
        version = _number(request.state.form.get("version"), None)
        if version is None:
            raise HTTPException(400, "the form names no version")
        work = promote if request.url.path == "/promote" else rollback
        try:
            message = work(self._run, version)
        except ClawError as error:
            return self._problem(error, "/versions")
        self._following.refresh()
        return self._page("done.html", "/versions", heading="LIVE moved", lines=message.splitlines(), back="/versions")

    def label(self, request: Request) -> Response:
        """Append a rating of the person who runs this."""
        form = request.state.form
        row = self._following.seen.by_id.get(form.get("turn", ""))
        rating = {"good": 1.0, "neutral": 0.0, "bad": -1.0}.get(form.get("rating", ""))
        if row is None or rating is None:
            raise HTTPException(400, "the form names no turn, or no rating")
        comment = form.get("comment", "").strip()[:LONGEST_COMMENT] or None
        label = Feedback(secrets.token_hex(12), time.time(), LABEL, row.turn["turn_id"], rating, comment)
        with self._writing:
            self._labels.append(label)
        self._following.labels[label.turn_id] = label
        return RedirectResponse(_inner(form.get("back", "/judge")), 303)

    def forget(self, request: Request) -> Response:
        """First show what would be deleted, then delete it."""
        form = request.state.form
        user, session = form.get("user") or None, form.get("session") or None
        if (user is None) == (session is None):
            raise HTTPException(400, "name either a key or a conversation")
        options = {name: form.get(name) == "yes" for name in ("retrain", "stop_workers")}
        sure = form.get("sure") == "yes"
        wish = Wish(session=session, user=user)
        try:
            done = forget(self._run, wish, not sure, options["retrain"], options["stop_workers"])
        except ClawError as error:
            return self._problem(error, "/data")
        if sure:
            self._following.refresh()
        return self._page("forget.html", "/data", done=done, user=user, session=session, options=options)

    # ---- the rest ------------------------------------------------------------------------------------------------------------

    def login(self, request: Request) -> Response:
        given = request.query_params.get("key")
        return self._opened(given) if given else self._page("login.html", "/login", wrong=False)

    def log_in(self, request: Request) -> Response:
        return self._opened(request.state.form.get("key", ""))

    def _opened(self, given: str) -> Response:
        """The cookie. A page in between goes on by itself: after a redirect a browser would not yet send a strict cookie."""
        if not self._key.opens(given.strip()):
            return self._page("login.html", "/login", 403, wrong=True)
        answer = self._page("opened.html", "/login")
        answer.set_cookie(self._guard.cookie_name, self._key.cookie, httponly=True, samesite="strict", path="/")
        return answer

    def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _static_files():
            raise HTTPException(404, "there is no such file")
        content, kind = _static_files()[name]
        return Response(content, media_type=kind, headers={"Cache-Control": "private, max-age=31536000, immutable"})

    def _missing(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        detail = error.detail if isinstance(error, HTTPException) else "unknown error"
        return self._page("problem.html", request.url.path, status, problem=detail, fix="", back="/")

    def _problem(self, error: ClawError, back: str) -> Response:
        return self._page("problem.html", back, 409, problem=error.problem, fix=error.fix, back=back)

    def _page(self, template: str, section: str, status: int = 200, **values: Any) -> HTMLResponse:
        problems = [] if template in ("login.html", "opened.html") else self._following.seen.problems
        page = self._templates.get_template(template).render(section=section, run_problems=problems, **values)
        return HTMLResponse(page.encode(errors="replace"), status)

    def _row(self, request: Request) -> tuple[Seen, Row]:
        seen = self._following.seen
        row = seen.by_id.get(request.query_params.get("id", ""))
        if row is None:
            raise HTTPException(404, "there is no such turn; it may be in an open session, or forgotten")
        return seen, row

    def _policy(self, request: Request, name: str) -> dict[str, Any]:
        version = _number(request.query_params.get(name), None)
        found = next((row for row in self._following.seen.policies if row["version"] == version), None)
        if found is None:
            raise HTTPException(404, "there is no such version")
        return found


# ---- what the templates show ---------------------------------------------------------------------------------------------------


def prepare(seen: Seen) -> None:
    """Derive what the first page of each section needs. With 100,000 turns a page must not wait for it."""
    for name, make in _DERIVED.items():
        seen.once(name, partial(make, seen))


def _judged(seen: Seen) -> list[Row]:
    return [row for row in seen.rows if row.turn["kind"] == "main" and row.worth.value is not None]


def _marks(seen: Seen, buckets: Sequence[Any]) -> list[dict[str, Any]]:
    """The moves of LIVE within the time of a chart."""
    if not buckets:
        return []
    begin, end = buckets[0].begin, buckets[-1].end
    return [{"x": move["at"], "label": f"v{move['to']}"} for move in seen.moves if begin <= move["at"] <= end][-40:]


def _sessions_of(seen: Seen, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The conversations of these turns, newest first, with the number of the turns."""
    matches = Counter((row.turn["session_id"], row.turn["user"]) for row in rows)
    return [{**one, "matches": count} for one in seen.sessions if (count := matches.get((one["session"], one["user"])))]


def _first(seen: Seen, session: dict[str, Any]) -> str:
    """The first turn of a conversation: the first main turn, if there is one."""
    rows = seen.of_session[session["session"], session["user"]]
    found: str = next((row for row in rows if row.turn["kind"] == "main"), rows[0]).turn["turn_id"]
    return found


def _choices(seen: Seen) -> dict[str, list[tuple[Any, int]]]:
    """The values that occur, for the lists of the filter."""
    users, versions, fates = (Counter[Any]() for _ in range(3))
    for row in seen.rows:
        users[row.turn["user"]] += 1
        versions[row.turn["policy_version"]] += 1
        fates[fate(row)] += 1
    del versions[None]
    return {"user": users.most_common(200), "version": sorted(versions.items(), reverse=True), "fate": fates.most_common(60)}


def _as_conversation(seen: Seen, rows: Sequence[Row], texts: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The turns as a reader follows them. What came back is left out if the next turn on the page shows it as its request."""
    shown = {row.turn["turn_id"] for row in rows}
    found = []
    for place, row in enumerate(rows):
        turn_id, text = row.turn["turn_id"], texts.get(row.turn["turn_id"])
        after = [child for child in seen.children.get(turn_id, ()) if child in shown]
        before = row.turn["parent_turn_id"]
        messages = (text or {}).get("messages") or []
        found.append({
            "row": row,
            "missing": text is None,
            "asked": request_of(messages) if _is_root(messages) else _newest(messages),
            "roles": [str(message.get("role")) for message in messages if isinstance(message, dict)],
            "answer": words_of((text or {}).get("response")),
            "next": [
                (str(message.get("role")), words_of(message)) for message in (text or {}).get("next_state") or () if not after
            ],
            "came_back": bool((text or {}).get("next_state")),
            "forks": before is not None and not (place and rows[place - 1].turn["turn_id"] == before),
            "parent": before,
        })  # fmt: skip
    return found


def _is_root(messages: Sequence[Any]) -> bool:
    return not any(isinstance(message, dict) and message.get("role") == "assistant" for message in messages)


def _newest(messages: Sequence[Any]) -> str:
    """Everything after the last answer: what the turn reacts to."""
    told = [message for message in messages if isinstance(message, dict)]
    last = max((place for place, message in enumerate(told) if message.get("role") == "assistant"), default=-1)
    after = told[last + 1 :] or told[-1:]
    return "\n\n".join(words_of(message) for message in after)


def _rest(row: Row) -> tuple[Any, ...]:
    return row.verdict, row.step, row.why_not, row.worth, row.dead_steps, row.rating


def _by_metric(pairs: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for one in pairs:
        found.setdefault(str(one.get("metric")), []).append(one)
    return found


def _moves_of(seen: Seen, version: int) -> list[dict[str, Any]]:
    return [move for move in seen.moves if version in (move["from"], move["to"])][::-1]


_ANSWERS = {
    "new": ("candidate_answer", "candidate", "new", "answer", "reply"),
    "old": ("reference_answer", "reference", "old", "live"),
}
_ASKED = ("prompt", "asked", "request", "messages", "conversation", "question")


def _pairs(new: dict[str, Any], old: dict[str, Any]) -> list[dict[str, Any]]:
    """Tasks that two versions answered: from the comparisons of the newer one, and from the examples that both records have."""
    found = []
    for one in comparisons(new):
        detail = one.get("detail")
        if isinstance(detail, dict):
            sides = {side: next((detail[name] for name in names if name in detail), None) for side, names in _ANSWERS.items()}
            if None not in sides.values():
                asked = next((detail[name] for name in _ASKED if name in detail), one.get("task_id"))
                score = {"new": [f"{one['candidate']:g}"], "old": [f"{one['reference']:g}"]}
                words = {side: {"reply": _words(value), "scores": score[side]} for side, value in sides.items()}
                found.append({"task": str(one.get("task_id")), "asked": _words(asked), **words})
    earlier = examples_of(old)
    for task, example in examples_of(new).items():
        if task in earlier:
            words = {
                side: {"reply": str(of.get("reply", "")), "scores": scores_of(of)}
                for side, of in (("new", example), ("old", earlier[task]))
            }
            found.append({"task": task, "asked": str(example.get("prompt", task)), **words})
    return found


def _words(value: Any) -> str:
    """The text of a message, of several, or of anything else."""
    if isinstance(value, dict) and ("content" in value or "tool_calls" in value):
        return words_of(value)
    return "\n\n".join(map(_words, value)) if isinstance(value, list) else str(value)


def _judge_numbers(seen: Seen) -> dict[str, Any]:
    judges: dict[str, Counter[str]] = {}
    votes = Counter[str]()
    queue = []
    for row in seen.rows:
        if row.verdict is None or row.verdict["judge"] is None:
            continue
        found = row.verdict["votes"] or []
        if found or row.verdict["reward"] is not None:
            judges.setdefault(row.verdict["judge"], Counter())[opinion(row)] += 1
        if found:
            unsure = uncertainty(row)
            votes["no valid vote" if all(vote is None for vote in found) else "divided" if unsure else "unanimous"] += 1
            if unsure > 0:
                queue.append((unsure, row))
    queue.sort(key=lambda one: (-one[0], -one[1].turn["created_at"]))
    return {"agreement": agreement(seen.rows), "judges": judges, "votes": votes, "queue": [row for _, row in queue]}


def _environments(seen: Seen) -> dict[str, Any]:
    """Turns of tasks and episodes, by task, and all turns by source."""
    tasks: dict[str, dict[str, Any]] = {}
    sources: dict[str, dict[str, Any]] = {}
    for row in seen.rows:
        turn = row.turn
        source = sources.setdefault(turn["source"], {"source": turn["source"], "turns": 0, "sessions": set(), "outcomes": 0})
        source["turns"] += 1
        source["sessions"].add((turn["session_id"], turn["user"]))
        outcome = row.worth.outcome if row.worth.outcome is not None else turn["outcome_reward"]
        source["outcomes"] += outcome is not None
        if turn["task_id"] is not None or turn["group_id"] is not None or outcome is not None:
            name = str(turn["task_id"] or turn["group_id"] or turn["session_id"])
            fresh: dict[str, Any] = {
                "task": turn["task_id"],
                "group": turn["group_id"],
                "name": name,
                "turns": 0,
                "episodes": {},
                "groups": set(),
                "last": 0.0,
            }
            task = tasks.setdefault(name, fresh)
            task["turns"] += 1
            task["groups"].add(turn["group_id"])
            task["episodes"][turn["session_id"], turn["user"]] = outcome
            task["last"] = max(task["last"], turn["created_at"])
    for task in tasks.values():
        known = [value for value in task["episodes"].values() if value is not None]
        task |= {"known": len(known), "mean": sum(known) / len(known) if known else None}
        task |= {"low": min(known, default=None), "high": max(known, default=None)}
    ordered = sorted(tasks.values(), key=lambda task: -task["last"])
    return {"tasks": ordered, "sources": sorted(sources.values(), key=lambda source: -source["turns"])}


def _users(seen: Seen) -> list[dict[str, Any]]:
    users: dict[str, dict[str, Any]] = {}
    for one in seen.sessions:
        fresh = {"user": one["user"], "sessions": 0, "turns": 0, "trained": 0, "first": one["first_seen"], "last": one["last_seen"]}
        user = users.setdefault(one["user"], fresh)
        user["sessions"] += 1
        user["turns"] += one["turns"]
        user["trained"] += one["trained"]
        user["first"], user["last"] = min(user["first"], one["first_seen"]), max(user["last"], one["last_seen"])
    return sorted(users.values(), key=lambda user: str(user["user"]))


_DERIVED: dict[str, Callable[[Seen], Any]] = {
    "complaints": lambda seen: complaints(_judged(seen)),
    "signs": lambda seen: signs(row.worth.value for row in seen.rows),
    "rates": lambda seen: rates(seen.rows),
    "choices": _choices,
    "judge": _judge_numbers,
    "environments": _environments,
    "users": _users,
}


def _derived(seen: Seen, name: str) -> Any:
    return seen.once(name, partial(_DERIVED[name], seen))


# ---- text ----------------------------------------------------------------------------------------------------------------------

# Controls, marks that reverse or hide text, and characters that cannot be encoded. Joiners stay: scripts and emoji need them.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
_MOST_MARKS = 200  # of a text: after that they are left out


def visible(text: Any, limit: int | None = None) -> Markup:
    """Text as HTML, in which every hidden or reversing character is a mark with its name. Longer text is cut."""
    whole = str(text).replace("\r\n", "\n")
    shown = whole if limit is None or len(whole) <= limit else whole[:limit]
    parts, end, marks = [], 0, 0
    for match in _HIDDEN.finditer(shown):
        parts.append(escape(shown[end : match.start()]))
        end = match.end()
        if (marks := marks + 1) <= _MOST_MARKS:
            parts.append(Markup('<span class="ctl" title="{}">{}</span>').format(_name_of(match[0]), f"{ord(match[0]):04X}"))
    parts.append(escape(shown[end:]))
    return Markup("").join(parts)


def marked(text: str) -> str:
    """The same for plain text: "⟨202E⟩"."""
    return _HIDDEN.sub(lambda match: f"⟨{ord(match[0]):04X}⟩", text.replace("\r\n", "\n"))


def _name_of(character: str) -> str:
    return f"U+{ord(character):04X} {unicodedata.name(character, 'control character')}"


def cut(text: Any, limit: int) -> str:
    """One line, without controls."""
    return plain(" ".join(plain(str(text)[: 8 * limit]).split()), limit)


def short(value: Any) -> str:
    """A number for people; a dash for none."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _number(text: Any, default: Any) -> Any:
    try:
        return int(text)
    except (TypeError, ValueError):
        return default


def _page_number(query: Any) -> int:
    return min(max(1, int(_number(query.get("page"), 1))), 1_000_000)


def _inner(path: str) -> str:
    """A path of this server; the first page instead of anything else."""
    return path if re.fullmatch(r"/[a-z]*(\?[^\s\\]*)?(#[\w-]*)?", path) else "/"


_files: dict[str, tuple[bytes, str]] = {}


def _static_files() -> dict[str, tuple[bytes, str]]:
    if not _files:
        _files.update(
            {path.name: (path.read_bytes(), kind) for path in (_HERE / "static").iterdir() if (kind := _KINDS.get(path.suffix))}
        )
    return _files


def _version_of_files() -> str:
    """Changes with the files, so that browsers may keep them."""
    return hashlib.blake2b(b"".join(content for content, _ in _static_files().values()), digest_size=6).hexdigest()
