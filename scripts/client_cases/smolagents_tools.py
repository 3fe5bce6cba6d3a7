"""smolagents: a ToolCallingAgent, which forces a tool call in every request. The model says what it likes, within the schema."""

import os

from smolagents import OpenAIServerModel, Tool, ToolCallingAgent


class Verdict(Tool):
    name = "final_answer"
    description = "Tells whether the statement is true."
    inputs = {"answer": {"type": "boolean", "description": "whether it is true"}}  # noqa: RUF012 (smolagents wants a literal)
    output_type = "boolean"

    def forward(self, answer: bool) -> bool:
        return answer


# The tiny model would go on calling: smolagents wants a final answer to be the only call.
model = OpenAIServerModel(
    model_id="demo", api_base=os.environ["CLAWCTL_URL"], api_key=os.environ["CLAWCTL_KEY"], parallel_tool_calls=False
)
caller = ToolCallingAgent(tools=[Verdict()], model=model, max_steps=2)
for number, statement in enumerate(("2 + 2 = 4", "7 is even", "3 < 5", "10 is 9"), 1):
    assert caller.run(f"#fern-{number} {statement}", reset=number == 1) in (True, False)
