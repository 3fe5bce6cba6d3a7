"""Stores responses that a client may continue with `previous_response_id`. They are kept in memory, bounded, and visible only to
the key of the request."""

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from clawctl.engines.requests import GenerationRequest, Refusal
from clawctl.run.handles import exchange_of
from clawctl.run.rows import Message
from clawctl.serve.dialects.fields import for_engine
from clawctl.serve.request_context import RequestContext, json_response

_MAX_RESPONSES = 512  # responses per key; the least recently used is dropped first
_MAX_REFERENCES = 256  # references to items of stored responses, per request
_MAX_REFERRED = 8 << 20  # total bytes of the responses that one request refers to
_MAX_BYTES = 128 << 20  # bytes per key; each response includes its complete conversation


@dataclass(frozen=True, slots=True)
class StoredResponse:
    response: bytes  # as the client received it
    messages: bytes  # JSON, so that its size is known: the conversation with this answer, without `instructions`

    @property
    def size(self) -> int:
        return len(self.response) + len(self.messages)


class StoredResponses:
    """The responses of this process, except those with `store: false`."""

    def __init__(self, max_count: int = _MAX_RESPONSES, max_bytes: int = _MAX_BYTES) -> None:
        self._max_count, self._max_bytes = max_count, max_bytes
        self._of_key: dict[str, OrderedDict[str, StoredResponse]] = {}
        self._bytes: dict[str, int] = {}

    def continued(self, key: str, request: GenerationRequest) -> GenerationRequest:
        """The request, with the conversation that it continues in front of its own messages. Raises Refusal if the response is
        missing."""
        if request.parent is None:
            return request
        name = request.echo["previous_response_id"]
        stored = self._find(key, name)
        if stored is None:
            problem = f"Previous response with id '{name[:80]}' not found: send the whole input, or do not use `store: false`"
            raise Refusal(400, problem, "previous_response_id", "previous_response_not_found")
        instructions = _instructions(request)
        earlier: list[Message] = orjson.loads(stored.messages)
        sent = request.sent_messages[:instructions] + earlier + request.sent_messages[instructions:]
        return replace(request, sent_messages=sent, messages=for_engine(sent))

    def with_items(self, key: str, body: dict[str, Any]) -> dict[str, Any]:
        """The body, with stored items in place of its `item_reference`s. Unknown references stay, and the reader skips them."""
        items = body.get("input")
        if not isinstance(items, list) or not any(map(_is_reference, items)):
            return body
        names = {name for item in items if _is_reference(item) and isinstance(name := item["id"], str)}
        if len(names) > _MAX_REFERENCES or sum(map(_is_reference, items)) > _MAX_REFERENCES:
            raise Refusal(400, f"'input' may hold at most {_MAX_REFERENCES} item references", "input")
        # A response is read once, even if several of its items are referenced.
        responses = {f"resp{exchange_of(name)}" for name in names}
        stored = [response for name in responses if (response := self._find(key, name)) is not None]
        if sum(len(response.response) for response in stored) > _MAX_REFERRED:
            raise Refusal(
                400, "'input' refers to more than 8 MB of earlier responses: use previous_response_id for the last one", "input"
            )
        stored_items = {
            item["id"]: item for response in stored for item in orjson.loads(response.response)["output"] if item["id"] in names
        }
        return {**body, "input": [stored_items.get(str(item["id"]), item) if _is_reference(item) else item for item in items]}

    def store(self, key: str, request: GenerationRequest, response: dict[str, Any], message: Message) -> None:
        """Store a response, unless the client set `store: false`."""
        if request.echo.get("store") is False:
            return
        messages = [*request.sent_messages[_instructions(request) :], {**message, "handle": exchange_of(response["id"])}]
        stored = StoredResponse(orjson.dumps(response), orjson.dumps(messages))
        responses = self._of_key.setdefault(key, OrderedDict())
        responses[response["id"]] = stored
        self._bytes[key] = self._bytes.get(key, 0) + stored.size
        while len(responses) > self._max_count or self._bytes[key] > self._max_bytes:
            self._bytes[key] -= responses.popitem(last=False)[1].size

    async def handle(self, http_request: Request, context: RequestContext) -> Response:
        """Answer GET and DELETE of `/v1/responses/ID`. Raises Refusal."""
        name = http_request.path_params["id"]
        if http_request.query_params.get("stream", "").lower() in ("1", "true"):
            raise Refusal(400, "a stored response is returned as a whole: leave out `stream`", "stream")
        if http_request.method == "DELETE":
            return json_response(self.forget(context.key, name))
        return Response(self.get(context.key, name), media_type="application/json")

    def get(self, key: str, name: str) -> bytes:
        """The response as the client received it. Raises Refusal."""
        stored = self._find(key, name)
        if stored is None:
            raise _unknown(name)
        return stored.response

    def forget(self, key: str, name: str) -> dict[str, Any]:
        """Remove a response. Responses that continue it keep their conversation. Raises Refusal."""
        if self._find(key, name) is None:
            raise _unknown(name)
        self._bytes[key] -= self._of_key[key].pop(name).size
        return {"id": name, "object": "response", "deleted": True}

    def drop(self, key: str) -> None:
        """Remove all responses of a key."""
        self._of_key.pop(key, None)
        self._bytes.pop(key, None)

    def _find(self, key: str, name: str) -> StoredResponse | None:
        responses = self._of_key.get(key, OrderedDict())
        if name in responses:
            responses.move_to_end(name)
        return responses.get(name)


def _is_reference(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == "item_reference" and "id" in item


def _unknown(name: str) -> Refusal:
    return Refusal(404, f"Response with id '{name[:80]}' not found.", code="response_not_found")


def _instructions(request: GenerationRequest) -> int:
    """Number of leading messages that are this request's own `instructions`. A continuing request does not inherit them."""
    return 1 if request.echo.get("instructions") else 0
