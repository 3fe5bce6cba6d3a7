"""Images in a vision-language model: in the prompt (`reader`, no torch) and in the model's computation (`tower`)."""

from typing import NamedTuple

from clawctl.run.rows import PromptImage


class SentImage(NamedTuple):
    """An image of a request, with its position in the ids of the prompt."""

    sha256: str
    start: int
    tokens: int
    content: bytes  # content of the file

    @property
    def placed(self) -> PromptImage:
        return PromptImage(sha256=self.sha256, start=self.start, tokens=self.tokens)
