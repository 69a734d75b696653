/**
 * Colours of code: spans of a text, each with its kind, and their join with the marks of a comparison. Pure.
 *
 * Spans are three numbers each (from, to, kind) in one array, in order, without overlaps; so they leave a worker
 * without being copied.
 */

/** Kinds of words by the scopes of Highlight.js; what is behind a dot in a scope counts only if it is listed. */
const KINDS = /** @type {Record<string, string>} */ ({
  comment: "comment", quote: "comment",
  keyword: "keyword", "selector-tag": "keyword", name: "keyword", doctag: "keyword", section: "keyword", literal: "keyword", "variable.language": "keyword",
  string: "string", regexp: "string", char: "string", link: "string", code: "string",
  number: "number", symbol: "number", bullet: "number", meta: "number",
  title: "title", "title.class": "type", "title.function": "title", type: "type", built_in: "type", class: "type",
  attr: "name", attribute: "name", property: "name", "selector-class": "name", "selector-id": "name", "selector-attr": "name", "selector-pseudo": "name", "template-variable": "name",
  addition: "added", deletion: "deleted",
});

/** Names of kinds by their number; 0 has no colour. They are classes of the style sheet. */
export const NAMES = ["", ...new Set(Object.values(KINDS))];

const NUMBERS = new Map(Object.entries(KINDS).map(([scope, name]) => [scope, NAMES.indexOf(name)]));

/** Longest line, in characters, with colours, and most spans of a text: each span becomes an element of the page. */
const LONGEST_LINE = 2000;
const MOST_SPANS = 20_000;

/** @typedef {{starts: Uint32Array, spans: Uint32Array}} Colours - `starts` has the place of each line. */
/** @typedef {{text: string, kind: string, changed: boolean}} Piece */

/** Collects spans from Highlight.js, in place of the HTML that it makes by default. */
export class Collector {
  constructor() {
    /** @type {number[]} */
    this.spans = [];
    this.at = 0;
    /** @type {number[]} */
    this.open = [];
  }

  /** @param {string} text */
  addText(text) {
    const to = this.at + text.length;
    if (text !== "") this.add(this.at, to, this.open[this.open.length - 1] ?? 0);
    this.at = to;
  }

  /** @param {number} from @param {number} to @param {number} kind */
  add(from, to, kind) {
    const { spans } = this;
    const end = spans.length;
    if (kind === 0) return;
    if (end > 0 && spans[end - 2] === from && spans[end - 1] === kind) spans[end - 2] = to;
    else spans.push(from, to, kind);
  }

  /** @param {string} scope */
  openNode(scope) {
    const own = NUMBERS.get(scope) ?? NUMBERS.get(scope.split(".")[0]);
    // Text within a string is of the string's colour, unless code begins there.
    this.open.push(own ?? (scope === "subst" ? 0 : (this.open[this.open.length - 1] ?? 0)));
  }

  closeNode() {
    this.open.pop();
  }

  /** @param {string} scope */
  startScope(scope) {
    this.openNode(scope);
  }

  endScope() {
    this.closeNode();
  }

  /** @param {Collector} inner */
  __addSublanguage({ spans, at }) {
    for (let i = 0; i < spans.length; i += 3) this.add(this.at + spans[i], this.at + spans[i + 1], spans[i + 2]);
    this.at += at;
  }

  finalize() {}

  toHTML() {
    return "";
  }
}

/**
 * Packs spans with the places of lines.
 * @param {string} text
 * @param {number[]} spans
 * @returns {Colours}
 */
export function coloursOf(text, spans) {
  const starts = [0];
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) starts.push(at + 1);
  return { starts: Uint32Array.from(starts), spans: Uint32Array.from(spans) };
}

/**
 * Returns the spans within a line, counted from its beginning.
 * @param {Colours} colours
 * @param {number} line - from 0.
 * @param {number} length - of the line.
 * @returns {{from: number, to: number, kind: string}[]} none for a line that is too long.
 */
export function spansOfLine({ starts, spans }, line, length) {
  if (line >= starts.length || length > LONGEST_LINE) return [];
  const start = starts[line];
  return spansBetween(spans, start, start + length);
}

/**
 * @param {Uint32Array} spans
 * @param {number} start
 * @param {number} end
 */
function spansBetween(spans, start, end) {
  let low = 0;
  let high = spans.length / 3;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (spans[middle * 3 + 1] <= start) low = middle + 1;
    else high = middle;
  }
  const found = [];
  for (let i = low * 3; i < spans.length && spans[i] < end; i += 3) {
    const [from, to] = [Math.max(spans[i], start) - start, Math.min(spans[i + 1], end) - start];
    found.push({ from, to, kind: NAMES[spans[i + 2]] });
  }
  return found;
}

/**
 * Cuts a text at its spans, and at the parts that a comparison has marked.
 * @param {string} text
 * @param {{from: number, to: number, kind: string}[]} spans
 * @param {{text: string, changed: boolean}[]|null} [words] - all of the text.
 * @returns {Piece[]}
 */
export function piecesOf(text, spans, words = null) {
  /** @type {Piece[]} */
  const pieces = [];
  let at = 0;
  let next = 0;
  for (const word of words ?? [{ text, changed: false }]) {
    const end = at + word.text.length;
    while (at < end) {
      while (next < spans.length && spans[next].to <= at) next += 1;
      const span = spans[next];
      const inside = span !== undefined && span.from <= at;
      const to = Math.min(end, span === undefined ? end : inside ? span.to : span.from);
      pieces.push({ text: text.slice(at, to), kind: inside ? span.kind : "", changed: word.changed });
      at = to;
    }
  }
  return pieces;
}

/**
 * Cuts a whole text at its spans, or at the first MOST_SPANS; they may be those of its beginning.
 * @param {string} text
 * @param {Colours} colours
 * @returns {Piece[]}
 */
export function piecesOfText(text, { spans }) {
  return piecesOf(text, spansBetween(spans.subarray(0, MOST_SPANS * 3), 0, text.length));
}

/**
 * Keeps the colours of the latest texts.
 * @param {{mostTexts?: number, mostCharacters?: number}} [options] - `mostCharacters`: of all texts together.
 */
export function keepColours({ mostTexts = 100, mostCharacters = 1_000_000 } = {}) {
  /** @type {Map<string, Colours>} */
  const kept = new Map();
  let characters = 0;
  return {
    /** @param {string} text @returns {Colours|undefined} */
    get: (text) => kept.get(text),
    /** @param {string} text @param {Colours} colours */
    set: (text, colours) => {
      if (!kept.has(text)) characters += text.length;
      kept.set(text, colours);
      for (const oldest of kept.keys()) {
        if (kept.size <= mostTexts && characters <= mostCharacters) break;
        kept.delete(oldest);
        characters -= oldest.length;
      }
    },
  };
}
