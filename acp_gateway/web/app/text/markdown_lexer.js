/**
 * Parses Markdown into the tokens of marked's lexer, in bounded time and without HTML.
 *
 * A text is cut into segments at blank lines outside of code, lists and quotes, which are parsed one by one: what was
 * parsed once need not be parsed again while the text grows. Limits on sizes, nesting and steps bound the time, not a
 * clock; text beyond a limit stays as it is.
 */
import { Lexer, Tokenizer } from "../../vendor/marked.esm.js";
import { plain } from "./format.js";
import { formulaAt, withoutFormulas } from "./formulas.js";

/** Characters of one text that are parsed; the rest follows as plain text. */
const MOST_PARSED = 64 * 1024;
/** Characters of a segment, from which on it ends at a blank line, at a new item of a list, at any line. */
const SEGMENT = 1024;
const LONG_SEGMENT = 4 * 1024;
const LONGEST_SEGMENT = 6 * 1024;
/** Characters of a segment that is one table. */
const LONGEST_TABLE = 32 * 1024;
/**
 * Characters of one paragraph, cell or heading that are parsed together: emphasis takes steps for each pair of its
 * marks.
 */
const MOST_INLINE = 1024;
/** Steps for one text, of about 0.1 microseconds. */
const MOST_STEPS = 600_000;
/** Steps for a call of the lexer, whatever the length of the text. */
const CALL = 50;
/** Depth of quotes and lists, and of emphasis and links. */
const DEEPEST = 12;
/** Lines in one text that begin or end what is folded. */
const MOST_DETAILS = 200;
/** Link definitions in one text. */
const MOST_DEFINITIONS = 100;

const BARE_LINK = /^https?:\/\/[^\s<>"'`\\|]{1,2000}/i;
const DEFINITION = /^ {0,3}\[([^[\]\n]{1,200})\]:[ \t]*(\S{1,2000})/gm;
// A picture that is in the text itself.
const IMAGES = /(!\[[^\]\n]{0,200}\]\(data:image\/\w{3,4};base64,[A-Za-z0-9+/]+={0,2}\))/;
const IMAGE = /^!\[([^\]\n]{0,200})\]\((data:image\/\w{3,4};base64,[A-Za-z0-9+/]+={0,2})\)$/;
// A footnote, up to a blank line or the next one, and a reference to it.
const FOOTNOTE = /^ {0,3}\[\^([^[\]\s]{1,40})\]:[ \t]*([^\n]*(?:\n(?![ \t]*\n| {0,3}\[\^)[^\n]+)*)\n*/;
const REFERENCE = /^\[\^([^[\]\s]{1,40})\]/;
// Tags without attributes that stand for a mark of Markdown, or for one that it lacks.
const TAG = /^<(?:br *\/?|(b|strong|i|em|code|kbd|sub|sup|s|del)>([^<]{1,200})<\/\1)>/i;
const MARKS = /[*_~]/g;
// A place where something other than text may begin.
const NEXT = /[\\<![`*_~$]|https?:\/\/| ?\n/gi;
const QUOTE = /^ {0,3}>/;
const FENCE = /^[ \t]*(`{3,}|~{3,})/;
// White space belongs to the tag before it: else a line of spaces would be divided in all ways.
const DETAILS = /^(?: {0,3}(?=<)|[ \t]*(?=<[s/]))(<details( open(?:="")?)?>[ \t]*)?(?:<summary>([^\n]*?)<\/summary>[ \t]*)?(<\/details>[ \t]*)?\n?$/i;
// A line that begins an item of a list that is in no other.
const ITEM = /^(?:[-*+]|\d{1,9}[.)])[ \t]/;
// A line below the header of a table.
const ALIGNMENT = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
// A line that begins no list item and continues nothing.
const FRESH = /^(?![-*+>]|\d{1,9}[.)])\S/;

/** Steps taken for one text. A block or a text whose steps would go beyond the limit stays as it is. */
export class Steps {
  taken = 0;

  /** Takes steps; takes none and returns false if they would go beyond the limit. */
  take(/** @type {number} */ count) {
    if (this.taken + count > MOST_STEPS) return false;
    this.taken += count;
    return true;
  }
}

/** Tokenizer without HTML, with formulas, and with a text rule that takes linear time. */
class SafeTokenizer extends Tokenizer {
  definitions = 0;
  /** The text that is read, which ends with `source`. */
  inline = "";

  constructor(/** @type {Steps} */ steps) {
    super();
    this.steps = steps;
  }

  blockquote(/** @type {string} */ source) {
    // Looks at all that follows, and may take one line of it.
    if (QUOTE.test(source)) this.charge(source.length);
    return super.blockquote(source);
  }

  list(/** @type {string} */ source) {
    const token = super.list(source);
    // A quote that holds a list reads it again for each line that continues it.
    if (token) this.charge(2 * token.raw.length);
    return token;
  }

  charge(/** @type {number} */ count) {
    if (!this.steps.take(count)) throw new RangeError("too many steps");
  }

  /** The first rule of running text: a formula, or a character after a backslash. */
  escape(/** @type {string} */ source) {
    const raw = formulaAt(source, this.inline[this.inline.length - source.length - 1] ?? "");
    return raw === null ? super.escape(source) : /** @type {any} */ ({ type: "formula", raw, text: raw });
  }

  /** The block rule for HTML, which is text: a footnote in its place, before it is taken for a link's definition. */
  html(/** @type {string} */ source) {
    const match = FOOTNOTE.exec(source);
    if (!match) return undefined;
    const [raw, label, text] = match;
    return /** @type {any} */ ({ type: "footnote", raw, label, tokens: this.lexer.inline(text) });
  }

  /** The inline rule for HTML, which is text but for a few tags; a reference to a footnote. */
  tag(/** @type {string} */ source) {
    const note = source[1] === "^" ? REFERENCE.exec(source) : null;
    const { links } = /** @type {any} */ (this.lexer.tokens);
    if (note && `^${note[1].toLowerCase()}` in links) return /** @type {any} */ ({ type: "reference", raw: note[0], text: note[1] });
    const [raw, tag, inside] = (source[0] === "<" && TAG.exec(source)) || [""];
    if (raw === "") return undefined;
    return /** @type {any} */ (tag ? { type: "tag", raw, tag: tag.toLowerCase(), text: inside } : { type: "br", raw });
  }

  def(/** @type {string} */ source) {
    if (this.definitions >= MOST_DEFINITIONS) return undefined;
    const token = super.def(source);
    if (token) this.definitions += 1;
    return token;
  }

  url(/** @type {string} */ source) {
    const match = BARE_LINK.exec(source);
    if (!match) return undefined;
    const raw = withoutPunctuation(match[0]);
    return /** @type {any} */ ({ type: "link", raw, href: raw, text: raw, autolink: true, tokens: [{ type: "text", raw, text: raw }] });
  }

  inlineText(/** @type {string} */ source) {
    // A run of delimiters that opened nothing is text as a whole.
    const run = /^(?:`+|~+|[^])/.exec(source);
    NEXT.lastIndex = run ? run[0].length : 1;
    const next = NEXT.exec(source);
    let end = next ? next.index : source.length;
    if (next?.[0].endsWith("\n")) {
      while (end > 1 && source[end - 1] === " ") end -= 1;
      if (next.index + next[0].length - 1 - end < 2) end = next.index + next[0].length; // No hard break.
    }
    const raw = source.slice(0, end);
    return /** @type {any} */ ({ type: "text", raw, text: raw, escaped: false });
  }
}

/** Lexer that counts its steps and its depth. */
class SafeLexer extends Lexer {
  inlineDepth = 0;
  blockDepth = 0;

  constructor(/** @type {Steps} */ steps, /** @type {Record<string, any>} */ links) {
    const tokenizer = new SafeTokenizer(steps);
    const hooks = /** @type {any} */ ({ emStrongMask: (/** @type {string} */ masked) => withoutFormulas(tokenizer.inline, masked) });
    super({ gfm: true, tokenizer, hooks });
    this.steps = steps;
    this.reader = tokenizer;
    /** @type {any} */ (this.tokens).links = Object.assign(Object.create(null), links);
  }

  /** @type {(source: string, tokens?: any[], clipped?: boolean) => any} */
  blockTokens(source, tokens = [], clipped = false) {
    // What a quote or a list holds is read several times.
    const steps = CALL + source.length * (this.blockDepth === 0 ? 1 : 4);
    if (!this.steps.take(steps) || this.blockDepth >= DEEPEST) {
      tokens.push({ type: "plain", raw: source, text: source });
      return tokens;
    }
    this.blockDepth += 1;
    try {
      return super.blockTokens(source, tokens, clipped);
    } finally {
      this.blockDepth -= 1;
    }
  }

  inlineTokens(/** @type {string} */ source, /** @type {any[]} */ tokens = []) {
    for (const piece of source.length > MOST_INLINE ? piecesOf(source, MOST_INLINE) : [source]) {
      const [raw, text, href] = IMAGE.exec(piece) ?? [];
      if (raw !== undefined) {
        tokens.push({ type: "image", raw, href, text });
        continue;
      }
      const marks = piece.match(MARKS)?.length ?? 0;
      if (!this.steps.take(CALL + piece.length + marks ** 2) || this.inlineDepth >= DEEPEST) {
        tokens.push({ type: "text", raw: piece, text: piece });
        continue;
      }
      this.inlineDepth += 1;
      const outer = this.reader.inline;
      this.reader.inline = piece;
      try {
        super.inlineTokens(piece, tokens);
      } finally {
        this.inlineDepth -= 1;
        this.reader.inline = outer;
      }
    }
    return tokens;
  }
}

/**
 * Parses Markdown.
 * @param {unknown} source
 * @param {Steps} [steps] - counts the steps.
 * @returns {any[]} tokens of marked, without HTML; `{type: "plain", text}` is text beyond a limit.
 */
export function tokens(source, steps = new Steps()) {
  const { segments, rest } = segmentsOf(source);
  const links = linksOf(segments);
  const found = segments.flatMap((segment) => segmentTokens(segment, links, steps));
  return rest === "" ? found : [...found, { type: "plain", raw: rest, text: rest }];
}

/**
 * Parses a segment of Markdown.
 * @param {string} segment
 * @param {Record<string, any>} links - definitions of the whole text.
 * @param {Steps} steps
 * @returns {any[]}
 */
export function segmentTokens(segment, links, steps) {
  try {
    return [...new SafeLexer(steps, links).lex(segment)];
  } catch {
    // Too many steps, or marked gave up.
  }
  return [{ type: "plain", raw: segment, text: segment }];
}

/**
 * Cuts a text into segments. All but the last stay the same when the text grows.
 * @param {unknown} source
 * @returns {{segments: string[], rest: string}} `rest` is beyond the limit.
 */
export function segmentsOf(source) {
  const text = plain(source).replace(/\r\n?/g, "\n");
  const most = text.length > MOST_PARSED ? cutAt(text, MOST_PARSED) : text.length;
  const segments = [];
  let start = 0;
  let before = "";
  /** The fence of the code that the line is in. */
  let fence = "";
  let indented = false;
  let inTable = false;
  let details = 0;
  for (let at = 0; at < most;) {
    const end = text.indexOf("\n", at);
    const next = end < 0 || end >= most ? most : end + 1;
    const line = text.slice(at, Math.min(next, at + 400));
    const size = at - start;
    inTable = inTable ? line.includes("|") : fence === "" && isTable(before, line);
    const open = fence === "" && !inTable;
    const safe = open && before.trim() === "" && size >= SEGMENT && FRESH.test(line);
    const item = open && size >= LONG_SEGMENT && ITEM.test(line);
    const any = size >= (inTable ? LONGEST_TABLE : LONGEST_SEGMENT) && (fence === "" || indented);
    if (safe || item || any) {
      segments.push(text.slice(start, at));
      start = at;
      fence = "";
      inTable = false;
    }
    if (open && details < MOST_DETAILS && detailsOf(line) !== null) {
      details += 1;
      // It ends what is before it, and is a segment of its own.
      if (start < at) segments.push(text.slice(start, at));
      segments.push(text.slice(at, next));
      start = next;
    }
    const mark = FENCE.exec(line);
    if (mark && fence === "") {
      fence = mark[1];
      indented = /^(?: {4}|[ \t]*\t)/.test(line);
    } else if (mark && mark[1].startsWith(fence) && line.slice(mark[0].length).trim() === "") fence = "";
    before = line;
    at = next;
  }
  if (start < most) segments.push(text.slice(start, most));
  return { segments, rest: text.slice(most) };
}

/**
 * Reads a line that begins, names or ends what is folded; null for any other line.
 * @param {string} line
 * @returns {{opens: boolean, isOpen: boolean, closes: boolean, summary: string|null}|null}
 */
export function detailsOf(line) {
  const [whole, begin, isOpen, summary = null, end] = DETAILS.exec(line) ?? [];
  if (whole === undefined) return null;
  return { opens: begin !== undefined, isOpen: isOpen !== undefined, closes: end !== undefined, summary };
}

/**
 * Tells whether two lines are the head of a table, as marked counts its columns.
 * @param {string} header
 * @param {string} alignment
 */
function isTable(header, alignment) {
  if (!header.includes("|") || !ALIGNMENT.test(alignment.trimEnd())) return false;
  const columns = (/** @type {string} */ line) =>
    line
      .trim()
      .replace(/^\||\|$/g, "")
      .split(/(?<!\\)\|/).length;
  return columns(header) === columns(alignment);
}

/**
 * Finds the link definitions of a text, so that they hold in all of its segments.
 * @param {string[]} segments
 * @returns {Record<string, {href: string, title: string}>}
 */
export function linksOf(segments) {
  /** @type {Record<string, {href: string, title: string}>} */
  const links = Object.create(null);
  let count = 0;
  for (const segment of segments) {
    if (!segment.includes("]:")) continue;
    for (const [, label, href] of segment.matchAll(DEFINITION)) {
      const name = label.trim().replace(/\s+/g, " ").toLowerCase().toUpperCase().toLowerCase(); // As marked does.
      if (name in links) continue;
      links[name] = { href: href.replace(/^<(.*)>$/, "$1"), title: "" };
      count += 1;
      if (count >= MOST_DEFINITIONS) return links;
    }
  }
  return links;
}

/**
 * Takes off punctuation at the end of a bare link, and a parenthesis that it does not open.
 * @param {string} url
 */
function withoutPunctuation(url) {
  let end = url.length;
  const opened = url.split("(").length;
  let closed = url.split(")").length;
  for (; end > 0; end -= 1) {
    const last = url[end - 1];
    if (last === ")" && closed > opened) closed -= 1;
    else if (!".,;:!?*_~]}".includes(last)) break;
  }
  return url.slice(0, end);
}

/**
 * Cuts a text at white space into pieces of a size; a picture is a piece, however long.
 * @param {string} text
 * @param {number} most
 * @returns {string[]}
 */
function piecesOf(text, most) {
  const parts = text.includes("](data:") ? text.split(IMAGES) : [text];
  if (parts.length > 1) return parts.flatMap((part) => (IMAGE.test(part) ? part : piecesOf(part, most)));
  const pieces = [];
  let start = 0;
  while (text.length - start > most) {
    const cut = Math.max(text.lastIndexOf(" ", start + most - 1), text.lastIndexOf("\n", start + most - 1));
    const end = cut >= start + most / 2 ? cut + 1 : whole(text, start + most);
    pieces.push(text.slice(start, end));
    start = end;
  }
  pieces.push(text.slice(start));
  return pieces;
}

/**
 * Returns the best place to cut a text before a size: at a blank line, else at the end of a line.
 * @param {string} text
 * @param {number} most
 */
function cutAt(text, most) {
  for (const end of ["\n\n", "\n"]) {
    const at = text.lastIndexOf(end, most - end.length);
    if (at >= most / 2) return at + end.length;
  }
  return whole(text, most);
}

/**
 * Returns an index that does not cut a character in two.
 * @param {string} text
 * @param {number} index
 */
function whole(text, index) {
  return /[\ud800-\udbff]/.test(text[index - 1] ?? "") ? index - 1 : index;
}
