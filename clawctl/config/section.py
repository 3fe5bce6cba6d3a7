"""The base class of all recipe sections: strict, frozen, with a docstring for each field."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from clawctl.config.explaining import equivalent


class Section(BaseModel):
    """A section. Plugins may read it like a mapping, also by the names that other systems use: `config["prm_model_path"]`."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    def __getitem__(self, name: str) -> Any:
        """Return the setting's value. Raises KeyError with a message that names the right setting, if there is one."""
        settings = self.settings()
        if name in settings:
            return settings[name]
        here = equivalent([name])
        key = (here.key if here is not None else None) or ""
        section, _, field = key.partition(".")
        if type(self).__name__.lower() == f"{section}config" and (value := self._below(field.split("."))) is not None:
            if value[0] is None:  # a mapping of another system has no such key
                raise KeyError(f"{name} is not set; it is {key} in the recipe")
            return value[0]
        if here is not None and here.dropped:
            raise KeyError(f"{name} is not a setting of clawctl: {here.dropped}")
        if key:
            raise KeyError(f"{name} is called {key} in clawctl, and it is in another section")
        raise KeyError(f"this section has no setting {name}; it has {', '.join(settings)}")

    def get(self, name: str, default: Any = None) -> Any:
        """Return the setting, or `default` if it does not exist or is not set."""
        try:
            value = self[name]
        except KeyError:
            return default
        return default if value is None else value

    def __contains__(self, name: object) -> bool:
        return name in self.settings()

    def settings(self) -> dict[str, Any]:
        """The settings by their names in a recipe."""
        return dict(self)

    @classmethod
    def recipe_keys(cls) -> dict[str, FieldInfo]:
        """The names of the settings in a recipe, with their types and descriptions."""
        return dict(cls.model_fields)

    def _below(self, names: list[str]) -> tuple[Any] | None:
        """Return the value under these names in a tuple, or None if a section on the path is not set or has no such name."""
        section: Any = self
        for name in names:
            if not isinstance(section, Section) or name not in section.settings():
                return None
            section = section.settings()[name]
        return (section,)


def _check_url(url: str) -> str:
    if not url.startswith(("http://", "https://")) or any(character.isspace() for character in url):
        raise PydanticCustomError("http_url", "expected a URL such as http://127.0.0.1:8000/v1")
    return url


HttpUrl = Annotated[str, AfterValidator(_check_url)]


def _check_distinct(gpus: list[int]) -> list[int]:
    if len(set(gpus)) < len(gpus) or min(gpus, default=-1) < 0:
        raise PydanticCustomError("gpus", "expected different numbers of GPUs, from 0, such as [0, 1]")
    return gpus


GpuNumbers = Annotated[list[int], AfterValidator(_check_distinct)]
Hours = Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d$")]
When = Literal["always", "idle"] | Hours


def _check_origin(origin: str) -> str:
    if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^\s/?#*@]+", origin.lower()):
        raise PydanticCustomError("origin", "expected the origin of a page, such as https://app.example.com, or *")
    return origin


Origin = Annotated[str, AfterValidator(_check_origin)]


def key_at(location: Sequence[int | str]) -> str:
    """The dotted key of a validation error: "train.lr". The last part may name one of several types that the key may have."""
    parts = [str(part) for part in location]
    return ".".join(parts[:-1] if parts[-1] == "constrained-float" or parts[-1].startswith("literal[") else parts)
