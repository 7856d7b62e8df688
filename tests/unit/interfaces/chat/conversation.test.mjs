import assert from "node:assert/strict";
import { test } from "node:test";
import { newAnswer } from "../../../../interfaces/http/pages/files/chat/answer.js";
import { ask, blankSettings, isLeftOut, newConversation, requestBody, titleOf } from "../../../../interfaces/http/pages/files/chat/conversation.js";
import { turnTo } from "../../../../interfaces/http/pages/files/chat/branches.js";
import { allAsJson, asJson, asMarkdown, fileName, imported } from "../../../../interfaces/http/pages/files/chat/export.js";

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

test("text files come before the words, as blocks with their names", () => {
  const made = conversation({});
  ask(made, "Why?", undefined, { files: [{ name: "a.md", text: "```\nx\n```" }] });
  assert.equal(requestBody(made).messages[0].content, "File a.md:\n\n````\n```\nx\n```\n````\n\nWhy?");
  ask(made, "", 0, { files: [{ name: "b.txt", text: "y" }] });
  assert.equal(titleOf(made), "b.txt");
});

test("PDF files are parts before the words, and one that is gone is named", () => {
  const made = conversation({});
  const url = "data:application/pdf;base64,JVBERg==";
  ask(made, "Why?", undefined, { files: [{ name: "a.pdf", url, size: 4 }, { name: "b.txt", text: "y" }, { name: "c.pdf", size: 9, gone: true }] });
  assert.deepEqual(requestBody(made).messages[0].content, [
    { type: "file", file: { filename: "a.pdf", file_data: url } },
    { type: "text", text: "[the file c.pdf, which is no longer kept]\n" },
    { type: "text", text: "File b.txt:\n\n```\ny\n```\n\nWhy?" },
  ]);
  assert.equal(imported(asJson(made)).conversations.length, 1);
  made.turns[0].files[0].url = "https://elsewhere.example/a.pdf";
  assert.equal(imported(asJson(made)).numBad, 1);
});

test("an edited question replaces all that followed, which stays as a branch", () => {
  const made = conversation({}, question("a"), answer({ content: "x" }), question("b"), answer({ content: "y" }));
  ask(made, "c", 2);
  assert.deepEqual(made.turns.map((turn) => turn.content), ["a", "x", "c"]);
  turnTo(made.turns, 2, -1);
  assert.deepEqual(made.turns.map((turn) => turn.content), ["a", "x", "b", "y"]);
  turnTo(made.turns, 2, 1);
  turnTo(made.turns, 2, 1);
  assert.deepEqual(requestBody(made).messages.map((message) => message.content), ["a", "x", "c"]);
});

test("images come before the words of their question, and those that are gone are told", () => {
  const url = "data:image/png;base64,AAAA";
  const made = conversation({});
  ask(made, "what?", undefined, { pictures: [{ url, width: 1, height: 1 }, { gone: true }] });
  const shown = [{ type: "image_url", image_url: { url } }, { type: "text", text: "[an image that is no longer kept]\n" }];
  assert.deepEqual(requestBody(made).messages, [{ role: "user", content: [...shown, { type: "text", text: "what?" }] }]);
  made.turns.push(answer({ state: "broken" }));
  ask(made, "and?");
  assert.deepEqual(requestBody(made).messages, [{ role: "user", content: "and?" }]);
  ask(made, " ", 0, { pictures: [{ url, width: 1, height: 1 }] });
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

test("exported conversations are imported as they were, with their branches, and nothing else is", () => {
  const made = conversation({ temperature: 0.5, tools: "[]" }, question("a"), answer({ content: "x" }));
  ask(made, "b", 0);
  made.turns.push(answer({ content: "y" }));
  for (const text of [asJson(made), allAsJson([made])]) {
    assert.deepEqual(imported(text), { conversations: [made], numBad: 0 });
  }
  for (const text of ["", "[]", "null", '{"format":"other"}', '{"format":"cairn.conversations.v1"}']) assert.equal(imported(text), null);
});

test("what is imported is not believed", () => {
  const of = (fields) => JSON.parse(JSON.stringify({ ...conversation({}, question("a"), answer({ content: "x" })), ...fields }));
  const first = (one) => imported(allAsJson([one])).conversations[0];
  const settings = first(of({ settings: { system: 5, temperature: "hot", topP: 0.5, tools: "no JSON", model: "m" } })).settings;
  assert.deepEqual(settings, { ...blankSettings(), topP: 0.5, model: "m" });
  const hurt = first(of({ turns: [question("a"), { ...answer({ content: "x" }), usage: "many", cache: 7, state: "odd", calls: [{ id: 1 }] }] })).turns[1];
  assert.deepEqual([hurt.usage, hurt.cache, hurt.state, hurt.calls], [null, "", "broken", []]);
  const others = (branch) => of({ turns: [{ ...question("a"), others: [branch], place: 0 }] });
  const bad = [null, 5, { id: "x" }, others([answer({})]), others([]), others([{ role: "user" }]), of({ turns: [{ ...question("a"), files: [{ name: "x" }] }] })];
  assert.equal(imported(allAsJson(bad)).numBad, bad.length);
  const deep = `{"format":"cairn.conversation.v1","id":${"[".repeat(50_000)}${"]".repeat(50_000)}}`;
  assert.equal(imported(deep)?.conversations.length ?? 0, 0);
});
