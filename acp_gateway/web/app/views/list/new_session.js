/** The dialog that starts a session: agent, workspace, the first prompt, title. */
import { useState } from "../../../vendor/hooks.js";
import { html } from "../parts/html.js";
import { Dialog } from "../parts/dialog.js";
import { oneLine, sentence, visible } from "../../text/format.js";
import { TOUCH, useMedia, useNow } from "../parts/hooks.js";
import { agentText, awayText, machinesOf, machineText } from "../../state/machines.js";

/** Characters of a title that is taken from the first prompt. */
const LONGEST_TITLE = 80;

/**
 * `create` gets {agentType, cwd, title, worktree} and the first prompt, which may be empty; `preferred` is the name of an agent, `machine` that of a machine;
 * `draft` a first prompt that was typed before the browser was signed out, `onDraft` gets each change of it.
 */
export function NewSession({ agents, preferred, machine, connection, draft, onDraft, create, onClose: close }) {
  const now = useNow(30000);
  const touch = useMedia(TOUCH);
  const machines = machinesOf([], agents);
  const on = (name) => agents.filter((one) => (one.machine ?? "") === name);
  const first = (some) => some.find((one) => one.default) ?? some[0];
  const [chosenName, setAgentName] = useState(
    () => (agents.find(({ name }) => name === preferred) ?? first(on(machine)) ?? first(agents))?.name,
  );
  // The list of agents is fetched again while the dialog is open.
  const agentName = agents.some(({ name }) => name === chosenName) ? chosenName : first(agents)?.name;
  const agent = agents.find(({ name }) => name === agentName);
  const offered = on(agent?.machine ?? "");
  const workspaces = agent?.workspaces ?? [];
  const [chosenPath, setPath] = useState(/** @type {any} */ (null));
  const [prompt, setPrompt] = useState(draft);
  const type = (text) => {
    setPrompt(text);
    onDraft(text);
  };
  const onClose = () => {
    onDraft("");
    close();
  };
  const [title, setTitle] = useState("");
  const [worktree, setWorktree] = useState(/** @type {string|null} */ (null));
  const [state, setState] = useState({ busy: false, error: null });
  const path = workspaces.some((workspace) => workspace.path === chosenPath) ? chosenPath : workspaces[0]?.path;
  const submit = async (event) => {
    event.preventDefault();
    setState({ busy: true, error: null });
    try {
      const name = title.trim() || oneLine(prompt.trim().split("\n", 1)[0], LONGEST_TITLE);
      await create({ agentType: agentName, cwd: path, title: name || undefined, ...(worktree !== null && { worktree: worktree.trim() }) }, prompt.trim());
      onClose();
    } catch (error) {
      setState({ busy: false, error: error.message });
    }
  };
  return html`<${Dialog} title="New session" connection=${connection} onClose=${onClose}>
    <form onSubmit=${submit}>
      ${machines.length > 1 && html`<${Choices} legend="Machine" name="machine-of-session" value=${agent?.machine ?? ""}
        onChoice=${(name) => setAgentName(first(on(name))?.name)}
        choices=${machines.map(({ name, unreachableSince }) => ({ value: name, title: machineText(name), hint: awayText(unreachableSince, now) }))} />`}
      ${offered.length > 1 && html`<${Choices} legend="Agent" name="agent" value=${agentName} onChoice=${setAgentName}
        choices=${offered.map((one) => ({ value: one.name, title: agentText({ agentType: one.name, machine: one.machine }, agents) }))} />`}
      ${workspaces.length > 0 && html`<${Choices} legend="Workspace" name="workspace" value=${path} onChoice=${setPath}
        choices=${workspaces.map((workspace) => ({ value: workspace.path, title: workspace.name ?? workspace.path, hint: workspace.name ? workspace.path : null }))} />`}
      <label class="field"><span>First prompt <span class="muted">optional</span></span>
        <textarea rows="3" dir="auto" autofocus=${!touch} value=${prompt} onInput=${(event) => type(event.target.value)}
          onKeyDown=${(event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.form.requestSubmit()}></textarea>
      </label>
      <label class="field"><span>Title <span class="muted">optional</span></span>
        <input type="text" dir="auto" maxlength="200" value=${title} onInput=${(event) => setTitle(event.target.value)} />
      </label>
      <label class="field is-check"><input type="checkbox" checked=${worktree !== null} onChange=${(event) => setWorktree(event.target.checked ? "" : null)} />
        <span>In a new worktree <span class="muted">with a git branch of its own</span></span>
      </label>
      ${worktree !== null && html`<label class="field" ref=${reveal}><span>Branch <span class="muted">optional</span></span>
        <input type="text" autocapitalize="none" autocomplete="off" spellcheck=${false} maxlength="200" value=${worktree} onInput=${(event) => setWorktree(event.target.value)} />
      </label>`}
      ${agents.length === 0 && html`<p class="muted">No agent is configured for you.</p>`}
      ${state.error && html`<p class="error" role="alert">${sentence(state.error)}</p>`}
      <div class="dialog-actions">
        <button type="button" class="secondary" onClick=${onClose}>Cancel</button>
        <button class="primary" disabled=${state.busy || !agent}>${state.busy ? "Starting the agent…" : "Start"}</button>
      </div>
    </form>
  </${Dialog}>`;
}

/** Scrolls what has appeared into view: on a phone the buttons may cover it. @param {HTMLElement|null} node */
const reveal = (node) => node?.scrollIntoView({ block: "nearest" });

function Choices({ legend, name, value, choices, onChoice }) {
  return html`<fieldset class="choice-list">
    <legend>${legend}</legend>
    ${choices.map((choice) => html`<label key=${choice.value}>
      <input type="radio" name=${name} value=${choice.value} checked=${choice.value === value} onChange=${() => onChoice(choice.value)} />
      <span class="choice-title" dir="auto">${visible(choice.title)}</span>
      ${choice.hint && html`<span class="path muted">${visible(choice.hint)}</span>`}
    </label>`)}
  </fieldset>`;
}
