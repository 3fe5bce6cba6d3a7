"""What `clawctl doctor` finds out about the files of a model, and about its chat template."""

from collections.abc import Iterator
from pathlib import Path

import orjson
from transformers import AutoTokenizer

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.run.hint_places import with_hint
from clawctl.run.model_files import model_file

_LENGTH = 8  # bytes with the header's length, at the beginning of a safetensors file
_INDEX = "model.safetensors.index.json"
_OLDER = "pytorch_model*.bin"


def check_model_files(recipe: Recipe) -> Iterator[tuple[str, bool]]:
    """A line for the template and one for the weights, each with whether the recipe cannot run like this."""
    try:
        path = recipe.model_path
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except (ClawError, OSError, ValueError) as error:
        yield f"model: {recipe.model.path} cannot be read: {str(error).splitlines()[0]}; download it, or correct model.path", True
        return
    yield _template_line(recipe, path, tokenizer)
    config = model_file(path, "config.json")
    if config is None:
        yield f"weights: those of {path} are not on this machine; the first start downloads them", False
        return
    problems = weight_problems(config.parent)
    size = sum(file.stat().st_size for pattern in ("*.safetensors", _OLDER) for file in config.parent.glob(pattern))
    yield "weights: " + ("; ".join(problems) + "; download the model again" if problems else f"{size / 1e9:.1f} GB"), bool(problems)


def _template_line(recipe: Recipe, path: str, tokenizer: AutoTokenizer) -> tuple[str, bool]:
    if not tokenizer.chat_template:
        return f"model: {path} has no chat template, which chat APIs need; choose an instruction-tuned model", True
    marker = "clawctl looks for this"
    hinted = with_hint([{"role": "user", "content": "hello"}], marker)
    placed = marker in str(tokenizer.apply_chat_template(hinted, tokenize=False, add_generation_prompt=True))
    parts = ["hints can be placed" if placed else "hints cannot be placed: use train.method binary", _tools(recipe, tokenizer)]
    return f"model: {path}; {'; '.join(parts)}", recipe.train.uses_hints and not placed


def _tools(recipe: Recipe, tokenizer: AutoTokenizer) -> str:
    template = str(tokenizer.chat_template)
    if "tools" not in template:
        return "its template has no tools, so agents cannot call any"
    if recipe.serve.upstream is not None:
        return "tools have a form in its template, and the upstream's own parser reads the calls"
    if recipe.serve.engine == "vllm":
        from clawctl.serve.gateway import vllm_tool_parser

        if (parser := vllm_tool_parser(recipe)) is not None:
            return f"vLLM reads tool calls with its parser {parser}"
        name = "name one: serve.engine_args: [--enable-auto-tool-choice, --tool-call-parser, NAME]"
        return f"no parser is known for the tool calls of its template, so they stay text and agents cannot call tools; {name}"
    if "<tool_call>" in template:
        return "its tool calls are read"
    return "tool calls of its template are not read by this engine and stay text; vLLM may have a parser"


def weight_problems(folder: Path) -> list[str]:
    """What is wrong with the weights of a model, by file: missing, cut off, or without tensors that the index names."""
    wanted: dict[str, set[str]] = {
        file.name: set() for file in folder.glob("*.safetensors") if not file.name.startswith("adapter_")
    }
    problems = list[str]()
    if (folder / _INDEX).exists():
        try:
            for tensor, name in orjson.loads((folder / _INDEX).read_bytes())["weight_map"].items():
                wanted.setdefault(name, set()).add(tensor)
        except (ValueError, LookupError, TypeError, AttributeError, OSError) as error:
            problems.append(f"{_INDEX} cannot be read: {error}")
    if not wanted and any(folder.glob(_OLDER)):
        return []  # transformers and vLLM read them too
    if not wanted:
        adapter = any(folder.glob("adapter_model*"))
        return [f"{folder} has an adapter, and no model" if adapter else f"{folder} has no *.safetensors"]
    return problems + [problem for name, tensors in sorted(wanted.items()) if (problem := _file_problem(folder / name, tensors))]


def _file_problem(file: Path, tensors: set[str]) -> str | None:
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(_LENGTH), "little")
            header = orjson.loads(opened.read(min(length, size)))
        header.pop("__metadata__", None)
        end = _LENGTH + length + max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
    except FileNotFoundError:
        return f"{file.name} is missing"
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return f"{file.name} has no header of safetensors"
    if size != end:
        return f"{file.name} has {size:,} bytes, and {end:,} by its header"
    missing = tensors - header.keys()
    return f"{file.name} lacks {len(missing)} tensors, such as {min(missing)}" if missing else None
