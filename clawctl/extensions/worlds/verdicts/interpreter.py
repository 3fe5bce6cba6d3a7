"""Starts an interpreter for a test script: beside the tests, or in the sandbox of the graded code if it would run the graded code.

    interpreter.py NAME [ARGUMENTS]

A script is the graded code's if its file is. A text, on the command line or on standard input, is the tests' if they contain it
(`boundary.origin`).
"""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from typing import NoReturn

_TOOLS = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, _TOOLS)
from boundary import is_graded, mark, origin, own, program  # type: ignore[import-not-found]  # noqa: E402
from graded_program import main as run_graded  # type: ignore[import-not-found]  # noqa: E402
from interpreters import BUILDERS, FILTERS, OPTIONS, OTHERS, RUNNERS, SAME, SHELLS  # type: ignore[import-not-found]  # noqa: E402


def main(name: str, words: list[str]) -> None:
    if name in ("eval", "source"):
        if name == "source" or origin(" ".join(words)) != "tests":
            mark(f"the shell of the tests runs text of the graded code: {words[0][:80]}")
        return
    if name in RUNNERS:
        first = 1 + next((index for index, word in enumerate(words) if word.startswith(("-exec", "-ok"))), len(words) - 1)
        start(name, [*words[:first], *_commanded(words[first:])] if name == "find" else _commanded(words))
    if name in BUILDERS:
        _choose(name, words, "tests" if _is_of_the_tests(words) else "graded", None)
    if name == "expr":  # a value of several words makes another expression of three
        if len(words) > 3 and origin(" ".join(words)) != "tests":
            mark("expr evaluates an expression that the tests do not contain")
        start(name, words)
    given = None
    origins = []
    for kind, value in _programs(SAME.get(name, name), words):
        if kind == "input":
            given = b"" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer.read()
            origins.append(origin(given.decode(errors="replace")))
        elif kind == "text":
            origins.append(origin(value))
        else:
            origins.append("graded" if is_graded(value) else "tests")
    _choose(name, words, next((origin_name for origin_name in ("graded", "mixed") if origin_name in origins), "tests"), given)


def _choose(name: str, words: list[str], origin: str, given: bytes | None) -> NoReturn:
    if origin == "graded":
        run_graded([name, *words], given)
    if origin != "tests" or name in BUILDERS or (name in OTHERS and _is_left(name)):
        mark(f"{name} runs text of the graded code beside the tests")
    if given is not None:
        with tempfile.TemporaryFile() as file:
            file.write(given)
            file.seek(0)
            os.dup2(file.fileno(), 0)
    start(name, words)


def start(name: str, words: list[str]) -> NoReturn:
    """Become the real program. Python reads `sitecustomize.py` first, and a shell `functions.sh`."""
    path = os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin").replace(f"{_TOOLS}/bin:", "")
    if name in SHELLS:
        os.environ["BASH_ENV"] = f"{_TOOLS}/functions.sh"
        os.execv(f"{_TOOLS}/shell", ["bash", *words])  # as `sh` it would not read the file
    if name == "python3":
        if words[:2] == ["-m", "pytest"]:
            os.execv(f"{_TOOLS}/bin/pytest", ["pytest", *words[2:]])
        if words[:2] == ["-m", "pip"]:
            sys.exit(0)
        given = os.environ.get("PYTHONPATH", "").replace(f"{_TOOLS}/python", "").strip(":")
        os.environ |= {"GIVEN_PYTHONPATH": given, "PYTHONPATH": f"{_TOOLS}/python"}
        # With -I or -E, Python would ignore PYTHONPATH.
        kept = [re.sub("[IE]", "", word) if re.fullmatch("-[A-Za-z]+", word) else word for word in words[:2]]
        os.execv(sys.executable, [sys.executable, "-P", "-X", "clawctl", "-s", *kept, *words[2:]])
    if name == "sudo":
        os.execvp(words[0], words)
    real = shutil.which(name, path=path) or shutil.which(name, path="/usr/local/bin:/usr/bin:/bin")
    if real is None:
        print(f"{name}: command not found", file=sys.stderr)
        sys.exit(127)
    os.execv(real, [real, *words])


def _commanded(words: list[str]) -> list[str]:
    """The words of a program that starts another one, which is replaced by clawctl's, or by the start of a graded program."""
    for index, word in enumerate(words):
        if word.startswith("-") or "=" in word or not (os.path.isfile(word) if "/" in word else shutil.which(word)):
            continue  # an option, or its value
        if is_graded(word) and "/" in word:
            return [*words[:index], f"{_TOOLS}/bin/graded", *words[index:]]
        replacement = program(word)
        return words if replacement is None else [*words[:index], replacement, *words[index + 1 :]]
    return words


def _programs(name: str, words: list[str]) -> Iterator[tuple[str, str]]:
    """The programs that the interpreter would run: ("text", it), ("file", path), or ("input", "")."""
    texts, files, valued, long = OPTIONS.get(name, ("", "", "", ()))
    index, is_given = 0, False
    while index < len(words):
        word, following = words[index], words[index + 1] if index + 1 < len(words) else ""
        index += 1
        if word.startswith("--"):
            option, equals, value = word.partition("=")
            if option in long or (name in FILTERS and option == "--file"):
                yield "file" if option == "--file" else "text", value if equals else following
                is_given, index = True, index + (not equals)
            continue
        if word == "-" or (word == "-s" and name in SHELLS):
            break
        if name == "perl" and word[:2] in ("-M", "-m", "-I", "-F", "-i"):
            continue
        if word[:1] in "-+" and len(word) > 1:
            letter = next((letter for letter in word[1:] if letter in texts + files + valued), "")
            rest = word.partition(letter)[2] if letter and name not in SHELLS else ""
            if letter:
                index += not rest
            if letter and letter in texts + files:
                yield "text" if letter in texts else "file", rest or following
                is_given = True
                if name not in FILTERS and name not in ("perl", "bc", "dc"):
                    return
            elif letter == "m" and name == "python3":
                return  # `sitecustomize.py` looks for the module
            continue
        if is_given:
            return
        if name == "sqlite3" and words[index:]:
            yield from (("text", command) for command in words[index:])
            return
        if name in ("ed", "ex", "vi", "vim", "sqlite3", "gdb", "expect"):
            break  # the word is a file that it edits
        yield "text" if name in FILTERS else "file", word
        return
    if not is_given:
        yield "input", ""


def _is_of_the_tests(words: list[str]) -> bool:
    return any(os.path.exists(path) and os.path.realpath(path).startswith("/tests") for word in words for path in word.split("="))


def _is_left(name: str) -> bool:
    """Whether the graded code has a file in this language."""
    languages: list[str] = own("languages")
    return name in languages or name not in OPTIONS


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
