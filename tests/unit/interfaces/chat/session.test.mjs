import assert from "node:assert/strict";
import { test } from "node:test";
import { end, foldChunk, stop } from "../../../../interfaces/http/pages/files/chat/answer.js";
import { blankSettings, newConversation } from "../../../../interfaces/http/pages/files/chat/conversation.js";
import { Session } from "../../../../interfaces/http/pages/files/chat/session.js";
import { Shelf } from "../../../../interfaces/http/pages/files/chat/shelf.js";

/** A session whose requests the test answers by hand. */
function chat() {
  const asked = [];
  const told = [];
  const waits = [];
  const shelf = new Shelf(null);
  let number = 0;
  const session = new Session(shelf, {
    request: (request) =>
      new Promise((resolve) => {
        const done = (how) => {
          how(request.answer);
          resolve();
        };
        request.signal.addEventListener("abort", () => done(stop));
        const say = (content) => {
          foldChunk(request.answer, { choices: [{ delta: { content } }] }, 1);
          request.onChange();
        };
        const finish = () => done((answer) => {
          foldChunk(answer, { choices: [{ delta: {}, finish_reason: "stop" }] }, 2);
          end(answer);
        });
        asked.push({ ...request, say, finish });
      }),
    newId: () => `c${(number += 1)}`,
    nowMs: () => number,
    later: (ms, then) => waits.push(then),
    onChange: (what) => told.push(what),
    onUnkept: () => {},
    servers: () => null,
  });
  return { session, shelf, asked, told, waits };
}

const settled = () => new Promise((resolve) => setImmediate(resolve));
const contents = ({ current }) => current.turns.map((turn) => turn.content);

test("a question is asked, its answer grows and ends", async () => {
  const { session, asked, told } = chat();
  session.ask("a");
  assert.ok(session.isRunning());
  asked[0].onProgress("queued");
  assert.equal(session.progress(), "queued");
  asked[0].say("x");
  assert.equal(session.progress(), "");
  session.ask("too early");
  asked[0].finish();
  await settled();
  assert.ok(!session.isRunning());
  assert.deepEqual(contents(session), ["a", "x"]);
  assert.equal(told.at(-1), "turns");
});

test("what came before a stop stays, and can be gone on with", async () => {
  const { session, asked } = chat();
  session.ask("a");
  asked[0].say("half");
  session.stop();
  await settled();
  assert.equal(session.current.turns[1].state, "stopped");
  session.goOn();
  assert.equal(asked[1].body.continue_final_message, true);
  assert.equal(asked[1].body.messages[1].content, "half");
  asked[1].say(" and half");
  asked[1].finish();
  await settled();
  assert.deepEqual(contents(session), ["a", "half and half"]);
});

test("an answer is made anew from the same question", async () => {
  const { session, asked } = chat();
  session.ask("a");
  asked[0].say("x");
  asked[0].finish();
  await settled();
  session.regenerate();
  assert.deepEqual(asked[1].body, asked[0].body);
  assert.deepEqual(contents(session), ["a", ""]);
});

test("the answer before stays beside the new one, and what follows goes with its own", async () => {
  const { session, asked } = chat();
  const answered = async (content) => {
    asked.at(-1).say(content);
    asked.at(-1).finish();
    await settled();
  };
  session.ask("a");
  await answered("x");
  session.regenerate();
  await answered("y");
  session.ask("b");
  await answered("z");
  session.turnTo(1, -1);
  assert.deepEqual(contents(session), ["a", "x"]);
  session.ask("c");
  assert.deepEqual(asked.at(-1).body.messages.map((message) => message.content), ["a", "x", "c"]);
  session.turnTo(1, 1);
  assert.deepEqual(contents(session), ["a", "x", "c", ""], "not while an answer comes");
  await answered("w");
  session.turnTo(1, 1);
  assert.deepEqual(contents(session), ["a", "y", "b", "z"]);
  session.turnTo(1, 1);
  session.turnTo(1, -1);
  assert.deepEqual(contents(session), ["a", "x", "c", "w"]);
});

test("an answer that never began leaves no branch", async () => {
  const { session, asked } = chat();
  session.ask("a");
  session.stop();
  await settled();
  session.regenerate();
  asked.at(-1).say("x");
  asked.at(-1).finish();
  await settled();
  assert.equal(session.current.turns[1].others, undefined);
});

test("imported conversations join those that are here, as far as there is room", () => {
  const { session, shelf } = chat();
  const of = (id, changedMs) => ({ ...newConversation(id, blankSettings(), changedMs), turns: [{ role: "user", content: id }] });
  shelf.save(of("known", 5));
  assert.deepEqual(session.takeIn([of("old", 1), of("known", 9), of("new", 7)]), { numNew: 2, numKnown: 1, numUnkept: 0 });
  assert.deepEqual(session.all().map(({ id }) => id), ["new", "known", "old"]);
  const large = of("large", 8);
  large.turns[0].content = "x".repeat(2_100_000);
  assert.deepEqual(session.takeIn([large]), { numNew: 0, numKnown: 0, numUnkept: 1 });
});

test("an answer goes on while another conversation is open, and its words go to its own", async () => {
  const { session, asked, told } = chat();
  session.ask("a");
  const first = session.current.id;
  session.startNew();
  assert.ok(!session.isRunning());
  told.length = 0;
  asked[0].say("x");
  assert.deepEqual(told, []);
  session.open(first);
  assert.ok(session.isRunning());
  assert.deepEqual(contents(session), ["a", "x"]);
});

test("who deletes a conversation stops its answer, and it does not come back", async () => {
  const { session, shelf, asked, waits } = chat();
  session.ask("a");
  asked[0].say("x");
  session.remove(session.current.id);
  assert.ok(asked[0].signal.aborted);
  waits.forEach((then) => then());
  await settled();
  assert.deepEqual(shelf.all(), []);
  assert.deepEqual(session.current.turns, []);
});

test("while an answer streams it is saved now and then, not for each piece", () => {
  const { session, asked, waits } = chat();
  session.ask("a");
  for (let i = 0; i < 9; i += 1) asked[0].say("x");
  assert.equal(waits.length, 1);
  waits[0]();
  asked[0].say("x");
  assert.equal(waits.length, 2);
});

test("what another tab wrote is shown, but not over an answer that streams here or there", async () => {
  const { session, shelf, asked } = chat();
  session.ask("a");
  const { id } = session.current;
  const key = `cairn.conversation.${id}`;
  const theirs = (state) => JSON.stringify({ ...session.current, title: "Theirs", turns: [{ ...asked[0].answer, state }] });
  session.hear(key, theirs("done"));
  assert.equal(session.current.title, "");
  asked[0].finish();
  await settled();
  session.hear(key, theirs("streaming"));
  assert.equal(session.current.title, "");
  session.hear(key, theirs("done"));
  assert.equal(session.current.title, "Theirs");
  session.hear(key, null);
  assert.notEqual(session.current.id, id);
  assert.deepEqual(shelf.all(), []);
});
