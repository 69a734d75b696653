/** Sessions side by side in the window: which one is in use, its focus, and what opens another one beside it. */
import { useEffect, useLayoutEffect, useRef } from "../../../vendor/hooks.js";
import { html } from "../parts/html.js";
import { isKey } from "../page/command_keys.js";
import { Icon } from "../parts/icons.js";
import { isComposing } from "../parts/keys.js";
import { partsOf } from "../../route/panes.js";
import { parseRoute } from "../../route/route.js";

/** Links that name a session of a list or of the board. */
const LINKS = "a.session, a.card";

/**
 * Calls `open` with what the address of a link says, where it is to be opened beside the session in use; null where
 * there is no room.
 */
export function useOpenBeside(open) {
  const latest = useRef(open);
  latest.current = open;
  useEffect(() => {
    const follow = (event) => {
      const link = event.target.closest?.(LINKS);
      if (!link || latest.current === null || event.defaultPrevented || event.repeat || isComposing(event) || !isKey(event, "aside")) return;
      const [part] = partsOf(parseRoute(link.hash));
      event.preventDefault();
      if (part) latest.current(part);
    };
    document.addEventListener("click", follow);
    document.addEventListener("keydown", follow);
    return () => {
      document.removeEventListener("click", follow);
      document.removeEventListener("keydown", follow);
    };
  }, []);
}

/** The button of a row or a card that does the same; by keyboard it is a key on the link. */
export function BesideButton({ sessionId, title, open }) {
  if (!open) return null;
  return html`<button class="icon-button to-beside" tabindex="-1" aria-label=${`Open beside: ${title}`} title="Open beside"
    onClick=${() => open({ sessionId, requestId: null, changes: false, at: null })}><${Icon} name="beside" /></button>`;
}

/**
 * Returns the properties of the element of a pane, and `root`, its reference. `pane` has `isTwo`, `isUsed`, `moves`
 * (how many times the page has moved the user), and `use`, which notes that the pane is in use.
 */
export function usePane({ isTwo, isUsed, moves, use }) {
  const root = useRef(/** @type {any} */ (null));
  const last = useRef(/** @type {any} */ (null));
  const seen = useRef(0);
  useLayoutEffect(() => {
    const node = root.current;
    const isMoved = moves !== seen.current;
    seen.current = moves;
    if (!isUsed || !isMoved || node.contains(document.activeElement)) return;
    if (!isTwo && document.activeElement !== document.body) return;
    if (node.contains(last.current)) last.current.focus({ preventScroll: true });
    // What had the focus may be gone, or take none any more.
    if (!node.contains(document.activeElement)) (isTwo ? node : node.querySelector(".scroller"))?.focus({ preventScroll: true });
  }, [isTwo, isUsed, moves]);
  const onfocusin = (event) => {
    if (event.target !== root.current) last.current = event.target;
    use();
  };
  return { root, properties: { ref: root, tabindex: isTwo ? "-1" : undefined, onPointerDown: use, onfocusin } };
}
