// Branches of a conversation: what is asked or answered anew stands beside what was there, with all that followed it.
//
// The turns of a conversation are the branch that is shown. A turn where others begin has them as `others`, each a list
// of turns, in the order in which they were made, and its own `place` among them.
import { isEmpty } from "./answer.js";

const MAX_OTHERS = 20; // of one turn; the oldest goes

/** Every turn, also of branches that are not shown. */
export function* everyTurn(turns) {
  for (const turn of turns) {
    yield turn;
    for (const branch of turn.others ?? []) yield* everyTurn(branch);
  }
}

/** The same turns, each changed, also in branches that are not shown. */
export function changedTurns(turns, change) {
  return turns.map((turn) => {
    const made = change(turn);
    return turn.others === undefined ? made : { ...made, others: turn.others.map((branch) => changedTurns(branch, change)) };
  });
}

/** Puts `turn` in the place of what begins at `at`, which becomes a branch beside it if the model has answered there. */
export function fork(turns, at, turn) {
  const replaced = turns.splice(at);
  const others = [];
  if (replaced.length > 0) {
    const { others: older = [], place = older.length } = replaced[0];
    const isKept = replaced.some((one) => one.role === "assistant" && !isEmpty(one));
    others.push(...older.slice(0, place), ...(isKept ? [replaced] : []), ...older.slice(place));
    delete replaced[0].others;
    delete replaced[0].place;
  }
  const kept = others.slice(-MAX_OTHERS);
  if (kept.length > 0) Object.assign(turn, { others: kept, place: kept.length });
  turns.push(turn);
}

/** Shows the branch that is `step` places beside the one that begins at `at`. */
export function turnTo(turns, at, step) {
  const { others = [], place = 0 } = turns[at] ?? {};
  const wanted = place + step;
  if (wanted < 0 || wanted > others.length) return;
  const shown = turns.splice(at);
  delete shown[0].others;
  delete shown[0].place;
  const all = [...others.slice(0, place), shown, ...others.slice(place)];
  const [next] = all.splice(wanted, 1);
  Object.assign(next[0], { others: all, place: wanted });
  turns.push(...next);
}
