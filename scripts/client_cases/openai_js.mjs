// openai for JavaScript: chat completions and Responses with tools, streamed and not.
import assert from "node:assert";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.CLAWCTL_URL, apiKey: process.env.CLAWCTL_KEY });
const parameters = { type: "object", properties: { city: { type: "string" } } };
const order = 'How is it? [[think]] [[tool:look {"city":"Paris"}]]';

const messages = [{ role: "user", content: `#chat-1 ${order}` }];
const tools = [{ type: "function", function: { name: "look", parameters } }];
const first = await client.chat.completions.stream({ model: "demo", messages, tools }).finalMessage();
messages.push(first, { role: "tool", tool_call_id: first.tool_calls[0].id, content: "sunny" });
const second = (await client.chat.completions.create({ model: "demo", messages, tools })).choices[0].message;
assert.equal(second.content, "It says: sunny");
messages.push(second, { role: "user", content: "#chat-2 Thanks [[say:Bye]]" });
assert.equal((await client.chat.completions.create({ model: "demo", messages, tools })).choices[0].message.content, "Bye");

const input = [{ role: "user", content: `#responses-1 ${order}` }];
const offered = [{ type: "function", name: "look", parameters, strict: false }];
const begun = await client.responses.stream({ model: "demo", input, tools: offered }).finalResponse();
const call = begun.output.find((item) => item.type === "function_call");
input.push(...begun.output, { type: "function_call_output", call_id: call.call_id, output: "sunny" });
const answered = await client.responses.create({ model: "demo", input, tools: offered });
assert.equal(answered.output_text, "It says: sunny");
const bye = { model: "demo", input: "#responses-2 Thanks [[say:Bye]]", previous_response_id: answered.id, tools: offered };
assert.equal((await client.responses.create(bye)).output_text, "Bye");
