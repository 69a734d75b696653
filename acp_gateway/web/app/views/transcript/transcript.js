/**
 * The transcript of one session: only the blocks near the visible part are in the document.
 *
 * The blocks shown stand in normal flow in `.window`, which is moved to its place in `.canvas`; `.canvas` is as high as
 * all blocks together. After each change the blocks are measured, and the scroll position is set so that the block at
 * the upper edge stays where it is, or so that the end stays in view.
 */
import { Component } from "../../../vendor/preact.js";
import { useRef } from "../../../vendor/hooks.js";
import { html } from "../parts/html.js";
import { Block } from "./blocks.js";
import { WAITS, blockAt, mark, rangesOf, uncover } from "./found_place.js";
import { Heights } from "./heights.js";
import { Boundary, classes, labelIn, PaneOf, Pure, useNow } from "../parts/hooks.js";
import { Icon } from "../parts/icons.js";
import { silenceText } from "../../text/words.js";

/** Distance from the end, in pixels, within which the view follows what is added. */
const STICKS = 32;

/** Part of the view's height that is kept ready above and below it. */
const AHEAD = 0.8;

/** Part of the view's height that stays above a place that was found. */
const ABOVE = 0.25;

/** Height of a block that was never shown: a guess that keeps the scroll bar honest. */
export function estimate(block) {
  if (block.kind === "tool") return 44;
  if (block.kind === "thought") return 40;
  if (block.kind === "plan") return 60 + 28 * (block.entries?.length ?? 0);
  let length = 0;
  for (const part of block.parts ?? []) length += part.type === "text" ? part.text.length : 400;
  return 44 + Math.ceil(length / 76) * 24;
}

/** A reference to an element. @returns {{current: any}} */
const element = () => ({ current: null });

export class Transcript extends Component {
  constructor(props) {
    super(props);
    this.root = element();
    this.scroller = element();
    this.canvas = element();
    this.window = element();
    /** The blocks that are drawn: the first one, and the one behind the last. */
    this.first = 0;
    this.behind = 0;
    /** The last update that the user has seen, once the view is not at the end. */
    this.seen = 0;
    this.lostFocus = false;
    this.heights = new Heights(estimate);
    /** Whether the view follows the end. */
    this.follows = true;
    /** The block at the upper edge of the view, and how far above the edge it begins. */
    this.anchor = /** @type {{key: string, inside: number}|null} */ (null);
    /** What is looked for in a block that was gone to; null once it is found, or was not in time. */
    this.sight = /** @type {any} */ (null);
    /** The block that was unfolded for a place in it, and is folded once another one is gone to. */
    this.unfolded = /** @type {string|null} */ (null);
    this.scrolled = 0;
    this.view = 800;
    /** @type {Map<string, boolean>} what the user has folded or unfolded, by a key */
    this.folds = new Map();
    const { working, lastSeq, blocks } = props;
    /** The last update of an agent that was at work when the session was opened. */
    this.firstSeen = working ? { lastSeq, at: blocks.at(-1)?.until ?? Infinity } : {};
    this.state = { foldCount: 0, below: false, found: null };
    this.onScroll = this.onScroll.bind(this);
    this.toggle = this.toggle.bind(this);
    this.toEnd = this.toEnd.bind(this);
  }

  observer = new ResizeObserver(() => this.settle());

  componentDidMount() {
    this.observer.observe(this.scroller.current);
    this.observer.observe(this.window.current);
    if (!this.seek()) this.settle();
  }

  componentWillUnmount() {
    this.observer.disconnect();
    mark(this, "found", []);
    mark(this, "found-now", []);
  }

  componentDidUpdate(before) {
    // The user wants to see what becomes of a prompt that was just sent.
    if (this.props.sent > before.sent) this.toEnd();
    if (this.seek()) return;
    this.settle();
    if (this.lostFocus && document.activeElement === document.body) this.scroller.current.focus({ preventScroll: true });
  }

  toggle(key, open) {
    if (key === this.unfolded) this.unfolded = null;
    this.folds.set(key, open);
    this.setState({ foldCount: this.state.foldCount + 1 });
  }

  /**
   * Go to the wanted place, once its block is here. Returns whether it does: what is drawn then is settled.
   * `place` is the number of an update, and that of the first one that is here or comes with the next change; or the key
   * of a block, and what to look for in it: `nth` counts from its end.
   */
  seek() {
    const { place, blocks, firstSeq } = this.props;
    if (!place || place === this.sought || firstSeq > place.first || blocks.length === 0) return false;
    this.sought = place;
    const { words = "", nth = 0, key = blockAt(blocks, place.seq).key } = place;
    if (this.unfolded !== null && this.unfolded !== key) this.folds.delete(this.unfolded);
    if (this.unfolded !== key) this.unfolded = this.folds.get(key) ? null : key;
    this.folds.set(key, true);
    this.follows = false;
    this.anchor = { key, inside: -this.view * ABOVE };
    this.sight = { key, words, nth, until: performance.now() + WAITS };
    this.seen = this.props.lastSeq;
    this.setState({ foldCount: this.state.foldCount + 1, found: key, below: true });
    return true;
  }

  /** Mark the text that was looked for, once it is drawn, and go to it where its block is higher than the view. */
  spot() {
    const { key, words, nth, until } = /** @type {any} */ (this.sight);
    const row = this.rowOf(key);
    const ranges = row ? rangesOf(row, words) : [];
    const isLate = performance.now() > until;
    if (ranges.length <= nth && !isLate) return;
    this.sight = null;
    if (words !== "") this.props.onDrawn(key, ranges.length);
    const range = ranges.at(-1 - nth) ?? ranges[0];
    if (!range) return;
    uncover(range, row);
    const inside = range.getBoundingClientRect().top - row.getBoundingClientRect().top;
    if (inside > this.view * (1 - 2 * ABOVE)) this.anchor = { key, inside: inside - this.view * ABOVE };
  }

  /** Mark all places that are drawn, and the one that was gone to: a row that was drawn again has other nodes. */
  markPlaces() {
    const ranges = rangesOf(this.window.current, this.props.words);
    const { key, words, nth } = this.sought ?? {};
    const row = words === this.props.words && !this.sight ? this.rowOf(key) : null;
    const own = ranges.filter((range) => row?.contains(range.startContainer));
    mark(this, "found", ranges);
    mark(this, "found-now", own.length > 0 ? [own.at(-1 - nth) ?? own[0]] : []);
  }

  /** The element of a block, if it is drawn. */
  rowOf(key) {
    return this.window.current.children[(this.heights.find(key) ?? -1) - this.first];
  }

  /** Indices of the blocks to show: [first, behind the last]. */
  range() {
    const ahead = this.view * AHEAD;
    const top = this.follows ? Math.max(0, this.heights.total - this.view) : this.place();
    const first = this.heights.at(top - ahead);
    return [first, Math.min(this.heights.length, this.heights.at(top + this.view + ahead) + 1)];
  }

  /** Where the upper edge of the view belongs, from the beginning of the first block. */
  place() {
    const at = this.anchor && this.heights.find(this.anchor.key);
    return !this.anchor || at === null || at === undefined ? this.scrolled : this.heights.top(at) + this.anchor.inside;
  }

  /** Measure what is shown, put it into its place, and keep the view on what it showed. */
  settle() {
    const { heights } = this;
    const scroller = this.scroller.current;
    if (!scroller || scroller.clientHeight === 0) return;
    this.view = scroller.clientHeight;
    const rows = this.window.current.children;
    for (let i = 0; i < rows.length; i += 1) heights.measure(this.first + i, rows[i].getBoundingClientRect().height);
    this.canvas.current.style.height = `${heights.total}px`;
    this.window.current.style.transform = `translateY(${heights.top(this.first)}px)`;
    if (this.sight) this.spot();
    this.markPlaces();
    if (this.follows) scroller.scrollTop = scroller.scrollHeight;
    else if (this.anchor) scroller.scrollTop = this.canvas.current.offsetTop + this.place();
    this.note();
    const [first, behind] = this.range();
    if (first < this.first || behind > this.behind) this.setState({ foldCount: this.state.foldCount });
  }

  /** Remember where the view is. */
  note() {
    const scroller = this.scroller.current;
    this.scrolled = scroller.scrollTop - this.canvas.current.offsetTop;
    const i = this.heights.at(this.scrolled);
    const key = this.heights.keys[i];
    this.anchor = key === undefined ? null : { key, inside: this.scrolled - this.heights.top(i) };
  }

  onScroll() {
    const scroller = this.scroller.current;
    const before = this.scrolled;
    this.note();
    const left = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight;
    if (left <= STICKS) this.follows = true;
    else if (this.scrolled < before - 1) this.follows = false;
    const below = !this.follows;
    if (below !== this.state.below) {
      this.seen = this.props.lastSeq;
      this.setState({ below });
    }
    const [first, behind] = this.range();
    if (first < this.first || behind > this.behind) this.forceUpdate();
    if (this.props.older === "more" && scroller.scrollTop < this.view) this.props.onLoadOlder();
  }

  toEnd() {
    this.follows = true;
    this.anchor = null;
    this.sight = null;
    this.setState({ below: false });
  }

  render({ blocks, older, history, lastSeq, cwd, turn, working, isConnected }) {
    this.heights.update(blocks);
    [this.first, this.behind] = this.range();
    this.lostFocus = Boolean(this.root.current?.contains(document.activeElement));
    const rows = [];
    for (let i = this.first; i < this.behind; i += 1) {
      const block = blocks[i];
      rows.push(
        html`<${Row}
          key=${block.key}
          block=${block}
          folds=${this.folds}
          foldCount=${this.state.foldCount}
          toggle=${this.toggle}
          cwd=${cwd}
          found=${block.key === this.state.found}
          live=${turn && i === blocks.length - 1}
        />`,
      );
    }
    const isNew = this.state.below && lastSeq > (this.seen ?? 0);
    return html`<div class="transcript" ref=${this.root}>
      <div class="scroller" ref=${this.scroller} onScroll=${this.onScroll} tabindex="0" role="region" aria-label=${labelIn(this.context, "Transcript")}>
        <${Beginning} older=${older} history=${history} empty=${blocks.length === 0} />
        <div class="canvas" ref=${this.canvas}><div class="window" ref=${this.window}>${rows}</div></div>
        <p class="working">${working && html`<${Working} lastSeq=${lastSeq} first=${this.firstSeen} isConnected=${isConnected} />`}</p>
      </div>
      ${this.state.below && html`<${ToEnd} isNew=${isNew} toEnd=${this.toEnd} />`}
    </div>`;
  }
}

Transcript.contextType = PaneOf;

/** Shows that the agent works, and for how long it has said nothing, as far as is known here. */
function Working({ lastSeq, first, isConnected }) {
  const now = useNow(15_000);
  const heard = useRef(/** @type {any} */ ({}));
  // The clock of the gateway counts only for what was said before the session was opened here.
  if (heard.current.lastSeq !== lastSeq) heard.current = { lastSeq, at: first.lastSeq === lastSeq ? Math.min(first.at, Date.now()) : Date.now() };
  return html`<span class="dot"></span><span class="dot"></span><span class="dot"></span>${isConnected && silenceText(heard.current.at, now)}`;
}

/** By keyboard it is the key End: a button that goes while it has the focus would take the focus with it. */
function ToEnd({ isNew, toEnd }) {
  return html`<button tabindex="-1" class=${classes("to-end", isNew && "is-new")} onClick=${toEnd}>
    <${Icon} name="down" />${isNew ? "New below" : html`<span class="hidden">To the end</span>`}
  </button>`;
}

/** What stands above the first block. */
class Beginning extends Pure {
  render({ older, history, empty }) {
    if (history === "removed") return html`<p class="beginning">The history of this session was removed from the disk.</p>`;
    if (older === "more" || older === "loading") return html`<p class="beginning">Loading what is older…</p>`;
    if (older === "cut" || (history === "cut" && older === "none")) return html`<p class="beginning">What is older than this is not kept any more.</p>`;
    return html`<p class="beginning">${empty ? "Nothing was said yet." : ""}</p>`;
  }
}

/** One block, rendered again only when it is another one, or when something was folded. */
class Row extends Component {
  shouldComponentUpdate(next) {
    const now = this.props;
    return next.block !== now.block || next.foldCount !== now.foldCount || next.live !== now.live || next.found !== now.found || next.cwd !== now.cwd;
  }

  render({ block, folds, toggle, cwd, live, found }) {
    return html`<div class=${classes("row", `row-${block.kind}`, found && "is-found")}><${Boundary} fallback=${html`<p class="note">Something here can't be shown.</p>`}>
      <${Block} block=${block} folds=${folds} toggle=${toggle} cwd=${cwd} live=${live} />
    </${Boundary}></div>`;
  }
}
