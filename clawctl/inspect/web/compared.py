"""The page that compares the run with a second one (`inspect web --beside`)."""

import threading

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from clawctl.inspect.compare import compare
from clawctl.inspect.rows import TurnReader
from clawctl.inspect.web.followed_run import FollowedRun
from clawctl.inspect.web.frame import SECTIONS
from clawctl.inspect.web.guard import Key
from clawctl.inspect.web.talk import TalkPage
from clawctl.run.directory import RunDir


class ComparePage(TalkPage):
    """Shows what `inspect compare` prints. The second run is named on the command line only: no request chooses a folder."""

    def __init__(self, run: RunDir, following: FollowedRun, key: Key, beside: RunDir | None) -> None:
        super().__init__(run, following, key)
        self._beside, self._reading = beside, threading.Lock()
        if beside is not None:
            self._turns_beside = TurnReader(beside)
            self._templates.globals["sections"] = (*SECTIONS, ("/compare", "Compare"))

    def compare(self, request: Request) -> Response:
        if self._beside is None:
            raise HTTPException(404, "no run to compare with: start `clawctl inspect web` with --beside RUN")
        with self._reading:
            joined = self._turns_beside.poll()
            compared = compare(
                [self._run, self._beside], lambda run: joined if run is self._beside else self._following.snapshot.joined
            )
        problems = [problem for run in compared["runs"] for problem in run["problems"]]
        return self._page("compare.html", "/compare", **compared, run_problems=problems)
