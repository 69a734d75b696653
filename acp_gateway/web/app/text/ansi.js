/**
 * Turns terminal output into spans with classes.
 *
 * Only SGR sequences (colours and styles) have an effect. Every other control sequence is dropped, so nothing can move
 * the cursor, set a title or write to a clipboard. A lone carriage return discards its line, as a terminal overwrites
 * it. Hidden characters are made visible. Runs in linear time.
 */
import { visible } from "./format.js";

/** @typedef {{text: string, className: string}} Span */

// One token: CSI with parameters, a string sequence (OSC, DCS, SOS, PM, APC), any other escape, or a run of text.
const TOKEN =
  // eslint-disable-next-line no-control-regex
  /(?:\u001b\[|\u009b)([\u0020-\u003f]*)([\u0040-\u007e])?|(?:\u001b[\]PX^_]|[\u0090\u0098\u009d-\u009f])([^\u0007\u001b\u009c\n]*)(\u0007|\u009c|\u001b\\)?|\u001b[\u0020-\u002f]*[\u0030-\u007e]?|\r\n|\r|[^\u001b\u009b\u0090\u0098\u009d-\u009f\r]+/g;

/** Control characters that are not shown. */
// eslint-disable-next-line no-control-regex
const DROPPED = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;

/** Spans that one text becomes at most, each an element of the page; what follows keeps the last style. */
const MOST_SPANS = 2000;

/** Sequences of one text that are read at most; further ones are dropped. */
const MOST_STYLES = 4000;

/** Values of the components in the colour cube of the 256 colours. */
const CUBE = [0, 95, 135, 175, 215, 255];

/** The sixteen colours, as xterm shows them, to which all others are reduced. */
const SIXTEEN = [
  [0, 0, 0],
  [205, 0, 0],
  [0, 205, 0],
  [205, 205, 0],
  [0, 0, 238],
  [205, 0, 205],
  [0, 205, 205],
  [229, 229, 229],
  [127, 127, 127],
  [255, 0, 0],
  [0, 255, 0],
  [255, 255, 0],
  [92, 92, 255],
  [255, 0, 255],
  [0, 255, 255],
  [255, 255, 255],
];

/**
 * Splits terminal output into spans.
 * @param {string} text
 * @returns {Span[]} `className` holds any of `fg-0`…`fg-15`, `bg-0`…`bg-15`, `bold`, `dim`, `italic`, `underline`,
 *   `strike`, `inverse`, separated by spaces; empty without a style.
 */
export function ansiSpans(text) {
  /** @type {Span[]} */
  const spans = [];
  /** @type {Style} */
  const style = {};
  let className = "";
  let styles = 0;
  let changed = false; // True if `className` is not that of `style`.
  let line = 0; // Index of the span in which the current line begins.
  let rest = 0; // Length of the part of that span which belongs to earlier lines.
  let overwrite = false;

  let raw = ""; // Text that is not written yet.
  const flush = () => {
    const shown = visible(raw.replace(DROPPED, ""));
    raw = "";
    if (shown === "") return;
    if (overwrite && !shown.startsWith("\n")) {
      spans.length = Math.min(spans.length, line + (rest > 0 ? 1 : 0));
      if (rest > 0) spans[line].text = spans[line].text.slice(0, rest);
    }
    overwrite = false;
    if (changed) className = classOf(style);
    changed = false;
    const last = spans[spans.length - 1];
    if (last && (last.className === className || spans.length >= MOST_SPANS)) last.text += shown;
    else spans.push({ text: shown, className });
    const end = shown.lastIndexOf("\n");
    if (end >= 0) {
      const tail = shown.length - end - 1;
      line = spans.length - 1;
      rest = spans[line].text.length - tail;
    }
  };

  for (const match of text.matchAll(TOKEN)) {
    const [token, parameters, final, body, terminator] = match;
    if (token === "\r\n") raw += "\n";
    else if (token === "\r") {
      flush();
      overwrite = true;
    } else if (parameters !== undefined) {
      if (final === "m" && styles < MOST_STYLES && spans.length < MOST_SPANS && /^[\d;:]*$/.test(parameters)) {
        flush();
        restyle(style, parameters);
        styles += 1;
        changed = true;
      }
      if (final === undefined) raw += parameters;
    } else if (body !== undefined) {
      if (terminator === undefined) raw += body; // Without its end a sequence would hide what follows.
    } else if (token[0] !== "\u001b") raw += token;
  }
  flush();
  return spans;
}

/**
 * @typedef {{fg?: number, bg?: number, bold?: boolean, dim?: boolean, italic?: boolean, underline?: boolean, strike?:
 * boolean, inverse?: boolean}} Style
 */

/**
 * Applies the parameters of one SGR sequence to a style.
 * @param {Style} style
 * @param {string} parameters
 */
function restyle(style, parameters) {
  const codes = parameters.split(/[;:]/, 64).map((code) => Number(code.slice(0, 9)));
  for (let i = 0; i < codes.length; i += 1) {
    const code = codes[i];
    if (code === 0) {
      for (const name of Object.keys(style)) delete style[/** @type {keyof Style} */ (name)];
    } else if (code === 1) style.bold = true;
    else if (code === 2) style.dim = true;
    else if (code === 3) style.italic = true;
    else if (code === 4) style.underline = true;
    else if (code === 7) style.inverse = true;
    else if (code === 9) style.strike = true;
    else if (code === 22) style.bold = style.dim = undefined;
    else if (code === 23) style.italic = undefined;
    else if (code === 24) style.underline = undefined;
    else if (code === 27) style.inverse = undefined;
    else if (code === 29) style.strike = undefined;
    else if (code === 39) style.fg = undefined;
    else if (code === 49) style.bg = undefined;
    else if (code >= 30 && code <= 37) style.fg = code - 30;
    else if (code >= 40 && code <= 47) style.bg = code - 40;
    else if (code >= 90 && code <= 97) style.fg = code - 82;
    else if (code >= 100 && code <= 107) style.bg = code - 92;
    else if (code === 38 || code === 48) {
      const colour = codes[i + 1] === 5 ? indexed(codes[i + 2]) : nearest(codes.slice(i + 2, i + 5));
      i += codes[i + 1] === 5 ? 2 : 4;
      if (code === 38) style.fg = colour;
      else style.bg = colour;
    }
  }
}

/**
 * Reduces one of the 256 colours to the sixteen.
 * @param {number|undefined} colour
 */
function indexed(colour) {
  if (colour === undefined || !(colour >= 0 && colour <= 255)) return undefined;
  if (colour < 16) return colour;
  if (colour >= 232) return nearest(Array(3).fill(8 + 10 * (colour - 232)));
  const cube = colour - 16;
  return nearest([CUBE[Math.floor(cube / 36)], CUBE[Math.floor(cube / 6) % 6], CUBE[cube % 6]]);
}

/**
 * Returns the nearest of the sixteen colours.
 * @param {number[]} rgb
 */
function nearest(rgb) {
  if (rgb.length < 3) return undefined;
  const distances = SIXTEEN.map((known) => known.reduce((sum, value, i) => sum + (value - rgb[i]) ** 2, 0));
  return distances.indexOf(Math.min(...distances));
}

/** @param {Style} style */
function classOf(style) {
  const names = Object.entries(style).filter(([, value]) => value !== undefined);
  return names
    .map(([name, value]) => (value === true ? name : `${name}-${value}`))
    .sort()
    .join(" ");
}
