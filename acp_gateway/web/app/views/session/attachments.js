/** Reads images and text files that are pasted, dropped or chosen, so that they can go into a prompt. */
import { sizeText } from "../../text/format.js";

/** Longest side of an image in pixels: a larger one is made smaller, as models do it anyway. */
const LONGEST_SIDE = 2000;

/** Largest image that is sent as it is, in bytes. */
const LARGEST_IMAGE = 2 * 1024 * 1024;

/** Largest text file in bytes. */
const LARGEST_TEXT = 512 * 1024;

/** Formats that models take. */
const SENT_AS_IS = /^image\/(png|jpeg|gif|webp)$/;

let count = 0;

/** Read one file. Returns {id, name, mimeType, data} or {id, name, text}; throws an Error with a text for people. */
export async function readAttachment(file, { images }) {
  count += 1;
  const id = count;
  const name = file.name || "image.png";
  if (file.type.startsWith("image/")) {
    if (!images) throw new Error("This agent takes no images.");
    const blob = await fitting(file, name);
    return { id, name, mimeType: blob.type, data: await base64Of(blob) };
  }
  if (file.size > LARGEST_TEXT) throw new Error(`${name} is too large: ${sizeText(file.size)}, at most ${sizeText(LARGEST_TEXT)}.`);
  const text = await file.text();
  if (text.includes("\0")) throw new Error(`${name} is neither an image nor text.`);
  return { id, name, text };
}

/** The image, made smaller if it is large. */
async function fitting(file, name) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error(`${name} is an image that this browser can't read.`);
  }
  const scale = Math.min(1, LONGEST_SIDE / Math.max(bitmap.width, bitmap.height));
  if (scale === 1 && file.size <= LARGEST_IMAGE && SENT_AS_IS.test(file.type)) return file;
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d")).drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return new Promise((resolve, reject) => {
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error(`${name} can't be made smaller.`))), "image/jpeg", 0.85);
  });
}

function base64Of(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result).replace(/^[^,]*,/, ""));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}
