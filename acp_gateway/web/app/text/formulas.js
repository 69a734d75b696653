/**
 * Finds formulas in running text: `$…$`, `$$…$$`, `\(…\)`, and `\[…\]` on lines of their own. Pure.
 *
 * They are shown as their source: without this, Markdown takes their underscores and stars for emphasis. Prices and
 * names of variables are not formulas: the sign that closes one stands behind something, and before no letter or digit.
 */

// What is between two signs has a bounded length, so that a text takes linear time.
const INLINE = /^\$(?![\s$])([^$`\n]{0,199}[^$`\s\\])\$(?![\w$])/;
const DISPLAY = /^\$\$(?!\$)[^$`]{1,1000}\$\$(?!\$)/;
const PARENTHESES = /^\\\((?:[^`\n\\]|\\(?!\))){1,200}\\\)/;
const BRACKETS = /^\\\[(?:[^`\\]|\\(?!\])){1,1000}\\\](?=[ \t]*(?:\n|$))/;
/** What a formula has that begins with a number, unless it is one word: "$5m and 6$" has none. */
const SIGN = /[\\^_={}+*/<>]|^\S+$/;
/** Before it a dollar sign opens nothing. */
const BEFORE = /[\w$\\]$/;
const CODE = /^(`+)(?!`)[^]*?[^`]\1(?!`)/;

/**
 * Returns the formula at the beginning of a text, with its signs; null if there is none.
 * @param {string} text
 * @param {string} before - the character before it; empty for none.
 * @returns {string|null}
 */
export function formulaAt(text, before) {
  if (text[0] === "\\") {
    if (text[1] === "(") return PARENTHESES.exec(text)?.[0] ?? null;
    if (text[1] === "[" && (before === "" || before === "\n")) return BRACKETS.exec(text)?.[0] ?? null;
    return null;
  }
  if (text[0] !== "$" || BEFORE.test(before)) return null;
  const display = DISPLAY.exec(text);
  if (display) return display[0];
  const found = INLINE.exec(text);
  return found && (!/^\d/.test(found[1]) || SIGN.test(found[1])) ? found[0] : null;
}

/**
 * Returns a text with other characters in place of its formulas, for the search of the ends of emphasis.
 * @param {string} source
 * @param {string} masked - the same text with other parts replaced, as long as it.
 * @returns {string} as long as it.
 */
export function withoutFormulas(source, masked) {
  if (source.length !== masked.length || !/\$|\\[([]/.test(source)) return masked;
  let result = masked;
  for (let at = 0; at < source.length;) {
    const rest = source.slice(at);
    const formula = formulaAt(rest, source[at - 1] ?? "");
    if (formula !== null) result = result.slice(0, at) + "a".repeat(formula.length) + result.slice(at + formula.length);
    const skipped = formula ?? (rest[0] === "`" ? (CODE.exec(rest)?.[0] ?? /^`+/.exec(rest)?.[0]) : rest[0] === "\\" ? rest.slice(0, 2) : rest[0]);
    at += skipped?.length ?? 1;
  }
  return result;
}
