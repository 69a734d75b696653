/** The agent's modes, models and options as menus below the composer, and the page's own menus of actions. */
import { useLayoutEffect, useRef, useState } from "../../../vendor/hooks.js";
import { html } from "../parts/html.js";
import { plain, visible } from "../../text/format.js";
import { useDocumentEvent } from "../parts/hooks.js";
import { Icon } from "../parts/icons.js";

/** Menus for everything that can be chosen in a session. */
export function SessionMenus({ modes, modeId, models, options, disabled, actions }) {
  // An agent that has options offers its modes and models as options too.
  const covered = new Set(options.map((option) => option.category ?? option.id));
  const modeList = covered.has("mode") ? [] : modes?.availableModes ?? [];
  const modelList = covered.has("model") ? [] : models?.availableModels ?? [];
  return html`
    ${modeList.length > 1 && html`<${Choice} label="Mode" value=${modeId} disabled=${disabled}
      choices=${modeList.map(({ id, name, description }) => ({ value: id, name, description }))} onChoice=${actions.setMode} />`}
    ${modelList.length > 1 && html`<${Choice} label="Model" value=${models.currentModelId} disabled=${disabled}
      choices=${modelList.map(({ modelId, name, description }) => ({ value: modelId, name, description }))} onChoice=${actions.setModel} />`}
    ${options.map((option) => html`<${Option} key=${option.id} option=${option} disabled=${disabled} setOption=${actions.setOption} />`)}
  `;
}

function Option({ option, disabled, setOption }) {
  if (option.type === "boolean") {
    return html`<label class="choice is-check" title=${visible(option.description)}>
      <input type="checkbox" checked=${option.currentValue === true} disabled=${disabled}
        onChange=${(event) => setOption(option.id, event.target.checked)} /><bdi>${visible(option.name)}</bdi>
    </label>`;
  }
  const choices = (option.options ?? []).flatMap((one) =>
    Array.isArray(one.options) ? one.options.map((inner) => ({ ...inner, group: one.name ?? one.group })) : [one],
  );
  if (choices.length < 2) return null;
  return html`<${Choice} label=${plain(option.name)} value=${option.currentValue} choices=${choices} disabled=${disabled}
    onChoice=${(value) => setOption(option.id, value)} />`;
}

/** A native menu: works with every keyboard, screen reader and phone. */
function Choice({ label, value, choices, disabled, onChoice }) {
  const current = choices.find((choice) => choice.value === value);
  const groups = [...new Set(choices.map((choice) => choice.group))];
  const item = (choice) => html`<option value=${choice.value} title=${visible(choice.description)}>${visible(choice.name ?? choice.value)}</option>`;
  return html`<label class="choice" title=${`${visible(label)}: ${visible(current?.description ?? current?.name)}`}>
    <span class="hidden">${visible(label)}</span>
    <select value=${value} disabled=${disabled} onChange=${(event) => onChoice(event.target.value)}>
      ${groups.map((group) => {
        const inside = choices.filter((choice) => choice.group === group).map(item);
        return group === undefined ? inside : html`<optgroup label=${visible(group)}>${inside}</optgroup>`;
      })}
    </select>
    <${Icon} name="chevron" />
  </label>`;
}

/** A button that opens a list of actions: [{label, icon, run, danger}]. */
export function ActionMenu({ label, actions }) {
  const [open, setOpen] = useState(false);
  const root = useRef(/** @type {any} */ (null));
  const close = (refocus) => {
    setOpen(false);
    if (refocus) root.current?.querySelector("button")?.focus();
  };
  useLayoutEffect(() => {
    if (open) root.current.querySelector("[role=menuitem]")?.focus();
  }, [open]);
  const leave = (event) => {
    if (open && !root.current?.contains(event.target)) close(false);
  };
  useDocumentEvent("pointerdown", leave);
  useDocumentEvent("focusin", leave);
  const move = (event) => {
    const items = [...root.current.querySelectorAll("[role=menuitem]")];
    const at = items.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1 }[event.key];
    if (event.key === "Escape") close(true);
    else if (event.key === "Tab") close(false);
    else if (to !== undefined) items.at(to % items.length)?.focus();
    else return;
    if (event.key !== "Tab") event.preventDefault();
  };
  return html`<div class="menu" ref=${root} onKeyDown=${open ? move : undefined}>
    <button class="icon-button" aria-label=${label} title=${label} aria-haspopup="menu" aria-expanded=${String(open)} onClick=${() => setOpen(!open)}>
      <${Icon} name="menu" />
    </button>
    ${open && html`<div class="menu-items" role="menu" aria-label=${label}>
      ${actions.map((action) => html`<button role="menuitem" tabindex="-1" class=${action.danger ? "is-danger" : ""}
        onClick=${() => {
          close(true);
          action.run();
        }}><${Icon} name=${action.icon} />${action.label}</button>`)}
    </div>`}
  </div>`;
}
