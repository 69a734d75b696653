/** The dialog that makes a link to a session for another person, as text and as a QR code. */
import { useState } from "../../../vendor/hooks.js";
import { html } from "../parts/html.js";
import { Dialog } from "../parts/dialog.js";
import { durationText, sentence, timeOf } from "../../text/format.js";
import { Icon } from "../parts/icons.js";

/** Modules of white around a QR code, as its standard wants them. */
const QUIET = 4;

export function Share({ connection, share, onClose }) {
  const [observe, setObserve] = useState(true);
  const [state, setState] = useState({ busy: false, error: null, made: null });
  const choose = (value) => {
    setObserve(value);
    setState({ busy: false, error: null, made: null });
  };
  const make = async () => {
    setState({ busy: true, error: null, made: null });
    try {
      setState({ busy: false, error: null, made: await share({ observe }) });
    } catch (error) {
      setState({ busy: false, error: error.message, made: null });
    }
  };
  return html`<${Dialog} title="Share this session" connection=${connection} onClose=${onClose}>
    <fieldset class="choice-list">
      <legend>The link is for a person who</legend>
      <label><input type="radio" name="role" autofocus checked=${observe} onChange=${() => choose(true)} />
        <span class="choice-title">looks on</span><span class="muted">sees everything, can change nothing</span></label>
      <label><input type="radio" name="role" checked=${!observe} onChange=${() => choose(false)} />
        <span class="choice-title">takes part</span><span class="muted">can prompt, decide and stop the agent</span></label>
    </fieldset>
    ${state.made ? html`<${Made} made=${state.made} />` : html`<div class="dialog-actions">
      <button class="primary" disabled=${state.busy} onClick=${make}>Make a link</button>
    </div>`}
    ${state.error && html`<p class="error" role="alert">${sentence(state.error)}</p>`}
  </${Dialog}>`;
}

function Made({ made }) {
  const [copied, setCopied] = useState(false);
  const expires = timeOf(made.expires);
  const copy = async () => {
    await navigator.clipboard?.writeText(made.link);
    setCopied(true);
  };
  return html`<div class="made-link">
    <${QrCode} matrix=${made.qr} />
    <input type="text" readonly class="path" aria-label="Link" value=${made.link} onFocus=${(event) => event.target.select()} />
    <p class="muted">It signs one browser in, once${expires === null ? "" : `, within ${durationText(expires - Date.now())}`}.</p>
    <div class="dialog-actions">
      ${navigator.share && html`<button class="secondary" onClick=${() => navigator.share({ url: made.link }).catch(() => {})}><${Icon} name="share" />Send</button>`}
      ${navigator.clipboard && html`<button class="primary" onClick=${copy}><${Icon} name=${copied ? "check" : "copy"} />${copied ? "Copied" : "Copy the link"}</button>`}
    </div>
  </div>`;
}

/** A QR code from its rows: strings or lists of 0 and 1. Nothing without them. */
function QrCode({ matrix }) {
  if (!Array.isArray(matrix) || matrix.length === 0) return null;
  let path = "";
  matrix.forEach((row, y) => [...row].forEach((dark, x) => {
    if (Number(dark)) path += `M${x + QUIET} ${y + QUIET}h1v1h-1z`;
  }));
  const size = matrix.length + 2 * QUIET;
  return html`<svg class="qr" viewBox=${`0 0 ${size} ${size}`} role="img" aria-label="The link as a QR code">
    <rect width=${size} height=${size} /><path d=${path} />
  </svg>`;
}
