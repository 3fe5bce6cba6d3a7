"""LiteLLM: chat completions with tools, once streamed; then Anthropic's API and Responses through it."""

import os

import litellm

URL, ORDER = os.environ["CLAWCTL_URL"], 'How is it? [[tool:look {"city": "Paris"}]] [[tool:look { "city":  "Rome"}]]'
TOOLS = [
    {"type": "function", "function": {"name": "look", "description": "looks", "parameters": {"type": "object", "properties": {}}}}
]
chat = {"model": "openai/demo", "api_base": URL, "api_key": os.environ["CLAWCTL_KEY"], "tools": TOOLS}
messages = [{"role": "user", "content": f"#chat-1 {ORDER}"}]
first = litellm.completion(messages=messages, **chat).choices[0].message
assert len(first.tool_calls) == 2, first
messages.append(first.model_dump())
messages += [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in first.tool_calls]
second = "".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(messages=messages, stream=True, **chat))
assert second == "It says: sunny / sunny", second
messages += [{"role": "assistant", "content": second}, {"role": "user", "content": "#chat-2 Thanks [[say:Bye]]"}]
assert litellm.completion(messages=messages, **chat).choices[0].message.content == "Bye"

claude = chat | {"model": "anthropic/demo", "api_base": URL.removesuffix("/v1")}
messages = [{"role": "user", "content": f"#claude-1 {ORDER}"}]
first = litellm.completion(messages=messages, **claude).choices[0].message
messages.append(first.model_dump())
messages += [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in first.tool_calls]
assert litellm.completion(messages=messages, **claude).choices[0].message.content == "It says: sunny / sunny"

settings = {"model": "openai/demo", "api_base": URL, "api_key": os.environ["CLAWCTL_KEY"]}
begun = litellm.responses(input="#asked-1 Hello [[say:Hi]]", **settings)
assert begun.output[-1].content[0].text == "Hi"
items = [{"role": "user", "content": "#asked-1 Hello [[say:Hi]]"}, begun.output[-1].model_dump(exclude_none=True)]
answer = litellm.responses(input=[*items, {"role": "user", "content": "#asked-2 Thanks [[say:Bye]]"}], **settings)
assert answer.output[-1].content[0].text == "Bye"
