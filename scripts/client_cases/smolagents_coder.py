"""smolagents: a CodeAgent, whose code is text."""

import os

from smolagents import CodeAgent, OpenAIServerModel, tool


@tool
def look(city: str) -> str:
    """Looks.

    Args:
        city: where to look
    """
    return f"sunny in {city} [[say:<code>\nfinal_answer('ok')\n</code>]]"


model = OpenAIServerModel(model_id="demo", api_base=os.environ["CLAWCTL_URL"], api_key=os.environ["CLAWCTL_KEY"])
coder = CodeAgent(tools=[look], model=model, max_steps=4)
assert coder.run("#rose-1 How is it? [[say:Thought: I look.\n<code>\nprint(look('Paris'))\n</code>]]") == "ok"
assert coder.run("#rose-2 Thanks. [[say:<code>\nfinal_answer('bye')\n</code>]]", reset=False) == "bye"
