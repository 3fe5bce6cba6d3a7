"""What becomes of each field of a request, in each API: data. The readers see only the fields that stand here.

The tables whose names are those of APIs are of a request's body; rows name the tables below. `docs/api.md` is made of this, and
`tests/serve/test_api_table.py` compares it with the request types of the official SDKs.
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
    """Of a format that needs guided decoding."""
    return rows("passed on", names, engines={"embedded": "refused" if embedded_lacks("response_format") else "honoured"})


_CLAIMS = [
    *done("session_id turn_type session_done", "names the conversation, see docs/clients.md"),
    *done("prompt_cache_key", "names the conversation if nothing else does"),
]
_SAMPLED = [
    *done("temperature top_p", "the recipe's where it is absent"),
    *done("top_k", "not of OpenAI's APIs; 0 and -1 switch it off"),
]
_THINKS = done("enable_thinking", "as `chat_template_kwargs.enable_thinking`")
_OWN_TEMPLATE = "the model's own chat template is used; its switches go into `chat_template_kwargs`"
_OPENAI_IDLE = [
    *idle("user safety_identifier", "names an end user for OpenAI; `X-Session-Id` names a conversation"),
    *idle("metadata", "a label for OpenAI's dashboard"),
    *idle("service_tier", "there is one tier"),
    *idle("prompt_cache_retention prompt_cache_options", "the engine caches prefixes by itself"),
    *idle("verbosity", "a wish; the model has no such switch"),
]
_ROUTERS = idle("provider transforms models route usage", "a router's choice among providers; here is one")
_OF_THE_ENGINE = "vLLM's own; send it to vLLM, or set it in `serve.engine_args`"
_NOT_OF_CHAT = [
    *refused(
        "prompt_logprobs", "log-probabilities of a prompt are not given; `logprobs` gives those of the answer", unless=(False,)
    ),
    *refused("echo", "the prompt is not repeated; use /v1/completions", unless=(False,)),
    *refused("best_of", "use `n` and choose", unless=(0, 1)),
    *refused("use_beam_search", "answers are sampled", unless=(False,)),
    *refused("return_tokens_as_token_ids", "`return_token_ids` gives the ids", unless=(False,)),
    *refused("chat_template", _OWN_TEMPLATE),
    *refused("documents", "put them into a message", unless=([],)),
    *refused("truncate_prompt_tokens", "shorten the messages", unless=(-1,)),
    *refused("include_stop_str_in_output", "the stop is never part of the answer", unless=(False,)),
    *refused("logprob_token_ids", "`top_logprobs` gives the likeliest tokens"),
    *ignored("skip_special_tokens", "end tokens are never shown; `return_token_ids` gives them", unless=(True,)),
    *ignored("spaces_between_special_tokens", "end tokens are never shown", unless=(True,)),
    *ignored("add_special_tokens", "the chat template writes them", unless=(False,)),
    *ignored("return_prompt_text return_token_offsets return_mm_kwargs", "`return_token_ids` gives the ids", unless=(False,)),
    *ignored("thinking_token_budget", "`max_tokens` bounds reasoning and answer together"),
    *ignored("length_penalty", "it belongs to beam search", unless=(1,)),
    *ignored("vllm_xargs kv_transfer_params ec_transfer_params mm_processor_kwargs media_io_kwargs mm_payload", _OF_THE_ENGINE),
    *ignored("watermarking repetition_detection routed_experts_prompt_start truncation_side", _OF_THE_ENGINE),
]
_BREAKPOINT = idle("prompt_cache_breakpoint cache_control", "the engine caches prefixes by itself")
_NEVER_HERE = "offered, it is accepted and never called; forced, it is refused"

# ---- OpenAI Chat Completions -----------------------------------------------------------------------------------------------

_CHAT = together(
    done("model", "any name is answered; `NAME@VERSION` pins a version"),
    done("messages", of="chat.message"),
    done("tools", "with `tool_choice: none` the model is not shown them", of="chat.tool"),
    done("tool_choice", forced_choice_note(), of="chat.tool_choice"),
    done("functions", "as it was before `tools`; the answer has a `function_call`", of="chat.function"),
    done("function_call", of="chat.function_call"),
    done("stream"),
    done("stream_options", of="chat.stream_options"),
    done("n", "at most 128"),
    done("stop", "at most 64 texts of 256 characters"),
    _SAMPLED,
    done("max_tokens max_completion_tokens"),
    done("logprobs"),
    done("top_logprobs", "at most 20; needs `logprobs`"),
    done("return_token_ids", "`prompt_token_ids` and each choice's `token_ids`, as vLLM has them", engines={"upstream": "refused"}),
    done("include_reasoning", "false: reasoning is not shown"),
    done(
        "continue_final_message",
        "the answer continues the last message, which must be the assistant's",
        engines={"upstream": "refused"},
    ),
    done("add_generation_prompt", "not together with `continue_final_message`", engines={"upstream": "refused"}),
    of_engines(),
    _THINKS,
    done("thinking", "`type: disabled` switches thinking off, any other on", of="chat.thinking"),
    done("reasoning", "a router's form of `reasoning_effort`", of="chat.reasoning"),
    _CLAIMS,
    _OPENAI_IDLE,
    _ROUTERS,
    idle("store", "OpenAI's own logs; what is captured here is the recipe's and `X-Capture`'s"),
    idle("prediction", "it only makes an answer faster"),
    idle("priority request_id stream_interval", "of vLLM's scheduling"),
    refused("modalities", "answers are text", unless=([], ["text"])),
    refused("audio", "answers are text"),
    refused("web_search_options", "nothing here searches the web; offer a tool"),
    refused("moderation", "nothing here moderates"),
    _NOT_OF_CHAT,
)
_WORDS = done("content", "text; parts as below", of="chat.part")
_CHAT_TABLES = {
    "chat": Table("Chat Completions: `POST /v1/chat/completions`", _CHAT),
    "chat.message": Table(
        "`messages`, by role",
        together(
            done(
                "system developer",
                "joined where they come first; said by the user where the template refuses them later",
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
        together(done("role"), _WORDS, rows("passed on", "name", "the template decides whether the model sees it")),
    ),
    "chat.message.assistant": Table(
        "A message of `assistant`",
        together(
            done("role"),
            _WORDS,
            done("tool_calls", of="chat.call"),
            done("function_call", of="chat.function_call.made"),
            done("reasoning_content reasoning", "where the template shows earlier reasoning"),
            done("prefix", "true on the last message: the answer continues it", engines={"upstream": "refused"}),
            done("refusal", "as its text, where it has no other"),
            idle("audio", "OpenAI's handle of an answer in audio, which no server here gave"),
            idle("name annotations provider_specific_fields reasoning_details", "what other servers say of an answer"),
        ),
    ),
    "chat.message.tool": Table(
        "A message of `tool` or `function`",
        together(
            done("role tool_call_id"),
            _WORDS,
            rows("passed on", "name", "the template decides whether the model sees it"),
            idle("__copilotMessageSource", "what Copilot says of itself"),
        ),
    ),
    "chat.part": Table(
        "`content`, by type",
        together(
            done("text", of="chat.part.text"),
            done("refusal", "as text", of="chat.part.refusal"),
            done("image_url", "where the model takes images, else refused", of="chat.part.image", engines={"embedded": "refused"}),
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
            done("custom", "its input is shown to the model as in `tools`", of="chat.call.custom"),
        ),
        "type",
        "function",
    ),
    "chat.call.function": Table(
        "A call of a function",
        together(done("id type"), done("function", of="chat.function_call.made"), idle("index", "of a stream")),
    ),
    "chat.call.custom": Table("A call of a custom tool", together(done("id type"), done("custom", of="chat.custom.made"))),
    "chat.function_call.made": Table("The `function` of a call", together(done("name arguments"))),
    "chat.custom.made": Table("The `custom` of a call", together(done("name input"))),
    "chat.tool": Table(
        "`tools`, by type",
        together(
            done("function", of="chat.tool.function"),
            done("custom", "shown to the model as a function with one text", of="chat.tool.custom"),
        ),
        "type",
        "function",
    ),
    "chat.tool.function": Table("A tool `function`", together(done("type"), done("function", of="chat.function"), _BREAKPOINT)),
    "chat.function": Table(
        "A `function`",
        together(
            done("name description parameters"),
            rows("passed on", "strict", "vLLM holds a call to its schema if so", engines={"embedded": "no effect"}),
        ),
    ),
    "chat.tool.custom": Table("A tool `custom`", together(done("type"), done("custom", of="chat.custom"))),
    "chat.custom": Table(
        "The `custom` of a tool",
        together(
            done("name description"),
            done("format", "a grammar is described to the model, which may break it", of="chat.custom.format"),
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
            idle("include_obfuscation", "padding against eavesdroppers; streams here have none"),
            idle("continuous_usage_stats", "usage comes once, at the end"),
        ),
    ),
    "chat.thinking": Table(
        "`thinking`", together(done("type"), idle("budget_tokens clear_thinking", "the model has no such switch"))
    ),
    "chat.reasoning": Table(
        "`reasoning`",
        together(
            done("effort enabled"),
            done("exclude", "true: reasoning is not shown"),
            idle("max_tokens", "the model has no such switch"),
        ),
    ),
}

# ---- OpenAI Responses --------------------------------------------------------------------------------------------------------

_RESPONSES = together(
    done("model", "any name is answered; `NAME@VERSION` pins a version"),
    done("input", of="responses.item"),
    done("instructions"),
    done("previous_response_id", "of the last 512 responses of a key"),
    done("tools", "with `tool_choice: none` the model is not shown them", of="responses.tool"),
    done("tool_choice", forced_choice_note(), of="responses.tool_choice"),
    done("include", "`message.output_text.logprobs`; `reasoning.encrypted_content` is always given; what OpenAI has not is named"),
    done("stream"),
    idle("stream_options", "padding against eavesdroppers; streams here have none"),
    _SAMPLED,
    done("max_output_tokens", "cut to what the context has left"),
    done("top_logprobs", "at most 20; above 0 it stands for `include: [message.output_text.logprobs]` as well"),
    done("text", of="responses.text"),
    done("reasoning", of="responses.reasoning"),
    done("store", "false: the response is not kept for `previous_response_id`"),
    done("stop", "not of OpenAI's API"),
    done("metadata", "repeated in the response"),
    of_engines("response_format reasoning_effort"),
    _THINKS,
    _CLAIMS,
    [row for row in _OPENAI_IDLE if row.name not in ("metadata", "verbosity")],
    _ROUTERS,
    idle("client_metadata", "what Codex says of itself"),
    idle("truncation", "a prompt that is too long is refused, as `disabled` has it"),
    idle("max_tool_calls", "it counts calls of OpenAI's own tools, and none is made"),
    idle("access_programs", "OpenAI's access control"),
    idle("image", "the engine takes images as they are"),
    idle("context_management", "a prompt that is too long is refused, and the client compacts"),
    refused("background", "wait for the answer, or stream it", unless=(False,)),
    refused("conversation", "conversations are not kept here: send the whole input, or previous_response_id"),
    refused("prompt", "no prompt templates are kept here: send the words as `instructions` and `input`"),
    refused("moderation", "nothing here moderates"),
)
_HOSTED = "file_search web_search web_search_* computer computer_use computer_use_preview mcp code_interpreter image_generation"
_HOSTED_ITEMS = (
    "web_search_call file_search_call computer_call code_interpreter_call image_generation_call mcp_list_tools "
    "mcp_approval_request mcp_approval_response program program_output"
)
_CALLER = idle("caller", "calls are the model's own")
_ITEM = together(done("type id"), idle("status"))
_RESPONSES_TABLES = {
    "responses": Table("Responses: `POST /v1/responses`", _RESPONSES),
    "responses.item": Table(
        "`input`, by type",
        together(
            done("message", of="responses.message"),
            done("reasoning", "where the template shows earlier reasoning", of="responses.reasoning_item"),
            done("function_call custom_tool_call", of="responses.call"),
            done("function_call_output custom_tool_call_output", of="responses.output"),
            done("local_shell_call", of="responses.local_shell_call"),
            done("local_shell_call_output", of="responses.local_shell_output"),
            done("shell_call", of="responses.shell_call"),
            done("shell_call_output", of="responses.shell_output"),
            done("apply_patch_call", of="responses.apply_patch_call"),
            done("apply_patch_call_output", of="responses.apply_patch_output"),
            done("item_reference", "of a response that is kept; any other is passed over"),
            done("additional_tools tool_search_output", "their tools are offered", of="responses.more_tools"),
            idle("tool_search_call", "its output says what was found"),
            idle("configuration_update", "the request's own `reasoning` and `text` count"),
            idle(_HOSTED_ITEMS, "what OpenAI's servers did"),
            noted("mcp_call computer_call_output compaction"),
            refused("compaction_trigger", "nothing here compacts: send a shorter input"),
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
            idle("phase", "commentary or answer: both are the assistant's words"),
        ),
    ),
    "responses.part": Table(
        "`content` and `output`, by type",
        together(
            done("input_text output_text text", of="responses.part.text"),
            done("refusal", "as text", of="responses.part.refusal"),
            done(
                "input_image image_url",
                "where the model takes images, else refused",
                of="responses.part.image",
                engines={"embedded": "refused"},
            ),
            noted("input_file input_audio"),
        ),
        "type",
    ),
    "responses.part.text": Table(
        "A text", together(done("type text"), idle("annotations logprobs", "what was said of an answer"), _BREAKPOINT)
    ),
    "responses.part.refusal": Table("A `refusal`", together(done("type refusal"))),
    "responses.part.image": Table(
        "An image", together(done("type image_url detail"), noted("file_id", "no files are kept here"), _BREAKPOINT)
    ),
    "responses.reasoning_item": Table(
        "A `reasoning` item",
        together(_ITEM, done("summary content encrypted_content", "`encrypted_content` names the turn that gave it")),
    ),
    "responses.call": Table(
        "A call", together(_ITEM, done("call_id name namespace arguments input"), idle("async", "the client's"), _CALLER)
    ),
    "responses.output": Table(
        "The output of a call",
        together(_ITEM, done("call_id"), done("output", of="responses.part"), idle("name namespace", "the call has them"), _CALLER),
    ),
    "responses.local_shell_call": Table("A `local_shell_call`", together(_ITEM, done("call_id action"))),
    "responses.local_shell_output": Table(
        "A `local_shell_call_output`", together(_ITEM, done("output call_id", "it may name the call by `id` or `call_id`"))
    ),
    "responses.shell_call": Table(
        "A `shell_call`", together(_ITEM, done("call_id action"), idle("environment", "the client's"), _CALLER)
    ),
    "responses.shell_output": Table(
        "A `shell_call_output`",
        together(_ITEM, done("call_id output"), idle("max_output_length", "the client has cut it"), _CALLER),
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
            done("custom", "shown to the model as a function with one text", of="responses.custom"),
            done("namespace", of="responses.namespace"),
            done("local_shell", "shown to the model as a function; its calls come as `local_shell_call`", of="responses.plain"),
            done("shell", "likewise, as `shell_call`; with a container of OpenAI's it is never called", of="responses.shell"),
            done("apply_patch", "likewise, as `apply_patch_call`", of="responses.plain"),
            never(_HOSTED, _NEVER_HERE),
            never("tool_search programmatic_tool_calling", "all tools are offered at once"),
        ),
        "type",
    ),
    "responses.function": Table(
        "A `function`",
        together(
            done("type name description parameters"),
            rows("passed on", "strict", "vLLM holds a call to its schema if so", engines={"embedded": "no effect"}),
            idle("async allowed_callers output_schema", "the client's"),
            idle("defer_loading", "it is offered at once"),
        ),
    ),
    "responses.custom": Table(
        "A `custom` tool",
        together(
            done("type name description"),
            done("format", "a grammar is described to the model, which may break it", of="chat.custom.format"),
            idle("async allowed_callers", "the client's"),
            idle("defer_loading", "it is offered at once"),
        ),
    ),
    "responses.namespace": Table("A `namespace`", together(done("type name description"), done("tools", of="responses.tool"))),
    "responses.plain": Table("`local_shell` and `apply_patch`", together(done("type"), idle("allowed_callers", "the client's"))),
    "responses.shell": Table(
        "`shell`", together(done("type"), idle("allowed_callers", "the client's"), done("environment", of="responses.environment"))
    ),
    "responses.environment": Table(
        "`environment`, by type",
        together(done("local", of="responses.local"), never("container_auto container_reference", _NEVER_HERE)),
        "type",
    ),
    "responses.local": Table("A `local` environment", together(done("type"), done("skills", "described to the model"))),
    "responses.tool_choice": Table(
        "`tool_choice`, by type",
        together(
            done("function custom", of="responses.tool_choice.named"),
            done("allowed_tools", of="responses.tool_choice.allowed"),
            done("shell local_shell apply_patch"),
            refused(f"{_HOSTED} programmatic_tool_calling", "only OpenAI's own servers can call it: offer a function"),
        ),
        "type",
    ),
    "responses.tool_choice.named": Table("A named tool", together(done("type name namespace"))),
    "responses.tool_choice.allowed": Table("`allowed_tools`", together(done("type mode tools"))),
    "responses.text": Table(
        "`text`",
        together(
            done("format", "a schema needs guided decoding", of="responses.format"),
            idle("verbosity", "a wish; the model has no such switch"),
        ),
    ),
    "responses.format": Table("`text.format`, by type", together(done("text"), _structured("json_schema json_object")), "type"),
    "responses.reasoning": Table(
        "`reasoning`",
        together(
            done("effort", "what the template makes of it; `none` switches thinking off"),
            idle("summary generate_summary", "reasoning is shown whole"),
            idle("context mode", "the client sends back what it wants to be seen"),
        ),
    ),
}

# ---- Anthropic Messages --------------------------------------------------------------------------------------------------------

_CACHED = idle("cache_control", "the engine caches prefixes by itself")
_MESSAGES = together(
    done("model", "any name is answered; `NAME@VERSION` pins a version"),
    done(
        "messages",
        "where the assistant's text comes last, the answer continues it; an *upstream* refuses that",
        of="messages.message",
    ),
    done("system", of="messages.system"),
    done("tools", "with `tool_choice: none` the model is not shown them", of="messages.tool"),
    done("tool_choice", forced_choice_note(), of="messages.tool_choice"),
    done("max_tokens", "cut to what the context has left"),
    done("stop_sequences", "at most 64 texts of 256 characters"),
    done("stream"),
    _SAMPLED,
    done("thinking", of="messages.thinking"),
    done("output_config", of="messages.output_config"),
    done("output_format", "as `output_config.format`", of="messages.format"),
    done("metadata", of="messages.metadata"),
    of_engines("response_format parallel_tool_calls"),
    _THINKS,
    _CLAIMS,
    _CACHED,
    idle(
        "context_management",
        "what a client sends stays in the prompt; a prompt that is too long is refused, and the client compacts",
    ),
    idle("service_tier speed inference_geo billing_policy user_profile_id workspace_id", "there is one tier, and no bill"),
    idle("betas", "what a beta adds has rows of its own"),
    idle("diagnostics", "the usage says what was cached"),
    idle("fallbacks fallback_credit_token", "another model's turn if this one refuses; here is one model"),
    idle("container", "of Anthropic's code execution, which is never called"),
    never("mcp_servers", "offer their tools as tools"),
    refused("compaction", "nothing here compacts: ask for a summary in a message"),
    refused("thread", "no threads are kept here: send the whole history in `messages`"),
)
_BLOCKS = "text image document search_result thinking redacted_thinking tool_use tool_result"
_SERVERS = (
    "server_tool_use web_search_tool_result web_fetch_tool_result advisor_tool_result code_execution_tool_result "
    "bash_code_execution_tool_result text_editor_code_execution_tool_result tool_search_tool_result mcp_tool_use mcp_tool_result "
    "container_upload compaction tool_addition tool_removal mcp_tool_listing fallback browser_state"
)
_TOOL_ABOUT = together(
    _CACHED,
    rows("passed on", "strict", "vLLM holds a call to its schema if so", engines={"embedded": "no effect"}),
    idle("allowed_callers", "calls are the model's own"),
    idle("eager_input_streaming", "input is streamed as it comes"),
    done("defer_loading", "it is offered once a result has named it"),
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
        together(done("role"), done("content", of="messages.block"), idle("clear_at output_config", "the request's own count")),
    ),
    "messages.system": Table("`system`, by type", together(done("text", of="messages.text")), "type", "text"),
    "messages.block": Table(
        "`content`, by type",
        together(
            done("text", of="messages.text"),
            done("thinking", "where the template shows earlier reasoning", of="messages.thought"),
            done("redacted_thinking", "`data` names the turn that gave it", of="messages.thought.redacted"),
            done("tool_use", of="messages.tool_use"),
            done("tool_result", of="messages.tool_result"),
            done("tool_reference", "offers a deferred tool", of="messages.tool_reference"),
            done("search_result", of="messages.search_result"),
            done("document", "text is read; a PDF or a file leaves a note", of="messages.document"),
            done("image", "where the model takes images, else refused", of="messages.image", engines={"embedded": "refused"}),
            noted(_SERVERS, "in an assistant's message it is left out"),
        ),
        "type",
    ),
    "messages.text": Table("A block `text`", together(done("type text"), _CACHED, idle("citations", "what was said of an answer"))),
    "messages.thought": Table(
        "A block `thinking`", together(done("type thinking signature", "`signature` names the turn that gave it"))
    ),
    "messages.thought.redacted": Table("A block `redacted_thinking`", together(done("type data"))),
    "messages.tool_use": Table(
        "A block `tool_use`",
        together(done("type id name input"), _CACHED, idle("caller toolset_name", "calls are the model's own")),
    ),
    "messages.tool_result": Table(
        "A block `tool_result`",
        together(
            done("type tool_use_id"),
            done("content", of="messages.block"),
            done("is_error", "the judge reads it"),
            _CACHED,
            idle("toolset_name", "the call has it"),
        ),
    ),
    "messages.tool_reference": Table("A block `tool_reference`", together(done("type tool_name"), _CACHED)),
    "messages.search_result": Table(
        "A block `search_result`",
        together(
            done("type"),
            done("content", of="messages.block"),
            idle("source title", "the model sees the words alone"),
            _CACHED,
            idle("citations", "answers cite nothing"),
        ),
    ),
    "messages.document": Table(
        "A block `document`",
        together(
            done("type"),
            done("source", of="messages.source"),
            idle("title context", "the model sees the words alone"),
            _CACHED,
            idle("citations", "answers cite nothing"),
        ),
    ),
    "messages.source": Table(
        "`source` of a document, by type",
        together(done("text"), done("content", of="messages.source.content"), noted("base64 url file", "no PDF is read")),
        "type",
    ),
    "messages.source.content": Table("`content`", together(done("type"), done("content", of="messages.block"))),
    "messages.image": Table(
        "A block `image`",
        together(
            done("type"),
            done("source", of="messages.image.source"),
            _CACHED,
            idle("transformations", "the engine takes images as they are"),
        ),
    ),
    "messages.image.source": Table(
        "`source` of an image, by type", together(done("base64 url"), noted("file", "no files are kept here")), "type"
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
            never("web_search_* web_fetch_* code_execution_* advisor_* mcp_toolset", "Anthropic's servers run it"),
            ignored("computer_* browser_*", "it acts on screenshots, which no model here was made for"),
            never("tool_search_tool_*", "a deferred tool is offered once a result has named it"),
        ),
        "type",
        "custom",
    ),
    "messages.custom": Table(
        "A tool of the client's",
        together(
            done("type name description input_schema"), idle("input_examples", "the model sees the schema alone"), _TOOL_ABOUT
        ),
    ),
    "messages.client_tool": Table(
        "Anthropic's tools that a client runs",
        together(
            done("type name"),
            done("max_characters", "described to the model"),
            idle("input_examples", "the model sees the schema alone"),
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
        "How it thinks",
        together(
            done("type", "`disabled` switches thinking off, any other on, where the template can"),
            idle("budget_tokens", "a most, which `max_tokens` bounds"),
            idle("display", "reasoning is shown, so that it can come back"),
            idle("block_binding", "signatures here bind nothing"),
        ),
    ),
    "messages.output_config": Table(
        "`output_config`",
        together(
            idle("effort task_budget", "the model has no such switch"),
            done("format", of="messages.format"),
        ),
    ),
    "messages.format": Table("`format`, by type", together(_structured("json_schema")), "type"),
    "messages.metadata": Table("`metadata`", together(done("user_id", "names the conversation where Claude Code wrote it"))),
}
_COMPLETIONS = together(
    done("model", "any name is answered; `NAME@VERSION` pins a version"),
    done("prompt", "text or token ids, one or several; no template is applied"),
    done("stream stop echo return_token_ids"),
    done("stream_options", of="chat.stream_options"),
    done("n", "at most 128, times the prompts"),
    _SAMPLED,
    done("max_tokens", "16 where it is absent, as OpenAI has it; null: what the context has left"),
    done("logprobs", "at most 20; not together with `echo`"),
    done("add_special_tokens"),
    of_engines("chat_template_kwargs reasoning_effort parallel_tool_calls"),
    _CLAIMS,
    [row for row in _OPENAI_IDLE if row.name in ("user", "metadata")],
    _ROUTERS,
    idle("priority request_id", "of vLLM's scheduling"),
    done("best_of", "refused unless it is `n`: choose among the `n` answers"),
    refused("prompt_embeds", "a prompt is text or token ids"),
    refused("suffix", "text is only continued here, never filled in", unless=("",)),
    [row for row in _NOT_OF_CHAT if row.name not in ("echo", "best_of", "add_special_tokens", "chat_template", "documents")],
)
_COUNTED: Final = ("model", "messages", "system", "tools", "tool_choice", "thinking", "chat_template_kwargs", "enable_thinking")
_COUNT = tuple(
    row if row.name in _COUNTED or row.treatment not in ("honoured", "passed on") else Row(row.name, "no effect", "of an answer")
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
