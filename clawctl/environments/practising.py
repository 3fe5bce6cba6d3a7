"""`clawctl practice`: turns notes into weights while nobody waits.

A note goes through these steps, and its file says where it is:

1. Tried: version 0 answers short questions with and without it. A note that costs right answers is not practised unless its person
   asks for that.
2. Practised: the person's earlier requests are answered again (`Practice`), a batch a step, all of the person's notes together.
   In the first steps version 0 answers, so that the batches of all steps until the next measurement are played at once.
3. Measured on new requests, after every other step: once answers without the note are like those of version 0 with it
   (`note_effect.py`), it is learned, and leaves the prompt.

A note that is taken back is practised away, for as many steps as it was practised.
"""

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from typing import Any

import orjson

from clawctl.asking import Refused, ServerHealth
from clawctl.config import Recipe
from clawctl.environments.hint_trial import EVERYDAY, settle_hint_place
from clawctl.environments.note_cost import answered, is_costly
from clawctl.environments.note_effect import NoteEffect, followed_share
from clawctl.environments.player import Player, make_plan
from clawctl.environments.practice import Asked, Practice, base_of, earlier_requests, is_held_back, text_of
from clawctl.environments.worker import wait_for_server
from clawctl.errors import ClawError
from clawctl.privacy.redaction import redactor_of
from clawctl.process import stop_on_signals
from clawctl.run.backlog import Backlog
from clawctl.run.default_sampling import default_sampling
from clawctl.run.directory import RunDir, sole_worker
from clawctl.run.endpoint import QUIET, Endpoint, own_endpoint
from clawctl.run.fitness import read_fitness
from clawctl.run.gaps import Gaps
from clawctl.run.hint_places import HintPlace, read_hint_place
from clawctl.run.keys import has_key, policy_of
from clawctl.run.lineage import read_lineage
from clawctl.run.notes import Note, change_note, keys_with_notes, read_notes
from clawctl.run.policies import list_versions, live_version, read_policy
from clawctl.run.rows import DEFAULT_POLICY, Message
from clawctl.run.running import is_running

log = logging.getLogger("practice")

_LOOK_S = 2.0
_STEP_S = 900.0  # the longest wait for a step of the trainer
_RESTART_S = 60.0  # without a trainer, after which it is not waited for
_SETTLED_S = 5.0  # a version that was published or passed the gate is live by then
_MEASURE_EVERY = 2  # steps
_UNDERSTOOD = 0.25  # share of told answers that do what a note asks for; below it, it is not understood
_LEAKS = 0.1  # a note for some requests that is followed further elsewhere stays in the prompt
_TOLD_STEPS = 5  # in its first steps a note is practised on answers of version 0 that is told it, then on the policy's own


def practise(run: RunDir, recipe: Recipe, once: bool) -> None:
    """Practise the notes of all keys until stopped; with `once`, until there is nothing left to practise. Raises ClawError."""
    if not recipe.train.uses_hints:
        problem = f"train.method {recipe.train.method.kind} does not learn from notes"
        raise ClawError(problem, "set train.method to opd_topk, opd, combine or hybrid", 2)
    stop = stop_on_signals()
    with sole_worker(run, "practice"):
        _Practising(run, recipe, stop).work(once)


class _Practising:
    """The worker."""

    def __init__(self, run: RunDir, recipe: Recipe, stop: threading.Event, restart_s: float = _RESTART_S) -> None:
        self._run, self._recipe, self._config, self._stop, self._restart_s = run, recipe, recipe.practice, stop, restart_s
        self._policy = run  # of the key whose notes are practised
        self._find = partial(own_endpoint, run, recipe)
        self._redact = redactor_of(recipe.privacy).text
        self._effects: dict[tuple[str, str, bytes], NoteEffect] = {}
        self._right: list[bool] | None = None  # `_untold`
        self._ahead = Counter[str]()  # batches of a key that were played and are not yet counted as a step
        self._last_step = Counter[str]()  # the version that the last counted step of a key made; 0: there is none
        self._logged: set[str] = set()  # lines that were logged
        self._server = ServerHealth(self._find)
        self._gaps = Gaps(recipe.practice.when, recipe.practice.idle_s, self._server.idle_for)

    def work(self, once: bool) -> None:
        if self._config.when == "off":
            log.info("practice.when is off: notes stay in the prompt")
            return
        wait_for_server(self._find, self._stop)
        while not self._stop.is_set():
            if not once:
                self._attempt(self._prepare)
            worked = self._rounds()
            if not worked and once:
                return
            if not worked:
                self._stop.wait(_LOOK_S)

    def _rounds(self) -> bool:
        """One round for each key that has something to practise. Returns False if there was nothing to do."""
        due = [key for key in keys_with_notes(self._run) if self._attempt(partial(self._has_due, key))]
        return sum(self._attempt(partial(self._round, key, alone=len(due) == 1)) for key in due) > 0

    def _attempt(self, work: Callable[[], bool]) -> bool:
        """Do something for one key. If it fails, the notes of other keys are practised all the same."""
        try:
            return work()
        except Refused as refused:
            self._say(f"the server refused a request of practice: {refused}")
        except ClawError as error:
            self._say(f"{error.problem}; {error.fix}")
        return False

    def _prepare(self) -> bool:
        """Ask what needs no note before the first one comes, so that the next answer already follows it."""
        is_unknown = self._recipe.train.hints.hint_place == "auto" and read_hint_place(self._run) is None
        return is_unknown and self._wait_until_idle() and bool(self._untold(self._place()))

    def _has_due(self, key: str) -> bool:
        """Whether a key has something to practise. The notes of a key that was removed train no policy."""
        return has_key(self._run, key) and any(map(self._is_due, read_notes(self._run, key)))

    def _round(self, key: str, alone: bool) -> bool:
        """Try the new notes of a key and make one step with all of them; `alone`: no other key has notes to practise, so that the
        next step can only be this key's. Returns False if there was nothing to do."""
        self._policy = self._run.of(policy_of(self._run, self._recipe, key))
        notes = read_notes(self._run, key)
        if not any(map(self._is_due, notes)):
            return False
        requests = earlier_requests(self._run, key)
        if len(requests) < self._config.least_requests:
            have, least = len(requests), self._config.least_requests
            self._say(f"{key} has notes to practise, and {have} of the {least} requests that practice needs")
            return False
        if not is_running(self._run, "train"):
            self._say("practice waits for a trainer: no `clawctl train` works on this run")
            return False
        if not self._wait_until_idle():
            return False
        place = self._place()
        for note in notes:
            if note.state == "new" and self._is_due(note) and not self._stop.is_set():
                self._try(key, note, place)
        notes = read_notes(self._run, key)
        wishes = [note for note in notes if note.in_force and note.kind == "wish" and note.practise and note.state != "new"]
        wishes = [note for note in wishes if len(note.text) <= self._recipe.serve.notes_chars]
        if not any(self._is_due(note) for note in notes) or self._stop.is_set():
            return True
        if all(map(self._is_unmeasured, filter(self._is_due, notes))):
            self._measure(key, requests, place)
            return True
        before = self._last_step[key] if self._ahead[key] else (list_versions(self._policy) or [0])[-1]
        self._play(key, wishes, place, alone)
        made = self._last_step[key] = self._wait_for_step(before)
        self._ahead[key] = self._ahead[key] - 1 if made else 0
        if made:
            self._count_step(key, notes, wishes)
            self._measure(key, requests, place)
        return True

    def _is_due(self, note: Note) -> bool:
        """Whether a note is to be tried, practised or practised away. One that is too long for a prompt is not."""
        if note.kind != "wish" or len(note.text) > self._recipe.serve.notes_chars:
            return False
        if not note.in_force or _is_given_up(note):
            return note.steps > 0 and note.shown_state != "not understood"
        return (
            note.state == "new"
            or (note.state in ("prompted", "practised") and note.practise and note.steps < self._config.steps)
            or self._is_unmeasured(note)
        )

    def _is_unmeasured(self, note: Note) -> bool:
        """Whether a note had its last step, and what it taught is not known: the server or the worker ended meanwhile."""
        return note.state == "practised" and note.practise and self._had_all_steps(note) and note.reason is None

    def _had_all_steps(self, note: Note) -> bool:
        return note.steps >= self._config.steps

    # ---- trying ----------------------------------------------------------------------------------------------------------

    def _place(self) -> HintPlace:
        """Where hints stand: as the recipe says, or, with `auto`, where version 0 follows them most often."""
        place = self._recipe.train.hints.hint_place
        return settle_hint_place(self._run, base_of(self._find())) if place == "auto" else place

    def _try(self, key: str, note: Note, place: HintPlace) -> None:
        """Find out whether version 0 follows a note when it is told, if a judge can tell, and what that costs. Its state then is
        `prompted` or `not understood`."""
        if (judge := self._judge()) is not None and (followed := self._judged(judge, note, place)) is not None:
            tried, share = followed
            if share < _UNDERSTOOD:
                reason = f"told this, the untrained model does it in {share:.2f} of its answers, says the judge"
                self._change(key, note, state="not understood", reason=reason)
                log.warning("%s: “%s” is not understood: %s", key, note.text, reason)
                return
            self._change(key, note, text=tried.text)
            note = tried
        base = base_of(self._find())
        without, with_note = self._untold(place), answered(base, note.text, place)
        if is_costly(without, with_note):
            reason = f"told this, the untrained model answers {sum(with_note)} of {len(with_note)} short questions right, and "
            reason += f"{sum(without)} without; `practise: true` practises it all the same"
            self._change(key, note, state="prompted", practise=False, reason=reason)
            log.warning("%s: “%s” stays in the prompt: %s", key, note.text, reason)
            return
        self._change(key, note, state="prompted", reason=None)

    def _untold(self, place: HintPlace) -> list[bool]:
        """Which short questions version 0 answers right without a note."""
        if self._right is None:
            self._right = answered(base_of(self._find()), None, place)
        return self._right

    def _judge(self) -> Endpoint | None:
        """The run's judge, if it passed its planted turns."""
        settings, fitness = self._recipe.judge, read_fitness(self._run)
        if not settings.ask or fitness is None or not fitness.fit:
            return None
        server = replace(self._find(), model=fitness.judge.model, headers=QUIET)
        urls = [settings.endpoint, *settings.endpoints] if settings.endpoint else settings.endpoints
        is_own = not urls or urls[0].rstrip("/") == server.url
        return server if is_own else replace(server, url=urls[0].rstrip("/"), api_key=settings.api_key or "none")

    def _judged(self, judge: Endpoint, note: Note, place: HintPlace) -> tuple[Note, float] | None:
        """The wording that version 0 follows most, the note's or its person's own, and the share of its answers that do. None if
        the judge does not answer."""
        wordings = [note, *([replace(note, text=note.said)] if note.said and note.said != note.text else [])]
        shares = []
        for worded in wordings:
            shares.append(asyncio.run(followed_share(judge, base_of(self._find()), worded.text, place)))
            if shares[-1] is None or shares[-1] >= _UNDERSTOOD:
                break
        measured = [(share, -index) for index, share in enumerate(shares) if share is not None]
        return (wordings[-max(measured)[1]], max(measured)[0]) if measured else None

    def _effect(self, text: str, place: HintPlace, requests: Sequence[list[Message]] = ()) -> NoteEffect:
        """The measurement of a note on some requests, by default new ones that no practice has used."""
        digest = (text, place, orjson.dumps(requests))
        if digest not in self._effects:
            everyday: list[list[Message]] = [[{"role": "user", "content": text}] for text in EVERYDAY]
            self._effects[digest] = NoteEffect(self._find(), text, place, requests or everyday)
        return self._effects[digest]

    # ---- practice --------------------------------------------------------------------------------------------------------

    def _play(self, key: str, wishes: Sequence[Note], place: HintPlace, alone: bool) -> None:
        """Play the exercises of one step, and in the first steps those of all steps until the next measurement, which the trainer
        would only slow down. They pause while somebody asks something."""
        steps, config = [note.steps for note in wishes if note.state != "learned"], self._config
        told_steps = min(_TOLD_STEPS, config.steps) - min(steps) if steps else 0
        until_measured = _MEASURE_EVERY - min(steps, default=0) % _MEASURE_EVERY
        batches = (min(told_steps, until_measured) if alone and told_steps > 0 else 1) - self._ahead[key]
        if batches <= 0:
            return
        limits = config.model_dump(include={"requests", "history_chars", "max_tokens"})
        environment = Practice(user=key, told=float(told_steps > 0), **limits)
        environment.practise(self._run, wishes, place, self._recipe.serve.notes_chars)
        seed = time.time_ns() % (1 << 31)
        plan = make_plan(environment, "practice", batches * self._recipe.train.batch_turns, 1, seed)
        plan = replace(plan, sampling={"temperature": default_sampling(self._recipe).temperature}, key=key)
        log.info("%s practises %s", key, ", ".join(f"“{note.text}”" for note in wishes) or "without notes, what was taken back")
        backlog = Backlog(self._run, self._recipe.train, self._gaps)
        player = Player(self._run, plan, self._find, self._recipe.play.parallel, self._stop, self._redact, backlog)
        asyncio.run(player.play())
        self._ahead[key] += batches

    def _wait_for_step(self, before: int) -> int:
        """Wait until the trainer has made a step from answers to notes, and return its version. 0: it has not, or the gate refused
        it."""
        began, seen_at = time.monotonic(), None
        looked_at = trained_at = began  # when a trainer was looked for, and when there was one
        while not self._stop.is_set() and (now := time.monotonic()) - began < _STEP_S and now - trained_at < self._restart_s:
            if now - looked_at > self._restart_s / 6:  # seldom, because it tries the trainer's lock
                looked_at = now
                trained_at = now if is_running(self._run, "train") else trained_at
            newer = (version for version in list_versions(self._policy) if version > before)
            step = next((version for version in newer if read_policy(self._policy, version).metrics.get("practised")), 0)
            decided = self._policy.eval_record(step).exists() if self._recipe.waits_for_gate else True
            live = live_version(self._policy)
            if step and decided and self._serves(live):
                seen_at = seen_at or time.monotonic()
                if live is not None and step in read_lineage(self._policy).ancestry(live):
                    return step
                if time.monotonic() - seen_at > _SETTLED_S:
                    return 0
            self._stop.wait(_LOOK_S / 4)
        if not self._stop.is_set():
            self._say("the trainer has made no step from the answers of practice; is `clawctl train` running?")
        return 0

    def _serves(self, live: int | None) -> bool:
        """Whether the server has followed. It reads LIVE of a key's own policy at each request."""
        return self._policy.policy != DEFAULT_POLICY or self._server.read().get("live") == live

    def _count_step(self, key: str, notes: Sequence[Note], wishes: Sequence[Note]) -> None:
        for note in wishes:
            if note.state != "learned":
                self._change(key, note, state="practised", steps=note.steps + 1)
        for note in notes:
            if (not note.in_force or _is_given_up(note)) and note.steps:
                is_expired = note.shown_state == "expired"  # it may hold again once its day is changed
                self._change(key, note, steps=note.steps - 1, **({"state": "prompted", "learned": None} if is_expired else {}))

    def _change(self, key: str, note: Note, **changes: Any) -> None:
        """Change a note, except for what its person has changed since it was read."""
        with suppress(ClawError):  # it was deleted
            change_note(self._run, key, note.id, note, **changes)

    def _measure(self, key: str, requests: Sequence[Asked], place: HintPlace) -> None:
        """Find out which notes need no reminder any more."""
        live = live_version(self._policy)
        for note in read_notes(self._run, key):
            is_last = self._had_all_steps(note)
            if note.state != "practised" or (note.steps % _MEASURE_EVERY and not is_last) or self._stop.is_set():
                continue
            followed, elsewhere = self._followed(note, requests, place, live)
            if followed >= self._config.learned_at:  # a dozen answers are few, so it must also hold with as many others
                again, leaks = self._followed(note, requests, place, live, seed=1)
                followed, elsewhere = (followed + again) / 2, max(elsewhere, leaks)
            self._conclude(key, note, place, live, followed, elsewhere)

    def _conclude(self, key: str, note: Note, place: HintPlace, live: int | None, followed: float, elsewhere: float) -> None:
        """Record how far the live version follows a note where it applies and `elsewhere`, and what follows from that."""
        leaks = f", and to {elsewhere:.2f} where it does not apply" if note.words else ""
        log.info("%s: “%s” is followed to %.2f without a reminder%s, after %d steps", key, note.text, followed, leaks, note.steps)
        history = (*note.followed, (live or 0, round(followed, 3)))
        is_last = self._had_all_steps(note)
        is_learned = followed >= self._config.learned_at and elsewhere <= _LEAKS
        if (is_learned or is_last) and (harm := self._harm(note, place, live)) is not None:
            self._change(key, note, state="prompted", practise=False, followed=history, reason=harm)
            log.warning("%s: “%s” stays in the prompt, and is practised away: %s", key, note.text, harm)
        elif is_learned:
            change = {"state": "learned", "learned": live, "policy": self._policy.policy, "followed": history, "reason": None}
            self._change(key, note, **change)
            log.info("%s: “%s” is learned: version %s needs no reminder", key, note.text, live)
        else:
            reason = f"it still needs its reminder after {note.steps} steps" if is_last else None
            self._change(key, note, followed=history, reason=reason)

    def _harm(self, note: Note, place: HintPlace, version: int | None) -> str | None:
        """The right answers that practice has cost; None if it has cost none. A note that costs some when it is told is practised
        only if its person wants that all the same.
        """
        without, now = self._untold(place), answered(own_endpoint(self._policy, self._recipe, version), None, place)
        if not is_costly(without, now) or is_costly(without, answered(base_of(self._find()), note.text, place)):
            return None
        reason = f"after {note.steps} steps the model answers {sum(now)} of {len(now)} short questions right, and "
        return f"{reason}{sum(without)} before; `practise: true` tries it again"

    def _followed(
        self, note: Note, requests: Sequence[Asked], place: HintPlace, version: int | None, seed: int = 0
    ) -> tuple[float, float]:
        """How far a version follows a note without a reminder where it applies, and how far elsewhere: in everyday requests, and in
        those of this person's others that are not practised (0: it applies everywhere)."""
        model = own_endpoint(self._policy, self._recipe, version).model
        if not note.words:
            return asyncio.run(self._effect(note.text, place).followed(model, seed)), 0.0
        plain = [request for request in requests if not request.tools]
        fitting = [request.messages for request in plain if note.applies_to(text_of(request.messages))][-len(EVERYDAY) :]
        others = [request for request in plain if not note.applies_to(text_of(request.messages)) and is_held_back(request)]
        if not fitting:
            return 0.0, 0.0
        leaks = [self._effect(note.text, place)]
        if others:  # each several times, because few answers show little
            leaks.append(self._effect(note.text, place, [request.messages for request in islice(cycle(others), len(EVERYDAY))]))
        return (
            asyncio.run(self._effect(note.text, place, fitting).followed(model, seed)),
            max(asyncio.run(leak.followed(model, seed)) for leak in leaks),
        )

    # ---- waiting ---------------------------------------------------------------------------------------------------------

    def _wait_until_idle(self) -> bool:
        """False: the worker is to stop."""
        while not self._stop.is_set():
            why = self._gaps.why_not()
            if why is None:
                return True
            self._say(f"practice waits: {why}")
            self._stop.wait(_LOOK_S)
        return False

    def _say(self, line: str) -> None:
        """Log a line once."""
        if line not in self._logged:
            self._logged.add(line)
            log.info("%s", line)


def _is_given_up(note: Note) -> bool:
    """Whether a note stays in the prompt because of what it costs; steps that it had are practised away."""
    return note.state == "prompted" and not note.practise
