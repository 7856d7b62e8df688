import assert from "node:assert/strict";
import { test } from "node:test";
import { newAnswer } from "../../../../interfaces/http/pages/files/chat/answer.js";
import { blankSettings, newConversation } from "../../../../interfaces/http/pages/files/chat/conversation.js";
import { MAX_CHARS, MAX_CONVERSATIONS, Shelf } from "../../../../interfaces/http/pages/files/chat/shelf.js";

/** A Storage with room for so many characters. */
class FakeStorage {
  #kept = new Map();
  constructor(room = Infinity) {
    this.room = room;
  }
  get length() {
    return this.#kept.size;
  }
  key(at) {
    return [...this.#kept.keys()][at];
  }
  getItem(key) {
    return this.#kept.get(key) ?? null;
  }
  setItem(key, text) {
    const others = [...this.#kept].reduce((sum, [name, value]) => (name === key ? sum : sum + value.length), 0);
    if (others + text.length > this.room) throw new Error("QuotaExceededError");
    this.#kept.set(key, text);
  }
  removeItem(key) {
    this.#kept.delete(key);
  }
}

function conversation(number, numChars = 10) {
  const made = newConversation(`c${number}`, blankSettings(), number);
  made.turns.push({ role: "user", content: "x".repeat(numChars) });
  return made;
}

const ids = (shelf) => shelf.all().map(({ id }) => id);

test("what is saved is there after a reload, the latest first", () => {
  const storage = new FakeStorage();
  const shelf = new Shelf(storage);
  for (const number of [2, 1, 3]) assert.deepEqual(shelf.save(conversation(number)), { isKept: true, numDropped: 0, numForgotten: 0 });
  assert.deepEqual(ids(new Shelf(storage)), ["c3", "c2", "c1"]);
  assert.deepEqual(new Shelf(storage).get("c2"), conversation(2));
  shelf.remove("c2");
  assert.deepEqual(ids(new Shelf(storage)), ["c3", "c1"]);
});

test("the oldest go when there are too many", () => {
  const storage = new FakeStorage();
  const shelf = new Shelf(storage);
  for (let number = 0; number <= MAX_CONVERSATIONS; number += 1) shelf.save(conversation(number));
  assert.equal(ids(new Shelf(storage)).length, MAX_CONVERSATIONS);
  assert.equal(shelf.get("c0"), undefined);
});

test("the oldest go when they are too long together", () => {
  const storage = new FakeStorage();
  const shelf = new Shelf(storage);
  for (const number of [1, 2, 3]) shelf.save(conversation(number, MAX_CHARS / 2 - 1000));
  assert.deepEqual(ids(new Shelf(storage)), ["c3", "c2"]);
});

test("the oldest go when the browser has no room, and one that never fits is kept in memory only", () => {
  const storage = new FakeStorage(3000);
  const shelf = new Shelf(storage);
  for (const number of [1, 2]) shelf.save(conversation(number, 1000));
  assert.deepEqual(shelf.save(conversation(3, 1000)), { isKept: true, numDropped: 1, numForgotten: 0 });
  assert.deepEqual(ids(new Shelf(storage)), ["c3", "c2"]);
  assert.equal(shelf.save(conversation(4, 5000)).isKept, false);
  assert.ok(shelf.get("c4"));
  assert.equal(new Shelf(storage).get("c4"), undefined);
});

test("without storage conversations last as long as the page", () => {
  const shelf = new Shelf(null);
  assert.equal(shelf.save(conversation(1)).isKept, false);
  assert.deepEqual(ids(shelf), ["c1"]);
});

test("an answer that was streaming is broken after a reload, with what came", () => {
  const storage = new FakeStorage();
  const made = conversation(1);
  made.turns.push({ ...newAnswer("m"), content: "half" });
  new Shelf(storage).save(made);
  const answer = new Shelf(storage).get("c1").turns[1];
  assert.equal(answer.state, "broken");
  assert.equal(answer.content, "half");
});

test("what is no conversation is removed, and what is somebody else's stays", () => {
  const storage = new FakeStorage();
  const damaged = ["{", "null", '{"id":"c1","title":"","changedMs":1,"turns":[{"role":"assistant","content":"x"}]}', '{"id":"other"}'];
  damaged.forEach((text, at) => storage.setItem(`cairn.conversation.c${at}`, text));
  storage.setItem("cairn.theme", "dark");
  assert.deepEqual(ids(new Shelf(storage)), []);
  assert.equal(storage.length, 1);
});

test("one that is too long costs the others nothing, and one that fits costs no more than its room", () => {
  const storage = new FakeStorage(3000);
  const shelf = new Shelf(storage);
  for (const number of [1, 2, 3, 4, 5]) shelf.save(conversation(number, 300));
  assert.deepEqual(shelf.save(conversation(9, MAX_CHARS)), { isKept: false, numDropped: 0, numForgotten: 0 });
  assert.deepEqual(shelf.save(conversation(6, 400)), { isKept: true, numDropped: 1, numForgotten: 0 });
});

test("a browser that refuses everything by now loses no more than the room that was needed", () => {
  const storage = new FakeStorage();
  const shelf = new Shelf(storage);
  for (const number of [1, 2, 3]) shelf.save(conversation(number, 1000));
  storage.room = 0;
  assert.deepEqual(shelf.save(conversation(4, 900)), { isKept: false, numDropped: 1, numForgotten: 0 });
});

test("what another tab wrote is taken over, and what it removed goes", () => {
  const shelf = new Shelf(new FakeStorage());
  shelf.save(conversation(1));
  assert.equal(shelf.idOf("cairn.conversation.c1"), "c1");
  assert.equal(shelf.idOf("cairn.theme"), null);
  assert.equal(shelf.idOf(null), null);
  shelf.hear("c1", JSON.stringify({ ...conversation(1), title: "Theirs" }));
  assert.equal(shelf.get("c1").title, "Theirs");
  shelf.hear("c1", "{");
  assert.equal(shelf.get("c1").title, "Theirs");
  shelf.hear("c1", null);
  assert.equal(shelf.get("c1"), undefined);
});

test("an answer of an older page gets what it lacks", () => {
  const storage = new FakeStorage();
  const made = { ...conversation(1), turns: [{ role: "assistant", state: "done", content: "x", reasoning: "", calls: [] }] };
  storage.setItem("cairn.conversation.c1", JSON.stringify(made));
  assert.deepEqual(new Shelf(storage).get("c1").turns[0], { ...newAnswer(""), state: "done", content: "x" });
});

const picture = (numChars) => ({ url: `data:image/png;base64,${"A".repeat(numChars)}`, width: 1, height: 1 });

function pictured(number, ...pictures) {
  const made = newConversation(`c${number}`, blankSettings(), number);
  made.turns.push({ role: "user", content: "look", pictures });
  return made;
}

const gone = ({ turns }) => turns[0].pictures.map((one) => one.gone ?? false);

test("older conversations lose their images before any is dropped", () => {
  const storage = new FakeStorage();
  const shelf = new Shelf(storage);
  const saved = [1, 2, 3].map((number) => shelf.save(pictured(number, picture(900_000))));
  const many = pictured(4, picture(900_000), picture(800_000));
  saved.push(shelf.save(many));
  assert.deepEqual(saved.map((one) => [one.isKept, one.numDropped, one.numForgotten]), [[true, 0, 0], [true, 0, 0], [true, 0, 1], [true, 0, 1]]);
  assert.deepEqual(gone(many), [false, false]);
  const again = new Shelf(storage);
  assert.deepEqual(again.all().map(gone), [[false, true], [false], [true], [true]]);
});

test("older conversations lose their PDF files before any is removed, and keep their names", () => {
  const shelf = new Shelf(new FakeStorage());
  const file = { name: "a.pdf", url: `data:application/pdf;base64,${"A".repeat(1_200_000)}`, size: 900_000 };
  const made = [1, 2].map((number) => pictured(number));
  for (const one of made) one.turns[0].files = [{ ...file }];
  const saved = made.map((one) => shelf.save(one));
  assert.deepEqual(saved.map((one) => [one.isKept, one.numDropped, one.numForgotten]), [[true, 0, 0], [true, 0, 1]]);
  assert.deepEqual(made.map((one) => one.turns[0].files[0]), [{ name: "a.pdf", size: 900_000, gone: true }, file]);
});

test("what is no picture makes what holds it no conversation", () => {
  const storage = new FakeStorage();
  new Shelf(storage).save(pictured(1, { url: "https://elsewhere.example/a.png", width: 1, height: 1 }));
  assert.deepEqual(new Shelf(storage).all(), []);
});

test("images of branches that are not shown are counted, and go when there is no room", () => {
  const storage = new FakeStorage();
  const shelf = new Shelf(storage);
  const made = conversation(1);
  const picture = () => ({ url: `data:image/png;base64,${"A".repeat(900_000)}`, width: 1, height: 1 });
  const branch = [{ role: "user", content: "b", pictures: [picture()] }, { ...newAnswer("m"), content: "x", state: "done" }];
  made.turns.push({ role: "user", content: "c", pictures: [picture()], others: [branch], place: 1 });
  assert.ok(shelf.save(made).isKept);
  const pictures = (turn) => [turn.pictures[0].gone ?? false, turn.others[0][0].pictures[0].gone ?? false];
  assert.deepEqual(pictures(made.turns[1]), [false, false]);
  const kept = new Shelf(storage).get("c1").turns[1];
  assert.equal(pictures(kept).filter(Boolean).length, 1, "not both fit");
  assert.equal(kept.others[0][1].content, "x");
  shelf.save(conversation(2, 1_200_000));
  assert.deepEqual(pictures(new Shelf(storage).get("c1").turns[1]), [true, true]);
});
