"""Pydantic AI: an agent with a tool, by chat completions and by Responses."""

import os

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=os.environ["CLAWCTL_URL"], api_key=os.environ["CLAWCTL_KEY"])
for kind, talk in ((OpenAIChatModel, "rose"), (OpenAIResponsesModel, "lily")):
    agent = Agent(kind("demo", provider=provider), instructions="Be nice.")

    @agent.tool_plain
    def look(city: str) -> str:
        """Looks."""
        return f"sunny in {city}"

    first = agent.run_sync(f'#{talk}-1 How is it? [[tool:look {{"city": "Paris"}}]]')
    assert first.output == "It says: sunny in Paris", first.output
    second = agent.run_sync(f"#{talk}-2 Tell me more", message_history=first.all_messages())
    third = agent.run_sync(f"#{talk}-3 Thanks [[say:Bye]]", message_history=second.all_messages())
    assert third.output == "Bye", third.output
