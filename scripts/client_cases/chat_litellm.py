"""LiteLLM: chat completions with tools, streamed at last; then Anthropic's API through it."""

import os

import litellm

URL, ORDER = os.environ["CLAWCTL_URL"], 'How is it? [[tool:look {"city": "Paris"}]] [[tool:look { "city":  "Rome"}]]'
TOOLS = [
    {"type": "function", "function": {"name": "look", "description": "looks", "parameters": {"type": "object", "properties": {}}}}
]
chat = {"model": "openai/demo", "api_base": URL, "api_key": os.environ["CLAWCTL_KEY"], "tools": TOOLS}
messages = [{"role": "user", "content": ORDER}]
first = litellm.completion(messages=messages, **chat).choices[0].message
assert len(first.tool_calls) == 2, first
messages.append(first.model_dump())
messages += [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in first.tool_calls]
second = "".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(messages=messages, stream=True, **chat))
assert second == "It says: sunny / sunny", second
messages += [{"role": "assistant", "content": second}, {"role": "user", "content": "Thanks [[say:Bye]]"}]
assert litellm.completion(messages=messages, **chat).choices[0].message.content == "Bye"
claude = chat | {"model": "anthropic/demo", "api_base": URL.removesuffix("/v1")}
answer = litellm.completion(messages=[{"role": "user", "content": "Hi [[say:Hello]]"}], **claude)
assert answer.choices[0].message.content == "Hello"
answer = litellm.responses(model="openai/demo", input="Hello [[say:Hi]]", api_base=URL, api_key=os.environ["CLAWCTL_KEY"])
assert answer.output[-1].content[0].text == "Hi"
