import assert from "node:assert/strict";
import { test } from "node:test";
import { newAnswer } from "../../../../interfaces/http/pages/files/chat/answer.js";
import { ask, blankSettings, isLeftOut, newConversation, requestBody, titleOf } from "../../../../interfaces/http/pages/files/chat/conversation.js";
import { asJson, asMarkdown, fileName } from "../../../../interfaces/http/pages/files/chat/export.js";

const answer = (fields) => ({ ...newAnswer("m"), state: "done", ...fields });

function conversation(settings, ...turns) {
  const made = newConversation("c1", { ...blankSettings(), ...settings }, 5);
  made.turns.push(...turns);
  return made;
}

const question = (content) => ({ role: "user", content });

test("blank settings are left to the server", () => {
  assert.deepEqual(requestBody(conversation({}, question("hi"))), { messages: [{ role: "user", content: "hi" }] });
});

test("settings get their wire names", () => {
  const settings = { model: "m", system: "be brief", temperature: 0, topP: 0.5, maxTokens: 7, seed: 0 };
  assert.deepEqual(requestBody(conversation(settings, question("hi"))), {
    messages: [{ role: "system", content: "be brief" }, { role: "user", content: "hi" }],
    model: "m", temperature: 0, top_p: 0.5, max_tokens: 7, seed: 0,
  });
});

test("earlier answers are told whole, and a last one is to be gone on with", () => {
  const calls = [{ id: "c0", name: "look", arguments: "{}" }];
  const body = requestBody(conversation({}, question("a"), answer({ reasoning: "hm", calls }), question("b"), answer({ content: "half" })));
  assert.deepEqual(body.messages[1], {
    role: "assistant", content: null, reasoning_content: "hm",
    tool_calls: [{ id: "c0", type: "function", function: { name: "look", arguments: "{}" } }],
  });
  assert.equal(body.continue_final_message, true);
});

test("a question whose answer never began is asked while it is the last, and then no more", () => {
  const turns = [question("a"), answer({ content: "x" }), question("refused")];
  assert.equal(requestBody(conversation({}, ...turns)).messages.at(-1).content, "refused");
  for (const state of ["broken", "stopped", "done"]) {
    const made = conversation({}, ...turns, answer({ state }), question("b"));
    assert.deepEqual(requestBody(made).messages.map((message) => message.content), ["a", "x", "b"]);
    assert.deepEqual(made.turns.map((_, at) => isLeftOut(made.turns, at)), [false, false, false, true, false]);
  }
  const begun = conversation({}, question("a"), answer({ state: "broken", reasoning: "hm" }), question("b"));
  assert.deepEqual(requestBody(begun).messages[1], { role: "assistant", content: "", reasoning_content: "hm" });
});

test("an edited question replaces all that followed", () => {
  const made = conversation({}, question("a"), answer({ content: "x" }), question("b"), answer({ content: "y" }));
  ask(made, "c", 2);
  assert.deepEqual(made.turns.map((turn) => turn.content), ["a", "x", "c"]);
});

test("images come before the words of their question, and those that are gone are told", () => {
  const url = "data:image/png;base64,AAAA";
  const made = conversation({});
  ask(made, "what?", undefined, [{ url, width: 1, height: 1 }, { gone: true }]);
  const shown = [{ type: "image_url", image_url: { url } }, { type: "text", text: "[an image that is no longer kept]\n" }];
  assert.deepEqual(requestBody(made).messages, [{ role: "user", content: [...shown, { type: "text", text: "what?" }] }]);
  made.turns.push(answer({ state: "broken" }));
  ask(made, "and?");
  assert.deepEqual(requestBody(made).messages, [{ role: "user", content: "and?" }]);
  ask(made, " ", 0, [{ url, width: 1, height: 1 }]);
  assert.deepEqual(requestBody(made).messages, [{ role: "user", content: [shown[0]] }]);
  assert.equal(titleOf(made), "Images");
});

test("the title is the first question, shortened, until somebody gives one", () => {
  const made = conversation({}, question(`  what \n is ${"very ".repeat(50)}long?`));
  assert.ok(titleOf(made).startsWith("what is very") && titleOf(made).length === 80);
  made.title = "Mine";
  assert.equal(titleOf(made), "Mine");
});

test("a conversation is exported whole, and its file has a name for every file system", () => {
  const made = conversation({ system: "be brief" }, question("../a/b?"), answer({ content: "text", reasoning: "hm", calls: [{ id: "1", name: "f", arguments: "```" }] }));
  assert.deepEqual(JSON.parse(asJson(made)), { format: "cairn.conversation.v1", ...made });
  for (const part of ["be brief", "../a/b?", "text", "hm", "````json\n```\n````"]) assert.ok(asMarkdown(made).includes(part), part);
  assert.equal(fileName(made, "md"), "a-b.md");
  assert.equal(fileName(conversation({}, question("///")), "json"), "conversation.json");
});
