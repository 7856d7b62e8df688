// Files as they are attached: text, `{name, text}`, read in the browser and no longer than a model can be asked to read;
// and PDF, `{name, url, size}`, whose text the server reads, or `{name, size, gone: true}` where there was no room for it.

export const MAX_FILE_BYTES = 256 * 1024; // of one text file
export const MAX_PDF_BYTES = 10 * 1024 * 1024;

const PDF = "%PDF-";

/** @param {File} file @returns {Promise<{name: string, text: string} | {name: string, url: string, size: number}>} rejects with words for the reader */
export async function readFile(file) {
  const name = file.name.replace(/[\p{C}`]/gu, "").slice(0, 120) || "file";
  if ((await file.slice(0, 1024).text()).includes(PDF)) {
    if (file.size > MAX_PDF_BYTES) throw new Error(`${name} is too large: a PDF file has at most ${MAX_PDF_BYTES / 1024 / 1024} MiB.`);
    return { name, url: await pdfUrl(file), size: file.size };
  }
  if (file.size > MAX_FILE_BYTES) throw new Error(`${name} is too large: a text file has at most ${MAX_FILE_BYTES / 1024} KiB.`);
  const bytes = await file.arrayBuffer();
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    if (!text.includes("\0")) return { name, text };
  } catch {
    // not UTF-8
  }
  throw new Error(`${name} is neither an image that this browser can show, nor a PDF, nor text in UTF-8.`);
}

function pdfUrl(file) {
  return new Promise((take, refuse) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => take(reader.result));
    reader.addEventListener("error", () => refuse(new Error(`${file.name} cannot be read.`)));
    reader.readAsDataURL(file.slice(0, file.size, "application/pdf"));
  });
}
