// What is attached to a question that is being written, images and files, each with a button that removes it.
import { bytes } from "../shared/format.js";
import { h } from "../shared/dom.js";

const MAX_ATTACHED = 8; // of one question

export class Attachments {
  element = h("div", { class: "attached", hidden: true });
  #pictures;
  #files;
  #onProblem;
  #sees;
  /** Ends when all files have been read. */
  reading = Promise.resolve();

  /**
   * @param {{problem?: (words: string) => void, sees?: () => boolean}} on `problem`: empty words for none. `sees`: whether
   *   the model sees images @param {{pictures?: object[], files?: object[]}} had
   */
  constructor({ problem = () => {}, sees = () => true }, { pictures = [], files = [] } = {}) {
    this.#onProblem = problem;
    this.#sees = sees;
    this.#pictures = [...pictures];
    this.#files = [...files];
    this.#show();
  }

  get all() {
    return { pictures: [...this.#pictures], files: [...this.#files] };
  }

  get isEmpty() {
    return this.#pictures.length + this.#files.length === 0;
  }

  /** @param {Iterable<File>} files */
  add(files) {
    const taken = [...files];
    this.reading = this.reading.then(() => this.#read(taken));
  }

  clear() {
    this.#pictures = [];
    this.#files = [];
    this.#show();
  }

  async #read(files) {
    this.#onProblem("");
    for (const file of files) {
      if (this.#pictures.length + this.#files.length >= MAX_ATTACHED) {
        this.#onProblem(`A question has at most ${MAX_ATTACHED} images and files.`);
        return;
      }
      try {
        if (!isImage(file)) this.#files.push(await (await import("./read_file.js")).readFile(file)); // loaded with the first one
        else if (this.#sees()) this.#pictures.push(await readImage(file));
        else this.#onProblem("This model reads text only. Choose a model that sees images, then attach the image.");
        this.#show();
      } catch (error) {
        this.#onProblem(error.message);
      }
    }
  }

  #show() {
    this.element.hidden = this.isEmpty;
    const lists = [
      this.#list("pictures", "Images of the question", this.#pictures, (one, at) => [pictureView(one, `Attached image ${at + 1}`), `image ${at + 1}`]),
      this.#list("files", "Files of the question", this.#files, (one) => [fileView(one), one.name]),
    ];
    this.element.replaceChildren(...lists.filter((list) => list !== null));
  }

  #list(kind, label, kept, shown) {
    if (kept.length === 0) return null;
    const items = kept.map((one, at) => {
      const [view, name] = shown(one, at);
      const remove = () => {
        kept.splice(at, 1);
        this.#show();
      };
      return h("li", {}, view, h("button", { type: "button", class: "small", "aria-label": `Remove ${name}`, onclick: remove }, "×"));
    });
    return h("ul", { class: kind, "aria-label": label }, ...items);
  }
}

const isImage = (file) => file.type.startsWith("image/") && file.type !== "image/svg+xml";

async function readImage(file) {
  const { readPicture } = await import("./picture.js"); // loaded with the first image
  try {
    return await readPicture(file);
  } catch {
    throw new Error(`${file.name || "What was pasted"} is no image that this browser can show.`);
  }
}

/** A file: its name, and its text once somebody opens it; of a PDF file the size. */
export function fileView({ name, text, size, gone }) {
  if (text === undefined) return h("span", { class: "file small" }, `${name} · ${bytes(size)}${gone ? " · no longer kept by this browser" : ""}`);
  return h("details", { class: "file" }, h("summary", { class: "small" }, name), h("pre", { tabindex: "0" }, text));
}

/** A picture, or a word where it is gone. */
export function pictureView(picture, alt) {
  if (picture.gone) return h("span", { class: "small muted" }, "An image that this browser no longer keeps");
  return h("img", { src: picture.url, width: picture.width, height: picture.height, alt });
}
