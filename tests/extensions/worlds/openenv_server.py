"""A server with OpenEnv's protocol: a counter that must reach three. One session at a time.

python openenv_server.py --port PORT
"""

import argparse
import json

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

ACTION = {
    "title": "CountAction", "description": "Adds to the counter.", "type": "object", "additionalProperties": False,
    "properties": {"metadata": {"type": "object"}, "add": {"type": "integer"}}, "required": ["add"],
}  # fmt: skip
sessions = 0


async def schema(request: Request) -> JSONResponse:
    return JSONResponse({"action": ACTION, "observation": {}, "state": {}})


async def health(request: Request) -> JSONResponse:
    return JSONResponse({"status": "healthy"})


async def talk(socket: WebSocket) -> None:
    global sessions
    await socket.accept()
    if sessions:
        await error(socket, "CAPACITY_REACHED", "no room")
        await socket.close()
        return
    sessions, count = 1, 0
    try:
        while True:
            message = json.loads(await socket.receive_text())
            data = message.get("data")
            if message["type"] == "close":
                return
            if message["type"] == "state":
                if data is not None:
                    await error(socket, "VALIDATION_ERROR", "extra inputs are not permitted")
                    continue
                await socket.send_text(json.dumps({"type": "state", "data": {"count": count}}))
                continue
            if message["type"] == "reset":
                count = data["seed"] % 2
            elif not isinstance(data.get("add"), int):
                await error(socket, "VALIDATION_ERROR", "add: a number is missing")
                continue
            else:
                count += data["add"]
            seen = {"count": count, "metadata": {"secret": 1}}
            reward = None if message["type"] == "reset" else 0.25 if count < 3 else 0.5
            step_data = {"observation": seen, "reward": reward, "done": count >= 3}
            await socket.send_text(json.dumps({"type": "observation", "data": step_data}))
    except WebSocketDisconnect:
        pass
    finally:
        sessions = 0


async def error(socket: WebSocket, code: str, message: str) -> None:
    await socket.send_text(json.dumps({"type": "error", "data": {"code": code, "message": message}}))


app = Starlette(routes=[Route("/schema", schema), Route("/health", health), WebSocketRoute("/ws", talk)])

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    uvicorn.run(app, port=parser.parse_args().port, log_level="critical")
