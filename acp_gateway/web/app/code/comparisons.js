/** The rows and colours of changes: computed once for each content object of an agent, long ones by the worker. */
import { useEffect, useRef, useState } from "../../vendor/hooks.js";
import { reader } from "./code_reader.js";
import { keepColours } from "./colours.js";
import { CONTEXT, diffCounts, diffRows } from "../text/diff.js";
import { languageOfFile, languageOfWord } from "./languages.js";

/** Length of both texts together, in characters, from which on the worker compares them. */
const LONG = 50_000;

/**
 * @typedef {object} Comparison
 * @property {object[]|null} short - rows with some unchanged lines around each change; null while they are computed.
 * @property {object[]|null} all - rows with all lines, if they were asked for.
 * @property {{added: number, deleted: number}|null} counts
 * @property {object[]|null} colours - of the old text and of the new one.
 * @property {Promise<void>|null} coming
 */

/** @type {WeakMap<object, Comparison>} */
const known = new WeakMap();

function isLong({ oldText, newText }) {
  return Boolean(oldText && newText) && oldText.length + newText.length > LONG;
}

/** Computes rows here, or has them computed. `done` is called with them. */
function compute(content, context, done) {
  const { oldText = null, newText = null } = content;
  const here = () => diffRows(oldText, newText, { context });
  if (!isLong(content)) return void done(here());
  // JSON has no infinity, but messages to workers do.
  return reader.rows(oldText, newText, context).then((rows) => done(rows ?? here()));
}

/** The comparison of a change, as far as it is known; what is not is on its way. @param {object} content @returns {any} */
function comparisonOf(content) {
  let found = /** @type {any} */ (known.get(content));
  if (!found) {
    found = { short: null, all: null, counts: null, colours: null, coming: null };
    known.set(content, found);
    const set = (rows) => {
      found.short = rows;
      found.counts = diffCounts(rows);
      found.coming = null;
    };
    found.coming = compute(content, CONTEXT, set) ?? null;
  }
  return found;
}

/** The comparisons of several changes; the component is rendered again when more is known. */
export function useComparisons(contents) {
  const renew = useRenewal();
  const found = contents.map(comparisonOf);
  // They may come before the effect runs.
  const coming = found.map((one) => one.coming);
  useEffect(() => renew(coming), contents);
  return found;
}

/** The comparison of one change that is shown, with colours once they are known, and with all rows if `whole`. */
export function useShownChange(content, whole) {
  const renew = useRenewal();
  const [found] = useComparisons([content]);
  useEffect(() => {
    if (!whole || found.all !== null) return undefined;
    const coming = compute(content, Infinity, (rows) => {
      found.all = rows;
    });
    return renew([coming ?? Promise.resolve()]);
  }, [content, whole]);
  useEffect(() => {
    const language = languageOfFile(content.path);
    if (language === null || found.colours !== null) return undefined;
    const { oldText = null, newText = null } = content;
    const coming = reader.colourChange(oldText, newText, language).then((colours) => {
      found.colours = colours;
    });
    return renew([coming]);
  }, [content]);
  return found;
}

/** A function that renders the component again after promises, for an effect. */
function useRenewal() {
  const [, again] = useState(0);
  return (promises) => {
    let isHere = true;
    for (const one of promises) one?.then(() => isHere && again((count) => count + 1));
    return () => {
      isHere = false;
    };
  };
}

const texts = keepColours();

/** The colours of a text, of its beginning while it grows, or null. `word` is what stands behind its fence. */
export function useTextColours(text, word) {
  const language = word === null ? null : languageOfWord(word);
  const [done, setDone] = useState({ text: "", colours: /** @type {import("./colours.js").Colours|null} */ (null) });
  const here = useRef({ isAsked: false, isGone: false, answered: "" }).current;
  useEffect(() => () => {
    here.isGone = true;
  }, []);
  const key = `${language}\n${text}`;
  const colours = texts.get(key);
  useEffect(() => {
    // One question is out at a time: what has grown until the answer is asked with it. An answer may have come since
    // the component was rendered, so `colours` and `done` may be old here.
    if (language === null || here.isAsked || here.answered === text || texts.get(key)) return;
    here.isAsked = true;
    reader.colour(text, language).then((found) => {
      here.isAsked = false;
      here.answered = text;
      if (found) texts.set(key, found);
      if (!here.isGone) setDone({ text, colours: found });
    });
  }, [key, done]);
  if (colours) return colours;
  return done.text !== "" && text.startsWith(done.text) ? done.colours : null;
}
