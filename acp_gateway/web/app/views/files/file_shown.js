/** Shows the content of a file by its kind. Nothing of it is parsed as HTML in this page. */
import { useLayoutEffect, useMemo, useRef } from "../../../vendor/hooks.js";
import { CodeBlock, coloured } from "../../code/code_block.js";
import { piecesOfText } from "../../code/colours.js";
import { useTextColours } from "../../code/comparisons.js";
import { readNotebook, readTable } from "../../text/file_content.js";
import { baseName, oneLine, visible } from "../../text/format.js";
import { classes } from "../parts/hooks.js";
import { html } from "../parts/html.js";
import { Markdown, Terminal } from "../transcript/parts.js";
import { Picture } from "../transcript/picture.js";

/** Kinds that can be shown as their source as well. */
export const HAS_SOURCE = new Set(["table", "notebook", "page", "markdown"]);

/** Whether bytes are text, by their beginning. @param {Uint8Array} bytes */
export function isText(bytes) {
  if (bytes.subarray(0, 8192).includes(0)) return false;
  try {
    // The last character may be cut.
    new TextDecoder("utf-8", { fatal: true }).decode(bytes, { stream: true });
    return true;
  } catch {
    return false;
  }
}

/** @param {Uint8Array[]} pieces */
export function textOf(pieces) {
  const decoder = new TextDecoder();
  return pieces.map((piece) => decoder.decode(piece, { stream: true })).join("");
}

export function Shown({ kind, file, url, text, language, line }) {
  const name = oneLine(baseName(file.path), 200);
  if (kind === "picture") return html`<${Picture} src=${url} alt=${name} />`;
  if (kind === "audio") return html`<audio controls preload="metadata" src=${url} aria-label=${name}></audio>`;
  if (kind === "video") return html`<video controls preload="metadata" playsinline src=${url} aria-label=${name}></video>`;
  if (kind === "pdf") return html`<${Pdf} url=${url} name=${name} />`;
  if (kind === "page") return html`<iframe class="file-frame" sandbox="" src=${url} title=${name}></iframe>
    <p class="muted">Its scripts do not run here, and it loads nothing else: download it to see all of it.</p>`;
  if (kind === "table") return html`<${Table} text=${text} separator=${/\.tsv$/i.test(file.path) ? "\t" : ","} />`;
  if (kind === "notebook") return html`<${Notebook} text=${text} />`;
  if (kind === "markdown") return html`<div class="file-text"><${Markdown} text=${text} /></div>`;
  return html`<${Lines} text=${text} language=${language} line=${line} />`;
}

/** A browser that shows no PDF in a frame gets a link. */
function Pdf({ url, name }) {
  if (navigator.pdfViewerEnabled) return html`<iframe class="file-frame" src=${url} title=${name}></iframe>`;
  return html`<p class="message"><a class="secondary" href=${url} target="_blank" rel="noopener">Open ${name}</a></p>`;
}

/** Text with the numbers of its lines; one may be marked. */
function Lines({ text, language, line }) {
  const colours = useTextColours(text, language);
  const marked = useRef(/** @type {any} */ (null));
  const lines = useMemo(() => linesOf(text, colours), [text, colours]);
  useLayoutEffect(() => void marked.current?.scrollIntoView({ block: "center" }), [line, text]);
  return html`<pre class="file-lines" tabindex="0" role="group" aria-label="Text"><code>${lines.map((pieces, i) =>
    html`<span key=${i} class=${classes("file-line", i + 1 === line && "is-marked")} ref=${i + 1 === line ? marked : null}>${pieces.map(coloured)}${"\n"}</span>`)}</code></pre>`;
}

/** The pieces of each line. */
function linesOf(text, colours) {
  const whole = text.endsWith("\n") ? text.slice(0, -1) : text;
  if (!colours) return whole.split("\n").map((one) => [{ text: visible(one), kind: "" }]);
  /** @type {any[][]} */
  const lines = [[]];
  for (const { text: piece, kind } of piecesOfText(whole, colours)) {
    piece.split("\n").forEach((part, i) => {
      if (i > 0) lines.push([]);
      if (part !== "") lines[lines.length - 1].push({ text: part, kind });
    });
  }
  return lines;
}

function Table({ text, separator }) {
  const { rows, more } = useMemo(() => readTable(text, separator), [text]);
  if (rows.length === 0) return html`<p class="message">This table is empty.</p>`;
  const [head, ...body] = rows;
  return html`<div class="file-table" tabindex="0" role="group" aria-label="Table"><table>
      <thead><tr>${head.map((cell) => html`<th scope="col" dir="auto">${oneLine(cell, 500)}</th>`)}</tr></thead>
      <tbody>${body.map((row) => html`<tr>${row.map((cell) => html`<td dir="auto">${oneLine(cell, 500)}</td>`)}</tr>`)}</tbody>
    </table></div>
    ${more && html`<p class="muted">The table has more rows or columns than are shown.</p>`}`;
}

function Notebook({ text }) {
  const notebook = useMemo(() => readNotebook(text), [text]);
  if (notebook === null) return html`<p class="message" role="alert">This notebook can’t be read as far as it was loaded. Its source can be shown.</p>`;
  return html`<div class="file-text">
    ${notebook.cells.map(({ kind, text: cell }, i) => html`<div key=${i}>${
      kind === "picture" ? html`<${Picture} src=${cell} alt="Output" />`
        : kind === "code" ? html`<div class="markdown"><${CodeBlock} text=${cell} language=${notebook.language} /></div>`
          : kind === "output" ? html`<${Terminal} text=${cell} />` : html`<${Markdown} text=${cell} />`}</div>`)}
    ${notebook.more && html`<p class="muted">The notebook has more cells than are shown.</p>`}</div>`;
}
