/** The search in the open session: the gateway finds the places, also those that are not loaded here. */
import { html, useEffect, useRef, useState } from "../vendor/standalone.module.js";
import { sentence, visible } from "./format.js";
import { textsOf } from "./found_place.js";
import { useLabel } from "./hooks.js";
import { Icon } from "./icons.js";
import { isComposing } from "./keys.js";
import { marked } from "./text_search.js";

/** `search` finds the last places before an update, `jump` shows one; `asked` counts the wishes for this bar. */
export function FindBar({ search, jump, onClose, asked }) {
  const [words, setWords] = useState("");
  const [answer, setAnswer] = useState(null);
  const latest = useRef(0);
  const input = useRef(null);
  useEffect(() => input.current.select(), [asked]);
  useEffect(() => () => void (latest.current = -1), []);
  const wanted = words.trim();

  /** Goes to a place, counted from the last one of the session; fetches earlier ones where they are needed. */
  const go = async (to, known) => {
    if (latest.current < 0 || to < 0 || (to >= known.found.length && !known.more)) return;
    latest.current += 1;
    const mine = latest.current;
    let next = { ...known, error: null };
    if (to >= known.found.length) {
      try {
        const { found, more } = await search(known.words, known.found.at(-1)?.seq);
        next = { ...next, found: [...known.found, ...found], more };
      } catch (error) {
        next = { ...next, error: error.message };
      }
      if (mine !== latest.current) return;
    }
    setAnswer({ ...next, at: Math.max(0, Math.min(to, next.found.length - 1)) });
    if (to < next.found.length) jump(next.found[to].seq, textsOf(next.found[to]));
  };
  const move = (step) => {
    if (wanted === "") return;
    if (answer?.words !== wanted || (answer.error && answer.found.length === 0)) go(0, { words: wanted, found: [], more: true });
    else go(answer.at + step, answer);
  };
  const onKey = (event) => {
    if (event.key === "Escape") onClose();
    else if (event.key === "Enter" && !isComposing(event)) move(event.shiftKey ? -1 : 1);
    else return;
    event.preventDefault();
  };
  const isKnown = answer !== null && answer.words === wanted;
  const place = isKnown ? answer.found[answer.at] : undefined;
  return html`<section class="find" role="search" aria-label=${useLabel("Find in this session")}>
    <div class="find-line">
      <input ref=${input} type="search" placeholder="Find in this session" aria-label="Find in this session" value=${words}
        onInput=${(event) => setWords(event.target.value)} onKeyDown=${onKey} />
      <span class="muted" role="status">${isKnown && stateOf(answer)}</span>
      <button class="icon-button" aria-label="Earlier place" title="Earlier place (Enter)" onClick=${() => move(1)}><${Icon} name="up" /></button>
      <button class="icon-button" aria-label="Later place" title="Later place (Shift+Enter)" onClick=${() => move(-1)}><${Icon} name="down" /></button>
      <button class="icon-button" aria-label="Close the search" onClick=${onClose}><${Icon} name="close" /></button>
    </div>
    ${place && html`<p class="find-text">${marked(place)}</p>`}
    ${isKnown && answer.error && html`<p class="error" role="alert">${visible(sentence(answer.error))}</p>`}
  </section>`;
}

function stateOf({ found, more, at, error }) {
  if (found.length === 0) return error ? "" : "Nothing found";
  return `${at + 1} of ${found.length}${more ? "+" : ""}`;
}
