"""Tables of all request fields and their treatment, per API. The readers see only the fields in these tables.

A table named after an API covers the request body, and its rows name the tables below it. `docs/api.md` is generated from these,
and `tests/serve/test_api_table.py` compares them with the request types of the official SDKs.
"""

from typing import Final

from clawctl.serve.dialects.rows import (
    Row,
    Table,
    done,
    embedded_lacks,
    forced_choice_note,
    idle,
    ignored,
    never,
    noted,
    of_engines,
    refused,
    rows,
    together,
)


def _structured(names: str) -> list[Row]:
    """Rows for formats that need guided decoding."""
    return rows("passed on", names, engines={"embedded": "refused" if embedded_lacks("response_format") else "honoured"})


_CLAIMS = [
    *done("session_id turn_type session_done", "describes the conversation, see docs/clients.md"),
    *done("prompt_cache_key", "identifies the conversation if nothing else does"),
]
_SAMPLED = [
    *done("temperature top_p", "default: the recipe's value"),
    *done("top_k", "not part of OpenAI's APIs; 0 and -1 disable it"),
]
_THINKS = done("enable_thinking", "same as `chat_template_kwargs.enable_thinking`")
_OWN_TEMPLATE = "the model's own chat template is used; set its switches in `chat_template_kwargs`"
_OPENAI_IDLE = [
    *idle("user safety_identifier", "identifies an end user to OpenAI; `X-Session-Id` identifies a conversation"),
    *idle("metadata", "a label in OpenAI's dashboard"),
    *idle("service_tier", "there is one tier"),
    *idle("prompt_cache_retention prompt_cache_options", "the engine caches prefixes automatically"),
    *idle("verbosity", "the model has no such setting"),
]
_ROUTERS = idle("provider transforms models route usage", "routers use it to choose a provider; this server has only one")
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
_BREAKPOINT = idle("prompt_cache_breakpoint cache_control", "the engine caches prefixes automatically")
_NEVER_HERE = "accepted in `tools` but never called; refused in `tool_choice`"

# ---- OpenAI Chat Completions -----------------------------------------------------------------------------------------------

_CHAT = together(
    done("model", "any name is accepted; `NAME@VERSION` pins a version"),
    done("messages", of="chat.message"),
    done("tools", "hidden from the model with `tool_choice: none`", of="chat.tool"),
    done("tool_choice", forced_choice_note(), of="chat.tool_choice"),
    done("functions", "the older form of `tools`; the answer has a `function_call`", of="chat.function"),
    done("function_call", of="chat.function_call"),
    done("stream"),
    done("stream_options", of="chat.stream_options"),
    done("n", "at most 128"),
    done("stop", "at most 64 texts of 256 characters"),
    _SAMPLED,
    done("max_tokens max_completion_tokens"),
    done("logprobs"),
    done("top_logprobs", "at most 20; needs `logprobs`"),
    done("return_token_ids", "returns `prompt_token_ids`, and `token_ids` of each choice", engines={"upstream": "refused"}),
    done("include_reasoning", "false: the answer omits reasoning"),
    done(
        "continue_final_message",
        "the answer continues the last message, which must be from the assistant",
        engines={"upstream": "refused"},
    ),
    done("add_generation_prompt", "not together with `continue_final_message`", engines={"upstream": "refused"}),
    of_engines(),
    _THINKS,
    done("thinking", "`type: disabled` disables thinking, all other values enable it", of="chat.thinking"),
    done("reasoning", "the form of `reasoning_effort` that routers use", of="chat.reasoning"),
    _CLAIMS,
    _OPENAI_IDLE,
    _ROUTERS,
    idle("store", "controls OpenAI's logs; the recipe and `X-Capture` control captures"),
    idle("prediction", "only speeds up the answer"),
    idle("priority request_id stream_interval", "for vLLM's scheduler"),
    refused("modalities", "answers are text only", unless=([], ["text"])),
    refused("audio", "answers are text only"),
    refused("web_search_options", "this server has no web search; offer a tool for it"),
    refused("moderation", "this server has no moderation"),
    _NOT_OF_CHAT,
)
_WORDS = done("content", "text, or parts as below", of="chat.part")
_CHAT_TABLES = {
    "chat": Table("Chat Completions: `POST /v1/chat/completions`", _CHAT),
    "chat.message": Table(
        "`messages`, by role",
        together(
            done(
                "system developer",
                "leading ones are joined; later ones become user messages if the template refuses them",
                of="chat.message.plain",
            ),
            done("user", of="chat.message.plain"),
            done("assistant", of="chat.message.assistant"),
            done("tool function", of="chat.message.tool"),
        ),
        "role",
    ),
    "chat.message.plain": Table(
        "A message of `system`, `developer` or `user`",
        together(done("role"), _WORDS, rows("passed on", "name", "the chat template decides whether the model sees it")),
    ),
    "chat.message.assistant": Table(
        "A message of `assistant`",
        together(
            done("role"),
            _WORDS,
            done("tool_calls", of="chat.call"),
            done("function_call", of="chat.function_call.made"),
            done("reasoning_content reasoning", "shown if the chat template shows earlier reasoning"),
            done("prefix", "true on the last message: the answer continues it", engines={"upstream": "refused"}),
            done("refusal", "used as the text if there is no other"),
            idle("audio", "id of an audio answer from OpenAI; this server gives none"),
            idle("name annotations provider_specific_fields reasoning_details", "data that other servers add to an answer"),
        ),
    ),
    "chat.message.tool": Table(
        "A message of `tool` or `function`",
        together(
            done("role tool_call_id"),
            _WORDS,
            rows("passed on", "name", "the chat template decides whether the model sees it"),
            idle("__copilotMessageSource", "Copilot's own data"),
        ),
    ),
    "chat.part": Table(
        "`content`, by type",
        together(
            done("text", of="chat.part.text"),
            done("refusal", "as text", of="chat.part.refusal"),
            done("image_url", "refused if the model accepts no images", of="chat.part.image", engines={"embedded": "refused"}),
            noted("input_audio file video_url audio_url"),
        ),
        "type",
    ),
    "chat.part.text": Table("A part `text`", together(done("type text"), _BREAKPOINT)),
    "chat.part.refusal": Table("A part `refusal`", together(done("type refusal"))),
    "chat.part.image": Table("A part `image_url`", together(done("type image_url"), _BREAKPOINT)),
    "chat.call": Table(
        "`tool_calls`, by type",
        together(
            done("function", of="chat.call.function"),
            done("custom", "its input is shown to the model in the same form as in `tools`", of="chat.call.custom"),
        ),
        "type",
        "function",
    ),
    "chat.call.function": Table(
        "A call of a function",
        together(done("id type"), done("function", of="chat.function_call.made"), idle("index", "used in streams only")),
    ),
    "chat.call.custom": Table("A call of a custom tool", together(done("id type"), done("custom", of="chat.custom.made"))),
    "chat.function_call.made": Table("The `function` of a call", together(done("name arguments"))),
    "chat.custom.made": Table("The `custom` of a call", together(done("name input"))),
    "chat.tool": Table(
        "`tools`, by type",
        together(
            done("function", of="chat.tool.function"),
            done("custom", "shown to the model as a function with one text parameter", of="chat.tool.custom"),
        ),
        "type",
        "function",
    ),
    "chat.tool.function": Table("A tool `function`", together(done("type"), done("function", of="chat.function"), _BREAKPOINT)),
    "chat.function": Table(
        "A `function`",
        together(
            done("name description parameters"),
            rows("passed on", "strict", "true: vLLM enforces the schema in calls", engines={"embedded": "no effect"}),
        ),
    ),
    "chat.tool.custom": Table("A tool `custom`", together(done("type"), done("custom", of="chat.custom"))),
    "chat.custom": Table(
        "The `custom` of a tool",
        together(
            done("name description"),
            done("format", "the model sees a description of the grammar and may violate it", of="chat.custom.format"),
        ),
    ),
    "chat.custom.format": Table("`format`, by type", together(done("text grammar")), "type"),
    "chat.tool_choice": Table(
        "`tool_choice`, by type",
        together(
            done("function", of="chat.tool_choice.named"),
            done("custom", of="chat.tool_choice.named"),
            done("allowed_tools", of="chat.tool_choice.allowed"),
        ),
        "type",
        "function",
    ),
    "chat.tool_choice.named": Table("A named tool", together(done("type"), done("function custom", of="chat.function_call"))),
    "chat.tool_choice.allowed": Table(
        "`allowed_tools`", together(done("type"), done("allowed_tools", of="chat.tool_choice.allowed.tools"))
    ),
    "chat.tool_choice.allowed.tools": Table("The `allowed_tools`", together(done("mode tools"))),
    "chat.function_call": Table("A name", together(done("name"))),
    "chat.stream_options": Table(
        "`stream_options`",
        together(
            done("include_usage"),
            idle("include_obfuscation", "padding against eavesdropping; streams of this server have none"),
            idle("continuous_usage_stats", "usage is sent once, at the end"),
        ),
    ),
    "chat.thinking": Table(
        "`thinking`", together(done("type"), idle("budget_tokens clear_thinking", "the model has no such setting"))
    ),
    "chat.reasoning": Table(
        "`reasoning`",
        together(
            done("effort enabled"),
            done("exclude", "true: the answer omits reasoning"),
            idle("max_tokens", "the model has no such setting"),
        ),
    ),
}

# ---- OpenAI Responses --------------------------------------------------------------------------------------------------------

_RESPONSES = together(
    done("model", "any name is accepted; `NAME@VERSION` pins a version"),
    done("input", of="responses.item"),
    done("instructions"),
    done("previous_response_id", "one of the key's last 512 responses"),
    done("tools", "hidden from the model with `tool_choice: none`", of="responses.tool"),
    done("tool_choice", forced_choice_note(), of="responses.tool_choice"),
    done("include", "`message.output_text.logprobs`; `reasoning.encrypted_content` is always included; unknown names are reported"),
    done("stream"),
    idle("stream_options", "padding against eavesdropping; streams of this server have none"),
    _SAMPLED,
    done("max_output_tokens", "limited to the rest of the context"),
    done("top_logprobs", "at most 20; above 0 it implies `include: [message.output_text.logprobs]`"),
    done("text", of="responses.text"),
    done("reasoning", of="responses.reasoning"),
    done("store", "false: the response is not stored for `previous_response_id`"),
    done("stop", "not part of OpenAI's API"),
    done("metadata", "returned in the response"),
    of_engines("response_format reasoning_effort"),
    _THINKS,
    _CLAIMS,
    [row for row in _OPENAI_IDLE if row.name not in ("metadata", "verbosity")],
    _ROUTERS,
    idle("client_metadata", "Codex's own data"),
    idle("truncation", "always `disabled`: too long prompts are refused"),
    idle("max_tool_calls", "it limits calls of OpenAI's own tools, which never run here"),
    idle("access_programs", "OpenAI's access control"),
    idle("image", "the engine uses images unchanged"),
    idle("context_management", "too long prompts are refused; the client compacts them"),
    refused("background", "wait for the answer, or stream it", unless=(False,)),
    refused("conversation", "this server stores no conversations: send the whole input, or previous_response_id"),
    refused("prompt", "this server stores no prompt templates: send the text as `instructions` and `input`"),
    refused("moderation", "this server has no moderation"),
)
_HOSTED = "file_search web_search web_search_* computer computer_use computer_use_preview mcp code_interpreter image_generation"
_HOSTED_ITEMS = (
    "web_search_call file_search_call computer_call code_interpreter_call image_generation_call mcp_list_tools "
    "mcp_approval_request mcp_approval_response program program_output"
)
_CALLER = idle("caller", "only the model makes calls")
_ITEM = together(done("type id"), idle("status"))
_RESPONSES_TABLES = {
    "responses": Table("Responses: `POST /v1/responses`", _RESPONSES),
    "responses.item": Table(
        "`input`, by type",
        together(
            done("message", of="responses.message"),
            done("reasoning", "shown if the chat template shows earlier reasoning", of="responses.reasoning_item"),
            done("function_call custom_tool_call", of="responses.call"),
            done("function_call_output custom_tool_call_output", of="responses.output"),
            done("local_shell_call", of="responses.local_shell_call"),
            done("local_shell_call_output", of="responses.local_shell_output"),
            done("shell_call", of="responses.shell_call"),
            done("shell_call_output", of="responses.shell_output"),
            done("apply_patch_call", of="responses.apply_patch_call"),
            done("apply_patch_call_output", of="responses.apply_patch_output"),
            done("item_reference", "resolved for stored responses, otherwise skipped"),
            done("additional_tools tool_search_output", "the model is offered their tools", of="responses.more_tools"),
            idle("tool_search_call", "the matching output lists the results"),
            idle("configuration_update", "the request's own `reasoning` and `text` apply"),
            idle(_HOSTED_ITEMS, "records of work by OpenAI's servers"),
            noted("mcp_call computer_call_output compaction"),
            refused("compaction_trigger", "this server does not compact: send a shorter input"),
        ),
        "type",
        "message",
    ),
    "responses.message": Table(
        "A `message`",
        together(
            _ITEM,
            done("role"),
            done("content", of="responses.part"),
            idle("phase", "commentary and answers are treated the same"),
        ),
    ),
    "responses.part": Table(
        "`content` and `output`, by type",
        together(
            done("input_text output_text text", of="responses.part.text"),
            done("refusal", "as text", of="responses.part.refusal"),
            done(
                "input_image image_url",
                "refused if the model accepts no images",
                of="responses.part.image",
                engines={"embedded": "refused"},
            ),
            noted("input_file input_audio"),
        ),
        "type",
    ),
    "responses.part.text": Table(
        "A text", together(done("type text"), idle("annotations logprobs", "data about an answer"), _BREAKPOINT)
    ),
    "responses.part.refusal": Table("A `refusal`", together(done("type refusal"))),
    "responses.part.image": Table(
        "An image", together(done("type image_url detail"), noted("file_id", "this server stores no files"), _BREAKPOINT)
    ),
    "responses.reasoning_item": Table(
        "A `reasoning` item",
        together(_ITEM, done("summary content encrypted_content", "`encrypted_content` identifies the turn that produced it")),
    ),
    "responses.call": Table(
        "A call", together(_ITEM, done("call_id name namespace arguments input"), idle("async", "client only"), _CALLER)
    ),
    "responses.output": Table(
        "The output of a call",
        together(_ITEM, done("call_id"), done("output", of="responses.part"), idle("name namespace", "the call has them"), _CALLER),
    ),
    "responses.local_shell_call": Table("A `local_shell_call`", together(_ITEM, done("call_id action"))),
    "responses.local_shell_output": Table(
        "A `local_shell_call_output`", together(_ITEM, done("output call_id", "it may refer to the call by `id` or `call_id`"))
    ),
    "responses.shell_call": Table(
        "A `shell_call`", together(_ITEM, done("call_id action"), idle("environment", "client only"), _CALLER)
    ),
    "responses.shell_output": Table(
        "A `shell_call_output`",
        together(_ITEM, done("call_id output"), idle("max_output_length", "the client already applied it"), _CALLER),
    ),
    "responses.apply_patch_call": Table("An `apply_patch_call`", together(_ITEM, done("call_id operation"), _CALLER)),
    "responses.apply_patch_output": Table("An `apply_patch_call_output`", together(done("type id call_id status output"), _CALLER)),
    "responses.more_tools": Table(
        "Tools within the input", together(_ITEM, done("tools", of="responses.tool"), idle("role call_id execution"))
    ),
    "responses.tool": Table(
        "`tools`, by type",
        together(
            done("function", of="responses.function"),
            done("custom", "shown to the model as a function with one text parameter", of="responses.custom"),
            done("namespace", of="responses.namespace"),
            done("local_shell", "shown to the model as a function; returned as `local_shell_call`", of="responses.plain"),
            done("shell", "the same, returned as `shell_call`; never called in OpenAI's containers", of="responses.shell"),
            done("apply_patch", "the same, returned as `apply_patch_call`", of="responses.plain"),
            never(_HOSTED, _NEVER_HERE),
            never("tool_search programmatic_tool_calling", "the model is offered all tools at once"),
        ),
        "type",
    ),
    "responses.function": Table(
        "A `function`",
        together(
            done("type name description parameters"),
            rows("passed on", "strict", "true: vLLM enforces the schema in calls", engines={"embedded": "no effect"}),
            idle("async allowed_callers output_schema", "client only"),
            idle("defer_loading", "the model is offered all tools at once"),
        ),
    ),
    "responses.custom": Table(
        "A `custom` tool",
        together(
            done("type name description"),
            done("format", "the model sees a description of the grammar and may violate it", of="chat.custom.format"),
            idle("async allowed_callers", "client only"),
            idle("defer_loading", "the model is offered all tools at once"),
        ),
    ),
    "responses.namespace": Table("A `namespace`", together(done("type name description"), done("tools", of="responses.tool"))),
    "responses.plain": Table("`local_shell` and `apply_patch`", together(done("type"), idle("allowed_callers", "client only"))),
    "responses.shell": Table(
        "`shell`", together(done("type"), idle("allowed_callers", "client only"), done("environment", of="responses.environment"))
    ),
    "responses.environment": Table(
        "`environment`, by type",
        together(done("local", of="responses.local"), never("container_auto container_reference", _NEVER_HERE)),
        "type",
    ),
    "responses.local": Table("A `local` environment", together(done("type"), done("skills", "the model sees a description"))),
    "responses.tool_choice": Table(
        "`tool_choice`, by type",
        together(
            done("function custom", of="responses.tool_choice.named"),
            done("allowed_tools", of="responses.tool_choice.allowed"),
            done("shell local_shell apply_patch"),
            refused(f"{_HOSTED} programmatic_tool_calling", "only OpenAI's servers can run it: offer a function"),
        ),
        "type",
    ),
    "responses.tool_choice.named": Table("A named tool", together(done("type name namespace"))),
    "responses.tool_choice.allowed": Table("`allowed_tools`", together(done("type mode tools"))),
    "responses.text": Table(
        "`text`",
        together(
            done("format", "a schema needs guided decoding", of="responses.format"),
            idle("verbosity", "the model has no such setting"),
        ),
    ),
    "responses.format": Table("`text.format`, by type", together(done("text"), _structured("json_schema json_object")), "type"),
    "responses.reasoning": Table(
        "`reasoning`",
        together(
            done("effort", "the chat template decides its effect; `none` disables thinking"),
            idle("summary generate_summary", "reasoning is always returned in full"),
            idle("context mode", "the client sends back what the model should see"),
        ),
    ),
}

# ---- Anthropic Messages --------------------------------------------------------------------------------------------------------

_CACHED = idle("cache_control", "the engine caches prefixes automatically")
_MESSAGES = together(
    done("model", "any name is accepted; `NAME@VERSION` pins a version"),
    done(
        "messages",
        "a last message from the assistant is continued; an *upstream* refuses that",
        of="messages.message",
    ),
    done("system", of="messages.system"),
    done("tools", "hidden from the model with `tool_choice: none`", of="messages.tool"),
    done("tool_choice", forced_choice_note(), of="messages.tool_choice"),
    done("max_tokens", "limited to the rest of the context"),
    done("stop_sequences", "at most 64 texts of 256 characters"),
    done("stream"),
    _SAMPLED,
    done("thinking", of="messages.thinking"),
    done("output_config", of="messages.output_config"),
    done("output_format", "same as `output_config.format`", of="messages.format"),
    done("metadata", of="messages.metadata"),
    of_engines("response_format parallel_tool_calls"),
    _THINKS,
    _CLAIMS,
    _CACHED,
    idle(
        "context_management",
        "prompts are never shortened; too long prompts are refused, and the client compacts them",
    ),
    idle("service_tier speed inference_geo billing_policy user_profile_id workspace_id", "there is one tier and no billing"),
    idle("betas", "fields of a beta have their own rows"),
    idle("diagnostics", "`usage` reports cached tokens"),
    idle("fallbacks fallback_credit_token", "names other models for refused requests; this server has one model"),
    idle("container", "for Anthropic's code execution, which never runs here"),
    never("mcp_servers", "offer the tools of these servers in `tools`"),
    refused("compaction", "this server does not compact: ask for a summary in a message"),
    refused("thread", "this server stores no threads: send the whole history in `messages`"),
)
_BLOCKS = "text image document search_result thinking redacted_thinking tool_use tool_result"
_SERVERS = (
    "server_tool_use web_search_tool_result web_fetch_tool_result advisor_tool_result code_execution_tool_result "
    "bash_code_execution_tool_result text_editor_code_execution_tool_result tool_search_tool_result mcp_tool_use mcp_tool_result "
    "container_upload compaction tool_addition tool_removal mcp_tool_listing fallback browser_state"
)
_TOOL_ABOUT = together(
    _CACHED,
    rows("passed on", "strict", "true: vLLM enforces the schema in calls", engines={"embedded": "no effect"}),
    idle("allowed_callers", "only the model makes calls"),
    idle("eager_input_streaming", "input is always streamed as it is generated"),
    done("defer_loading", "the model is offered the tool once a result names it"),
)
_MESSAGES_TABLES = {
    "messages": Table("Messages: `POST /v1/messages`", _MESSAGES),
    "messages.message": Table(
        "`messages`, by role",
        together(done("user assistant", of="messages.said"), done("system", of="messages.said.system")),
        "role",
    ),
    "messages.said": Table("A message", together(done("role"), done("content", of="messages.block"))),
    "messages.said.system": Table(
        "A message of `system`",
        together(done("role"), done("content", of="messages.block"), idle("clear_at output_config", "the request's values apply")),
    ),
    "messages.system": Table("`system`, by type", together(done("text", of="messages.text")), "type", "text"),
    "messages.block": Table(
        "`content`, by type",
        together(
            done("text", of="messages.text"),
            done("thinking", "shown if the chat template shows earlier reasoning", of="messages.thought"),
            done("redacted_thinking", "`data` identifies the turn that produced it", of="messages.thought.redacted"),
            done("tool_use", of="messages.tool_use"),
            done("tool_result", of="messages.tool_result"),
            done("tool_reference", "offers a deferred tool", of="messages.tool_reference"),
            done("search_result", of="messages.search_result"),
            done("document", "the model sees text; for a PDF or a file it sees a note", of="messages.document"),
            done("image", "refused if the model accepts no images", of="messages.image", engines={"embedded": "refused"}),
            noted(_SERVERS, "omitted in assistant messages"),
        ),
        "type",
    ),
    "messages.text": Table("A block `text`", together(done("type text"), _CACHED, idle("citations", "data about an answer"))),
    "messages.thought": Table(
        "A block `thinking`", together(done("type thinking signature", "`signature` identifies the turn that produced it"))
    ),
    "messages.thought.redacted": Table("A block `redacted_thinking`", together(done("type data"))),
    "messages.tool_use": Table(
        "A block `tool_use`",
        together(done("type id name input"), _CACHED, idle("caller toolset_name", "only the model makes calls")),
    ),
    "messages.tool_result": Table(
        "A block `tool_result`",
        together(
            done("type tool_use_id"),
            done("content", of="messages.block"),
            done("is_error", "the judge sees it"),
            _CACHED,
            idle("toolset_name", "taken from the call"),
        ),
    ),
    "messages.tool_reference": Table("A block `tool_reference`", together(done("type tool_name"), _CACHED)),
    "messages.search_result": Table(
        "A block `search_result`",
        together(
            done("type"),
            done("content", of="messages.block"),
            idle("source title", "the model sees the text only"),
            _CACHED,
            idle("citations", "answers contain no citations"),
        ),
    ),
    "messages.document": Table(
        "A block `document`",
        together(
            done("type"),
            done("source", of="messages.source"),
            idle("title context", "the model sees the text only"),
            _CACHED,
            idle("citations", "answers contain no citations"),
        ),
    ),
    "messages.source": Table(
        "`source` of a document, by type",
        together(done("text"), done("content", of="messages.source.content"), noted("base64 url file", "PDFs are not supported")),
        "type",
    ),
    "messages.source.content": Table("`content`", together(done("type"), done("content", of="messages.block"))),
    "messages.image": Table(
        "A block `image`",
        together(
            done("type"),
            done("source", of="messages.image.source"),
            _CACHED,
            idle("transformations", "the engine uses images unchanged"),
        ),
    ),
    "messages.image.source": Table(
        "`source` of an image, by type", together(done("base64 url"), noted("file", "this server stores no files")), "type"
    ),
    "messages.tool": Table(
        "`tools`, by type",
        together(
            done("custom", of="messages.custom"),
            done(
                "bash_* text_editor_* memory_*",
                "shown to the model as a function with its published schema",
                of="messages.client_tool",
            ),
            never("web_search_* web_fetch_* code_execution_* advisor_* mcp_toolset", "only Anthropic's servers can run it"),
            ignored("computer_* browser_*", "needs screenshots, which the models here cannot use"),
            never("tool_search_tool_*", "the model is offered a deferred tool once a result names it"),
        ),
        "type",
        "custom",
    ),
    "messages.custom": Table(
        "A tool of the client",
        together(done("type name description input_schema"), idle("input_examples", "the model sees the schema only"), _TOOL_ABOUT),
    ),
    "messages.client_tool": Table(
        "Anthropic's tools that a client runs",
        together(
            done("type name"),
            done("max_characters", "the model sees it in the description"),
            idle("input_examples", "the model sees the schema only"),
            _TOOL_ABOUT,
        ),
    ),
    "messages.tool_choice": Table(
        "`tool_choice`, by type",
        together(done("auto any none", of="messages.tool_choice.any"), done("tool", of="messages.tool_choice.named")),
        "type",
    ),
    "messages.tool_choice.any": Table("A choice", together(done("type disable_parallel_tool_use"))),
    "messages.tool_choice.named": Table("A named tool", together(done("type name disable_parallel_tool_use"))),
    "messages.thinking": Table(
        "`thinking`, by type",
        together(done("enabled adaptive disabled between_tools", of="messages.thinking.how")),
        "type",
    ),
    "messages.thinking.how": Table(
        "A kind of `thinking`",
        together(
            done("type", "`disabled` disables thinking, all other values enable it, if the template can"),
            idle("budget_tokens", "`max_tokens` sets the limit"),
            idle("display", "reasoning is always returned, so that the client can send it back"),
            idle("block_binding", "signatures do not depend on other blocks"),
        ),
    ),
    "messages.output_config": Table(
        "`output_config`",
        together(
            idle("effort task_budget", "the model has no such setting"),
            done("format", of="messages.format"),
        ),
    ),
    "messages.format": Table("`format`, by type", together(_structured("json_schema")), "type"),
    "messages.metadata": Table("`metadata`", together(done("user_id", "identifies the conversation if Claude Code sent it"))),
}
_COMPLETIONS = together(
    done("model", "any name is accepted; `NAME@VERSION` pins a version"),
    done("prompt", "one or several texts or lists of token ids; no template is applied"),
    done("stream stop echo return_token_ids"),
    done("stream_options", of="chat.stream_options"),
    done("n", "prompts times `n`: at most 128"),
    _SAMPLED,
    done("max_tokens", "default 16, as at OpenAI; null: the rest of the context"),
    done("logprobs", "at most 20; not together with `echo`"),
    done("add_special_tokens"),
    of_engines("chat_template_kwargs reasoning_effort parallel_tool_calls"),
    _CLAIMS,
    [row for row in _OPENAI_IDLE if row.name in ("user", "metadata")],
    _ROUTERS,
    idle("priority request_id", "for vLLM's scheduler"),
    done("best_of", "must equal `n`; choose among the `n` answers yourself"),
    refused("prompt_embeds", "prompts are text or token ids"),
    refused("suffix", "this server only continues text", unless=("",)),
    [row for row in _NOT_OF_CHAT if row.name not in ("echo", "best_of", "add_special_tokens", "chat_template", "documents")],
)
_COUNTED: Final = ("model", "messages", "system", "tools", "tool_choice", "thinking", "chat_template_kwargs", "enable_thinking")
_COUNT = tuple(
    row if row.name in _COUNTED or row.treatment not in ("honoured", "passed on") else Row(row.name, "no effect", "answers only")
    for row in _MESSAGES
)

TABLES: Final[dict[str, Table]] = {
    **_CHAT_TABLES,
    **_RESPONSES_TABLES,
    **_MESSAGES_TABLES,
    "completions": Table("Plain completions: `POST /v1/completions`", _COMPLETIONS),
    "count_tokens": Table("Counting: `POST /v1/messages/count_tokens`", _COUNT),
}
APIS: Final = ("chat", "responses", "messages", "count_tokens", "completions")  # that are served, in the order of docs/api.md
