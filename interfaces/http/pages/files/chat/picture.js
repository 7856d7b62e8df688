// Image files as they are sent and kept: a data URL each, made smaller until it fits into a browser's storage.
//
// A picture is plain data, `{url, width, height}`, or `{gone: true}` where the browser had no room to keep it. The same
// URL is sent with every turn, so that the server recognises the image and looks at it once.

export const MAX_CHARS = 300_000; // of one picture
const MAX_SIDE = 1568;
const QUALITY = 0.85;

/** @param {File} file @returns {Promise<{url: string, width: number, height: number}>} rejects what is no image */
export async function readPicture(file) {
  const bitmap = await createImageBitmap(file);
  const isSharp = file.type === "image/png" || file.type === "image/gif"; // most likely a screenshot
  const types = isSharp ? ["image/png", "image/jpeg"] : ["image/jpeg"];
  for (let side = Math.min(MAX_SIDE, Math.max(bitmap.width, bitmap.height)); ; side *= 0.7) {
    const canvas = drawn(bitmap, side);
    const url = types.map((type) => canvas.toDataURL(type, QUALITY)).find((one) => one.length <= MAX_CHARS);
    if (url === undefined) continue;
    bitmap.close();
    return { url, width: canvas.width, height: canvas.height };
  }
}

function drawn(bitmap, side) {
  const scale = Math.min(1, side / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const context = canvas.getContext("2d");
  context.fillStyle = "#fff"; // under what is transparent
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas;
}
