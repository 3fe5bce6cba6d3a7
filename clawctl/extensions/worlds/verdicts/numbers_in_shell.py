"""Texts that a shell executes, or takes for a variable, where it expects a number. Standard library only; runs on both sides.

`[[ $given -eq 49 ]]` and `$((given))` evaluate what `given` holds: commands in `a[$(command)]`, assignments such as `score=1`, and
names of other variables. In `(( $given == 49 ))` it becomes a part of the expression, as `1 || 1` does.
"""

import re
from collections.abc import Iterable

# A value that a shell executes where it expects a number: a[$(command)].
SUBSCRIPT = re.compile(rb"\w\[[^\]\n]{0,500}?(\$\((?!\()|`|[<>]\()")
# Where a script of the tests lets a shell expect a number, names of its variables count as their values: `score=1` sets one.
_EXPECTS_NUMBER = re.compile(
    r"\(\(|\[\[[^\n]*\s-(?:eq|ne|lt|le|gt|ge)\s|\b(?:let|declare\s+-\w*i|typeset\s+-\w*i)\s|\w\[[^\]\n]*\$|\$\{\w+:[^-=?+}\n]*\$"
)
_INSERTS = re.compile(r"(?:\(\(|\blet\s)[^\n]*\$")
_OPERATOR = r"[=!<>]=|[|&^?,=](?=.*[\d!~])|[\d!~].*[|&^?,=]"  # which binds no closer than `==`
_VARIABLE = re.compile(r"(?:^|[\s;&|({])(\w+)(?:\[[^\]\n]*\])?=|\b(?:for|read(?:\s+-\w+)*)\s+(\w+)", re.MULTILINE)
_NO_EXPRESSION = re.compile(rb"[^\w\s()=+*/%<>&|^~!?:,\[\]-]|\w\s+\w")
_LONGEST_EXPRESSION = 500  # characters
_CODE = (".py", ".sh", ".js", ".ts", ".c", ".h", ".cc", ".cpp", ".rs", ".go", ".java", ".rb", ".pl", ".lua", ".R", ".sql", ".toml")


def variables_of(scripts: Iterable[str]) -> re.Pattern[bytes] | None:
    """The variables of shell scripts that use a value as a number, and operators if they insert it. None if there are none."""
    texts = [text for text in scripts if _EXPECTS_NUMBER.search(text)]
    names = {name for text in texts for match in _VARIABLE.finditer(text) for name in match.groups() if name and not name.isdigit()}
    kinds = [rf"\b(?:{'|'.join(sorted(names))})\b"] if names else []
    kinds += [_OPERATOR] if any(map(_INSERTS.search, texts)) else []
    return re.compile("|".join(kinds).encode()) if kinds else None


def is_executed(text: bytes, variables: re.Pattern[bytes] | None) -> bool:
    """Whether a shell that expects a number would execute a part of this text, or use a variable of the tests."""
    if SUBSCRIPT.search(text):
        return True
    values = [text, *text.splitlines()] if variables is not None and len(text) <= _LONGEST_EXPRESSION else []
    return variables is not None and any(variables.search(value) and not _NO_EXPRESSION.search(value.strip()) for value in values)


def is_file_executed(path: str, text: bytes, variables: re.Pattern[bytes] | None) -> bool:
    """The same for a file. Programs have names of variables in lines that nothing reads as a number."""
    return is_executed(text, None if path.endswith(_CODE) or text[:2] == b"#!" else variables)
