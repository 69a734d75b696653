/** The switch between machines above the list of sessions, and the badge of a session's machine. */
import { html } from "../parts/html.js";
import { classes } from "../parts/hooks.js";
import { ALL, awayText, machineText } from "../../state/machines.js";

/** The switch; nothing where all sessions are on one machine. A machine that is too old for the gateway is named in any case. */
export function MachineSwitch({ machines, told, choice, onChoice, now }) {
  const old = told.filter(({ tooOld }) => tooOld).map(({ name }) => name);
  const notes = old.map((name) => html`<p key=${name} class="machine-away">
    ${machineText(name)} is too old for this gateway: upgrade acp-gateway there.
  </p>`);
  if (machines.length === 0) return notes.length === 0 ? null : html`<div class="machines" role="status">${notes}</div>`;
  const chosen = machines.some(({ name }) => name === choice) ? choice : ALL;
  const choices = [{ name: ALL, unreachableSince: null }, ...machines];
  const away = machines.filter(({ name, unreachableSince }) => unreachableSince && !old.includes(name) && (chosen === ALL || chosen === name));
  return html`<fieldset class="machines">
    <legend class="hidden">Machine</legend>
    <div class="machine-choices">${choices.map(({ name, unreachableSince }) => html`<label key=${name} class=${classes(unreachableSince && "is-away")}>
      <input type="radio" name="machine" class="hidden" value=${name} checked=${name === chosen} onChange=${() => onChoice(name)} />
      <span>${name === ALL ? "All machines" : machineText(name)}</span>
    </label>`)}</div>
    <div role="status">${notes}${away.map(({ name, unreachableSince }) => html`<p key=${name} class="machine-away">
      ${machineText(name)} is ${awayText(unreachableSince, now)}.
    </p>`)}</div>
  </fieldset>`;
}

/** The badge; nothing for a session of this machine. */
export function MachineBadge({ machine, unreachableSince }) {
  return machine ? html`<span class=${classes("machine", unreachableSince && "is-away")}>${machineText(machine)}</span>` : null;
}
