/** The dialog that saves a session as a file. The gateway writes it, also what is not loaded here. */
import { useState } from "../../../vendor/hooks.js";
import { html } from "../parts/html.js";
import { Dialog } from "../parts/dialog.js";
import { sentence } from "../../text/format.js";

const FORMATS = [
  { value: "markdown", title: "Markdown", text: "to read, and to go on writing" },
  { value: "html", title: "HTML", text: "one file for every browser; it loads nothing" },
  { value: "json", title: "JSON", text: "each update as the agent sent it, for programs" },
];

export function Export({ connection, exportSession, onClose }) {
  const [format, setFormat] = useState("markdown");
  const [redact, setRedact] = useState(true);
  const [state, setState] = useState({ busy: false, error: null });
  const run = async () => {
    setState({ busy: true, error: null });
    try {
      save(await exportSession({ format, redact }));
      onClose();
    } catch (error) {
      setState({ busy: false, error: error.message });
    }
  };
  return html`<${Dialog} title="Export this session" connection=${connection} onClose=${onClose}>
    <fieldset class="choice-list">
      <legend>The file is</legend>
      ${FORMATS.map(({ value, title, text }) => html`<label key=${value}>
        <input type="radio" name="format" autofocus=${value === "markdown"} checked=${format === value} onChange=${() => setFormat(value)} />
        <span class="choice-title">${title}</span><span class="muted">${text}</span></label>`)}
    </fieldset>
    <fieldset class="choice-list">
      <legend>Before others read it</legend>
      <label><input type="checkbox" checked=${redact} onChange=${(event) => setRedact(event.target.checked)} />
        <span class="choice-title">Leave out secrets</span>
        <span class="muted">what looks like a token, a key or a password; not one in a sentence</span></label>
    </fieldset>
    ${state.error && html`<p class="error" role="alert">${sentence(state.error)}</p>`}
    <div class="dialog-actions">
      <button class="primary" disabled=${state.busy} onClick=${run}>${state.busy ? "Writing…" : "Save"}</button>
    </div>
  </${Dialog}>`;
}

/** Hands a file to the browser, which saves it. */
function save({ name, mimeType, text }) {
  const url = URL.createObjectURL(new Blob([text], { type: mimeType }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  // Some browsers read it later.
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
