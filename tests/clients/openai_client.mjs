// What the openai package for Node does with a server: `node openai_client.mjs NAME` runs one of the functions below
// and prints what it saw as one line of JSON. Asserts nothing: test_openai_node.py does.
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: process.env.API_KEY, maxRetries: 0 });
const asked = {
  model: "m",
  messages: [{ role: "user", content: "Name three colours. 한글도 괜찮아요 🙂" }],
  temperature: 0,
  max_tokens: 24,
};
const pick = {
  type: "function",
  function: {
    name: "pick",
    description: "Picks a pet.",
    parameters: {
      type: "object",
      properties: { kind: { type: "string", enum: ["cat", "dog"] }, old: { type: "boolean" } },
      required: ["kind", "old"],
      additionalProperties: false,
    },
  },
};
const named = { type: "function", function: { name: "pick" } };

const runs = {
  async models() {
    const ids = [];
    for await (const model of client.models.list()) ids.push(model.id);
    return { ids, one: (await client.models.retrieve("m")).id };
  },

  async chat() {
    return await client.chat.completions.create(asked);
  },

  async stream() {
    const chunks = [];
    const options = { stream: true, stream_options: { include_usage: true } };
    for await (const chunk of await client.chat.completions.create({ ...asked, ...options })) chunks.push(chunk);
    return chunks;
  },

  async helper() {
    const deltas = [];
    const stream = client.chat.completions.stream(asked).on("content", (delta) => deltas.push(delta));
    return { final: await stream.finalChatCompletion(), deltas, usage: await stream.totalUsage() };
  },

  async completions() {
    const body = { model: "m", prompt: ["one two", "three four"], max_tokens: 8, temperature: 0 };
    const whole = await client.completions.create(body);
    const texts = ["", ""];
    for await (const chunk of await client.completions.create({ ...body, stream: true }))
      texts[chunk.choices[0].index] += chunk.choices[0].text;
    return { whole: whole.choices.map((choice) => choice.text), texts };
  },

  async leave() {
    let seen = 0;
    const body = { ...asked, max_tokens: 1500, stream: true, n: 2, ignore_eos: true };
    for await (const _ of await client.chat.completions.create(body)) if (++seen === 3) break;
    return { seen };
  },

  async tools() {
    const calls = [];
    const tool = { ...pick, function: { ...pick.function, parse: JSON.parse, function: (args) => calls.push(args) } };
    const body = { ...asked, tools: [tool], tool_choice: named, max_tokens: 200 };
    const runner = client.chat.completions.runTools(body);
    const last = await runner.finalFunctionToolCall();
    const streamed = client.chat.completions.runTools({ ...body, stream: true });
    return { calls, last, streamed: await streamed.finalFunctionToolCall() };
  },

  async deltas() {
    const found = [];
    const body = { ...asked, tools: [pick], tool_choice: "required", max_tokens: 200, stream: true };
    body.parallel_tool_calls = false;
    for await (const chunk of await client.chat.completions.create(body))
      for (const delta of chunk.choices[0].delta.tool_calls ?? []) found.push(delta);
    return found;
  },

  async parsed() {
    const Colour = z.object({ name: z.enum(["red", "blue"]), bright: z.boolean() });
    const body = { ...asked, max_tokens: 200, response_format: zodResponseFormat(Colour, "colour") };
    const answer = await client.chat.completions.parse(body);
    return answer.choices[0].message.parsed;
  },

  async errors() {
    const found = {};
    const attempts = {
      temperature: () => client.chat.completions.create({ ...asked, temperature: 9 }),
      model: () => client.chat.completions.create({ ...asked, model: "other" }),
      stream: () => client.chat.completions.create({ ...asked, n: 0, stream: true }),
      key: () => client.withOptions({ apiKey: "wrong" }).models.list(),
    };
    for (const [name, attempt] of Object.entries(attempts))
      try {
        await attempt();
      } catch (error) {
        found[name] = { kind: error.constructor.name, status: error.status, param: error.param, code: error.code };
        found[name].has_id = Boolean(error.requestID);
      }
    return found;
  },

  async embeddings() {
    const answer = await client.embeddings.create({ model: "m", input: ["one", "two"] });
    return { num: answer.data.length, same: answer.data[0].embedding.length === answer.data[1].embedding.length };
  },
};

process.stdout.write(JSON.stringify(await runs[process.argv[2]]()) + "\n");
