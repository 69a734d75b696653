/** Shows a change of a file: in one column, or side by side where there is room; changed words are marked. */
import { html, useState } from "../vendor/standalone.module.js";
import { placeText } from "./changes.js";
import { CopyButton } from "./copying.js";
import { diffCounts, diffRows, splitRows } from "./diff.js";
import { counted, shortPath } from "./format.js";
import { classes, useMedia } from "./hooks.js";
import { Icon } from "./icons.js";
import { changeWords } from "./words.js";

/** Width of the page from which two columns of code fit beside the list of sessions. */
const WIDE = "(min-width: 1200px)";

/** Width of the page up to which one column has one line number. */
const NARROW = "(max-width: 719px)";

/** Rows shown at first of a change in the transcript, and of one to decide on; a button shows the others. */
const FIRST_ROWS = 300;
const FIRST_ROWS_OF_WHOLE = 5000;

/** @type {WeakMap<object, {short: object[], all?: object[], counts: {added: number, deleted: number}}>} */
const known = new WeakMap();

/** The rows of a diff and its counts; computed once for each content object of an agent. */
export function diffOf(content) {
  let found = known.get(content);
  if (!found) {
    const short = diffRows(content.oldText ?? null, content.newText ?? null);
    found = { short, counts: diffCounts(short) };
    known.set(content, found);
  }
  return found;
}

function allRows(content) {
  const found = diffOf(content);
  found.all ??= diffRows(content.oldText ?? null, content.newText ?? null, { context: Infinity });
  return found.all;
}

/** "+3 −1", in words for screen readers. */
export function Counts({ counts }) {
  return html`<span class="counts">
    ${counts.added > 0 && html`<span class="added" aria-hidden="true">+${counts.added}</span>`}
    ${counts.deleted > 0 && html`<span class="deleted" aria-hidden="true">−${counts.deleted}</span>`}
    <span class="hidden">${counted(counts.added, "line")} added, ${counts.deleted} deleted</span>
  </span>`;
}

/** One changed file. `whole` shows every row at once, unless there are thousands. */
export function DiffView({ content, cwd, whole = false, review = null }) {
  const wide = useMedia(WIDE);
  const narrow = useMedia(NARROW);
  const [more, setMore] = useState(false);
  const [context, setContext] = useState(false);
  const { counts, short } = diffOf(content);
  const rows = context ? allRows(content) : short;
  const shown = more ? rows : rows.slice(0, whole ? FIRST_ROWS_OF_WHOLE : FIRST_ROWS);
  const marks = review?.(shown);
  const isNew = content.oldText === null || content.oldText === undefined;
  const twoColumns = wide && !isNew;
  const expand = () => setContext(true);
  return html`<figure class="diff">
    <figcaption>
      <${Icon} name=${iconOf(content.change, isNew)} />
      <span class="path">${shortPath(content.path, cwd)}</span>
      ${(content.change || isNew) && html`<span class="muted">${changeWords(content.change, cwd) || "new file"}</span>`}
      <${Counts} counts=${counts} />
      <${CopyButton} what="path" text=${shortPath(content.path, cwd)} />
    </figcaption>
    ${marks?.elsewhere}
    <table class=${classes("diff-rows", twoColumns && "side-by-side")}>
      <${Columns} numbers=${narrow ? 1 : 2} pairs=${twoColumns} />
      <tbody>
        ${twoColumns
          ? splitRows(shown).map((pair, i) => html`<${SplitRow} key=${i} pair=${pair} expand=${expand} marks=${marks} />`)
          : shown.map((row, i) => html`<${DiffRow} key=${i} row=${row} narrow=${narrow} expand=${expand} before=${shown[i - 1]} marks=${marks} />`)}
      </tbody>
    </table>
    ${shown.length < rows.length &&
    html`<button class="quiet diff-more" onClick=${() => setMore(true)}>Show all ${rows.length} lines</button>`}
  </figure>`;
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

function DiffRow({ row, before, narrow, expand, marks }) {
  if (row.kind === "skip") return html`<${Skip} row=${row} columns=${narrow ? 3 : 4} expand=${expand} />`;
  const numbers = narrow ? [row.right ?? row.left] : [row.left, row.right];
  const pickable = numbers.findLastIndex((number) => number !== null);
  return html`<tr class=${classes(`diff-${row.kind}`, marks?.isPicked(row) && "is-picked")}>
    ${numbers.map((number, i) => html`<td class="number">${i === pickable ? html`<${Number} number=${number} row=${row} isFirst=${before?.kind !== row.kind} marks=${marks} />` : number}</td>`)}
    <td class="mark">${MARKS[row.kind]}</td>
    <td class="code"><${Line} row=${row} /></td>
  </tr>
  <${Below} found=${marks?.below(row)} columns=${narrow ? 3 : 4} />`;
}

function SplitRow({ pair: { left, right }, expand, marks }) {
  if (left?.kind === "skip") return html`<${Skip} row=${left} columns="6" expand=${expand} />`;
  const found = marks && [...new Set([left, right])].flatMap((row) => marks.below(row) ?? []);
  return html`<tr>
    <${Half} row=${left} number=${left?.left} marks=${left === right ? null : marks} />
    <${Half} row=${right} number=${right?.right} marks=${marks} />
  </tr>
  <${Below} found=${found} columns="6" />`;
}

function Half({ row, number, marks }) {
  if (!row) return html`<td class="number diff-none" /><td class="mark diff-none" /><td class="code diff-none" />`;
  const kind = classes(`diff-${row.kind}`, marks?.isPicked(row) && "is-picked");
  return html`
    <td class=${classes("number", kind)}><${Number} number=${number} row=${row} isFirst=${true} marks=${marks} /></td>
    <td class=${classes("mark", kind)}>${MARKS[row.kind]}</td>
    <td class=${classes("code", kind)}><${Line} row=${row} /></td>
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

function Line({ row }) {
  const text = row.words ? row.words.map((word) => (word.changed ? html`<mark>${word.text}</mark>` : word.text)) : row.text;
  return html`${text}${row.noNewline && row.kind !== "same" && html`<span class="muted no-newline"> (no newline at the end)</span>`}`;
}

function Skip({ row, columns, expand }) {
  return html`<tr class="diff-skip">
    <td colspan=${columns}><button class="quiet" onClick=${expand}>Show ${counted(row.count, "unchanged line")}</button></td>
  </tr>`;
}
