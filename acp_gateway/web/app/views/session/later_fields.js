/** When a prompt is to be sent, and whether by itself. */
import { useLayoutEffect, useRef } from "../../../vendor/hooks.js";
import { timeOf } from "../../text/format.js";
import { saidText } from "../../text/words.js";
import { html } from "../parts/html.js";

/**
 * @typedef {object} Later
 * @property {string} at - as a person writes it; empty for the end of the turn.
 * @property {boolean} auto - it is sent by itself also after the end of the agent or the gateway.
 */

/**
 * The member of a prompt for the gateway.
 * @param {Later} later @param {Date} [now]
 */
export function queueOf({ at, auto }, now = new Date()) {
  return { ...(at.trim() !== "" && { at: at.trim(), offset: -now.getTimezoneOffset() }), auto };
}

/** @param {{later: Later, change: (later: Later) => void, limitedUntil?: string|null}} props */
export function LaterFields({ later, change, limitedUntil = null }) {
  const field = useRef(/** @type {any} */ (null));
  const until = timeOf(limitedUntil);
  useLayoutEffect(() => field.current.focus(), []);
  return html`<div class="later">
    <label>Send <input ref=${field} value=${later.at} placeholder="06:00, in 2 h" size="12" autocomplete="off"
      onInput=${(event) => change({ ...later, at: event.target.value })} /></label>
    ${until !== null && until > Date.now() && html`<button type="button" class="quiet" onClick=${() => change({ ...later, at: "limit" })}>When the limit ends, ${saidText(until, Date.now())}</button>`}
    <label title="Also if the agent or the gateway ends before"><input type="checkbox" checked=${later.auto}
      onChange=${(event) => change({ ...later, auto: event.target.checked })} /> even after a restart</label>
  </div>`;
}
