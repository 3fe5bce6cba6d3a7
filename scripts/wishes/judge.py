"""The judge and hint writer of this world: the rules of `reader.py`, behind the API of a judge.

    python -m scripts.wishes.judge [--port 0]

prints its URL for `judge.endpoint`. It answers the judge stage's prompts like a chat model, on the loopback only.
"""

import argparse
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random

from scripts.wishes.reader import read
from scripts.wishes.wording import hint

_CAME_BACK = re.compile(r"<(\w+) came back from \w+>\n(.*)\n<\1 end>", re.DOTALL)


def judged(came_back: str, seed: str) -> tuple[int, str | None]:
    """The score (1, -1 or 0) of a user's reply, and a hint if the reply contains a wish or doubts the number."""
    said, rng = read(came_back), Random(f"hint {seed}")
    if said.wants:
        return said.score, hint(said.wants, rng)
    return said.score, "Work out the result again." if said.doubts else None


def answer_to(prompt: str) -> str:
    """A vote on the turn in a judge's prompt, in a judge's format."""
    match = _CAME_BACK.search(prompt)
    score, said = judged(match[2] if match else "", prompt)
    return f"\\boxed{{{score}}}" + (f" [HINT_START]{said}[HINT_END]" if said else "")


class _Door(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = answer_to(str(body["messages"][-1]["content"]))
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        self._send({"id": "vote", "object": "chat.completion", "model": body.get("model", ""), "choices": [choice]})

    def do_GET(self) -> None:
        self._send({"object": "list", "data": [{"id": "wishes", "object": "model"}]})

    def _send(self, answer: dict[str, object]) -> None:
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, because requests contain conversations."""


def judge_server(port: int = 0) -> ThreadingHTTPServer:
    """A judge on the loopback. Port 0 selects any free port."""
    return ThreadingHTTPServer(("127.0.0.1", port), _Door)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    with judge_server(parser.parse_args().port) as server:
        print(f"http://127.0.0.1:{server.server_port}/v1", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
