/** Colours code and compares long texts, beside the page's own thread. It is loaded when the first code is shown. */
import highlighter from "../../vendor/highlight/core.js";
import { Collector, coloursOf } from "./colours.js";
import { diffRows, shownTexts } from "../text/diff.js";
import { filesOf } from "./languages.js";

highlighter.configure({ __emitter: Collector });

/** Rows in one message. */
const PART = 1000;

/** Languages that are there, or on their way. @type {Map<string, Promise<void>>} */
const loaded = new Map();

/** @param {string} language */
async function load(language) {
  for (const name of filesOf(language)) {
    if (!loaded.has(name)) {
      loaded.set(
        name,
        import(`../../vendor/highlight/languages/${name}.js`).then((module) => highlighter.registerLanguage(name, module.default)),
      );
    }
    await loaded.get(name);
  }
}

/** @param {string} text @param {string} language */
function colour(text, language) {
  return coloursOf(text, highlighter.highlight(text, { language, ignoreIllegals: true })._emitter.spans);
}

/** @type {Record<string, (asked: any) => Promise<any>>} */
const WORK = {
  /** The colours of one text. */
  text: async ({ text, language }) => {
    await load(language);
    return [colour(text, language)];
  },

  /** The colours of both texts of a change, as its rows show them. */
  change: async ({ oldText, newText, language }) => {
    await load(language);
    return shownTexts(oldText, newText).map((text) => colour(text, language));
  },

  /** The rows of a change, which are sent in parts: the page has to read each of them. */
  rows: async ({ oldText, newText, context }) => diffRows(oldText, newText, { context }),
};

self.onmessage = async ({ data: { id, kind, ...rest } }) => {
  try {
    const result = await WORK[kind](rest);
    const buffers = kind === "rows" ? [] : result.flatMap((/** @type {import("./colours.js").Colours} */ { starts, spans }) => [starts.buffer, spans.buffer]);
    if (kind === "rows") while (result.length > PART) self.postMessage({ id, part: result.splice(0, PART) });
    self.postMessage({ id, result }, { transfer: buffers });
  } catch (error) {
    self.postMessage({ id, error: String(error) });
  }
};
