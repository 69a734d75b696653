/** Shows a change of a file: in one column, or side by side where there is room; changed words are marked. */
import { useCallback, useContext, useEffect, useRef, useState } from "../../../vendor/hooks.js";
import { html } from "../parts/html.js";
import { placeText } from "../../updates/changes.js";
import { coloured } from "../../code/code_block.js";
import { piecesOf, spansOfLine } from "../../code/colours.js";
import { useShownChange } from "../../code/comparisons.js";
import { CopyButton } from "../parts/copying.js";
import { splitRows } from "../../text/diff.js";
import { counted, shortPath } from "../../text/format.js";
import { classes, NARROW, PaneOf, Pure, useMedia } from "../parts/hooks.js";
import { Icon } from "../parts/icons.js";
import { FileLink } from "../files/file_link.js";
import { EditorLink, jump, useWrapping, WrapButton } from "./reading.js";
import { changeWords } from "../../text/words.js";

/** Width of the page from which two columns of code fit beside the list of sessions. */
const WIDE = "(min-width: 1200px)";

/** Rows of one part of a change. What is drawn at once is a few parts, so that no frame takes long. */
const PART = 50;

/** Parts that are drawn with each frame, until those that were asked for are there. */
const AT_ONCE = 2;

/** Parts shown at first of a change in the transcript, and of one to decide on; a button shows the others. */
const FIRST = 6;
const FIRST_OF_WHOLE = 100;

/** Length of a line, in columns, from which on wrapping makes a difference. */
const LONG_LINE = 40;

/** Columns that a line number with its mark takes. */
const BESIDE = 8;

/** @typedef {{pairs?: any[], parts?: any[][], longest?: number, places?: number, first?: number|null, isRough?: boolean}} Derived */

/** What was derived from rows. @type {WeakMap<object, Derived>} */
const derived = new WeakMap();

/** @param {object} rows @returns {Derived} */
function derivedOf(rows) {
  const found = derived.get(rows) ?? {};
  derived.set(rows, found);
  return found;
}

function pairsOf(rows) {
  return (derivedOf(rows).pairs ??= splitRows(rows));
}

function partsOf(items) {
  return (derivedOf(items).parts ??= Array.from({ length: Math.ceil(items.length / PART) }, (_, i) => items.slice(i * PART, (i + 1) * PART)));
}

/** The number of places that have changed, and the number of the first new line there. */
function placesOf(rows) {
  const found = derivedOf(rows);
  if (found.places !== undefined) return found;
  found.places = rows.filter((row, i) => startsChange(row, rows[i - 1])).length;
  found.isRough = rows.some(({ rough }) => rough);
  found.first = rows.find(({ kind, right }) => kind === "add" && right !== null)?.right ?? null;
  return found;
}

/** Columns of the longest row: a tab takes up to four, a character of East Asia two. */
function longestOf(rows) {
  const wide = (text) => (/[^\u0000-\u10ff]/.test(text) ? text.length : 0);
  const tabs = (text) => (text.includes("\t") ? 3 * (text.split("\t").length - 1) : 0);
  return (derivedOf(rows).longest ??= rows.reduce((most, { text }) => Math.max(most, text.length + tabs(text) + wide(text)), 0));
}

/** "+3 −1", in words for screen readers. */
export function Counts({ counts }) {
  if (counts === null) return null;
  return html`<span class="counts">
    ${counts.added > 0 && html`<span class="added" aria-hidden="true">+${counts.added}</span>`}
    ${counts.deleted > 0 && html`<span class="deleted" aria-hidden="true">−${counts.deleted}</span>`}
    <span class="hidden">${counted(counts.added, "line")} added, ${counts.deleted} deleted</span>
  </span>`;
}

/** One changed file. `whole` shows every row, unless there are thousands. `line` is one that the agent has named. */
export function DiffView(/** @type {any} */ { content, cwd, whole = false, review = null, line = null }) {
  const pane = useContext(PaneOf);
  const wide = useMedia(WIDE) && !pane?.isTwo;
  const narrow = useMedia(NARROW);
  const [closed, setClosed] = useState(false);
  const [more, setMore] = useState(false);
  const [context, setContext] = useState(false);
  const [mayWrap, toggleWraps] = useWrapping("changes");
  // Of what is to be decided on, nothing is beyond the edge.
  const wraps = whole || mayWrap;
  const root = useRef(/** @type {any} */ (null));
  const { counts, short, all, colours } = useShownChange(content, context);
  const rows = (context ? all : null) ?? short;
  const isNew = content.oldText === null || content.oldText === undefined;
  const twoColumns = wide && !isNew;
  const parts = rows === null ? [] : partsOf(twoColumns ? pairsOf(rows) : rows);
  const wanted = more ? parts.length : Math.min(parts.length, whole ? FIRST_OF_WHOLE : FIRST);
  const drawn = useGrowing(wanted);
  const marks = review && rows && review(rowsOf(rows, parts, drawn, twoColumns));
  const isLong = rows !== null && longestOf(rows) > LONG_LINE;
  const { places = 0, first = null, isRough = false } = rows === null ? {} : placesOf(rows);
  const width = wraps || rows === null ? "" : `${(twoColumns ? 2 : 1) * (longestOf(rows) + BESIDE)}ch`;
  const table = { twoColumns, narrow, colours, marks, expand: useCallback(() => setContext(true), []) };
  const path = shortPath(content.path, cwd);
  return html`<figure class="diff" ref=${root}>
    <figcaption>
      ${whole ? html`<${Icon} name=${iconOf(content.change, isNew)} />` : html`<button class="fold-file" aria-expanded=${String(!closed)} aria-label=${`Show the change of ${path}`} onClick=${() => setClosed(!closed)}>
        <${Icon} name="chevron" /></button>`}
      <span class="path"><${FileLink} path=${content.path} line=${line ?? first}>${path}</${FileLink}></span>
      ${(content.change || isNew) && html`<span class="muted">${changeWords(content.change, cwd) || "new file"}</span>`}
      <${Counts} counts=${counts} />
      <span class="file-actions">
        ${!closed && places > 1 && html`<button class="copy" aria-label="Next change" title="Next change" onClick=${() => jump(root.current, 1)}><${Icon} name="down" /></button>`}
        ${!closed && !whole && isLong && html`<${WrapButton} on=${wraps} toggle=${toggleWraps} />`}
        <${EditorLink} path=${content.path} line=${line ?? first} />
        <${CopyButton} what="path" text=${path} />
      </span>
    </figcaption>
    ${!closed && html`
      ${marks?.elsewhere}
      ${rows === null && html`<p class="muted diff-more" role="status">Comparing…</p>`}
      ${isRough && html`<p class="muted diff-more">Too many changes to compare: some lines are shown as removed and added as a whole.</p>`}
      <div class=${classes("diff-parts", !wraps && "is-not-wrapped")} ...${wraps ? {} : { tabindex: 0, role: "group", "aria-label": "Lines" }}>
        ${parts.slice(0, drawn).map((items, i) => html`<div key=${i} class=${classes("diff-part", drawn > FIRST && !whole && "is-aside")} style=${{ minWidth: width }}>
          <${Part} items=${items} before=${parts[i - 1]?.at(-1)} ...${table} />
        </div>`)}
      </div>
      ${wanted < parts.length &&
      html`<button class="quiet diff-more" onClick=${() => setMore(true)}>Show all ${rows.length} lines</button>`}`}
  </figure>`;
}

/** A number that follows another one with a few steps for each frame. */
function useGrowing(wanted) {
  const [now, setNow] = useState(AT_ONCE);
  useEffect(() => {
    if (now >= wanted) return undefined;
    const frame = requestAnimationFrame(() => setNow(now + AT_ONCE));
    return () => cancelAnimationFrame(frame);
  }, [now, wanted]);
  return Math.min(now, wanted);
}

/** The rows of the parts that are drawn. */
function rowsOf(rows, parts, drawn, twoColumns) {
  if (drawn === parts.length) return rows;
  if (!twoColumns) return rows.slice(0, drawn * PART);
  const shown = new Set(parts.slice(0, drawn).flat().flatMap(({ left, right }) => [left, right]));
  return rows.filter((row) => shown.has(row));
}

function startsChange(row, before) {
  const isChange = (one) => one !== undefined && one !== null && one.kind !== "same" && one.kind !== "skip";
  return isChange(row) && !isChange(before);
}

/** Some rows. In a review it is drawn again only if a remark on one of them has changed. */
class Part extends Pure {
  shouldComponentUpdate(next) {
    const touched = (marks) => marks?.touches(next.twoColumns ? next.items.flatMap(({ left, right }) => [left, right]) : next.items);
    if (next.marks !== this.props.marks && !touched(next.marks) && !touched(this.props.marks)) next = { ...next, marks: this.props.marks };
    return super.shouldComponentUpdate(next);
  }

  render({ items, before, twoColumns, narrow, colours, marks, expand }) {
    return html`<table class=${classes("diff-rows", twoColumns && "side-by-side")}>
      <${Columns} numbers=${narrow ? 1 : 2} pairs=${twoColumns} />
      <tbody>
        ${items.map((item, i) => (twoColumns
          ? html`<${SplitRow} key=${i} pair=${item} before=${items[i - 1] ?? before} colours=${colours} expand=${expand} marks=${marks} />`
          : html`<${DiffRow} key=${i} row=${item} before=${items[i - 1] ?? before} narrow=${narrow} colours=${colours} expand=${expand} marks=${marks} />`))}
      </tbody>
    </table>`;
  }
}

/** The widths of the columns, which the first row does not give: it may be one cell. */
function Columns({ numbers, pairs }) {
  const half = html`<col class="number-column" /><col class="mark-column" /><col />`;
  if (pairs) return html`<colgroup>${half}${half}</colgroup>`;
  return html`<colgroup>${numbers > 1 && html`<col class="number-column" />`}${half}</colgroup>`;
}

/** Names the change of a file without texts: moved, deleted, binary. */
export function ChangeView({ change, cwd }) {
  return html`<figure class="diff is-named">
    <figcaption>
      <${Icon} name=${iconOf(change, change.operation === "add")} />
      <span class="path">${shortPath(change.path, cwd)}</span>
      <span class="muted">${changeWords(change, cwd)}</span>
    </figcaption>
  </figure>`;
}

function iconOf(change, isNew) {
  const known = new Map([["move", "move"], ["copy", "copy"], ["delete", "delete"]]);
  return known.get(change?.operation) ?? (isNew ? "plus" : "edit");
}

const MARKS = { add: "+", del: "−", same: "" };

function DiffRow({ row, before, narrow, colours, expand, marks }) {
  if (row.kind === "skip") return html`<${Skip} row=${row} columns=${narrow ? 3 : 4} expand=${expand} />`;
  const numbers = narrow ? [row.right ?? row.left] : [row.left, row.right];
  const pickable = numbers.findLastIndex((number) => number !== null);
  return html`<tr class=${classes(`diff-${row.kind}`, startsChange(row, before) && "change-start", marks?.isPicked(row) && "is-picked")}>
    ${numbers.map((number, i) => html`<td class="number">${i === pickable ? html`<${Number} number=${number} row=${row} isFirst=${before?.kind !== row.kind} marks=${marks} />` : number}</td>`)}
    <td class="mark">${MARKS[row.kind]}</td>
    <td class="code"><${Line} row=${row} colours=${colours} /></td>
  </tr>
  <${Below} found=${marks?.below(row)} columns=${narrow ? 3 : 4} />`;
}

function SplitRow({ pair: { left, right }, before, colours, expand, marks }) {
  if (left?.kind === "skip") return html`<${Skip} row=${left} columns="6" expand=${expand} />`;
  const found = marks && [...new Set([left, right])].flatMap((row) => marks.below(row) ?? []);
  const starts = startsChange(left ?? right, before && (before.left ?? before.right));
  return html`<tr class=${classes(starts && "change-start")}>
    <${Half} row=${left} number=${left?.left} before=${before?.left} colours=${colours} marks=${left === right ? null : marks} />
    <${Half} row=${right} number=${right?.right} before=${before?.right} colours=${colours} marks=${marks} />
  </tr>
  <${Below} found=${found} columns="6" />`;
}

function Half({ row, number, before, colours, marks }) {
  if (!row) return html`<td class="number diff-none" /><td class="mark diff-none" /><td class="code diff-none" />`;
  const kind = classes(`diff-${row.kind}`, marks?.isPicked(row) && "is-picked");
  return html`
    <td class=${classes("number", kind)}><${Number} number=${number} row=${row} isFirst=${before?.kind !== row.kind} marks=${marks} /></td>
    <td class=${classes("mark", kind)}>${MARKS[row.kind]}</td>
    <td class=${classes("code", kind)}><${Line} row=${row} colours=${colours} /></td>
  `;
}

/** A line number; in a review it is a button that begins a remark. Arrow keys lead from one to the next. */
function Number({ number, row, isFirst, marks }) {
  if (!marks) return number;
  const label = `Remark on ${placeText([row])}`;
  return html`<button class="line-number" tabindex=${isFirst && row.kind !== "same" ? 0 : -1} aria-label=${label} title=${label}
    onClick=${(event) => marks.pick(row, event.shiftKey)} onKeyDown=${moveAmongNumbers}>${number}</button>`;
}

function moveAmongNumbers(event) {
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!by) return;
  const all = [...event.currentTarget.closest(".diff").querySelectorAll(".line-number")];
  all[all.indexOf(event.currentTarget) + by]?.focus();
  event.preventDefault();
}

/** What stands below a row: remarks on it. */
function Below({ found, columns }) {
  return found?.length > 0 && html`<tr class="diff-below"><td colspan=${columns}>${found}</td></tr>`;
}

function Line({ row, colours }) {
  const [side, number] = row.kind === "del" ? [0, row.left] : [1, row.right];
  const spans = colours ? spansOfLine(colours[side], number - 1, row.text.length) : [];
  const text = [];
  for (const piece of piecesOf(row.text, spans, row.words)) {
    const last = text[text.length - 1];
    if (piece.changed && last?.changed) last.pieces.push(piece);
    else text.push({ changed: piece.changed, pieces: [piece] });
  }
  return html`${text.map(({ changed, pieces }) => (changed ? html`<mark>${pieces.map(coloured)}</mark>` : pieces.map(coloured)))}${
    row.noNewline && row.kind !== "same" && html`<span class="muted no-newline"> (no newline at the end)</span>`}`;
}

function Skip({ row, columns, expand }) {
  return html`<tr class="diff-skip">
    <td colspan=${columns}><button class="quiet" onClick=${expand}>Show ${counted(row.count, "unchanged line")}</button></td>
  </tr>`;
}
