/** The dialog for the notifications of this browser. */
import { useEffect, useState } from "../../../vendor/hooks.js";
import { html } from "../parts/html.js";
import { DENIED } from "./attention.js";
import { Dialog } from "../parts/dialog.js";
import { sentence, titleOf } from "../../text/format.js";
import { minutesOf, timeOfDay } from "../../net/push.js";

/** Quiet hours that are proposed: 22:00 to 07:00. */
const NIGHT = { start: 22 * 60, end: 7 * 60 };

const OPEN_ONLY = "Without push, this browser notifies you only while the page is open.";
const ON_IPHONE = "On an iPhone or iPad, first add this page to the Home Screen (Share, then “Add to Home Screen”), and open it from there.";

export function Notifications({ connection, sessions, attention, push, onClose }) {
  const [state, setState] = useState(/** @type {any} */ (null));
  const [permission, setPermission] = useState(attention.permission);
  const [after, setAfter] = useState(push.done.after);
  const [said, setSaid] = useState(/** @type {{error: string|null, done: string|null}} */ ({ error: null, done: null }));

  /** Carry an action out, and show its end and what the state is then. Returns whether it has succeeded. */
  const run = (action, done = /** @type {string|null} */ (null)) => async () => {
    setSaid({ error: null, done: null });
    try {
      await action();
      if (push.available) setState(await push.state());
      setSaid({ error: null, done });
      return true;
    } catch (error) {
      setSaid({ error: error.message, done: null });
      return false;
    }
  };
  useEffect(() => void run(() => {})(), []);

  const turnOn = async () => {
    const answer = await attention.ask();
    setPermission(answer);
    if (answer === "granted" && push.available) await push.turnOn({ quiet: null, session: null });
  };
  // Shown at once: a box that is not checked yet would be clicked again.
  const set = async (change) => {
    const { quiet, session = null } = { ...state, ...change };
    setState({ ...state, quiet, session });
    if (!(await run(() => push.turnOn({ quiet, session }))())) setState(state);
  };
  const setLongest = async (minutes) => {
    setAfter(minutes);
    await run(() => push.setDone({ ...push.done, after: minutes }))();
  };
  const isOn = permission === "granted" && (state?.subscribed || !push.available);
  return html`<${Dialog} title="Notifications" connection=${connection} onClose=${onClose}>
    <p>When an agent asks you something, or its turn is over, this browser can tell you${push.available ? ", also while the page is closed" : ""}. What is decided elsewhere goes away.</p>
    ${permission === "denied" && html`<p class="error">${DENIED}</p>`}
    ${!push.available && html`<p class="muted">${attention.isApple ? ON_IPHONE : OPEN_ONLY}</p>`}
    ${isOn && push.available && html`<${Which} session=${state.session ?? null} sessions=${sessions} onSession=${(session) => set({ session })} />`}
    ${permission === "granted" && html`<${LongTurns} after=${after} onAfter=${setLongest} />`}
    ${isOn && push.available && html`<${QuietHours} quiet=${state.quiet} onQuiet=${(quiet) => set({ quiet })} />`}
    <p role="status" class="muted">${said.done}</p>
    ${said.error && html`<p class="error" role="alert">${sentence(said.error)}</p>`}
    <div class="dialog-actions">
      ${isOn && push.available && html`<button class="secondary" onClick=${run(() => push.turnOff())}>Turn off</button>
        <button class="primary" onClick=${run(() => push.test(), "Sent. It comes within some seconds.")}>Send a test notification</button>`}
      ${!isOn && permission !== "denied" && permission !== "unavailable" && html`<button class="primary" onClick=${run(turnOn)}>Turn on</button>`}
    </div>
  </${Dialog}>`;
}

/** The sessions that are told of: all, or one of them. */
function Which({ session, sessions, onSession }) {
  // Those of machines are told by the page alone.
  const rows = sessions.filter((one) => (one.live && !one.machine) || one.id === session);
  if (session !== null && !rows.some((one) => one.id === session)) rows.push({ id: session });
  if (rows.length === 0) return null;
  return html`<label class="field"><span>Questions of</span>
    <select value=${session ?? ""} onChange=${(event) => onSession(event.target.value || null)}>
      <option value="" selected=${session === null}>all sessions</option>
      ${rows.map((one) => html`<option value=${one.id} selected=${one.id === session}>only “${titleOf(one)}”</option>`)}
    </select></label>`;
}

/** The turns whose end is told, whatever their session. */
function LongTurns({ after, onAfter }) {
  const choices = [[null, "chosen sessions only"], [0, "all sessions"], ...[1, 5, 15, 60].map((minutes) => [minutes, `all sessions, ${minutes} min or longer`])];
  return html`<label class="field"><span>Ends of turns in</span>
    <select value=${after ?? ""} onChange=${(event) => onAfter(event.target.value === "" ? null : Number(event.target.value))}>
      ${choices.map(([minutes, text]) => html`<option value=${minutes ?? ""} selected=${minutes === after}>${text}</option>`)}
    </select><span class="muted">chosen by “Tell me when it is done” in their menus</span></label>`;
}

function QuietHours({ quiet, onQuiet }) {
  const { start, end } = quiet ?? NIGHT;
  const change = (name) => (event) => event.target.value && onQuiet({ start, end, [name]: minutesOf(event.target.value) });
  return html`<fieldset class="choice-list">
    <legend>Quiet hours</legend>
    <label><input type="checkbox" checked=${Boolean(quiet)} onChange=${(event) => onQuiet(event.target.checked ? NIGHT : null)} />
      <span class="choice-title">Nothing at night</span><span class="muted">what is still open then is told afterwards</span></label>
    ${quiet && html`<label class="field"><span>From</span><input type="time" required value=${timeOfDay(start)} onChange=${change("start")} /></label>
      <label class="field"><span>To</span><input type="time" required value=${timeOfDay(end)} onChange=${change("end")} /></label>`}
  </fieldset>`;
}
