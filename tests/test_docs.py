"""The documents agree with the code."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from clawctl.config import Recipe, known_keys, load_recipe
from scripts.benchmarks import results
from scripts.reference import PAGES
from tests import forked
from tests.extension import ALL, needs

ROOT = Path(__file__).parent.parent
COMMAND = re.compile(r"^\s*(?:\S+/)?clawctl (.+?)(?:\s+#.*)?$", re.MULTILINE)
PROSE = [ROOT / "README.md", ROOT / "scripts" / "benchmarks" / "NOTES.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands_in(page: Path) -> list[str]:
    """Every clawctl command line of the page's code blocks, placeholders and all."""
    blocks = re.findall(r"```(\w*)\n(.*?)```", page.read_text(), re.DOTALL)  # each language: an end must not be read as a beginning
    shell = [block for language, block in blocks if language in ("", "bash", "sh", "console")]
    return [match.group(1).rstrip("\\").strip() for block in shell for match in COMMAND.finditer(block)]


@needs(*ALL)
@pytest.mark.parametrize("page", PAGES)
def test_generated_pages_are_fresh(page: str) -> None:
    assert (ROOT / "docs" / "reference" / page).read_text() == PAGES[page](), "run: .venv/bin/python -m scripts.reference"


def test_the_page_of_benchmarks_is_fresh() -> None:
    assert results.PAGE.read_text() == results.page(*results.load()), "run: scripts/bench results"


@needs(*ALL)
def test_every_command_in_the_documents_parses() -> None:
    commands = {(page.name, command) for page in PROSE for command in commands_in(page)}
    assert any(page == "README.md" for page, _ in commands)
    options: dict[str, str] = {}
    for page, command in sorted(commands):
        parts = shlex.split(command)
        path = [word for word in parts[:2] if re.fullmatch(r"[a-z-]+", word)]
        stage = " ".join(path if parts[0] in ("inspect", "policies", "keys", "notes") else path[:1])
        if stage not in options:
            done = forked.run(*stage.split(), "--help")
            assert done.returncode == 0, f"{page}: clawctl {command}"
            options[stage] = done.stdout
        for word in parts:
            if word.startswith("--") and word != "--help":
                assert word.split("=")[0] in options[stage], f"{page}: clawctl {command}: unknown {word}"


@needs(*ALL)
def test_files_named_in_the_documents_exist() -> None:
    for page in [*PROSE, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
        for name in re.findall(r"`((?:scripts|docs|recipes|clawctl|tests)/[\w./-]+)`", page.read_text()):
            assert (ROOT / name).exists(), f"{page.name} names {name}"


def test_recipes_in_the_documents_are_valid(tmp_path: Path) -> None:
    for page in PROSE:
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL):
            path = tmp_path / "recipe.yaml"
            path.write_text(block)
            assert load_recipe(path).model_dump() is not None
            assert isinstance(yaml.safe_load(block), dict)


def test_recipe_keys_named_in_the_documents_exist() -> None:
    sections = {name for name, field in Recipe.model_fields.items() if field.annotation not in (str, None)}
    for page in PROSE:
        for key in re.findall(r"`([a-z]+\.[a-z_.]+)`", page.read_text()):
            if key.split(".")[0] in sections and not key.endswith((".json", ".jsonl", ".yaml", ".py")):
                assert key in known_keys(Recipe), f"{page.name} names {key}"


def test_defaults_in_the_readme_and_the_help_equal_those_of_the_code() -> None:
    recipe = Recipe()
    texts = clawctl_help("serve") + clawctl_help("judge") + clawctl_help("train") + (ROOT / "README.md").read_text()
    for claim in (
        f"default {recipe.serve.host}",
        f"default {recipe.serve.port}",
        f"default {recipe.judge.votes}",
        f"default {recipe.train.method.kind}",
        f"http://{recipe.serve.host}:{recipe.serve.port}/v1",
    ):
        assert claim in " ".join(texts.split()), claim


def clawctl_help(stage: str) -> str:
    return forked.run(stage, "--help").stdout


def test_the_two_commands_are_at_the_top_of_the_readme() -> None:
    first_block = (ROOT / "README.md").read_text().split("```")[1]
    named = [line.split()[0] for line in first_block.splitlines() if line.startswith("scripts/")]
    assert named == ["scripts/demo", "scripts/test"]
    assert all((ROOT / name).stat().st_mode & 0o111 for name in named)
    assert "scripts/test" in (ROOT / ".ci" / "run").read_text()


def test_the_readme_has_at_most_600_words_and_no_sentence_over_30() -> None:
    """Code blocks and the targets of links are not counted, nor are the lists of links under "By need" sentences."""
    prose = re.sub(r"```.*?```", "", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    prose = re.sub(r"\]\([^)]*\)", "]", prose)
    assert len(prose.split()) <= 600
    paragraphs = [" ".join(paragraph.split()) for paragraph in prose.partition("## By need")[0].split("\n\n")]
    sentences = [sentence for paragraph in paragraphs for sentence in re.split(r"(?<=[.!?:])\s", paragraph)]
    assert [sentence for sentence in sentences if len(sentence.split()) > 30] == []
