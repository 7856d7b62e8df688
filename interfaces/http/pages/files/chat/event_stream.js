// Server-sent events out of bytes, however they are split: `feed(bytes)` gives what is complete by then.
//
// An event is `{data}` or `{comment}`. Other fields (event, id, retry) mean nothing to a chat and are dropped. As the
// standard says: lines end with LF, CR or CR LF, lines of data are joined by LF, a BOM may open the stream, and an event
// that no empty line has ended is none.

export class EventStream {
  #decoder = new TextDecoder();
  #held = "";
  #data = [];
  #endedWithReturn = false;

  /** @param {Uint8Array} bytes @returns {Array<{data: string} | {comment: string}>} */
  feed(bytes) {
    let text = this.#decoder.decode(bytes, { stream: true });
    if (text === "") return [];
    if (this.#endedWithReturn && text.startsWith("\n")) text = text.slice(1);
    this.#endedWithReturn = text === "" ? false : text.endsWith("\r");
    const lines = text.split(/\r\n|\n|\r/);
    lines[0] = this.#held + lines[0];
    this.#held = lines.pop();
    return lines.flatMap((line) => this.#take(line));
  }

  #take(line) {
    if (line === "") {
      const data = this.#data.splice(0);
      return data.length === 0 ? [] : [{ data: data.join("\n") }];
    }
    if (line.startsWith(":")) return [{ comment: line.slice(1).trim() }];
    const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line);
    if (field === "data") this.#data.push(value);
    return [];
  }
}
