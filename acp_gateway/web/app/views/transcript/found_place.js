/** The place of an update in a transcript, and of what was found there in the document. */
import { comparable, placesIn } from "../../updates/find_text.js";

/** Time in ms in which what is drawn later, such as a diff, may still show the place. */
export const WAITS = 1000;

/** Places in an element that are marked, at most. */
const MOST = 1000;

/** Elements whose text is of one piece. */
const PIECES = "p, li, td, th, h2, pre, dt, dd, summary, figcaption, button, div, section, article";

/**
 * Returns the block with an update: the tool call that it changes, else the last one that begins up to it, or the
 * first one of all.
 * @param {import("../../updates/fold.js").Block[]} blocks
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
 * Returns where a text is seen in an element, as ranges of the document in its order: also where colours and marks divide
 * a word.
 * @param {Element} element
 * @param {string} wanted - comparable.
 * @returns {Range[]}
 */
export function rangesOf(element, wanted) {
  if (wanted === "") return [];
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  /** Nodes, each with its place in the text. @type {{node: Node, at: number}[]} */
  const nodes = [];
  let text = "";
  let before = /** @type {Element|null|undefined} */ (null);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const piece = node.parentElement?.closest(PIECES);
    if (node.parentElement?.closest(".hidden")) continue;
    if (piece !== before) text += "\n";
    before = piece;
    nodes.push({ node, at: text.length });
    text += comparable(node.nodeValue ?? "");
  }
  const ranges = [];
  let i = 0;
  for (const place of placesIn(text, wanted)) {
    while (i + 1 < nodes.length && nodes[i + 1].at <= place) i += 1;
    let last = i;
    while (last + 1 < nodes.length && nodes[last + 1].at < place + wanted.length) last += 1;
    const range = document.createRange();
    range.setStart(nodes[i].node, place - nodes[i].at);
    range.setEnd(nodes[last].node, place + wanted.length - nodes[last].at);
    if (range.getClientRects().length > 0) ranges.push(range);
    if (ranges.length === MOST) break;
  }
  return ranges;
}

/**
 * Scrolls what scrolls for itself within an element, such as a long output, to a range.
 * @param {Range} range
 * @param {Element} element
 */
export function uncover(range, element) {
  for (let box = range.startContainer.parentElement; box !== null && box !== element; box = box.parentElement) {
    const [place, edge] = [range.getBoundingClientRect(), box.getBoundingClientRect()];
    if (box.scrollHeight > box.clientHeight) box.scrollTop += place.top - edge.top - box.clientHeight / 2;
    const isBeside = place.left < edge.left || place.right > edge.right;
    if (isBeside && box.scrollWidth > box.clientWidth) box.scrollLeft += place.left - edge.left - box.clientWidth / 2;
  }
}

/** What is marked in each transcript, by the name of the mark. @type {Map<string, Map<object, Range[]>>} */
const marks = new Map();

/**
 * Marks ranges of a transcript, where the browser can, in place of those before in it.
 * @param {object} owner - the transcript.
 * @param {"found"|"found-now"} name - all places, or the one that is gone to.
 * @param {Range[]} ranges
 */
export function mark(owner, name, ranges) {
  if (typeof Highlight === "undefined" || !CSS.highlights) return;
  const owners = marks.get(name) ?? new Map();
  marks.set(name, owners);
  if (ranges.length === 0 && !owners.has(owner)) return;
  if (ranges.length === 0) owners.delete(owner);
  else owners.set(owner, ranges);
  const all = new Highlight(...[...owners.values()].flat());
  all.priority = name === "found" ? 0 : 1;
  if (owners.size === 0) CSS.highlights.delete(name);
  else CSS.highlights.set(name, all);
}
