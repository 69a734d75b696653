/**
 * Collects what a session has changed, by file, from what its tool calls say; and places remarks on lines of that.
 *
 * Texts of one file that continue each other become one change. Tool calls that failed have changed nothing.
 */
import { shortPath } from "../text/format.js";

/**
 * @typedef {import("./fold.js").Block} Block
 * @typedef {import("../text/diff.js").Row} Row
 * @typedef {object} Edit
 * @property {string} key - unique within its file, and stable while its first text stays.
 * @property {any} content - a "diff" or a "change" of content.js.
 * @property {boolean} done - false while its tool call waits or runs.
 * @property {number|null} line - the line that the tool call names, from 1.
 * @typedef {{path: string, edits: Edit[]}} ChangedFile
 * @typedef {object} Remark
 * @property {number} id
 * @property {string} path
 * @property {string} edit - key of the edit.
 * @property {Line} anchor - the line with which it began.
 * @property {Line[]} lines - the lines it is about, in order.
 * @property {string} text
 * @typedef {{left: number|null, right: number|null, text: string, kind: string}} Line
 */

/** Lines of a remark that its prompt quotes, and characters of each. */
const MOST_QUOTED = 40;
const LONGEST_QUOTED = 400;

/** @type {WeakMap<object, {first: any, joined: any}>} changes joined from two, by the later one. */
const known = new WeakMap();

/**
 * Collects the changed files, in the order of their first change.
 * @param {Block[]} blocks
 * @param {{lastTurn?: boolean}} [options] - `lastTurn`: only what came after the last prompt.
 * @returns {ChangedFile[]}
 */
export function changesOf(blocks, { lastTurn = false } = {}) {
  /** @type {Map<string, ChangedFile>} */
  const files = new Map();
  for (let i = lastTurn ? lastPrompt(blocks) + 1 : 0; i < blocks.length; i += 1) {
    const block = blocks[i];
    if (block.kind !== "tool" || block.status === "failed") continue;
    (block.content ?? []).forEach((content, n) => {
      if (content.type !== "diff" && content.type !== "change") return;
      add(files, block, content, `${block.key} ${n}`);
    });
  }
  return [...files.values()];
}

/** @param {Block[]} blocks @returns {number} -1 without a prompt. */
function lastPrompt(blocks) {
  let i = blocks.length - 1;
  while (i >= 0 && (blocks[i].kind !== "user" || blocks[i].sub !== null)) i -= 1;
  return i;
}

/** The line that a tool call names in a file, or null. @param {any} tool @param {string} path @returns {number|null} */
export function lineIn({ locations = [] }, path) {
  return locations.find((/** @type {any} */ place) => place.path === path)?.line ?? null;
}

/**
 * @param {Map<string, ChangedFile>} files
 * @param {Block} block
 * @param {any} content
 * @param {string} key
 */
function add(files, block, content, key) {
  const path = content.path ?? content.change.path;
  const file = files.get(path) ?? /** @type {ChangedFile} */ ({ path, edits: [] });
  const { operation, oldPath } = content.change ?? {};
  const moved = operation === "move" ? files.get(oldPath) : undefined;
  if (moved && moved !== file) {
    file.edits.unshift(...moved.edits);
    files.delete(oldPath);
  }
  files.set(path, file);
  const done = block.status === "completed";
  const line = lineIn(block, path);
  const last = file.edits[file.edits.length - 1];
  const joined = last && last.done === done ? join(last.content, content) : null;
  if (joined === null) file.edits.push({ key, content, done, line });
  else file.edits[file.edits.length - 1] = { ...last, content: joined };
}

/**
 * Joins two changes of a file if the later one begins with the text at which the earlier one ends.
 * @param {any} first
 * @param {any} next
 * @returns {any} the same object for the same two; null if they stay apart.
 */
function join(first, next) {
  if (first.type !== "diff" || next.type !== "diff" || next.change?.oldPath) return null;
  const before = known.get(next);
  if (before !== undefined && before.first === first) return before.joined;
  if (next.oldText === null || first.newText !== next.oldText || isDeletion(first) || isDeletion(next)) return null;
  const joined = { ...first, newText: next.newText };
  known.set(next, { first, joined });
  return joined;
}

/** @param {any} content */
function isDeletion({ change }) {
  return change?.operation === "delete";
}

/**
 * Returns a row as a line that a remark is about.
 * @param {Row} row
 * @returns {Line}
 */
export function lineOf({ left, right, text, kind }) {
  return { left, right, text, kind };
}

/**
 * Returns the lines between two rows of an edit, both included; rows that stand for others are left out.
 * @param {Row[]} rows
 * @param {Line} from
 * @param {Line} to
 * @returns {Line[]} empty if one of them is not there.
 */
export function linesBetween(rows, from, to) {
  const [a, b] = [indexOf(rows, from), indexOf(rows, to)].sort((one, other) => one - other);
  if (a < 0) return [];
  return rows.slice(a, b + 1).filter(({ kind }) => kind !== "skip").map(lineOf);
}

/**
 * Finds the row below which a remark stands.
 * @param {Row[]} rows
 * @param {Remark} remark
 * @returns {Row|null} null if its last line is not there, or is another one now.
 */
export function rowOfRemark(rows, { lines }) {
  return rows[indexOf(rows, lines[lines.length - 1])] ?? null;
}

/** @param {Row[]} rows @param {Line} line */
function indexOf(rows, line) {
  return rows.findIndex((row) => row.kind !== "skip" && isLine(row, line));
}

/**
 * Tells whether a row shows a line.
 * @param {Row} row
 * @param {Line} line
 */
export function isLine(row, line) {
  return row.left === line.left && row.right === line.right && row.kind === line.kind && row.text === line.text;
}

/**
 * Says which lines a remark is about: "line 3", "lines 3 to 5", "deleted line 4".
 * @param {Line[]} lines
 */
export function placeText(lines) {
  const deleted = lines.every(({ kind }) => kind === "del");
  const numbers = lines
    .map(({ left, right }) => (deleted ? left : right))
    .filter((number) => number !== null);
  const [first, last] = [numbers[0], numbers[numbers.length - 1]];
  const word = deleted ? "deleted line" : "line";
  return first === last ? `${word} ${first}` : `${word}s ${first} to ${last}`;
}

/**
 * Writes remarks as one prompt, by file, each with the lines that it is about.
 * @param {Remark[]} remarks
 * @param {string|null} [cwd] - paths below it are relative to it.
 */
export function reviewPrompt(remarks, cwd = null) {
  const paths = [...new Set(remarks.map(({ path }) => path))];
  const ordered = paths.flatMap((path) => remarks.filter((one) => one.path === path).sort(byPlace));
  const parts = ordered.map(({ path, lines, text }, i) => {
    const number = ordered.length > 1 ? `${i + 1}. ` : "";
    return `${number}${shortPath(path, cwd)}, ${placeText(lines)}:\n\n${quoted(lines)}\n\n${text.trim()}`;
  });
  return `${ordered.length > 1 ? "Remarks" : "A remark"} on your changes.\n\n${parts.join("\n\n")}`;
}

/** @param {Remark} one @param {Remark} other */
function byPlace(one, other) {
  const place = (/** @type {Remark} */ { lines }) => lines[0].right ?? lines[0].left ?? 0;
  return place(one) - place(other) || one.id - other.id;
}

const MARKS = /** @type {Record<string, string>} */ ({ add: "+", del: "-" });

/** @param {Line[]} lines */
function quoted(lines) {
  const shown = lines.slice(0, MOST_QUOTED).map(({ kind, text }) => `${MARKS[kind] ?? " "}${oneLineOf(text)}`);
  if (lines.length > MOST_QUOTED) shown.push(`… ${lines.length - MOST_QUOTED} more`);
  const ticks = Math.max(2, ...shown.map((line) => /`{3,}/.exec(line)?.[0].length ?? 0));
  const fence = "`".repeat(ticks + 1);
  return `${fence}diff\n${shown.join("\n")}\n${fence}`;
}

/** @param {string} text - a line, whose beginning stays as it is. */
function oneLineOf(text) {
  return text.length > LONGEST_QUOTED ? `${text.slice(0, LONGEST_QUOTED - 1)}…` : text;
}

/**
 * Reads remarks that were kept.
 * @param {string|null} kept - JSON.
 * @returns {Remark[]}
 */
export function remarksOf(kept) {
  try {
    const found = JSON.parse(kept ?? "[]");
    return Array.isArray(found) ? found.filter(isRemark) : [];
  } catch {
    return []; // Another version has written them.
  }
}

/** @param {any} one */
function isRemark(one) {
  const texts = [one?.path, one?.edit, one?.text].every((text) => typeof text === "string");
  return texts && Number.isInteger(one.id) && Array.isArray(one.lines) && one.lines.length > 0 && one.lines.every((/** @type {any} */ line) => typeof line?.text === "string");
}
