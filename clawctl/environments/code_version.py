"""The version of an environment that declares none: a hash of its code."""

import ast
import inspect
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from clawctl.plugins import import_folder

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_version(made: type) -> str:
    """A hash of the code in the class's file, and in the files that it imports from its folder or its package.

    "unknown" if there is no such file, or one of them is not valid Python. Comments, docstrings and layout do not count.
    """
    digest = blake2b(digest_size=8)
    try:
        path = Path(inspect.getsourcefile(made) or "").resolve()
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
    """A file, and the files of its folder or its package that it imports, directly or not, anywhere in its code.

    Sorted. Raises OSError, SyntaxError and ValueError.
    """
    root, left, files = import_folder(path), [path], set[Path]()
    inside = root if root == path.parent else root / path.relative_to(root).parts[0]
    while left:
        file = left.pop()
        files.add(file)
        for parts in _imported(ast.parse(file.read_bytes()), file.relative_to(root).parts[:-1]):
            for candidate in (root.joinpath(*parts).with_suffix(".py"), root.joinpath(*parts, "__init__.py")):
                if candidate.is_file() and candidate.is_relative_to(inside) and candidate not in files:
                    left.append(candidate)
    return sorted(files)


def _imported(tree: ast.Module, package: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The names of all modules that code of this package imports or may import: ("a",) and ("a", "b") for `from a import b`."""
    for node in ast.walk(tree):
        names: list[tuple[str, ...]] = []
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            names = [(*above, *(node.module or "").split("."), alias.name) for alias in node.names]
        for name in names:
            parts = tuple(part for part in name if part and part != "*")
            yield from (parts[:length] for length in range(1, len(parts) + 1))
