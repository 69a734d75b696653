/** The dialog that shows how busy the machines are: a card for each, with its GPUs and the sessions that hold them. */
import { useEffect, useState } from "../../../vendor/hooks.js";
import { html } from "../parts/html.js";
import { Dialog } from "../parts/dialog.js";
import { makeRoute } from "../../route/route.js";
import { freeText, rowsOf } from "../../state/machine_load.js";
import { machineText } from "../../state/machines.js";
import { oneLine, sentence } from "../../text/format.js";

/** Time in ms between two looks: what a person sees is not old, and a machine is asked while it is looked at only. */
const INTERVAL = 5000;

/** `look` returns what `gateway/machine` tells, with the other machines. */
export function MachineCards({ connection, look, onClose }) {
  const [told, setTold] = useState(/** @type {any} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  useEffect(() => {
    let isShown = true;
    /** @type {any} */
    let timer = null;
    const next = async () => {
      try {
        if (!document.hidden) {
          const answer = await look();
          if (isShown) setTold(answer);
        }
        if (isShown) setError(null);
      } catch (failure) {
        if (isShown) setError(failure.message);
      }
      if (isShown) timer = setTimeout(next, INTERVAL);
    };
    void next();
    return () => {
      isShown = false;
      clearTimeout(timer);
    };
  }, []);
  const cards = told === null ? [] : [["", told], ...(told.others ?? [])];
  return html`<${Dialog} title=${cards.length > 1 ? "Machines" : "Machine"} connection=${connection} onClose=${onClose}>
    ${told === null && error === null && html`<p class="muted" role="status">Asking…</p>`}
    ${cards.map(([name, load]) => html`<${Card} key=${name} name=${name} load=${load} onClose=${onClose} />`)}
    ${error && html`<p class="error" role="alert">${sentence(error)}</p>`}
  </${Dialog}>`;
}

function Card({ name, load, onClose }) {
  const title = name === "" ? oneLine(load?.name ?? "", 64) || machineText(name) : machineText(name);
  return html`<section class="machine-card" aria-label=${title}>
    <h3>${title}</h3>
    ${load === null ? html`<p class="muted">It does not tell now.</p>` : html`<p class="machine-free">${freeText(load)}</p>
      <dl>${rowsOf(name, load).map((row) => html`<div key=${row.key}>
        <dt>${row.label}</dt>
        <dd>${row.text}
          ${row.part !== null && html`<meter min="0" max="1" value=${row.part} aria-label=${`${row.label}: used part`}></meter>`}
          ${row.holders.length > 0 && html`<ul>${row.holders.map((holder) => html`<li key=${holder.key}>
            ${holder.sessionId === null ? holder.text : html`<a href=${makeRoute({ sessionId: holder.sessionId })} dir="auto" onClick=${onClose}>${holder.text}</a>`}
          </li>`)}</ul>`}
        </dd>
      </div>`)}</dl>
      ${load.problem && html`<p class="muted">${sentence(load.problem)}</p>`}`}
  </section>`;
}
