"""Changes values in the text of a recipe, and keeps its comments and its form."""

import re
from typing import Any

import yaml

_COLUMN = 24  # of a comment, unless its line is longer


def with_value(text: str, key: str, value: Any, comment: str) -> str:
    """The recipe `text` with `value` at the dotted `key`, and `comment` after it. Other lines stay as they are."""
    section, _, rest = key.partition(".")
    root = yaml.compose(text, yaml.SafeLoader)
    if isinstance(root, yaml.MappingNode) and _find(root, section) is not None:
        return _in_mapping(text, root, key, value, comment)
    return f"{text.rstrip(chr(10))}\n\n{_commented(f'{section}: {_shown(rest, value)}', comment)}\n"


def _in_mapping(text: str, mapping: yaml.MappingNode, key: str, value: Any, comment: str) -> str:
    name, _, rest = key.partition(".")
    node = _find(mapping, name)
    if rest and isinstance(node, yaml.MappingNode):
        return _in_mapping(text, node, rest, value, comment)
    shown = _shown(rest, value)
    if node is not None:
        begin, end = node.start_mark.index, node.end_mark.index
        if begin == end:  # `train:` with nothing after it
            shown = f" {shown}"
        if isinstance(node, yaml.CollectionNode) and not node.flow_style:  # its end is the beginning of what follows
            end = begin + len(text[begin:end].rstrip())
        return _comment_at(text[:begin] + shown + text[end:], begin + len(shown), comment)
    if mapping.flow_style:
        end = mapping.end_mark.index - 1
        added = f"{', ' if mapping.value else ''}{name}: {shown}"
        return _comment_at(text[:end].rstrip() + added + text[end:], len(text[:end].rstrip() + added), comment)
    last = mapping.value[-1][1]
    end = last.start_mark.index + len(text[last.start_mark.index : last.end_mark.index].rstrip())
    end = text.find("\n", end) if "\n" in text[end:] else len(text)
    line = " " * mapping.start_mark.column + f"{name}: {shown}"
    return text[:end] + "\n" + _commented(line, comment) + text[end:]


def _find(mapping: Any, name: str) -> yaml.Node | None:
    pairs = mapping.value if isinstance(mapping, yaml.MappingNode) else []
    return next((value for key, value in pairs if key.value == name), None)


def _shown(key: str, value: Any) -> str:
    """The value at the dotted `key`, in one line."""
    return yaml.safe_dump(_nested(key, value), default_flow_style=True, width=1000).removesuffix("...\n").strip()


def _nested(key: str, value: Any) -> Any:
    for part in reversed(key.split(".") if key else []):
        value = {part: value}
    return value


def _comment_at(text: str, index: int, comment: str) -> str:
    """Replace the comment of the line at `index`."""
    begin, end = text.rfind("\n", 0, index) + 1, text.find("\n", index)
    end = len(text) if end < 0 else end
    after = re.sub(r"\s+#.*$", "", text[index:end])
    return text[:begin] + _commented(text[begin:index] + after, comment) + text[end:]


def _commented(line: str, comment: str) -> str:
    return f"{line:<{_COLUMN}}  # {comment}"
