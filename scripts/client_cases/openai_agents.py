"""openai-agents: an agent with a tool, by Responses (its default) and by chat completions, streamed and not."""

import asyncio
import os

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)


@function_tool
def look(city: str) -> str:
    """Looks."""
    return f"sunny in {city}"


async def main() -> None:
    client = AsyncOpenAI(base_url=os.environ["CLAWCTL_URL"], api_key=os.environ["CLAWCTL_KEY"])
    for kind, city in ((OpenAIResponsesModel, "Paris"), (OpenAIChatCompletionsModel, "Rome")):
        agent = Agent(name="a", instructions="be nice", tools=[look], model=kind(model="demo", openai_client=client))
        first = await Runner.run(agent, f'#{city.lower()}-1 How is it? [[think]] [[tool:look {{"city":"{city}"}}]]')
        assert first.final_output == f"It says: sunny in {city}", first.final_output
        second = Runner.run_streamed(
            agent, [*first.to_input_list(), {"role": "user", "content": f"#{city.lower()}-2 Thanks [[say:Bye]]"}]
        )
        async for _ in second.stream_events():
            pass
        assert second.final_output == "Bye", second.final_output


asyncio.run(main())
