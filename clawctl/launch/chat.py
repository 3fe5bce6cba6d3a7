"""`clawctl chat`: a conversation with the run at the terminal. It is captured, judged and trained like any client's."""

import asyncio
import sys
from contextlib import suppress
from typing import Any
from uuid import uuid4

from clawctl.chat_stream import ChatStream, call, stream_answer
from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.http_client import RequestFailed
from clawctl.printing import busy, plain
from clawctl.run.directory import RunDir
from clawctl.run.endpoint import own_endpoint
from clawctl.run.policies import readable_live

HELP = """/good [WORDS]     rate the last answer
/bad [WORDS]      rate it badly; write what you wanted instead
/remember WORDS   a wish that holds from the next answer on
/new              begin another conversation
/quit             end, as Ctrl-D does"""


def talk(run: RunDir, recipe: Recipe, version: int | None) -> None:
    """Read messages and commands from stdin until it ends. Raises ClawError if the server cannot be reached at the beginning."""
    with suppress(ImportError):  # not on every system
        import readline  # noqa: F401 (input() then edits lines)
    conversation, at_terminal = Conversation(run, recipe, version), sys.stdin.isatty()
    conversation.call("GET", "/models")
    if at_terminal:
        print(f"{conversation.endpoint.model} at {conversation.endpoint.url}. Say what you do not like; it counts.\n{HELP}")
    while True:
        shown = version if version is not None else readable_live(run)
        try:
            text = input(f"\n[version {shown or 0}] you: " if at_terminal else "").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if text == "/quit":
            return
        try:
            if text:
                conversation.take(text)
        except KeyboardInterrupt:
            print("\n(stopped)")
        except (ClawError, RequestFailed) as error:
            print(f"({getattr(error, 'problem', error)})", file=sys.stderr)


class Conversation:
    """The messages of one session, and the last answer's id."""

    def __init__(self, run: RunDir, recipe: Recipe, version: int | None) -> None:
        self.endpoint, self._run = own_endpoint(run, recipe, version), run
        self._begin()

    def _begin(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._completion: str | None = None
        self._headers = {"X-Session-Id": f"chat-{uuid4().hex[:16]}", "X-Turn-Type": "main"}

    def take(self, text: str) -> None:
        """A message or a command. Raises ClawError or RequestFailed."""
        command, _, rest = text.partition(" ")
        rest = rest.strip()
        if command == "/new":
            self._begin()
        elif command in ("/good", "/bad"):
            self._rate(1 if command == "/good" else -1, rest)
        elif command == "/remember" and rest:
            self.call("POST", "/notes", {"text": rest})
            print("(noted; `clawctl notes list` shows all)")
        elif command.startswith("/"):
            print(HELP)
        else:
            self._ask(text)

    def _rate(self, rating: int, comment: str) -> None:
        if self._completion is None:
            raise ClawError("there is no answer to rate yet", "ask something first")
        body = {"completion_id": self._completion, "rating": rating, **({"comment": comment} if comment else {})}
        self.call("POST", "/feedback", body)
        print("(rated)")

    def _ask(self, text: str) -> None:
        messages = [*self._messages, {"role": "user", "content": text}]
        receiver = _Printer(self.endpoint.model)
        try:
            asyncio.run(stream_answer(self.endpoint, self._headers, messages, receiver))
        finally:
            receiver.close()
        if receiver.problem is not None:
            raise ClawError(plain(receiver.problem), "ask again")
        print()
        self._messages = [*messages, {"role": "assistant", "content": receiver.text}]
        self._completion = receiver.completion

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> None:
        """One request to the server. Raises ClawError."""
        asyncio.run(call(self.endpoint, method, path, body))


class _Printer(ChatStream):
    """Prints the text of a streamed answer as it arrives. Until then, a terminal shows that it is awaited."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self._waiting = busy(f"{model} …")
        self._waiting.__enter__()
        self._is_waiting = True

    def show(self, piece: str) -> None:
        self.close()
        print(plain(piece), end="", flush=True)

    def close(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._waiting.__exit__(None, None, None)
