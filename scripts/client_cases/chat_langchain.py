"""LangChain: a chat model with tools, as its agents drive it; chat completions and Responses."""

import os

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def look(city: str) -> str:
    """Looks."""
    return f"sunny in {city}"


for responses in (False, True):
    model = ChatOpenAI(
        model="demo", base_url=os.environ["CLAWCTL_URL"], api_key=os.environ["CLAWCTL_KEY"], use_responses_api=responses
    ).bind_tools([look])
    messages = [HumanMessage('How is it? [[tool:look {"city":"Paris"}]]')]
    messages.append(model.invoke(messages))
    messages += [ToolMessage(look.invoke(call["args"]), tool_call_id=call["id"]) for call in messages[-1].tool_calls]
    said = ""
    for chunk in model.stream(messages):
        said += chunk.text if isinstance(chunk.text, str) else chunk.text()
    assert said == "It says: sunny in Paris", said
    messages += [model.invoke(messages), HumanMessage("Thanks [[say:Bye]]")]
    last = model.invoke(messages)
    assert (last.text if isinstance(last.text, str) else last.text()) == "Bye"
