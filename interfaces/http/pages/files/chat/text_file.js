// Text files as they are attached: `{name, text}`. Read in the browser, and no longer than a model can be asked to read.

export const MAX_FILE_BYTES = 256 * 1024; // of one file

/** @param {File} file @returns {Promise<{name: string, text: string}>} rejects with words for the reader */
export async function readTextFile(file) {
  const name = file.name.replace(/[\p{C}`]/gu, "").slice(0, 120) || "file";
  if (/\.pdf$/i.test(file.name) || file.type === "application/pdf") {
    throw new Error(`${name} is a PDF, which this page does not read. Save it as text and attach that.`);
  }
  if (file.size > MAX_FILE_BYTES) throw new Error(`${name} is too large: a text file has at most ${MAX_FILE_BYTES / 1024} KiB.`);
  const bytes = await file.arrayBuffer();
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    if (!text.includes("\0")) return { name, text };
  } catch {
    // not UTF-8
  }
  throw new Error(`${name} is neither an image that this browser can show nor text in UTF-8.`);
}
