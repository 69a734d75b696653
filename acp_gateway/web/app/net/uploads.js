/** Writes files of the reader's machine into the folder of a session, in pieces. */

/** Bytes of a piece: with its form, less than a gateway reads of a request. */
const PIECE = 96 * 1024;

/** Time in ms that a piece may take. */
const TIMEOUT = 120_000;

/**
 * Writes one file. What is not finished is removed by the gateway.
 * @param {object} options
 * @param {(method: string, params: object, options?: object) => Promise<any>} options.request
 * @param {string} options.sessionId
 * @param {string} options.path - of the new file.
 * @param {Blob} options.file
 * @param {boolean} options.overwrite - replaces a file that is there; else the error has the reason `exists`.
 * @param {(part: number) => void} [options.onProgress] - gets the part that has come, up to 1.
 * @returns {Promise<string>} its path there.
 */
export async function uploadFile({ request, sessionId, path, file, overwrite, onProgress = () => {} }) {
  const { upload } = await request("files/create", { sessionId, path, size: file.size, overwrite });
  for (let offset = 0; offset < file.size; offset += PIECE) {
    const data = await base64Of(file.slice(offset, offset + PIECE));
    await request("files/append", { sessionId, upload, offset, data }, { timeout: TIMEOUT });
    onProgress(Math.min(1, (offset + PIECE) / file.size));
  }
  return (await request("files/finish", { sessionId, upload }, { timeout: TIMEOUT })).path;
}

/** @param {Blob} blob @returns {Promise<string>} */
async function base64Of(blob) {
  const bytes = new Uint8Array(await blob.arrayBuffer());
  let text = "";
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(text);
}
