/** The dialog that shows what sessions have cost: by day, session, agent or person, a part for each machine. */
import { useEffect, useState } from "../../../vendor/hooks.js";
import { html } from "../parts/html.js";
import { Dialog } from "../parts/dialog.js";
import { makeRoute } from "../../route/route.js";
import { firstDay, PERIODS, partsOf, sumText, WAYS } from "../../text/costs.js";
import { machineText } from "../../state/machines.js";
import { oneLine, sentence } from "../../text/format.js";

/** `look` gets {by, since}, and returns what `gateway/usage` tells, with the other machines. */
export function Costs({ connection, look, onClose }) {
  const [by, setBy] = useState("day");
  const [days, setDays] = useState(30);
  const [told, setTold] = useState(/** @type {any} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  useEffect(() => {
    let isShown = true;
    setTold(null);
    setError(null);
    look({ by, since: firstDay(days, Date.now()) }).then(
      (answer) => isShown && setTold(answer),
      (failure) => isShown && setError(failure.message),
    );
    return () => {
      isShown = false;
    };
  }, [by, days]);
  const parts = told === null ? [] : [["", told], ...(told.others ?? [])];
  return html`<${Dialog} title="Costs" connection=${connection} onClose=${onClose}>
    <div class="cost-choices">
      <${Choice} label="Add up by" value=${by} choices=${WAYS} onChoice=${setBy} />
      <${Choice} label="Period" value=${days} choices=${PERIODS} onChoice=${(text) => setDays(Number(text))} />
    </div>
    ${told === null && error === null && html`<p class="muted" role="status">Asking…</p>`}
    ${parts.map(([name, costs]) => html`<${Part} key=${name} name=${name} several=${parts.length > 1} costs=${costs} onClose=${onClose} />`)}
    ${error && html`<p class="error" role="alert">${sentence(error)}</p>`}
    ${told !== null && html`<p class="muted cost-note">As agents tell it. What they do not tell is not here.</p>`}
  </${Dialog}>`;
}

function Choice({ label, value, choices, onChoice }) {
  return html`<label><span class="hidden">${label}</span>
    <select value=${value} onChange=${(event) => onChoice(event.target.value)}>
      ${choices.map(([word, text]) => html`<option key=${word} value=${word}>${text}</option>`)}
    </select>
  </label>`;
}

function Part({ name, several, costs, onClose }) {
  const title = several ? (name === "" ? "This machine" : machineText(name)) : "Total";
  if (costs === null) return html`<section class="costs" aria-label=${title}><h3>${title}</h3><p class="muted">It does not tell now.</p></section>`;
  const { rows, total, more, by } = costs;
  const parts = partsOf(rows);
  const named = ({ key, title: text }) => oneLine(text || key, 200);
  return html`<section class="costs" aria-label=${title}>
    <h3>${title}</h3>
    <p class="cost-total">${rows.length === 0 ? "Nothing." : sumText(total)}</p>
    <ul>${rows.map((row, index) => html`<li key=${row.key}>
      <span class="cost-key" dir="auto">${by === "session" ? html`<a href=${makeRoute({ sessionId: row.key })} onClick=${onClose}>${named(row)}</a>` : named(row)}</span>
      <span class="cost-sum">${sumText(row)}</span>
      <meter min="0" max="1" value=${parts[index]} aria-label=${`${named(row)}: part of the largest`}></meter>
    </li>`)}</ul>
    ${more > 0 && html`<p class="muted">… and ${more} more, which are in the total</p>`}
  </section>`;
}
