// The images of a question that is being written: shown small, each with a button that removes it.
import { h } from "../shared/dom.js";

const MAX_PICTURES = 8; // of one question

export class Attachments {
  element = h("ul", { class: "pictures attached", "aria-label": "Images of the question", hidden: true });
  #pictures;
  #onProblem;
  /** Ends when all files have been read. */
  reading = Promise.resolve();

  /** @param {(words: string) => void} onProblem empty for none */
  constructor(onProblem, pictures = []) {
    this.#onProblem = onProblem;
    this.#pictures = [...pictures];
    this.#show();
  }

  get pictures() {
    return [...this.#pictures];
  }

  /** @param {Iterable<File>} files */
  add(files) {
    const taken = [...files];
    this.reading = this.reading.then(() => this.#read(taken));
  }

  clear() {
    this.#pictures = [];
    this.#show();
  }

  async #read(files) {
    this.#onProblem("");
    for (const file of files) {
      if (this.#pictures.length >= MAX_PICTURES) {
        this.#onProblem(`A question has at most ${MAX_PICTURES} images.`);
        return;
      }
      try {
        const { readPicture } = await import("./picture.js"); // loaded with the first image
        this.#pictures.push(await readPicture(file));
        this.#show();
      } catch {
        this.#onProblem(`${file.name || "What was pasted"} is no image that this browser can show.`);
      }
    }
  }

  #show() {
    this.element.hidden = this.#pictures.length === 0;
    this.element.replaceChildren(...this.#pictures.map((picture, at) => this.#item(picture, at)));
  }

  #item(picture, at) {
    const name = `image ${at + 1}`;
    const remove = () => {
      this.#pictures.splice(at, 1);
      this.#show();
    };
    return h(
      "li",
      {},
      pictureView(picture, `Attached ${name}`),
      h("button", { type: "button", class: "small", "aria-label": `Remove ${name}`, onclick: remove }, "×"),
    );
  }
}

/** A picture, or a word where it is gone. */
export function pictureView(picture, alt) {
  if (picture.gone) return h("span", { class: "small muted" }, "An image that this browser no longer keeps");
  return h("img", { src: picture.url, width: picture.width, height: picture.height, alt });
}

/** The image files of a paste or a drop. @param {DataTransfer | null} transfer */
export function imageFiles(transfer) {
  return [...(transfer?.files ?? [])].filter((file) => file.type.startsWith("image/"));
}
