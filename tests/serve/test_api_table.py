"""The tables of fields against the request types of the official SDKs: a field of a new release is in no row and fails here."""

import ast
import importlib.util
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import typing_extensions
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_count_params
from anthropic.types.beta import message_create_params as beta_create_params
from one_conversation import AS_CHAT, AS_MESSAGES, AS_RESPONSES
from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params

import clawctl
from clawctl.serve.dialects import chat, completions, messages, responses
from clawctl.serve.dialects.api import known_fields
from clawctl.serve.dialects.tables import APIS, TABLES, FieldRow, Table, read_tables
from clawctl.serve.sampling import ENGINE_FIELDS

Tables = dict[str, Table]
WRAPPERS = (typing.Annotated, typing_extensions.Required, typing_extensions.NotRequired)
MODELS: dict[str, tuple[Any, ...]] = {
    "chat": (completion_create_params.CompletionCreateParamsNonStreaming, completion_create_params.CompletionCreateParamsStreaming),
    "responses": (response_create_params.ResponseCreateParamsNonStreaming, response_create_params.ResponseCreateParamsStreaming),
    "completions": (completion_params.CompletionCreateParamsNonStreaming, completion_params.CompletionCreateParamsStreaming),
    "messages": (
        message_create_params.MessageCreateParamsStreaming,
        beta_create_params.MessageCreateParamsNonStreaming,
        beta_create_params.MessageCreateParamsStreaming,
    ),
    "count_tokens": (message_count_tokens_params.MessageCountTokensParams, beta_count_params.MessageCountTokensParams),
}


def plain(hint: Any) -> Any:
    while typing.get_origin(hint) in WRAPPERS:
        hint = typing.get_args(hint)[0]
    return hint


def objects_in(hint: Any) -> Iterator[Any]:
    """The typed dictionaries of a union or of a list of one."""
    hint = plain(hint)
    if typing_extensions.is_typeddict(hint):
        yield hint
    elif typing.get_origin(hint) is not dict:
        for part in typing.get_args(hint):
            if not isinstance(part, str | int | bool) and part is not None:
                yield from objects_in(part)


def fields_of(model: Any) -> dict[str, Any]:
    return typing_extensions.get_type_hints(model, include_extras=True)


def kinds_of(model: Any, table: Table) -> list[str]:
    """The kinds that a model is of, by the field that its table goes by."""
    hint = plain(fields_of(model).get(table.by, str))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(part for part in map(plain, typing.get_args(hint)) if typing.get_origin(part) is typing.Literal)
    return [str(kind) for kind in typing.get_args(hint)] or [table.otherwise]


def lacking(tables: Tables, table: Table, model: Any, path: str, seen: frozenset[tuple[str, Any]]) -> Iterator[str]:
    """What of a model is in no row of its table, nor of the tables below."""
    if (table.title, model) in seen:
        return
    seen |= {(table.title, model)}
    if table.by:
        for kind in kinds_of(model, table):
            row = table.row(kind)
            if row is None:
                yield f"{path}[{kind}]"
            elif row.of:
                yield from lacking(tables, tables[row.of], model, f"{path}[{kind}]", seen)
        return
    for name, hint in fields_of(model).items():
        row = table.row(name)
        if row is None:
            yield f"{path}.{name}"
            continue
        for inner in objects_in(hint):
            if row.of:
                yield from lacking(tables, tables[row.of], inner, f"{path}.{name}", seen)
            elif row.treatment == "honoured" and not whole(row):
                yield f"{path}.{name}: an honoured object needs a table of its fields"


def whole(row: FieldRow) -> bool:
    """Objects that are passed on unchanged, whatever they contain."""
    return row.name in ("input_schema", "action", "operation", "image_url", "tools", "output", "summary", "content", "skills")


@pytest.mark.parametrize("api", MODELS)
def test_every_field_and_kind_of_the_official_sdks_is_in_a_row(api: str) -> None:
    missing = {name for model in MODELS[api] for name in lacking(TABLES, TABLES[api], model, api, frozenset())}
    assert sorted(missing) == []


@pytest.mark.parametrize(
    ("api", "name", "kind"),
    [
        ("chat", "chat", "moderation"),
        ("chat", "chat.tool", "custom"),
        ("responses", "responses.item", "shell_call"),
        ("responses", "responses.format", "json_object"),
        ("messages", "messages.tool", "web_search_*"),
        ("count_tokens", "messages.source", "content"),
    ],
)
def test_a_field_or_kind_without_a_row_is_found(api: str, name: str, kind: str) -> None:
    """A stand-in for a new release of an SDK."""
    table = TABLES[name]
    assert table.row(kind) is not None
    without = Table(table.title, (row for row in table.rows if row.name != kind), by=table.by, otherwise=table.otherwise)
    tables = {**TABLES, name: without}
    assert any(name for model in MODELS[api] for name in lacking(tables, tables[api], model, api, frozenset()))


@pytest.mark.parametrize(
    "row", ["{served: model}", "{honoured: a, embedded: gone}", "{honoured: a, of_: b}", "{include: engine, but: a}"]
)
def test_a_row_in_another_form_is_an_error(row: str) -> None:
    with pytest.raises(ValueError, match=f"'{re.split('[:,{]', row)[-2].strip()}'"):
        read_tables(f"tables:\n  chat:\n    title: Chat\n    rows: [{row}]\n")


def test_every_field_of_vllms_chat_completions_is_in_a_row() -> None:
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed")
    source = Path(spec.origin).parent / "entrypoints/openai/chat_completion/protocol.py"
    classes = {node.name: node for node in ast.parse(source.read_text()).body if isinstance(node, ast.ClassDef)}
    lines = [node for node in classes["ChatCompletionRequest"].body if isinstance(node, ast.AnnAssign)]
    names = [line.target.id for line in lines if isinstance(line.target, ast.Name) and not line.target.id.startswith("_")]
    assert len(names) > 40
    assert [name for name in names if TABLES["chat"].row(name) is None] == []


def test_every_api_that_is_served_is_compared() -> None:
    assert set(APIS) <= set(MODELS)


def test_all_fields_that_recorded_clients_send_are_in_the_tables() -> None:
    apis = {"/v1/chat/completions": "chat", "/v1/responses": "responses", "/v1/messages": "messages"}
    for path in sorted((Path(__file__).parents[1] / "recordings").glob("*/*.json")):
        recorded = orjson.loads(path.read_bytes())
        body, unknown = known_fields(apis.get(recorded["path"].partition("?")[0], "count_tokens"), recorded["request"])
        assert (unknown, body) == ((), recorded["request"]), path.name


def test_rows_name_existing_tables_and_are_unique() -> None:
    for name, table in TABLES.items():
        names = [row.name for row in table.rows]
        assert sorted(set(names)) == sorted(names), name
        assert {row.of for row in table.rows} - {""} <= set(TABLES), name
        assert all(row.note for row in table.rows if row.treatment == "refused"), name


class Watched(dict[str, Any]):
    """A body that remembers which of its fields were looked up by name."""

    def __init__(self, body: dict[str, Any], read: set[str]) -> None:
        super().__init__(body)
        self.looked_up = read

    def get(self, name: str, default: Any = None) -> Any:
        self.looked_up.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> Any:
        self.looked_up.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.looked_up.add(str(name))
        return super().__contains__(name)


READERS: dict[str, Any] = {"chat": chat, "responses": responses, "messages": messages, "completions": completions}
AS_COMPLETIONS: dict[str, Any] = {"prompt": "a", "n": 2, "best_of": 2}


@pytest.mark.parametrize("api", READERS)
def test_the_reader_reads_exactly_the_fields_that_the_table_calls_honoured(api: str) -> None:
    looked_up: set[str] = set()
    body = {"chat": AS_CHAT, "responses": AS_RESPONSES, "messages": AS_MESSAGES, "completions": AS_COMPLETIONS}[api]
    for more in (
        {},
        {
            "max_completion_tokens": None,
            "tools": None,
            "functions": [{"name": "look"}],
            "function_call": "auto",
            "tool_choice": None,
        },
    ):
        full = {name: value for name, value in {**body, **more}.items() if TABLES[api].row(name) is not None}
        READERS[api].read_known(Watched(full, looked_up), (), "m")
    rows = {row.name: row.treatment for row in TABLES[api].rows}
    honoured = {name for name, treatment in rows.items() if treatment in ("honoured", "passed on")}
    assert honoured - looked_up - set(ENGINE_FIELDS) == set()  # these are passed on as they are, by their list
    assert {name for name in looked_up if rows.get(name) == "refused"} == set()


def test_the_documented_errors_of_each_path_have_the_form_of_its_api() -> None:
    paths = orjson.loads((Path(clawctl.__file__).parent / "serve" / "openapi.json").read_bytes())["paths"]
    for path in (
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/responses/input_tokens",
        "/v1/messages",
        "/v1/messages/count_tokens",
    ):
        answers = paths[path]["post"]["responses"]
        forms = {answer["content"]["application/json"]["schema"]["$ref"] for status, answer in answers.items() if status >= "400"}
        assert forms == {f"#/components/schemas/{'Anthropic' if path.startswith('/v1/messages') else 'OpenAI'}Error"}, path
