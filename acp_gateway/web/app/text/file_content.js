/** Reads the content of files that are shown as more than text: tables and notebooks. Pure. */

/** Rows and columns of a table that are shown. */
export const MOST_ROWS = 500;
export const MOST_COLUMNS = 50;

/** Cells of a notebook that are shown. */
export const MOST_CELLS = 300;

/**
 * Reads a table (RFC 4180), as far as it is shown.
 * @param {string} text
 * @param {string} separator
 * @returns {{rows: string[][], more: boolean}}
 */
export function readTable(text, separator) {
  /** @type {string[][]} */
  const rows = [];
  let row = [""];
  let isQuoted = false;
  for (let i = 0; i < text.length && rows.length < MOST_ROWS; i += 1) {
    const letter = text[i];
    const last = row.length - 1;
    if (isQuoted) {
      if (letter !== '"') row[last] += letter;
      else if (text[i + 1] === '"') row[last] += text[(i += 1)];
      else isQuoted = false;
    } else if (letter === '"' && row[last] === "") isQuoted = true;
    else if (letter === separator) row.push("");
    else if (letter === "\n") {
      rows.push(row);
      row = [""];
    } else if (letter !== "\r" || text[i + 1] !== "\n") row[last] += letter;
  }
  const isFull = rows.length === MOST_ROWS;
  if (!isFull && (row.length > 1 || row[0] !== "")) rows.push(row);
  return { rows: rows.map((one) => one.slice(0, MOST_COLUMNS)), more: isFull || rows.some((one) => one.length > MOST_COLUMNS) };
}

/**
 * @typedef {{kind: "markdown"|"code"|"output"|"picture", text: string}} Cell - `text` of a picture is its data URL.
 */

/**
 * Reads a notebook (nbformat 4).
 * @param {string} text
 * @returns {{cells: Cell[], language: string, more: boolean}|null} null if it is not one.
 */
export function readNotebook(text) {
  let notebook;
  try {
    notebook = JSON.parse(text);
  } catch {
    return null;
  }
  if (!Array.isArray(notebook?.cells)) return null;
  /** @type {Cell[]} */
  const cells = [];
  for (const cell of notebook.cells) {
    const kind = cell?.cell_type === "code" ? "code" : "markdown";
    const source = joined(cell?.source);
    if (source !== "") cells.push({ kind, text: source });
    if (Array.isArray(cell?.outputs)) for (const output of cell.outputs) cells.push(...cellsOf(output));
  }
  const language = notebook.metadata?.language_info?.name ?? notebook.metadata?.kernelspec?.language;
  return { cells: cells.slice(0, MOST_CELLS), language: typeof language === "string" ? language : "python", more: cells.length > MOST_CELLS };
}

/** @param {any} output @returns {Cell[]} */
function cellsOf(output) {
  if (output?.output_type === "stream") return ofText(joined(output.text));
  if (output?.output_type === "error") return ofText(joined(output.traceback, "\n") || `${output.ename}: ${output.evalue}`);
  const data = output?.data ?? {};
  for (const type of ["image/png", "image/jpeg", "image/gif", "image/webp"]) {
    const picture = joined(data[type]).replace(/\s/g, "");
    if (picture !== "" && /^[A-Za-z0-9+/]+={0,2}$/.test(picture)) return [{ kind: "picture", text: `data:${type};base64,${picture}` }];
  }
  return ofText(joined(data["text/plain"]));
}

/** @param {string} text @returns {Cell[]} */
function ofText(text) {
  return text === "" ? [] : [{ kind: "output", text }];
}

/** @param {unknown} lines - a text, or its lines. */
function joined(lines, between = "") {
  return (Array.isArray(lines) ? lines : [lines]).filter((line) => typeof line === "string").join(between);
}
