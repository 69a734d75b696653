/** The place of an update in a transcript, and of what was found there in the document. */

/** Characters of a text around the first marked word by which it is found, at most. */
const MOST = 60;

/** Time in ms in which what is drawn later, such as a diff, may still show the place. */
export const WAITS = 1000;

/**
 * Returns the block with an update: the tool call that it changes, else the last one that begins up to it, or the
 * first one of all.
 * @param {import("./fold_blocks.js").Block[]} blocks
 * @param {number} seq
 */
export function blockAt(blocks, seq) {
  const changed = blocks.find(({ updates }) => updates?.includes(seq));
  if (changed) return changed;
  let found = blocks[0];
  for (const block of blocks) if (block.seq <= seq && block.seq >= found.seq) found = block;
  return found;
}

/**
 * Returns what to look for in the document: the words that were found with those around them, then alone.
 * @param {{text: string, marks: [number, number][]}} snippet - places are counted in code points.
 * @returns {string[]} the first is the most exact one.
 */
export function textsOf({ text, marks }) {
  if (marks.length === 0) return [];
  const letters = [...text];
  const [begin, end] = marks[0];
  const around = letters.slice(begin, Math.max(end, begin + MOST)).join("").replace(/…$/, "");
  return [around, letters.slice(begin, end).join("")].filter((one) => one.trim() !== "");
}

/**
 * Returns where the first text of a list is in an element, as a range of the document; null if none is in one node.
 * @param {Element} element
 * @param {string[]} texts
 * @returns {Range|null}
 */
export function rangeOf(element, texts) {
  const nodes = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  const read = [];
  while (nodes.nextNode()) read.push({ node: nodes.currentNode, text: (nodes.currentNode.nodeValue ?? "").toLowerCase() });
  for (const wish of texts.map((one) => one.toLowerCase())) {
    for (const { node, text } of read) {
      const at = text.indexOf(wish);
      // Some letters have another length in lower case.
      if (at < 0 || at + wish.length > (node.nodeValue ?? "").length) continue;
      const range = document.createRange();
      range.setStart(node, at);
      range.setEnd(node, at + wish.length);
      if (range.getClientRects().length > 0) return range;
    }
  }
  return null;
}

/**
 * Scrolls what scrolls for itself within an element, such as a long output, to a range.
 * @param {Range} range
 * @param {Element} element
 */
export function uncover(range, element) {
  for (let box = range.startContainer.parentElement; box !== null && box !== element; box = box.parentElement) {
    const { top } = range.getBoundingClientRect();
    const edge = box.getBoundingClientRect().top;
    if (box.scrollHeight > box.clientHeight) box.scrollTop += top - edge - box.clientHeight / 2;
  }
}

/** What is marked in each transcript. @type {Map<object, Range>} */
const marks = new Map();

/**
 * Marks a range of a transcript, where the browser can, in place of the one before in it; null marks none.
 * @param {object} owner - the transcript.
 * @param {Range|null} range
 */
export function mark(owner, range) {
  if (typeof Highlight === "undefined" || !CSS.highlights) return;
  if (range === null) marks.delete(owner);
  else marks.set(owner, range);
  if (marks.size === 0) CSS.highlights.delete("found");
  else CSS.highlights.set("found", new Highlight(...marks.values()));
}
