/** What has changed on the disk since a turn or a session began, as `session/changes` tells it. Pure. */
import { oneLine } from "../text/format.js";

/**
 * @typedef {import("../text/diff.js").Row} Row
 * @typedef {{path: string, status: "added"|"deleted"|"modified", old: string, new: string, executable: boolean|null,
 *   oldText: string|null, newText: string|null, why: "large"|"binary"|"elsewhere"|"secret"|null}} OnDisk
 * @typedef {{git: boolean, why: string|null, marks: {number: number, at: number}[], mark: number|null, present: boolean, root: string,
 *   files: OnDisk[], more: number, commits: {id: string, at: number, subject: string}[],
 *   worktrees: {path: string, branch: string, isNew: boolean}[]}} Told
 * @typedef {import("./changes.js").ChangedFile & {onDisk: OnDisk}} DiskFile
 */

/** Turns that can be chosen: a person looks for one of the latest. */
const MOST_TURNS = 20;

const REASONS = /** @type {Record<string, string>} */ ({ large: "large", binary: "binary", elsewhere: "in Git LFS", secret: "may hold a secret" });

const OPERATIONS = /** @type {Record<string, string>} */ ({ added: "add", deleted: "delete", modified: "modify" });

/**
 * The changed files, each as one change, as those that the agent tells.
 * @param {Told} told
 * @returns {DiskFile[]}
 */
export function filesOf({ root, files }) {
  return files.map((onDisk) => {
    const path = `${root === "/" ? "" : root}/${onDisk.path}`;
    const { status, why, oldText, newText } = onDisk;
    const isText = why === null && !(oldText === newText && status === "modified");
    const kind = why === null ? (isText ? undefined : onDisk.executable ? "executable now" : "mode") : REASONS[why];
    const change = { operation: OPERATIONS[status], path, oldPath: null, fileType: kind };
    const named = status === "deleted" ? { change } : {};
    const content = isText ? { type: "diff", path, oldText, newText: newText ?? "", ...named } : { type: "change", change };
    return { path, onDisk, edits: [{ key: `${onDisk.old} ${onDisk.new}`, content, done: true, line: null }] };
  });
}

/**
 * The places that have changed, with the row at which each ends, and its lines for `session/undo`: the first old one and their
 * number, and the same of the new ones. Those that are not drawn whole, or are about the end of the file, are left out.
 * @param {Row[]} rows - the drawn ones, from the first on.
 * @param {OnDisk} file
 * @returns {{last: Row, lines: number[]}[]}
 */
export function hunksOf(rows, { oldText, newText }) {
  if (oldText === null || newText === null) return [];
  /** @type {{last: Row, lines: number[]}[]} */
  const hunks = [];
  let left = 0;
  let right = 0;
  /** @type {{last: Row, lines: number[], isWhole: boolean}|null} */
  let open = null;
  const close = () => {
    if (open?.isWhole) hunks.push({ last: open.last, lines: open.lines });
    open = null;
  };
  for (const row of rows) {
    if (row.kind === "same" || row.kind === "skip") {
      close();
      left += row.count;
      right += row.count;
      continue;
    }
    open ??= { last: row, lines: [left, 0, right, 0], isWhole: true };
    open.last = row;
    if (row.noNewline) open.isWhole = false;
    open.lines[row.kind === "del" ? 1 : 3] += 1;
    if (row.kind === "del") left += 1;
    else right += 1;
  }
  if (left === countLines(oldText) && right === countLines(newText)) close();
  return hunks;
}

/** @param {string} text */
function countLines(text) {
  return text === "" ? 0 : text.split("\n").length - (text.endsWith("\n") ? 1 : 0);
}

/**
 * What can be chosen: the session, the last turn, and earlier ones, the latest first.
 * @param {Told["marks"]} marks
 * @returns {{mark: number|null, text: string}[]}
 */
export function turnsOf(marks) {
  const last = marks[marks.length - 1];
  const earlier = marks.slice(-MOST_TURNS - 1, -1).reverse();
  return [
    { mark: null, text: "Whole session" },
    ...(last === undefined ? [] : [{ mark: last.number, text: "Since the last prompt" }]),
    ...earlier.map(({ number, at }) => ({ mark: number, text: `Turn of ${clockText(at)}` })),
  ];
}

/** @param {number} at */
function clockText(at) {
  return new Date(at).toLocaleString(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
}

/**
 * Says which commits and worktrees there are since, in one line each.
 * @param {Told} told
 * @returns {string[]}
 */
export function notesOf({ commits, worktrees }) {
  const made = worktrees.filter(({ isNew }) => isNew);
  return [
    ...commits.map(({ id, subject }) => `Commit ${id.slice(0, 8)}: ${oneLine(subject, 120)}`),
    ...made.map(({ path, branch }) => `New worktree ${oneLine(path, 120)}, ${oneLine(branch, 60)}`),
  ];
}

/** Returns what was told if it is an answer with a comparison; null for one of an older gateway. @param {any} told @returns {Told|null} */
export function readTold(told) {
  return told?.git === true && Array.isArray(told.files) ? told : null;
}
