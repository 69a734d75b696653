/**
 * Compares two texts, line by line and word by word, in bounded time.
 *
 * Common lines at both ends are taken off first. If the rest differs in more than MOST_EDITS lines, it is divided at lines
 * that both texts have once. Hidden characters are made visible.
 */
import { diffArrays } from "../../vendor/diff/array.js";
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
 * @property {boolean} [rough] - the first of lines that were not compared: too many have changed.
 * @typedef {{kind: "same"|"del"|"add", lines: string[], rough?: boolean}} Run - `rough` if its lines were not compared.
 */

/** Unchanged lines that are shown around a change. */
export const CONTEXT = 3;
/**
 * Lines added and deleted that are searched for at most, first between whole texts, then between two of their lines: the
 * search takes the square of it in steps.
 */
const MOST_EDITS = 1000;
const MOST_EDITS_WITHIN = 250;
/** Times that what lies between two lines is divided by other lines. */
const DEEPEST = 4;
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
  for (const { kind, lines, rough } of changesOf(before, after)) {
    const first = rows.length;
    for (const line of lines) row(kind, line);
    if (rough) rows[first].rough = true;
  }
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
 * @returns {Run[]}
 */
function changesOf(before, after) {
  const shorter = Math.min(before.length, after.length);
  let start = 0;
  while (start < shorter && before[start] === after[start]) start += 1;
  let end = 0;
  while (end < shorter - start && before[before.length - 1 - end] === after[after.length - 1 - end]) end += 1;
  const middle = between(before.slice(start, before.length - end), after.slice(start, after.length - end));
  return [
    { kind: "same", lines: before.slice(0, start) },
    ...middle,
    { kind: "same", lines: end > 0 ? before.slice(-end) : [] },
  ];
}

/**
 * Finds the same between two lists of lines without common ends. A search that would take too long is one between each
 * two lines that both have once and in the same order (patience); where there is none, all is replaced.
 * @param {string[]} old
 * @param {string[]} now
 * @param {number} [depth] - of such searches.
 * @returns {Run[]}
 */
function between(old, now, depth = 0) {
  const replaced = [run("del", old), run("add", now)].filter(({ lines }) => lines.length > 0);
  if (replaced.length < 2) return replaced;
  const most = depth === 0 ? MOST_EDITS : MOST_EDITS_WITHIN;
  const single = othersIn(old, now) + othersIn(now, old);
  if (single === old.length + now.length) return replaced;
  const found = single <= most ? diffArrays(old, now, { maxEditLength: most }) : undefined;
  if (found) {
    return found.map((/** @type {any} */ one) => run(one.added ? "add" : one.removed ? "del" : "same", one.value));
  }
  const anchors = depth < DEEPEST ? anchorsOf(old, now) : [];
  if (anchors.length === 0) return replaced.map((one) => ({ ...one, rough: true }));
  /** @type {Run[]} */
  const runs = [];
  let [left, right] = [0, 0];
  for (const [i, j] of [...anchors, [old.length, now.length]]) {
    if (i > left || j > right) runs.push(...between(old.slice(left, i), now.slice(right, j), depth + 1));
    if (i < old.length) runs.push(run("same", [old[i]]));
    [left, right] = [i + 1, j + 1];
  }
  return runs;
}

/**
 * Counts the lines of a list that another one lacks.
 * @param {string[]} lines
 * @param {string[]} other
 */
function othersIn(lines, other) {
  const known = new Set(other);
  return lines.reduce((count, line) => count + (known.has(line) ? 0 : 1), 0);
}

/**
 * Returns the longest list of pairs of places, growing on both sides, of lines that both lists have once.
 * @param {string[]} old
 * @param {string[]} now
 * @returns {[number, number][]}
 */
function anchorsOf(old, now) {
  const [before, after] = [placesOf(old), placesOf(now)];
  /** Ends of the shortest growing lists so far, by their length; each knows the one before it. @type {any[]} */
  const ends = [];
  for (const [line, i] of before) {
    const j = i === null ? null : (after.get(line) ?? null);
    if (j === null) continue;
    let [low, high] = [0, ends.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (ends[middle].j < j) low = middle + 1;
      else high = middle;
    }
    ends[low] = { i, j, before: ends[low - 1] };
  }
  /** @type {[number, number][]} */
  const pairs = [];
  for (let end = ends.at(-1); end; end = end.before) pairs.push([end.i, end.j]);
  return pairs.reverse();
}

/**
 * Returns the place of each line, in order, and null for one that is there several times.
 * @param {string[]} lines
 * @returns {Map<string, number|null>}
 */
function placesOf(lines) {
  /** @type {Map<string, number|null>} */
  const places = new Map();
  lines.forEach((line, i) => places.set(line, places.has(line) ? null : i));
  return places;
}

/**
 * @param {Run["kind"]} kind
 * @param {string[]} lines
 * @returns {Run}
 */
function run(kind, lines) {
  return { kind, lines };
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
