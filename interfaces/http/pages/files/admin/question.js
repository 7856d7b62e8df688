// A question before something is gone, or much is begun. A real dialog: what is behind it cannot be reached, Escape answers no, and the
// focus returns to the button that asked.

import { byId } from "../shared/dom.js";

/**
 * @param {{title: string, text: string, yes: string, no?: string}} asked `no`: where nothing is lost
 * @returns {Promise<boolean>}
 */
export function question({ title, text, yes, no }) {
  const dialog = byId("question");
  byId("question-title").textContent = title;
  byId("question-text").textContent = text;
  byId("question-yes").textContent = yes;
  byId("question-yes").classList.toggle("danger", no === undefined);
  byId("question-no").textContent = no ?? "Keep";
  dialog.returnValue = "";
  return new Promise((resolve) => {
    byId("question-yes").onclick = () => dialog.close("yes");
    byId("question-no").onclick = () => dialog.close("");
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
    dialog.showModal();
    byId("question-no").focus();
  });
}

let timer = 0;

/** Shows the result of an action for some seconds. */
export function tell(text) {
  const notice = byId("notice");
  notice.textContent = text;
  clearTimeout(timer);
  timer = setTimeout(() => {
    notice.textContent = "";
  }, 8000);
}
