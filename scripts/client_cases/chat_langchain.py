"""LangChain: a chat model with tools, as its agents drive it; chat completions and Responses."""

import os

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def look(city: str) -> str:
    """Looks."""
    return f"sunny in {city}"


for responses, city in ((False, "Paris"), (True, "Rome")):
    model = ChatOpenAI(
        model="demo", base_url=os.environ["CLAWCTL_URL"], api_key=os.environ["CLAWCTL_KEY"], use_responses_api=responses
    ).bind_tools([look])
    messages = [HumanMessage(f'#{city.lower()}-1 How is it? [[tool:look {{"city":"{city}"}}]]')]
    messages.append(model.invoke(messages))
    messages += [ToolMessage(look.invoke(call["args"]), tool_call_id=call["id"]) for call in messages[-1].tool_calls]
    chunks = list(model.stream(messages))
    answer = chunks[0]
    for chunk in chunks[1:]:
        answer += chunk
    assert str(answer.text) == f"It says: sunny in {city}", answer
    messages += [answer, HumanMessage(f"#{city.lower()}-2 Thanks [[say:Bye]]")]
    assert str(model.invoke(messages).text) == "Bye"
