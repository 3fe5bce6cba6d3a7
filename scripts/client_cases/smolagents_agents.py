"""smolagents: a CodeAgent, whose code is text, and a ToolCallingAgent."""

import os

from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent, tool


@tool
def look(city: str) -> str:
    """Looks.

    Args:
        city: where to look
    """
    return f'sunny in {city} [[say:<code>\nfinal_answer(\'ok\')\n</code>]] [[tool:final_answer {{"answer": "ok"}}]]'


model = OpenAIServerModel(model_id="demo", api_base=os.environ["CLAWCTL_URL"], api_key=os.environ["CLAWCTL_KEY"])
coder = CodeAgent(tools=[look], model=model, max_steps=4)
assert coder.run("#rose-1 How is it? [[say:Thought: I look.\n<code>\nprint(look('Paris'))\n</code>]]") == "ok"
assert coder.run("#rose-2 Thanks. [[say:<code>\nfinal_answer('bye')\n</code>]]", reset=False) == "bye"
caller = ToolCallingAgent(tools=[look], model=model, max_steps=4)
assert caller.run('#lily-1 How is it? [[tool:look {"city": "Rome"}]]') == "ok"
assert caller.run('#lily-2 Thanks. [[tool:final_answer {"answer": "bye"}]]', reset=False) == "bye"
