// Markdown that is still being written, in an element: what is complete is never touched again, only the last block is
// made anew. So a frame costs what its last block costs, however long the answer is.
//
// Now and then later text changes what came before (a link's address is defined at the end): `finish` looks once more
// at the whole and starts over if so.
import { finishBlock } from "./finished_block.js";
import { blocks } from "./markdown.js";
import { blockNode, codeBlock, languageOf } from "./token_nodes.js";

export class GrowingMarkdown {
  #element;
  #text = "";
  #settled = []; // raw text of each block that is complete
  #numSettledChars = 0;
  #open = null; // the node of the last block
  #openCode = null; // and what it is of, where it is code
  #isFinished = false;

  constructor(element) {
    this.#element = element;
  }

  /** @param {string} text all of it, with what was there before as its beginning */
  update(text) {
    const clean = text.replaceAll("\r", "");
    if (clean === this.#text) return;
    if (!clean.startsWith(this.#text)) this.#startOver();
    this.#text = clean;
    this.#isFinished = false;
    this.#add(blocks(clean.slice(this.#numSettledChars)));
  }

  /** The text is whole. */
  finish() {
    if (this.#isFinished) return;
    this.#isFinished = true;
    this.#lookAtWhole();
    if (this.#open !== null) finishBlock(this.#open);
  }

  #lookAtWhole() {
    const found = blocks(this.#text);
    const isSame = this.#settled.every((raw, at) => found[at]?.raw === raw);
    if (isSame && !found.definesLinks) return;
    const text = this.#text;
    this.#startOver();
    this.#text = text;
    this.#add(found);
  }

  #add(found) {
    const last = found.findLastIndex((block) => block.type !== "space");
    for (const block of found.slice(0, Math.max(last, 0))) {
      this.#show(block);
      this.#settle(block);
    }
    if (last >= 0) this.#show(found[last]);
  }

  #show(block) {
    if (block.type === "space") return;
    const isCode = block.type === "code";
    if (isCode && this.#openCode?.language === languageOf(block)) {
      this.#openCode.text = block.text;
      return;
    }
    this.#openCode = isCode ? codeBlock(block) : null;
    const node = this.#openCode?.element ?? blockNode(block);
    if (this.#open === null) this.#element.append(node);
    else this.#open.replaceWith(node);
    this.#open = node;
  }

  #settle(block) {
    this.#settled.push(block.raw);
    this.#numSettledChars += block.raw.length;
    if (this.#open !== null) finishBlock(this.#open);
    this.#open = null;
    this.#openCode = null;
  }

  #startOver() {
    this.#element.replaceChildren();
    this.#text = "";
    this.#settled = [];
    this.#numSettledChars = 0;
    this.#open = null;
    this.#openCode = null;
  }
}
