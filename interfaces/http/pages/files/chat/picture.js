// Image files as they are sent and kept: a data URL each, made smaller until it fits into a browser's storage.
//
// A picture is plain data, `{url, width, height}`, or `{gone: true}` where the browser had no room to keep it. The same
// URL is sent with every turn, so that the server recognises the image and looks at it once.

export const MAX_CHARS = 300_000; // of one picture
const MAX_SIDE = 1568;
const MIN_SIDE = 64;
const QUALITIES = [0.9, 0.8, 0.65];

/** @param {File} file @returns {Promise<{url: string, width: number, height: number}>} rejects what is no image */
export async function readPicture(file) {
  const bitmap = await createImageBitmap(file);
  try {
    const isSharp = file.type === "image/png" || file.type === "image/gif"; // most likely a screenshot
    for (let side = Math.min(MAX_SIDE, Math.max(bitmap.width, bitmap.height)); ; side = Math.floor(side * 0.7)) {
      const canvas = drawn(bitmap, Math.max(side, MIN_SIDE));
      const url = smallEnough(canvas, isSharp);
      if (url !== null || side <= MIN_SIDE) return { url: url ?? canvas.toDataURL("image/jpeg", 0.5), width: canvas.width, height: canvas.height };
    }
  } finally {
    bitmap.close();
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

function smallEnough(canvas, isSharp) {
  const tries = isSharp ? [["image/png"]] : [];
  for (const quality of QUALITIES) tries.push(["image/jpeg", quality]);
  for (const [type, quality] of tries) {
    const url = canvas.toDataURL(type, quality);
    if (url.length <= MAX_CHARS) return url;
  }
  return null;
}
