/**
 * The search in the open session, while it is typed: what is loaded is searched here, from the last place to the first;
 * the gateway finds what is older.
 */
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "../../../vendor/hooks.js";
import { html } from "../parts/html.js";
import { blocksWith, wantedOf } from "../../updates/find_text.js";
import { sentence } from "../../text/format.js";
import { blockAt } from "../transcript/found_place.js";
import { useLabel } from "../parts/hooks.js";
import { Icon } from "../parts/icons.js";
import { isComposing } from "../parts/keys.js";

/** Time in ms without a key before the last place is shown, and characters of ASCII from which on it is. */
const PAUSE = 250;
const SHORTEST = 2;

/**
 * `words` are what is typed, `open` has the signals of the session, `drawn` says how often they are in a block that was drawn. `search` asks the gateway for the
 * last places before an update, `reach` loads up to one, `show` goes to a place: `{key, nth, words}`, where `nth` counts
 * from the end of the block. `asked` counts the wishes for this bar.
 */
export function FindBar({ words, onWords, open, drawn, search, reach, show, onClose, asked }) {
  const { blocks, version, firstSeq } = open.transcript.value;
  const older = open.older.value;
  const [at, setAt] = useState(/** @type {any} */ (null));
  const [beyond, setBeyond] = useState({ words: "" });
  const [wish, setWish] = useState(/** @type {any} */ (null));
  const input = useRef(/** @type {any} */ (null));
  const isHere = useRef(true);
  useLayoutEffect(() => input.current.select(), [asked]);
  useEffect(() => () => void (isHere.current = false), []);
  const wanted = wantedOf(words);
  const places = useMemo(() => blocksWith(blocks, wanted), [version, wanted]);
  const index = at === null || at.words !== wanted ? -1 : places.findIndex(({ key }) => key === at.key);
  const told = beyond.words === wanted ? beyond : {};
  const mayBeMore = (older === "more" || older === "loading") && !told.none;

  const countOf = ({ key, count }) => Math.max(1, drawn.get(key) ?? count);
  const go = ({ key }, nth) => {
    setAt({ key, nth, words: wanted });
    show({ key, nth, words: wanted });
  };
  /** Has the last older place loaded, and goes there. */
  const goBeyond = async () => {
    if (!mayBeMore || told.busy) return;
    const say = (about) => isHere.current && setBeyond({ words: wanted, ...about });
    say({ busy: true });
    try {
      const { found } = await search(wanted, firstSeq);
      const first = found.length > 0 && isHere.current ? await reach(found[0].seq) : null;
      say({ none: found.length === 0 });
      if (first !== null && isHere.current) setWish({ words: wanted, seq: Math.max(first, found[0].seq) });
    } catch (error) {
      say({ error: error.message });
    }
  };
  const move = (step) => {
    if (wanted === "") return undefined;
    const here = places[index];
    if (step > 0) {
      if (here && at.nth + 1 < countOf(here)) return go(here, at.nth + 1);
      return index + 1 < places.length ? go(places[index + 1], 0) : goBeyond();
    }
    if (here && at.nth > 0) return go(here, at.nth - 1);
    return index > 0 ? go(places[index - 1], countOf(places[index - 1]) - 1) : undefined;
  };
  // What was typed until the pause is over, and what has come with it.
  const latest = useRef(move);
  latest.current = move;
  useEffect(() => {
    if (wanted.length < SHORTEST && /^[\x00-\x7f]*$/.test(wanted)) return undefined;
    const timer = setTimeout(() => latest.current(1), PAUSE);
    return () => clearTimeout(timer);
  }, [wanted]);
  useEffect(() => {
    if (wish === null || wish.words !== wanted || firstSeq > wish.seq) return;
    setWish(null);
    if (index + 1 < places.length) move(1);
    else go(blockAt(blocks, wish.seq), 0);
  }, [wish, version]);
  const onKey = (event) => {
    if (event.key === "Escape") onClose();
    else if (event.key === "Enter" && !isComposing(event)) move(event.shiftKey ? -1 : 1);
    else return;
    event.preventDefault();
  };
  const sum = (some) => some.reduce((total, place) => total + countOf(place), 0);
  const number = index < 0 ? null : sum(places.slice(0, index)) + at.nth + 1;
  const state = told.busy ? "Searching…" : places.length === 0 ? (mayBeMore || told.error ? "" : "Nothing found")
    : `${number === null ? "" : `${number} of `}${sum(places)}${mayBeMore ? "+" : ""}`;
  return html`<section class="find" role="search" aria-label=${useLabel("Find in this session")}>
    <div class="find-line">
      <input ref=${input} type="search" dir="auto" placeholder="Find in this session" aria-label="Find in this session" value=${words}
        onInput=${(event) => onWords(event.target.value)} onKeyDown=${onKey} />
      <span class="muted" role="status">${wanted !== "" && state}</span>
      <button class="icon-button" aria-label="Earlier place" title="Earlier place (Enter)" onClick=${() => move(1)}><${Icon} name="up" /></button>
      <button class="icon-button" aria-label="Later place" title="Later place (Shift+Enter)" onClick=${() => move(-1)}><${Icon} name="down" /></button>
      <button class="icon-button" aria-label="Close the search" onClick=${onClose}><${Icon} name="close" /></button>
    </div>
    ${told.error && html`<p class="error" role="alert">${sentence(told.error)}</p>`}
  </section>`;
}
