/**
 * Renders Markdown as vnodes, by a table of the types of tokens.
 *
 * Nothing is parsed as HTML: tags, comments and declarations are text. Links lead to http, https and mailto only,
 * images are shown only where nothing has to be fetched.
 */
import { oneLine, plain, visible } from "./format.js";
import { detailsOf, linksOf, segmentsOf, segmentTokens, Steps, tokens } from "./markdown_lexer.js";

export { tokens };

const DATA_IMAGE = /^data:image\/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+={0,2}$/;

/** Depth to which what is folded may hold what is folded. */
const DEEPEST = 5;

/** Characters from which on the text of a cell is broken into lines. */
const LONG_CELL = 24;

/** The direction of a text: that of its first letter. */
const AUTO = { dir: "auto" };

/**
 * Returns the direction of what holds texts that have their own: browsers look for none there.
 * @param {any} token
 * @returns {{dir: string}|null}
 */
function sideOf(token) {
  const [letter = ""] = /\p{L}/u.exec(plain(token.raw)) ?? [];
  return /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]|[\ud802\ud803\ud83a\ud83b]/.test(letter) ? { dir: "rtl" } : null;
}

/** @typedef {(tag: string, attributes: object|null, ...children: any[]) => any} H */

/**
 * Renders Markdown.
 * @param {H} h - makes a vnode.
 * @param {unknown} source
 * @param {Map<string, any>} [cache] - of this text, kept while it grows: what was rendered before is returned again.
 * @returns {any[]} vnodes and strings.
 */
export function renderMarkdown(h, source, cache = new Map()) {
  const { segments, rest } = segmentsOf(source);
  const links = linksOf(segments);
  // Another definition may change any segment.
  const definitions = JSON.stringify(links);
  if (cache.get("") !== definitions) cache.clear();
  const before = new Map(cache);
  cache.clear();
  cache.set("", definitions);
  const steps = new Steps();
  /** @type {any[]} */
  const nodes = [];
  /** What is folded and not ended, from the outside in. @type {{isOpen: boolean, summary: any[], nodes: any[]}[]} */
  const folds = [];
  const put = (/** @type {any[]} */ made) => (folds.at(-1)?.nodes ?? nodes).push(...made);
  const close = () => {
    const { isOpen, summary, nodes: inside } = /** @type {any} */ (folds.pop());
    put([h("details", { open: isOpen }, h("summary", AUTO, summary), inside)]);
  };
  segments.forEach((segment, index) => {
    const details = detailsOf(segment);
    // Without what it belongs to such a line is text.
    const isMark = details !== null && (details.opens ? folds.length < DEEPEST : folds.length > 0);
    const key = `${index} ${segment}`;
    const known = before.get(key) ?? all(h, segmentTokens(isMark ? (details.summary ?? "") : segment, links, steps));
    cache.set(key, known);
    if (!isMark) return put(known);
    if (details.opens) folds.push({ isOpen: details.isOpen, summary: ["Details"], nodes: [] });
    if (details.summary !== null) folds[folds.length - 1].summary = known;
    if (details.closes) close();
    return undefined;
  });
  while (folds.length > 0) close();
  if (rest !== "") nodes.push(h("div", { class: "plain", dir: "auto" }, visible(rest)));
  return nodes;
}

/**
 * Returns Markdown as text, without its marks: for a screen reader.
 * @param {string} source
 * @returns {string} in one line.
 */
export function markdownText(source) {
  const words = (/** @type {any} */ node) => {
    if (typeof node === "string") return node;
    const { tag, attributes, children } = node;
    const inside = children.flat(Infinity).filter(Boolean).map(words).join("");
    const own = attributes?.["aria-label"] ?? attributes?.alt ?? "";
    return /^(?:p|h2|li|pre|tr|td|th|div|br|hr|blockquote|input)$/.test(tag) ? ` ${own}${inside} ` : own + inside;
  };
  /** @type {H} */
  const h = (tag, attributes, ...children) => ({ tag, attributes, children });
  return renderMarkdown(h, source)
    .map(words)
    .join("")
    .replace(/\s+/g, " ")
    .trim();
}

/**
 * Returns a link's address if it may be followed: http, https and mailto, without credentials.
 * @param {unknown} url
 * @returns {string|null}
 */
export function safeLink(url) {
  const text = plain(url).trim();
  // eslint-disable-next-line no-control-regex
  if (text.length > 4096 || /[\u0000-\u0020\u007f-\u009f]/.test(text)) return null;
  if (!/^(?:https?:\/\/|mailto:)[^/\\]/i.test(text)) return null;
  try {
    const parsed = new URL(text);
    const known = ["http:", "https:", "mailto:"].includes(parsed.protocol);
    return known && parsed.username === "" && parsed.password === "" ? parsed.href : null;
  } catch {
    return null;
  }
}

/**
 * Returns an image's address if it may be loaded: data: of a bitmap, or blob:.
 * @param {unknown} url
 * @returns {string|null}
 */
export function safeImage(url) {
  const text = plain(url).trim();
  return DATA_IMAGE.test(text) || /^blob:[\w+.-]+:\/\/[\w.:[\]-]+\/[\w-]+$/.test(text) ? text : null;
}

/** Tags that an agent may write, and what stands for them. */
const TAGS = Object.assign(Object.create(null), {
  b: "strong",
  strong: "strong",
  i: "em",
  em: "em",
  s: "del",
  del: "del",
  code: "code",
  kbd: "kbd",
  sub: "sub",
  sup: "sup",
});

/** Vnodes by type of token; a type that is not here becomes its text. */
const TABLE = Object.assign(Object.create(null), {
  space: () => null,
  def: () => null,
  br: (/** @type {H} */ h) => h("br", null),
  hr: (/** @type {H} */ h) => h("hr", null),
  // The page has its own h1. An agent may begin with any level, and the order of headings must have no gap.
  heading: (/** @type {H} */ h, /** @type {any} */ t) => h("h2", { class: `level-${Number(t.depth)}`, dir: "auto" }, inner(h, t)),
  paragraph: (/** @type {H} */ h, /** @type {any} */ t) => h("p", AUTO, inner(h, t)),
  plain: (/** @type {H} */ h, /** @type {any} */ t) => h("div", { class: "plain", dir: "auto" }, visible(t.text)),
  blockquote: (/** @type {H} */ h, /** @type {any} */ t) => h("blockquote", sideOf(t), inner(h, t)),
  strong: (/** @type {H} */ h, /** @type {any} */ t) => h("strong", null, inner(h, t)),
  em: (/** @type {H} */ h, /** @type {any} */ t) => h("em", null, inner(h, t)),
  del: (/** @type {H} */ h, /** @type {any} */ t) => h("del", null, inner(h, t)),
  codespan: (/** @type {H} */ h, /** @type {any} */ t) => h("code", null, visible(t.text)),
  formula: (/** @type {H} */ h, /** @type {any} */ t) =>
    h("code", { title: "A formula, shown as its source" }, visible(t.text)),
  footnote: (/** @type {H} */ h, /** @type {any} */ t) => h("p", AUTO, h("sup", null, visible(t.label)), " ", inner(h, t)),
  reference: (/** @type {H} */ h, /** @type {any} */ t) => h("sup", null, visible(t.text)),
  tag: (/** @type {H} */ h, /** @type {any} */ t) => h(TAGS[t.tag], null, visible(unescaped(t.text))),
  escape: (/** @type {H} */ _h, /** @type {any} */ t) => plain(t.text),
  checkbox: (/** @type {H} */ h, /** @type {any} */ t) =>
    h("input", {
      type: "checkbox",
      disabled: true,
      checked: Boolean(t.checked),
      "aria-label": t.checked ? "done" : "to do",
    }),
  text: (/** @type {H} */ h, /** @type {any} */ t) =>
    Array.isArray(t.tokens) ? inner(h, t) : unescaped(plain(t.text)),
  code,
  list,
  table,
  link,
  image,
});

/**
 * Renders tokens; neighbouring strings are joined.
 * @param {H} h
 * @param {any[]} list
 * @returns {any[]}
 */
function all(h, list) {
  /** @type {any[]} */
  const nodes = [];
  for (const token of list) {
    const render = TABLE[token.type];
    const found = render ? render(h, token) : plain(token.raw ?? token.text);
    for (const node of Array.isArray(found) ? found : [found]) {
      const last = nodes.length - 1;
      if (typeof node === "string" && typeof nodes[last] === "string") nodes[last] += node;
      else if (node !== null) nodes.push(node);
    }
  }
  return nodes;
}

/**
 * @param {H} h
 * @param {any} token
 */
function inner(h, token) {
  return Array.isArray(token.tokens) ? all(h, token.tokens) : [unescaped(plain(token.text))];
}

/**
 * @param {H} h
 * @param {any} token
 */
function code(h, token) {
  const language = /^[A-Za-z0-9+#._-]{1,24}/.exec(plain(token.lang))?.[0] ?? null;
  return h("pre", language === null ? null : { "data-language": language }, h("code", null, visible(token.text)));
}

/**
 * @param {H} h
 * @param {any} token
 */
function list(h, token) {
  const items = token.items.map((/** @type {any} */ item) => {
    return h("li", item.task ? { class: "task", ...AUTO } : AUTO, inner(h, item));
  });
  if (!token.ordered) return h("ul", sideOf(token), items);
  const start = Number(token.start);
  return h("ol", { ...sideOf(token), ...(Number.isInteger(start) && start !== 1 && { start }) }, items);
}

/**
 * @param {H} h
 * @param {any} token
 */
function table(h, token) {
  const row = (/** @type {string} */ tag, /** @type {any[]} */ cells) => {
    const columns = cells.map((cell, i) => {
      const align = token.align[i];
      const known = align === "left" || align === "right" || align === "center";
      const names = [known && `align-${align}`, plain(cell.text).length > LONG_CELL && "is-long"].filter(Boolean);
      return h(tag, names.length > 0 ? { class: names.join(" "), ...AUTO } : AUTO, inner(h, cell));
    });
    return h("tr", null, columns);
  };
  const body = token.rows.map((/** @type {any[]} */ cells) => row("td", cells));
  return h(
    "div",
    { class: "table", tabindex: 0, role: "group", "aria-label": "Table", ...sideOf(token) },
    h("table", null, h("thead", null, row("th", token.header)), h("tbody", null, body)),
  );
}

/**
 * @param {H} h
 * @param {any} token
 */
function link(h, token) {
  return anchor(h, unescaped(plain(token.href)), inner(h, token));
}

/**
 * Renders an image, or a link to it if it would have to be fetched.
 * @param {H} h
 * @param {any} token
 */
function image(h, token) {
  const href = unescaped(plain(token.href));
  const alt = unescaped(plain(token.text));
  const source = safeImage(href);
  if (source !== null) return h("img", { src: source, alt: oneLine(alt) });
  return anchor(h, href, [oneLine(alt) || "image"]);
}

/**
 * @param {H} h
 * @param {string} url
 * @param {any[]} children
 */
function anchor(h, url, children) {
  const href = safeLink(url);
  const title = oneLine(href ?? url, 500);
  if (href === null) return h("span", { class: "no-link", title }, children);
  return h("a", { href, title, target: "_blank", rel: "noopener noreferrer" }, children);
}

const ENTITIES = Object.assign(Object.create(null), {
  amp: "&",
  lt: "<",
  gt: ">",
  quot: '"',
  apos: "'",
  nbsp: "\u00a0",
  copy: "\u00a9",
  reg: "\u00ae",
  trade: "\u2122",
  hellip: "\u2026",
  mdash: "\u2014",
  ndash: "\u2013",
  larr: "\u2190",
  rarr: "\u2192",
  uarr: "\u2191",
  darr: "\u2193",
  times: "\u00d7",
  deg: "\u00b0",
  middot: "\u00b7",
  bull: "\u2022",
  laquo: "\u00ab",
  raquo: "\u00bb",
  euro: "\u20ac",
});

/**
 * Replaces character references by their characters, which stay text.
 * @param {string} text
 */
function unescaped(text) {
  if (!text.includes("&")) return text;
  return text.replace(/&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([A-Za-z]{2,8}));/g, (whole, decimal, hex, name) => {
    if (name !== undefined) return ENTITIES[name] ?? whole;
    const point = decimal !== undefined ? parseInt(decimal, 10) : parseInt(hex, 16);
    const valid = point > 0 && point <= 0x10ffff && !(point >= 0xd800 && point <= 0xdfff);
    return valid ? String.fromCodePoint(point) : "\ufffd";
  });
}
