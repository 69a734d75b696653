/**
 * Compares two texts, line by line and word by word, in bounded time.
 *
 * Common lines at both ends are taken off first. If the rest differs in more than MOST_EDITS lines it is shown as one
 * replacement, without a search for common lines. Hidden characters are made visible.
 */
import { diffArrays } from "../vendor/diff/array.js";
import { visible } from "./format.js";

/**
 * @typedef {{text: string, changed: boolean}} Word
 * @typedef {object} Row
 * @property {"same"|"add"|"del"|"skip"} kind
 * @property {number|null} left - line number in the old text, from 1; null for an added line.
 * @property {number|null} right - line number in the new text, from 1; null for a deleted line.
 * @property {string} text - the line without its end; empty for "skip".
 * @property {Word[]|null} words - the parts of a line that replaces another one, or is replaced.
 * @property {number} count - lines left out by "skip", else 1.
 * @property {boolean} noNewline - the last line of its text, without a line feed.
 */

/** Unchanged lines that are shown around a change. */
export const CONTEXT = 3;
/** Lines added and deleted that are searched for at most: the search takes the square of it in steps. */
const MOST_EDITS = 1000;
/** Words added and deleted at most within one line. */
const MOST_WORD_EDITS = 100;
/** Longest line, in characters, that is compared word by word. */
const LONGEST_LINE = 1000;
/** Pairs of lines that are compared word by word in one diff. */
const MOST_PAIRS = 500;

const WORDS = /[\p{L}\p{N}_]+|\s+|[^\p{L}\p{N}_\s]/gu;

/**
 * Compares two texts.
 * @param {string|null} oldText - null for a new file.
 * @param {string|null} newText - null for a deleted file.
 * @param {{context?: number}} [options] - unchanged lines shown around a change; Infinity shows all.
 * @returns {Row[]}
 */
export function diffRows(oldText, newText, { context = CONTEXT } = {}) {
  const [before, after] = withoutReturns(linesOf(oldText ?? ""), linesOf(newText ?? ""));
  /** @type {Row[]} */
  const rows = [];
  let left = 0;
  let right = 0;
  const row = (/** @type {Row["kind"]} */ kind, /** @type {string} */ line) => {
    if (kind !== "add") left += 1;
    if (kind !== "del") right += 1;
    const noNewline = !line.endsWith("\n");
    rows.push({
      kind,
      left: kind === "add" ? null : left,
      right: kind === "del" ? null : right,
      text: visible(noNewline ? line : line.slice(0, -1)),
      words: null,
      count: 1,
      noNewline,
    });
  };
  for (const { kind, lines } of changesOf(before, after)) for (const line of lines) row(kind, line);
  markWords(rows);
  return folded(rows, context);
}

/**
 * Returns both texts as the rows of their comparison show them: its lines, joined by line feeds.
 * @param {string|null} oldText
 * @param {string|null} newText
 * @returns {[string, string]}
 */
export function shownTexts(oldText, newText) {
  const sides = withoutReturns(linesOf(oldText ?? ""), linesOf(newText ?? ""));
  const [before, after] = sides.map((lines) => visible(lines.join("")));
  return [before, after];
}

/**
 * Pairs rows for two columns: deleted lines beside the added ones that replace them.
 * @param {Row[]} rows
 * @returns {{left: Row|null, right: Row|null}[]} a row of kind "same" or "skip" stands on both sides.
 */
export function splitRows(rows) {
  /** @type {{left: Row|null, right: Row|null}[]} */
  const pairs = [];
  for (let i = 0; i < rows.length;) {
    if (rows[i].kind === "same" || rows[i].kind === "skip") {
      pairs.push({ left: rows[i], right: rows[i] });
      i += 1;
      continue;
    }
    const { deleted, added, next } = changeAt(rows, i);
    for (let n = 0; n < Math.max(deleted.length, added.length); n += 1) {
      pairs.push({ left: deleted[n] ?? null, right: added[n] ?? null });
    }
    i = next;
  }
  return pairs;
}

/**
 * Counts the lines added and deleted.
 * @param {Row[]} rows
 */
export function diffCounts(rows) {
  const counts = { added: 0, deleted: 0 };
  for (const { kind } of rows) {
    if (kind === "add") counts.added += 1;
    else if (kind === "del") counts.deleted += 1;
  }
  return counts;
}

/**
 * Splits a text into lines that keep their line feed.
 * @param {string} text
 */
function linesOf(text) {
  const lines = text.split("\n").map((line) => `${line}\n`);
  const last = /** @type {string} */ (lines.pop()).slice(0, -1);
  if (last !== "") lines.push(last);
  return lines;
}

/**
 * Takes the carriage returns off texts in which every line has one.
 * @param {string[]} before
 * @param {string[]} after
 */
function withoutReturns(before, after) {
  const all = [...before, ...after].every((line) => line.endsWith("\r\n") || !line.endsWith("\n"));
  const strip = (/** @type {string[]} */ lines) => lines.map((line) => line.replace(/\r\n$/, "\n"));
  return all ? [strip(before), strip(after)] : [before, after];
}

/**
 * Finds the runs of equal, deleted and added lines; deleted ones come before the added ones that replace them.
 * @param {string[]} before
 * @param {string[]} after
 * @returns {{kind: "same"|"del"|"add", lines: string[]}[]}
 */
function changesOf(before, after) {
  const shorter = Math.min(before.length, after.length);
  let start = 0;
  while (start < shorter && before[start] === after[start]) start += 1;
  let end = 0;
  while (end < shorter - start && before[before.length - 1 - end] === after[after.length - 1 - end]) end += 1;
  const old = before.slice(start, before.length - end);
  const now = after.slice(start, after.length - end);
  const found = old.length > 0 && now.length > 0 ? diffArrays(old, now, { maxEditLength: MOST_EDITS }) : undefined;
  const middle = (
    found ?? [
      { removed: true, value: old },
      { added: true, value: now },
    ]
  ).map((/** @type {any} */ change) => ({
    kind: /** @type {"same"|"del"|"add"} */ (change.added ? "add" : change.removed ? "del" : "same"),
    lines: change.value,
  }));
  return [
    { kind: "same", lines: before.slice(0, start) },
    ...middle,
    { kind: "same", lines: end > 0 ? before.slice(-end) : [] },
  ];
}

/**
 * Returns the change that begins at an index: its deleted rows, its added rows, the index of what follows.
 * @param {Row[]} rows
 * @param {number} start
 */
function changeAt(rows, start) {
  let next = start;
  while (rows[next]?.kind === "del") next += 1;
  const middle = next;
  while (rows[next]?.kind === "add") next += 1;
  return { deleted: rows.slice(start, middle), added: rows.slice(middle, next), next };
}

/**
 * Marks the changed words of lines that replace each other.
 * @param {Row[]} rows
 */
function markWords(rows) {
  let pairs = 0;
  for (let i = 0; i < rows.length && pairs < MOST_PAIRS;) {
    if (rows[i].kind !== "del") {
      i += 1;
      continue;
    }
    const { deleted, added, next } = changeAt(rows, i);
    for (let n = 0; n < Math.min(deleted.length, added.length) && pairs < MOST_PAIRS; n += 1, pairs += 1) {
      if (Math.max(deleted[n].text.length, added[n].text.length) > LONGEST_LINE) continue;
      const changes = diffArrays(wordsOf(deleted[n].text), wordsOf(added[n].text), { maxEditLength: MOST_WORD_EDITS });
      if (
        !changes?.some(
          (/** @type {any} */ change) => !change.added && !change.removed && change.value.join("").trim() !== "",
        )
      )
        continue;
      const side = (/** @type {"added"|"removed"} */ other, /** @type {"added"|"removed"} */ own) =>
        changes
          .filter((/** @type {any} */ change) => !change[other])
          .map((/** @type {any} */ change) => ({ text: change.value.join(""), changed: Boolean(change[own]) }));
      deleted[n].words = side("added", "removed");
      added[n].words = side("removed", "added");
    }
    i = next;
  }
}

/** @param {string} line */
function wordsOf(line) {
  return line.match(WORDS) ?? [];
}

/**
 * Replaces unchanged lines far from any change by one row that counts them.
 * @param {Row[]} rows
 * @param {number} context
 */
function folded(rows, context) {
  if (context === Infinity) return rows;
  /** @type {Row[]} */
  const shown = [];
  for (let i = 0; i < rows.length;) {
    let next = i;
    while (rows[next]?.kind === "same") next += 1;
    if (next === i) {
      shown.push(rows[i]);
      i += 1;
      continue;
    }
    const first = i === 0 ? i : Math.min(next, i + context);
    const last = next === rows.length ? next : Math.max(first, next - context);
    shown.push(...rows.slice(i, first));
    // A single line takes no more room than the row that would stand for it.
    if (last - first === 1) shown.push(rows[first]);
    else if (last > first) {
      const { left, right } = rows[first];
      shown.push({ kind: "skip", left, right, text: "", words: null, count: last - first, noNewline: false });
    }
    shown.push(...rows.slice(last, next));
    i = next;
  }
  return shown;
}
