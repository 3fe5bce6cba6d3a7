"""A part of the recipe: strict, frozen, documented under each field."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def _check_url(url: str) -> str:
    if not url.startswith(("http://", "https://")) or any(character.isspace() for character in url):
        raise PydanticCustomError("http_url", "it is a URL such as http://127.0.0.1:8000/v1")
    return url


HttpUrl = Annotated[str, AfterValidator(_check_url)]
