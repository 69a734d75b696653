/** What has changed on the disk, within the view of changes: asked for while it is shown, and put back after a second question. */
import { useEffect, useLayoutEffect, useRef, useState } from "../../../vendor/hooks.js";
import { html } from "../parts/html.js";
import { readTold } from "../../updates/disk_changes.js";
import { sentence } from "../../text/format.js";

/**
 * Asks for what has changed since a mark, again when a turn ends. `ask` is null for those who may not see files.
 * @returns {{told: import("../../updates/disk_changes.js").Told|null, why: string|null, again: () => void}} `why`: the sentence that
 *   says why the disk is not shown.
 */
export function useDisk(ask, mark, end) {
  const [state, setState] = useState(/** @type {{told: any, why: string|null}} */ ({ told: null, why: null }));
  const [time, setTime] = useState(0);
  useEffect(() => {
    let isShown = true;
    const show = (next) => isShown && setState(next);
    if (ask !== null) {
      ask(mark).then(
        (told) => show({ told: readTold(told), why: told.git === false ? told.why : null }),
        // An older gateway does not know it.
        ({ code, message }) => show({ told: null, why: code === -32601 ? null : message }),
      );
    }
    return () => void (isShown = false);
  }, [ask === null, mark, end, time]);
  return { ...state, again: () => setTime(time + 1) };
}

/** A button that asks before it does something, and says why that has failed. */
export function Undo({ label, what, run }) {
  const [isAsked, setAsked] = useState(false);
  const [error, setError] = useState(/** @type {string|null} */ (null));
  const [isBusy, setBusy] = useState(false);
  const root = useRef(/** @type {any} */ (null));
  const wasAsked = useRef(false);
  // What had the focus is not there any more.
  useLayoutEffect(() => {
    if (wasAsked.current !== isAsked) root.current?.querySelector("button").focus();
    wasAsked.current = isAsked;
  }, [isAsked]);
  const carryOut = async () => {
    setBusy(true);
    setError(null);
    try {
      await run();
      setAsked(false);
    } catch (failure) {
      setError(failure.message);
    }
    setBusy(false);
  };
  if (!isAsked) return html`<div class="undo" ref=${root}><button class="quiet" onClick=${() => setAsked(true)}>${label}</button></div>`;
  return html`<div class="undo is-asked" role="group" aria-label=${label} ref=${root}>
    <p>${what}</p>
    ${error && html`<p class="error" role="alert">${sentence(error)}</p>`}
    <div class="remark-actions">
      <button class="quiet" onClick=${() => setAsked(false)}>Keep it</button>
      <button class="secondary is-danger" disabled=${isBusy} onClick=${carryOut}>Put back</button>
    </div>
  </div>`;
}
