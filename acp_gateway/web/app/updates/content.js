/**
 * Reads ACP content blocks, tool content and plans into plain shapes in which every member has the type it promises.
 */
import { plain } from "../text/format.js";

/**
 * @typedef {{type: "text", text: string}
 *   | {type: "image", src: string|null, mimeType: string, uri: string}
 *   | {type: "audio", src: string|null, mimeType: string}
 *   | {type: "link", uri: string, name: string, title: string, description: string, mimeType: string,
 *     size: number|null}
 *   | {type: "resource", uri: string, mimeType: string, text: string|null, size: number|null}
 *   | {type: "unknown", raw: any}} Part
 * @typedef {{type: "content", part: Part}
 *   | {type: "diff", path: string, oldText: string|null, newText: string, change?: Change}
 *   | {type: "change", change: Change}
 *   | {type: "terminal", terminalId: string}
 *   | {type: "session", sessionId: string}
 *   | {type: "unknown", raw: any}} ToolContent
 * @typedef {{operation: string, path: string, oldPath: string, fileType: string}} Change - of a file, where texts
 *   do not say it.
 * @typedef {{content: string, priority: string, status: string}} PlanEntry
 * @typedef {{path: string, line: number|null}} Location
 */

const IMAGES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);
const AUDIO = /^audio\/[a-z0-9.+-]{1,40}$/;
const BASE64 = /^[A-Za-z0-9+/]*={0,2}$/;

/**
 * Reads a content block.
 * @param {any} block - as an agent sent it.
 * @returns {Part}
 */
export function partOf(block) {
  if (!isObject(block)) return { type: "unknown", raw: block ?? null };
  const mimeType = plain(block.mimeType);
  if (block.type === "text") return { type: "text", text: plain(block.text) };
  if (block.type === "image") {
    return {
      type: "image",
      src: IMAGES.has(mimeType) ? dataUrl(mimeType, block.data) : null,
      mimeType,
      uri: plain(block.uri),
    };
  }
  if (block.type === "audio") {
    return { type: "audio", src: AUDIO.test(mimeType) ? dataUrl(mimeType, block.data) : null, mimeType };
  }
  if (block.type === "resource_link") {
    const { uri, name, title, description, size } = block;
    return {
      type: "link",
      uri: plain(uri),
      name: plain(name),
      title: plain(title),
      description: plain(description),
      mimeType,
      size: numberOf(size),
    };
  }
  if (block.type === "resource" && isObject(block.resource)) {
    const { uri, text, blob } = block.resource;
    const size =
      typeof text === "string" ? text.length : typeof blob === "string" ? Math.floor((blob.length * 3) / 4) : null;
    return {
      type: "resource",
      uri: plain(uri),
      mimeType: plain(block.resource.mimeType),
      text: typeof text === "string" ? text : null,
      size,
    };
  }
  return { type: "unknown", raw: block };
}

/**
 * Reads the content of a tool call.
 * @param {any} list
 * @returns {ToolContent[]}
 */
export function toolContentOf(list) {
  if (!Array.isArray(list)) return [];
  /** @type {ToolContent[]} */
  const found = [];
  for (const item of list) {
    // How a terminal has ended is shown with its output.
    if (isObject(ownMeta(item).terminalEnd)) continue;
    const next = toolItemOf(item);
    const last = found[found.length - 1];
    if (next.type === "diff" && last?.type === "change" && isSame(last.change, next.change)) found.pop();
    found.push(next);
  }
  return found;
}

/**
 * Returns what the gateway itself tells in the `_meta` of an object.
 * @param {any} value
 * @returns {Record<string, any>}
 */
export function ownMeta(value) {
  const told = isObject(value) && isObject(value._meta) ? value._meta["acp-gateway"] : null;
  return isObject(told) ? told : {};
}

/**
 * Returns the outputs of terminals that content has as texts, and how these have ended.
 * @param {any} list
 * @returns {{terminalId: string, output: string|null, exitStatus: any}[]}
 */
export function terminalTextsOf(list) {
  const found = [];
  for (const item of Array.isArray(list) ? list : []) {
    const { terminal, terminalEnd } = ownMeta(item);
    const about = isObject(terminal) ? terminal : terminalEnd;
    if (!isObject(about)) continue;
    const output = isObject(terminal) ? plain(item.content?.text) : null;
    found.push({ terminalId: plain(about.terminalId), output, exitStatus: about.exitStatus });
  }
  return found;
}

/**
 * @param {Change|undefined} one
 * @param {Change|undefined} other
 */
function isSame(one, other) {
  return JSON.stringify(one) === JSON.stringify(other);
}

/**
 * @param {Record<string, any>} raw
 * @returns {Change}
 */
function changeOf({ operation, path, oldPath, fileType }) {
  return { operation: plain(operation), path: plain(path), oldPath: plain(oldPath), fileType: plain(fileType) };
}

/**
 * Reads one item of a tool call's content.
 * @param {any} item
 * @returns {ToolContent}
 */
export function toolItemOf(item) {
  if (isObject(item)) {
    const { terminal, change } = ownMeta(item);
    if (item.type === "diff") {
      const oldText = item.oldText === null || item.oldText === undefined ? null : plain(item.oldText);
      const told = isObject(change) ? { change: changeOf(change) } : {};
      return { type: "diff", path: plain(item.path), oldText, newText: plain(item.newText), ...told };
    }
    if (isObject(terminal)) return { type: "terminal", terminalId: plain(terminal.terminalId) };
    if (isObject(change)) return { type: "change", change: changeOf(change) };
    if (item.type === "content") return { type: "content", part: partOf(item.content) };
    if (item.type === "terminal") return { type: "terminal", terminalId: plain(item.terminalId) };
    if (item.type === "session") return { type: "session", sessionId: plain(item.sessionId) };
  }
  return { type: "unknown", raw: item ?? null };
}

/**
 * Reads the entries of a plan.
 * @param {any} entries
 * @returns {PlanEntry[]}
 */
export function planOf(entries) {
  if (!Array.isArray(entries)) return [];
  return entries.filter(isObject).map((entry) => ({
    content: plain(entry.content),
    priority: plain(entry.priority) || "medium",
    status: plain(entry.status) || "pending",
  }));
}

/**
 * Reads the locations of a tool call.
 * @param {any} locations
 * @returns {Location[]}
 */
export function locationsOf(locations) {
  if (!Array.isArray(locations)) return [];
  return locations.filter(isObject).map(({ path, line }) => ({ path: plain(path), line: numberOf(line) }));
}

/**
 * @param {any} value
 * @returns {value is Record<string, any>}
 */
export function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** @param {any} value */
function numberOf(value) {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

/**
 * @param {string} mimeType
 * @param {any} data
 */
function dataUrl(mimeType, data) {
  return typeof data === "string" && data !== "" && BASE64.test(data) ? `data:${mimeType};base64,${data}` : null;
}
