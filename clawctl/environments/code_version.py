"""The version of an environment: what it declares, or a hash of its code."""

import ast
import inspect
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from clawctl.plugins import import_folder
from clawctl.registry import is_file

_LONGEST_NAME = 200  # characters
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def version_of(environment: object, name: str) -> str:
    """The attribute `version`, or else a hash of the code. `name` is what the user called it: `file.py:Name`, or an installed one.

    A class in a user's file that inherits `version` from a class of clawctl has both.
    """
    made, declared = type(environment), getattr(environment, "version", None)
    if declared is None:
        return code_version(made, name)
    classes = [made for made in made.__mro__ if made.__module__.split(".")[0] not in ("clawctl", "builtins")]
    is_inherited = len(classes) < len(made.__mro__) - 1 and not any("version" in vars(made) for made in classes)
    return f"{declared} {code_version(made, name)}" if is_file(name) and is_inherited else str(declared)


def code_version(made: type, name: str = "") -> str:
    """A hash of the code in the class's file, in the file that `name` names, and in what both import from their folder or package.

    "unknown" if there is no such file, or one of them is not valid Python. Comments, docstrings and layout do not count.
    """
    digest = blake2b(digest_size=8)
    try:
        paths = {Path(inspect.getsourcefile(made) or "").resolve()}
        if is_file(name):
            paths.add(Path(name.partition(".py")[0] + ".py").resolve())
        for path in sorted(paths):
            for file in source_files(path):
                digest.update(f"{file.relative_to(import_folder(path))}\n{normalised_code(file.read_bytes())}\n".encode())
    except (OSError, TypeError, SyntaxError, ValueError):
        return "unknown"
    return digest.hexdigest()


def normalised_code(source: bytes) -> str:
    """The code of a module without comments, docstrings and layout. Raises SyntaxError and ValueError."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def source_files(path: Path) -> list[Path]:
    """A file, and the files of its folder or its package that it imports or names, directly or not, anywhere in its code.

    Sorted. Raises OSError, SyntaxError and ValueError.
    """
    root, left, files = import_folder(path), [path], set[Path]()
    inside = root if root == path.parent else root / path.relative_to(root).parts[0]
    while left:
        file = left.pop()
        files.add(file)
        tree = ast.parse(file.read_bytes())
        candidates = [file.parent / text for text in _texts(tree) if text.endswith(".py")]
        for parts in _imported(tree, file.relative_to(root).parts[:-1]):
            candidates += [root.joinpath(*parts).with_suffix(".py"), root.joinpath(*parts, "__init__.py")]
        paths = (candidate.resolve() for candidate in candidates if candidate.is_file())
        left += [candidate for candidate in paths if candidate.is_relative_to(inside) and candidate not in files]
    return sorted(files)


def _texts(node: ast.AST) -> Iterator[str]:
    """The short texts in code: the name of a module to import, or of a file to load."""
    constants = (inner.value for inner in ast.walk(node) if isinstance(inner, ast.Constant))
    return (value for value in constants if isinstance(value, str) and 0 < len(value) <= _LONGEST_NAME)


def _imported(tree: ast.Module, package: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The names of all modules that code of this package imports or may import: ("a",) and ("a", "b") for `from a import b`."""
    for node in ast.walk(tree):
        names: list[tuple[str, ...]] = []
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(*_above(package, node.level), *(node.module or "").split("."), alias.name) for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            level = {text: len(text) - len(text.lstrip(".")) for text in _texts(node)}
            names = [(*_above(package, level[text]), *text.split(".")) for text in level]
        for name in names:
            parts = tuple(part for part in name if part and part != "*")
            yield from (parts[:length] for length in range(1, len(parts) + 1))


def _above(package: tuple[str, ...], level: int) -> tuple[str, ...]:
    """The package that a relative import begins from."""
    return package[: len(package) + 1 - level] if level else ()
