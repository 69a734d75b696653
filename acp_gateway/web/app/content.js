/**
 * Reads ACP content blocks, tool content and plans into plain shapes in which every member has the type it promises.
 */
import { plain } from "./format.js";

/**
 * @typedef {{type: "text", text: string}
 *   | {type: "image", src: string|null, mimeType: string, uri: string}
 *   | {type: "audio", src: string|null, mimeType: string}
 *   | {type: "link", uri: string, name: string, title: string, description: string, mimeType: string,
 *     size: number|null}
 *   | {type: "resource", uri: string, mimeType: string, text: string|null, size: number|null}
 *   | {type: "unknown", raw: any}} Part
 * @typedef {{type: "content", part: Part}
 *   | {type: "diff", path: string, oldText: string|null, newText: string}
 *   | {type: "terminal", terminalId: string}
 *   | {type: "session", sessionId: string}
 *   | {type: "unknown", raw: any}} ToolContent
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
  return Array.isArray(list) ? list.map(toolItemOf) : [];
}

/**
 * Reads one item of a tool call's content.
 * @param {any} item
 * @returns {ToolContent}
 */
export function toolItemOf(item) {
  if (isObject(item)) {
    if (item.type === "content") return { type: "content", part: partOf(item.content) };
    if (item.type === "diff") {
      const oldText = item.oldText === null || item.oldText === undefined ? null : plain(item.oldText);
      return { type: "diff", path: plain(item.path), oldText, newText: plain(item.newText) };
    }
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
