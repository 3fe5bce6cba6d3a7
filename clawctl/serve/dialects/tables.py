"""Tables of all request fields and their treatment, per API. The readers see only the fields in these tables.

A table named after an API covers the request body, and its rows name the tables below it. `docs/api.md` is generated from these,
and `tests/serve/test_api_table.py` compares them with the request types of the official SDKs.
"""

from typing import Final

from clawctl.serve.dialects.rows import (
    FieldRow,
    Table,
    as_note,
    embedded_lacks,
    forced_choice_note,
    honoured,
    ignored,
    never_called,
    no_effect,
    of_engines,
    refused,
    rows,
)  # fmt: skip


def _structured(names: str) -> list[FieldRow]:
    """Rows for formats that need guided decoding."""
    return rows("passed on", names, engines={"embedded": "refused" if embedded_lacks("response_format") else "honoured"})


_CLAIMS = [
    *honoured("session_id turn_type session_done", "describes the conversation, see docs/clients.md"),
    *honoured("prompt_cache_key", "identifies the conversation if nothing else does"),
]
_SAMPLED = [
    *honoured("temperature top_p", "default: the recipe's value"),
    *honoured("top_k", "not part of OpenAI's APIs; 0 and -1 disable it"),
]
_THINKS = honoured("enable_thinking", "same as `chat_template_kwargs.enable_thinking`")
_OWN_TEMPLATE = "the model's own chat template is used; set its switches in `chat_template_kwargs`"
_OPENAI_IDLE = [
    *no_effect("user safety_identifier", "identifies an end user to OpenAI; `X-Session-Id` identifies a conversation"),
    *no_effect("metadata", "a label in OpenAI's dashboard"),
    *no_effect("service_tier", "there is one tier"),
    *no_effect("prompt_cache_retention prompt_cache_options", "the engine caches prefixes automatically"),
    *no_effect("verbosity", "the model has no such setting"),
]
_ROUTERS = no_effect("provider transforms models route usage", "routers use it to choose a provider; this server has only one")
_OF_THE_ENGINE = "specific to vLLM: send it to vLLM directly, or set it in `serve.engine_args`"
_NOT_OF_CHAT = [
    *refused("prompt_logprobs", "only the answer has log-probabilities; set `logprobs`", unless=(False,)),
    *refused("echo", "use /v1/completions to get the prompt repeated", unless=(False,)),
    *refused("best_of", "use `n` and choose among the answers", unless=(0, 1)),
    *refused("use_beam_search", "only sampling is supported", unless=(False,)),
    *refused("return_tokens_as_token_ids", "use `return_token_ids` to get the ids", unless=(False,)),
    *refused("chat_template", _OWN_TEMPLATE),
    *refused("documents", "put them into a message", unless=([],)),
    *refused("truncate_prompt_tokens", "shorten the messages", unless=(-1,)),
    *refused("include_stop_str_in_output", "answers never include the stop text", unless=(False,)),
    *refused("logprob_token_ids", "use `top_logprobs` to get the likeliest tokens"),
    *ignored("skip_special_tokens", "answers never show end tokens; `return_token_ids` includes their ids", unless=(True,)),
    *ignored("spaces_between_special_tokens", "answers never show end tokens", unless=(True,)),
    *ignored("add_special_tokens", "the chat template adds them", unless=(False,)),
    *ignored("return_prompt_text return_token_offsets return_mm_kwargs", "use `return_token_ids` to get the ids", unless=(False,)),
    *ignored("thinking_token_budget", "`max_tokens` limits reasoning and answer together"),
    *ignored("length_penalty", "only for beam search", unless=(1,)),
    *ignored("vllm_xargs kv_transfer_params ec_transfer_params mm_processor_kwargs media_io_kwargs mm_payload", _OF_THE_ENGINE),
    *ignored("watermarking repetition_detection routed_experts_prompt_start truncation_side", _OF_THE_ENGINE),
]
_BREAKPOINT = no_effect("prompt_cache_breakpoint cache_control", "the engine caches prefixes automatically")
_NEVER_HERE = "accepted in `tools` but never called; refused in `tool_choice`"

# ---- OpenAI Chat Completions -----------------------------------------------------------------------------------------------


_WORDS = honoured("content", "text, or parts as below", of="chat.part")
_CHAT_TABLES = {
    "chat": Table(
        "Chat Completions: `POST /v1/chat/completions`",
        honoured("model", "any name is accepted; `NAME@VERSION` pins a version"),
        honoured("messages", of="chat.message"),
        honoured("tools", "hidden from the model with `tool_choice: none`", of="chat.tool"),
        honoured("tool_choice", forced_choice_note(), of="chat.tool_choice"),
        honoured("functions", "the older form of `tools`; the answer has a `function_call`", of="chat.function"),
        honoured("function_call", of="chat.function_call"),
        honoured("stream"),
        honoured("stream_options", of="chat.stream_options"),
        honoured("n", "at most 128"),
        honoured("stop", "at most 64 texts of 256 characters"),
        _SAMPLED,
        honoured("max_tokens max_completion_tokens"),
        honoured("logprobs"),
        honoured("top_logprobs", "at most 20; needs `logprobs`"),
        honoured("return_token_ids", "returns `prompt_token_ids`, and `token_ids` of each choice", engines={"upstream": "refused"}),
        honoured("include_reasoning", "false: the answer omits reasoning"),
        honoured(
            "continue_final_message",
            "the answer continues the last message, which must be from the assistant",
            engines={"upstream": "refused"},
        ),
        honoured("add_generation_prompt", "not together with `continue_final_message`", engines={"upstream": "refused"}),
        of_engines(),
        _THINKS,
        honoured("thinking", "`type: disabled` disables thinking, all other values enable it", of="chat.thinking"),
        honoured("reasoning", "the form of `reasoning_effort` that routers use", of="chat.reasoning"),
        _CLAIMS,
        _OPENAI_IDLE,
        _ROUTERS,
        no_effect("store", "controls OpenAI's logs; the recipe and `X-Capture` control captures"),
        no_effect("prediction", "only speeds up the answer"),
        no_effect("priority request_id stream_interval", "for vLLM's scheduler"),
        refused("modalities", "answers are text only", unless=([], ["text"])),
        refused("audio", "answers are text only"),
        refused("web_search_options", "this server has no web search; offer a tool for it"),
        refused("moderation", "this server has no moderation"),
        _NOT_OF_CHAT,
    ),
    "chat.message": Table(
        "`messages`, by role",
        honoured(
            "system developer",
            "leading ones are joined; later ones become user messages if the template refuses them",
            of="chat.message.plain",
        ),
        honoured("user", of="chat.message.plain"),
        honoured("assistant", of="chat.message.assistant"),
        honoured("tool function", of="chat.message.tool"),
        by="role",
    ),
    "chat.message.plain": Table(
        "A message of `system`, `developer` or `user`",
        honoured("role"),
        _WORDS,
        rows("passed on", "name", "the chat template decides whether the model sees it"),
    ),
    "chat.message.assistant": Table(
        "A message of `assistant`",
        honoured("role"),
        _WORDS,
        honoured("tool_calls", of="chat.call"),
        honoured("function_call", of="chat.function_call.made"),
        honoured("reasoning_content reasoning", "shown if the chat template shows earlier reasoning"),
        honoured("prefix", "true on the last message: the answer continues it", engines={"upstream": "refused"}),
        honoured("refusal", "used as the text if there is no other"),
        no_effect("audio", "id of an audio answer from OpenAI; this server gives none"),
        no_effect("name annotations provider_specific_fields reasoning_details", "data that other servers add to an answer"),
    ),
    "chat.message.tool": Table(
        "A message of `tool` or `function`",
        honoured("role tool_call_id"),
        _WORDS,
        rows("passed on", "name", "the chat template decides whether the model sees it"),
        no_effect("__copilotMessageSource", "Copilot's own data"),
    ),
    "chat.part": Table(
        "`content`, by type",
        honoured("text", of="chat.part.text"),
        honoured("refusal", "as text", of="chat.part.refusal"),
        honoured("image_url", "refused if the model accepts no images", of="chat.part.image", engines={"embedded": "refused"}),
        as_note("input_audio file video_url audio_url"),
        by="type",
    ),
    "chat.part.text": Table("A part `text`", honoured("type text"), _BREAKPOINT),
    "chat.part.refusal": Table("A part `refusal`", honoured("type refusal")),
    "chat.part.image": Table("A part `image_url`", honoured("type image_url"), _BREAKPOINT),
    "chat.call": Table(
        "`tool_calls`, by type",
        honoured("function", of="chat.call.function"),
        honoured("custom", "its input is shown to the model in the same form as in `tools`", of="chat.call.custom"),
        by="type",
        otherwise="function",
    ),
    "chat.call.function": Table(
        "A call of a function",
        honoured("id type"),
        honoured("function", of="chat.function_call.made"),
        no_effect("index", "used in streams only"),
    ),
    "chat.call.custom": Table("A call of a custom tool", honoured("id type"), honoured("custom", of="chat.custom.made")),
    "chat.function_call.made": Table("The `function` of a call", honoured("name arguments")),
    "chat.custom.made": Table("The `custom` of a call", honoured("name input")),
    "chat.tool": Table(
        "`tools`, by type",
        honoured("function", of="chat.tool.function"),
        honoured("custom", "shown to the model as a function with one text parameter", of="chat.tool.custom"),
        by="type",
        otherwise="function",
    ),
    "chat.tool.function": Table("A tool `function`", honoured("type"), honoured("function", of="chat.function"), _BREAKPOINT),
    "chat.function": Table(
        "A `function`",
        honoured("name description parameters"),
        rows("passed on", "strict", "true: vLLM enforces the schema in calls", engines={"embedded": "no effect"}),
    ),
    "chat.tool.custom": Table("A tool `custom`", honoured("type"), honoured("custom", of="chat.custom")),
    "chat.custom": Table(
        "The `custom` of a tool",
        honoured("name description"),
        honoured("format", "the model sees a description of the grammar and may violate it", of="chat.custom.format"),
    ),
    "chat.custom.format": Table("`format`, by type", honoured("text grammar"), by="type"),
    "chat.tool_choice": Table(
        "`tool_choice`, by type",
        honoured("function", of="chat.tool_choice.named"),
        honoured("custom", of="chat.tool_choice.named"),
        honoured("allowed_tools", of="chat.tool_choice.allowed"),
        by="type",
        otherwise="function",
    ),
    "chat.tool_choice.named": Table("A named tool", honoured("type"), honoured("function custom", of="chat.function_call")),
    "chat.tool_choice.allowed": Table(
        "`allowed_tools`", honoured("type"), honoured("allowed_tools", of="chat.tool_choice.allowed.tools")
    ),
    "chat.tool_choice.allowed.tools": Table("The `allowed_tools`", honoured("mode tools")),
    "chat.function_call": Table("A name", honoured("name")),
    "chat.stream_options": Table(
        "`stream_options`",
        honoured("include_usage"),
        no_effect("include_obfuscation", "padding against eavesdropping; streams of this server have none"),
        no_effect("continuous_usage_stats", "usage is sent once, at the end"),
    ),
    "chat.thinking": Table(
        "`thinking`", honoured("type"), no_effect("budget_tokens clear_thinking", "the model has no such setting")
    ),
    "chat.reasoning": Table(
        "`reasoning`",
        honoured("effort enabled"),
        honoured("exclude", "true: the answer omits reasoning"),
        no_effect("max_tokens", "the model has no such setting"),
    ),
}

# ---- OpenAI Responses --------------------------------------------------------------------------------------------------------


_HOSTED = "file_search web_search web_search_* computer computer_use computer_use_preview mcp code_interpreter image_generation"
_HOSTED_ITEMS = (
    "web_search_call file_search_call computer_call code_interpreter_call image_generation_call mcp_list_tools "
    "mcp_approval_request mcp_approval_response program program_output"
)
_CALLER = no_effect("caller", "only the model makes calls")
_ITEM = [*honoured("type id"), *no_effect("status")]
_RESPONSES_TABLES = {
    "responses": Table(
        "Responses: `POST /v1/responses`",
        honoured("model", "any name is accepted; `NAME@VERSION` pins a version"),
        honoured("input", of="responses.item"),
        honoured("instructions"),
        honoured("previous_response_id", "one of the key's last 512 responses"),
        honoured("tools", "hidden from the model with `tool_choice: none`", of="responses.tool"),
        honoured("tool_choice", forced_choice_note(), of="responses.tool_choice"),
        honoured(
            "include",
            "`message.output_text.logprobs`; `reasoning.encrypted_content` is always included; unknown names are reported",
        ),
        honoured("stream"),
        no_effect("stream_options", "padding against eavesdropping; streams of this server have none"),
        _SAMPLED,
        honoured("max_output_tokens", "limited to the rest of the context"),
        honoured("top_logprobs", "at most 20; above 0 it implies `include: [message.output_text.logprobs]`"),
        honoured("text", of="responses.text"),
        honoured("reasoning", of="responses.reasoning"),
        honoured("store", "false: the response is not stored for `previous_response_id`"),
        honoured("stop", "not part of OpenAI's API"),
        honoured("metadata", "returned in the response"),
        of_engines("response_format reasoning_effort"),
        _THINKS,
        _CLAIMS,
        [row for row in _OPENAI_IDLE if row.name not in ("metadata", "verbosity")],
        _ROUTERS,
        no_effect("client_metadata", "Codex's own data"),
        no_effect("truncation", "always `disabled`: too long prompts are refused"),
        no_effect("max_tool_calls", "it limits calls of OpenAI's own tools, which never run here"),
        no_effect("access_programs", "OpenAI's access control"),
        no_effect("image", "the engine uses images unchanged"),
        no_effect("context_management", "too long prompts are refused; the client compacts them"),
        refused("background", "wait for the answer, or stream it", unless=(False,)),
        refused("conversation", "this server stores no conversations: send the whole input, or previous_response_id"),
        refused("prompt", "this server stores no prompt templates: send the text as `instructions` and `input`"),
        refused("moderation", "this server has no moderation"),
    ),
    "responses.item": Table(
        "`input`, by type",
        honoured("message", of="responses.message"),
        honoured("reasoning", "shown if the chat template shows earlier reasoning", of="responses.reasoning_item"),
        honoured("function_call custom_tool_call", of="responses.call"),
        honoured("function_call_output custom_tool_call_output", of="responses.output"),
        honoured("local_shell_call", of="responses.local_shell_call"),
        honoured("local_shell_call_output", of="responses.local_shell_output"),
        honoured("shell_call", of="responses.shell_call"),
        honoured("shell_call_output", of="responses.shell_output"),
        honoured("apply_patch_call", of="responses.apply_patch_call"),
        honoured("apply_patch_call_output", of="responses.apply_patch_output"),
        honoured("item_reference", "resolved for stored responses, otherwise skipped"),
        honoured("additional_tools tool_search_output", "the model is offered their tools", of="responses.more_tools"),
        no_effect("tool_search_call", "the matching output lists the results"),
        no_effect("configuration_update", "the request's own `reasoning` and `text` apply"),
        no_effect(_HOSTED_ITEMS, "records of work by OpenAI's servers"),
        as_note("mcp_call computer_call_output compaction"),
        refused("compaction_trigger", "this server does not compact: send a shorter input"),
        by="type",
        otherwise="message",
    ),
    "responses.message": Table(
        "A `message`",
        _ITEM,
        honoured("role"),
        honoured("content", of="responses.part"),
        no_effect("phase", "commentary and answers are treated the same"),
    ),
    "responses.part": Table(
        "`content` and `output`, by type",
        honoured("input_text output_text text", of="responses.part.text"),
        honoured("refusal", "as text", of="responses.part.refusal"),
        honoured(
            "input_image image_url",
            "refused if the model accepts no images",
            of="responses.part.image",
            engines={"embedded": "refused"},
        ),
        as_note("input_file input_audio"),
        by="type",
    ),
    "responses.part.text": Table(
        "A text", honoured("type text"), no_effect("annotations logprobs", "data about an answer"), _BREAKPOINT
    ),
    "responses.part.refusal": Table("A `refusal`", honoured("type refusal")),
    "responses.part.image": Table(
        "An image", honoured("type image_url detail"), as_note("file_id", "this server stores no files"), _BREAKPOINT
    ),
    "responses.reasoning_item": Table(
        "A `reasoning` item",
        _ITEM,
        honoured("summary content encrypted_content", "`encrypted_content` identifies the turn that produced it"),
    ),
    "responses.call": Table(
        "A call", _ITEM, honoured("call_id name namespace arguments input"), no_effect("async", "client only"), _CALLER
    ),
    "responses.output": Table(
        "The output of a call",
        _ITEM,
        honoured("call_id"),
        honoured("output", of="responses.part"),
        no_effect("name namespace", "the call has them"),
        _CALLER,
    ),
    "responses.local_shell_call": Table("A `local_shell_call`", _ITEM, honoured("call_id action")),
    "responses.local_shell_output": Table(
        "A `local_shell_call_output`", _ITEM, honoured("output call_id", "it may refer to the call by `id` or `call_id`")
    ),
    "responses.shell_call": Table(
        "A `shell_call`", _ITEM, honoured("call_id action"), no_effect("environment", "client only"), _CALLER
    ),
    "responses.shell_output": Table(
        "A `shell_call_output`",
        _ITEM,
        honoured("call_id output"),
        no_effect("max_output_length", "the client already applied it"),
        _CALLER,
    ),
    "responses.apply_patch_call": Table("An `apply_patch_call`", _ITEM, honoured("call_id operation"), _CALLER),
    "responses.apply_patch_output": Table("An `apply_patch_call_output`", honoured("type id call_id status output"), _CALLER),
    "responses.more_tools": Table(
        "Tools within the input", _ITEM, honoured("tools", of="responses.tool"), no_effect("role call_id execution")
    ),
    "responses.tool": Table(
        "`tools`, by type",
        honoured("function", of="responses.function"),
        honoured("custom", "shown to the model as a function with one text parameter", of="responses.custom"),
        honoured("namespace", of="responses.namespace"),
        honoured("local_shell", "shown to the model as a function; returned as `local_shell_call`", of="responses.plain"),
        honoured("shell", "the same, returned as `shell_call`; never called in OpenAI's containers", of="responses.shell"),
        honoured("apply_patch", "the same, returned as `apply_patch_call`", of="responses.plain"),
        never_called(_HOSTED, _NEVER_HERE),
        never_called("tool_search programmatic_tool_calling", "the model is offered all tools at once"),
        by="type",
    ),
    "responses.function": Table(
        "A `function`",
        honoured("type name description parameters"),
        rows("passed on", "strict", "true: vLLM enforces the schema in calls", engines={"embedded": "no effect"}),
        no_effect("async allowed_callers output_schema", "client only"),
        no_effect("defer_loading", "the model is offered all tools at once"),
    ),
    "responses.custom": Table(
        "A `custom` tool",
        honoured("type name description"),
        honoured("format", "the model sees a description of the grammar and may violate it", of="chat.custom.format"),
        no_effect("async allowed_callers", "client only"),
        no_effect("defer_loading", "the model is offered all tools at once"),
    ),
    "responses.namespace": Table("A `namespace`", honoured("type name description"), honoured("tools", of="responses.tool")),
    "responses.plain": Table("`local_shell` and `apply_patch`", honoured("type"), no_effect("allowed_callers", "client only")),
    "responses.shell": Table(
        "`shell`",
        honoured("type"),
        no_effect("allowed_callers", "client only"),
        honoured("environment", of="responses.environment"),
    ),
    "responses.environment": Table(
        "`environment`, by type",
        honoured("local", of="responses.local"),
        never_called("container_auto container_reference", _NEVER_HERE),
        by="type",
    ),
    "responses.local": Table("A `local` environment", honoured("type"), honoured("skills", "the model sees a description")),
    "responses.tool_choice": Table(
        "`tool_choice`, by type",
        honoured("function custom", of="responses.tool_choice.named"),
        honoured("allowed_tools", of="responses.tool_choice.allowed"),
        honoured("shell local_shell apply_patch"),
        refused(f"{_HOSTED} programmatic_tool_calling", "only OpenAI's servers can run it: offer a function"),
        by="type",
    ),
    "responses.tool_choice.named": Table("A named tool", honoured("type name namespace")),
    "responses.tool_choice.allowed": Table("`allowed_tools`", honoured("type mode tools")),
    "responses.text": Table(
        "`text`",
        honoured("format", "a schema needs guided decoding", of="responses.format"),
        no_effect("verbosity", "the model has no such setting"),
    ),
    "responses.format": Table("`text.format`, by type", honoured("text"), _structured("json_schema json_object"), by="type"),
    "responses.reasoning": Table(
        "`reasoning`",
        honoured("effort", "the chat template decides its effect; `none` disables thinking"),
        no_effect("summary generate_summary", "reasoning is always returned in full"),
        no_effect("context mode", "the client sends back what the model should see"),
    ),
}

# ---- Anthropic Messages --------------------------------------------------------------------------------------------------------

_CACHED = no_effect("cache_control", "the engine caches prefixes automatically")
_MESSAGES = [
    *honoured("model", "any name is accepted; `NAME@VERSION` pins a version"),
    *honoured("messages", "a last message from the assistant is continued; an *upstream* refuses that", of="messages.message"),
    *honoured("system", of="messages.system"),
    *honoured("tools", "hidden from the model with `tool_choice: none`", of="messages.tool"),
    *honoured("tool_choice", forced_choice_note(), of="messages.tool_choice"),
    *honoured("max_tokens", "limited to the rest of the context"),
    *honoured("stop_sequences", "at most 64 texts of 256 characters"),
    *honoured("stream"),
    *_SAMPLED,
    *honoured("thinking", of="messages.thinking"),
    *honoured("output_config", of="messages.output_config"),
    *honoured("output_format", "same as `output_config.format`", of="messages.format"),
    *honoured("metadata", of="messages.metadata"),
    *of_engines("response_format parallel_tool_calls"),
    *_THINKS,
    *_CLAIMS,
    *_CACHED,
    *no_effect("context_management", "prompts are never shortened; too long prompts are refused, and the client compacts them"),
    *no_effect("service_tier speed inference_geo billing_policy user_profile_id workspace_id", "there is one tier and no billing"),
    *no_effect("betas", "fields of a beta have their own rows"),
    *no_effect("diagnostics", "`usage` reports cached tokens"),
    *no_effect("fallbacks fallback_credit_token", "names other models for refused requests; this server has one model"),
    *no_effect("container", "for Anthropic's code execution, which never runs here"),
    *never_called("mcp_servers", "offer the tools of these servers in `tools`"),
    *refused("compaction", "this server does not compact: ask for a summary in a message"),
    *refused("thread", "this server stores no threads: send the whole history in `messages`"),
]
_BLOCKS = "text image document search_result thinking redacted_thinking tool_use tool_result"
_SERVERS = (
    "server_tool_use web_search_tool_result web_fetch_tool_result advisor_tool_result code_execution_tool_result "
    "bash_code_execution_tool_result text_editor_code_execution_tool_result tool_search_tool_result mcp_tool_use mcp_tool_result "
    "container_upload compaction tool_addition tool_removal mcp_tool_listing fallback browser_state"
)
_TOOL_ABOUT = [
    *_CACHED,
    *rows("passed on", "strict", "true: vLLM enforces the schema in calls", engines={"embedded": "no effect"}),
    *no_effect("allowed_callers", "only the model makes calls"),
    *no_effect("eager_input_streaming", "input is always streamed as it is generated"),
    *honoured("defer_loading", "the model is offered the tool once a result names it"),
]
_MESSAGES_TABLES = {
    "messages": Table("Messages: `POST /v1/messages`", _MESSAGES),
    "messages.message": Table(
        "`messages`, by role",
        honoured("user assistant", of="messages.said"),
        honoured("system", of="messages.said.system"),
        by="role",
    ),
    "messages.said": Table("A message", honoured("role"), honoured("content", of="messages.block")),
    "messages.said.system": Table(
        "A message of `system`",
        honoured("role"),
        honoured("content", of="messages.block"),
        no_effect("clear_at output_config", "the request's values apply"),
    ),
    "messages.system": Table("`system`, by type", honoured("text", of="messages.text"), by="type", otherwise="text"),
    "messages.block": Table(
        "`content`, by type",
        honoured("text", of="messages.text"),
        honoured("thinking", "shown if the chat template shows earlier reasoning", of="messages.thought"),
        honoured("redacted_thinking", "`data` identifies the turn that produced it", of="messages.thought.redacted"),
        honoured("tool_use", of="messages.tool_use"),
        honoured("tool_result", of="messages.tool_result"),
        honoured("tool_reference", "offers a deferred tool", of="messages.tool_reference"),
        honoured("search_result", of="messages.search_result"),
        honoured("document", "the model sees text; for a PDF or a file it sees a note", of="messages.document"),
        honoured("image", "refused if the model accepts no images", of="messages.image", engines={"embedded": "refused"}),
        as_note(_SERVERS, "omitted in assistant messages"),
        by="type",
    ),
    "messages.text": Table("A block `text`", honoured("type text"), _CACHED, no_effect("citations", "data about an answer")),
    "messages.thought": Table(
        "A block `thinking`", honoured("type thinking signature", "`signature` identifies the turn that produced it")
    ),
    "messages.thought.redacted": Table("A block `redacted_thinking`", honoured("type data")),
    "messages.tool_use": Table(
        "A block `tool_use`",
        honoured("type id name input"),
        _CACHED,
        no_effect("caller toolset_name", "only the model makes calls"),
    ),
    "messages.tool_result": Table(
        "A block `tool_result`",
        honoured("type tool_use_id"),
        honoured("content", of="messages.block"),
        honoured("is_error", "the judge sees it"),
        _CACHED,
        no_effect("toolset_name", "taken from the call"),
    ),
    "messages.tool_reference": Table("A block `tool_reference`", honoured("type tool_name"), _CACHED),
    "messages.search_result": Table(
        "A block `search_result`",
        honoured("type"),
        honoured("content", of="messages.block"),
        no_effect("source title", "the model sees the text only"),
        _CACHED,
        no_effect("citations", "answers contain no citations"),
    ),
    "messages.document": Table(
        "A block `document`",
        honoured("type"),
        honoured("source", of="messages.source"),
        no_effect("title context", "the model sees the text only"),
        _CACHED,
        no_effect("citations", "answers contain no citations"),
    ),
    "messages.source": Table(
        "`source` of a document, by type",
        honoured("text"),
        honoured("content", of="messages.source.content"),
        as_note("base64 url file", "PDFs are not supported"),
        by="type",
    ),
    "messages.source.content": Table("`content`", honoured("type"), honoured("content", of="messages.block")),
    "messages.image": Table(
        "A block `image`",
        honoured("type"),
        honoured("source", of="messages.image.source"),
        _CACHED,
        no_effect("transformations", "the engine uses images unchanged"),
    ),
    "messages.image.source": Table(
        "`source` of an image, by type", honoured("base64 url"), as_note("file", "this server stores no files"), by="type"
    ),
    "messages.tool": Table(
        "`tools`, by type",
        honoured("custom", of="messages.custom"),
        honoured(
            "bash_* text_editor_* memory_*", "shown to the model as a function with its published schema", of="messages.client_tool"
        ),
        never_called("web_search_* web_fetch_* code_execution_* advisor_* mcp_toolset", "only Anthropic's servers can run it"),
        ignored("computer_* browser_*", "needs screenshots, which the models here cannot use"),
        never_called("tool_search_tool_*", "the model is offered a deferred tool once a result names it"),
        by="type",
        otherwise="custom",
    ),
    "messages.custom": Table(
        "A tool of the client",
        honoured("type name description input_schema"),
        no_effect("input_examples", "the model sees the schema only"),
        _TOOL_ABOUT,
    ),
    "messages.client_tool": Table(
        "Anthropic's tools that a client runs",
        honoured("type name"),
        honoured("max_characters", "the model sees it in the description"),
        no_effect("input_examples", "the model sees the schema only"),
        _TOOL_ABOUT,
    ),
    "messages.tool_choice": Table(
        "`tool_choice`, by type",
        honoured("auto any none", of="messages.tool_choice.any"),
        honoured("tool", of="messages.tool_choice.named"),
        by="type",
    ),
    "messages.tool_choice.any": Table("A choice", honoured("type disable_parallel_tool_use")),
    "messages.tool_choice.named": Table("A named tool", honoured("type name disable_parallel_tool_use")),
    "messages.thinking": Table(
        "`thinking`, by type", honoured("enabled adaptive disabled between_tools", of="messages.thinking.how"), by="type"
    ),
    "messages.thinking.how": Table(
        "A kind of `thinking`",
        honoured("type", "`disabled` disables thinking, all other values enable it, if the template can"),
        no_effect("budget_tokens", "`max_tokens` sets the limit"),
        no_effect("display", "reasoning is always returned, so that the client can send it back"),
        no_effect("block_binding", "signatures do not depend on other blocks"),
    ),
    "messages.output_config": Table(
        "`output_config`",
        no_effect("effort task_budget", "the model has no such setting"),
        honoured("format", of="messages.format"),
    ),
    "messages.format": Table("`format`, by type", _structured("json_schema"), by="type"),
    "messages.metadata": Table("`metadata`", honoured("user_id", "identifies the conversation if Claude Code sent it")),
}

_COUNTED: Final = ("model", "messages", "system", "tools", "tool_choice", "thinking", "chat_template_kwargs", "enable_thinking")
_COUNT = tuple(
    row
    if row.name in _COUNTED or row.treatment not in ("honoured", "passed on")
    else FieldRow(row.name, "no effect", "answers only")
    for row in _MESSAGES
)

TABLES: Final[dict[str, Table]] = {
    **_CHAT_TABLES,
    **_RESPONSES_TABLES,
    **_MESSAGES_TABLES,
    "completions": Table(
        "Plain completions: `POST /v1/completions`",
        honoured("model", "any name is accepted; `NAME@VERSION` pins a version"),
        honoured("prompt", "one or several texts or lists of token ids; no template is applied"),
        honoured("stream stop echo return_token_ids"),
        honoured("stream_options", of="chat.stream_options"),
        honoured("n", "prompts times `n`: at most 128"),
        _SAMPLED,
        honoured("max_tokens", "default 16, as at OpenAI; null: the rest of the context"),
        honoured("logprobs", "at most 20; not together with `echo`"),
        honoured("add_special_tokens"),
        of_engines("chat_template_kwargs reasoning_effort parallel_tool_calls"),
        _CLAIMS,
        [row for row in _OPENAI_IDLE if row.name in ("user", "metadata")],
        _ROUTERS,
        no_effect("priority request_id", "for vLLM's scheduler"),
        honoured("best_of", "must equal `n`; choose among the `n` answers yourself"),
        refused("prompt_embeds", "prompts are text or token ids"),
        refused("suffix", "this server only continues text", unless=("",)),
        [row for row in _NOT_OF_CHAT if row.name not in ("echo", "best_of", "add_special_tokens", "chat_template", "documents")],
    ),
    "count_tokens": Table("Counting: `POST /v1/messages/count_tokens`", _COUNT),
}
APIS: Final = ("chat", "responses", "messages", "count_tokens", "completions")  # that are served, in the order of docs/api.md
