// Vercel AI SDK: generateText with a tool, as its agents loop.
import assert from "node:assert";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";

const provider = createOpenAICompatible({ name: "clawctl", baseURL: process.env.CLAWCTL_URL, apiKey: process.env.CLAWCTL_KEY });
const inputSchema = jsonSchema({ type: "object", properties: { city: { type: "string" } } });
const tools = { look: tool({ description: "looks", inputSchema, execute: async ({ city }) => `sunny in ${city}` }) };
const model = provider("demo");

const messages = [{ role: "user", content: '#rose-1 How is it? [[tool:look {"city":"Paris"}]]' }];
const first = await generateText({ model, tools, messages, stopWhen: stepCountIs(4) });
assert.equal(first.text, "It says: sunny in Paris");
messages.push(...first.response.messages, { role: "user", content: "#rose-2 Tell me more" });
const second = streamText({ model, tools, messages, stopWhen: stepCountIs(4) });
await second.text;
messages.push(...(await second.response).messages, { role: "user", content: "#rose-3 Thanks [[say:Bye]]" });
assert.equal((await generateText({ model, tools, messages, stopWhen: stepCountIs(4) })).text, "Bye");
