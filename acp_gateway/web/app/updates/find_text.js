/** Finds a text in the blocks of a transcript, as it is typed and also within words. Pure. */
import { endText } from "./turn_ends.js";

/** Characters of a text that are looked for, at most. */
const LONGEST = 200;

/**
 * Returns a text as it is compared: letters of both cases are the same, and so is white space. Its length stays.
 * @param {string} text
 */
export function comparable(text) {
  const lower = text.toLowerCase();
  return (lower.length === text.length ? lower : text).replace(/\s/g, " ");
}

/** Returns what is looked for of what was typed. @param {string} typed */
export function wantedOf(typed) {
  return comparable(typed.slice(0, LONGEST)).trim().replace(/ +/g, " ");
}

/**
 * Returns where a text is in another one, both comparable.
 * @param {string} text
 * @param {string} wanted - not empty.
 * @returns {number[]}
 */
export function placesIn(text, wanted) {
  const places = [];
  for (let at = text.indexOf(wanted); at >= 0; at = text.indexOf(wanted, at + wanted.length)) places.push(at);
  return places;
}

/** The comparable texts of blocks, and what was looked for last: a block that changes is another object. @type {WeakMap<object, {text: string, wanted: string, count: number}>} */
const known = new WeakMap();

/**
 * Returns the blocks in which a text is, the last one first, and how often it is in each.
 * @param {import("./fold.js").Block[]} blocks
 * @param {string} wanted - comparable; nothing is found for an empty one.
 * @returns {{key: string, count: number}[]}
 */
export function blocksWith(blocks, wanted) {
  const found = [];
  for (let i = blocks.length - 1; i >= 0 && wanted !== ""; i -= 1) {
    const block = blocks[i];
    const one = known.get(block) ?? { text: comparable(textOf(block)), wanted: "", count: 0 };
    known.set(block, one);
    if (one.wanted !== wanted) {
      one.wanted = wanted;
      one.count = placesIn(one.text, wanted).length;
    }
    if (one.count > 0) found.push({ key: block.key, count: one.count });
  }
  return found;
}

/**
 * Returns what is shown of a block, with its parts unfolded.
 * @param {import("./fold.js").Block} block
 */
function textOf({ title, description, parts = [], entries = [], content = [], terminals = {}, rawInput, rawOutput, end }) {
  const texts = [title, description, end && endText(end), rawInput?.command, ...entries.map((entry) => entry.content)];
  for (const part of [...parts, ...content.map((/** @type {any} */ one) => one.part ?? one)]) {
    texts.push(part.text, part.title, part.name, part.path, part.oldText, part.newText);
  }
  texts.push(...Object.values(terminals).map(({ output }) => output));
  if (content.length === 0) texts.push(rawOutput, rawOutput?.output, rawOutput?.stdout, rawOutput?.text, rawOutput?.content);
  return texts.filter((text) => typeof text === "string").join("\n");
}
